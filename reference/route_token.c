/* SPDX-License-Identifier: Apache-2.0 */
/* From one token's logits to its experts and weights: docs/numerics.md#route, whose steps the functions are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "reference/operators.h"
#include "reference/route.h"

/* Whether a comes before b: by descending value, ties to the lower id, NaN last. */
static bool before(const float *values, uint32_t a, uint32_t b)
{
    if (isnan(values[a]) || isnan(values[b]))
        return isnan(values[a]) == isnan(values[b]) ? a < b : isnan(values[b]);
    return values[a] != values[b] ? values[a] > values[b] : a < b;
}

/* The first `most` of `count` values in order, by insertion. ids: [most]. */
static void choose(const float *values, uint32_t count, uint32_t most, int32_t *ids)
{
    for (uint32_t i = 0, chosen = 0; i < count; i++) {
        uint32_t place = chosen;
        while (place > 0 && before(values, i, (uint32_t)ids[place - 1]))
            place--;
        if (place >= most)
            continue;
        chosen = chosen < most ? chosen + 1 : most;
        for (uint32_t n = chosen - 1; n > place; n--)
            ids[n] = ids[n - 1];
        ids[place] = (int32_t)i;
    }
}

static float bf16(float value)
{
    return gb_bf16_decode(gb_bf16_encode(value));
}

/* Step 1, after the dot product. */
static void finish_logits(const struct gb_routing *r, float *logits)
{
    for (uint32_t e = 0; e < r->shape.experts; e++) {
        if (r->router->bias == GB_ROUTER_BIAS_LOGIT)
            logits[e] += r->bias[e];
        if (r->router->logits == GB_BF16)
            logits[e] = bf16(logits[e]);
    }
}

/* The largest logit, and the sum of q over all experts in id order. */
static float sum_all(const float *logits, uint32_t experts, float *largest)
{
    int32_t first;
    float sum = 0.0f;
    choose(logits, experts, 1, &first);
    *largest = logits[first];
    for (uint32_t e = 0; e < experts; e++)
        sum += gb_exp(logits[e] - *largest);
    return sum;
}

/* Step 2. */
static void find_scores(const struct gb_routing *r, const float *logits)
{
    enum gb_router_score score = r->router->score;
    bool softmax = score == GB_ROUTER_SCORE_SOFTMAX || score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL;
    float largest = 0.0f, sum = softmax ? sum_all(logits, r->shape.experts, &largest) : 0.0f;
    for (uint32_t e = 0; e < r->shape.experts; e++) {
        float s = logits[e];
        if (score == GB_ROUTER_SCORE_SIGMOID)
            s = gb_sigmoid(logits[e]);
        else if (score == GB_ROUTER_SCORE_SOFTMAX)
            s = gb_exp(logits[e] - largest) / sum;
        else if (score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL)
            s = gb_exp(logits[e] - largest) * (1.0f / sum);
        if (r->router->nonfinite == GB_ROUTER_NONFINITE_ZERO && !isfinite(s))
            s = 0.0f;
        r->score[e] = s;
    }
}

/* Step 3. */
static void find_choices(const struct gb_routing *r, const float *logits)
{
    bool biased = r->router->bias == GB_ROUTER_BIAS_CHOICE || r->router->bias == GB_ROUTER_BIAS_LOSSY;
    for (uint32_t e = 0; e < r->shape.experts; e++) {
        float c = biased ? r->score[e] + r->bias[e] : r->score[e];
        bool replaced = (r->router->nonfinite == GB_ROUTER_NONFINITE_LOGIT && !isfinite(logits[e])) ||
                        (r->router->nonfinite == GB_ROUTER_NONFINITE_BIASED && !isfinite(c));
        r->choice[e] = replaced ? r->router->replacement : c;
    }
}

uint32_t gb_group_terms(const struct gb_router *router, const struct gb_shape *shape)
{
    uint32_t size = shape->experts / router->groups;
    uint32_t terms = router->group_terms ? router->group_terms : shape->top_k / router->kept_groups;
    terms = terms ? terms : 1;
    return terms < size ? terms : size;
}

/* Step 4. */
static void mask_groups(const struct gb_routing *r)
{
    uint32_t groups = r->router->groups, size = r->shape.experts / groups, terms = gb_group_terms(r->router, &r->shape);
    for (uint32_t g = 0; g < groups; g++) {
        const float *values = r->choice + (size_t)g * size;
        choose(values, size, terms, r->order);
        r->group[g] = values[r->order[0]];
        for (uint32_t n = 1; n < terms; n++)
            r->group[g] += values[r->order[n]];
    }
    choose(r->group, groups, groups, r->order);
    for (uint32_t n = r->router->kept_groups; n < groups; n++)
        for (uint32_t i = 0; i < size; i++)
            r->choice[(size_t)r->order[n] * size + i] = r->router->masked;
}

