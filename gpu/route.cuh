/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of the router: docs/numerics.md#route.
 *
 * A cluster of blocks has a few tokens. Each block computes the logits of some experts, a warp two at a time, and
 * writes them into the shared memory of the block that owns the token; when all are there, the owner takes them to ids
 * and weights. Where the GPU has no clusters, a block is alone and does both.
 */
#ifndef GB_GPU_ROUTE_CUH
#define GB_GPU_ROUTE_CUH

#include "gpu/dot.cuh"
#include "gpu/exp.cuh"
#include "gpu/overlap.cuh"
#include "gpu/sigmoid.cuh"

constexpr uint32_t gb_route_threads = 512;
constexpr uint32_t gb_route_warps = gb_route_threads / 32;
constexpr uint32_t gb_route_ahead = 8; /* chunks of a row whose loads are under way in a thread */

/* The block's number in its cluster, and how many there are. */
__device__ __forceinline__ uint32_t gb_cluster_rank()
{
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

__device__ __forceinline__ uint32_t gb_cluster_size()
{
    uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
#endif
    return size;
}

/* Writes to shared memory of the cluster's block `rank`, at the place that `to` has in this block's. */
__device__ __forceinline__ void gb_cluster_write(float *to, uint32_t rank, float value)
{
#if __CUDA_ARCH__ >= 900
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"((uint32_t)__cvta_generic_to_shared(to)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#else
    *to = value;
#endif
}

/* Every thread of the cluster: what was written before is there afterwards. */
__device__ __forceinline__ void gb_cluster_synchronise()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

constexpr uint32_t gb_route_rows = 2; /* experts of a warp at a time, which share what is read of x */

/*
 * Dot products of the block's experts, every size-th pair of them from `rank` on, with Tokens tokens, of which `tokens`
 * exist; the others are computed unseen. Weights are under way before the kernel in front has ended. finish(expert, t,
 * sum): takes the dot product, in every lane of a warp.
 */
template <uint32_t Tokens, class Finish>
__device__ __forceinline__ void gb_find_logits(const gb_arguments &a, uint32_t rank, uint32_t size, uint32_t tokens,
                                               float *staged, const Finish &finish)
{
    constexpr uint32_t Rows = gb_route_rows;
    const uint32_t hidden = a.shape.hidden, chunks = gb_chunks<gb_cuda_bf16>(hidden), lane = threadIdx.x % 32;
    const uint32_t first = (rank + threadIdx.x / 32 * size) * Rows, stride = size * gb_route_warps * Rows;
    const uint32_t experts = a.shape.experts;
    gb_cuda_chunk held[gb_route_ahead][Rows] = {};
    uint32_t next = first, next_chunk = lane; /* to be loaded */
    const auto load = [&](gb_cuda_chunk(&of)[Rows]) {
        if (next >= experts)
            return;
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++)
            if (next_chunk < chunks)
                of[n] = gb_cuda_bf16::load(gb_cuda_bf16::row(a.router_weights, 0, min(next + n, experts - 1)),
                                           next_chunk, hidden);
        next_chunk += 32;
        if (next_chunk - lane >= chunks) {
            next_chunk = lane;
            next += stride;
        }
    };
#pragma unroll
    for (uint32_t k = 0; k < gb_route_ahead; k++)
        load(held[k]);
    gb_wait_for_previous();
    gb_stage<gb_cuda_bf16>(
        tokens, hidden, [&](uint32_t t) { return a.x + (size_t)(blockIdx.y * Tokens + t) * hidden; },
        gb_cuda_bf16::x_factor, staged);
    __syncthreads();
    float acc[Rows * Tokens] = {};
    for (uint32_t expert = first, chunk = lane; expert < experts;)
#pragma unroll
        for (uint32_t k = 0; k < gb_route_ahead; k++) {
            if (expert >= experts)
                break;
            if (chunk < chunks) {
                const float *x[Tokens];
#pragma unroll
                for (uint32_t t = 0; t < Tokens; t++)
                    x[t] = staged + min(t, tokens - 1) * gb_staged_floats<gb_cuda_bf16>(hidden) +
                           chunk * gb_staged_stride<gb_cuda_bf16>();
                gb_cuda_bf16::run_fma<Rows, Tokens, false>(held[k], 0, x, acc);
            }
            load(held[k]);
            chunk += 32;
            if (chunk - lane < chunks)
                continue;
#pragma unroll
            for (uint32_t i = 0; i < Rows * Tokens; i++) {
#pragma unroll
                for (uint32_t m = 16; m > 0; m /= 2)
                    acc[i] = __fadd_rn(acc[i], __shfl_xor_sync(0xFFFFFFFFu, acc[i], (int)m));
                if (expert + i / Tokens < experts)
                    finish(expert + i / Tokens, i % Tokens, acc[i]);
                acc[i] = 0.0f;
            }
            chunk = lane;
            expert += stride;
        }
}

