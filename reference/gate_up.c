/* SPDX-License-Identifier: Apache-2.0 */
/* gate and up projection, SiLU and product: docs/numerics.md#gate_up. */
#include <stdlib.h>
#include <string.h>

#include "reference/dot.h"

/* Neuron i of every pair of one expert. x: [tokens, hidden]; intermediate: [tokens, top_k, intermediate]. */
static void neuron(const struct gb_arguments *a, const struct gb_groups *groups, uint32_t g, uint32_t i,
                   const float *x, struct gb_row *gate_row, struct gb_row *up_row)
{
    const struct gb_shape *shape = &a->shape;
    gb_row_decode(&a->gate_up, groups->expert[g], i, gate_row);
    gb_row_decode(&a->gate_up, groups->expert[g], shape->intermediate + i, up_row);
    for (uint32_t n = groups->start[g]; n < groups->start[g + 1]; n++) {
        uint32_t pair = groups->pair[n];
        const float *token = x + (size_t)(pair / shape->top_k) * shape->hidden;
        float gate = gb_row_dot(gate_row, token);
        float up = gb_row_dot(up_row, token);
        a->intermediate[(size_t)pair * shape->intermediate + i] = gb_bf16_encode(gb_silu(gate) * up);
    }
}

enum gb_status gb_reference_gate_up(const struct gb_arguments *a, struct gb_error *error)
{
    enum gb_status status = gb_arguments_check(a, GB_GATE_UP, error);
    if (status != GB_OK)
        return status;
    const struct gb_shape *shape = &a->shape;
    struct gb_groups groups;
    status = gb_groups_new(shape, a->ids, &groups, error);
    if (status != GB_OK)
        return status;
    size_t count = (size_t)shape->tokens * shape->hidden;
    float *x = malloc(sizeof(float) * count); /* [tokens, hidden] */
    if (!x) {
        gb_groups_free(&groups);
        return gb_fail(error, GB_ENOMEM, "no memory for %zu activations", count);
    }
    for (size_t i = 0; i < count; i++)
        x[i] = gb_bf16_decode(a->x[i]);
    memset(a->intermediate, 0, sizeof(gb_bf16) * shape->tokens * shape->top_k * shape->intermediate);
#pragma omp parallel
    {
        struct gb_row gate_row = {0}, up_row = {0};
        bool ready = gb_row_new(&a->gate_up, &gate_row, NULL) == GB_OK && gb_row_new(&a->gate_up, &up_row, NULL) == GB_OK;
#pragma omp for schedule(static)
        for (uint32_t i = 0; i < shape->intermediate; i++)
            for (uint32_t g = 0; ready && g < groups.active; g++)
                neuron(a, &groups, g, i, x, &gate_row, &up_row);
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for rows of %u weights", shape->hidden);
        gb_row_free(&gate_row);
        gb_row_free(&up_row);
    }
    free(x);
    gb_groups_free(&groups);
    return status;
}
