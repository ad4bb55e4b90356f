/* SPDX-License-Identifier: Apache-2.0 */
/* A fixture under the routing that a subject handed out, so that the FFN is judged apart from the router. */
#ifndef GB_HARNESS_JUDGE_REROUTE_H
#define GB_HARNESS_JUDGE_REROUTE_H

#include "harness/judge/baseline.h"

struct rerouted {
    struct gb_fixture fixture; /* inputs and weights are those of the fixture it was made of; ids, routing weights and
                                  truth its own, of the tokens of the outputs */
    struct baselines baselines;
};

/* Tokens of all layers by how their routing differs from the fixture's, each counted once. */
struct routing_difference {
    uint32_t sets;    /* other experts */
    uint32_t weights; /* the same experts, other weights */
    uint32_t order;   /* the same experts with the same weights, in other slots */
    uint64_t max_ulp; /* of `weights`: the largest difference of an expert's two weights, in ulp of FP32 */
};

/* outputs: with routing. Returns how many tokens differ in any way. */
uint32_t routing_difference(const struct gb_fixture *fixture, const struct gb_outputs *outputs,
                            struct routing_difference *difference);
/* False if an id is no expert, or a token's twice, or a weight beyond what a router gives or, unless the fixture is
 * marked nonfinite, NaN. */
bool can_be_rerouted(const struct gb_fixture *fixture, const struct gb_outputs *outputs);
/* Whether it is the routing of these outputs, or of more tokens of which these are the first. Zeroed: false. */
bool rerouted_covers(const struct rerouted *rerouted, const struct gb_outputs *outputs);
/* Experts that a generated fixture lacks are generated; truth from the weights before quantisation is not known.
 * rerouted: of rerouted_free, which is called in any case. */
enum gb_status reroute(struct gb_fixture *fixture, const struct gb_outputs *outputs, struct rerouted *rerouted,
                       struct gb_error *error);
void rerouted_free(struct rerouted *rerouted);

#endif
