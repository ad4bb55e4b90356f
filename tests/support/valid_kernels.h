/* SPDX-License-Identifier: Apache-2.0 */
/* Layers in FP32 arithmetic by any valid order of summation: what the bounds must let pass. */
#ifndef GB_TESTS_SUPPORT_VALID_KERNELS_H
#define GB_TESTS_SUPPORT_VALID_KERNELS_H

#include "reference/reference.h"
#include "tests/support/problem.h"

/* VALID_SPLIT: four parts of the columns, each summed by itself. */
enum valid_order { VALID_FORWARD, VALID_REVERSED, VALID_SHUFFLED, VALID_PAIRWISE, VALID_SPLIT, VALID_ORDERS };

struct valid_kernel {
    enum valid_order order;
    bool fma;          /* products enter sums unrounded */
    bool scales_first; /* weights are multiplied by their scales before the sum, not after */
    bool reciprocal;   /* silu(x) = x * (1 / (1 + e^-x)), not x / (1 + e^-x) */
    bool fold;         /* one sum over all slots of a token, products scaled by the routing weight */
    uint64_t seed;     /* of the shuffle */
    bool truncate;     /* sums are rounded toward zero */
    bool early;        /* of quantised activations: their global scale is in the values, not in the product */
    bool clamp;        /* exp's argument is at most 88.376, as in SIMD forms of it */
};

/* Every order, with and without fma, scales first, reciprocal and fold: way 0 .. VALID_WAYS - 1. */
enum { VALID_WAYS = VALID_ORDERS * 16 };
struct valid_kernel valid_way(unsigned way, uint64_t seed);

/*
 * output: [tokens, hidden]; intermediate: [tokens, top_k, intermediate]: values rounded to the formats in points.
 * Every sum is rounded to points->accumulator_bits. With activation_rules in the problem's arguments x and the
 * intermediate are quantised by them.
 */
void valid_layer(const struct problem *problem, const struct valid_kernel *valid,
                 const struct gb_rounding_points *points, double *output, double *intermediate);
/* The same, with something done to the intermediate before down takes it. */
typedef void valid_change(void *context, double *intermediate);
void valid_layer_changed(const struct problem *problem, const struct valid_kernel *valid,
                         const struct gb_rounding_points *points, valid_change *change, void *context, double *output,
                         double *intermediate);

#endif
