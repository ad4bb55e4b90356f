/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faulty kernels by a seed: a place, an effect and a stage, planted in the reference's operators. Only the description
 * is the harness's; what it means is computed here anew. Out of memory aborts.
 */
#ifndef GB_TESTS_SUPPORT_STRUCTURED_FAULT_H
#define GB_TESTS_SUPPORT_STRUCTURED_FAULT_H

#include "harness/judge/finding.h"
#include "reference/reference.h"

/* A layer computed stage by stage. pairs = tokens * top_k. */
struct layer_stages {
    struct gb_arguments arguments;
    const char *order;
    gb_bf16 *x;            /* [pairs, hidden], each slot with the x of its token */
    float *gate, *up;      /* [pairs, intermediate] */
    gb_bf16 *intermediate; /* [pairs, intermediate] */
    float *slots;          /* [pairs, hidden] */
    float *output;         /* [tokens, hidden] */
};

void layer_stages_new(const struct gb_arguments *arguments, const char *order, struct layer_stages *stages);
void layer_stages_free(struct layer_stages *stages);
/* Computes anew what follows the array of a stage that was changed. */
void layer_stages_from(struct layer_stages *stages, enum finding_stage changed);

/* A random fault of such a layer, not always one that shows. */
void structured_fault_draw(const struct layer_stages *clean, uint64_t seed, struct finding *fault);
/* What the faulty kernel computes. output: [tokens, hidden]; intermediate: [pairs, intermediate] or NULL. */
void structured_fault_run(const struct layer_stages *clean, const struct finding *fault, float *output,
                          gb_bf16 *intermediate);

#endif
