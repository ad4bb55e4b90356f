/* SPDX-License-Identifier: Apache-2.0 */
/* From the logits of a token to ids and weights: steps of docs/numerics.md#route, by a block, or by all of a cluster.
 */
#ifndef GB_GPU_ROUTE_TOKEN_CUH
#define GB_GPU_ROUTE_TOKEN_CUH

#include "gpu/cluster.cuh"
#include "gpu/exp.cuh"
#include "gpu/route_logits.cuh"
#include "gpu/sigmoid.cuh"

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

/* An entry among others as one number: of two, the greater ranks before. By descending value, ties by lower number. */
__device__ __forceinline__ uint64_t gb_key(float value, uint32_t number)
{
    return (uint64_t)gb_rank_of(value) << 32 | ~number;
}

__device__ __forceinline__ uint32_t gb_key_rank(uint64_t key)
{
    return (uint32_t)(key >> 32);
}

__device__ __forceinline__ uint32_t gb_key_number(uint64_t key)
{
    return ~(uint32_t)key;
}

/* Of `count` keys, the first that ranks after `last`; in every lane of the warp. ~0: the first of all. */
__device__ __forceinline__ uint64_t gb_next(const uint64_t *keys, uint32_t count, uint64_t last)
{
    uint64_t found = 0;
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32)
        if (keys[i] < last)
            found = max(found, keys[i]);
    const uint32_t rank = __reduce_max_sync(0xFFFFFFFFu, gb_key_rank(found));
    const uint32_t low = __reduce_max_sync(0xFFFFFFFFu, gb_key_rank(found) == rank ? (uint32_t)found : 0);
    return (uint64_t)rank << 32 | low;
}

/* One token, in shared memory. A function below that does not say by whom is called by the whole block. What is of an
 * expert belongs to thread e % gb_route_threads, and what is of a slot to thread j % gb_route_threads; where another
 * thread reads it, the function that does so synchronises first. */
struct gb_cuda_token {
    uint32_t experts;
    uint32_t top_k;
    float *score;        /* [experts, with room] */
    float *weight;       /* [top_k, with room] */
    uint4 *part;         /* uint32 [warps, 4], the rank of the first expert of 8 threads */
    float *logit;        /* [gb_route_logits], aligned to 16 bytes */
    uint64_t *key;       /* [experts], of choices */
    uint64_t *candidate; /* [experts, at least gb_route_few], keys */
    uint64_t *first;     /* [top_k, at least gb_route_few], the candidates in order, or keys of gb_rank_early */
    uint64_t *group;     /* [groups], keys */
    float *choice;       /* [experts] */
    float *sum;          /* [1] */
    uint32_t *of_warps;  /* [warps] */
    uint32_t *count;     /* of the candidates */
    uint32_t *lowest;    /* the rank of the last part that is among the first top_k */

    /* The expert of slot j. */
    __device__ __forceinline__ uint32_t slot(uint32_t j) const
    {
        return gb_key_number(first[j]);
    }
};

/* Values that are added one after the other are loaded so many ahead, zeros behind the last: of scores, more than it
 * takes to load them beside another kernel's blocks. */
constexpr uint32_t gb_route_scores_ahead = 64, gb_route_weights_ahead = 16;

__host__ __device__ constexpr uint32_t gb_route_room(uint32_t count, uint32_t ahead)
{
    return (count + ahead - 1) / ahead * ahead;
}

/* Candidates of a warp, and of all warps, where there are few; and experts of a thread. */
constexpr uint32_t gb_route_few_of_warp = 8, gb_route_few = gb_route_few_of_warp * gb_route_warps;
constexpr uint32_t gb_route_few_of_thread = 2;

__host__ __device__ constexpr uint32_t gb_route_keys(uint32_t count)
{
    return count < gb_route_few ? gb_route_few : count;
}

/* Experts that gb_rank_early ranks at most, and logits that it takes at once; behind the last expert's, up to a
 * multiple of these, they are -FLT_MAX, which is before nobody. */
