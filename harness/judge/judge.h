/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of operators that compute experts: all layers of one fixture. */
#ifndef GB_HARNESS_JUDGE_JUDGE_H
#define GB_HARNESS_JUDGE_JUDGE_H

#include "harness/judge/operators.h"

/* What the subject's residual stream shows, of outputs with a stack; into result->drift. */
enum gb_status evaluate_drift(const struct baseline *baseline, const struct gb_kernel *kernel,
                              const struct gb_outputs *outputs, struct case_result *result, struct gb_error *error);

#endif
