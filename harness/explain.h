/* SPDX-License-Identifier: Apache-2.0 */
/* What a wrong output looks like: the planted fault, or the wrong scale, that fits its error best. docs/gates.md. */
#ifndef GB_HARNESS_EXPLAIN_H
#define GB_HARNESS_EXPLAIN_H

#include <jansson.h>

#include "harness/baseline.h"

/*
 * subject: outputs that were judged wrong, with bounds in the baseline. *explanation: "layer",
 * "name", "explains" (the share of the squared error that this accounts for), "where", "candidates"; NULL where the
 * outputs do not differ. text: one line of it.
 */
enum gb_status explain(const struct baseline *baseline, const struct gb_outputs *subject, json_t **explanation,
                       char *text, size_t bytes, struct gb_error *error);

#endif
