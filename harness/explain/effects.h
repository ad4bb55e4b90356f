/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: what became of an array of which some rows are known. */
#ifndef GB_HARNESS_EXPLAIN_EFFECTS_H
#define GB_HARNESS_EXPLAIN_EFFECTS_H

#include "harness/explain/stages.h"

/* Rows of the array of a stage as the subject must have had them. */
struct observed {
    enum finding_stage stage;
    const double *clean; /* [count, width] */
    size_t count, per_token, width;
    uint32_t rows;        /* of those known */
    const uint32_t *row;  /* [rows], which */
    const double *values; /* [rows, width] */
    double tolerance;     /* of a value, and */
    double relative;      /* in units of the value itself */
};

/* Tiles and exchanged rows are no larger: those of a warp. */
enum { MOST_TILED = 32 };

/* Findings whose effect makes of the wrong elements what was seen, in the order of simplicity, with the elements' axis
 * but no tokens, slots or experts. Returns how many, at most `most`. */
uint32_t effects_infer(const struct observed *observed, struct finding *findings, uint32_t most);
/* The same for one given effect on the array `made` [rows, width], by which `clean` rows would become. */
bool effect_fits(const struct observed *observed, const double *made, struct finding *finding);

#endif
