/* SPDX-License-Identifier: Apache-2.0 */
/* silu(gate) * up to codes and scales: docs/numerics.md#silu_mul_quantise. */
#include <math.h>

#include "reference/quantise.h"

float gb_silu_as(enum gb_silu_form form, float x)
{
    if (form == GB_SILU_EXACT)
        return gb_silu(x);
    float denominator = 1.0f + gb_exp(-x);
    return form == GB_SILU_DIVIDE ? x / denominator : x * (1.0f / denominator);
}

void gb_gated_row(const struct gb_quantisation *q, const void *input, uint32_t row, float *values)
{
    size_t gates = (size_t)row * q->input_columns, ups = gates + q->columns;
    for (uint32_t i = 0; i < q->columns; i++) {
        float gate = gb_input_value(q->input, input, gates + i), up = gb_input_value(q->input, input, ups + i);
        float activated = gb_rounded_to(q->activated, gb_silu_as(q->silu, gate));
        float product = activated * up;
        values[i] = isnan(product) ? NAN : gb_rounded_to(q->product, product); /* IEEE 754 leaves its sign open */
    }
}

enum gb_status gb_reference_silu_mul_quantise(const struct gb_arguments *a, struct gb_error *error)
{
    return gb_quantise_rows(a, GB_SILU_MUL_QUANTISE, gb_gated_row, error);
}
