/* SPDX-License-Identifier: Apache-2.0 */
/* A layer that routes by itself: the launches of a router and of a layer on one stream, so that ids stay on the device.
 * Private to kernels.cu. */
#ifndef GB_GPU_ROUTED_LAYER_CUH
#define GB_GPU_ROUTED_LAYER_CUH

#include <algorithm>
#include <cstring>

#include "gpu/kernels.cuh"

/* The arguments of the layer: the ids and weights are the router's. */
inline struct gb_arguments gb_routed_arguments(const struct gb_arguments *given)
{
    struct gb_arguments a = {};
    memcpy(&a, given, std::min(given->size, sizeof a));
    a.size = sizeof a;
    a.ids = a.routed_ids;
    a.routing_weights = a.routed_weights;
    return a;
}

template <const struct gb_kernel &Router, const struct gb_kernel &Layer> struct gb_routed_layer {
    static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
    {
        struct gb_problem route = {};
        const enum gb_status status = Layer.supports(problem, error);
        if (status != GB_OK)
            return status;
        memcpy(&route, problem, std::min(problem->size, sizeof route));
        route.weights = Router.weights;
        return Router.supports(&route, error);
    }

    static enum gb_status run(const struct gb_arguments *given, struct gb_error *error)
    {
        const enum gb_status status = Router.run(given, error);
        if (status != GB_OK)
            return status;
        const struct gb_arguments a = gb_routed_arguments(given);
        return Layer.run(&a, error);
    }

    static constexpr struct gb_kernel kernel(const char *name)
    {
        struct gb_kernel k = Layer;
        k.name = name;
        k.flags |= GB_ROUTES;
        k.supports = supports;
        k.run = run; /* the workspace is the layer's: the router has none */
        return k;
    }
};

#endif
