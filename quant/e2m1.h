/* SPDX-License-Identifier: Apache-2.0 */
/* Private: one E2M1 code as a number, inline so that rows of them decode at the speed of memory. */
#ifndef GB_QUANT_E2M1_H
#define GB_QUANT_E2M1_H

#include "quant/bits.h"

/*
 *     bit   3    2 1  0
 *           sign exp  mantissa        bias 1
 */
static inline float e2m1_value(uint32_t code)
{
    uint32_t sign = (code & 8) << 28;
    uint32_t magnitude = code & 7;
    uint32_t normal = (magnitude << 22) + (126u << 23); /* exponent field e - 1 + 127, mantissa bit on top */
    uint32_t subnormal = magnitude ? 126u << 23 : 0;    /* 0.5 or 0 */
    return f32_from_bits(sign | (magnitude >= 2 ? normal : subnormal));
}

#endif
