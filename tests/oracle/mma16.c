/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order mma16-sm90/1 from docs/numerics.md#mma and #mma16-sm90. The terms of an instruction are exact MPFR numbers;
 * steps 4 and 5 of #mma are one operation, cutting to a multiple of a power of two.
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <mpfr.h>

enum { PRODUCTS = 16, FRACTION_BITS = 25, CHAINS = 4 };

/* The exponent of a number's encoding in binary32 or bf16, whose least normal exponent is the same. */
static int encoded_exponent(float value)
{
    int exponent = ilogbf(value);
    return exponent < -126 ? -126 : exponent;
}

/* Toward zero to a multiple of 2^exponent; infinities, NaN and zeros stay. */
static void cut(mpfr_t value, long exponent)
{
    mpfr_mul_2si(value, value, -exponent, MPFR_RNDZ);
    mpfr_trunc(value, value);
    mpfr_mul_2si(value, value, exponent, MPFR_RNDZ);
}

static float to_binary32(mpfr_t value)
{
    if (mpfr_nan_p(value))
        return NAN;
    if (mpfr_zero_p(value))
        return 0;
    if (!mpfr_inf_p(value)) {
        long leading = mpfr_get_exp(value) - 1;
        if (leading >= 128)
            mpfr_set_inf(value, mpfr_sgn(value));
        else
            cut(value, leading - 23 < -149 ? -149 : leading - 23);
    }
    return mpfr_zero_p(value) ? 0 : mpfr_get_flt(value, MPFR_RNDZ);
}

/* E of step 3: c's exponent and those of the products, of what is neither zero nor infinite nor NaN. */
static int largest_exponent(float c, const float *a, const float *b)
{
    int largest = -133;

    if (isfinite(c) && c != 0 && encoded_exponent(c) > largest)
        largest = encoded_exponent(c);
    for (unsigned i = 0; i < PRODUCTS; i++)
        if (isfinite(a[i]) && isfinite(b[i]) && a[i] != 0 && b[i] != 0) {
            int exponent = encoded_exponent(a[i]) + encoded_exponent(b[i]);
            largest = exponent > largest ? exponent : largest;
        }
    return largest;
}

float oracle_mma_sm90(float c, const float *a, const float *b)
{
    long unit = largest_exponent(c, a, b) - FRACTION_BITS;
    MPFR_DECL_INIT(sum, 64); /* 17 multiples of the unit, each below 2^27 units */
    MPFR_DECL_INIT(term, 24);
    MPFR_DECL_INIT(factor, 24);

    mpfr_set_flt(sum, c, MPFR_RNDZ);
    cut(sum, unit);
    for (unsigned i = 0; i < PRODUCTS; i++) {
        mpfr_set_flt(term, a[i], MPFR_RNDZ);
        mpfr_set_flt(factor, b[i], MPFR_RNDZ);
        mpfr_mul(term, term, factor, MPFR_RNDZ);
        cut(term, unit);
        mpfr_add(sum, sum, term, MPFR_RNDZ);
    }
    return to_binary32(sum);
}

/* An element's weight as the instruction takes it. */
static float operand(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t column)
{
    float code = oracle_weight_code(weights, expert, row, column);
    float value = oracle_multiply(code, oracle_weight_scale(weights, expert, row, column));

    if (weights->format == GB_NVFP4)
        return oracle_multiply(value, 1 / 256.0f);
    return (float)oracle_decode(ORACLE_BF16, oracle_encode(ORACLE_BF16, value));
}

float oracle_dot_mma16(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x)
{
    uint32_t chunk = weights->format == GB_MXFP8 ? 16 : 32, step = 4 * chunk;
    float chains[CHAINS] = {0};

    for (uint32_t first = 0; first < weights->columns; first += step)
        for (uint32_t i = 0; i < chunk / 4; i++) {
            float a[PRODUCTS] = {0}, b[PRODUCTS] = {0};
            for (uint32_t k = 0; k < PRODUCTS; k++) {
                uint32_t column = first + k / 4 * chunk + 4 * i + k % 4;
                if (column < weights->columns) {
                    a[k] = operand(weights, expert, row, column);
                    b[k] = (float)oracle_decode(ORACLE_BF16, x[column].bits);
                }
            }
            float *chain = &chains[first / step % CHAINS];
            *chain = oracle_mma_sm90(*chain, a, b);
        }
    float sum = oracle_add(oracle_add(chains[0], chains[1]), oracle_add(chains[2], chains[3]));
    if (weights->format != GB_NVFP4)
        return sum;
    return oracle_multiply(oracle_multiply(sum, 256), oracle_global_scale(weights, expert, row));
}
