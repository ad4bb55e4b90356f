/* SPDX-License-Identifier: Apache-2.0 */
/* How operators without layers are judged, one row each; the others go by contract (harness/judge/judge.h). */
#ifndef GB_HARNESS_JUDGE_OPERATORS_H
#define GB_HARNESS_JUDGE_OPERATORS_H

#include "harness/judge/case_result.h"

struct operator_check {
    enum gb_operator operation;
    /* The reference's outputs for the first `tokens`. GB_ENOMEM. */
    enum gb_status (*reference)(const struct gb_fixture *fixture, uint32_t tokens, struct gb_outputs **outputs,
                                struct gb_error *error);
    /* kernel: what the subject claims to be. outputs: what it wrote. Fills verdict, reason and figures. GB_ENOMEM. */
    enum gb_status (*judge)(const struct gb_fixture *fixture, const struct gb_outputs *reference,
                            const struct gb_kernel *kernel, const struct gb_outputs *outputs,
                            struct case_result *result, struct gb_error *error);
};

/* NULL: it has layers. */
const struct operator_check *operator_check_find(enum gb_operator operation);

#endif
