/* SPDX-License-Identifier: Apache-2.0 */
/* The router: logits in fma32, softmax, top-k, weights: docs/numerics.md#route. */
#include <math.h>
#include <stdlib.h>

#include "reference/dot.h"

/* Whether expert a comes before expert b: by descending logit, ties to the lower id, NaN last. */
static bool before(const float *logits, uint32_t a, uint32_t b)
{
    if (isnan(logits[a]) || isnan(logits[b]))
        return isnan(logits[a]) == isnan(logits[b]) ? a < b : isnan(logits[b]);
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
}

/* The top_k experts in order, by insertion. ids: [top_k]. */
static void choose(const float *logits, uint32_t experts, uint32_t top_k, int32_t *ids)
{
    for (uint32_t e = 0, chosen = 0; e < experts; e++) {
        uint32_t place = chosen;
        while (place > 0 && before(logits, e, (uint32_t)ids[place - 1]))
            place--;
        if (place >= top_k)
            continue;
        chosen = chosen < top_k ? chosen + 1 : top_k;
        for (uint32_t i = chosen - 1; i > place; i--)
            ids[i] = ids[i - 1];
        ids[place] = (int32_t)e;
    }
}

/* logits: [experts]; ids, weights: [top_k]. */
static void softmax_top_k(const float *logits, const struct gb_shape *shape, bool renormalise, int32_t *ids,
                          float *weights)
{
    choose(logits, shape->experts, shape->top_k, ids);
    float largest = logits[ids[0]];
    float sum = 0.0f;
    if (renormalise)
        for (uint32_t j = 0; j < shape->top_k; j++)
            sum += gb_exp(logits[ids[j]] - largest);
    else
        for (uint32_t e = 0; e < shape->experts; e++)
            sum += gb_exp(logits[e] - largest);
    for (uint32_t j = 0; j < shape->top_k; j++)
        weights[j] = gb_exp(logits[ids[j]] - largest) / sum;
}

/* Logits first .. first + rows - 1 of every token. dots: scratch, [rows, tokens]; logits: [tokens, experts]. */
static void some_logits(const struct gb_shape *shape, const struct gb_weights *router, uint32_t first, uint32_t rows,
                        const struct gb_activations *x, struct gb_row *decoded, float *dots, float *logits)
{
    struct gb_product product = {router, 0, first, rows, shape->tokens, x->path, x->vector};
    gb_dots(&product, decoded, dots);
    for (uint32_t t = 0; t < shape->tokens; t++)
        for (uint32_t r = 0; r < rows; r++)
            logits[(size_t)t * shape->experts + first + r] = dots[(size_t)r * shape->tokens + t];
}

static enum gb_status all_logits(const struct gb_shape *shape, const struct gb_weights *router,
                                 const struct gb_activations *x, float *logits, struct gb_error *error)
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
                some_logits(shape, router, first, experts - first < rows ? experts - first : rows, x, &decoded, dots,
                            logits);
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for rows of %u weights", shape->hidden);
        gb_row_free(&decoded);
        free(dots);
    }
    return status;
}

enum gb_status gb_reference_route(const struct gb_shape *shape, const gb_bf16 *x, const struct gb_weights *router,
                                  bool renormalise, int32_t *ids, float *routing_weights, struct gb_error *error)
{
    if (router->format != GB_BF16 || router->experts != 1 || router->rows != shape->experts ||
        router->columns != shape->hidden || !router->codes)
        return gb_fail(error, GB_EINVAL, "the router must be a bf16 matrix of %u x %u", shape->experts, shape->hidden);
    if (!shape->tokens || !shape->top_k || shape->top_k > shape->experts)
        return gb_fail(error, GB_EINVAL, "%u tokens to the top %u of %u experts cannot be routed", shape->tokens,
                       shape->top_k, shape->experts);
    float *logits = malloc(sizeof(float) * shape->tokens * shape->experts); /* [tokens, experts] */
    if (!logits)
        return gb_fail(error, GB_ENOMEM, "no memory to route %u tokens", shape->tokens);
    struct gb_activations activations;
    enum gb_status status = gb_activations_new(router, x, shape->tokens, NULL, 1, &activations, error);
    if (status == GB_OK) {
        status = all_logits(shape, router, &activations, logits, error);
        gb_activations_free(&activations);
    }
    for (uint32_t t = 0; status == GB_OK && t < shape->tokens; t++)
        softmax_top_k(logits + (size_t)t * shape->experts, shape, renormalise, ids + (size_t)t * shape->top_k,
                      routing_weights + (size_t)t * shape->top_k);
    free(logits);
    return status;
}
