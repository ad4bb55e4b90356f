/* SPDX-License-Identifier: Apache-2.0 */
/* E2M1, without a table. */
#include "quant/elements.h"
#include "quant/quant.h"

float gb_e2m1_decode(gb_e2m1 code)
{
    return e2m1_value(code.bits);
}

gb_e2m1 gb_e2m1_encode(float value)
{
    uint32_t bits = f32_bits(value);
    uint8_t sign = (uint8_t)(bits >> 28 & 8);
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN */
        return (gb_e2m1){7};
    if (magnitude >= f32_bits(1.0f)) {
        /* Normal: round the significand to one fraction bit; the carry moves into the exponent. */
        uint32_t code = shift_right_even(magnitude, 22) - (126u << 1);
        return (gb_e2m1){(uint8_t)(sign | (code < 7 ? code : 7))};
    }
    /* Below 1 the codes 0, 1, 2 are the multiples of 0.5: ties at 0.25 (to 0) and 0.75 (to 1). */
    uint8_t code = (uint8_t)((magnitude > f32_bits(0.25f)) + (magnitude >= f32_bits(0.75f)));
    return (gb_e2m1){(uint8_t)(sign | code)};
}

gb_e2m1x2 gb_e2m1_pack(gb_e2m1 even, gb_e2m1 odd)
{
    return (gb_e2m1x2){(uint8_t)((even.bits & 15) | odd.bits << 4)};
}

gb_e2m1 gb_e2m1_even(gb_e2m1x2 pair)
{
    return (gb_e2m1){(uint8_t)(pair.bits & 15)};
}

gb_e2m1 gb_e2m1_odd(gb_e2m1x2 pair)
{
    return (gb_e2m1){(uint8_t)(pair.bits >> 4)};
}
