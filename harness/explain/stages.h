/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: every array of a diagnosis's layer in float64, and what a finding makes of them. */
#ifndef GB_HARNESS_EXPLAIN_STAGES_H
#define GB_HARNESS_EXPLAIN_STAGES_H

#include "harness/explain/hypothesis.h"
#include "harness/judge/finding.h"

/* pairs = tokens * top_k. */
struct stages {
    const struct diagnosis *diagnosis;
    uint32_t tokens, top_k, pairs, hidden, intermediate, experts;
    const int32_t *ids; /* [pairs] */
    double *x;          /* [pairs, hidden], as gate_up reads it */
    double *gate, *up;  /* [pairs, intermediate] */
    double *act;        /* [pairs, intermediate], the bf16 intermediate */
    double *requant;    /* [pairs, intermediate], what down multiplies; act where nothing is quantised */
    double *slots;      /* [pairs, hidden] */
    double *weights;    /* [pairs] */
    double *output;     /* [tokens, hidden] */
};

enum gb_status stages_new(const struct diagnosis *diagnosis, struct stages *stages, struct gb_error *error);
void stages_free(struct stages *stages);

/* The array of a stage, and its width; of FINDING_GATE_UP that of gate. */
const double *stages_array(const struct stages *stages, enum finding_stage stage, uint32_t *width);
/* Rows of a stage have a row for each slot; those of the output one for each token. */
static inline bool stage_has_slots(enum finding_stage stage)
{
    return stage != FINDING_COMBINE;
}
bool stages_hit(const struct stages *stages, const struct finding *finding, size_t pair);
/* Whether the effect is another expert's weights, and which expert that is for a pair of expert `id`. */
static inline bool effect_names_expert(enum finding_effect effect)
{
    return effect == FINDING_EXPERT || effect == FINDING_EXPERT_OF || effect == FINDING_EXCHANGED;
}
uint32_t stages_expert(const struct stages *stages, const struct finding *finding, int32_t id);

/* What the effect makes of element i of a row, wherever its place is. rows: [count rows, width], `per_token` of them a
 * token. */
double effect_of(const struct finding *finding, const double *rows, size_t count, size_t per_token, size_t width,
                 size_t row, size_t i);

/* The same of a pair of the diagnosis, whose expert's list the finding may name. rows: [pairs, width]. */
double stages_effect(const struct stages *stages, const struct finding *finding, const double *rows, size_t width,
                     size_t pair, size_t i);

/*
 * The rows of what down multiplies (the bf16 intermediate, requantised where the contract does so) under a finding of
 * a stage up to FINDING_REQUANT, for the pairs asked for, [pairs]; other rows are the clean ones.
 * operand: [pairs, intermediate].
 */
enum gb_status stages_operand(const struct stages *stages, const struct finding *finding, const bool *asked,
                              double *operand, struct gb_error *error);
/* What down makes of rows of the intermediate, [count, intermediate], and gate_up of rows of x, [count, hidden]. */
enum gb_status stages_requantise(const struct stages *stages, const gb_bf16 *rows, uint32_t count, double *values,
                                 struct gb_error *error);
enum gb_status stages_read(const struct stages *stages, const gb_bf16 *rows, uint32_t count, double *values,
                           struct gb_error *error);
/* The results under a finding, computed by the operators of the contract. results: [rows, width]. */
enum gb_status stages_plant(const struct stages *stages, const struct finding *finding, float *results,
                            struct gb_error *error);

#endif
