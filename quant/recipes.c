/* SPDX-License-Identifier: Apache-2.0 */
/* The table of recipes and the one door to them. */
#include <math.h>

#include "quant/blocks.h"
#include "quant/quant.h"

static const struct gb_recipe recipes[] = {
    {"bf16.rne/1", GB_BF16, "IEEE 754 rounding to nearest even",
     "each value rounded to bf16; a value that overflows is refused"},
    {"nvfp4.modelopt/1", GB_NVFP4,
     "NVIDIA Model-Optimizer 211c6b34, modelopt/torch/quantization/qtensor/nvfp4_tensor.py",
     "global = amax / 2688; scale = E4M3(max(block amax / (6 * global), 2^-9)), 1 for a zero block; code = E2M1(x / (scale * global))"},
    {"mxfp8.rceil/1", GB_MXFP8, "NVIDIA Transformer Engine d0067d0d, transformer_engine/common/util/ptx.cuh",
     "scale = E8M0(amax * RN(1/448)) rounded up to a power of two; code = E4M3(x / scale)"},
};

const struct gb_recipe *gb_recipes(size_t *count)
{
    *count = sizeof recipes / sizeof *recipes;
    return recipes;
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
    for (size_t i = 0; i < (size_t)rows * columns; i++)
        if (!isfinite(values[i]))
            return gb_fail(error, GB_EINVAL, "element [%zu, %zu] = %g is not finite", i / columns, i % columns,
                           (double)values[i]);
    switch (recipe->format) {
    case GB_BF16:
        return quantise_bf16(values, rows, columns, codes, error);
    case GB_NVFP4:
        return gb_nvfp4_quantise(values, rows, columns, codes, scales, global_scale, error);
    case GB_MXFP8:
        return gb_mxfp8_quantise(values, rows, columns, codes, scales, error);
    default:
        break;
    }
    return gb_fail(error, GB_EINVAL, "recipe %s quantises to no known format", recipe->name);
}
