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
/* STUDY_ORIGINAL: of generated weights. gb_truth_threads(1) must have been called. output: [tokens, hidden].
 * GB_ENOMEM. */
enum gb_status study_truth_layer(const struct gb_fixture *fixture, uint32_t layer, enum study_truth truth,
                                 const struct study_truth_inputs *in, double *output, struct gb_error *error);

#endif
