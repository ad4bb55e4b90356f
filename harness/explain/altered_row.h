/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: rows of weights as a kernel reads them under a finding. */
#ifndef GB_HARNESS_EXPLAIN_ALTERED_ROW_H
#define GB_HARNESS_EXPLAIN_ALTERED_ROW_H

#include "gaugeblock.h"
#include "harness/judge/finding.h"

/* Weights under a finding whose operand are weights, codes or scales, wherever its experts and rows are. */
struct altered {
    const struct gb_weights *weights;
    const struct finding *finding;
    uint32_t blocks; /* of a row */
    uint32_t *from;  /* [columns], of FINDING_BLOCKS [blocks]: which element of its row is taken */
    bool *taken;     /* [columns] */
    float *values;   /* [8, columns]: codes and scales of a row, of another one, altered ones, and those of elements */
};

/* false: no memory. altered_free in any case. */
bool altered_new(const struct gb_weights *weights, const struct finding *finding, struct altered *altered);
void altered_free(struct altered *altered);
/* What the finding adds to the values of a row: [columns]. */
void altered_row(const struct altered *altered, uint32_t expert, uint32_t row, double *added);

#endif
