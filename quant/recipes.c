/* SPDX-License-Identifier: Apache-2.0 */
/* The table of recipes, and weights quantised by one. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "quant/quant.h"

static const struct gb_recipe recipes[] = {
    {"bf16.rne/1",
     GB_BF16,
     "IEEE 754 rounding to nearest even",
     "each value rounded to bf16; a value that overflows is refused",
     {0}},
    {"nvfp4.modelopt/1",
     GB_NVFP4,
     "NVIDIA Model-Optimizer 211c6b34, modelopt/torch/quantization/qtensor/nvfp4_tensor.py",
     "global = amax / 2688; scale = E4M3(max(block amax / (6 * global), 2^-9)), 1 for a zero block; code = E2M1(x / (scale * global))",
     {.element = GB_E2M1,
      .scale = GB_SCALE_E4M3,
      .block_rows = 1,
      .block_columns = 16,
      .largest = 6.0f,
      .global = GB_GLOBAL_DECODE,
      .global_largest = 6.0f * 448.0f,
      .amax_nan = GB_AMAX_PROPAGATES_NAN,
      .ratio = GB_RATIO_DIVIDE_PRODUCT,
      .ratio_if_zero = 1.0f,
      .ratio_min = 0x1p-9f,
      .scale_rounding = GB_SCALE_NEAREST,
      .quotient = GB_QUOTIENT_DIVIDE_PRODUCT,
      .zero_sign = GB_ZERO_SIGN_OF_VALUE}},
    {"mxfp8.rceil/1",
     GB_MXFP8,
     "NVIDIA Transformer Engine d0067d0d, transformer_engine/common/util/ptx.cuh",
     "scale = E8M0(amax * RN(1/448)) rounded up to a power of two; code = E4M3(x / scale)",
     {.element = GB_E4M3,
      .scale = GB_SCALE_E8M0,
      .block_rows = 1,
      .block_columns = 32,
      .largest = 448.0f,
      .reciprocal = 1.0f / 448.0f,
      .ratio = GB_RATIO_MULTIPLY,
      .scale_rounding = GB_SCALE_CEIL,
      .quotient = GB_QUOTIENT_POWER}},
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

enum gb_status gb_quantise(const struct gb_recipe *recipe, const float *values, uint32_t rows, uint32_t columns,
                           void *codes, void *scales, float *global_scale, struct gb_error *error)
{
    float amax = 0.0f, global;
    for (size_t i = 0; i < (size_t)rows * columns; i++) {
        if (!isfinite(values[i]))
            return gb_fail(error, GB_EINVAL, "element [%zu, %zu] = %g is not finite", i / columns, i % columns,
                           (double)values[i]);
        amax = fmaxf(amax, fabsf(values[i]));
    }
    if (recipe->format == GB_BF16)
        return quantise_bf16(values, rows, columns, codes, error);
    enum gb_status status = gb_quantiser_global(&recipe->quantiser, amax, &global, error);
    if (status != GB_OK)
        return status;
    if (recipe->quantiser.global != GB_GLOBAL_NONE)
        *global_scale = recipe->quantiser.global == GB_GLOBAL_DECODE ? global : 1.0f / global;
    return gb_quantiser_run(&recipe->quantiser, values, rows, columns, global, INFINITY, codes, scales, error);
}
