/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the judge: the check of an intermediate's codes. docs/gates.md#stages. */
#ifndef GB_HARNESS_JUDGE_CHECK_INTERMEDIATE_H
#define GB_HARNESS_JUDGE_CHECK_INTERMEDIATE_H

#include "harness/judge/baseline.h"
#include "harness/judge/case_result.h"

/* One layer. intermediate: [tokens, top_k, intermediate], the subject's. GB_ENOMEM. */
enum gb_status check_intermediate(struct codes_result *check, const struct baseline *baseline, uint32_t layer,
                                  uint32_t tokens, const gb_bf16 *intermediate, struct case_result *result,
                                  struct gb_error *error);

#endif
