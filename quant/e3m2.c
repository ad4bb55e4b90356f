/* SPDX-License-Identifier: Apache-2.0 */
/* E3M2. */
#include "quant/elements.h"
#include "quant/quant.h"

enum { MAX_FINITE = 0x1F };

float gb_e3m2_decode(gb_e3m2 code)
{
    return e3m2_value(code.bits);
}

gb_e3m2 gb_e3m2_encode(float value)
{
    uint32_t bits = f32_bits(value);
    uint8_t sign = (uint8_t)(bits >> 26 & 0x20);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN */
        return (gb_e3m2){MAX_FINITE};
    if (magnitude >= f32_bits(0x1p-2f)) {
        /* Normal: round the significand to two fraction bits; the carry moves into the exponent. */
        uint32_t code = shift_right_even(magnitude, 21) - ((127u - 3) << 2);
        return (gb_e3m2){(uint8_t)(sign | (code < MAX_FINITE ? code : MAX_FINITE))};
    }
    /* Multiples of 2^-4 below 2^-2: adding 2^19 leaves binary32 with an ulp of 2^-4, so its addition rounds. */
    uint32_t code = f32_bits(f32_from_bits(magnitude) + 0x1p19f) - f32_bits(0x1p19f);
    return (gb_e3m2){(uint8_t)(sign | code)};
}