constexpr uint32_t gb_route_early = 512, gb_route_at_once = 128;

__host__ __device__ constexpr uint32_t gb_route_logits(uint32_t experts)
{
    return (experts + gb_route_at_once - 1) / gb_route_at_once * gb_route_at_once;
}

inline size_t gb_route_shared_bytes(uint32_t experts, uint32_t top_k, uint32_t groups)
{
    return sizeof(float) *
               ((size_t)gb_route_room(experts, gb_route_scores_ahead) + gb_route_room(top_k, gb_route_weights_ahead) +
                32 + gb_route_logits(experts) + experts + 1 + gb_route_warps + 2) +
           sizeof(uint64_t) * ((size_t)experts + gb_route_keys(experts) + gb_route_keys(top_k) + groups);
}

/* The token whose values lie at `at`, a multiple of 16. */
__device__ __forceinline__ gb_cuda_token gb_token_at(char *at, uint32_t experts, uint32_t top_k, uint32_t groups)
{
    gb_cuda_token t = {experts, top_k, (float *)at};
    t.weight = t.score + gb_route_room(experts, gb_route_scores_ahead);
    t.part = (uint4 *)(t.weight + gb_route_room(top_k, gb_route_weights_ahead));
    t.logit = (float *)(t.part + gb_route_warps);
    t.key = (uint64_t *)(t.logit + gb_route_logits(experts));
    t.candidate = t.key + experts;
    t.first = t.candidate + gb_route_keys(experts);
    t.group = t.first + gb_route_keys(top_k);
    t.choice = (float *)(t.group + groups);
    t.sum = t.choice + experts;
    t.of_warps = (uint32_t *)(t.sum + 1);
    t.count = t.of_warps + gb_route_warps;
    t.lowest = t.count + 1;
    return t;
}

__device__ __forceinline__ float gb_bf16_value(float value)
{
    return __uint_as_float((uint32_t)gb_bf16_round(value) << 16);
}

/* In order. The next values are under way while these are added. A zero behind them changes no sum, which begins at +0.
 */
template <uint32_t Ahead> __device__ __forceinline__ float gb_sum_in_order(const float *values, uint32_t count)
{
    const float4 *from = (const float4 *)values;
    float4 next[Ahead / 4];
    float sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < Ahead / 4; k++)
        next[k] = from[k];
#pragma unroll 1
    for (uint32_t i = 0; i < count; i += Ahead) {
        from += i + Ahead < count ? Ahead / 4 : 0;
#pragma unroll
        for (uint32_t k = 0; k < Ahead / 4; k++) {
            const float4 now = next[k];
            next[k] = from[k];
            sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, now.x), now.y), now.z), now.w);
        }
    }
    return sum;
}

/* values: with room for gb_route_room(count, Ahead), value i of thread i % gb_route_threads. It becomes q =
 * exp(values[i] - the one that ranks first). largest: the rank of the thread's first. of_warps: [warps]. Returns when
 * all q are there: true if `is` is of every thread. */
template <uint32_t Ahead>
__device__ __forceinline__ bool gb_softmax_terms(float *values, uint32_t count, uint32_t largest, uint32_t *of_warps,
                                                 bool is)
{
    of_warps[threadIdx.x / 32] = __reduce_max_sync(0xFFFFFFFFu, largest);
    __syncthreads();
    largest = __reduce_max_sync(0xFFFFFFFFu, of_warps[threadIdx.x % gb_route_warps]);
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < gb_route_room(count, Ahead); i += gb_route_threads)
        values[i] = i < count ? gb_cuda_exp(__fsub_rn(values[i], gb_value_of(largest))) : 0.0f;
    return __syncthreads_and(is);
}

