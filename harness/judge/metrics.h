/* SPDX-License-Identifier: Apache-2.0 */
/* Error measures. Non-finite values are counted before any norm, and are left out of none; but where both
 * sides are NaN they agree, and nothing else is said of them. */
#ifndef GB_HARNESS_JUDGE_METRICS_H
#define GB_HARNESS_JUDGE_METRICS_H

#include <stdbool.h>

#include "gaugeblock.h"

/* Distance of a subject from truth, accumulated over layers. Undefined figures are NaN. */
struct metrics {
    uint64_t elements;
    uint64_t tokens;       /* that have an element to compare */
    uint64_t non_finite;   /* subject values that are not finite where truth is */
    double cosine_min;     /* smallest over tokens */
    uint32_t cosine_token; /* where */
    double max_abs;
    double dot, subject_squares, truth_squares, error_squares;
};

void metrics_start(struct metrics *m);
/* subject, truth: [tokens, width]. */
void metrics_add(struct metrics *m, const double *subject, const double *truth, uint32_t tokens, uint32_t width);
/* cos(subject, truth) over everything added. */
double metrics_cosine(const struct metrics *m);
/* |subject - truth| / |truth|, in the L2 norm. */
double metrics_relative_l2(const struct metrics *m);
/* 20 log10(|truth| / |subject - truth|), in dB. */
double metrics_sqnr(const struct metrics *m);

/* Bit for bit: encodings are compared, NaN is a class, -0 is not +0. */
struct difference {
    uint64_t compared;
    uint64_t mismatching;
    uint64_t nan_mismatching;                /* NaN on one side only */
    uint64_t max_ulp;                        /* steps between the encodings, over pairs without NaN */
    uint64_t first;                          /* index of the first mismatch, where mismatching > 0 */
    uint32_t first_subject, first_reference; /* its encodings */
};

/* count elements of `format` (GB_FP32 or GB_BF16) on both sides. */
void difference_of(enum gb_format format, const void *subject, const void *reference, uint64_t count,
                   struct difference *d);

#endif