/* A value as a number whose order is that of ranking: NaN last, and zeros of both signs equal. */
__device__ __forceinline__ uint32_t gb_rank_of(float value)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
    return isnan(value) ? 0 : bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

/* A value of such a rank, zeros being +0. */
__device__ __forceinline__ float gb_value_of(uint32_t rank)
{
    return rank == 0 ? NAN : __uint_as_float(rank & 0x80000000u ? rank ^ 0x80000000u : ~rank);
}

/* An entry among others. Before: by descending rank, ties by lower number. */
struct alignas(8) gb_entry {
    uint32_t rank, number;
    __device__ __forceinline__ bool before(const gb_entry &other) const
    {
        return rank != other.rank ? rank > other.rank : number < other.number;
    }
};

/* Of every stride-th of `count` ranks from `first` on, which is a thread's, the first entry after `last` that a thread
 * of the warp has, to all of them. There is none: the number is 0xFFFFFFFF. */
__device__ __forceinline__ gb_entry gb_next(const uint32_t *ranks, uint32_t count, uint32_t first, uint32_t stride,
                                            const gb_entry &last)
{
    gb_entry found = {0, 0xFFFFFFFFu};
    for (uint32_t i = first; i < count; i += stride) {
        const gb_entry now = {ranks[i], i};
        if (last.before(now) && now.before(found))
            found = now;
    }
    const uint32_t rank = __reduce_max_sync(0xFFFFFFFFu, found.rank);
    return {rank, __reduce_min_sync(0xFFFFFFFFu, found.rank == rank ? found.number : 0xFFFFFFFFu)};
}

/* Before all others. */
__device__ __forceinline__ gb_entry gb_none()
{
    return {0xFFFFFFFFu, 0};
}

/* One token, in shared memory. Every function below is called by the whole block and leaves it synchronised. */
struct gb_cuda_token {
    uint32_t experts;
    uint32_t top_k;
    float *logit;        /* [experts] */
    float *score;        /* [experts, with room] */
    float *choice;       /* [experts] */
    uint32_t *rank;      /* [experts], of the choices */
    uint32_t *group;     /* [groups], ranks */
    float *weight;       /* [top_k, with room] */
    uint32_t *slot;      /* [top_k], the chosen experts */
    float *sum;          /* [1 + warps] */
    uint32_t *count;     /* of the candidates, and their lowest rank */
    uint32_t *most;      /* [32], the highest rank of a part */
    gb_entry *candidate; /* [experts] */
};

/* Values that are added one after the other lie in so many at once, zeros behind the last. */
constexpr uint32_t gb_route_batch = 16;

__host__ __device__ constexpr uint32_t gb_route_room(uint32_t count)
{
    return (count + gb_route_batch - 1) / gb_route_batch * gb_route_batch;
}

inline size_t gb_route_shared_bytes(uint32_t experts, uint32_t top_k, uint32_t groups)
{
    return sizeof(float) * (2 * (size_t)gb_route_room(experts) + 2 * (size_t)experts + gb_route_room(top_k) + groups +
                            top_k + 1 + gb_route_warps + 2 + 32) +
           sizeof(gb_entry) * ((size_t)experts + 1);
}

__device__ __forceinline__ float gb_bf16_value(float value)
{
    return __uint_as_float((uint32_t)gb_bf16_round(value) << 16);
}

