/* SPDX-License-Identifier: Apache-2.0 */
/* Private: truth of one layer, the same bits with any number of threads. */
#ifndef GB_HARNESS_STUDY_TRUTH_H
#define GB_HARNESS_STUDY_TRUTH_H

#include "harness/study/study.h"

struct study_truth_inputs {
    uint32_t tokens;
    const double *x;       /* [tokens, hidden] */
    const int32_t *ids;    /* [tokens, top_k] */
    const double *weights; /* [tokens, top_k] */
};
/* The layer's output is the sum of so many shares, whatever the number of threads and ranks: share s is that of the
 * experts e with e % STUDY_TRUTH_SHARES == s. */
enum { STUDY_TRUTH_SHARES = 8 };
/* Those shares that are `mine`; the others are not written. STUDY_ORIGINAL: of generated weights. gb_truth_threads(1)
 * must have been called. shares: [STUDY_TRUTH_SHARES, tokens, hidden]. GB_ENOMEM. */
enum gb_status study_truth_shares(const struct gb_fixture *fixture, uint32_t layer, enum study_truth truth,
                                  const struct study_truth_inputs *in, const bool mine[STUDY_TRUTH_SHARES],
                                  double *shares, struct gb_error *error);
/* Their sum. output: [count] */
void study_truth_sum(const double *shares, size_t count, double *output);

#endif
