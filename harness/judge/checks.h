/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the judge: the bound around truth, and what each check adds up over a case. */
#ifndef GB_HARNESS_JUDGE_CHECKS_H
#define GB_HARNESS_JUDGE_CHECKS_H

#include "harness/judge/metrics.h"
#include "reference/reference.h"

/* The probability that a kernel within its rounding points is rejected in one case, under the bound's model. */
#define FALSE_ALARM_PROBABILITY 1e-9

/* What a buffer is held against: [tokens, per_token] each. */
struct enclosure {
    const double *truth, *worst, *sigma;
    const double *underflow; /* NULL: in worst and sigma, or none */
    const double *bias;      /* NULL: sums do not truncate */
};
/* A layer's output and its intermediate, for accumulators of so many bits. */
struct enclosure enclosure_output(const struct gb_bounds *of, uint32_t accumulator_bits);
struct enclosure enclosure_intermediate(const struct gb_bounds *of, uint32_t accumulator_bits);

/* One buffer against truth. */
struct bound_result {
    uint64_t elements;
    uint64_t exceeding;      /* elements outside their limit; NaN counts */
    uint64_t zero_exceeding; /* elements that an all-zero result would get wrong */
    double worst_ratio;      /* largest |error| / worst-case theorem */
    double limit_ratio;      /* largest |error| / limit */
    double rms_ratio;        /* largest over tokens of rms error / predicted rms */
    uint64_t at;             /* where limit_ratio is largest */
};

/*
 * The limit of an element is the smaller of the theorem and the bound on a sum of independent rounding errors of
 * variance sigma^2, each uniform and therefore sub-Gaussian with its variance as proxy (sinh(x)/x <= exp(x^2/6)):
 * P(|error| > sigma sqrt(2 ln(2 N / p))) <= p / N, so that N = elements_of_case elements together raise a false alarm
 * with probability at most p = FALSE_ALARM_PROBABILITY. What underflow may do is added, and where sums may truncate
 * (gb_may_truncate) the mean of their errors.
 * subject: [tokens, per_token].
 */
void bound_compare(const double *subject, const struct enclosure *expected, uint32_t tokens, size_t per_token,
                   uint64_t elements_of_case, struct bound_result *r);

/* Its sqrt(2 ln(2 N / p)), and the limit of element i. */
double enclosure_deviations(uint64_t elements);
double enclosure_limit(const struct enclosure *e, size_t i, double deviations);

struct check_result {
    uint64_t compared, mismatching, max_ulp; /* bits */
    uint64_t elements, exceeding;            /* bound */
    double worst_ratio, limit_ratio, rms_ratio;
};

void check_add_bits(struct check_result *check, const struct difference *d);
void check_add_bound(struct check_result *check, const struct bound_result *r);
/* Whether nothing was compared. */
bool check_vacuous(const struct check_result *check);

#endif
