/* SPDX-License-Identifier: Apache-2.0 */
/* Private: what is kept of one token's residual stream. */
#ifndef GB_HARNESS_STUDY_MEASURE_H
#define GB_HARNESS_STUDY_MEASURE_H

#include "harness/study/study.h"

/* Enters state against right, both [hidden], into the figures of a case of one layer; max_abs, max_ulp and ulps of the
 * path must be numbers. */
void study_measure_token(struct study_case *c, enum study_mode mode, enum study_truth truth, uint32_t path,
                         uint32_t sample, const double *state, const double *right);
/* |a - b|^2 */
double study_distance2(const double *a, const double *b, uint32_t count);
/* Whether both are the same set. a, b: [top_k] */
bool study_same_experts(const int32_t *a, const int32_t *b, uint32_t top_k);

#endif
