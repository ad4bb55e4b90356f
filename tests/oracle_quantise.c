/* SPDX-License-Identifier: Apache-2.0 */
/* The recipe nvfp4.modelopt/1, step by step as docs/numerics.md states it. */
#include "tests/oracle.h"

#include <math.h>

static float largest_magnitude(const float *values, size_t count)
{
    float largest = 0;

    for (size_t i = 0; i < count; i++)
        if (fabsf(values[i]) > largest)
            largest = fabsf(values[i]);
    return largest;
}

/* Step 2: the E4M3 code of one block of 16 values. */
static unsigned block_scale(const float *values, float global)
{
    float scale = oracle_divide(largest_magnitude(values, 16), oracle_multiply(6, global));

    if (scale == 0)
        scale = 1;
    if (scale < ldexpf(1, -9))
        scale = ldexpf(1, -9);
    return oracle_e4m3_encode(scale);
}

/* Step 3: the sign is that of the quotient's comparison with zero, not its sign bit. */
static unsigned element(float value, float divisor)
{
    float quotient = oracle_divide(value, divisor);
    unsigned magnitude = oracle_e2m1_encode(fabsf(quotient));

    return quotient < 0 ? magnitude + 8 : magnitude;
}

bool oracle_quantise(const float *values, uint32_t rows, uint32_t columns, uint8_t *codes, uint8_t *scales,
                     float *global_scale)
{
    size_t count = (size_t)rows * columns;

    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    float largest = largest_magnitude(values, count);
    if (largest != 0 && (double)largest < ldexp(2688, -126))
        return false;
    *global_scale = largest == 0 ? 1 : oracle_divide(largest, 2688);

    for (size_t block = 0; block < count / 16; block++) {
        const float *in = values + 16 * block;
        scales[block] = (uint8_t)block_scale(in, *global_scale);
        float divisor = oracle_multiply((float)oracle_e4m3_decode(scales[block]), *global_scale);
        for (unsigned pair = 0; pair < 8; pair++)
            codes[8 * block + pair] =
                (uint8_t)(element(in[2 * pair], divisor) + 16 * element(in[2 * pair + 1], divisor));
    }
    return true;
}
