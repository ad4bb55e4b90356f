/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3. */
#include "quant/elements.h"
#include "quant/quant.h"

enum { MAX_FINITE = 0x7E, NAN_CODE = 0x7F };

float gb_e4m3_decode(gb_e4m3 code)
{
    return e4m3_value(code.bits);
}

gb_e4m3 gb_e4m3_encode(float value)
{
    uint32_t bits = f32_bits(value);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN */
        return (gb_e4m3){NAN_CODE};
    if (magnitude >= f32_bits(0x1p-6f)) {
        /* Normal: round the significand to three fraction bits; the carry moves into the exponent. */
        uint32_t code = shift_right_even(magnitude, 20) - ((127u - 7) << 3);
        return (gb_e4m3){(uint8_t)(sign | (code < MAX_FINITE ? code : MAX_FINITE))};
    }
    /* Multiples of 2^-9 below 2^-6: adding 2^14 leaves binary32 with an ulp of 2^-9, so its addition rounds. */
    uint32_t code = f32_bits(f32_from_bits(magnitude) + 0x1p14f) - f32_bits(0x1p14f);
    return (gb_e4m3){(uint8_t)(sign | code)};
}
