/* SPDX-License-Identifier: Apache-2.0 */
/* Problems of a router. */
#ifndef GB_TESTS_SUPPORT_ROUTE_PROBLEM_H
#define GB_TESTS_SUPPORT_ROUTE_PROBLEM_H

#include "gaugeblock.h"

/* gaussian: logits of order 1; ties: few different values; edge: NaN, infinities, zeros, differences that underflow
 * e^x; negative: biases that make most choices negative. */
enum route_kind { ROUTE_GAUSSIAN, ROUTE_TIES, ROUTE_EDGE, ROUTE_NEGATIVE, ROUTE_KINDS };

struct route_problem {
    struct gb_arguments arguments;
    gb_bf16 *x;      /* [tokens, hidden] */
    gb_bf16 *router; /* [experts, hidden] */
    float *bias;     /* [experts] */
    int32_t *ids, *expected_ids;
    float *weights, *expected;
};

/* Of tokens, hidden >= 2, experts and top_k of `shape`; the recipe is not set. */
void route_problem_new(struct route_problem *p, struct gb_shape shape, enum route_kind kind, uint64_t seed);
void route_problem_free(struct route_problem *p);

#endif
