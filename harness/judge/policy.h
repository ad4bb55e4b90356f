/* SPDX-License-Identifier: Apache-2.0 */
/* What a subject must pass: which lanes bind, and thresholds of somebody's policy. docs/gates.md#gate-files. */
#ifndef GB_HARNESS_JUDGE_POLICY_H
#define GB_HARNESS_JUDGE_POLICY_H

#include <jansson.h>
#include <stdbool.h>

#include "harness/judge/metrics.h"

struct gate {
    char name[64];
    bool exact, bound, rms, gain; /* lanes that bind; bits binds wherever an order is claimed */
    /* Thresholds of the subject against truth/quantised, over all layers; NaN where there is none. */
    double cosine, cosine_min, max_abs, nmse;
    double atol, rtol, fraction; /* |error| <= atol + rtol |truth| on at least this fraction of the elements */
    bool either;                 /* or: |error| <= atol or |error| <= rtol |truth| */
    bool by_subject;             /* nmse and rtol are relative to the subject's values, not to truth's */
};

/* A preset by its name, otherwise a JSON file. GB_EIO, GB_EFORMAT: one line that names file, key and mend. */
enum gb_status gate_read(const char *name_or_path, struct gate *gate, struct gb_error *error);
/* Presets in the order of docs/gates.md, the first being "default": every lane, no threshold. False past the last
 * one. */
bool gate_preset(unsigned index, struct gate *gate);
/* As a gate file would have it. */
json_t *gate_json(const struct gate *gate);

/* What the thresholds of one gate look at, added up over layers, for the subject, and for
 * zeros, for -truth and for -truth many times as large in its place. */
struct closeness {
    const struct gate *gate;
    struct metrics subject, zeros, negated, huge;
    uint64_t subject_close, zeros_close, negated_close, huge_close; /* elements within atol and rtol */
};

void gate_start(const struct gate *gate, struct closeness *c);
/* subject, truth: [tokens, width]. */
void gate_compare(struct closeness *c, const double *subject, const double *truth, uint32_t tokens, uint32_t width);
/* The first threshold that is missed; NULL if none is. A figure that is not defined is missed. */
const char *gate_missed(const struct closeness *c);
/* What is wrong and would meet them all, if the gate has thresholds and nothing else: "zeros", "truth of the wrong
 * sign", or "huge values"; NULL if none would. */
const char *gate_vacuous(const struct closeness *c);
/* One threshold and the figure held against it. */
struct threshold_check {
    const char *name;
    double value, limit;
    bool at_least;
};
enum { MOST_THRESHOLDS = 5 };
/* The thresholds that the gate has; returns how many. */
size_t gate_checks(const struct closeness *c, struct threshold_check checks[MOST_THRESHOLDS]);
/* NaN meets none. */
bool threshold_met(const struct threshold_check *check);

#endif
