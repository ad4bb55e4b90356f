/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions by policy: the two neighbours in the sorted list of magnitudes, then a choice between them. */
#include "tests/oracle/oracle.h"

#include <math.h>

/* The last of `count` ascending values that is not above x. */
static unsigned below(double (*value)(enum oracle_format, unsigned), enum oracle_format element, unsigned count,
                      double x)
{
    unsigned low = 0, high = count;

    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (value(element, middle) <= x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The index below x, or the one above it. */
static unsigned choose(const struct oracle_policy *policy, unsigned index, double low, double x, double high)
{
    if (x <= low)
        return index;
    switch (policy->rounding) {
    case ORACLE_TRUNCATE:
        return index;
    case ORACLE_UP:
        return index + 1;
    case ORACLE_TIES_DOWN:
        return x - low > high - x ? index + 1 : index;
    case ORACLE_EVEN:
        break;
    }
    if (x - low == high - x)
        return index + index % 2;
    return x - low > high - x ? index + 1 : index;
}

unsigned oracle_convert(enum oracle_format element, const struct oracle_policy *policy, float value)
{
    unsigned minus = 1u << (oracle_bits(element) - 1), finite = oracle_finite(element);
    bool one_nan = isnan(oracle_decode(element, minus));
    unsigned sign = signbit(value) ? minus : 0, index = finite + 1;
    double x = fabs((double)value);

    if (isnan(value)) {
        if (policy->nan_sign == ORACLE_NAN_SIGNED)
            return policy->nan + sign;
        return policy->nan + (policy->nan_sign == ORACLE_NAN_INVERTED ? minus - sign : 0);
    }
    if (!isinf(value)) {
        index = below(oracle_magnitude, element, finite + 1, x);
        if (index < finite)
            index = choose(policy, index, oracle_magnitude(element, index), x, oracle_magnitude(element, index + 1));
    }
    if (index > policy->largest) {
        int fate = isinf(value) ? (int)policy->infinity : (int)policy->overflow;
        if (fate == ORACLE_LARGEST)
            return policy->largest + sign;
        if (fate == ORACLE_INFINITY)
            return finite + sign; /* infinity follows the largest number */
        if (one_nan)
            return minus;
        /* E4M3, E5M2: all ones; the 16-bit formats: the quiet NaN. */
        return sign + (minus <= 128 ? minus - 1 : finite + (minus - finite) / 2);
    }
    if (index > 0)
        return index + sign;
    switch (policy->zero) {
    case ORACLE_ZERO_SIGNED:
        return sign;
    case ORACLE_ZERO_BY_COMPARISON:
        return value < 0 ? minus : 0;
    case ORACLE_ZERO_MINUS:
        return x == 0 ? minus : sign;
    case ORACLE_ZERO_PLUS:
    case ORACLE_ZERO_NAN:
        break;
    }
    return 0;
}

static double power(enum oracle_format unused, unsigned code)
{
    (void)unused;
    return ldexp(1, (int)code - 127);
}

unsigned oracle_e8m0_convert(const struct oracle_policy *policy, float value)
{
    double x = fabs((double)value);
    unsigned index = 256;

    if (isnan(value) || (policy->zero == ORACLE_ZERO_NAN && (x == 0 || value < 0)))
        return 0xFF;
    if (x <= ldexp(1, -127))
        return 0;
    if (!isinf(value)) {
        index = below(power, ORACLE_E2M1, 256, x);
        double low = power(ORACLE_E2M1, index);
        /* To nearest: 1.5 times a power of two goes up; so does everything between 2^-127 and 2^-126. */
        if (x > low && policy->rounding != ORACLE_TRUNCATE)
            index += policy->rounding == ORACLE_UP || x >= 1.5 * low || index == 0;
    }
    if (index <= 0xFE)
        return index;
    return (isinf(value) ? (int)policy->infinity : (int)policy->overflow) == ORACLE_LARGEST ? 0xFE : 0xFF;
}