/* Of q that are there, the sum in order. */
template <uint32_t Ahead>
__device__ __forceinline__ float gb_softmax_sum(const float *values, uint32_t count, float *sum)
{
    if (threadIdx.x / 32 == 0) {
        const float all = gb_sum_in_order<Ahead>(values, count);
        if (threadIdx.x == 0)
            *sum = all;
    }
    __syncthreads();
    return *sum;
}

__device__ __forceinline__ bool gb_is_softmax(const gb_router &router)
{
    return router.score == GB_ROUTER_SCORE_SOFTMAX || router.score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL;
}

/* Adds to the candidates, for each lane of a warp that has one. */
__device__ __forceinline__ void gb_add_candidate(const gb_cuda_token &t, bool is, uint64_t key)
{
    const uint32_t all = __ballot_sync(0xFFFFFFFFu, is), lane = threadIdx.x % 32;
    uint32_t place = 0;
    if (all && lane == 0)
        place = atomicAdd(t.count, __popc(all));
    place = __shfl_sync(0xFFFFFFFFu, place, 0) + __popc(all & ((1u << lane) - 1));
    if (is)
        t.candidate[place] = key;
}

/* Step 1 of one logit, which is a dot product so far. */
__device__ __forceinline__ float gb_finish_logit(const gb_router &router, const float *bias, uint32_t expert, float l)
{
    if (router.bias == GB_ROUTER_BIAS_LOGIT)
        l = __fadd_rn(l, bias[expert]);
    return router.logits == GB_BF16 ? gb_bf16_value(l) : l;
}

/* Steps 2 and 3. Of a softmax, the scores are q so far, and `sum` is theirs. */
__device__ __forceinline__ float gb_score(const gb_router &router, float q, float sum)
{
    float s = q;
    if (router.score == GB_ROUTER_SCORE_SIGMOID)
        s = gb_cuda_sigmoid(q);
    else if (router.score == GB_ROUTER_SCORE_SOFTMAX)
        s = __fdiv_rn(q, sum);
    else if (router.score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL)
        s = __fmul_rn(q, __fdiv_rn(1.0f, sum));
    return router.nonfinite == GB_ROUTER_NONFINITE_ZERO && !isfinite(s) ? 0.0f : s;
}

__device__ __forceinline__ void gb_find_choices(const gb_router &router, const float *bias, float sum,
                                                const gb_cuda_token &t)
{
    const bool biased = router.bias == GB_ROUTER_BIAS_CHOICE || router.bias == GB_ROUTER_BIAS_LOSSY;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads) {
        const float s = gb_score(router, t.score[e], sum);
        float c = biased ? __fadd_rn(s, bias[e]) : s;
        if ((router.nonfinite == GB_ROUTER_NONFINITE_LOGIT && !isfinite(t.logit[e])) ||
            (router.nonfinite == GB_ROUTER_NONFINITE_BIASED && !isfinite(c)))
            c = router.replacement;
        t.score[e] = s;
        t.choice[e] = c;
        t.key[e] = gb_key(c, e);
    }
}

/* Step 4: a warp a group, and then every warp all groups. */
__device__ __forceinline__ void gb_mask_groups(const gb_router &router, const gb_cuda_token &t)
{
    const uint32_t size = t.experts / router.groups;
    const uint32_t asked = router.group_terms ? router.group_terms : t.top_k / router.kept_groups;
    const uint32_t terms = min(max(asked, 1u), size);
    __syncthreads();
    for (uint32_t g = threadIdx.x / 32; g < router.groups; g += gb_route_warps) {
        uint64_t last = gb_next(t.key + g * size, size, ~0ull);
        float sum = t.choice[gb_key_number(last)];
        for (uint32_t n = 1; n < terms; n++) {
            last = gb_next(t.key + g * size, size, last);
            sum = __fadd_rn(sum, t.choice[gb_key_number(last)]);
        }
        t.group[g] = gb_key(sum, g);
    }
    __syncthreads();
    uint64_t last = ~0ull;
    for (uint32_t n = 0; n < router.kept_groups; n++)
        last = gb_next(t.group, router.groups, last);
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads)
        if (t.group[e / size] < last) {
            t.choice[e] = router.masked;
            t.key[e] = gb_key(router.masked, e);
        }
}

