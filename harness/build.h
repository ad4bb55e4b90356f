/* SPDX-License-Identifier: Apache-2.0 */
/* From weights and inputs to a fixture with truth: what `make` and `import` share. */
#ifndef GB_HARNESS_BUILD_H
#define GB_HARNESS_BUILD_H

#include "fixtures/fixtures.h"

/* The weights before quantisation. */
struct weight_source {
    void *context;
    /* One expert's projection of fixture layer `layer`. values: [rows, columns] of that projection. Thread-safe. */
    enum gb_status (*matrix)(void *context, uint32_t layer, uint32_t expert, enum gb_projection projection,
                             float *values, struct gb_error *error);
};

/*
 * Quantises every expert by the fixture's recipe, routes by truth (ids and routing weights; the FP32 weights are
 * truth's rounded once), and fills truth of every layer and of the stack. x, router, norm, residual and attention
 * deltas must be there already. Shows progress on stderr if that is a terminal.
 */
enum gb_status build_fixture(struct gb_fixture *fixture, const struct weight_source *source, struct gb_error *error);

#endif
