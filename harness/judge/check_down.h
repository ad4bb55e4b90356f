/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the judge: down by itself, on the subject's own intermediate. docs/gates.md#stages. */
#ifndef GB_HARNESS_JUDGE_CHECK_DOWN_H
#define GB_HARNESS_JUDGE_CHECK_DOWN_H

#include "harness/judge/case_result.h"
#include "harness/judge/checks.h"
#include "harness/judge/aggregate_tests.h"

/* Why sums of errors say nothing of down alone; NULL: they do. */
const char *down_without_sums(const struct gb_rounding_points *points, bool nonfinite);
/* One layer. codes: [tokens, top_k, intermediate], what down read; output: [tokens, hidden], what it made of them. */
enum gb_status check_down(struct down_result *check, const struct baseline *baseline, uint32_t layer, uint32_t tokens,
                          const gb_bf16 *codes, const double *output, struct case_result *result,
                          struct gb_error *error);
/* Of a subject that claims an order: the bits of the reference's down on the subject's codes, as subject_reference.down
 * of the layer's result. For a case that has failed: it says which stage is at fault. */
enum gb_status down_compare(const struct baseline *baseline, uint32_t layer, uint32_t tokens, const gb_bf16 *codes,
                            enum gb_format format, const void *output, struct layer_result *of_layer,
                            struct case_result *result, struct gb_error *error);

#endif
