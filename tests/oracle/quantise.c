/* SPDX-License-Identifier: Apache-2.0 */
/* The recipes, step by step as docs/numerics.md states them. */
#include "tests/oracle/oracle.h"

#include <math.h>

static float largest_magnitude(const float *values, size_t count)
{
    float largest = 0;

    for (size_t i = 0; i < count; i++)
        if (fabsf(values[i]) > largest)
            largest = fabsf(values[i]);
    return largest;
}

static bool all_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* Step 2: the E4M3 code of one block of 16 values. */
static unsigned block_scale(const float *values, float global)
{
    float scale = oracle_divide(largest_magnitude(values, 16), oracle_multiply(6, global));

    if (scale == 0)
        scale = 1;
    if (scale < ldexpf(1, -9))
        scale = ldexpf(1, -9);
    return oracle_encode(ORACLE_E4M3, scale);
}

/* Step 3: the sign is that of the quotient's comparison with zero, not its sign bit. */
static unsigned element(float value, float divisor)
{
    float quotient = oracle_divide(value, divisor);
    unsigned magnitude = oracle_encode(ORACLE_E2M1, fabsf(quotient));

    return quotient < 0 ? magnitude + 8 : magnitude;
}

bool oracle_quantise_nvfp4(const float *values, uint32_t rows, uint32_t columns, uint8_t *codes, uint8_t *scales,
                           float *global_scale)
{
    size_t count = (size_t)rows * columns;

    if (!all_finite(values, count))
        return false;
    float largest = largest_magnitude(values, count);
    if (largest != 0 && (double)largest < ldexp(2688, -126))
        return false;
    *global_scale = largest == 0 ? 1 : oracle_divide(largest, 2688);

    for (size_t block = 0; block < count / 16; block++) {
        const float *in = values + 16 * block;
        scales[block] = (uint8_t)block_scale(in, *global_scale);
        float divisor = oracle_multiply((float)oracle_decode(ORACLE_E4M3, scales[block]), *global_scale);
        for (unsigned pair = 0; pair < 8; pair++)
            codes[8 * block + pair] =
                (uint8_t)(element(in[2 * pair], divisor) + 16 * element(in[2 * pair + 1], divisor));
    }
    return true;
}

bool oracle_quantise_mxfp8(const float *values, uint32_t rows, uint32_t columns, uint8_t *codes, uint8_t *scales)
{
    size_t count = (size_t)rows * columns;

    if (!all_finite(values, count))
        return false;
    for (size_t block = 0; block < count / 32; block++) {
        const float *in = values + 32 * block;
        scales[block] = (uint8_t)oracle_e8m0_encode(oracle_multiply(largest_magnitude(in, 32), oracle_divide(1, 448)));
        float inverse = ldexpf(1, 127 - scales[block]);
        for (unsigned i = 0; i < 32; i++)
            codes[32 * block + i] = (uint8_t)oracle_encode(ORACLE_E4M3, oracle_multiply(in[i], inverse));
    }
    return true;
}
