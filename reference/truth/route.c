/* SPDX-License-Identifier: Apache-2.0 */
/* The router in float64: docs/numerics.md#route with nothing rounded; and how far FP32 may be from it, #bounds. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/operators.h"
#include "reference/route.h"

/* Room for one token. */
struct work {
    double *score, *choice; /* [experts] */
    double *group;          /* [groups] */
    int32_t *order;         /* [experts] */
};

static bool work_new(const struct gb_arguments *a, struct work *w)
{
    size_t experts = a->shape.experts;
    *w = (struct work){malloc(sizeof(double) * experts), malloc(sizeof(double) * experts),
                       malloc(sizeof(double) * a->router->groups), malloc(sizeof(int32_t) * experts)};
    return w->score && w->choice && w->group && w->order;
}

static void work_free(struct work *w)
{
    free(w->score);
    free(w->choice);
    free(w->group);
    free(w->order);
}

/* The first `most` of `count` values: descending, ties to the lower id, NaN last. */
static void choose(const double *values, uint32_t count, uint32_t most, int32_t *ids)
{
    for (uint32_t j = 0; j < most; j++) {
        int64_t best = -1;
        for (uint32_t e = 0; e < count; e++) {
            bool taken = false;
            for (uint32_t i = 0; i < j; i++)
                taken |= ids[i] == (int32_t)e;
            if (!taken && (best < 0 || values[e] > values[best] || (isnan(values[best]) && !isnan(values[e]))))
                best = e;
        }
        ids[j] = (int32_t)best;
    }
}

static double sum_of_exp(const double *logits, const int32_t *ids, uint32_t count, double largest)
{
    double sum = 0.0;
    for (uint32_t n = 0; n < count; n++)
        sum += exp(logits[ids ? (uint32_t)ids[n] : n] - largest);
    return sum;
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static void find_choices(const struct gb_arguments *a, const double *logits, struct work *w)
{
    const struct gb_router *router = a->router;
    bool biased = router->bias == GB_ROUTER_BIAS_CHOICE || router->bias == GB_ROUTER_BIAS_LOSSY;
    bool softmax = router->score == GB_ROUTER_SCORE_SOFTMAX || router->score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL;
    int32_t first;
    choose(logits, a->shape.experts, 1, &first);
    double sum = softmax ? sum_of_exp(logits, NULL, a->shape.experts, logits[first]) : 1.0;
    for (uint32_t e = 0; e < a->shape.experts; e++) {
        w->score[e] = softmax                                    ? exp(logits[e] - logits[first]) / sum
                      : router->score == GB_ROUTER_SCORE_SIGMOID ? sigmoid(logits[e])
                                                                 : logits[e];
        w->choice[e] = biased ? w->score[e] + (double)a->router_bias[e] : w->score[e];
    }
}

/* A group's score: the sum of its largest values. */
static double group_score(const struct gb_arguments *a, const double *values, uint32_t group, int32_t *order)
{
    uint32_t size = a->shape.experts / a->router->groups, terms = gb_group_terms(a->router, &a->shape);
    double sum = 0.0;
    choose(values + (size_t)group * size, size, terms, order);
    for (uint32_t n = 0; n < terms; n++)
        sum += values[(size_t)group * size + (uint32_t)order[n]];
    return sum;
}

static void mask_groups(const struct gb_arguments *a, struct work *w)
{
    uint32_t groups = a->router->groups, size = a->shape.experts / groups;
    for (uint32_t g = 0; g < groups; g++)
        w->group[g] = group_score(a, w->choice, g, w->order);
    choose(w->group, groups, groups, w->order);
    for (uint32_t n = a->router->kept_groups; n < groups; n++)
        for (uint32_t i = 0; i < size; i++)
            w->choice[(size_t)w->order[n] * size + i] = (double)a->router->masked;
}

/* The weights of these ids. score: [experts], by find_choices. */
static void find_weights(const struct gb_arguments *a, const double *logits, const double *score, const int32_t *ids,
                         double *weights)
{
    const struct gb_router *router = a->router;
    uint32_t experts = a->shape.experts, top_k = a->shape.top_k;
    bool all = router->weight == GB_ROUTER_WEIGHT_SOFTMAX_ALL;
    bool softmax = all || router->weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN;
    int32_t first = ids[0];
    if (softmax)
        for (uint32_t n = 0; n < (all ? experts : top_k); n++)
            if (logits[all ? n : (uint32_t)ids[n]] > logits[first])
                first = all ? (int32_t)n : ids[n];
    double sum = softmax ? sum_of_exp(logits, all ? NULL : ids, all ? experts : top_k, logits[first]) : 1.0;
    double total = 0.0;
    for (uint32_t j = 0; j < top_k; j++) {
        weights[j] = softmax                                      ? exp(logits[ids[j]] - logits[first]) / sum
                     : router->weight == GB_ROUTER_WEIGHT_SIGMOID ? sigmoid(logits[ids[j]])
                                                                  : score[ids[j]];
        total += weights[j];
    }
    bool divide = router->renormalise != GB_ROUTER_RENORMALISE_NONE && top_k >= router->renormalise_from;
    total += (double)router->epsilon;
    if (router->zero_sum_is_one && !(total > 0.0))
        total = 1.0;
    for (uint32_t j = 0; j < top_k; j++)
        weights[j] = (divide ? weights[j] / total : weights[j]) * (double)router->scale;
}

/* logits [tokens, experts] of x [tokens, hidden], with the bias if it goes there. */
static enum gb_status find_logits(const struct gb_arguments *a, const double *x, double *logits, struct gb_error *error)
{
    uint32_t experts = a->shape.experts, hidden = a->shape.hidden, tokens = a->shape.tokens;
    double *matrix = malloc(sizeof(double) * experts * hidden); /* [experts, hidden] */
    if (!matrix)
        return gb_fail(error, GB_ENOMEM, "no memory to route %u tokens", tokens);
    for (uint32_t e = 0; e < experts; e++)
        gb_weights_row(&a->router_weights, 0, e, matrix + (size_t)e * hidden);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tokens, (int)experts, (int)hidden, 1.0, x, (int)hidden,
                matrix, (int)hidden, 0.0, logits, (int)experts);
    if (a->router->bias == GB_ROUTER_BIAS_LOGIT)
        for (size_t i = 0; i < (size_t)tokens * experts; i++)
            logits[i] += (double)a->router_bias[i % experts];
    free(matrix);
    return GB_OK;
}

