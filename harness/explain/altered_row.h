/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: rows of weights as a kernel reads them under a finding. */
#ifndef GB_HARNESS_EXPLAIN_ALTERED_ROW_H
#define GB_HARNESS_EXPLAIN_ALTERED_ROW_H

#include "gaugeblock.h"
#include "harness/judge/finding.h"

/* What the finding, whose operand are weights, codes or scales, adds to the values of a row, wherever its experts and
 * rows are. values: [columns]; scratch: [4 * columns]. */
void altered_row(const struct gb_weights *weights, const struct finding *finding, uint32_t expert, uint32_t row,
                 float *scratch, double *added);

#endif
