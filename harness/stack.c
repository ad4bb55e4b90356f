/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "harness/stack.h"
#include "quant/quant.h"
#include "reference/reference.h"

enum gb_status stack_input(const struct gb_fixture *fixture, uint32_t layer, uint32_t tokens, double *state, gb_bf16 *x,
                           int32_t *ids, float *routing_weights, struct gb_error *error)
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
    return gb_reference_router(&router, error);
}

void stack_add(double *state, enum gb_format format, const void *output, size_t count)
{
    for (size_t i = 0; i < count; i++)
        state[i] += format == GB_FP32 ? (double)((const float *)output)[i]
                                      : (double)gb_bf16_decode(((const gb_bf16 *)output)[i]);
}
