/* SPDX-License-Identifier: Apache-2.0 */
/* Problems with their bounds, and subjects held to them. */
#ifndef GB_TESTS_SUPPORT_BOUNDS_CASE_H
#define GB_TESTS_SUPPORT_BOUNDS_CASE_H

#include "reference/reference.h"
#include "tests/support/valid_kernels.h"
#include "tests/support/problem.h"

static const struct gb_rounding_points points_bf16_fp32 = {
    .intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
static const struct gb_rounding_points points_bf16_bf16 = {
    .intermediate = GB_BF16, .output = GB_BF16, .accumulator_bits = 24};
static const struct gb_rounding_points points_fp32_fp32 = {
    .intermediate = GB_FP32, .output = GB_FP32, .accumulator_bits = 24};

/* A problem with its truth, its bounds and room for a subject's results. */
struct bounded {
    struct problem problem;
    struct gb_truth_quantised weights;
    struct gb_truth_source source;
    size_t outputs, intermediates;
    double *truth, *worst, *sigma, *output;             /* [tokens, hidden] */
    double *truth_h, *worst_h, *sigma_h, *intermediate; /* [tokens, top_k, intermediate] */
};

struct ratios {
    double output, intermediate;
};

void bounded_new(struct bounded *b, struct gb_shape shape, enum gb_format format, enum data data, uint64_t seed);
/* Gives it biases and an activation. */
void bounded_extend(struct bounded *b, enum gb_activation activation, uint64_t seed);
void bounded_free(struct bounded *b);
/* Computes truth and the bounds of a kernel with these rounding points. */
void bound(struct bounded *b, const struct gb_rounding_points *points);
/* The reference as the subject: bf16 intermediate, FP32 output. */
void run_reference(struct bounded *b);
/* The largest |values - truth| / limit. */
double largest_ratio(const double *values, const double *truth, const double *limit, size_t count);
/* The subject's results are within the bounds; `largest` becomes the largest ratio seen. */
void expect_within(const struct bounded *b, const char *what, struct ratios *largest);
/* All valid ways to compute one problem. */
void check_every_order(struct bounded *b, const struct gb_rounding_points *points, uint64_t seed,
                       struct ratios *largest);

#endif
