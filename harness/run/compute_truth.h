/* SPDX-License-Identifier: Apache-2.0 */
/* From weights and inputs to a fixture with truth: what `make` and `import` share. */
#ifndef GB_HARNESS_RUN_COMPUTE_TRUTH_H
#define GB_HARNESS_RUN_COMPUTE_TRUTH_H

#include "fixtures/fixtures.h"

/* Where an expert's weights come from. Both functions are thread-safe. */
struct weight_source {
    void *context;
    /* One projection before quantisation. values: [rows, columns] of that projection. NULL: there is none, and truth of
     * the original is that of the codes, by their encoding scales where those were published. */
    gb_matrix_function matrix;
    /* Fills the expert's codes and scales in the fixture. */
    enum gb_status (*expert)(void *context, uint32_t layer, uint32_t expert, struct gb_error *error);
    /* The static global scales of a layer's activations, [2]; *found: whether it has any. NULL, or none found: they are
     * calibrated on the fixture's tokens. */
    enum gb_status (*scales)(void *context, uint32_t layer, float *scales, bool *found, struct gb_error *error);
};

/*
 * Fills ids and routing weights by truth's router (unless routed: they are there), the codes of every expert (of a
 * generated fixture: those its tokens use), and truth of every layer and of the stack. x, router, norm, residual and
 * attention deltas must be there already. Shows progress on stderr if that is a terminal.
 */
enum gb_status build_fixture(struct gb_fixture *fixture, const struct weight_source *source, bool routed,
                             struct gb_error *error);

/* Truth of every layer's output, of a fixture that has all its inputs and no stack; the original is that of the codes.
 */
enum gb_status compute_truth(struct gb_fixture *fixture, struct gb_error *error);

/* gb_fixture_quantise_activations, where a contract has such activations beside the weights. GB_EUNSUPPORTED: none. */
enum gb_status activations_choose(struct gb_fixture *fixture, enum gb_format activations, const char *recipe,
                                  struct gb_error *error);

#endif
