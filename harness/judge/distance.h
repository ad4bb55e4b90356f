/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the judge: a subject's output in float64, and the figures of its distance from truth. */
#ifndef GB_HARNESS_JUDGE_DISTANCE_H
#define GB_HARNESS_JUDGE_DISTANCE_H

#include "fixtures/fixtures.h"
#include "harness/judge/case_result.h"

/* Values of a format widened to float64, and as stored in bf16. */
struct widened {
    double *value;  /* [count] */
    double *stored; /* [count] */
};

/* output: [count] of `format`. GB_ENOMEM; widened_free in any case. */
enum gb_status widen(enum gb_format format, const void *output, size_t count, struct widened *w,
                     struct gb_error *error);
void widened_free(struct widened *w);

void distances_start(struct distances *sum);
/* The figures of one layer go into its result, and into the sum. */
enum gb_status distances_add(struct distances *sum, const struct gb_fixture *fixture, uint32_t layer,
                             const struct gb_outputs *outputs, const struct gb_outputs *reference,
                             struct layer_result *result, struct gb_error *error);

#endif
