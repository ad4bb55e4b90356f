/* SPDX-License-Identifier: Apache-2.0 */
/* gate and up projection, SiLU and product: docs/numerics.md#gate_up. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/operators.h"

/* products[r] = the activation of gate and up value r. All arrays: [count]; gates are overwritten. */
static void all_gated(enum gb_activation activation, uint32_t count, float *gates, const float *ups, float *products)
{
    const struct gb_activation_row *row = gb_activation_find(activation);
    const float limit = (float)row->limit;
    for (uint32_t r = 0; r < count; r++)
        gates[r] = gates[r] > limit ? limit : gates[r]; /* NaN stays */
    if (row->gate == GB_GATE_SILU)
        gb_silu_all(gates, count, products);
    else
        for (uint32_t r = 0; r < count; r++)
            products[r] = gates[r] * gb_sigmoid((float)row->alpha * gates[r]);
    for (uint32_t r = 0; r < count; r++) {
        float u = ups[r] > limit ? limit : ups[r] < -limit ? -limit : ups[r];
        products[r] *= row->offset != 0.0 ? u + (float)row->offset : u;
    }
}

float gb_gated(enum gb_activation activation, float gate, float up)
{
    float product;
    all_gated(activation, 1, &gate, &up, &product);
    return product;
}

/* dots[r], with their biases if there are any. dots: [count], `apart` from each other. */
static void take_dots(const float *dots, size_t apart, const float *bias, uint32_t count, float *values)
{
    for (uint32_t r = 0; r < count; r++)
        values[r] = bias ? gb_one_nan(dots[r * apart] + bias[r]) : dots[r * apart];
}

/* Neurons first .. first + rows - 1 of every pair of one expert. dots: scratch, [2, rows, pairs of the expert] and
 * [3, rows]. values: NULL, or where they are kept unrounded. */
static void neurons(const struct gb_order *order, const struct gb_arguments *a, const struct gb_groups *groups,
                    uint32_t g, uint32_t first, uint32_t rows, const struct gb_activations *x, struct gb_row *decoded,
                    float *dots, const struct gb_gate_up_values *values)
{
    uint32_t start = groups->start[g], count = groups->start[g + 1] - start, intermediate = a->shape.intermediate;
    struct gb_product gate = {&a->gate_up,
                              groups->expert[g],
                              first,
                              rows,
                              count,
                              x->path,
                              x->vector + start,
                              x->scales ? x->scales + start : NULL,
                              NULL};
    struct gb_product up = gate;
    up.row += intermediate;
    gate.next = &up;
    float *up_dots = dots + (size_t)rows * count;
    float *gates = up_dots + (size_t)rows * count, *ups = gates + rows, *products = ups + rows;
    struct gb_extension e = gb_arguments_extension(a);
    const float *bias = e.gate_up_bias ? e.gate_up_bias + 2 * (size_t)intermediate * groups->expert[g] + first : NULL;
    order->dots(&gate, decoded, dots);
    order->dots(&up, decoded, up_dots);
    for (uint32_t n = 0; n < count; n++) {
        size_t at = (size_t)groups->pair[start + n] * intermediate + first;
        take_dots(dots + n, count, bias, rows, gates);
        take_dots(up_dots + n, count, bias ? bias + intermediate : NULL, rows, ups);
        if (values) {
            memcpy(values->gate + at, gates, sizeof *gates * rows);
            memcpy(values->up + at, ups, sizeof *ups * rows);
        }
        all_gated(e.activation, rows, gates, ups, products);
        for (uint32_t r = 0; r < rows; r++)
            products[r] = gb_one_nan(products[r]);
        gb_bf16_encode_all(products, rows, a->intermediate + at);
        if (values)
            memcpy(values->product + at, products, sizeof *products * rows);
    }
}

