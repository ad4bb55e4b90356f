/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gb_sigmoid on all 2^32 floats. Where 1 / (1 + e^-x) in double, less or more its error, rounds to one binary32 number,
 * that is the expected one; MPFR decides the rest, and a sample of the others.
 */
#include "tests/support/exhaustive.h"

#include "reference/reference.h"
#include "tests/support/enclosed.h"
#include "tests/oracle/oracle.h"

static float expected_sigmoid(float x, uint32_t bits, struct tally *tally)
{
    /* From 200 on e^-x is far below half an ulp of 1, and from -200 down e^x is far below 2^-150. */
    double value = 1 / (1 + series_exp(clamped(-(double)x, 200)));
    float low = (float)(value * (1 - ENCLOSED_ERROR)), high = (float)(value * (1 + ENCLOSED_ERROR));

    if (low != high) {
        tally->undecided++;
        return oracle_sigmoid(x);
    }
    if (bits % 65521 == 0 && !same_float(oracle_sigmoid(x), low))
        differ(tally, "the enclosure of sigmoid", bits, float_bits(oracle_sigmoid(x)), float_bits(low));
    return low;
}

static void check(uint32_t bits, struct tally *tally)
{
    float x = bits_float(bits);
    float expected = isnan(x) ? x : isinf(x) ? (x > 0 ? 1.0f : 0.0f) : expected_sigmoid(x, bits, tally);
    float actual = gb_sigmoid(x);

    tally->floats++;
    if (!same_float(expected, actual))
        differ(tally, "sigmoid", bits, float_bits(expected), float_bits(actual));
}

int main(void)
{
    return exhaustive("exhaustive_sigmoid", "gb_sigmoid against the correctly rounded value", check);
}
