/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the router: docs/numerics.md#route. One computes logits, one takes a token's to ids and weights. */
#ifndef GB_GPU_ROUTE_CUH
#define GB_GPU_ROUTE_CUH

#include "gpu/dot.cuh"
#include "gpu/exp.cuh"
#include "gpu/sigmoid.cuh"

/*
 * How the logits' work is divided, which no bit depends on: blocks of Threads, teams of Lanes threads, units of Rows
 * experts for Tokens tokens, Block experts to a block.
 */
template <uint32_t Lanes_, uint32_t Rows_, uint32_t Threads_, uint32_t Block_, uint32_t Tokens_> struct gb_route_tile {
    static constexpr uint32_t Lanes = Lanes_, Rows = Rows_, Threads = Threads_, Block = Block_, Tokens = Tokens_;
    static_assert(Block % Rows == 0, "a block has whole units");
};

template <class Tile> size_t gb_logits_shared_bytes(uint32_t hidden)
{
    return sizeof(float) * Tile::Tokens * gb_staged_floats<gb_cuda_bf16>(hidden);
}

/* Block (b, y): dot products of experts b * Tile::Block .. with tokens y * Tile::Tokens .. to logits [tokens, experts].
 * What lies past the last expert or token is computed unseen. */
template <class Tile>
__global__ void __launch_bounds__(Tile::Threads)
    gb_logits_kernel(const __grid_constant__ struct gb_arguments a, float *logits)
{
    extern __shared__ float4 shared[];
    constexpr uint32_t Rows = Tile::Rows, units = Tile::Block / Rows;
    const uint32_t hidden = a.shape.hidden, experts = a.shape.experts, stride = gb_staged_floats<gb_cuda_bf16>(hidden);
    const uint32_t row = blockIdx.x * Tile::Block, token = blockIdx.y * Tile::Tokens;
    const uint32_t tokens = min(Tile::Tokens, a.shape.tokens - token);
    float *staged = (float *)shared;
    const auto rows_of = [&](uint32_t unit, gb_cuda_row(&rows)[Rows]) {
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++)
            rows[n] = gb_cuda_bf16::row(a.router_weights, 0, min(row + unit * Rows + n, experts - 1));
    };
    const auto source = [&](uint32_t t) { return a.x + (size_t)(token + t) * hidden; };
    const auto x_of = [&](uint32_t, uint32_t t) { return staged + min(t, tokens - 1) * stride; };
    const auto finish = [&](uint32_t unit, uint32_t n, uint32_t t, float sum) {
        const uint32_t expert = row + unit * Rows + n;
        if (expert < experts && t < tokens)
            logits[(size_t)(token + t) * experts + expert] = sum;
    };
    const auto round = gb_first_round<gb_cuda_bf16, Tile::Lanes, Rows>(units, hidden, rows_of);
    gb_stage<gb_cuda_bf16>(tokens, hidden, source, gb_cuda_bf16::x_factor, staged);
    __syncthreads();
    gb_dots<gb_cuda_bf16, Tile::Tokens, false>(units, hidden, round, rows_of, x_of, finish);
}

constexpr uint32_t gb_none = 0xFFFFFFFFu;

/* Whether entry i ranks before entry j: by descending value, NaN last, ties to the lower number. */
__device__ __forceinline__ bool gb_ranks(const float *values, uint32_t i, uint32_t j)
{
    const float a = values[i], b = values[j];
    const bool no_a = isnan(a), no_b = isnan(b);
    if (no_a || no_b)
        return no_a == no_b ? i < j : no_b;
    return a != b ? a > b : i < j;
}

/* The entry that ranks first of those that rank after `last` (gb_none: of all), to every thread of the warp. */
__device__ __forceinline__ uint32_t gb_next(const float *values, uint32_t count, uint32_t last)
{
    uint32_t first = gb_none;
    for (uint32_t i = threadIdx.x; i < count; i += 32)
        if ((last == gb_none || gb_ranks(values, last, i)) && (first == gb_none || gb_ranks(values, i, first)))
            first = i;
    for (int m = 16; m > 0; m /= 2) {
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, first, m);
        if (other != gb_none && (first == gb_none || gb_ranks(values, other, first)))
            first = other;
    }
    return first;
}

/* One token, in shared memory. Every function below is called by a whole warp and leaves it synchronised. */
struct gb_cuda_token {
    uint32_t experts;
    uint32_t top_k;
    float *logit;   /* [experts] */
    float *score;   /* [experts] */
    float *choice;  /* [experts] */
    float *group;   /* [groups] */
    float *weight;  /* [top_k] */
    uint32_t *slot; /* [top_k], the chosen experts */
};

inline size_t gb_route_shared_bytes(uint32_t experts, uint32_t top_k, uint32_t groups)
{
    return sizeof(float) * (3 * (size_t)experts + groups + 2 * (size_t)top_k);
}

__device__ __forceinline__ float gb_bf16_value(float value)
{
    return __uint_as_float((uint32_t)gb_bf16_round(value) << 16);
}

/* values[i] becomes q = exp(values[i] - the one that ranks first); the sum of all q, in order. */
__device__ __forceinline__ float gb_softmax_sum(float *values, uint32_t count)
{
    const float largest = values[gb_next(values, count, gb_none)];
    __syncwarp();
    for (uint32_t i = threadIdx.x; i < count; i += 32)
        values[i] = gb_cuda_exp(__fsub_rn(values[i], largest));
    __syncwarp();
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        sum = __fadd_rn(sum, values[i]);
    __syncwarp();
    return sum;
}

