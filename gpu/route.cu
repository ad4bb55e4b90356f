/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/route.cuh"
#include "gpu/kernels.cuh"

namespace
{

/* Few tokens: an expert to a warp, so that every multiprocessor has a block. Several: two tokens share the weights. */
using few = gb_route_tile<32, 1, 128, 4, 1>;
using several = gb_route_tile<16, 2, 128, 32, 2>;
constexpr uint32_t few_tokens = 4;

template <class Tile> enum gb_status launch_logits(const struct gb_arguments &a, struct gb_error *error)
{
    const dim3 grid((a.shape.experts + Tile::Block - 1) / Tile::Block,
                    (a.shape.tokens + Tile::Tokens - 1) / Tile::Tokens);
    return gb_cuda_launch("route logits", gb_logits_kernel<Tile>, grid, Tile::Threads,
                          gb_logits_shared_bytes<Tile>(a.shape.hidden), a.stream, error, a, (float *)a.workspace);
}

} // namespace

size_t gb_cuda_route_workspace(const struct gb_shape *shape)
{
    return sizeof(float) * shape->tokens * shape->experts;
}

size_t gb_cuda_route_shared(const struct gb_shape *shape, const struct gb_router *router)
{
    const size_t logits = shape->tokens <= few_tokens ? gb_logits_shared_bytes<few>(shape->hidden)
                                                      : gb_logits_shared_bytes<several>(shape->hidden);
    const size_t token = gb_route_shared_bytes(shape->experts, shape->top_k, router->groups);
    return logits > token ? logits : token;
}

enum gb_status gb_cuda_route(const struct gb_arguments *a, struct gb_error *error)
{
    enum gb_status status =
        a->shape.tokens <= few_tokens ? launch_logits<few>(*a, error) : launch_logits<several>(*a, error);
    if (status != GB_OK)
        return status;
    return gb_cuda_launch("route", gb_route_kernel, dim3(a->shape.tokens), 32,
                          gb_route_shared_bytes(a->shape.experts, a->shape.top_k, a->router->groups), a->stream, error,
                          *a->router, *a, (const float *)a->workspace);
}
