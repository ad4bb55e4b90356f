/* SPDX-License-Identifier: Apache-2.0 */
/* How far a router may be from truth, in whatever order it sums: docs/numerics.md#bounds. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "reference/operators.h"
#include "reference/route.h"
#include "reference/truth/bounds.h"

/* Of one token: logits and how far they may be, and what experts may be chosen by. All [experts] but the group's. */
struct token {
    double *logit, *error;
    double *low, *high;
    double *group_low, *group_high; /* [groups] */
    double *row;                    /* [hidden], scratch */
};

static const double rounding = 0x1p-24; /* of one FP32 operation, relative */

static bool token_new(const struct gb_shape *shape, uint32_t groups, struct token *t)
{
    size_t bytes = sizeof(double) * shape->experts, group = sizeof(double) * groups;
    *t = (struct token){
        malloc(bytes), malloc(bytes), NULL, NULL, malloc(group), malloc(group), malloc(sizeof(double) * shape->hidden)};
    return t->logit && t->error && t->group_low && t->group_high && t->row;
}

static void token_free(struct token *t)
{
    free(t->logit);
    free(t->error);
    free(t->group_low);
    free(t->group_high);
    free(t->row);
}

/* How far dot products may be: accumulators of relative rounding u, which may truncate, errors within so many standard
 * deviations. */
struct precision {
    double u, deviations;
    bool truncates;
};

/* Exact terms of a dot product: their sum, that of their magnitudes and of their squares, and the largest power of two
 * that all are multiples of. */
struct terms {
    double sum, s, squares, unit;
};

/* C exact terms: n = C + 4 roundings on the way, each at most u s, or u times a partial sum of terms in any order. None
 * where every partial sum is exact. Where s may overflow, anything. */
static double bound_dot(uint32_t hidden, const struct terms *t, const struct precision *p)
{
    double sum = t->sum, s = t->s, squares = t->squares;
    if (!(s * (1.0 + (hidden + 4.0) * p->u) < (double)FLT_MAX))
        return INFINITY;
    if (s * p->u <= t->unit && t->unit >= (double)FLT_MIN)
        return 0.0;
    double n = hidden + 4.0, worst = gamma_n(n, p->u) * s;
    double order = p->truncates ? gb_order_variance(n, p->u, sum, squares) : 0.0;
    double bias = p->truncates ? n * p->u * fabs(sum) / 2.0 : 0.0;
    double partial = fabs(sum) * sqrt((n + 2.0) / 3.0) + p->deviations * sqrt((n + 1.0) * squares / 2.0);
    double square = fmin(gb_squared(s), gb_squared(partial) / n);
    double likely = p->deviations * sqrt(gb_sum_variance(n, p->u, square, order)) + bias;
    return fmin(worst, likely);
}

/* Step 1. x: [hidden] */
static void bound_logits(const struct gb_arguments *a, const double *x, const struct precision *precision,
                         struct token *t)
{
    for (uint32_t e = 0; e < a->shape.experts; e++) {
        struct terms terms = {.unit = INFINITY};
        gb_weights_row(&a->router_weights, 0, e, t->row);
        for (uint32_t i = 0; i < a->shape.hidden; i++) {
            double term = t->row[i] * x[i];
            terms.sum += term;
            terms.s += fabs(term);
            terms.squares += gb_squared(term);
            terms.unit = fmin(terms.unit, gb_unit(term));
        }
        double sum = terms.sum, error = bound_dot(a->shape.hidden, &terms, precision);
        if (a->router->bias == GB_ROUTER_BIAS_LOGIT) {
            sum += (double)a->router_bias[e];
            error += rounding * (fabs(sum) + error);
        }
        if (a->router->logits == GB_BF16)
            error += 0x1p-8 * (fabs(sum) + error); /* half an ulp */
        t->logit[e] = sum;
        t->error[e] = isnan(error) ? INFINITY : error;
    }
}

/* The interval of expert e's choice, before groups. Of a softmax to which nothing is added only the order counts: its
 * logarithm. */
static void bound_choice(const struct gb_arguments *a, uint32_t e, double largest, double widest, struct token *t)
{
    const struct gb_router *router = a->router;
    bool biased = router->bias == GB_ROUTER_BIAS_CHOICE || router->bias == GB_ROUTER_BIAS_LOSSY;
    double low = t->logit[e] - t->error[e], high = t->logit[e] + t->error[e];
    if (router->score == GB_ROUTER_SCORE_SIGMOID) {
        low = 1.0 / (1.0 + exp(-low)) * (1.0 - 16.0 * rounding) - 0x1p-120;
        high = 1.0 / (1.0 + exp(-high)) * (1.0 + 16.0 * rounding) + 0x1p-120;
    } else if (router->score != GB_ROUTER_SCORE_LOGIT) {
        double slack = rounding * (16.0 + largest - t->logit[e] + 2.0 * widest);
        low -= slack;
        high += slack;
        if (low - largest - 2.0 * widest < -86.0) /* exp may be subnormal or zero, as others' may be */
            low = -INFINITY;
        if (high - largest < -86.0)
            high = largest - 86.0;
        if (biased || router->groups > 1) { /* as values: exp(l) / sum of exp, within the error of every logit */
            double sum = 0.0, factor = exp(2.0 * widest + (a->shape.experts + 16.0) * rounding);
            for (uint32_t n = 0; n < a->shape.experts; n++)
                sum += exp(t->logit[n] - largest);
            low = exp(low - largest) / sum / factor;
            high = exp(high - largest) / sum * factor;
        }
    }
    if (biased) {
        double bias = (double)a->router_bias[e], slack = rounding * (fabs(high) + fabs(bias));
        low += bias - slack;
        high += bias + slack;
    }
    t->low[e] = low;
    t->high[e] = high;
}

