/* SPDX-License-Identifier: Apache-2.0 */
/* The router: the logits of all tokens in the contract's order, then the recipe token by token: docs/numerics.md#route.
 */
#include <stdlib.h>

#include "reference/operators.h"
#include "reference/route.h"

/* Logits first .. first + rows - 1 of every token. dots: scratch, [rows, tokens]; logits: [tokens, experts]. */
static void some_logits(const struct gb_order *order, const struct gb_shape *shape, const struct gb_weights *router,
                        uint32_t first, uint32_t rows, const struct gb_activations *x, struct gb_row *decoded,
                        float *dots, float *logits)
{
    struct gb_product product = {router, 0, first, rows, shape->tokens, x->path, x->vector, NULL, NULL};
    order->dots(&product, decoded, dots);
    for (uint32_t t = 0; t < shape->tokens; t++)
        for (uint32_t r = 0; r < rows; r++)
            logits[(size_t)t * shape->experts + first + r] = dots[(size_t)r * shape->tokens + t];
}

static enum gb_status all_logits(const struct gb_order *order, const struct gb_shape *shape,
                                 const struct gb_weights *router, const struct gb_activations *x, float *logits,
                                 struct gb_error *error)
{
    uint32_t experts = shape->experts, rows = gb_rows_at_once(experts, 1, shape->tokens);
    enum gb_status status = GB_OK;
#pragma omp parallel
    {
        struct gb_row decoded = {0};
        float *dots = malloc(sizeof(float) * rows * shape->tokens);
        bool ready = gb_row_new(router, &decoded, NULL) == GB_OK && dots;
#pragma omp for schedule(dynamic)
        for (uint32_t first = 0; first < experts; first += rows)
            if (ready)
                some_logits(order, shape, router, first, experts - first < rows ? experts - first : rows, x, &decoded,
                            dots, logits);
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for rows of %u weights", shape->hidden);
        gb_row_free(&decoded);
        free(dots);
    }
    return status;
}

/* The logits of every token by the recipe; ids, weights: [tokens, top_k]. */
static enum gb_status all_tokens(const struct gb_router *router, const float *bias, const struct gb_shape *shape,
                                 float *logits, int32_t *ids, float *weights, struct gb_error *error)
{
    enum gb_status status = GB_OK;
#pragma omp parallel if (shape->tokens > 1)
    {
        struct gb_routing routing;
        bool ready = gb_routing_new(router, bias, shape, &routing);
#pragma omp for schedule(static)
        for (uint32_t t = 0; t < shape->tokens; t++)
            if (ready)
                gb_route_token(&routing, logits + (size_t)t * shape->experts, ids + (size_t)t * shape->top_k,
                               weights + (size_t)t * shape->top_k);
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory to route to %u experts", shape->experts);
        gb_routing_free(&routing);
    }
    return status;
}

static bool known(uint32_t value, uint32_t last)
{
    return value >= 1 && value <= last;
}

enum gb_status gb_router_check(const struct gb_router *router, const float *bias, const struct gb_shape *shape,
                               struct gb_error *error)
{
    if (!router || router->size < sizeof *router)
        return gb_fail(error, GB_EINVAL, "router: a recipe of %zu bytes; this version needs %zu",
                       router ? router->size : 0, sizeof *router);
    if ((router->logits != GB_FP32 && router->logits != GB_BF16) ||
        (router->weights != GB_FP32 && router->weights != GB_BF16) || !known(router->bias, GB_ROUTER_BIAS_LOSSY) ||
        !known(router->score, GB_ROUTER_SCORE_SIGMOID) || !known(router->nonfinite, GB_ROUTER_NONFINITE_BIASED) ||
        !known(router->weight, GB_ROUTER_WEIGHT_SIGMOID) ||
        !known(router->renormalise, GB_ROUTER_RENORMALISE_SCALED_DIVIDE) || !known(router->side, GB_ROUTER_ON_INPUT))
        return gb_fail(error, GB_EINVAL, "router: a field of the recipe has an unknown value");
    if (!router->groups || shape->experts % router->groups || !known(router->kept_groups, router->groups))
        return gb_fail(error, GB_EINVAL, "router: %u of %u groups of %u experts; groups must divide the experts",
                       router->kept_groups, router->groups, shape->experts);
    if (router->bias != GB_ROUTER_BIAS_NONE && !bias)
        return gb_fail(error, GB_EINVAL, "router: the recipe adds a bias, but there is none");
    return GB_OK;
}

