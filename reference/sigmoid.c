/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigmoid(x) = 1 / (1 + e^-x), correctly rounded: docs/numerics.md#sigmoid.
 *
 * Where |x| < 2^-15 the result 1/2 + x/4 - x^3/48 + ... has 1/2 + x/4 on a tie of binary32 for some x, and the third term,
 * which a double cannot hold beside 1/2, decides: it moves the value towards 1/2, and so does the next double. Elsewhere
 * one double evaluation rounded once is right; tests/exhaustive_sigmoid.c proves it for every input.
 */
#include <math.h>

#include "reference/reference.h"

float gb_sigmoid(float x)
{
    if (isnan(x))
        return x;
    if (fabsf(x) < 0x1p-15f)
        return (float)nextafter(0.5 + (double)x / 4, 0.5);
    return (float)(1.0 / (1.0 + exp(-(double)x)));
}
