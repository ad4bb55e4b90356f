/* SPDX-License-Identifier: Apache-2.0 */
/* The codes of a run of elements side by side, for the two element types that weights are made of. */
#include <math.h>

#include "quant/bits.h"
#include "quant/multiversion.h"
#include "quant/codes.h"

enum { E4M3_FRACTION = 3, E4M3_BIAS = 7, FLOAT_FRACTION = 23, FLOAT_BIAS = 127 };

/* Magnitudes 0 .. 6: how many of the seven boundaries lie below; ties at 0.25, 1.25, 2.5 and 5 go down. */
static inline uint32_t e2m1_magnitude(float m)
{
    return (uint32_t)(m > 0.25f) + (uint32_t)(m >= 0.75f) + (uint32_t)(m > 1.25f) + (uint32_t)(m >= 1.75f) +
           (uint32_t)(m > 2.5f) + (uint32_t)(m >= 3.5f) + (uint32_t)(m > 5.0f);
}

/* Magnitudes 0 .. 448. Below 2^-6 codes are multiples of 2^-9, which is the last place of 2^14 in binary32. */
static inline uint32_t e4m3_magnitude(float m)
{
    const int drop = FLOAT_FRACTION - E4M3_FRACTION;
    uint32_t bits = f32_bits(m), half = (1u << (drop - 1)) - 1 + (bits >> drop & 1);
    uint32_t normal = ((bits + half) >> drop) - ((FLOAT_BIAS - E4M3_BIAS) << E4M3_FRACTION);
    uint32_t subnormal = f32_bits(m + 0x1p14f) - f32_bits(0x1p14f);
    return m < 0x1p-6f ? subnormal : normal;
}

GB_VECTOR_CLONES static uint32_t quotients(const float *x, uint32_t count, float operand, bool divides, float *quotient)
{
    uint32_t nans = 0;
    if (divides) {
#pragma omp simd reduction(+ : nans)
        for (uint32_t i = 0; i < count; i++) {
            quotient[i] = x[i] / operand;
            nans += quotient[i] != quotient[i];
        }
    } else {
#pragma omp simd reduction(+ : nans)
        for (uint32_t i = 0; i < count; i++) {
            quotient[i] = x[i] * operand;
            nans += quotient[i] != quotient[i];
        }
    }
    return nans;
}

/* keeps_sign: -0 has a sign, and so has what rounds to zero; otherwise only numbers below zero have. */
GB_VECTOR_CLONES static void e2m1_codes(const float *quotient, uint32_t count, bool keeps_sign, uint8_t *codes)
{
#pragma omp simd
    for (uint32_t i = 0; i < count; i++) {
        float q = quotient[i], magnitude = fabsf(q);
        uint32_t negative = keeps_sign ? f32_bits(q) >> 31 : (uint32_t)(q < 0.0f);
        codes[i] = (uint8_t)(e2m1_magnitude(magnitude < 6.0f ? magnitude : 6.0f) | negative << 3);
    }
}

GB_VECTOR_CLONES static void e4m3_codes(const float *quotient, uint32_t count, bool keeps_sign, uint8_t *codes)
{
#pragma omp simd
    for (uint32_t i = 0; i < count; i++) {
        float q = quotient[i], magnitude = fabsf(q);
        uint32_t negative = keeps_sign ? f32_bits(q) >> 31 : (uint32_t)(q < 0.0f);
        codes[i] = (uint8_t)(e4m3_magnitude(magnitude < 448.0f ? magnitude : 448.0f) | negative << 7);
    }
}

bool gb_codes_of(const struct gb_quantiser *q, const float *x, uint32_t count, float operand, bool divides,
                 uint8_t *codes)
{
    float quotient[GB_CODES_AT_ONCE];
    bool keeps_sign = q->zero_sign == GB_ZERO_KEEPS_SIGN;
    if (q->rounding != GB_TIES_TO_EVEN || q->intermediate != GB_INTERMEDIATE_FP32 || q->flush_subnormals ||
        (!keeps_sign && q->zero_sign != GB_ZERO_SIGN_OF_VALUE) || count > GB_CODES_AT_ONCE)
        return false;
    if (!(q->element == GB_E2M1 && q->largest == 6.0f) && !(q->element == GB_E4M3 && q->largest == 448.0f))
        return false;
    if (quotients(x, count, operand, divides, quotient))
        return false;
    if (q->element == GB_E2M1)
        e2m1_codes(quotient, count, keeps_sign, codes);
    else
        e4m3_codes(quotient, count, keeps_sign, codes);
    return true;
}
