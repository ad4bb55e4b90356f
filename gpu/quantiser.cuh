/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps 3 to 6 of the quantiser that reads a recipe: docs/recipes.md#the-quantiser. The names are its names: a, r, s,
 * q, and `global` for G or d.
 */
#ifndef GB_GPU_QUANTISER_CUH
#define GB_GPU_QUANTISER_CUH

#include <cfloat>

#include "gpu/bf16.cuh"
#include "gpu/e8m0.cuh"
#include "gpu/elements.cuh"

/* With flush_subnormals. */
__device__ __forceinline__ float gb_flushed(const gb_quantiser &rules, float value)
{
    return rules.flush_subnormals && fabsf(value) < FLT_MIN ? copysignf(0.0f, value) : value;
}

__device__ __forceinline__ float gb_multiply(const gb_quantiser &rules, float a, float b)
{
    return gb_flushed(rules, __fmul_rn(gb_flushed(rules, a), gb_flushed(rules, b)));
}

__device__ __forceinline__ float gb_divide(const gb_quantiser &rules, float a, float b)
{
    return gb_flushed(rules, __fdiv_rn(gb_flushed(rules, a), gb_flushed(rules, b)));
}

__device__ __forceinline__ float gb_add(const gb_quantiser &rules, float a, float b)
{
    return gb_flushed(rules, __fadd_rn(gb_flushed(rules, a), gb_flushed(rules, b)));
}

__device__ __forceinline__ float gb_rounded_to(enum gb_intermediate intermediate, float value)
{
    if (intermediate == GB_INTERMEDIATE_BF16)
        return __uint_as_float((uint32_t)gb_bf16_round(value) << 16);
    return intermediate == GB_INTERMEDIATE_FP16 ? __half2float(__float2half_rn(value)) : value;
}

/* The formula of step 3. */
__device__ __forceinline__ float gb_ratio_formula(const gb_quantiser &rules, float a, float global)
{
    const float largest = rules.largest, reciprocal = rules.reciprocal;
    const auto divided = [&] { return gb_rounded_to(rules.ratio_intermediate, gb_divide(rules, a, largest)); };
    const auto multiplied = [&] { return gb_rounded_to(rules.ratio_intermediate, gb_multiply(rules, a, reciprocal)); };
    switch (rules.ratio) {
    case GB_RATIO_POWER: /* its exponent is taken off in step 4 */
        return a;
    case GB_RATIO_DIVIDE:
        return divided();
    case GB_RATIO_MULTIPLY:
        return multiplied();
    case GB_RATIO_ENCODE_FIRST:
        return gb_multiply(rules, a, gb_multiply(rules, global, reciprocal));
    case GB_RATIO_ENCODE_LAST:
        return gb_multiply(rules, global, multiplied());
    case GB_RATIO_DIVIDE_ENCODE:
        return gb_multiply(rules, global, divided());
    case GB_RATIO_DIVIDE_PRODUCT:
        return gb_divide(rules, a, gb_multiply(rules, largest, global));
    case GB_RATIO_DIVIDE_TWICE:
        return gb_divide(rules, divided(), global);
    default: /* GB_RATIO_INVERSE */
        return gb_divide(rules, 1.0f, gb_divide(rules, largest, a));
    }
}

/* Step 3. */
__device__ __forceinline__ float gb_ratio_of(const gb_quantiser &rules, float a, float global, float bound)
{
    float r = gb_ratio_formula(rules, a, global);
    if (isnan(r) || rules.ratio == GB_RATIO_POWER)
        return r;
    if (gb_flushed(rules, r) == 0.0f)
        r = rules.ratio_if_zero;
    if (rules.bound == GB_BOUND_RATIO)
        r = fminf(r, bound);
    r = fmaxf(r, rules.ratio_min);
    return rules.ratio_max != 0.0f ? fminf(r, rules.ratio_max) : r;
}

