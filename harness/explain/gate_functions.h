/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: what a kernel may compute of gate and up that is not its contract's function of them. */
#ifndef GB_HARNESS_EXPLAIN_GATE_FUNCTIONS_H
#define GB_HARNESS_EXPLAIN_GATE_FUNCTIONS_H

#include "harness/judge/finding.h"

double gate_function(enum finding_function function, double gate, double up);
/* "GELU in place of SiLU" */
const char *gate_function_name(enum finding_function function);

#endif
