/* SPDX-License-Identifier: Apache-2.0 */
/* Values to codes and scales by a recipe's rules: docs/numerics.md#quantise. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/quantise.h"

float gb_input_value(enum gb_format input, const void *array, size_t index)
{
    uint16_t bits = ((const uint16_t *)array)[index];
    return input == GB_FP16 ? gb_fp16_decode(bits) : gb_bf16_decode((gb_bf16){bits});
}

float gb_rounded_to(enum gb_format format, float value)
{
    if (format == GB_FP32)
        return value;
    return format == GB_FP16 ? gb_fp16_decode(gb_fp16_encode(value)) : gb_bf16_decode(gb_bf16_encode(value));
}

static enum gb_status check_rules(const struct gb_quantisation *q, struct gb_error *error)
{
    const struct gb_quantiser *rules = &q->quantiser;
    uint32_t block = rules->block_columns;
    if (rules->element < GB_E2M1 || rules->element > GB_INT8 || rules->scale < GB_SCALE_E4M3 ||
        rules->scale > GB_SCALE_FP32)
        return gb_fail(error, GB_EINVAL, "the recipe quantises to element %d with scale %d, which do not exist",
                       (int)rules->element, (int)rules->scale);
    if (rules->block_rows != 1 || (block != 16 && block != 32 && block != 64 && block != 128))
        return gb_fail(error, GB_EINVAL, "blocks of %u x %u: they must be of 1 row, and 16, 32, 64 or 128 columns",
                       rules->block_rows, block);
    if (rules->scale == GB_SCALE_FP32 && block < 64)
        return gb_fail(error, GB_EINVAL, "groups of %u: with FP32 scales they must be of 64 or 128 values", block);
    if (q->columns % block)
        return gb_fail(error, GB_EINVAL, "%u columns are no multiple of the group of %u", q->columns, block);
    if (!(q->bound > 0.0f))
        return gb_fail(error, GB_EINVAL, "the bound %g is not above zero; INFINITY means none", (double)q->bound);
    if (q->bound < INFINITY && rules->bound == GB_BOUND_NONE)
        return gb_fail(error, GB_EINVAL, "this recipe takes no bound (%g) on the scale%s", (double)q->bound,
                       rules->element == GB_INT8 ? ": INT8 has none" : "");
    return GB_OK;
}

static enum gb_status check_silu(const struct gb_quantisation *q, struct gb_error *error)
{
    if (q->silu < GB_SILU_EXACT || q->silu > GB_SILU_RECIPROCAL)
        return gb_fail(error, GB_EINVAL, "form %d of silu does not exist", (int)q->silu);
    if ((q->activated != GB_FP32 && q->activated != q->input) || (q->product != GB_FP32 && q->product != q->input))
        return gb_fail(error, GB_EINVAL, "silu and product are rounded to format %d or %d: FP32 or the input's, %d",
                       (int)q->activated, (int)q->product, (int)q->input);
    return GB_OK;
}

enum gb_status gb_quantise_check(const struct gb_quantisation *q, enum gb_operator operation, struct gb_error *error)
{
    bool gated = operation == GB_SILU_MUL_QUANTISE;
    size_t bytes;
    if (!q || q->size < sizeof *q)
        return gb_fail(error, GB_EINVAL, "no struct gb_quantisation of at least %zu bytes", sizeof *q);
    if (q->input != GB_BF16 && q->input != GB_FP16)
        return gb_fail(error, GB_EINVAL, "values of format %d: they must be bf16 (%d) or fp16 (%d)", (int)q->input,
                       GB_BF16, GB_FP16);
    if (!q->rows || !q->columns || q->columns > UINT32_MAX / 2 ||
        !gb_bytes(q->rows, q->columns, 2, sizeof(float), &bytes))
        return gb_fail(error, GB_EINVAL, "%u rows of %u columns: at least 1 each, and no more than fit in memory",
                       q->rows, q->columns);
    if (q->input_columns != (gated ? 2 * q->columns : q->columns))
        return gb_fail(error, GB_EINVAL, "the input is %u wide; %u columns need %u%s", q->input_columns, q->columns,
                       gated ? 2 * q->columns : q->columns, gated ? ", gate and up" : "");
    if (q->layout != GB_SCALES_LINEAR && q->layout != GB_SCALES_TRANSPOSED)
        return gb_fail(error, GB_EINVAL, "scale layout %d does not exist", (int)q->layout);
    enum gb_status status = gated ? check_silu(q, error) : GB_OK;
    return status == GB_OK ? check_rules(q, error) : status;
}

/* scales: [blocks], of one row, in their place of the operator's array. */
static void place_scales(const struct gb_quantisation *q, uint32_t row, const uint8_t *scales, uint8_t *all)
{
    size_t bytes = q->quantiser.scale == GB_SCALE_FP32 ? sizeof(float) : 1;
    uint32_t blocks = q->columns / q->quantiser.block_columns;
    for (uint32_t b = 0; b < blocks; b++) {
        size_t index = q->layout == GB_SCALES_LINEAR ? (size_t)row * blocks + b : (size_t)b * q->rows + row;
        memcpy(all + index * bytes, scales + b * bytes, bytes);
    }
}

enum gb_status gb_quantise_rows(const struct gb_arguments *a, enum gb_operator operation, gb_row_function row_of,
                                struct gb_error *error)
{
    const struct gb_quantisation *q = a->quantise;
    size_t code_bytes, scale_bytes;
    enum gb_status status = gb_quantise_check(q, operation, error);
    if (status == GB_OK && (!a->values || !a->codes || !a->scales))
        status = gb_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (status == GB_OK)
        status = gb_quantiser_bytes(&q->quantiser, 1, q->columns, &code_bytes, &scale_bytes, error); /* of a row */
    if (status != GB_OK)
        return status;
#pragma omp parallel
    {
        float *values = malloc(sizeof(float) * q->columns); /* [columns] */
        void *scales = malloc(scale_bytes);                 /* [blocks] */
        struct gb_error reason;
        enum gb_status mine = values && scales ? GB_OK : gb_fail(&reason, GB_ENOMEM, "no memory for a row");
#pragma omp for schedule(static)
        for (uint32_t row = 0; row < q->rows; row++)
            if (mine == GB_OK) {
                row_of(q, a->values, row, values);
                mine = gb_quantiser_run(&q->quantiser, values, 1, q->columns, q->global_scale, q->bound,
                                        (uint8_t *)a->codes + row * code_bytes, scales, &reason);
                place_scales(q, row, scales, a->scales);
            }
        if (mine != GB_OK)
#pragma omp critical
            status = gb_fail(error, mine, "%s", reason.message);
        free(values);
        free(scales);
    }
    return status;
}

void gb_plain_row(const struct gb_quantisation *q, const void *input, uint32_t row, float *values)
{
    for (uint32_t i = 0; i < q->columns; i++)
        values[i] = gb_input_value(q->input, input, (size_t)row * q->columns + i);
}

enum gb_status gb_reference_quantise(const struct gb_arguments *a, struct gb_error *error)
{
    return gb_quantise_rows(a, GB_QUANTISE, gb_plain_row, error);
}
