/* SPDX-License-Identifier: Apache-2.0 */
/* Routers: the reference on a changed recipe or problem. */
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/faults/faults.h"
#include "tests/support/fma32.h"

/* As the reference, but of experts that are equal the higher id ranks first: it is given the experts in reverse. */
enum gb_status run_route_tie(const struct gb_arguments *arguments, struct gb_error *error)
{
    const struct gb_shape *shape = &arguments->shape;
    struct gb_arguments reverse = *arguments;
    const gb_bf16 *rows = arguments->router_weights.codes; /* [experts, hidden] */
    gb_bf16 *router = malloc(sizeof *router * shape->experts * shape->hidden);
    float *bias = malloc(sizeof *bias * shape->experts); /* [experts] */
    enum gb_status status = router && bias ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for a copy of the router");
    for (uint32_t e = 0; status == GB_OK && e < shape->experts; e++) {
        uint32_t from = shape->experts - 1 - e;
        memcpy(router + (size_t)e * shape->hidden, rows + (size_t)from * shape->hidden, sizeof *router * shape->hidden);
        bias[e] = arguments->router_bias ? arguments->router_bias[from] : 0.0f;
    }
    reverse.router_weights.codes = router;
    reverse.router_bias = arguments->router_bias ? bias : NULL;
    if (status == GB_OK)
        status = fma32_router(&reverse, error);
    for (size_t i = 0; status == GB_OK && i < (size_t)shape->tokens * shape->top_k; i++)
        arguments->routed_ids[i] = (int32_t)shape->experts - 1 - arguments->routed_ids[i];
    free(router);
    free(bias);
    return status;
}

static enum gb_status run_by(const struct gb_arguments *arguments, const struct gb_router *router,
                             struct gb_error *error)
{
    struct gb_arguments changed = *arguments;
    changed.router = router;
    return fma32_router(&changed, error);
}

enum gb_status run_route_groups_ignored(const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_router router = *arguments->router;
    router.groups = router.kept_groups = 1;
    return run_by(arguments, &router, error);
}

enum gb_status run_route_bias_ignored(const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_router router = *arguments->router;
    router.bias = GB_ROUTER_BIAS_NONE;
    return run_by(arguments, &router, error);
}

enum gb_status run_route_unscaled(const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_router router = *arguments->router;
    router.scale = 1.0f;
    return run_by(arguments, &router, error);
}

/* The last token's last id keeps what was in the buffer. */
enum gb_status run_route_unwritten(const struct gb_arguments *arguments, struct gb_error *error)
{
    size_t last = (size_t)arguments->shape.tokens * arguments->shape.top_k - 1;
    int32_t found = arguments->routed_ids[last];
    enum gb_status status = fma32_router(arguments, error);
    arguments->routed_ids[last] = found;
    return status;
}

/* The last token's last weight keeps what was in the buffer. */
enum gb_status run_route_unwritten_weight(const struct gb_arguments *arguments, struct gb_error *error)
{
    size_t last = (size_t)arguments->shape.tokens * arguments->shape.top_k - 1;
    float found = arguments->routed_weights[last];
    enum gb_status status = fma32_router(arguments, error);
    arguments->routed_weights[last] = found;
    return status;
}

/* By so little that the next run chooses the same. */
enum gb_status run_route_changes_bias(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_router(arguments, error);
    ((uint32_t *)arguments->router_bias)[0]++;
    return status;
}

enum gb_status run_route_writes_past_end(const struct gb_arguments *arguments, struct gb_error *error)
{
    enum gb_status status = fma32_router(arguments, error);
    arguments->routed_weights[(size_t)arguments->shape.tokens * arguments->shape.top_k] = 1;
    return status;
}