/* The E8M0 code of r by GB_SCALE_FLOOR, _CEIL, _CEIL_FRACTION or _EVEN; of r * 2^-e with GB_RATIO_POWER. */
__device__ __forceinline__ uint32_t gb_e8m0_code(const gb_quantiser &rules, float r)
{
    uint32_t bits = __float_as_uint(r);
    if (rules.scale_rounding == GB_SCALE_EVEN)
        bits += 1u << (22 - rules.mantissa_bits);
    int32_t code = (int32_t)(bits >> 23);
    if (code == 255 && rules.scale_infinity != 0)
        return rules.scale_infinity;
    /* 2^-127, code 0, is the subnormal 0x00400000; above it up to 2^-126 the power above is code 1. */
    if (rules.scale_rounding == GB_SCALE_CEIL)
        code += bits > (code == 0 ? 0x00400000u : bits & 0x7F800000u);
    if (rules.scale_rounding == GB_SCALE_CEIL_FRACTION)
        code += (bits & 0x7FFFFFu) != 0;
    if (rules.ratio == GB_RATIO_POWER)
        code -= (int32_t)(__float_as_uint(rules.largest) >> 23) - 127;
    return (uint32_t)min(max(code, 0), 0xFE);
}

/* The E4M3 code of r >= 0. llama.cpp's way: ties go up, 7 * 2^-9 is all that lies below 2^-6, above 240 comes 448. */
__device__ __forceinline__ uint32_t gb_e4m3_scale_code(const gb_quantiser &rules, float r)
{
    if (rules.scale_rounding != GB_SCALE_LLAMA_CPP)
        return gb_e4m3x2_encode(r, 0.0f) & 0xFFu;
    if (r < 0x1p-6f)
        return min((uint32_t)floorf(__fadd_rn(__fmul_rn(r, 512.0f), 0.5f)), 7u);
    const uint32_t code = ((__float_as_uint(r) + (1u << 19)) >> 20) - ((127u - 7u) << 3);
    return code < 0x78u ? code : 0x7Eu;
}

/* A block's scale, and what its elements are multiplied with or divided by. */
struct gb_scaling {
    float scale;   /* decoded */
    uint32_t code; /* of the scale, if it is no FP32 one */
    float operand;
    bool divides;
    bool zero; /* every code is 0 */
};

/* Step 4. */
__device__ __forceinline__ void gb_round_scale(const gb_quantiser &rules, float r, gb_scaling *scaling)
{
    scaling->scale = isnan(r) ? __uint_as_float(0x7FC00000u) : r;
    scaling->code = 0;
    if (rules.scale == GB_SCALE_FP32)
        return;
    const bool e4m3 = rules.scale == GB_SCALE_E4M3;
    uint32_t code;
    if (isnan(r)) {
        code = rules.scale_nan != 0 ? rules.scale_nan : e4m3 ? 0x7Fu : 0xFFu;
    } else {
        code = e4m3 ? gb_e4m3_scale_code(rules, r) : gb_e8m0_code(rules, r);
        code = code == 0 ? rules.scale_if_zero : code;
        code = max(code, (uint32_t)rules.scale_min);
        code = rules.scale_max != 0 ? min(code, (uint32_t)rules.scale_max) : code;
    }
    scaling->code = code;
    scaling->scale = e4m3 ? gb_e4m3_from_bits(code) : gb_e8m0_decode(code);
}

__device__ __forceinline__ float gb_multiplier_formula(const gb_quantiser &rules, float a, float global,
                                                       const gb_scaling &scaling)
{
    const float s = scaling.scale;
    switch (rules.quotient) {
    case GB_QUOTIENT_RECIPROCAL:
        return gb_divide(rules, 1.0f, s);
    case GB_QUOTIENT_AMAX:
        return gb_divide(rules, rules.largest, a);
    case GB_QUOTIENT_ENCODE_PRODUCT:
        return gb_divide(rules, 1.0f, gb_multiply(rules, s, gb_divide(rules, 1.0f, global)));
    case GB_QUOTIENT_ENCODE:
        return gb_divide(rules, global, s);
    case GB_QUOTIENT_DECODE:
        return gb_divide(rules, gb_divide(rules, 1.0f, global), s);
    default: /* GB_QUOTIENT_POWER: 2^(127 - code) has the exponent field 254 - code */
        if (scaling.code == 0 && rules.multiplier_lowest != 0.0f)
            return rules.multiplier_lowest;
        return gb_e8m0_decode(scaling.code == 0xFFu ? 0xFFu : 254u - scaling.code);
    }
}

