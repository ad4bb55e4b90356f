/* SPDX-License-Identifier: Apache-2.0 */
/* Figures as JSON, the form in which the record keeps them. Undefined figures are null. */
#ifndef GB_HARNESS_REPORT_TO_JSON_H
#define GB_HARNESS_REPORT_TO_JSON_H

#include <jansson.h>

#include "fixtures/fixtures.h"
#include "harness/judge/checks.h"
#include "harness/judge/metrics.h"
#include "harness/judge/aggregate_tests.h"

/* object[group][name] = value; makes the group if it is not there. Takes the reference to value. */
void describe_into(json_t *object, const char *group, const char *name, json_t *value);
/* A number, or null where it is not finite. */
json_t *describe_number(double value);
json_t *describe_metrics(const struct metrics *m);
json_t *describe_difference(const struct difference *d, enum gb_format format, size_t per_token);
json_t *describe_bound(const struct bound_result *r, size_t per_token);
json_t *describe_bits_lane(const struct lane *lane, bool binding);
json_t *describe_bound_lane(const struct lane *lane, bool binding);
/* The rms lane, or the gain lane. */
json_t *describe_statistics(const struct statistics *s, bool gain, bool binding);
/* Sets `key` to the SHA-256 of the bytes. */
void describe_hash(json_t *object, const char *key, const void *data, size_t bytes);
/* Sets output_sha256, intermediate_sha256 and those of the activations' codes and scales of one layer, over the
 * little-endian bytes. rules: of the activations; NULL: there are none. */
void describe_hashes(json_t *object, const struct gb_layer_outputs *outputs, const struct gb_shape *shape,
                     const struct gb_quantiser *rules, bool with_output);

#endif