/* A rank that at least top_k keys have or exceed: of the first keys of 32 parts, that of the one that top_k - 1 of them
 * are before. 0 if there are no more parts. mine: the rank of the thread's first. A warp counts for four parts. */
__device__ __forceinline__ uint32_t gb_lowest_rank(uint32_t mine, const gb_cuda_token &t)
{
    constexpr uint32_t threads = 8; /* of a part */
    static_assert(gb_route_threads == 32 * threads && sizeof *t.part == 32 / threads * sizeof mine, "parts of a warp");
    const uint32_t lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        *t.lowest = 0;
#pragma unroll
    for (uint32_t k = 1; k < threads; k *= 2)
        mine = max(mine, __shfl_xor_sync(0xFFFFFFFFu, mine, (int)k));
    if (threadIdx.x % threads == 0)
        ((uint32_t *)t.part)[threadIdx.x / threads] = mine;
    __syncthreads();
    const uint32_t other = ((const uint32_t *)t.part)[lane];
    const uint4 of_warp = t.part[threadIdx.x / 32];
#pragma unroll
    for (uint32_t k = 0; k < 32 / threads; k++) {
        const uint32_t part = gb_word(of_warp, k), number = threadIdx.x / 32 * (32 / threads) + k;
        const bool before = other > part || (other == part && lane < number);
        if (__popc(__ballot_sync(0xFFFFFFFFu, before)) == t.top_k - 1 && lane == 0)
            *t.lowest = part;
    }
    __syncthreads();
    return *t.lowest;
}

/* Step 5, where candidates are few: true if they were; otherwise slots hold anything. A candidate's slot is how many
 * are before it. */
__device__ __forceinline__ bool gb_choose_few(const gb_cuda_token &t)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint64_t *const of_warp = t.candidate + gb_route_few_of_warp * warp, key[gb_route_few_of_thread];
    uint32_t largest = 0, count = 0;
    if (t.experts > gb_route_few_of_thread * gb_route_threads)
        return false;
#pragma unroll
    for (uint32_t i = 0; i < gb_route_few_of_thread; i++) {
        const uint32_t e = threadIdx.x + i * gb_route_threads;
        key[i] = e < t.experts ? t.key[e] : 0;
        largest = max(largest, gb_key_rank(key[i]));
    }
    if (lane < gb_route_few_of_warp)
        of_warp[lane] = 0;
    const uint32_t least = gb_lowest_rank(largest, t);
#pragma unroll
    for (uint32_t i = 0; i < gb_route_few_of_thread; i++) {
        const bool is = key[i] && gb_key_rank(key[i]) >= least;
        const uint32_t all = __ballot_sync(0xFFFFFFFFu, is), place = count + __popc(all & ((1u << lane) - 1));
        if (is && place < gb_route_few_of_warp)
            of_warp[place] = key[i];
        count += __popc(all);
    }
    __syncthreads();
    const uint64_t others[2] = {t.candidate[lane], t.candidate[lane + 32]};
#pragma unroll 2
    for (uint32_t i = 0; i < min(count, gb_route_few_of_warp); i++) {
        const uint64_t one = of_warp[i];
        uint32_t before = 0;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            before += __popc(__ballot_sync(0xFFFFFFFFu, others[k] > one));
        if (lane == 0)
            t.first[before] = one;
    }
    return __syncthreads_and(count <= gb_route_few_of_warp);
}

/* Step 5 of keys that are there, for however many candidates: those that rank no lower than top_k others. */
__device__ __forceinline__ void gb_choose_many(const gb_cuda_token &t)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t mine = 0;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads)
        mine = max(mine, gb_key_rank(t.key[e]));
    if (threadIdx.x == 0)
        *t.count = 0;
    const uint32_t lowest = gb_lowest_rank(mine, t);
