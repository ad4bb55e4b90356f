/* SPDX-License-Identifier: Apache-2.0 */
/*
 * e^x in double from its definition, for the exhaustive tests: 2^k times a Taylor sum. No libm, so that no function
 * checks itself.
 */
#ifndef GB_TESTS_SUPPORT_ENCLOSED_H
#define GB_TESTS_SUPPORT_ENCLOSED_H

#include <stdint.h>
#include <string.h>

/* The relative error of every value computed with series_exp stays below this: the sum is right to a few 2^-53, and the
 * tests check it against MPFR. */
#define ENCLOSED_ERROR 0x1p-46

/* 2^k, -1022 <= k <= 1023 */
static inline double power_of_two(int k)
{
    uint64_t bits = (uint64_t)(k + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* e^x, |x| <= 300: x = k ln 2 + r with |r| <= 0.35, where the first term left out, r^15 / 15!, is below 2^-62. ln 2 is
 * in two parts, the first of 33 bits, so that k times it is exact. */
static inline double series_exp(double x)
{
    static const double inverse_factorial[15] = {
        1.0,
        1.0,
        1.0 / 2,
        1.0 / 6,
        1.0 / 24,
        1.0 / 120,
        1.0 / 720,
        1.0 / 5040,
        1.0 / 40320,
        1.0 / 362880,
        1.0 / 3628800,
        1.0 / 39916800,
        1.0 / 479001600,
        1.0 / 6227020800,
        1.0 / 87178291200,
    };
    int k = (int)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    double r = (x - k * 0x1.62e42fefp-1) - k * 0x1.473de6af278edp-34;
    double sum = inverse_factorial[14];

    for (int n = 13; n >= 0; n--)
        sum = inverse_factorial[n] + sum * r;
    return sum * power_of_two(k);
}

/* Beyond +-limit a function of x is constant to binary32, so x may as well be limit. */
static inline double clamped(double x, double limit)
{
    return x < -limit ? -limit : x > limit ? limit : x;
}

#endif
