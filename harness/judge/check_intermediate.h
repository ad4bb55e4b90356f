/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the judge: the lane of an intermediate's codes. docs/gates.md#stages. */
#ifndef GB_HARNESS_JUDGE_CHECK_INTERMEDIATE_H
#define GB_HARNESS_JUDGE_CHECK_INTERMEDIATE_H

#include "harness/judge/baseline.h"
#include "harness/judge/judge.h"

/* Over all layers of a case. */
struct code_lane {
    bool binding, flips_binding;       /* what fails the case: an illegal code; too many legal flips */
    uint64_t elements;                 /* of the case, which the probability of a false alarm is spread over */
    uint64_t codes, flips, illegal;    /* flips: other codes than the reference's, but legal ones */
    uint64_t counted, allowed, beyond; /* flips of tokens whose input no earlier token has; the most there may be;
                                          layers with more */
    double expected;                   /* a bound on how many there are in the mean */
};

/* One layer. intermediate: [tokens, top_k, intermediate], the subject's. GB_ENOMEM. */
enum gb_status codes_judge(struct code_lane *lane, const struct baseline *baseline, uint32_t layer, uint32_t tokens,
                           const gb_bf16 *intermediate, struct judgement *judgement, struct gb_error *error);
/* NULL if there were none. */
json_t *codes_describe(const struct code_lane *lane);

#endif
