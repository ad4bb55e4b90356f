/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the judge: codes and scales of quantised activations. docs/gates.md#quantised-activations. */
#ifndef GB_HARNESS_JUDGE_CHECK_ACTIVATIONS_H
#define GB_HARNESS_JUDGE_CHECK_ACTIVATIONS_H

#include "harness/judge/baseline.h"
#include "harness/judge/judge.h"
#include "harness/judge/checks.h"

/*
 * One layer: what the subject hands out of them, bit for bit, whatever order its sums have: a recipe makes one code of
 * a value. x is given; the intermediate is the reference's where an order is claimed, else the subject's own, or
 * where that is not handed out truth's, give or take admissible differences.
 * GB_ENOMEM.
 */
enum gb_status check_activations(const struct baseline *baseline, uint32_t layer, const struct gb_outputs *outputs,
                                 bool ordered, struct layer_result *of_layer, struct check_result *check,
                                 struct case_result *result, struct gb_error *error);

#endif
