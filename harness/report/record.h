/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a run: JSON, from which every other report is drawn. docs/gates.md#record. */
#ifndef GB_HARNESS_REPORT_RECORD_H
#define GB_HARNESS_REPORT_RECORD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "fixtures/fixtures.h"
#include "harness/judge/case_result.h"
#include "harness/judge/coverage.h"
#include "harness/run/json_text.h"

#define RECORD_SCHEMA "gaugeblock-record/2"
#define RECORD_SCHEMA_BEFORE "gaugeblock-record/1"

/* Schema, command line and environment: what every JSON of the program begins with. */
json_t *record_begin(const char *schema, int argc, char **argv);
/* An empty record of the command `argv`. */
json_t *record_new(int argc, char **argv);
/* The fixture as a case names it. */
json_t *record_fixture(const char *path, const struct gb_fixture *fixture);
/* A file by its path and SHA-256. */
json_t *record_file(const char *path);
/* What the cases of a run come to. */
struct run_totals {
    enum verdict verdict; /* the gravest */
    size_t cases, judged, passed, failed, minimised;
};
/* Appends the cases of one fixture; NULL: it was refused. */
void record_cases(json_t *record, const char *path, const struct gb_fixture *fixture, const struct case_list *cases,
                  struct run_totals *totals);
/* Appends what a fixture's cases exercised. */
void record_coverage(json_t *record, const char *path, const char *sha256, uint32_t tokens,
                     const struct coverage *coverage);
/* Checks --expect (negative: not given) and sets summary, verdict and exit_code. */
enum verdict record_finish(json_t *record, const struct run_totals *totals, long long expect, double seconds);

/* Whether `path` ends in .json, .xml or .md. */
bool report_known(const char *path);
/* Writes the record in the form its extension names. Temporary name, then rename. */
enum gb_status report_write(const char *path, const json_t *record, struct gb_error *error);
/* The same, but for what is written; false: it could not be. */
typedef bool report_writer(FILE *stream, const char *path, const json_t *record);
enum gb_status report_write_by(report_writer *write, const char *path, const json_t *record, struct gb_error *error);
/* For people; verbose: with all figures. */
void report_table(FILE *stream, const json_t *record, bool verbose);
/* "fixture.h5 batch 8", "fixture.h5 batch 8 route": what tells cases of one subject apart. A file that was refused has
 * no batch. */
void record_case_name(const json_t *one, char *text, size_t bytes);
/* JUnit XML and Markdown into an open stream; false if writing failed. */
bool report_junit(FILE *stream, const json_t *record);
bool report_markdown(FILE *stream, const json_t *record);

/* The largest error of a layer's output, or of what else it hands out, as a fraction of its bound; infinite for
 * NaN; NaN: not judged. */
double record_layer_bound_ratio(const json_t *layer);
/* How many elements of all that a layer hands out differ from the reference in any bit. */
double record_layer_mismatches(const json_t *layer);
/* The largest of a case's layers. */
double record_bound_ratio(const json_t *one);
/* A string of the record, "" if it is not there. The path's last argument is NULL. */
const char *record_text(const json_t *object, ...) __attribute__((sentinel));
/* A number of the record, NaN if it is not there or null. */
double record_number(const json_t *object, ...) __attribute__((sentinel));

#endif
