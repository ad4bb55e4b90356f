/* SPDX-License-Identifier: Apache-2.0 */
/* The table of recipes, and weights quantised by one. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/codes.h"
#include "quant/quant.h"

/* What the rows have in common. */
#define NO_WEIGHTS ((enum gb_format)0)
#define E2M1 .element = GB_E2M1, .largest = 6.0f, .reciprocal = 1.0f / 6.0f
#define E4M3 .element = GB_E4M3, .largest = 448.0f, .reciprocal = 1.0f / 448.0f
#define E4M3FNUZ(max) .element = GB_E4M3FNUZ, .largest = (max), .reciprocal = 1.0f / (max)
#define E5M2 .element = GB_E5M2, .largest = 57344.0f, .reciprocal = 1.0f / 57344.0f
#define E3M2 .element = GB_E3M2, .largest = 28.0f, .reciprocal = 1.0f / 28.0f
#define E2M3 .element = GB_E2M3, .largest = 7.5f, .reciprocal = 1.0f / 7.5f
#define INT8 .element = GB_INT8, .largest = 127.0f, .reciprocal = 1.0f / 127.0f
#define BLOCK(rows, columns) .block_rows = (rows), .block_columns = (columns)
#define ROW(columns) BLOCK(1, columns)
#define FP32_SCALE .scale = GB_SCALE_FP32, .scale_rounding = GB_SCALE_NEAREST
#define MX(element) element, ROW(32), .scale = GB_SCALE_E8M0
#define NVFP4 E2M1, ROW(16), .scale = GB_SCALE_E4M3
#define ENCODE(largest, overflow) .global = GB_GLOBAL_ENCODE, .global_largest = (largest), .global_overflow = (overflow)
#define ENCODE_RECIPROCAL(largest, overflow)                                                                           \
    .global = GB_GLOBAL_ENCODE_RECIPROCAL, .global_largest = (largest), .global_overflow = (overflow)

/* The first row of a format is its default. */
static const struct gb_recipe recipes[] = {
    {"bf16.rne/1",
     GB_BF16,
     "IEEE 754 rounding to nearest even",
     "each value rounded to bf16; a value that overflows is refused",
     {.element = 0}},
    {"nvfp4.modelopt/1",
     GB_NVFP4,
     "NVIDIA Model-Optimizer 211c6b34, modelopt/torch/quantization/qtensor/nvfp4_tensor.py",
     "d = A / 2688; scale = E4M3(max(amax / (6 * d), 2^-9)), 1 for a zero block; code = E2M1(x / (scale * d))",
     {NVFP4, .global = GB_GLOBAL_DECODE, .global_largest = 2688.0f, .amax_nan = GB_AMAX_PROPAGATES_NAN,
      .ratio = GB_RATIO_DIVIDE_PRODUCT, .ratio_if_zero = 1.0f, .ratio_min = 0x1p-9f, .scale_rounding = GB_SCALE_NEAREST,
      .quotient = GB_QUOTIENT_DIVIDE_PRODUCT, .zero_sign = GB_ZERO_SIGN_OF_VALUE}},
    {"mxfp8.rceil/1",
     GB_MXFP8,
     "NVIDIA Transformer Engine d0067d0d, transformer_engine/common/util/ptx.cuh, ptx_arch_spec.cuh",
     "scale = amax * RN(1/448) rounded up to a power of two; code = E4M3(x / scale)",
     {MX(E4M3), .ratio = GB_RATIO_MULTIPLY, .scale_rounding = GB_SCALE_CEIL, .quotient = GB_QUOTIENT_POWER}},
#include "quant/recipes/rows_mx.h"
#include "quant/recipes/rows_nvfp4.h"
#include "quant/recipes/rows_groups.h"
};

const struct gb_recipe *gb_recipes(size_t *count)
{
    *count = sizeof recipes / sizeof *recipes;
    return recipes;
}

const struct gb_recipe *gb_recipe_find(const char *name)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (!strcmp(recipes[i].name, name))
            return &recipes[i];
    return NULL;
}

const struct gb_recipe *gb_recipe_default(enum gb_format format)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (recipes[i].format == format)
            return &recipes[i];
    return NULL;
}