static enum gb_status all_neurons(const struct gb_order *order, const struct gb_arguments *a,
                                  const struct gb_groups *groups, const struct gb_activations *x,
                                  const struct gb_gate_up_values *values, struct gb_error *error)
{
    uint32_t intermediate = a->shape.intermediate;
    uint32_t rows = gb_rows_at_once(intermediate, groups->active, 2 * (size_t)groups->most);
    enum gb_status status = GB_OK;
#pragma omp parallel
    {
        struct gb_row decoded = {0};
        float *dots = malloc(sizeof(float) * (size_t)rows * (2 * (size_t)groups->most + 3));
        bool ready = gb_row_new(&a->gate_up, &decoded, NULL) == GB_OK && dots;
#pragma omp for collapse(2) schedule(dynamic)
        for (uint32_t g = 0; g < groups->active; g++)
            for (uint32_t first = 0; first < intermediate; first += rows)
                if (ready)
                    neurons(order, a, groups, g, first, intermediate - first < rows ? intermediate - first : rows, x,
                            &decoded, dots, values);
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for rows of %u weights", a->shape.hidden);
        gb_row_free(&decoded);
        free(dots);
    }
    return status;
}

gb_bf16 gb_weigh(float routing_weight, gb_bf16 x)
{
    return gb_bf16_encode(routing_weight * gb_bf16_decode(x));
}

static enum gb_status weigh(const struct gb_arguments *a, gb_bf16 **weighed, struct gb_error *error)
{
    size_t hidden = a->shape.hidden;
    *weighed = malloc(sizeof **weighed * a->shape.tokens * hidden);
    if (!*weighed)
        return gb_fail(error, GB_ENOMEM, "no memory for the weighed input of %u tokens", a->shape.tokens);
    for (size_t i = 0; i < a->shape.tokens * hidden; i++)
        (*weighed)[i] = gb_weigh(a->routing_weights[i / hidden], a->x[i]);
    return GB_OK;
}

static enum gb_status run(const struct gb_contract *contract, const struct gb_arguments *a, bool given,
                          const struct gb_gate_up_values *values, struct gb_error *error)
{
    enum gb_status status = gb_arguments_check(contract, a, GB_GATE_UP, error);
    if (status != GB_OK)
        return status;
    const struct gb_shape *shape = &a->shape;
    struct gb_groups groups;
    status = gb_groups_new(shape, a->ids, &groups, error);
    if (status != GB_OK)
        return status;
    struct gb_arguments known = gb_arguments_known(a);
    struct gb_operand operand;
    struct gb_activations x; /* one for each token */
    gb_bf16 *weighed = NULL; /* [tokens, hidden] */
    if (gb_weighs_input(a))
        status = weigh(a, &weighed, error);
    known.x = weighed ? weighed : known.x;
    if (status == GB_OK)
        status = gb_operand_new(&known, GB_GATE_UP, given, &operand, error);
    if (status == GB_OK) {
        known.gate_up = operand.weights;
        status = gb_activations_new(contract->order, &operand, shape->tokens, &groups, shape->top_k, &x, error);
        if (status == GB_OK) {
            memset(a->intermediate, 0, sizeof(gb_bf16) * shape->tokens * shape->top_k * shape->intermediate);
            status = all_neurons(contract->order, &known, &groups, &x, values, error);
            gb_activations_free(&x);
        }
        gb_operand_free(&operand);
    }
    free(weighed);
    gb_groups_free(&groups);
    return status;
}

enum gb_status gb_reference_gate_up(const struct gb_contract *contract, const struct gb_arguments *a,
                                    struct gb_error *error)
{
    return run(contract, a, false, NULL, error);
}

enum gb_status gb_reference_gate_up_values(const struct gb_contract *contract, const struct gb_arguments *a,
                                           const struct gb_gate_up_values *values, struct gb_error *error)
{
    return run(contract, a, false, values, error);
}

enum gb_status gb_reference_gate_up_codes(const struct gb_contract *contract, const struct gb_arguments *a,
                                          struct gb_error *error)
{
    return run(contract, a, true, NULL, error);
}