/* In order. The next values are under way while these are added. A zero behind them changes no sum of q. */
__device__ __forceinline__ float gb_sum_in_order(const float *values, uint32_t count)
{
    const float4 *from = (const float4 *)values;
    float4 next[gb_route_batch / 4];
    float sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < gb_route_batch / 4; k++)
        next[k] = from[k];
    for (uint32_t i = 0; i < count; i += gb_route_batch) {
        from += i + gb_route_batch < count ? gb_route_batch / 4 : 0;
#pragma unroll
        for (uint32_t k = 0; k < gb_route_batch / 4; k++) {
            const float4 now = next[k];
            next[k] = from[k];
            sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, now.x), now.y), now.z), now.w);
        }
    }
    return sum;
}

/* values: with room for gb_route_room(count). values[i] becomes q = exp(values[i] - the one that ranks first); the sum
 * of all q, in order. */
__device__ __forceinline__ float gb_softmax_sum(float *values, uint32_t count, float *sum)
{
    uint32_t *of_warps = (uint32_t *)(sum + 1), largest = 0;
    for (uint32_t i = threadIdx.x; i < count; i += gb_route_threads)
        largest = max(largest, gb_rank_of(values[i]));
    of_warps[threadIdx.x / 32] = __reduce_max_sync(0xFFFFFFFFu, largest);
    __syncthreads();
    const uint32_t lane = threadIdx.x % 32;
    largest = __reduce_max_sync(0xFFFFFFFFu, lane < gb_route_warps ? of_warps[lane] : 0);
    for (uint32_t i = threadIdx.x; i < gb_route_room(count); i += gb_route_threads)
        values[i] = i < count ? gb_cuda_exp(__fsub_rn(values[i], gb_value_of(largest))) : 0.0f;
    __syncthreads();
    if (threadIdx.x == 0)
        *sum = gb_sum_in_order(values, count);
    __syncthreads();
    return *sum;
}

/* Steps 1 and 2. The logits are dot products so far. */
__device__ __forceinline__ void gb_find_scores(const gb_router &router, const float *bias, const gb_cuda_token &t)
{
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads) {
        float l = t.logit[e];
        if (router.bias == GB_ROUTER_BIAS_LOGIT)
            l = __fadd_rn(l, bias[e]);
        t.logit[e] = router.logits == GB_BF16 ? gb_bf16_value(l) : l;
        t.score[e] = router.score == GB_ROUTER_SCORE_SIGMOID ? gb_cuda_sigmoid(t.logit[e]) : t.logit[e];
    }
    __syncthreads();
    const bool reciprocal = router.score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL;
    if (router.score == GB_ROUTER_SCORE_SOFTMAX || reciprocal) {
        const float sum = gb_softmax_sum(t.score, t.experts, t.sum), inverse = __fdiv_rn(1.0f, sum);
        for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads)
            t.score[e] = reciprocal ? __fmul_rn(t.score[e], inverse) : __fdiv_rn(t.score[e], sum);
    }
    if (router.nonfinite == GB_ROUTER_NONFINITE_ZERO)
        for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads)
            if (!isfinite(t.score[e]))
                t.score[e] = 0.0f;
    __syncthreads();
}

/* Step 3. */
__device__ __forceinline__ void gb_find_choices(const gb_router &router, const float *bias, const gb_cuda_token &t)
{
    const bool biased = router.bias == GB_ROUTER_BIAS_CHOICE || router.bias == GB_ROUTER_BIAS_LOSSY;
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads) {
        const float c = biased ? __fadd_rn(t.score[e], bias[e]) : t.score[e];
        const bool replaced = (router.nonfinite == GB_ROUTER_NONFINITE_LOGIT && !isfinite(t.logit[e])) ||
                              (router.nonfinite == GB_ROUTER_NONFINITE_BIASED && !isfinite(c));
        t.choice[e] = replaced ? router.replacement : c;
        t.rank[e] = gb_rank_of(t.choice[e]);
    }
    __syncthreads();
}

