/* SPDX-License-Identifier: Apache-2.0 */
/* What subjects on one fixture are judged against: the reference's bits, and bounds around truth. */
#ifndef GB_HARNESS_BASELINE_H
#define GB_HARNESS_BASELINE_H

#include "fixtures/fixtures.h"
#include "reference/reference.h"

/* What a subject's results for one layer, all tokens, are held against. */
struct layer_bounds {
    struct gb_bounds of;
    struct gb_bounds down; /* with quantised activations: output_* of down by itself, on the codes that truth has */
    struct gb_moments moments;
    struct gb_exactness exactness;
};

struct baseline {
    const struct gb_fixture *fixture;
    enum gb_format activations;       /* of its contract: GB_BF16, or the fixture's */
    struct baseline *plain;           /* that with bf16 activations, where this one quantises them; otherwise NULL */
    struct gb_outputs *reference;     /* all tokens, with intermediate, and stack where the fixture has one */
    struct gb_rounding_points points; /* what bounds were computed for */
    bool stages;                      /* whether they have unrounded_typical */
    struct layer_bounds *bounds;      /* [layers]; NULL until baseline_bounds */
};

/* Runs the reference on every layer and, if there is one, on the stack. */
enum gb_status baseline_new(const struct gb_fixture *fixture, struct baseline *baseline, struct gb_error *error);
/* The same with the fixture's quantised activations; plain must live as long. */
enum gb_status baseline_new_quantised(struct baseline *plain, struct baseline *baseline, struct gb_error *error);
/* Inputs and weights of one layer, all tokens; outputs NULL. */
struct gb_arguments baseline_arguments(const struct baseline *baseline, uint32_t layer);
/* What down multiplies with, as the kernel takes it for the bounds' rounding points. routing_weights: [tokens, top_k].
 */
void baseline_routing_weights(const struct baseline *baseline, uint32_t layer, uint32_t tokens,
                              double *routing_weights);
void baseline_free(struct baseline *baseline);
/* Makes baseline->bounds hold for these rounding points; stages: of a subject that hands out its intermediate. */
enum gb_status baseline_bounds(struct baseline *baseline, const struct gb_rounding_points *points, bool stages,
                               struct gb_error *error);

#endif