/* Step 6 for the softmax over the chosen experts. */
static void softmax_chosen(const struct gb_routing *r, const float *logits, const int32_t *ids, float *weights)
{
    uint32_t first = (uint32_t)ids[0];
    for (uint32_t j = 1; j < r->shape.top_k; j++)
        if (before(logits, (uint32_t)ids[j], first))
            first = (uint32_t)ids[j];
    float largest = logits[first], sum = 0.0f;
    for (uint32_t j = 0; j < r->shape.top_k; j++)
        sum += gb_exp(logits[ids[j]] - largest);
    for (uint32_t j = 0; j < r->shape.top_k; j++)
        weights[j] = gb_exp(logits[ids[j]] - largest) / sum;
}

/* Step 6. */
static void find_weights(const struct gb_routing *r, const float *logits, const int32_t *ids, float *weights)
{
    float largest, sum;
    switch (r->router->weight) {
    case GB_ROUTER_WEIGHT_SCORE:
        for (uint32_t j = 0; j < r->shape.top_k; j++)
            weights[j] =
                r->router->bias == GB_ROUTER_BIAS_LOSSY ? r->choice[ids[j]] - r->bias[ids[j]] : r->score[ids[j]];
        return;
    case GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN:
        softmax_chosen(r, logits, ids, weights);
        return;
    case GB_ROUTER_WEIGHT_SOFTMAX_ALL:
        sum = sum_all(logits, r->shape.experts, &largest);
        for (uint32_t j = 0; j < r->shape.top_k; j++)
            weights[j] = gb_exp(logits[ids[j]] - largest) / sum;
        return;
    case GB_ROUTER_WEIGHT_SIGMOID:
        for (uint32_t j = 0; j < r->shape.top_k; j++)
            weights[j] = gb_sigmoid(logits[ids[j]]);
        return;
    }
}

/* Steps 7 and 8. */
static void renormalise(const struct gb_routing *r, float *weights)
{
    const struct gb_router *router = r->router;
    bool wanted = r->shape.top_k >= router->renormalise_from;
    float s = 0.0f;
    for (uint32_t j = 0; j < r->shape.top_k; j++)
        s += weights[j];
    s += router->epsilon;
    if (router->zero_sum_is_one && !(s > 0.0f))
        s = 1.0f;
    for (uint32_t j = 0; j < r->shape.top_k; j++) {
        switch (wanted ? router->renormalise : GB_ROUTER_RENORMALISE_NONE) {
        case GB_ROUTER_RENORMALISE_NONE:
            weights[j] = weights[j] * router->scale;
            break;
        case GB_ROUTER_RENORMALISE_DIVIDE:
            weights[j] = weights[j] / s * router->scale;
            break;
        case GB_ROUTER_RENORMALISE_RECIPROCAL:
            weights[j] = weights[j] * (1.0f / s) * router->scale;
            break;
        case GB_ROUTER_RENORMALISE_SCALE:
            weights[j] = weights[j] * (router->scale / s);
            break;
        case GB_ROUTER_RENORMALISE_SCALED_DIVIDE:
            weights[j] = weights[j] * router->scale / s;
            break;
        }
        if (router->weights == GB_BF16)
            weights[j] = bf16(weights[j]);
        weights[j] = gb_one_nan(weights[j]);
    }
}

void gb_route_token(const struct gb_routing *r, float *logits, int32_t *ids, float *weights)
{
    finish_logits(r, logits);
    find_scores(r, logits);
    find_choices(r, logits);
    if (r->router->groups > 1)
        mask_groups(r);
    choose(r->choice, r->shape.experts, r->shape.top_k, ids); /* step 5 */
    find_weights(r, logits, ids, weights);
    renormalise(r, weights);
}

bool gb_routing_new(const struct gb_router *router, const float *bias, const struct gb_shape *shape,
                    struct gb_routing *routing)
{
    size_t experts = shape->experts;
    *routing = (struct gb_routing){router,
                                   bias,
                                   *shape,
                                   malloc(sizeof(float) * experts),
                                   malloc(sizeof(float) * experts),
                                   malloc(sizeof(float) * router->groups),
                                   malloc(sizeof(int32_t) * experts)};
    return routing->score && routing->choice && routing->group && routing->order;
}

void gb_routing_free(struct gb_routing *routing)
{
    free(routing->score);
    free(routing->choice);
    free(routing->group);
    free(routing->order);
    memset(routing, 0, sizeof *routing);
}
