/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IEEE binary16.
 *
 *     bit   15   14 .. 10  9 .. 0
 *           sign exponent  mantissa   bias 15
 */
#include "quant/bits.h"
#include "quant/quant.h"

float gb_fp16_decode(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t magnitude = bits & 0x7FFF;
    if (magnitude >= 0x7C00) /* infinity, NaN */
        return f32_from_bits(sign | 0x7F800000 | (magnitude & 0x3FF) << 13);
    if (magnitude >= 0x0400)
        return f32_from_bits(sign | ((magnitude << 13) + ((127u - 15) << 23)));
    return f32_from_bits(sign | f32_bits((float)magnitude * 0x1p-24f)); /* subnormal: multiples of 2^-24 */
}

uint16_t gb_fp16_encode(float value)
{
    uint32_t bits = f32_bits(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN */
        return (uint16_t)(sign | 0x7E00);
    if (magnitude >= f32_bits(0x1p-14f)) {
        /* Normal: round the significand to ten fraction bits; the carry moves into the exponent, up to infinity. */
        uint32_t code = shift_right_even(magnitude, 13) - ((127u - 15) << 10);
        return (uint16_t)(sign | (code < 0x7C00 ? code : 0x7C00));
    }
    /* Multiples of 2^-24 below 2^-14: adding 2^-1 leaves binary32 with an ulp of 2^-24, so its addition rounds. */
    uint32_t code = f32_bits(f32_from_bits(magnitude) + 0x1p-1f) - f32_bits(0x1p-1f);
    return (uint16_t)(sign | code);
}