__device__ __forceinline__ bool gb_multiplier_is_zero(const gb_quantiser &rules, float a, float r,
                                                      const gb_scaling &scaling)
{
    switch (rules.zero_multiplier) {
    case GB_ZERO_IF_AMAX_IS:
        return gb_flushed(rules, a) == 0.0f;
    case GB_ZERO_IF_RATIO_IS:
        return gb_flushed(rules, r) == 0.0f;
    case GB_ZERO_IF_SCALE_IS:
        return rules.scale == GB_SCALE_FP32 ? gb_flushed(rules, scaling.scale) == 0.0f : scaling.code == 0;
    default:
        return false;
    }
}

/* Step 5. */
__device__ __forceinline__ void gb_find_operand(const gb_quantiser &rules, float a, float r, float global,
                                                gb_scaling *scaling)
{
    const float s = scaling->scale;
    const bool zero = gb_multiplier_is_zero(rules, a, r, *scaling);
    float operand;
    scaling->divides = !zero;
    switch (rules.quotient) {
    case GB_QUOTIENT_DIVIDE:
        operand = s;
        break;
    case GB_QUOTIENT_DIVIDE_PRODUCT:
        operand = gb_multiply(rules, s, global);
        break;
    case GB_QUOTIENT_DIVIDE_ENCODE:
        operand = gb_divide(rules, s, global);
        break;
    default:
        scaling->divides = false;
        operand = gb_multiplier_formula(rules, a, global, *scaling);
        if (rules.multiplier_max != 0.0f)
            operand = operand <= rules.multiplier_max ? operand : rules.multiplier_max;
    }
    scaling->operand = zero ? 0.0f : operand;
}

/* Steps 4 and 5. */
__device__ __forceinline__ gb_scaling gb_scaling_of(const gb_quantiser &rules, float a, float r, float global)
{
    gb_scaling scaling = {};
    gb_round_scale(rules, r, &scaling);
    gb_find_operand(rules, a, r, global, &scaling);
    return scaling;
}

__device__ __forceinline__ uint32_t gb_nan_code(const gb_quantiser &rules, const gb_element_layout &layout, float x)
{
    if (rules.element_nan == GB_NAN_IS_NAN)
        return layout.nan;
    if (rules.element_nan == GB_NAN_IS_ZERO)
        return 0;
    if (rules.element_nan == GB_NAN_KEEPS_SIGN)
        return layout.nan | (signbit(x) ? layout.sign : 0u);
    const uint32_t largest = gb_magnitude_code(layout, GB_TIES_TO_EVEN, rules.largest);
    if (rules.element_nan == GB_NAN_IS_LARGEST)
        return largest;
    return rules.element == GB_INT8 ? 0x80u : largest | layout.sign;
}

/* The sign of a code of magnitude zero, where the element has both. */
__device__ __forceinline__ bool gb_zero_is_negative(const gb_quantiser &rules, float q)
{
    switch (rules.zero_sign) {
    case GB_ZERO_KEEPS_SIGN:
        return signbit(q);
    case GB_ZERO_SIGN_OF_VALUE:
        return q < 0.0f;
    case GB_ZERO_NEGATIVE_UNLESS_ABOVE:
        return !(q > 0.0f);
    default:
        return false;
    }
}

/* Step 6. */
__device__ __forceinline__ uint32_t gb_element_code(const gb_quantiser &rules, const gb_scaling &scaling, float x)
{
    const gb_element_layout layout = gb_layout_of(rules.element);
    const float q = gb_rounded_to(rules.intermediate, scaling.divides ? gb_divide(rules, x, scaling.operand)
                                                                      : gb_multiply(rules, x, scaling.operand));
    if (scaling.zero)
        return 0;
    if (isnan(q))
        return gb_nan_code(rules, layout, x);
    const uint32_t code = gb_magnitude_code(layout, rules.rounding, fminf(fabsf(q), rules.largest));
    if (code == 0) /* INT8 has no sign bit, and the fnuz code of -0 is NaN */
        return rules.element != GB_E4M3FNUZ && gb_zero_is_negative(rules, q) ? layout.sign : 0;
    if (rules.element == GB_INT8)
        return (q < 0.0f ? -code : code) & 0xFFu;
    return q < 0.0f ? code | layout.sign : code;
}

#endif
