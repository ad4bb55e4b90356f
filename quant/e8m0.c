/* SPDX-License-Identifier: Apache-2.0 */
/* E8M0: a power of two, 2^(code - 127); 0xFF is NaN. OCP MX v1.0 section 5.4.1. */
#include "quant/bits.h"
#include "quant/quant.h"

enum { LARGEST = 0xFE, NAN_CODE = 0xFF };

float gb_e8m0_decode(gb_e8m0 code)
{
    if (code.bits == NAN_CODE)
        return f32_from_bits(0x7FC00000);
    return f32_from_bits(code.bits ? (uint32_t)code.bits << 23 : 0x00400000); /* 2^-127 is subnormal */
}

gb_e8m0 gb_e8m0_encode(float value)
{
    uint32_t magnitude = f32_bits(value) & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN */
        return (gb_e8m0){NAN_CODE};
    if (magnitude <= 0x00400000) /* up to 2^-127 */
        return (gb_e8m0){0};
    uint32_t code = (magnitude >> 23) + ((magnitude & 0x7FFFFF) != 0); /* the next power of two */
    return (gb_e8m0){(uint8_t)(code < LARGEST ? code : LARGEST)};
}
