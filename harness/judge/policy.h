/* SPDX-License-Identifier: Apache-2.0 */
/* What a subject must pass: which checks bind, and thresholds of somebody's policy. docs/gates.md#gate-files. */
#ifndef GB_HARNESS_JUDGE_POLICY_H
#define GB_HARNESS_JUDGE_POLICY_H

#include <jansson.h>
#include <stdbool.h>

#include "harness/judge/metrics.h"

struct policy {
    char name[64];
    bool exact, bound, rms, scale; /* checks that bind; bits binds wherever an order is claimed */
    /* Thresholds of the subject against truth/quantised, over all layers; NaN where there is none. */
    double cosine, cosine_min, max_abs, nmse;
    double atol, rtol, fraction; /* |error| <= atol + rtol |truth| on at least this fraction of the elements */
    bool either;                 /* or: |error| <= atol or |error| <= rtol |truth| */
    bool by_subject;             /* nmse and rtol are relative to the subject's values, not to truth's */
};

/* A preset by its name, otherwise a JSON file. GB_EIO, GB_EFORMAT: one line that names file, key and mend. */
enum gb_status policy_read(const char *name_or_path, struct policy *policy, struct gb_error *error);
/* Presets in the order of docs/gates.md, the first being "default": every check, no threshold. False past the last
 * one. */
bool policy_preset(unsigned index, struct policy *policy);
/* As a gate file would have it. */
json_t *policy_json(const struct policy *policy);

/* What the thresholds of one policy look at, added up over layers, for the subject, and for
 * zeros, for -truth and for -truth many times as large in its place. */
struct closeness {
    const struct policy *policy;
    struct metrics subject, zeros, negated, huge;
    uint64_t subject_close, zeros_close, negated_close, huge_close; /* elements within atol and rtol */
};

void policy_start(const struct policy *policy, struct closeness *c);
/* subject, truth: [tokens, width]. */
void policy_compare(struct closeness *c, const double *subject, const double *truth, uint32_t tokens, uint32_t width);
/* The first threshold that is missed; NULL if none is. A figure that is not defined is missed. */
const char *policy_missed(const struct closeness *c);
/* What is wrong and would meet them all, if the policy has thresholds and nothing else: "zeros", "truth of the wrong
 * sign", or "huge values"; NULL if none would. */
const char *policy_vacuous(const struct closeness *c);
/* One threshold and the figure held against it. */
struct threshold_check {
    const char *name;
    double value, limit;
    bool at_least;
};
enum { MOST_THRESHOLDS = 5 };
/* The thresholds that the policy has; returns how many. */
size_t policy_checks(const struct closeness *c, struct threshold_check checks[MOST_THRESHOLDS]);
/* NaN meets none. */
bool threshold_met(const struct threshold_check *check);

#endif
