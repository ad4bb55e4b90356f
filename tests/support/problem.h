/* SPDX-License-Identifier: Apache-2.0 */
/* Random problems for the operators, with poisoned outputs. Out of memory aborts. */
#ifndef GB_TESTS_SUPPORT_PROBLEM_H
#define GB_TESTS_SUPPORT_PROBLEM_H

#include <stdbool.h>

#include "gaugeblock.h"

enum data {
    DATA_CODES,     /* every element code and every finite block scale, zero and subnormal ones included */
    DATA_GAUSSIAN,  /* gaussian weights, by the format's default recipe; DATA_CODES where it has none */
    DATA_WIDE,      /* DATA_CODES with activations of any finite magnitude below 2^100: sums lose almost all bits */
    DATA_SUBNORMAL, /* DATA_CODES with dot products near and below 2^-126 */
    DATA_CANCEL,    /* DATA_CODES with every second run of 16 columns the negative of the one before */
    DATA_NONFINITE  /* DATA_CODES with a few NaN and infinite activations, and NaN block scales */
};

struct problem {
    /* All buffers owned, outputs included: output is FP32, intermediate is always there. */
    struct gb_arguments arguments;
    float *output;                 /* [tokens, hidden], what arguments.output points to */
    gb_bf16 *intermediate;         /* [tokens, top_k, intermediate], what arguments.intermediate points to */
    int32_t *ids;                  /* [tokens, top_k]: different experts per token */
    float *routing_weights;        /* [tokens, top_k]: positive, near 1 / top_k, of full precision */
    gb_bf16 *x;                    /* [tokens, hidden] */
    double *truth_x;               /* [tokens, hidden]: x in float64 */
    float *gate_up_bias;           /* [experts, 2 * intermediate]; NULL before problem_extend */
    float *down_bias;              /* [experts, hidden]; the same */
    double *truth_routing_weights; /* [tokens, top_k]: routing_weights in float64 */
};

void problem_new(struct problem *problem, struct gb_shape shape, enum gb_format format, enum data data, uint64_t seed);
void problem_free(struct problem *problem);
/* Gives it biases of full precision and an activation. */
void problem_extend(struct problem *problem, enum gb_activation activation, uint64_t seed);
/* Fills both outputs with a pattern that is no result. */
void problem_poison(struct problem *problem);
/* Sets every `one_in`-th id, at random, to -1. */
void problem_empty_slots(struct problem *problem, uint32_t one_in, uint64_t seed);

/* One matrix per expert, such that its products with gaussian x are of order 1 (DATA_SUBNORMAL: 2^-126). */
void problem_weights(struct gb_weights *weights, enum gb_format format, uint32_t experts, uint32_t rows,
                     uint32_t columns, uint32_t parts, enum data data, uint64_t *random);
void problem_weights_free(struct gb_weights *weights);
/* x: [count] */
void problem_activations(gb_bf16 *x, size_t count, enum data data, uint64_t *random);

#endif
