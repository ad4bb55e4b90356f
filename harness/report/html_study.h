/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the page of a study: what its parts share, and the answers at its top. */
#ifndef GB_HARNESS_REPORT_HTML_STUDY_H
#define GB_HARNESS_REPORT_HTML_STUDY_H

#include "harness/study/study.h"

/* Shared by the parts of one case. */
struct study_page {
    FILE *stream;
    const struct study_case *c;
    struct study_resamples resamples;
    const char *names[STUDY_PATHS];
    double *layer; /* [layers] numbers in the model */
    double *line;  /* [3, layers] scratch */
};

/* Against what errors are, in words. */
const char *study_page_against(enum study_truth truth);
/* After the last layer, of the residual streams that the paths had themselves. */
struct study_figures study_page_last(const struct study_page *p, enum study_truth truth, uint32_t path);
/* The list of answers: which path is closest, what quantised activations cost, which layer hurts most, which experts
 * changed, what the next token became. */
void study_page_answers(const struct study_page *p);

#endif
