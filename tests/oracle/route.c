/* SPDX-License-Identifier: Apache-2.0 */
/* The router of docs/numerics.md#route. Every choice is by counting: a place is the number of values that rank before.
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

static bool ranks_before(const float *values, uint32_t a, uint32_t b)
{
    if (isnan(values[a]) || isnan(values[b]))
        return isnan(values[a]) == isnan(values[b]) ? a < b : !isnan(values[a]);
    return values[a] == values[b] ? a < b : values[a] > values[b];
}

/* How many of first .. first + count - 1 rank before i. */
static uint32_t place_of(const float *values, uint32_t first, uint32_t count, uint32_t i)
{
    uint32_t place = 0;

    for (uint32_t other = first; other < first + count; other++)
        place += ranks_before(values, other, i);
    return place;
}

/* Which of first .. first + count - 1 has this place. */
static uint32_t at_place(const float *values, uint32_t first, uint32_t count, uint32_t place)
{
    for (uint32_t i = first; i < first + count; i++)
        if (place_of(values, first, count, i) == place)
            return i;
    abort();
}

static float *new_values(uint32_t count)
{
    float *values = calloc(count, sizeof *values);

    if (!values)
        abort();
    return values;
}

static float round_bf16(float value)
{
    return (float)oracle_decode(ORACLE_BF16, oracle_encode(ORACLE_BF16, value));
}

/* quotient[n] of q over the logits of ids (NULL: of all), by division or by the reciprocal of the sum. */
static void softmax(const float *logits, const int32_t *ids, uint32_t count, bool reciprocal, float *quotient)
{
    float *l = new_values(count), sum = 0;

    for (uint32_t n = 0; n < count; n++)
        l[n] = logits[ids ? (uint32_t)ids[n] : n];
    float largest = l[at_place(l, 0, count, 0)];
    for (uint32_t n = 0; n < count; n++)
        sum = oracle_add(sum, oracle_exp(oracle_add(l[n], -largest)));
    for (uint32_t n = 0; n < count; n++) {
        float q = oracle_exp(oracle_add(l[n], -largest));
        quotient[n] = reciprocal ? oracle_multiply(q, oracle_divide(1, sum)) : oracle_divide(q, sum);
    }
    free(l);
}

static void scores_of(const struct gb_router *router, const float *logits, uint32_t experts, float *s)
{
    if (router->score == GB_ROUTER_SCORE_SOFTMAX || router->score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL)
        softmax(logits, NULL, experts, router->score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL, s);
    for (uint32_t e = 0; e < experts; e++) {
        if (router->score == GB_ROUTER_SCORE_LOGIT)
            s[e] = logits[e];
        if (router->score == GB_ROUTER_SCORE_SIGMOID)
            s[e] = oracle_sigmoid(logits[e]);
        if (router->nonfinite == GB_ROUTER_NONFINITE_ZERO && (isnan(s[e]) || isinf(s[e])))
            s[e] = 0;
    }
}

static void mask(const struct gb_arguments *a, float *c)
{
    const struct gb_router *router = a->router;
    uint32_t size = a->shape.experts / router->groups;
    uint32_t terms = router->group_terms == 0 ? a->shape.top_k / router->kept_groups : router->group_terms;
    float *scores = new_values(router->groups);

    if (terms > size)
        terms = size;
    for (uint32_t g = 0; g < router->groups; g++) {
        scores[g] = c[at_place(c, g * size, size, 0)];
        for (uint32_t n = 1; n < terms; n++)
            scores[g] = oracle_add(scores[g], c[at_place(c, g * size, size, n)]);
    }
    for (uint32_t e = 0; e < a->shape.experts; e++)
        if (place_of(scores, 0, router->groups, e / size) >= router->kept_groups)
            c[e] = router->masked;
    free(scores);
}

static void choices_of(const struct gb_arguments *a, const float *logits, const float *s, float *c)
{
    const struct gb_router *router = a->router;

    for (uint32_t e = 0; e < a->shape.experts; e++) {
        c[e] = s[e];
        if (router->bias == GB_ROUTER_BIAS_CHOICE || router->bias == GB_ROUTER_BIAS_LOSSY)
            c[e] = oracle_add(s[e], a->router_bias[e]);
        float looked_at = router->nonfinite == GB_ROUTER_NONFINITE_LOGIT ? logits[e] : c[e];
        if (router->nonfinite >= GB_ROUTER_NONFINITE_LOGIT && (isnan(looked_at) || isinf(looked_at)))
            c[e] = router->replacement;
    }
    if (router->groups > 1)
        mask(a, c);
}

