/* SPDX-License-Identifier: Apache-2.0 */
/* What truth and bounds take for the inputs of a layer. */
#ifndef GB_HARNESS_RUN_LAYER_INPUTS_H
#define GB_HARNESS_RUN_LAYER_INPUTS_H

#include "fixtures/fixtures.h"

/*
 * x: [tokens, hidden]; routing_weights: [tokens, top_k]: truth's, or as a kernel has them that rounds them to
 * `rounded`. With apply_router_weight_on_input they have gone into x, and are 1.
 */
void layer_inputs(const struct gb_fixture *fixture, uint32_t layer, enum gb_format rounded, double *x,
                  double *routing_weights);

#endif
