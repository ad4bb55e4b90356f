/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigmoid(x) = 1 / (1 + e^-x), correctly rounded: docs/numerics.md#sigmoid.
 *
 * For small x the value is 1/2 + t with t = tanh(x/2)/2, and many x bring it close to a tie of binary32. t has a small
 * error beside 1/2, so only the sum's own rounding could go wrong: it is done to odd (the neighbour whose last bit is
 * 1, if the sum is inexact), after which rounding to binary32 is right. Elsewhere one double evaluation rounded once is
 * right. tests/reference/exhaustive_sigmoid.c proves it for every input.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "reference/reference.h"

/* a + b rounded to odd, |a| > |b|. */
static double add_to_odd(double a, double b)
{
    double sum = a + b;
    double lost = b - (sum - a); /* exact, because |a| > |b| */
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (lost == 0.0 || bits & 1)
        return sum;
    return nextafter(sum, lost > 0.0 ? INFINITY : -INFINITY);
}

float gb_sigmoid(float x)
{
    if (isnan(x))
        return x;
    if (fabsf(x) < 0.25f)
        return (float)add_to_odd(0.5, 0.5 * tanh(0.5 * (double)x));
    return (float)(1.0 / (1.0 + exp(-(double)x)));
}
