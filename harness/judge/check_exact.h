/* SPDX-License-Identifier: Apache-2.0 */
/* The check `exact`: where every sum is exact in any order, all correct kernels have the reference's values. */
#ifndef GB_HARNESS_JUDGE_CHECK_EXACT_H
#define GB_HARNESS_JUDGE_CHECK_EXACT_H

#include "harness/judge/case_result.h"

/* Examines one layer of the fixture, as kernels with these activations (GB_BF16, or the fixture's) get it. GB_ENOMEM.
 */
enum gb_status exact_examine(const struct gb_fixture *fixture, uint32_t layer, enum gb_format activations,
                             const struct gb_rounding_points *points, struct gb_exactness *exactness,
                             struct gb_error *error);
/* GB_EINVAL: the fixture says that it is exact (gb_generates_exact) for a contract, and is not. */
enum gb_status exact_check(const struct gb_fixture *fixture, struct gb_error *error);

/* What the baseline's rounding points make of the fixture. BAD_INPUT where it claims exactness falsely. check: given
 * zeroed. */
void exact_start(struct exact_result *check, const struct baseline *baseline, const struct policy *policy,
                 struct case_result *result);
/* One buffer of one layer, against the reference's values; zeros are equal. output: [tokens, hidden];
 * intermediate: [tokens, top_k, intermediate]. */
void exact_output(struct exact_result *check, uint32_t layer, uint32_t tokens, const struct baseline *baseline,
                  const double *output, enum gb_format format, struct case_result *result);
void exact_intermediate(struct exact_result *check, uint32_t layer, uint32_t tokens, const struct baseline *baseline,
                        const double *intermediate, struct case_result *result);
/* What is handed out of quantised activations: values of codes, values of scales. */
void exact_activations(struct exact_result *check, uint32_t layer, const struct baseline *baseline,
                       const struct gb_outputs *outputs, struct case_result *result);

#endif
