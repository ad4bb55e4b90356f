/* SPDX-License-Identifier: Apache-2.0 */
/* What cases of one fixture are asked for. */
#ifndef GB_HARNESS_JUDGE_CASE_REQUEST_H
#define GB_HARNESS_JUDGE_CASE_REQUEST_H

#include "harness/judge/baseline.h"
#include "harness/run/declared_precision.h"
#include "harness/judge/policy.h"
#include "harness/judge/reroute.h"
#include "harness/run/match_kernels.h"
#include "harness/run/timing.h"

struct case_request {
    const char *path; /* of the fixture */
    struct gb_fixture *fixture;
    struct baselines *baselines; /* of the fixture */
    struct rerouted *own;        /* the last routing of a subject's own, kept for others that route alike */
    const struct policy *policy;
    const char *policy_name; /* as --gate has it; NULL: the default one */
    uint32_t batches[32];
    uint32_t batch_count;
    const char *batches_text; /* as --batch has it; NULL: all tokens */
    unsigned timeout_s;
    struct timing_request timing;
    const char *limits;  /* where the limits of the check `bound` are written; NULL: not asked for */
    bool undiagnosed;    /* what fails is not explained */
    const char *minimal; /* where the smallest part that fails is written; NULL: not asked for */
};

#endif