/* Step 4: a warp a group, and then the first warp all groups. */
__device__ __forceinline__ void gb_mask_groups(const gb_router &router, const gb_cuda_token &t)
{
    const uint32_t size = t.experts / router.groups;
    const uint32_t asked = router.group_terms ? router.group_terms : t.top_k / router.kept_groups;
    const uint32_t terms = min(max(asked, 1u), size), lane = threadIdx.x % 32;
    for (uint32_t g = threadIdx.x / 32; g < router.groups; g += gb_route_warps) {
        gb_entry last = gb_next(t.rank + g * size, size, lane, 32, gb_none());
        float sum = t.choice[g * size + last.number];
        for (uint32_t n = 1; n < terms; n++) {
            last = gb_next(t.rank + g * size, size, lane, 32, last);
            sum = __fadd_rn(sum, t.choice[g * size + last.number]);
        }
        t.group[g] = gb_rank_of(sum);
    }
    __syncthreads();
    gb_entry last = gb_none();
    for (uint32_t n = 0; n < router.kept_groups; n++)
        last = gb_next(t.group, router.groups, lane, 32, last);
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads)
        if (last.before({t.group[e / size], e / size})) {
            t.choice[e] = router.masked;
            t.rank[e] = gb_rank_of(router.masked);
        }
    __syncthreads();
}

/* Step 5. The experts are in 32 parts. Of the highest rank of each, as many as are chosen are chosen from no lower rank
 * than the last of these has: experts of lower rank are no candidates. A candidate's slot is how many are before it. */
__device__ __forceinline__ void gb_choose(const gb_cuda_token &t)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t highest = 0;
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads)
        highest = max(highest, t.rank[e]);
#pragma unroll
    for (uint32_t m = gb_route_threads / 32 / 2; m > 0; m /= 2)
        highest = max(highest, __shfl_xor_sync(0xFFFFFFFFu, highest, (int)m));
    if (threadIdx.x % (gb_route_threads / 32) == 0)
        t.most[threadIdx.x / (gb_route_threads / 32)] = highest;
    if (threadIdx.x == 0)
        *t.count = 0;
    __syncthreads();
    if (threadIdx.x < 32) {
        const uint32_t mine = t.most[lane];
        uint32_t higher = 0;
#pragma unroll 8
        for (uint32_t k = 0; k < 32; k++) {
            const uint32_t other = __shfl_sync(0xFFFFFFFFu, mine, (int)k);
            higher += other > mine || (other == mine && k < lane);
        }
        const uint32_t bound = __reduce_max_sync(0xFFFFFFFFu, higher + 1 == t.top_k ? mine : 0);
        if (lane == 0)
            t.count[1] = bound;
    }
    __syncthreads();
    const uint32_t bound = t.count[1];
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads)
        if (t.rank[e] >= bound)
            t.candidate[atomicAdd(t.count, 1u)] = {t.rank[e], e};
    __syncthreads();
    const uint32_t count = *t.count;
    for (uint32_t i = threadIdx.x; i < count; i += gb_route_threads) {
        const gb_entry one = t.candidate[i];
        uint32_t before = 0;
#pragma unroll 4
        for (uint32_t k = 0; k < count; k++)
            before += t.candidate[k].before(one);
        if (before < t.top_k)
            t.slot[before] = one.number;
    }
    __syncthreads();
}

/* Step 6. */
__device__ __forceinline__ void gb_find_weights(const gb_router &router, const float *bias, const gb_cuda_token &t)
{
    float sum = 1.0f;
    if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_ALL) {
        for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads)
            t.score[e] = t.logit[e];
        __syncthreads();
        sum = gb_softmax_sum(t.score, t.experts, t.sum);
    }
    for (uint32_t j = threadIdx.x; j < t.top_k; j += gb_route_threads) {
        const uint32_t e = t.slot[j];
        if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN)
            t.weight[j] = t.logit[e];
        else if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_ALL)
            t.weight[j] = __fdiv_rn(t.score[e], sum);
        else if (router.weight == GB_ROUTER_WEIGHT_SIGMOID)
            t.weight[j] = gb_cuda_sigmoid(t.logit[e]);
        else
            t.weight[j] = router.bias == GB_ROUTER_BIAS_LOSSY ? __fsub_rn(t.choice[e], bias[e]) : t.score[e];
    }
    __syncthreads();
    if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN) {
        sum = gb_softmax_sum(t.weight, t.top_k, t.sum);
        for (uint32_t j = threadIdx.x; j < t.top_k; j += gb_route_threads)
            t.weight[j] = __fdiv_rn(t.weight[j], sum);
        __syncthreads();
    }
}

