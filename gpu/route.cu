/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/route.cuh"
#include "gpu/kernels.cuh"

namespace
{

/* How the work is divided, which no bit depends on. */
struct division {
    uint32_t tokens, blocks; /* of a cluster */
    size_t ring_bytes;
    void (*kernel)(struct gb_router, struct gb_arguments, uint64_t *);
};

template <class Shape> constexpr struct division division_of(uint32_t blocks)
{
    return {Shape::Tokens, blocks, Shape::ring_bytes, gb_route_kernel<Shape>};
}

/* What a block takes: weights under way, x of the tokens, and one token's values. */
size_t block_bytes(const struct division &by, const struct gb_shape &s, uint32_t groups)
{
    return by.ring_bytes + sizeof(gb_bf16) * by.tokens * s.hidden + gb_route_shared_bytes(s.experts, s.top_k, groups);
}

/* Clusters of 8 are every GPU's that has clusters. Hopper has larger ones, but not for many clusters at once. Alone, a
 * block has one token, whose owner it is. Experts of one token are divided among all warps of a cluster, one at a time
 * where no more fit. */
struct division divide(const struct gb_shape &s, uint32_t groups)
{
    int device = 0, major = 0, most = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) != cudaSuccess)
        return division_of<gb_route_shape<1, 1>>(1);
    const auto fits = [&](const struct division &by) { return block_bytes(by, s, groups) + 8192 <= (size_t)most; };
    const struct division several = division_of<gb_route_shape<4, 4>>(8);
    const bool clusters = gb_cuda_overlaps(several.kernel);
    if (clusters && s.tokens > several.tokens && fits(several))
        return several;
    const uint32_t blocks = !clusters ? 1 : major == 9 ? 16 : 8, each = s.experts / (blocks * gb_route_warps);
    const struct division four = division_of<gb_route_shape<1, 4>>(blocks),
                          two = division_of<gb_route_shape<1, 2>>(blocks);
    return each > 2 && fits(four) ? four : each > 1 && fits(two) ? two : division_of<gb_route_shape<1, 1>>(blocks);
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

size_t gb_cuda_route_shared(const struct gb_shape *shape, const struct gb_router *router)
{
    return block_bytes(divide(*shape, router->groups), *shape, router->groups);
}

size_t gb_cuda_told_bytes(uint32_t top_k)
{
    return sizeof(uint64_t) * gb_told_stride * 2 * top_k;
}

enum gb_status gb_cuda_route(const struct gb_arguments *a, uint64_t *told, struct gb_error *error)
{
    const struct division by = divide(a->shape, a->router->groups);
    const dim3 grid(by.blocks, (a->shape.tokens + by.tokens - 1) / by.tokens);
    const int percent = a->shape.tokens == 1 ? GB_CUDA_BESIDE_PERCENT : cudaSharedmemCarveoutDefault;
    const enum gb_status status = gb_cuda_prefer_shared("route", by.kernel, percent, error);
    return status == GB_OK ? gb_cuda_launch_cluster("route", by.kernel, by.blocks, grid, gb_route_threads,
                                                    block_bytes(by, a->shape, a->router->groups), a->stream, error,
                                                    *a->router, *a, told)
                           : status;
}
