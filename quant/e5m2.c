/* SPDX-License-Identifier: Apache-2.0 */
/*
 * E5M2: the upper half of binary16.
 *
 *     bit   7    6 5 4 3 2   1 0
 *           sign exponent    mantissa   bias 15, 0x7C is infinity, 0x7D to 0x7F are NaN
 */
#include "quant/bits.h"
#include "quant/quant.h"

enum { MAX_FINITE = 0x7B, NAN_CODE = 0x7F };

float gb_e5m2_decode(gb_e5m2 code)
{
    return gb_fp16_decode((uint16_t)(code.bits << 8));
}

gb_e5m2 gb_e5m2_encode(float value)
{
    uint32_t bits = f32_bits(value);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN */
        return (gb_e5m2){NAN_CODE};
    if (magnitude >= f32_bits(0x1p-14f)) {
        /* Normal: round the significand to two fraction bits; the carry moves into the exponent. */
        uint32_t code = shift_right_even(magnitude, 21) - ((127u - 15) << 2);
        return (gb_e5m2){(uint8_t)(sign | (code < MAX_FINITE ? code : MAX_FINITE))};
    }
    /* Multiples of 2^-16 below 2^-14: adding 2^7 leaves binary32 with an ulp of 2^-16, so its addition rounds. */
    uint32_t code = f32_bits(f32_from_bits(magnitude) + 0x1p7f) - f32_bits(0x1p7f);
    return (gb_e5m2){(uint8_t)(sign | code)};
}
