/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gb_exp on all 2^32 floats. Where e^x in double, less or more its error, rounds to one binary32 number, that is the
 * expected one; MPFR decides the rest, and a sample of the others.
 */
#include "tests/support/exhaustive.h"

#include "reference/reference.h"
#include "tests/support/enclosed.h"
#include "tests/oracle/oracle.h"

static float expected_exp(float x, uint32_t bits, struct tally *tally)
{
    double value = series_exp(clamped((double)x, 200));
    float low = (float)(value * (1 - ENCLOSED_ERROR)), high = (float)(value * (1 + ENCLOSED_ERROR));

    if (low != high) {
        tally->undecided++;
        return oracle_exp(x);
    }
    if (bits % 65521 == 0 && !same_float(oracle_exp(x), low))
        differ(tally, "the enclosure of exp", bits, float_bits(oracle_exp(x)), float_bits(low));
    return low;
}

static void check(uint32_t bits, struct tally *tally)
{
    float x = bits_float(bits);
    float expected = isnan(x) ? x : expected_exp(x, bits, tally);
    float actual = gb_exp(x);

    tally->floats++;
    if (!same_float(expected, actual))
        differ(tally, "exp", bits, float_bits(expected), float_bits(actual));
}

int main(void)
{
    return exhaustive("exhaustive_exp", "gb_exp against the correctly rounded value", check);
}
