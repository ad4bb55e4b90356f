/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of the router: docs/numerics.md#route.
 *
 * A cluster of blocks has a few tokens. Each block computes the logits of some experts, a warp up to four at a time,
 * and sends them to the shared memory of the block that owns the token; when all are there, the owner takes them to ids
 * and weights. Of one token and a softmax (gb_ranks_early), the others have all logits, too, and find by them who is
 * chosen, while the owner adds the terms. Where the GPU has no clusters, a block is alone and does all.
 */
#ifndef GB_GPU_ROUTE_CUH
#define GB_GPU_ROUTE_CUH

#include <cfloat>

#include "gpu/route_token.cuh"

/* Cluster y: tokens y * Tokens .. told: NULL, or of one token, where the next kernels hear ids and weights. */
template <class Shape>
__global__ void __launch_bounds__(gb_route_threads) __maxnreg__(Shape::registers)
    gb_route_kernel(const __grid_constant__ struct gb_router router, const __grid_constant__ struct gb_arguments a,
                    uint64_t *told)
{
    constexpr uint32_t Tokens = Shape::Tokens, Rows = Shape::Rows;
    extern __shared__ float4 shared[];
    __shared__ uint64_t sent[2]; /* logits, and keys of the chosen */
    const uint32_t experts = a.shape.experts, top_k = a.shape.top_k, first = blockIdx.y * Tokens;
    const uint32_t tokens = min(Tokens, a.shape.tokens - first), rank = gb_cluster_rank(), size = gb_cluster_size();
    uint4 *ring = (uint4 *)shared, *staged = ring + Shape::ring_bytes / sizeof(uint4);
    const gb_cuda_token t =
        gb_token_at((char *)(staged + Tokens * gb_chunks<gb_cuda_bf16>(a.shape.hidden)), experts, top_k, router.groups);
    const bool early = Tokens == 1 && size > 1 && experts <= gb_route_early && gb_ranks_early(router, top_k);
    const uint32_t receivers = early ? size : tokens, lane = threadIdx.x % 32;
    const uint32_t values = Tokens > 1 ? experts : (experts + Rows - 1) / Rows * Rows;
    if (!told || rank > 0)
        gb_let_next_start();
    for (uint32_t e = experts + threadIdx.x; e < gb_route_logits(experts); e += gb_route_threads)
        t.logit[e] = -FLT_MAX;
    gb_expect(sent, rank < receivers ? values * sizeof(float) : 0, early && rank == 0 ? top_k * sizeof(uint64_t) : 0);
    const auto waited = [&] {
        if (told && rank == 0 && threadIdx.x + 32 >= gb_route_threads) {
            gb_tell_later(told, 2 * top_k);
            gb_let_next_start();
        }
    };
    const auto finished = [&](uint32_t expert, float sum) {
        return __float_as_uint(expert < experts ? gb_finish_logit(router, a.router_bias, expert, sum) : -FLT_MAX);
    };
    const auto send = [&](uint32_t expert, float sum) {
        if constexpr (Tokens == 1) {
            uint32_t own[Rows];
            const uint32_t mine = finished(expert + lane / (32 / Rows), sum);
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                own[n] = __shfl_sync(0xFFFFFFFFu, mine, n * (32 / Rows));
            if (lane < receivers)
                gb_send((uint32_t *)&t.logit[expert], sent, lane, own);
        } else {
            constexpr uint32_t lanes = 32 / (Rows * Tokens);
            const uint32_t of = expert + lane / lanes / Tokens, token = lane / lanes % Tokens;
            if (lane % lanes == 0 && of < experts && token < tokens)
                gb_send((uint32_t *)&t.logit[of], sent, token, {finished(of, sum)});
        }
    };
    gb_find_logits<Shape>(a, rank, size, tokens, staged, ring, waited, send);
    if (rank >= receivers)
        return;
    gb_receive(sent);
    if (early && rank > 0) { /* block 0 adds meanwhile, so the others have more experts each */
        constexpr uint32_t Count = Rows + 1;
        const uint32_t warps = (size - 1) * gb_route_warps, warp = rank - 1 + threadIdx.x / 32 * (size - 1);
        for (uint32_t e = warp * Count; e < experts; e += warps * Count)
            gb_rank_early<Count>(t, e, sent + 1, told);
    }
    if (rank < tokens)
        gb_route_token(router, a, first + rank, early ? sent + 1 : NULL, told, t);
}

#endif
