/* SPDX-License-Identifier: Apache-2.0 */
/* How operators are judged, one row each. docs/gates.md says what each check means. */
#ifndef GB_HARNESS_JUDGE_OPERATORS_H
#define GB_HARNESS_JUDGE_OPERATORS_H

#include "harness/judge/baseline.h"
#include "harness/judge/case_result.h"
#include "harness/run/operators.h"

/* Of an injected bug: what it changes, and the checks that see it. */
enum { MOST_FIGURES = 4, MOST_SEEN = 4 };
struct injected_result {
    struct {
        const char *name; /* "codes": how many of what differ from the reference's */
        uint64_t count;
    } figure[MOST_FIGURES];
    const char *seen_by[MOST_SEEN];
    uint32_t figures, seen;
};

struct operator_check {
    enum gb_operator operation;
    /* What such a kernel's outputs for the first `tokens` are held against, of the baselines and as long as they are.
     * GB_EINVAL: it is held to no contract. GB_ENOMEM. */
    enum gb_status (*baseline)(struct baselines *baselines, const struct gb_kernel *kernel, uint32_t tokens,
                               struct baseline **baseline, struct gb_error *error);
    /* kernel: what the subject claims to be. outputs: what it wrote. Adds to verdict and reason, and fills the figures.
     * GB_ENOMEM. */
    enum gb_status (*judge)(struct baseline *baseline, const struct gb_kernel *kernel, const struct gb_outputs *outputs,
                            const struct policy *policy, struct case_result *result, struct gb_error *error);
    /* Of outputs, with a bug and without, of which the former were judged; NULL: by harness/program/power.h. */
    void (*injected)(const struct gb_outputs *outputs, const struct gb_outputs *clean, const struct case_result *result,
                     struct injected_result *injected);
};

/* The row of a known operator. */
const struct operator_check *operator_check_find(enum gb_operator operation);

/*
 * One subject, one batch, all of one fixture -> one case of the record. outputs: what it wrote for the first
 * outputs->shape.tokens tokens. checks: what watching it showed, or NULL for outputs that came as a file.
 * case_result_free in any case.
 */
enum gb_status judge(struct baseline *baseline, const struct gb_kernel *kernel, const struct gb_outputs *outputs,
                     const struct worker_checks *checks, const struct policy *policy, struct case_result *result,
                     struct gb_error *error);

#endif
