/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: a finding in words. */
#ifndef GB_HARNESS_EXPLAIN_FINDING_TEXT_H
#define GB_HARNESS_EXPLAIN_FINDING_TEXT_H

#include <stddef.h>

#include "harness/judge/finding.h"

/* "down_proj of expert 5, rows 128-255: multiplied by 0.5". width: of the stage's rows. */
void finding_name(const struct finding *finding, uint32_t width, char *text, size_t bytes);
/* The same without the numbers that a smaller problem changes: "down_proj of an expert, some rows: multiplied". */
void finding_kind(const struct finding *finding, uint32_t width, char *text, size_t bytes);
/* "input", "gate_up", "act", "requant", "down", "combine" */
const char *finding_stage_name(enum finding_stage stage);
/* "multiplied", "added", ... */
const char *finding_effect_name(const struct finding *finding);

#endif