/* Steps 1 and 2. dots: [experts] */
__device__ __forceinline__ void gb_find_scores(const gb_router &router, const float *bias, const float *dots,
                                               const gb_cuda_token &t)
{
    for (uint32_t e = threadIdx.x; e < t.experts; e += 32) {
        float l = dots[e];
        if (router.bias == GB_ROUTER_BIAS_LOGIT)
            l = __fadd_rn(l, bias[e]);
        t.logit[e] = router.logits == GB_BF16 ? gb_bf16_value(l) : l;
        t.score[e] = router.score == GB_ROUTER_SCORE_SIGMOID ? gb_cuda_sigmoid(t.logit[e]) : t.logit[e];
    }
    __syncwarp();
    const bool reciprocal = router.score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL;
    if (router.score == GB_ROUTER_SCORE_SOFTMAX || reciprocal) {
        const float sum = gb_softmax_sum(t.score, t.experts), inverse = __fdiv_rn(1.0f, sum);
        for (uint32_t e = threadIdx.x; e < t.experts; e += 32)
            t.score[e] = reciprocal ? __fmul_rn(t.score[e], inverse) : __fdiv_rn(t.score[e], sum);
    }
    if (router.nonfinite == GB_ROUTER_NONFINITE_ZERO)
        for (uint32_t e = threadIdx.x; e < t.experts; e += 32)
            if (!isfinite(t.score[e]))
                t.score[e] = 0.0f;
    __syncwarp();
}

/* Step 3. */
__device__ __forceinline__ void gb_find_choices(const gb_router &router, const float *bias, const gb_cuda_token &t)
{
    const bool biased = router.bias == GB_ROUTER_BIAS_CHOICE || router.bias == GB_ROUTER_BIAS_LOSSY;
    for (uint32_t e = threadIdx.x; e < t.experts; e += 32) {
        const float c = biased ? __fadd_rn(t.score[e], bias[e]) : t.score[e];
        const bool replaced = (router.nonfinite == GB_ROUTER_NONFINITE_LOGIT && !isfinite(t.logit[e])) ||
                              (router.nonfinite == GB_ROUTER_NONFINITE_BIASED && !isfinite(c));
        t.choice[e] = replaced ? router.replacement : c;
    }
    __syncwarp();
}

/* Step 4. */
__device__ __forceinline__ void gb_mask_groups(const gb_router &router, const gb_cuda_token &t)
{
    const uint32_t size = t.experts / router.groups;
    const uint32_t asked = router.group_terms ? router.group_terms : t.top_k / router.kept_groups;
    const uint32_t terms = min(max(asked, 1u), size);
    for (uint32_t g = 0; g < router.groups; g++) {
        const float *values = t.choice + g * size;
        uint32_t last = gb_next(values, size, gb_none);
        float sum = values[last];
        for (uint32_t n = 1; n < terms; n++) {
            last = gb_next(values, size, last);
            sum = __fadd_rn(sum, values[last]);
        }
        if (threadIdx.x == 0)
            t.group[g] = sum;
    }
    __syncwarp();
    uint32_t last = gb_none;
    for (uint32_t n = 0; n < router.kept_groups; n++)
        last = gb_next(t.group, router.groups, last);
    for (uint32_t e = threadIdx.x; e < t.experts; e += 32)
        if (e / size != last && gb_ranks(t.group, last, e / size))
            t.choice[e] = router.masked;
    __syncwarp();
}

/* Step 5. */
__device__ __forceinline__ void gb_choose(const gb_cuda_token &t)
{
    uint32_t last = gb_none;
    for (uint32_t j = 0; j < t.top_k; j++) {
        last = gb_next(t.choice, t.experts, last);
        if (threadIdx.x == 0)
            t.slot[j] = last;
    }
    __syncwarp();
}

/* Step 6. */
__device__ __forceinline__ void gb_find_weights(const gb_router &router, const float *bias, const gb_cuda_token &t)
{
    float sum = 1.0f;
    if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_ALL) {
        for (uint32_t e = threadIdx.x; e < t.experts; e += 32)
            t.score[e] = t.logit[e];
        __syncwarp();
        sum = gb_softmax_sum(t.score, t.experts);
    }
    for (uint32_t j = threadIdx.x; j < t.top_k; j += 32) {
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
    __syncwarp();
    if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN) {
        sum = gb_softmax_sum(t.weight, t.top_k);
        for (uint32_t j = threadIdx.x; j < t.top_k; j += 32)
            t.weight[j] = __fdiv_rn(t.weight[j], sum);
        __syncwarp();
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

/* Block t, a warp: token t. logits: [tokens, experts], dot products. */
__global__ void __launch_bounds__(32)
    gb_route_kernel(const __grid_constant__ struct gb_router router, const __grid_constant__ struct gb_arguments a,
                    const float *logits)
{
    extern __shared__ float4 shared[];
    gb_cuda_token t = {a.shape.experts, a.shape.top_k};
    t.logit = (float *)shared;
    t.score = t.logit + t.experts;
    t.choice = t.score + t.experts;
    t.group = t.choice + t.experts;
    t.weight = t.group + router.groups;
    t.slot = (uint32_t *)(t.weight + t.top_k);
    gb_find_scores(router, a.router_bias, logits + (size_t)blockIdx.x * t.experts, t);
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
    for (uint32_t j = threadIdx.x; j < t.top_k; j += 32) {
        const size_t pair = (size_t)blockIdx.x * t.top_k + j;
        a.routed_ids[pair] = (int32_t)t.slot[j];
        a.routed_weights[pair] = gb_renormalised(router, t.top_k >= router.renormalise_from, t.weight[j], s);
    }
}

#endif
