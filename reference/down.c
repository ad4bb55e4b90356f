/* SPDX-License-Identifier: Apache-2.0 */
/* down projection and top-k combine: docs/numerics.md#down. */
#include <math.h>
#include <stdlib.h>

#include "reference/operators.h"

/* y = fma(routing weight, dot, y) over the slots of every token, for outputs first .. first + rows - 1. dots: [tokens,
 * top_k, rows]. */
GB_FMA_CLONES
static void combine(const struct gb_arguments *a, bool weighed, uint32_t first, uint32_t rows, const float *dots)
{
    const struct gb_shape *shape = &a->shape;
    for (uint32_t t = 0; t < shape->tokens; t++) {
        float *y = (float *)a->output + (size_t)t * shape->hidden + first;
        for (uint32_t r = 0; r < rows; r++)
            y[r] = 0.0f;
        for (size_t pair = (size_t)t * shape->top_k; pair < (size_t)(t + 1) * shape->top_k; pair++)
            for (uint32_t r = 0; r < rows && a->ids[pair] >= 0; r++)
                y[r] = fmaf(weighed ? 1.0f : a->routing_weights[pair], dots[pair * rows + r], y[r]);
        for (uint32_t r = 0; r < rows; r++)
            y[r] = gb_one_nan(y[r]);
    }
}

/* Outputs first .. first + rows - 1 of the pairs of group g's expert. */
static struct gb_product product_of(const struct gb_arguments *a, const struct gb_groups *groups, uint32_t g,
                                    uint32_t first, uint32_t rows, const struct gb_activations *x)
{
    uint32_t start = groups->start[g], count = groups->start[g + 1] - start;
    const float *const *scales = x->scales ? x->scales + start : NULL;
    return (struct gb_product){&a->down, groups->expert[g], first,  rows, count,
                               x->path,  x->vector + start, scales, NULL};
}

/* Outputs first .. first + rows - 1 of every token. dots: scratch, [rows, pairs of an expert]; by_pair: scratch,
 * [tokens, top_k, rows]. */
static void neurons(const struct gb_order *order, const struct gb_arguments *a, const struct gb_groups *groups,
                    uint32_t first, uint32_t rows, const struct gb_activations *x, struct gb_row *decoded, float *dots,
                    float *by_pair)
{
    const float *biases = gb_arguments_extension(a).down_bias; /* [experts, hidden] */
    for (uint32_t g = 0; g < groups->active; g++) {
        const float *bias = biases ? biases + (size_t)groups->expert[g] * a->shape.hidden + first : NULL;
        struct gb_product product = product_of(a, groups, g, first, rows, x), next;
        if (g + 1 < groups->active) {
            next = product_of(a, groups, g + 1, first, rows, x);
            product.next = &next;
        }
        order->dots(&product, decoded, dots);
        for (uint32_t n = 0; n < product.count; n++) {
            float *to = by_pair + (size_t)groups->pair[groups->start[g] + n] * rows;
            for (uint32_t r = 0; r < rows; r++)
                to[r] = bias ? dots[(size_t)r * product.count + n] + bias[r] : dots[(size_t)r * product.count + n];
        }
    }
    combine(a, gb_weighs_input(a), first, rows, by_pair);
}

static enum gb_status all_neurons(const struct gb_order *order, const struct gb_arguments *a,
                                  const struct gb_groups *groups, const struct gb_activations *x,
                                  struct gb_error *error)
{
    size_t pairs = (size_t)a->shape.tokens * a->shape.top_k;
    uint32_t hidden = a->shape.hidden, rows = gb_rows_at_once(hidden, 1, groups->most + pairs);
    enum gb_status status = GB_OK;
#pragma omp parallel
    {
        struct gb_row decoded = {0};
        float *dots = malloc(sizeof(float) * rows * (groups->most + pairs));
        bool ready = gb_row_new(&a->down, &decoded, NULL) == GB_OK && dots;
#pragma omp for schedule(dynamic)
        for (uint32_t first = 0; first < hidden; first += rows)
            if (ready)
                neurons(order, a, groups, first, hidden - first < rows ? hidden - first : rows, x, &decoded, dots,
                        dots + (size_t)rows * groups->most);
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for rows of %u weights", a->shape.intermediate);
        gb_row_free(&decoded);
        free(dots);
    }
    return status;
}

static enum gb_status run(const struct gb_contract *contract, const struct gb_arguments *a, bool given,
                          struct gb_error *error)
{
    enum gb_status status = gb_arguments_check(contract, a, GB_DOWN, error);
    if (status != GB_OK)
        return status;
    const struct gb_shape *shape = &a->shape;
    struct gb_groups groups;
    status = gb_groups_new(shape, a->ids, &groups, error);
    if (status != GB_OK)
        return status;
    struct gb_arguments known = gb_arguments_known(a);
    struct gb_operand operand;
    struct gb_activations x; /* one for each pair */
    status = gb_operand_new(&known, GB_DOWN, given, &operand, error);
    if (status == GB_OK) {
        known.down = operand.weights;
        status =
            gb_activations_new(contract->order, &operand, (size_t)shape->tokens * shape->top_k, &groups, 1, &x, error);
        if (status == GB_OK) {
            status = all_neurons(contract->order, &known, &groups, &x, error);
            gb_activations_free(&x);
        }
        gb_operand_free(&operand);
    }
    gb_groups_free(&groups);
    return status;
}

enum gb_status gb_reference_down(const struct gb_contract *contract, const struct gb_arguments *a,
                                 struct gb_error *error)
{
    return run(contract, a, false, error);
}

enum gb_status gb_reference_down_codes(const struct gb_contract *contract, const struct gb_arguments *a,
                                       struct gb_error *error)
{
    return run(contract, a, true, error);
}
