/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16: the upper half of binary32. */
#include "quant/bits.h"
#include "quant/multiversion.h"
#include "quant/quant.h"

static float value_of(uint16_t bits)
{
    return f32_from_bits((uint32_t)bits << 16);
}

float gb_bf16_decode(gb_bf16 code)
{
    return value_of(code.bits);
}

void gb_bf16_decode_all(const void *codes, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, (const char *)codes + sizeof bits * i, sizeof bits);
        values[i] = value_of(bits);
    }
}

static inline uint16_t bits_of(float value)
{
    uint32_t bits = f32_bits(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) /* NaN */
        return (uint16_t)((bits >> 16 & 0x8000) | 0x7FC0);
    return (uint16_t)shift_right_even(bits, 16);
}

gb_bf16 gb_bf16_encode(float value)
{
    return (gb_bf16){bits_of(value)};
}

GB_VECTOR_CLONES void gb_bf16_encode_all(const float *values, size_t count, gb_bf16 *codes)
{
    for (size_t i = 0; i < count; i++)
        codes[i].bits = bits_of(values[i]);
}
