/* SPDX-License-Identifier: Apache-2.0 */
/* Private: from one token's logits to its experts and weights, steps 2 to 8 of docs/numerics.md#route. */
#ifndef GB_REFERENCE_ROUTE_H
#define GB_REFERENCE_ROUTE_H

#include <stdbool.h>

#include "gaugeblock.h"

/* A recipe on a number of experts, and room for one token. */
struct gb_routing {
    const struct gb_router *router;
    const float *bias; /* [experts]; NULL where the recipe has none */
    struct gb_shape shape;
    float *score;   /* [experts] */
    float *choice;  /* [experts] */
    float *group;   /* [groups] */
    int32_t *order; /* [experts] */
};

/* The recipe fits the shape and has its bias. GB_EINVAL. */
enum gb_status gb_router_check(const struct gb_router *router, const float *bias, const struct gb_shape *shape,
                               struct gb_error *error);

/* How many values a group's score is the sum of. */
uint32_t gb_group_terms(const struct gb_router *router, const struct gb_shape *shape);

/* False: no memory. */
bool gb_routing_new(const struct gb_router *router, const float *bias, const struct gb_shape *shape,
                    struct gb_routing *routing);
void gb_routing_free(struct gb_routing *routing);

/* logits: [experts], dot products on entry, those of step 1 on return; ids, weights: [top_k]. */
void gb_route_token(const struct gb_routing *routing, float *logits, int32_t *ids, float *weights);

#endif
