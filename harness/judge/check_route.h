/* SPDX-License-Identifier: Apache-2.0 */
/* The judge of GB_ROUTE: experts and weights against the reference's bits, and against what truth allows. */
#ifndef GB_HARNESS_JUDGE_CHECK_ROUTE_H
#define GB_HARNESS_JUDGE_CHECK_ROUTE_H

#include "harness/judge/judge.h"

/* As judge(), for outputs with ids and routing weights; adds to the judgement. The bound binds; so do the bits if an
 * order is claimed. */
enum gb_status check_route(struct baseline *baseline, const struct gb_kernel *kernel, const struct gb_outputs *outputs,
                           struct case_result *judgement, struct gb_error *error);

#endif
