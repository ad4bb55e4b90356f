/* SPDX-License-Identifier: Apache-2.0 */
/*
 * IEEE binary16, for reading checkpoints.
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
