/* SPDX-License-Identifier: Apache-2.0 */
/* Private: the encoding of a binary32 number. */
#ifndef GB_QUANT_BITS_H
#define GB_QUANT_BITS_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "gaugeblock's contracts need IEEE arithmetic: do not build with -ffast-math"
#endif
_Static_assert(FLT_EVAL_METHOD == 0, "binary32 operations must be rounded to binary32");

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* value / 2^drop rounded to nearest, ties to even; drop in 1 .. 31. */
static inline uint32_t shift_right_even(uint32_t value, unsigned drop)
{
    uint32_t kept = value >> drop;
    uint32_t rest = value & ((1u << drop) - 1);
    uint32_t half = 1u << (drop - 1);
    return kept + (rest > half || (rest == half && (kept & 1)));
}

#endif