/* Steps 7 and 8 of one weight; s: the sum. */
__device__ __forceinline__ float gb_renormalised(const gb_router &router, bool wanted, float w, float s)
{
    switch (wanted ? router.renormalise : GB_ROUTER_RENORMALISE_NONE) {
    case GB_ROUTER_RENORMALISE_NONE:
        w = __fmul_rn(w, router.scale);
        break;
    case GB_ROUTER_RENORMALISE_DIVIDE:
        w = __fmul_rn(__fdiv_rn(w, s), router.scale);
        break;
    case GB_ROUTER_RENORMALISE_RECIPROCAL:
        w = __fmul_rn(__fmul_rn(w, __fdiv_rn(1.0f, s)), router.scale);
        break;
    case GB_ROUTER_RENORMALISE_SCALE:
        w = __fmul_rn(w, __fdiv_rn(router.scale, s));
        break;
    case GB_ROUTER_RENORMALISE_SCALED_DIVIDE:
        w = __fdiv_rn(__fmul_rn(w, router.scale), s);
        break;
    }
    return router.weights == GB_BF16 ? gb_bf16_value(w) : w;
}

/* The block's token, all of whose logits are there: steps 1 to 8. */
__device__ __forceinline__ void gb_route_token(const gb_router &router, const gb_arguments &a, uint32_t token,
                                               const gb_cuda_token &t)
{
    gb_find_scores(router, a.router_bias, t);
    gb_find_choices(router, a.router_bias, t);
    if (router.groups > 1)
        gb_mask_groups(router, t);
    gb_choose(t);
    gb_find_weights(router, a.router_bias, t);
    float s = 0.0f;
    for (uint32_t j = 0; j < t.top_k; j++)
        s = __fadd_rn(s, t.weight[j]);
    s = __fadd_rn(s, router.epsilon);
    if (router.zero_sum_is_one && !(s > 0.0f))
        s = 1.0f;
    for (uint32_t j = threadIdx.x; j < t.top_k; j += gb_route_threads) {
        const size_t pair = (size_t)token * t.top_k + j;
        a.routed_ids[pair] = (int32_t)t.slot[j];
        a.routed_weights[pair] = gb_renormalised(router, t.top_k >= router.renormalise_from, t.weight[j], s);
    }
}

/* Cluster y: tokens y * Tokens .. */
template <uint32_t Tokens>
__global__ void __launch_bounds__(gb_route_threads)
    gb_route_kernel(const __grid_constant__ struct gb_router router, const __grid_constant__ struct gb_arguments a)
{
    extern __shared__ float4 shared[];
    const uint32_t experts = a.shape.experts, top_k = a.shape.top_k, first = blockIdx.y * Tokens;
    const uint32_t tokens = min(Tokens, a.shape.tokens - first), rank = gb_cluster_rank(), size = gb_cluster_size();
    float *staged = (float *)shared;
    gb_cuda_token t = {experts, top_k};
    t.logit = staged + Tokens * gb_staged_floats<gb_cuda_bf16>(a.shape.hidden);
    t.score = t.logit + gb_route_room(experts);
    t.weight = t.score + gb_route_room(experts);
    t.choice = t.weight + gb_route_room(top_k);
    t.rank = (uint32_t *)(t.choice + experts);
    t.group = t.rank + experts;
    t.slot = t.group + router.groups;
    t.sum = (float *)(t.slot + top_k);
    t.count = (uint32_t *)(t.sum + 1 + gb_route_warps);
    t.most = t.count + 2;
    t.candidate = (gb_entry *)(((uintptr_t)(t.most + 32) + 7) / 8 * 8);
    gb_let_next_start();
    gb_cluster_synchronise(); /* all blocks have started: their shared memory can be written */
    gb_find_logits<Tokens>(a, rank, size, tokens, staged, [&](uint32_t expert, uint32_t token, float sum) {
        if (threadIdx.x % 32 == 0 && token < tokens)
            gb_cluster_write(&t.logit[expert], token, sum);
    });
    gb_cluster_synchronise();
    if (rank < tokens)
        gb_route_token(router, a, first + rank, t);
}

#endif
