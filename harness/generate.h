/* SPDX-License-Identifier: Apache-2.0 */
/* Data kind `gaussian` as inputs and weights of a fixture: docs/fixtures.md#generators. */
#ifndef GB_HARNESS_GENERATE_H
#define GB_HARNESS_GENERATE_H

#include "harness/build.h"

/* Fills x, router, norm and the residual from the fixture's seed. */
enum gb_status generate_inputs(struct gb_fixture *fixture, struct gb_error *error);
/* x only, for an import without a capture. */
enum gb_status generate_x(struct gb_fixture *fixture, struct gb_error *error);
/* The residual stream only, likewise. */
enum gb_status generate_residual(struct gb_fixture *fixture, struct gb_error *error);
/* The weights of the fixture's seed and shape. */
struct weight_source generate_weights(struct gb_fixture *fixture);

#endif
