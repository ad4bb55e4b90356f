/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "harness/run/residual_stream.h"
#include "quant/quant.h"
#include "reference/reference.h"

enum gb_status stack_input(const struct gb_contract *contract, const struct gb_fixture *fixture, uint32_t layer,
                           uint32_t tokens, double *state, gb_bf16 *x, int32_t *ids, float *routing_weights,
                           struct gb_error *error)
{
    uint32_t hidden = fixture->shape.hidden;
    double *normed = malloc(sizeof(double) * hidden); /* [hidden] */
    if (!normed)
        return gb_fail(error, GB_ENOMEM, "no memory for a row of %u", hidden);
    for (uint32_t t = 0; t < tokens; t++) {
        double *row = state + (size_t)t * hidden;
        if (fixture->stack.attention_delta)
            for (uint32_t i = 0; i < hidden; i++)
                row[i] += fixture->stack.attention_delta[((size_t)layer * fixture->shape.tokens + t) * hidden + i];
        gb_rms_norm(row, fixture->layer[layer].norm, hidden, fixture->rms_norm_epsilon, normed);
        for (uint32_t i = 0; i < hidden; i++)
            x[(size_t)t * hidden + i] = gb_bf16_encode((float)normed[i]);
    }
    free(normed);
    struct gb_arguments router = gb_route_arguments(fixture, layer, tokens);
    router.x = x;
    router.routed_ids = ids;
    router.routed_weights = routing_weights;
    return gb_reference_router(gb_contract_router(contract), &router, error);
}

enum gb_status stack_truth(const struct gb_fixture *f, uint32_t layer, const struct gb_truth_source *source,
                           const double *before, double *after, struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden, pairs = (size_t)f->shape.tokens * f->shape.top_k;
    const double *attention = f->stack.attention_delta ? f->stack.attention_delta + layer * count : NULL;
    double *x = malloc(sizeof *x * count);                             /* [tokens, hidden] */
    double *output = malloc(sizeof *output * count);                   /* [tokens, hidden] */
    double *routing_weights = malloc(sizeof *routing_weights * pairs); /* [tokens, top_k] */
    int32_t *ids = malloc(sizeof *ids * pairs);                        /* [tokens, top_k] */
    enum gb_status status = GB_OK;
    if (!x || !output || !routing_weights || !ids)
        status = gb_fail(error, GB_ENOMEM, "no memory for the truth of %u tokens", f->shape.tokens);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        after[i] = before[i] + (attention ? attention[i] : 0.0);
    for (uint32_t t = 0; status == GB_OK && t < f->shape.tokens; t++)
        gb_rms_norm(after + (size_t)t * f->shape.hidden, f->layer[layer].norm, f->shape.hidden, f->rms_norm_epsilon,
                    x + (size_t)t * f->shape.hidden);
    struct gb_arguments router = gb_route_arguments(f, layer, f->shape.tokens);
    if (status == GB_OK)
        status = gb_truth_router(&router, x, ids, routing_weights, error);
    if (status == GB_OK)
        status = gb_truth_layer(&f->shape, x, ids, routing_weights, source, output, NULL, error);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        after[i] += output[i];
    free(x);
    free(output);
    free(routing_weights);
    free(ids);
    return status;
}

void stack_add(double *state, enum gb_format format, const void *output, size_t count)
{
    for (size_t i = 0; i < count; i++)
        state[i] += format == GB_FP32 ? (double)((const float *)output)[i]
                                      : (double)gb_bf16_decode(((const gb_bf16 *)output)[i]);
}
