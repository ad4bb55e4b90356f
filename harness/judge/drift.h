/* SPDX-License-Identifier: Apache-2.0 */
/* Drift as figures: the residual stream after each layer, of the subject and of the reference, against truth's. */
#ifndef GB_HARNESS_JUDGE_DRIFT_H
#define GB_HARNESS_JUDGE_DRIFT_H

#include "fixtures/fixtures.h"
#include "harness/judge/judge.h"

/*
 * *drift, [layers] and allocated in any case: the distance of both streams from truth, and how many tokens each routed
 * to a set of experts other than truth's. outputs: a prefix of the fixture's tokens; the baseline's are all of them;
 * both with a stack.
 */
enum gb_status drift_measure(const struct baseline *baseline, const struct gb_outputs *outputs,
                             struct drift_result **drift, struct gb_error *error);
/* The residual stream: its bits if an order is claimed, and numbers in any case. */
void drift_evaluate(const struct baseline *baseline, const struct gb_outputs *outputs, bool ordered,
                    struct case_result *result);

#endif
