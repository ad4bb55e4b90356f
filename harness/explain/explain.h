/* SPDX-License-Identifier: Apache-2.0 */
/* What a wrong output looks like: the injected fault, or the wrong scale, that fits its error best. docs/gates.md. */
#ifndef GB_HARNESS_EXPLAIN_EXPLAIN_H
#define GB_HARNESS_EXPLAIN_EXPLAIN_H

#include "harness/judge/baseline.h"
#include "harness/judge/case_result.h"

/*
 * operation: GB_LAYER or GB_DOWN, whose output was judged wrong, or GB_GATE_UP, whose intermediate was, with bounds in
 * the baseline. *explanation: of explanation_free; NULL where nothing differs. GB_ENOMEM.
 */
enum gb_status explain(const struct baseline *baseline, enum gb_operator operation, const struct gb_outputs *subject,
                       struct explanation **explanation, struct gb_error *error);

#endif
