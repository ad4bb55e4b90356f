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

enum gb_status gb_cuda_route_check(const struct gb_shape *shape, const struct gb_router *r, struct gb_error *error)
{
    const struct gb_shape &s = *shape;
    if (!s.tokens || !s.hidden || !s.experts || !s.top_k || s.top_k > s.experts)
        return gb_cuda_fail(error, GB_EUNSUPPORTED,
                            "tokens %u, hidden %u, experts %u, top_k %u: every size must be at least 1 and top_k at "
                            "most experts",
                            s.tokens, s.hidden, s.experts, s.top_k);
    if (s.hidden % 8 || s.hidden > 1u << 20)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "hidden %u is no multiple of 8 up to %u", s.hidden, 1u << 20);
    if (s.tokens > 65535 || s.experts > 1u << 20) /* the grid's second dimension; sizes in 32 bits */
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "%u tokens are more than 65535, or %u experts than %u", s.tokens,
                            s.experts, 1u << 20);
    if (!r || r->size < sizeof *r)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "there is no router recipe, or an older one than this library's");
    const auto among = [](int value, int last) { return value >= 1 && value <= last; };
    if ((r->logits != GB_FP32 && r->logits != GB_BF16) || (r->weights != GB_FP32 && r->weights != GB_BF16) ||
        !among(r->bias, GB_ROUTER_BIAS_LOSSY) || !among(r->score, GB_ROUTER_SCORE_SIGMOID) ||
        !among(r->nonfinite, GB_ROUTER_NONFINITE_BIASED) || !among(r->weight, GB_ROUTER_WEIGHT_SIGMOID) ||
        !among(r->renormalise, GB_ROUTER_RENORMALISE_SCALED_DIVIDE) || !among(r->side, GB_ROUTER_ON_INPUT))
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "the router recipe has a value that this library does not know");
    if (!r->groups || s.experts % r->groups || !r->kept_groups || r->kept_groups > r->groups)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "%u of %u groups of %u experts", r->kept_groups, r->groups,
                            s.experts);
    return GB_OK;
}

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
