/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/operators.h"

#include "reference/reference.h"

#define DECLARE(NAME) extern const struct operator_check operator_check_##NAME;
GB_OPERATORS(DECLARE)
#define ROW(NAME) &operator_check_##NAME,
static const struct operator_check *const rows[] = {GB_OPERATORS(ROW)};

const struct operator_check *operator_check_find(enum gb_operator operation)
{
    size_t i = 0;
    while (rows[i]->operation != operation)
        i++;
    return rows[i];
}

enum gb_status judge(struct baseline *b, const struct gb_kernel *kernel, const struct gb_outputs *outputs,
                     const struct worker_checks *checks, const struct policy *policy, struct case_result *j,
                     struct gb_error *error)
{
    *j = (struct case_result){.verdict = VERDICT_PASS};
    if (checks)
        case_watch(j, kernel, checks);
    return operator_check_find(kernel->operation)->judge(b, kernel, outputs, policy, j, error);
}
