/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The judge: one subject, one batch, all layers of one fixture -> one case of the record.
 * docs/gates.md says what each check means.
 */
#ifndef GB_HARNESS_JUDGE_JUDGE_H
#define GB_HARNESS_JUDGE_JUDGE_H

#include "harness/judge/baseline.h"
#include "harness/judge/case_result.h"

/*
 * kernel: what the subject claims to be. outputs: what it wrote for the first outputs->shape.tokens tokens.
 * checks: what watching it showed, or NULL for outputs that came as a file. case_result_free in any case.
 */
enum gb_status judge(struct baseline *baseline, const struct gb_kernel *kernel, const struct gb_outputs *outputs,
                     const struct worker_checks *checks, const struct policy *policy, struct case_result *result,
                     struct gb_error *error);

/* What the subject's residual stream shows, of outputs with a stack; into result->drift. */
enum gb_status evaluate_drift(const struct baseline *baseline, const struct gb_kernel *kernel,
                              const struct gb_outputs *outputs, struct case_result *result, struct gb_error *error);

#endif
