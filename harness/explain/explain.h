/* SPDX-License-Identifier: Apache-2.0 */
/* What a wrong output looks like: the planted fault, or the wrong scale, that fits its error best. docs/gates.md. */
#ifndef GB_HARNESS_EXPLAIN_EXPLAIN_H
#define GB_HARNESS_EXPLAIN_EXPLAIN_H

#include <jansson.h>

#include "harness/judge/baseline.h"

/*
 * operation: GB_LAYER or GB_DOWN, whose output was judged wrong, or GB_GATE_UP, whose intermediate was, with bounds in
 * the baseline. *explanation: "layer", "name" (empty: nothing known fits), "kind" (the name without what a smaller
 * problem renumbers), "explains" (the share of the squared error that this accounts for), "also_fits", "where",
 * "candidates"; NULL where nothing differs. text: one line of it.
 */
enum gb_status explain(const struct baseline *baseline, enum gb_operator operation, const struct gb_outputs *subject,
                       json_t **explanation, char *text, size_t bytes, struct gb_error *error);

#endif