/* The sum of a group's `terms` largest values and, in the direction of `sign`, what the additions may round. */
static double sum_of_largest(const double *values, uint32_t size, uint32_t terms, double sign)
{
    double sum = 0.0, magnitudes = 0.0;
    for (uint32_t i = 0; i < size; i++) {
        uint32_t before = 0;
        for (uint32_t n = 0; n < size; n++)
            before += values[n] > values[i] || (values[n] == values[i] && n < i);
        sum += before < terms ? values[i] : 0.0;
        magnitudes += before < terms ? fabs(values[i]) : 0.0;
    }
    return isinf(sum) ? sum : sum + sign * terms * rounding * magnitudes;
}

/* A group that may be kept or dropped spans both what its experts have and what they have when masked. */
static void bound_groups(const struct gb_arguments *a, struct token *t)
{
    uint32_t groups = a->router->groups, size = a->shape.experts / groups, kept = a->router->kept_groups;
    uint32_t terms = gb_group_terms(a->router, &a->shape);
    double masked = (double)a->router->masked;
    for (uint32_t g = 0; g < groups; g++) {
        t->group_low[g] = sum_of_largest(t->low + (size_t)g * size, size, terms, -1.0);
        t->group_high[g] = sum_of_largest(t->high + (size_t)g * size, size, terms, 1.0);
    }
    for (uint32_t g = 0; g < groups; g++) {
        uint32_t above = 0, perhaps = 0;
        for (uint32_t other = 0; other < groups; other++) {
            above += other != g && t->group_low[other] > t->group_high[g];
            perhaps += other != g && t->group_high[other] >= t->group_low[g];
        }
        bool may_drop = perhaps >= kept, may_keep = above < kept;
        for (size_t e = (size_t)g * size; e < (size_t)(g + 1) * size; e++) {
            t->low[e] = may_drop ? (may_keep ? fmin(t->low[e], masked) : masked) : t->low[e];
            t->high[e] = may_drop ? (may_keep ? fmax(t->high[e], masked) : masked) : t->high[e];
        }
    }
}

/* Errors of the logits enter every weight and the sum it is divided by; then the roundings. deviations: as of the dot
 * products, of the sum's roundings. */
static double bound_weights(const struct gb_arguments *a, double widest, double deviations, const struct token *t)
{
    double experts = a->shape.experts, additions = fmin(experts, deviations * sqrt(experts / 3.0));
    double smallest = INFINITY, largest = -INFINITY, bias = 0.0;
    if (isinf(widest))
        return INFINITY;
    for (uint32_t e = 0; e < a->shape.experts; e++) {
        smallest = fmin(smallest, t->logit[e]);
        largest = fmax(largest, t->logit[e]);
        bias = fmax(bias, a->router->bias == GB_ROUTER_BIAS_LOSSY ? fabs((double)a->router_bias[e]) : 0.0);
    }
    double arguments = largest - smallest + 2.0 * widest + log(experts);
    double roundings = additions + 40.0 + 2.0 * arguments;
    double relative = expm1(2.0 * widest + roundings * rounding);
    if (a->router->bias == GB_ROUTER_BIAS_LOSSY) /* the score keeps the digits of score + bias */
        relative += 4.0 * rounding * (1.0 + bias) * (1.0 + exp(-smallest + widest));
    return a->router->weights == GB_BF16 ? relative + 0x1p-8 * (1.0 + relative) : relative;
}

enum gb_status gb_bound_router(const struct gb_arguments *a, const double *x, uint32_t accumulator_bits,
                               double deviations, double *low, double *high, double *relative, struct gb_error *error)
{
    const struct gb_shape *shape = &a->shape;
    const struct precision precision = {ldexp(1.0, -(int)accumulator_bits), deviations,
                                        gb_may_truncate(accumulator_bits)};
    enum gb_status status = gb_router_check(a->router, a->router_bias, shape, error);
    if (status != GB_OK)
        return status;
#pragma omp parallel
    {
        struct token t;
        bool ready = token_new(shape, a->router->groups, &t);
#pragma omp for schedule(static)
        for (uint32_t n = 0; n < shape->tokens; n++) {
            if (!ready)
                continue;
            double widest = 0.0, largest = -INFINITY;
            t.low = low + (size_t)n * shape->experts;
            t.high = high + (size_t)n * shape->experts;
            bound_logits(a, x + (size_t)n * shape->hidden, &precision, &t);
            for (uint32_t e = 0; e < shape->experts; e++) {
                widest = fmax(widest, t.error[e]);
                largest = fmax(largest, t.logit[e]);
            }
            for (uint32_t e = 0; e < shape->experts; e++)
                bound_choice(a, e, largest, widest, &t);
            if (a->router->groups > 1)
                bound_groups(a, &t);
            relative[n] = bound_weights(a, widest, deviations, &t);
        }
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for the bounds of %u experts", shape->experts);
        token_free(&t);
    }
    return status;
}
