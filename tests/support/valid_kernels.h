/* SPDX-License-Identifier: Apache-2.0 */
/* Layers in FP32 arithmetic by any legal order of summation: what the bounds must let pass. */
#ifndef GB_TESTS_SUPPORT_VALID_KERNELS_H
#define GB_TESTS_SUPPORT_VALID_KERNELS_H

#include "reference/reference.h"
#include "tests/support/problem.h"

/* LEGAL_SPLIT: four parts of the columns, each summed by itself. */
enum legal_order { LEGAL_FORWARD, LEGAL_REVERSED, LEGAL_SHUFFLED, LEGAL_PAIRWISE, LEGAL_SPLIT, LEGAL_ORDERS };

struct legal {
    enum legal_order order;
    bool fma;          /* products enter sums unrounded */
    bool scales_first; /* weights are multiplied by their scales before the sum, not after */
    bool reciprocal;   /* silu(x) = x * (1 / (1 + e^-x)), not x / (1 + e^-x) */
    bool fold;         /* one sum over all slots of a token, products scaled by the routing weight */
    uint64_t seed;     /* of the shuffle */
    bool truncate;     /* sums are rounded toward zero */
    bool early;        /* of quantised activations: their global scale is in the values, not in the product */
};

/* Every order, with and without fma, scales first, reciprocal and fold: way 0 .. LEGAL_WAYS - 1. */
enum { LEGAL_WAYS = LEGAL_ORDERS * 16 };
struct legal legal_way(unsigned way, uint64_t seed);

/*
 * output: [tokens, hidden]; intermediate: [tokens, top_k, intermediate]: values rounded to the formats in points.
 * Every sum is rounded to points->accumulator_bits. With activation_rules in the problem's arguments x and the
 * intermediate are quantised by them.
 */
void legal_layer(const struct problem *problem, const struct legal *legal, const struct gb_rounding_points *points,
                 double *output, double *intermediate);
/* The same, with something done to the intermediate before down takes it. */
typedef void legal_change(void *context, double *intermediate);
void legal_layer_changed(const struct problem *problem, const struct legal *legal,
                         const struct gb_rounding_points *points, legal_change *change, void *context, double *output,
                         double *intermediate);

#endif
