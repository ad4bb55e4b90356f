/* SPDX-License-Identifier: Apache-2.0 */
/* Private: codes as numbers and numbers as codes, inline so that rows of them pass at the speed of memory. */
#ifndef GB_QUANT_ELEMENTS_H
#define GB_QUANT_ELEMENTS_H

#include "quant/bits.h"

enum { FLOAT_FRACTION = 23, FLOAT_BIAS = 127 };
enum { E2M1_FRACTION = 1, E2M1_BIAS = 1, E4M3_FRACTION = 3, E4M3_BIAS = 7 };

/* The code of a magnitude that an element of so many fraction bits holds, ties to even. Codes of one exponent are
 * multiples of a unit, which is the last place of a power of two in binary32; subnormals have the exponent of the
 * smallest normal number. */
static inline uint32_t code_of_magnitude(float m, int fraction, int bias)
{
    const int drop = FLOAT_FRACTION - fraction;
    const uint32_t smallest = (uint32_t)(FLOAT_BIAS + 1 - bias) << FLOAT_FRACTION;
    uint32_t exponent = f32_bits(m) & 0x7F800000;
    exponent = exponent > smallest ? exponent : smallest;
    uint32_t power = exponent + ((uint32_t)drop << FLOAT_FRACTION);
    uint32_t units = f32_bits(m + f32_from_bits(power)) - power;
    return units + ((exponent - smallest) >> drop);
}

/*
 * E2M1
 *     bit   3    2 1  0
 *           sign exp  mantissa        bias 1
 */
static inline float e2m1_value(uint32_t code)
{
    uint32_t sign = (code & 8) << 28;
    uint32_t magnitude = code & 7;
    uint32_t normal = (magnitude << 22) + (126u << 23); /* exponent field e - 1 + 127, mantissa bit on top */
    uint32_t subnormal = magnitude ? 126u << 23 : 0;    /* 0.5 or 0 */
    return f32_from_bits(sign | (magnitude >= 2 ? normal : subnormal));
}

/*
 * E4M3
 *     bit   7    6 5 4 3   2 1 0
 *           sign exponent  mantissa   bias 7, 0x7F and 0xFF are NaN
 */
static inline float e4m3_value(uint32_t code)
{
    uint32_t sign = (code & 0x80) << 24;
    uint32_t magnitude = code & 0x7F;
    uint32_t normal = (magnitude << 20) + ((127u - 7) << 23);
    uint32_t subnormal = f32_bits((float)(int32_t)magnitude * 0x1p-9f); /* multiples of 2^-9 */
    uint32_t is_subnormal = -(uint32_t)(magnitude < 8);                 /* masks: gcc would branch */
    uint32_t is_nan = -(uint32_t)(magnitude == 0x7F);
    uint32_t bits = (normal & ~is_subnormal) | (subnormal & is_subnormal);
    return f32_from_bits(sign | (bits & ~is_nan) | (0x7FC00000 & is_nan));
}

/* Of a number; what lies beyond 448 is 448. Bits are compared: AVX2 would branch where floats are. */
static inline uint32_t e4m3_code(float number)
{
    uint32_t magnitude = f32_bits(number) & 0x7FFFFFFF, most = f32_bits(448.0f);
    return code_of_magnitude(f32_from_bits(magnitude < most ? magnitude : most), E4M3_FRACTION, E4M3_BIAS) |
           (f32_bits(number) >> 24 & 0x80);
}

/*
 * E4M3FNUZ
 *     bit   7    6 5 4 3   2 1 0
 *           sign exponent  mantissa   bias 8, 0x80 (which would be -0) is the only NaN
 */
static inline float e4m3fnuz_value(uint32_t code)
{
    uint32_t sign = (code & 0x80) << 24;
    uint32_t magnitude = code & 0x7F;
    uint32_t normal = (magnitude << 20) + ((127u - 8) << 23);
    uint32_t subnormal = f32_bits((float)magnitude * 0x1p-10f); /* multiples of 2^-10 */
    uint32_t bits = magnitude >= 8 ? normal : subnormal;
    return f32_from_bits(code == 0x80 ? 0x7FC00000 : sign | bits);
}

/*
 * E3M2
 *     bit   5    4 3 2     1 0
 *           sign exponent  mantissa   bias 3
 */
static inline float e3m2_value(uint32_t code)
{
    uint32_t sign = (code & 0x20) << 26;
    uint32_t magnitude = code & 0x1F;
    uint32_t normal = (magnitude << 21) + ((127u - 3) << 23);
    uint32_t subnormal = f32_bits((float)magnitude * 0x1p-4f); /* multiples of 2^-4 */
    return f32_from_bits(sign | (magnitude >= 4 ? normal : subnormal));
}

/*
 * E2M3
 *     bit   5    4 3       2 1 0
 *           sign exponent  mantissa   bias 1
 */
static inline float e2m3_value(uint32_t code)
{
    uint32_t sign = (code & 0x20) << 26;
    uint32_t magnitude = code & 0x1F;
    uint32_t normal = (magnitude << 20) + ((127u - 1) << 23);
    uint32_t subnormal = f32_bits((float)magnitude * 0x1p-3f); /* multiples of 2^-3 */
    return f32_from_bits(sign | (magnitude >= 8 ? normal : subnormal));
}

#endif
