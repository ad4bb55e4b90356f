/* SPDX-License-Identifier: Apache-2.0 */
/* Results as JSON, the form in which the record keeps them. Undefined figures are null. docs/gates.md#record. */
#ifndef GB_HARNESS_REPORT_TO_JSON_H
#define GB_HARNESS_REPORT_TO_JSON_H

#include <jansson.h>

#include "harness/judge/case_result.h"
#include "harness/judge/coverage.h"

/* A number, or null where it is not finite. */
json_t *describe_number(double value);
/* "checks" and "metrics" of a case that was judged. */
json_t *describe_checks(const struct case_result *result);
json_t *describe_figures(const struct case_result *result);
json_t *describe_explanation(const struct explanation *explanation);
json_t *describe_minimal(const struct minimal_part *part);
json_t *describe_timing(const struct timing *timing);
json_t *describe_coverage(const struct coverage *coverage);

#endif
