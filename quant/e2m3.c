/* SPDX-License-Identifier: Apache-2.0 */
/* E2M3. */
#include "quant/elements.h"
#include "quant/quant.h"

enum { MAX_FINITE = 0x1F };

float gb_e2m3_decode(gb_e2m3 code)
{
    return e2m3_value(code.bits);
}

gb_e2m3 gb_e2m3_encode(float value)
{
    uint32_t bits = f32_bits(value);
    uint8_t sign = (uint8_t)(bits >> 26 & 0x20);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN */
        return (gb_e2m3){MAX_FINITE};
    if (magnitude >= f32_bits(1.0f)) {
        /* Normal: round the significand to three fraction bits; the carry moves into the exponent. */
        uint32_t code = shift_right_even(magnitude, 20) - ((127u - 1) << 3);
        return (gb_e2m3){(uint8_t)(sign | (code < MAX_FINITE ? code : MAX_FINITE))};
    }
    /* Multiples of 2^-3 below 1: adding 2^20 leaves binary32 with an ulp of 2^-3, so its addition rounds. */
    uint32_t code = f32_bits(f32_from_bits(magnitude) + 0x1p20f) - f32_bits(0x1p20f);
    return (gb_e2m3){(uint8_t)(sign | code)};
}
