/* SPDX-License-Identifier: Apache-2.0 */
/* combine in float64, and how far from there any order of its sums may end: docs/numerics.md#rank-sums. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "quant/quant.h"
#include "reference/exchange.h"
#include "reference/truth/bounds.h"

/* A sum so far: of the terms, of their magnitudes, and how far it may be off. */
struct sum {
    double value, magnitude, error;
    uint32_t terms;
};

static void add(struct sum *to, double value, double magnitude, double error)
{
    to->value += value;
    to->magnitude += magnitude;
    to->error += error;
    to->terms++;
}

/* What the sum's own roundings add, in any order: of a product, and of every addition, the first one to +0. */
static void accumulate(struct sum *s, double u)
{
    s->error += gamma_n(s->terms + 1.0, u) * (s->magnitude + s->error) + 2.0 * s->terms * (double)FLT_TRUE_MIN;
}

/* What one rounding to bf16 adds: half an ulp, of a subnormal half of the smallest. */
static void round_bf16(struct sum *s)
{
    const double half_ulp = 0x1p-8, half_smallest = 0x1p-134;
    s->error += half_ulp * (fabs(s->value) + s->error) + half_smallest;
}

/* One token's slots as seen by the sums. */
struct slots {
    const struct gb_exchange *x;
    const struct gb_arguments *a;
    const struct gb_rows *rows;
    size_t token;
    uint32_t h;
};

/* Those whose experts are on ranks first .. end - 1, added up on each rank if `partial`. False: there are none. */
static bool sum_ranks(const struct slots *s, uint32_t first, uint32_t end, bool partial, double u, struct sum *sum)
{
    bool any = false;
    *sum = (struct sum){0};
    for (uint32_t j = 0; j < s->x->top_k; j++) {
        size_t route = s->token * s->x->top_k + j;
        if (s->a->ids[route] < 0)
            continue;
        uint32_t rank = (uint32_t)s->a->placement[s->a->ids[route]];
        if (rank < first || rank >= end)
            continue;
        size_t at = (size_t)s->rows->row[route] * s->x->hidden + s->h;
        double y = s->x->input == GB_FP32 ? (double)((const float *)s->a->values)[at]
                                          : (double)gb_bf16_decode(((const gb_bf16 *)s->a->values)[at]);
        double term = (double)s->a->routing_weights[route] * y;
        add(sum, term, fabs(term), 0.0);
        any = true;
    }
    if (any)
        accumulate(sum, u);
    if (partial)
        round_bf16(sum);
    return any;
}

/* The same of the partial sums of ranks first .. end - 1. */
static bool sum_partials(const struct slots *s, uint32_t first, uint32_t end, double u, struct sum *sum)
{
    struct sum of_rank;
    *sum = (struct sum){0};
    for (uint32_t rank = first; rank < end; rank++)
        if (sum_ranks(s, rank, rank + 1, true, u, &of_rank))
            add(sum, of_rank.value, fabs(of_rank.value), of_rank.error);
    if (sum->terms)
        accumulate(sum, u);
    return sum->terms;
}

static void sum_nodes(const struct slots *s, double u, struct sum *sum)
{
    struct sum of_node;
    *sum = (struct sum){0};
    for (uint64_t first = 0; first < s->x->ranks; first += s->x->ranks_per_node) {
        uint64_t end = first + s->x->ranks_per_node;
        if (!sum_partials(s, (uint32_t)first, (uint32_t)(end < s->x->ranks ? end : s->x->ranks), u, &of_node))
            continue;
        round_bf16(&of_node);
        add(sum, of_node.value, fabs(of_node.value), of_node.error);
    }
    if (sum->terms)
        accumulate(sum, u);
}

static void sum_token(const struct slots *s, double u, struct sum *sum)
{
    if (s->x->accumulation == GB_AT_RECEIVER)
        sum_ranks(s, 0, s->x->ranks, false, u, sum);
    else if (s->x->accumulation == GB_AT_SENDER)
        sum_partials(s, 0, s->x->ranks, u, sum);
    else
        sum_nodes(s, u, sum);
}

enum gb_status gb_bound_exchange(const struct gb_arguments *a, enum gb_format output, uint32_t accumulator_bits,
                                 double *truth, double *worst, struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    const double largest = (double)FLT_MAX, u = ldexp(1.0, gb_may_truncate(accumulator_bits) - (int)accumulator_bits);
    struct gb_rows rows;
    enum gb_status status = gb_exchange_check_routes(a, GB_COMBINE, error);
    if (status == GB_OK && (!a->values || !a->routing_weights))
        status = gb_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (status == GB_OK)
        status = gb_rows_new(a, &rows, error);
    if (status != GB_OK)
        return status;
#pragma omp parallel for schedule(static)
    for (uint32_t token = 0; token < x->ranks * x->tokens; token++)
        for (uint32_t h = 0; h < x->hidden; h++) {
            size_t i = (size_t)token * x->hidden + h;
            struct sum sum;
            sum_token(&(struct slots){x, a, &rows, token, h}, u, &sum);
            if (output == GB_BF16)
                round_bf16(&sum);
            truth[i] = sum.value;
            if (worst) /* where a partial sum may overflow, anything may come of it */
                worst[i] = sum.magnitude + sum.error < 0.99 * largest ? sum.error : INFINITY;
        }
    gb_rows_free(&rows);
    return GB_OK;
}

enum gb_status gb_truth_exchange(const struct gb_arguments *a, double *output, struct gb_error *error)
{
    return gb_bound_exchange(a, GB_FP32, 24, output, NULL, error);
}
