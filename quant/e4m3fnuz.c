/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3FNUZ. */
#include "quant/elements.h"
#include "quant/quant.h"

enum { MAX_FINITE = 0x7F, NAN_CODE = 0x80 };

float gb_e4m3fnuz_decode(gb_e4m3fnuz code)
{
    return e4m3fnuz_value(code.bits);
}

gb_e4m3fnuz gb_e4m3fnuz_encode(float value)
{
    uint32_t bits = f32_bits(value);
    uint32_t sign = bits >> 24 & 0x80;
    uint32_t magnitude = bits & 0x7FFFFFFF, code;
    if (magnitude > 0x7F800000) /* NaN */
        return (gb_e4m3fnuz){NAN_CODE};
    if (magnitude >= f32_bits(0x1p-7f)) /* Normal: round the significand to three fraction bits; the carry moves on. */
        code = shift_right_even(magnitude, 20) - ((127u - 8) << 3);
    else /* Multiples of 2^-10: adding 2^13 leaves binary32 with an ulp of 2^-10, so its addition rounds. */
        code = f32_bits(f32_from_bits(magnitude) + 0x1p13f) - f32_bits(0x1p13f);
    code = code < MAX_FINITE ? code : MAX_FINITE;
    return (gb_e4m3fnuz){(uint8_t)(code ? sign | code : 0)}; /* zero has no sign */
}
