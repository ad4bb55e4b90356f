/* SPDX-License-Identifier: Apache-2.0 */
/* binary32 to the codes of every element type, and back: docs/numerics.md, docs/recipes.md step 6. */
#ifndef GB_GPU_ELEMENTS_CUH
#define GB_GPU_ELEMENTS_CUH

#include "gaugeblock.h"
#include "gpu/e4m3.cuh"

/* What an element type's bits mean. Codes are sign and magnitude; INT8 is two's complement. */
struct gb_element_layout {
    uint32_t mantissa; /* bits */
    int32_t exponent;  /* of the smallest normal number */
    uint32_t sign;     /* the sign's bit; 0: none */
    uint32_t nan;      /* the code of NaN */
};

__device__ __forceinline__ gb_element_layout gb_layout_of(enum gb_element_format element)
{
    switch (element) {
    case GB_E2M1:
        return {1, 0, 0x08, 0x07};
    case GB_E4M3:
        return {3, -6, 0x80, 0x7F};
    case GB_E4M3FNUZ:
        return {3, -7, 0x80, 0x80};
    case GB_E5M2:
        return {2, -14, 0x80, 0x7F};
    case GB_E3M2:
        return {2, -2, 0x20, 0x1F};
    case GB_E2M3:
        return {3, 0, 0x20, 0x1F};
    default:
        return {7, 7, 0x00, 0x00}; /* INT8: one binade of spacing 1 below 2^7 */
    }
}

/* 2^exponent of a normal number. */
__device__ __forceinline__ float gb_power_of_two(int32_t exponent)
{
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

/*
 * The code of a magnitude that does not exceed the largest finite one. In units of the spacing around it the magnitude
 * is an exact binary32 number; rounded to an integer it is the code above that of the binade's start, and a carry
 * reaches the next binade by itself.
 */
__device__ __forceinline__ uint32_t gb_magnitude_code(const gb_element_layout &layout, enum gb_rounding rounding,
                                                      float magnitude)
{
    const int32_t field = (int32_t)(__float_as_uint(magnitude) >> 23) - 127;
    const int32_t exponent = max(field, layout.exponent), mantissa = (int32_t)layout.mantissa;
    const float units = __fmul_rn(magnitude, gb_power_of_two(mantissa - exponent));
    const float rounded = rounding == GB_TIES_TO_EVEN   ? rintf(units)
                          : rounding == GB_TIES_TO_ZERO ? ceilf(__fsub_rn(units, 0.5f))
                                                        : floorf(units);
    return ((uint32_t)(exponent - layout.exponent) << mantissa) + (uint32_t)rounded;
}

/* Exact; of a code that is a number. */
__device__ __forceinline__ float gb_code_value(enum gb_element_format element, uint32_t code)
{
    if (element == GB_INT8)
        return (float)(int8_t)code;
    const gb_element_layout layout = gb_layout_of(element);
    const uint32_t magnitude = code & (layout.sign - 1), binade = magnitude >> layout.mantissa;
    const uint32_t normal = 1u << layout.mantissa, fraction = magnitude & (normal - 1);
    const int32_t unit = layout.exponent - (int32_t)layout.mantissa + (binade ? (int32_t)binade - 1 : 0);
    const float value = __fmul_rn((float)(binade ? fraction + normal : fraction), gb_power_of_two(unit));
    return code & layout.sign ? -value : value;
}

/* Two numbers to E4M3, to nearest even, saturating; NaN is 0x7F: the first in the low byte. */
__device__ __forceinline__ uint32_t gb_e4m3x2_encode(float low, float high)
{
#if GB_E4M3_CVT
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    const gb_element_layout layout = gb_layout_of(GB_E4M3);
    uint32_t codes = 0;
    for (int i = 0; i < 2; i++) {
        const float x = i ? high : low;
        const uint32_t code = isnan(x) ? 0x7Fu
                                       : (__float_as_uint(x) >> 24 & 0x80u) |
                                             gb_magnitude_code(layout, GB_TIES_TO_EVEN, fminf(fabsf(x), 448.0f));
        codes |= code << 8 * i;
    }
    return codes;
#endif
}

#endif
