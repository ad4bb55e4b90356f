/* SPDX-License-Identifier: Apache-2.0 */
/* A fixture under the routing that a subject handed out, so that the FFN is judged apart from the router. */
#ifndef GB_HARNESS_REROUTE_H
#define GB_HARNESS_REROUTE_H

#include "harness/baseline.h"

struct rerouted {
    struct gb_fixture
        fixture; /* the tokens of the outputs; inputs and weights are those of the fixture it was made of */
    struct baseline baseline;
    struct baseline quantised; /* with the fixture's quantised activations, if asked for */
    uint32_t tokens;           /* of all layers, that were sent elsewhere or weighed otherwise than by the fixture */
};

/* How many they are; ids and weights bit for bit, in slot order. outputs: with routing. */
uint32_t rerouted_tokens(const struct gb_fixture *fixture, const struct gb_outputs *outputs);
/* False if an id is no expert, or a token's twice, or a weight beyond what a router gives or, unless the fixture is
 * marked nonfinite, NaN. */
bool can_be_rerouted(const struct gb_fixture *fixture, const struct gb_outputs *outputs);
/* Ids, weights and truth are the subject's; experts that a generated fixture lacks are generated; truth from the
 * weights before quantisation is not known. rerouted_free in any case. */
enum gb_status reroute(struct gb_fixture *fixture, const struct gb_outputs *outputs, bool quantised,
                       struct rerouted *rerouted, struct gb_error *error);
void rerouted_free(struct rerouted *rerouted);

#endif
