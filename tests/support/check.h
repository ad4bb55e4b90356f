/* SPDX-License-Identifier: Apache-2.0 */
/* What every test of ours uses: cmocka, float bits, comparison of encodings, and repeatable random numbers. */
#ifndef GB_TESTS_SUPPORT_CHECK_H
#define GB_TESTS_SUPPORT_CHECK_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gaugeblock.h"

/* Whether a sweep leaves nothing out: `test_name all`, which is test slow_name. */
static inline bool sweeps_are_whole(int argc, char **argv)
{
    return argc > 1 && !strcmp(argv[1], "all");
}

static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Equal encodings; NaN is a class, -0 is not +0. */
static inline bool same_float(float a, float b)
{
    return (isnan(a) && isnan(b)) || float_bits(a) == float_bits(b);
}

static inline bool same_bf16(gb_bf16 a, gb_bf16 b)
{
    bool a_nan = (a.bits & 0x7FFF) > 0x7F80, b_nan = (b.bits & 0x7FFF) > 0x7F80;
    return (a_nan && b_nan) || a.bits == b.bits;
}

/* A number equal to itself alone: fails the test with both encodings and the place. */
#define assert_same_float(expected, actual, place, ...)                                                                \
    do {                                                                                                               \
        float expected_ = (expected), actual_ = (actual);                                                              \
        if (!same_float(expected_, actual_))                                                                           \
            fail_msg(place ": expected %a (%08X), got %a (%08X)", __VA_ARGS__, (double)expected_,                      \
                     float_bits(expected_), (double)actual_, float_bits(actual_));                                     \
    } while (0)

#define assert_same_code(expected, actual, value)                                                                      \
    do {                                                                                                               \
        unsigned expected_ = (expected), actual_ = (actual);                                                           \
        if (expected_ != actual_)                                                                                      \
            fail_msg("%a (%08X): expected code %02X, got %02X", (double)(value), float_bits(value), expected_,         \
                     actual_);                                                                                         \
    } while (0)

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static inline uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

/* 0 .. count-1 */
static inline uint32_t random_below(uint64_t *state, uint32_t count)
{
    return (uint32_t)((random_bits(state) >> 32) * count >> 32);
}

/* [0, 1) */
static inline double random_uniform(uint64_t *state)
{
    return (double)(random_bits(state) >> 11) * 0x1p-53;
}

/* Mean 0, variance 1: twelve uniform numbers, each of variance 1/12. */
static inline double random_gaussian(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += random_uniform(state);
    return sum;
}

#endif
