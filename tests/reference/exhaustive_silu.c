/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gb_silu on all 2^32 floats. Where x / (1 + e^-x) in double, less or more its error, rounds to one binary32 number,
 * that is the expected one; MPFR decides the rest, all 2^24 ties below 2^-125 among them, and a sample of the others.
 * gb_silu_all on the same, ARRAY after ARRAY.
 */
#include "tests/support/exhaustive.h"

#include "reference/reference.h"
#include "tests/support/enclosed.h"
#include "tests/oracle/oracle.h"

enum { ARRAY = 64 };

static float expected_silu(float x, uint32_t bits, struct tally *tally)
{
    /* From 200 on e^-x is far below half an ulp of 1, and from -200 down even x * e^x is far below 2^-150. */
    double value = (double)x / (1 + series_exp(clamped(-(double)x, 200)));
    float low = (float)(value * (1 - ENCLOSED_ERROR)), high = (float)(value * (1 + ENCLOSED_ERROR));

    if (low != high) {
        tally->undecided++;
        return oracle_silu(x);
    }
    if (bits % 65521 == 0 && !same_float(oracle_silu(x), low))
        differ(tally, "the enclosure of silu", bits, float_bits(oracle_silu(x)), float_bits(low));
    return low;
}

/* gb_silu_all on the floats from `bits` on. */
static void check_array(uint32_t bits, struct tally *tally)
{
    float x[ARRAY], y[ARRAY];
    for (uint32_t i = 0; i < ARRAY; i++)
        x[i] = bits_float(bits + i);
    gb_silu_all(x, ARRAY, y);
    for (uint32_t i = 0; i < ARRAY; i++)
        if (!same_float(gb_silu(x[i]), y[i]))
            differ(tally, "silu of an array", bits + i, float_bits(gb_silu(x[i])), float_bits(y[i]));
}

static void check(uint32_t bits, struct tally *tally)
{
    float x = bits_float(bits);
    float expected = isnan(x) ? x : isinf(x) ? (x > 0 ? x : -0.0f) : expected_silu(x, bits, tally);
    float actual = gb_silu(x);

    if (bits % ARRAY == 0)
        check_array(bits, tally);
    tally->floats++;
    if (!same_float(expected, actual))
        differ(tally, "silu", bits, float_bits(expected), float_bits(actual));
}

int main(void)
{
    return exhaustive("exhaustive_silu", "gb_silu against the correctly rounded value", check);
}
