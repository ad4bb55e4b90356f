/* SPDX-License-Identifier: Apache-2.0 */
/* Results as JSON, the form in which the record keeps them. Undefined figures are null. docs/gates.md#record. */
#ifndef GB_HARNESS_REPORT_TO_JSON_H
#define GB_HARNESS_REPORT_TO_JSON_H

#include <jansson.h>

#include "harness/judge/case_result.h"
#include "harness/judge/coverage.h"

/* A number, or null where it is not finite. */
json_t *number_to_json(double value);
/* "checks" and "metrics" of a case that was judged. */
json_t *checks_to_json(const struct case_result *result);
json_t *figures_to_json(const struct case_result *result);
json_t *explanation_to_json(const struct explanation *explanation);
json_t *minimal_to_json(const struct minimal_part *part);
json_t *timing_to_json(const struct timing *timing, bool copied);
json_t *coverage_to_json(const struct coverage *coverage);

#endif
