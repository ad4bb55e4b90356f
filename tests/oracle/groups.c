/* SPDX-License-Identifier: Apache-2.0 */
/* quantise and silu_mul_quantise from docs/numerics.md, and the rules of groups that are divided by their scale. */
#include "tests/oracle/oracle.h"

#include <math.h>

float oracle_silu_as(enum gb_silu_form form, float x)
{
    if (form == GB_SILU_EXACT)
        return oracle_silu(x);
    float denominator = oracle_add(1, oracle_exp(-x));
    if (form == GB_SILU_DIVIDE)
        return oracle_divide(x, denominator);
    return oracle_multiply(x, oracle_divide(1, denominator));
}

static float rounded(enum gb_format format, float value)
{
    enum oracle_format element = format == GB_FP16 ? ORACLE_FP16 : ORACLE_BF16;

    if (format == GB_FP32)
        return value;
    return (float)oracle_decode(element, oracle_encode(element, value));
}

void oracle_operator_values(const struct gb_quantisation *q, const uint16_t *input, float *values)
{
    enum oracle_format element = q->input == GB_FP16 ? ORACLE_FP16 : ORACLE_BF16;

    for (uint32_t row = 0; row < q->rows; row++)
        for (uint32_t column = 0; column < q->columns; column++) {
            const uint16_t *in = input + (size_t)row * q->input_columns + column;
            float first = (float)oracle_decode(element, in[0]);
            float *value = &values[(size_t)row * q->columns + column];
            if (q->input_columns == q->columns) {
                *value = in[0] >> 15 ? -fabsf(first) : first; /* the oracle's decoding drops the sign of NaN */
            } else {
                float activated = rounded(q->activated, oracle_silu_as(q->silu, first));
                *value = rounded(q->product, oracle_multiply(activated, (float)oracle_decode(element, in[q->columns])));
            }
        }
}

/* The nearest integer, ties to even, of |value| <= 127, in two's complement. */
static uint8_t encode_int8(float value)
{
    double whole = floor((double)value), rest = (double)value - whole;

    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0))
        whole++;
    return (uint8_t)(int)whole;
}

static uint8_t group_code(enum gb_element_format element, float largest, float quotient)
{
    enum oracle_format format = element == GB_E4M3FNUZ ? ORACLE_E4M3FNUZ : ORACLE_E4M3;

    if (element == GB_INT8 && isnan(quotient))
        return 0;
    if (isnan(quotient) || quotient > largest)
        quotient = largest;
    if (quotient < -largest)
        quotient = -largest;
    return element == GB_INT8 ? encode_int8(quotient) : (uint8_t)oracle_encode(format, quotient);
}

void oracle_quantise_group(enum gb_element_format element, float bound, const float *values, uint32_t group,
                           uint8_t *codes, float *scale)
{
    float largest = element == GB_INT8 ? 127 : element == GB_E4M3FNUZ ? 224 : 448;
    float floor_of_scale = element == GB_INT8 ? ldexpf(1, -23) : oracle_divide(1, oracle_multiply(largest, 512));
    float amax = 0;

    for (uint32_t i = 0; i < group; i++)
        if (fabsf(values[i]) > amax)
            amax = fabsf(values[i]);
    *scale = oracle_divide(amax, largest);
    if (*scale > bound)
        *scale = bound;
    if (*scale < floor_of_scale)
        *scale = floor_of_scale;
    for (uint32_t i = 0; i < group; i++)
        codes[i] = group_code(element, largest, oracle_divide(values[i], *scale));
}
