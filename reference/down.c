/* SPDX-License-Identifier: Apache-2.0 */
/* down projection and top-k combine: docs/numerics.md#down. */
#include <math.h>
#include <stdlib.h>

#include "reference/dot.h"

/* y = fma(routing weight, dot, y) over the slots of every token. dots: [tokens, top_k]. */
__attribute__((target_clones("fma", "default")))
static void combine(const struct gb_arguments *a, uint32_t h, const float *dots)
{
    const struct gb_shape *shape = &a->shape;
    float *output = a->output; /* [tokens, hidden] */
    for (uint32_t t = 0; t < shape->tokens; t++) {
        float y = 0.0f;
        for (uint32_t j = 0; j < shape->top_k; j++) {
            size_t pair = (size_t)t * shape->top_k + j;
            if (a->ids[pair] >= 0)
                y = fmaf(a->routing_weights[pair], dots[pair], y);
        }
        output[(size_t)t * shape->hidden + h] = y;
    }
}

/* Output h of every token. values: the intermediate [tokens, top_k, intermediate]. */
static void neuron(const struct gb_arguments *a, const struct gb_groups *groups, uint32_t h, const float *values,
                   struct gb_row *row, float *dots)
{
    for (uint32_t g = 0; g < groups->active; g++) {
        gb_row_decode(&a->down, groups->expert[g], h, row);
        for (uint32_t n = groups->start[g]; n < groups->start[g + 1]; n++) {
            uint32_t pair = groups->pair[n];
            dots[pair] = gb_row_dot(row, values + (size_t)pair * a->shape.intermediate);
        }
    }
    combine(a, h, dots);
}

enum gb_status gb_reference_down(const struct gb_arguments *a, struct gb_error *error)
{
    enum gb_status status = gb_arguments_check(a, GB_DOWN, error);
    if (status != GB_OK)
        return status;
    const struct gb_shape *shape = &a->shape;
    struct gb_groups groups;
    status = gb_groups_new(shape, a->ids, &groups, error);
    if (status != GB_OK)
        return status;
    size_t pairs = (size_t)shape->tokens * shape->top_k;
    float *values = malloc(sizeof(float) * pairs * shape->intermediate); /* [tokens, top_k, intermediate] */
    if (!values) {
        gb_groups_free(&groups);
        return gb_fail(error, GB_ENOMEM, "no memory for %zu intermediate values", pairs * shape->intermediate);
    }
    for (size_t i = 0; i < pairs * shape->intermediate; i++)
        values[i] = gb_bf16_decode(a->intermediate[i]);
#pragma omp parallel
    {
        struct gb_row row = {0};
        float *dots = malloc(sizeof(float) * pairs); /* [tokens, top_k] */
        bool ready = gb_row_new(&a->down, &row, NULL) == GB_OK && dots;
#pragma omp for schedule(static)
        for (uint32_t h = 0; h < shape->hidden; h++)
            if (ready)
                neuron(a, &groups, h, values, &row, dots);
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for rows of %u weights", shape->intermediate);
        gb_row_free(&row);
        free(dots);
    }
    free(values);
    gb_groups_free(&groups);
    return status;
}
