/* SPDX-License-Identifier: Apache-2.0 */
/* Which codes a value may be rounded to, where only an interval is known of it: docs/numerics.md#stages. */
#ifndef GB_HARNESS_JUDGE_ADMISSIBLE_H
#define GB_HARNESS_JUDGE_ADMISSIBLE_H

#include <stdint.h>

/*
 * Rounding to the nearest code of any element format: of two values the larger one never gets the smaller code. A code
 * is a sign bit, or none, above magnitudes that are in the order of their values. encode: any float.
 */
struct rounding {
    uint32_t (*encode)(float value);
    float (*decode)(uint32_t code);
    uint32_t sign; /* bit of the sign */
};
extern const struct rounding rounding_bf16, rounding_e4m3, rounding_e2m1;

/* A value before it is rounded: where truth has it, and how far from there it may be. */
struct unrounded {
    double truth;
    double limit;                 /* anything within truth +- limit is possible; NaN truth: NaN alone */
    double worst, variance, bias; /* of its error: the theorem, the variance, the mean of either sign */
    double underflow;             /* what underflow may add to it */
};

/* CODE_SAME: the reference's value; zeros of either sign are. CODE_ADMISSIBLE: another one that some possible value is
 * rounded to. */
enum admissibility { CODE_SAME, CODE_ADMISSIBLE, CODE_INADMISSIBLE };
enum admissibility admissibility_of(const struct rounding *rounding, uint32_t subject, uint32_t reference,
                                    const struct unrounded *value);

/* A bound on the probability that the value is not rounded to `code`; 1 where truth is not. */
double flip_probability(const struct rounding *rounding, uint32_t code, const struct unrounded *value);

/* The most of `codes` independent codes that flip, but for a probability of at most `probability`; expected: the sum of
 * their probabilities, or a bound on it. */
uint64_t differences_allowed(double expected, uint64_t codes, double probability);

#endif