static void weights_of(const struct gb_arguments *a, const float *logits, const float *s, const float *c,
                       const int32_t *ids, float *w)
{
    const struct gb_router *router = a->router;
    uint32_t experts = a->shape.experts, top_k = a->shape.top_k;
    float *all = new_values(experts);

    if (router->weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN)
        softmax(logits, ids, top_k, false, w);
    if (router->weight == GB_ROUTER_WEIGHT_SOFTMAX_ALL)
        softmax(logits, NULL, experts, false, all);
    for (uint32_t j = 0; j < top_k; j++) {
        uint32_t e = (uint32_t)ids[j];
        if (router->weight == GB_ROUTER_WEIGHT_SOFTMAX_ALL)
            w[j] = all[e];
        if (router->weight == GB_ROUTER_WEIGHT_SIGMOID)
            w[j] = oracle_sigmoid(logits[e]);
        if (router->weight == GB_ROUTER_WEIGHT_SCORE)
            w[j] = router->bias == GB_ROUTER_BIAS_LOSSY ? oracle_add(c[e], -a->router_bias[e]) : s[e];
    }
    free(all);
}

static void renormalise(const struct gb_router *router, uint32_t top_k, float *w)
{
    float s = 0;

    for (uint32_t j = 0; j < top_k; j++)
        s = oracle_add(s, w[j]);
    s = oracle_add(s, router->epsilon);
    if (router->zero_sum_is_one && (isnan(s) || s <= 0))
        s = 1;
    for (uint32_t j = 0; j < top_k; j++) {
        if (top_k < router->renormalise_from || router->renormalise == GB_ROUTER_RENORMALISE_NONE)
            w[j] = oracle_multiply(w[j], router->scale);
        else if (router->renormalise == GB_ROUTER_RENORMALISE_DIVIDE)
            w[j] = oracle_multiply(oracle_divide(w[j], s), router->scale);
        else if (router->renormalise == GB_ROUTER_RENORMALISE_RECIPROCAL)
            w[j] = oracle_multiply(oracle_multiply(w[j], oracle_divide(1, s)), router->scale);
        else if (router->renormalise == GB_ROUTER_RENORMALISE_SCALE)
            w[j] = oracle_multiply(w[j], oracle_divide(router->scale, s));
        else
            w[j] = oracle_divide(oracle_multiply(w[j], router->scale), s);
        if (router->weights == GB_BF16)
            w[j] = round_bf16(w[j]);
    }
}

void oracle_router(const struct gb_arguments *a, int32_t *ids, float *routing_weights)
{
    uint32_t experts = a->shape.experts, top_k = a->shape.top_k;
    float *logits = new_values(experts), *s = new_values(experts), *c = new_values(experts);

    for (uint32_t t = 0; t < a->shape.tokens; t++) {
        int32_t *chosen = ids + (size_t)t * top_k;
        for (uint32_t e = 0; e < experts; e++) {
            logits[e] = oracle_dot(&a->router_weights, 0, e, a->x + (size_t)t * a->shape.hidden);
            if (a->router->bias == GB_ROUTER_BIAS_LOGIT)
                logits[e] = oracle_add(logits[e], a->router_bias[e]);
            if (a->router->logits == GB_BF16)
                logits[e] = round_bf16(logits[e]);
        }
        scores_of(a->router, logits, experts, s);
        choices_of(a, logits, s, c);
        for (uint32_t e = 0; e < experts; e++) {
            uint32_t place = place_of(c, 0, experts, e);
            if (place < top_k)
                chosen[place] = (int32_t)e;
        }
        weights_of(a, logits, s, c, chosen, routing_weights + (size_t)t * top_k);
        renormalise(a->router, top_k, routing_weights + (size_t)t * top_k);
    }
    free(logits);
    free(s);
    free(c);
}