static enum gb_status check(const struct gb_contract *contract, const struct gb_arguments *a, struct gb_error *error)
{
    const struct gb_shape *shape = &a->shape;
    const struct gb_weights *w = &a->router_weights;
    size_t bytes;
    if (a->size < offsetof(struct gb_arguments, routed_weights) + sizeof a->routed_weights)
        return gb_fail(error, GB_EINVAL, "arguments of %zu bytes; the router needs %zu", a->size,
                       offsetof(struct gb_arguments, routed_weights) + sizeof a->routed_weights);
    if (w->format != GB_BF16 || w->experts != 1 || w->rows != shape->experts || w->columns != shape->hidden ||
        !w->codes)
        return gb_fail(error, GB_EINVAL, "the router must be a bf16 matrix of %u x %u", shape->experts, shape->hidden);
    if (!shape->tokens || !shape->hidden || !shape->top_k || shape->top_k > shape->experts)
        return gb_fail(error, GB_EINVAL, "%u tokens to the top %u of %u experts cannot be routed", shape->tokens,
                       shape->top_k, shape->experts);
    if (!gb_bytes(shape->tokens, shape->experts, 1, sizeof(float), &bytes) ||
        !gb_bytes(shape->tokens, shape->hidden, 1, sizeof(float), &bytes))
        return gb_fail(error, GB_EINVAL, "%u tokens do not fit in memory", shape->tokens);
    if (!a->x || !a->routed_ids || !a->routed_weights)
        return gb_fail(error, GB_EINVAL, "a buffer that the router needs is NULL");
    if (!contract || contract->weights != GB_BF16 || contract->activations != GB_BF16)
        return gb_fail(error, GB_EINVAL, "a router's contract has bf16 weights and activations");
    return gb_router_check(a->router, a->router_bias, shape, error);
}

enum gb_status gb_reference_router(const struct gb_contract *contract, const struct gb_arguments *a,
                                   struct gb_error *error)
{
    const struct gb_shape *shape = &a->shape;
    enum gb_status status = check(contract, a, error);
    if (status != GB_OK)
        return status;
    float *logits = malloc(sizeof(float) * shape->tokens * shape->experts); /* [tokens, experts] */
    if (!logits)
        return gb_fail(error, GB_ENOMEM, "no memory to route %u tokens", shape->tokens);
    struct gb_activations activations;
    status = gb_activations_new(contract->order, &(struct gb_operand){.x = a->x, .weights = a->router_weights},
                                shape->tokens, NULL, 1, &activations, error);
    if (status == GB_OK) {
        status = all_logits(contract->order, shape, &a->router_weights, &activations, logits, error);
        gb_activations_free(&activations);
    }
    if (status == GB_OK)
        status = all_tokens(a->router, a->router_bias, shape, logits, a->routed_ids, a->routed_weights, error);
    free(logits);
    return status;
}

enum gb_status gb_reference_route(const struct gb_contract *contract, const struct gb_shape *shape, const gb_bf16 *x,
                                  const struct gb_weights *router, bool renormalise, int32_t *ids,
                                  float *routing_weights, struct gb_error *error)
{
    struct gb_arguments arguments = {
        .size = sizeof arguments,
        .shape = *shape,
        .x = x,
        .router = &gb_router_recipe_default(renormalise)->router,
        .router_weights = *router,
        .routed_ids = ids,
        .routed_weights = routing_weights,
    };
    return gb_reference_router(contract, &arguments, error);
}