#pragma unroll 1
    for (uint32_t first = threadIdx.x - lane; first < t.experts; first += gb_route_threads) {
        const uint64_t key = first + lane < t.experts ? t.key[first + lane] : 0;
        gb_add_candidate(t, first + lane < t.experts && gb_key_rank(key) >= lowest, key);
    }
    __syncthreads();
    const uint32_t count = *t.count;
    for (uint32_t i = threadIdx.x / 32; i < count; i += gb_route_warps) {
        const uint64_t one = t.candidate[i];
        uint32_t before = 0;
        for (uint32_t k = 0; k < count; k += 32)
            before += __popc(__ballot_sync(0xFFFFFFFFu, k + lane < count && t.candidate[k + lane] > one));
        if (lane == 0 && before < t.top_k)
            t.first[before] = one;
    }
    __syncthreads();
}

/* Step 6; zeros behind the last weight. */
__device__ __forceinline__ void gb_find_weights(const gb_router &router, const float *bias, const gb_cuda_token &t)
{
    float sum = 1.0f;
    uint32_t largest = 0;
    __syncthreads();
    if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_ALL) {
#pragma unroll 1
        for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads) {
            t.score[e] = t.logit[e];
            largest = max(largest, gb_rank_of(t.logit[e]));
        }
        gb_softmax_terms<gb_route_scores_ahead>(t.score, t.experts, largest, t.of_warps, true);
        sum = gb_softmax_sum<gb_route_scores_ahead>(t.score, t.experts, t.sum);
        largest = 0;
    }
