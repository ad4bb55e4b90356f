/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silu(x) = x / (1 + e^-x), correctly rounded: docs/numerics.md#silu.
 *
 * Where |x| < 2^-125 the result x/2 + x^2/4 - ... has x/2 exactly on a tie of binary32 for odd subnormals, and
 * the positive second term decides: a double just above x/2 rounds the right way. Elsewhere one double evaluation
 * rounded once is right; tests/reference/exhaustive_silu.c proves it for every input.
 */
#include <math.h>

#include "reference/reference.h"

float gb_silu(float x)
{
    if (isnan(x))
        return x;
    if (isinf(x))
        return x > 0 ? x : -0.0f;
    if (x != 0.0f && fabsf(x) < 0x1p-125f)
        return (float)nextafter((double)x / 2, INFINITY);
    return (float)((double)x / (1.0 + exp(-(double)x)));
}