const struct gb_recipe *gb_recipe_default_activations(enum gb_format format)
{
    return format == GB_NVFP4       ? gb_recipe_find("nvfp4.trtllm/1")
           : format == GB_MXFP8     ? gb_recipe_find("mxfp8.rceil/1")
           : format == GB_FP8_BLOCK ? gb_recipe_find("fp8g128.vllm/1")
                                    : NULL;
}

bool gb_quantisation_gated(const struct gb_quantisation *q)
{
    return q->input_columns != q->columns;
}

enum gb_format gb_quantiser_activations(const struct gb_quantiser *rules)
{
    static const struct {
        enum gb_element_format element;
        enum gb_scale scale;
        uint32_t columns;
        enum gb_format format;
    } rows[] = {{GB_E2M1, GB_SCALE_E4M3, 16, GB_NVFP4},
                {GB_E4M3, GB_SCALE_E8M0, 32, GB_MXFP8},
                {GB_E4M3, GB_SCALE_FP32, 128, GB_FP8_BLOCK}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rules->block_rows == 1 && rules->element == rows[i].element && rules->scale == rows[i].scale &&
            rules->block_columns == rows[i].columns)
            return rows[i].format;
    return (enum gb_format)0;
}

static enum gb_status quantise_bf16(const float *values, uint32_t rows, uint32_t columns, gb_bf16 *codes,
                                    struct gb_error *error)
{
    for (size_t i = 0; i < (size_t)rows * columns; i++) {
        codes[i] = gb_bf16_encode(values[i]);
        if (!isfinite(gb_bf16_decode(codes[i])))
            return gb_fail(error, GB_EINVAL, "element [%zu, %zu] = %g overflows bf16", i / columns, i % columns,
                           (double)values[i]);
    }
    return GB_OK;
}

/* Names the first value that is not finite; there is one. */
static enum gb_status refuse_values(const float *values, uint32_t columns, struct gb_error *error)
{
    size_t i = 0;
    while (isfinite(values[i]))
        i++;
    return gb_fail(error, GB_EINVAL, "element [%zu, %zu] = %g is not finite", i / columns, i % columns,
                   (double)values[i]);
}

/* amax: of the matrix; maxima: of its blocks, or NULL. */
static enum gb_status quantise_scaled(const struct gb_recipe *recipe, const float *values, float amax,
                                      const float *maxima, uint32_t rows, uint32_t columns, void *codes, void *scales,
                                      float *global_scale, struct gb_error *error)
{
    float global;
    enum gb_status status = gb_quantiser_global(&recipe->quantiser, amax, &global, error);
    if (status != GB_OK)
        return status;
    if (recipe->format == GB_NVFP4)
        *global_scale = recipe->quantiser.global == GB_GLOBAL_DECODE ? global : 1.0f / global;
    return gb_quantiser_run_with(&recipe->quantiser, values, maxima, rows, columns, global, INFINITY, codes, scales,
                                 error);
}

enum gb_status gb_quantise(const struct gb_recipe *recipe, const float *values, uint32_t rows, uint32_t columns,
                           void *codes, void *scales, float *global_scale, struct gb_error *error)
{
    const uint32_t length = recipe->quantiser.block_columns;
    const size_t count = (size_t)rows * columns, blocks = length && columns % length == 0 ? count / length : 0;
    const bool common = blocks && gb_blocks_are_common(&recipe->quantiser, length);
    float *maxima = common ? malloc(blocks * sizeof *maxima) : NULL; /* [blocks] */
    if (common && !maxima)
        return gb_fail(error, GB_ENOMEM, "no memory for the maxima of %zu blocks", blocks);
    if (maxima)
        gb_block_maxima(values, blocks, length, maxima);
    const float amax = maxima ? gb_largest_magnitude(maxima, blocks) : gb_largest_magnitude(values, count);
    enum gb_status status = !isfinite(amax)             ? refuse_values(values, columns, error)
                            : recipe->format == GB_BF16 ? quantise_bf16(values, rows, columns, codes, error)
                                                        : quantise_scaled(recipe, values, amax, maxima, rows, columns,
                                                                          codes, scales, global_scale, error);
    free(maxima);
    return status;
}