/* ids: chosen here, or with `given` by the caller. */
static enum gb_status route(const struct gb_arguments *a, const double *x, bool given, int32_t *ids,
                            double *routing_weights, struct gb_error *error)
{
    const struct gb_shape *shape = &a->shape;
    enum gb_status status = gb_router_check(a->router, a->router_bias, shape, error);
    if (status != GB_OK)
        return status;
    double *logits = malloc(sizeof(double) * shape->tokens * shape->experts); /* [tokens, experts] */
    struct work w;
    bool ready = work_new(a, &w) && logits;
    status = ready ? find_logits(a, x, logits, error)
                   : gb_fail(error, GB_ENOMEM, "no memory to route %u tokens", shape->tokens);
    for (uint32_t t = 0; status == GB_OK && t < shape->tokens; t++) {
        const double *l = logits + (size_t)t * shape->experts;
        size_t pair = (size_t)t * shape->top_k;
        find_choices(a, l, &w);
        if (a->router->groups > 1)
            mask_groups(a, &w);
        if (!given)
            choose(w.choice, shape->experts, shape->top_k, ids + pair);
        find_weights(a, l, w.score, ids + pair, routing_weights + pair);
    }
    work_free(&w);
    free(logits);
    return status;
}

enum gb_status gb_truth_router(const struct gb_arguments *a, const double *x, int32_t *ids, double *routing_weights,
                               struct gb_error *error)
{
    return route(a, x, false, ids, routing_weights, error);
}

enum gb_status gb_truth_routing_weights(const struct gb_arguments *a, const double *x, int32_t *ids,
                                        double *routing_weights, struct gb_error *error)
{
    return route(a, x, true, ids, routing_weights, error);
}

enum gb_status gb_truth_route(const struct gb_shape *shape, const double *x, const struct gb_weights *router,
                              bool renormalise, int32_t *ids, double *routing_weights, struct gb_error *error)
{
    struct gb_arguments arguments = {
        .size = sizeof arguments,
        .shape = *shape,
        .router = &gb_router_recipe_default(renormalise)->router,
        .router_weights = *router,
    };
    return gb_truth_router(&arguments, x, ids, routing_weights, error);
}
