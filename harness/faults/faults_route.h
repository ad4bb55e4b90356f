/* SPDX-License-Identifier: Apache-2.0 */
/* Injected faults of routers, on any fixture that has one. docs/gates.md#power. */
#ifndef GB_HARNESS_FAULTS_FAULTS_ROUTE_H
#define GB_HARNESS_FAULTS_FAULTS_ROUTE_H

#include <stdbool.h>

#include "reference/reference.h"

/* A router's results, with a mistake to be made in them. */
struct routed {
    const struct gb_arguments *arguments; /* of GB_ROUTE */
    int32_t *ids;                         /* [tokens, top_k] */
    float *weights;                       /* [tokens, top_k] */
    float *scores;                        /* [tokens, experts], before renormalisation and scaling */
    int32_t *next;                        /* [tokens]: the best expert that was not chosen; -1: there is none */
};

struct route_fault {
    const char *name;
    bool (*change)(struct gb_router *router); /* the recipe; false: it has nothing to be mistaken about */
    bool (*spoil)(struct routed *routed);     /* or the results */
    const char *modelled_on;                  /* the public bug, or what makes it likely */
};

const struct route_fault *route_faults(size_t *count);

/* contract: of the router; arguments: of GB_ROUTE, with room for its outputs, which the fault fills. *applies: whether
 * the recipe can have it.
 */
enum gb_status route_fault_run(const struct route_fault *fault, const struct gb_contract *contract,
                               const struct gb_arguments *arguments, bool *applies, struct gb_error *error);

#endif
