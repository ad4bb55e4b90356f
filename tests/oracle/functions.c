/* SPDX-License-Identifier: Apache-2.0 */
/*
 * e^x, silu and sigmoid enclosed between two MPFR values, at a precision raised until both round to the same binary32
 * number. It ends, because for x != 0 no function is ever a binary32 number or half-way between two.
 */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <mpfr.h>

const char *oracle_mpfr_version(void)
{
    return mpfr_get_version();
}

/* Fills low <= f(|x| or x) <= high. */
typedef void enclose(mpfr_t low, mpfr_t high, float x);

static void enclose_exp(mpfr_t low, mpfr_t high, float x)
{
    mpfr_set_flt(low, x, MPFR_RNDN);
    mpfr_exp(high, low, MPFR_RNDU);
    mpfr_exp(low, low, MPFR_RNDD);
}

/* |x| / (1 + e^-x) */
static void enclose_silu(mpfr_t low, mpfr_t high, float x)
{
    mpfr_set_flt(low, -x, MPFR_RNDN);
    mpfr_exp(high, low, MPFR_RNDD);
    mpfr_exp(low, low, MPFR_RNDU);
    mpfr_add_ui(high, high, 1, MPFR_RNDD);
    mpfr_add_ui(low, low, 1, MPFR_RNDU);

    mpfr_t magnitude;
    mpfr_init2(magnitude, 24);
    mpfr_set_flt(magnitude, fabsf(x), MPFR_RNDN);
    mpfr_div(high, magnitude, high, MPFR_RNDU);
    mpfr_div(low, magnitude, low, MPFR_RNDD);
    mpfr_clear(magnitude);
}

/* 1 / (1 + e^-x) */
static void enclose_sigmoid(mpfr_t low, mpfr_t high, float x)
{
    mpfr_set_flt(low, -x, MPFR_RNDN);
    mpfr_exp(high, low, MPFR_RNDD);
    mpfr_exp(low, low, MPFR_RNDU);
    mpfr_add_ui(high, high, 1, MPFR_RNDD);
    mpfr_add_ui(low, low, 1, MPFR_RNDU);
    mpfr_ui_div(high, 1, high, MPFR_RNDU);
    mpfr_ui_div(low, 1, low, MPFR_RNDD);
}

/* binary32 as an exponent range: 0.1 * 2^-148 is the smallest subnormal, 0.1...1 * 2^128 the largest number. */
static float round_to_binary32(const mpfr_t value)
{
    mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
    mpfr_t rounded;

    mpfr_init2(rounded, 24);
    int inexact = mpfr_set(rounded, value, MPFR_RNDN);
    mpfr_set_emin(-148);
    mpfr_set_emax(128);
    inexact = mpfr_check_range(rounded, inexact, MPFR_RNDN);
    mpfr_subnormalize(rounded, inexact, MPFR_RNDN);
    float result = mpfr_get_flt(rounded, MPFR_RNDN);
    mpfr_set_emin(emin);
    mpfr_set_emax(emax);
    mpfr_clear(rounded);
    return result;
}

static float round_function(enclose *function, float x)
{
    float result, other;
    mpfr_prec_t precision = 64;

    do {
        mpfr_t low, high;
        mpfr_init2(low, precision);
        mpfr_init2(high, precision);
        function(low, high, x);
        result = round_to_binary32(low);
        other = round_to_binary32(high);
        mpfr_clear(low);
        mpfr_clear(high);
        precision *= 2;
    } while (result != other);
    return result;
}

float oracle_exp(float x)
{
    if (isnan(x))
        return x;
    if (isinf(x))
        return x > 0 ? x : 0;
    return round_function(enclose_exp, x);
}

float oracle_silu(float x)
{
    if (isnan(x) || x == 0)
        return x;
    if (isinf(x))
        return x > 0 ? x : -0.0f;
    return copysignf(round_function(enclose_silu, x), x);
}

float oracle_sigmoid(float x)
{
    if (isnan(x))
        return x;
    if (isinf(x))
        return x > 0 ? 1 : 0;
    return x == 0 ? 0.5f : round_function(enclose_sigmoid, x);
}