#pragma unroll 1
    for (uint32_t j = threadIdx.x; j < gb_route_room(t.top_k, gb_route_weights_ahead); j += gb_route_threads) {
        const uint32_t e = t.slot(min(j, t.top_k - 1));
        float w;
        if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN)
            w = t.logit[e];
        else if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_ALL)
            w = __fdiv_rn(t.score[e], sum);
        else if (router.weight == GB_ROUTER_WEIGHT_SIGMOID)
            w = gb_cuda_sigmoid(t.logit[e]);
        else if (router.bias == GB_ROUTER_BIAS_LOSSY)
            w = __fsub_rn(t.choice[e], bias[e]);
        else
            w = t.score[e];
        t.weight[j] = j < t.top_k ? w : 0.0f;
        largest = max(largest, gb_rank_of(w));
    }
    if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN) {
        gb_softmax_terms<gb_route_weights_ahead>(t.weight, t.top_k, largest, t.of_warps, true);
        sum = gb_softmax_sum<gb_route_weights_ahead>(t.weight, t.top_k, t.sum);
#pragma unroll 1
        for (uint32_t j = threadIdx.x; j < t.top_k; j += gb_route_threads)
            t.weight[j] = __fdiv_rn(t.weight[j], sum);
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

/* Steps 7 and 8 of weights that are there, of slots `thread`, `thread` + gb_route_threads .. */
__device__ __forceinline__ void gb_put_weights(const gb_router &router, const gb_arguments &a, uint32_t token,
                                               uint64_t *told, const gb_cuda_token &t, uint32_t thread)
{
    float s = __fadd_rn(gb_sum_in_order<gb_route_weights_ahead>(t.weight, t.top_k), router.epsilon);
    if (router.zero_sum_is_one && !(s > 0.0f))
        s = 1.0f;
#pragma unroll 1
    for (uint32_t j = thread; j < t.top_k; j += gb_route_threads) {
        const size_t pair = (size_t)token * t.top_k + j;
        const float w = gb_renormalised(router, t.top_k >= router.renormalise_from, t.weight[j], s);
        a.routed_ids[pair] = (int32_t)t.slot(j);
        a.routed_weights[pair] = w;
        if (told) {
            __threadfence(); /* who has heard all may end first, and then these are read */
            gb_tell(told, t.top_k + j, __float_as_uint(w));
        }
    }
}

/* Whether the weight is the score, so is the choice, unbiased, and the score is that of a softmax, so that logits may
 * show who is chosen; and a warp has a lane for each. */
__device__ __forceinline__ bool gb_ranks_early(const gb_router &router, uint32_t top_k)
{
    const bool unbiased = router.bias == GB_ROUTER_BIAS_NONE || router.bias == GB_ROUTER_BIAS_LOGIT;
    const bool scores = router.nonfinite == GB_ROUTER_NONFINITE_KEPT || router.nonfinite == GB_ROUTER_NONFINITE_ZERO;
    return gb_is_softmax(router) && router.weight == GB_ROUTER_WEIGHT_SCORE && unbiased && router.groups == 1 &&
           scores && top_k <= 32;
}

/*
 * By a warp: ranks the experts `first` and Count - 1 more by their logits, if none of the token's is NaN or infinite;
 * otherwise it does nothing. Of those that are chosen, block 0 is sent keys, to slots: an expert's is how many are
 * before it. Their rank is 1, and they are told, if the scores show the same, or else 0.
 *
 * Logits that differ by 2^-15, and of which the greater is no more than 64 below the largest, have scores that differ
 * by a factor of e^(2^-15), less what is rounded: both differences from the largest, by at most 2^-18 each where they
 * are below 128, and e^x, the quotients and a product, by less than 2^-20 of themselves in all; the lesser may be
 * subnormal or 0, or further away than that, the greater not.
 * Equal logits have equal scores. So an expert is in the slot that step 5 finds by the scores if every logit is equal
 * to its own or so far apart from it.
 *
 * The loops are short: of code that runs once, it is the instructions that are waited for.
 */
template <uint32_t Count>
__device__ __forceinline__ void gb_rank_early(const gb_cuda_token &t, uint32_t first, uint64_t *chosen, uint64_t *told)
{
    constexpr uint32_t full = 0xFFFFFFFFu, bits = 10, in_word = 32 / bits;
    static_assert(gb_route_early < 1u << bits && Count <= 2 * in_word, "numbers of experts in two words");
    const uint32_t lane = threadIdx.x % 32, room = gb_route_logits(t.experts);
    float own[Count];
    uint32_t greater[Count] = {}, largest = 0;
#pragma unroll
    for (uint32_t n = 0; n < Count; n++)
        own[n] = __fadd_rn(t.logit[min(first + n, room - 1)], 0.0f); /* -0 - +0 would be -0 */
#pragma unroll 4
    for (uint32_t i = lane; i < room; i += 32) {
        const float other = t.logit[i];
        largest = max(largest, __float_as_uint(fabsf(other)));
#pragma unroll
        for (uint32_t n = 0; n < Count; n++) /* by signs, of which there are more than predicates */
            greater[n] += __float_as_uint(__fsub_rn(own[n], other)) >> 31;
    }
    if (__any_sync(full, largest >= __float_as_uint(INFINITY)))
        return;
    uint32_t words[2] = {};
#pragma unroll
    for (uint32_t n = 0; n < Count; n++)
        words[n / in_word] |= greater[n] << bits * (n % in_word);
    const uint64_t before = __reduce_add_sync(full, words[0]) | (uint64_t)__reduce_add_sync(full, words[1])
                                                                    << bits * in_word;
#pragma unroll 1
    for (uint32_t n = 0; n < Count && first + n < t.experts; n++) {
        uint32_t slot = before >> bits * n & ((1u << bits) - 1), equal = 0, least = UINT32_MAX;
        if (slot >= t.top_k)
            continue;
        const float mine = t.logit[first + n];
        float highest = 0.0f;
#pragma unroll 4
        for (uint32_t i = lane; i < room; i += 32) {
            const float above = __fsub_rn(t.logit[i], mine);
            const uint32_t apart = __float_as_uint(fabsf(above)) - 1; /* 0 is the greatest of all distances */
            highest = fmaxf(highest, above);
            least = min(least, apart);
            equal += i < first + n ? apart >> 31 : 0;
        }
        const bool shown = __all_sync(full, highest <= 64.0f && least >= __float_as_uint(0x1p-15f) - 1);
        slot += __reduce_add_sync(full, equal);
        if (slot >= t.top_k || lane > 0)
            continue;
        /* after block 0 took the word back and then sent its logits, and before that one tells a weight */
        if (told && shown) {
            gb_tell(told, slot, first + n);
            __threadfence();
        }
        gb_send((uint32_t *)&t.first[slot], chosen, 0, {~(first + n), (uint32_t)shown});
    }
}

/* Barrier 1 of the block, of two warps. */
__device__ __forceinline__ void gb_meet()
{
    __syncwarp();
    asm volatile("barrier.sync 1, 64;" ::: "memory");
}

/* Steps 6 to 8 by a warp, a slot a lane: true if every key of gb_rank_early has the rank 1, and otherwise nothing is
 * done. It meets the warp that adds all q, in both cases. */
__device__ __forceinline__ bool gb_weigh_early(const gb_router &router, const gb_arguments &a, uint32_t token,
                                               uint64_t *chosen, uint64_t *told, const gb_cuda_token &t)
{
    const uint32_t lane = threadIdx.x % 32;
    gb_receive(chosen);
    const bool shown = __all_sync(0xFFFFFFFFu, lane >= t.top_k || gb_key_rank(t.first[lane]) == 1);
    const float q = shown && lane < t.top_k ? t.score[t.slot(lane)] : 0.0f;
    gb_meet();
    if (!shown)
        return false;
    if (lane < gb_route_room(t.top_k, gb_route_weights_ahead))
        t.weight[lane] = lane < t.top_k ? gb_score(router, q, *t.sum) : 0.0f;
    __syncwarp();
    gb_put_weights(router, a, token, told, t, lane);
    return true;
}

/* The block's token, all of whose logits are there: steps 2 to 8. chosen: where keys come of those that gb_rank_early
 * has ranked, or NULL. */
__device__ __forceinline__ void gb_route_token(const gb_router &router, const gb_arguments &a, uint32_t token,
                                               uint64_t *chosen, uint64_t *told, const gb_cuda_token &t)
{
    float sum = 1.0f;
    uint32_t largest = 0;
    bool finite = true;
#pragma unroll 1
    for (uint32_t e = threadIdx.x; e < t.experts; e += gb_route_threads) {
        const float l = t.logit[e];
        t.score[e] = l;
        largest = max(largest, gb_rank_of(l));
        finite &= isfinite(l);
    }
    if (gb_is_softmax(router)) {
        const bool early =
            gb_softmax_terms<gb_route_scores_ahead>(t.score, t.experts, largest, t.of_warps, finite) && chosen;
        const uint32_t warp = threadIdx.x / 32;
        bool done = false;
        if (warp == 0) {
            sum = gb_sum_in_order<gb_route_scores_ahead>(t.score, t.experts);
            if (threadIdx.x == 0)
                *t.sum = sum;
            if (early)
                gb_meet();
        } else if (warp == 1 && early) {
            done = gb_weigh_early(router, a, token, chosen, told, t);
        }
        if (__syncthreads_or(done))
            return;
        sum = *t.sum;
    }
    gb_find_choices(router, a.router_bias, sum, t);
    if (router.groups > 1)
        gb_mask_groups(router, t);
    if (!gb_choose_few(t))
        gb_choose_many(t);
#pragma unroll 1
    for (uint32_t j = threadIdx.x; told && j < t.top_k; j += gb_route_threads)
        gb_tell(told, j, t.slot(j)); /* what gb_rank_early has told is the same */
    gb_find_weights(router, a.router_bias, t);
    __syncthreads();
    gb_put_weights(router, a, token, told, t, threadIdx.x);
}

#endif
