/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs (token, slot) have the same expert. */
#ifndef GB_GPU_MMA16_ITEMS_CUH
#define GB_GPU_MMA16_ITEMS_CUH

#include "gpu/kernels.cuh"
#include "gpu/mma16.cuh"
#include "gpu/overlap.cuh"

/* Up to 8 pairs of one expert, which one pass over its weights serves. */
struct alignas(16) gb_mma16_item {
    uint16_t pair[gb_mma16_tokens];
    uint32_t expert; /* the number of experts: these slots are empty */
    uint32_t pairs;
};

/* The items of a batch, those of an expert side by side. */
struct alignas(16) gb_mma16_items {
    uint32_t count;
    gb_mma16_item item[1]; /* [count] */
};

__host__ __device__ constexpr uint32_t gb_mma16_items_of(uint32_t pairs)
{
    return (pairs + gb_mma16_tokens - 1) / gb_mma16_tokens;
}

/* No batch has more: every expert, and the empty slots, end in an item that may have one pair. */
__host__ __device__ constexpr uint32_t gb_mma16_most_items(uint32_t pairs, uint32_t experts)
{
    const uint32_t most = (pairs + (gb_mma16_tokens - 1) * (experts + 1)) / gb_mma16_tokens;
    return pairs < most ? pairs : most;
}

constexpr uint32_t gb_mma16_few_pairs = 256; /* up to so many, a block finds its item by itself */

/* The item that pair p leads: with it the next pairs of its expert, up to 8 in all. Whether it leads one: of an
 * expert's pairs, every 8th does. ids: [pairs]. All of a block call it. */
[[maybe_unused]] static __device__ bool gb_mma16_find_item(const int32_t *ids, uint32_t pairs, uint32_t p,
                                                           gb_mma16_item *item)
{
    __shared__ uint32_t same[gb_mma16_few_pairs / 32]; /* a bit for every pair of the expert */
    const uint32_t lane = threadIdx.x % 32, before = p % 32;
    const int32_t id = __ldcg(ids + p);
    for (uint32_t q = threadIdx.x; q < gb_mma16_few_pairs; q += blockDim.x) {
        const uint32_t bits = __ballot_sync(0xFFFFFFFFu, q < pairs && __ldcg(ids + q) == id);
        if (lane == 0)
            same[q / 32] = bits;
    }
    __syncthreads();
    const uint32_t word = lane < gb_mma16_few_pairs / 32 ? same[lane] : 0, count = (uint32_t)__popc(word);
    const uint32_t earlier = lane < p / 32 ? count : lane == p / 32 ? (uint32_t)__popc(word & ((1u << before) - 1)) : 0;
    if (__reduce_add_sync(0xFFFFFFFFu, earlier) % gb_mma16_tokens)
        return false;
    uint32_t rest = lane < p / 32 ? 0 : lane == p / 32 ? word >> before << before : word, sum = (uint32_t)__popc(rest);
#pragma unroll
    for (uint32_t m = 1; m < 32; m *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, m);
        sum += lane >= m ? other : 0;
    }
    if (threadIdx.x < 32)
        for (uint32_t t = sum - (uint32_t)__popc(rest); rest && t < gb_mma16_tokens; t++, rest &= rest - 1)
            item->pair[t] = (uint16_t)(32 * lane + (uint32_t)__ffs((int)rest) - 1);
    if (threadIdx.x == 31) {
        item->expert = (uint32_t)id;
        item->pairs = min(sum, gb_mma16_tokens);
    }
    __syncthreads();
    return true;
}

constexpr uint32_t gb_mma16_items_threads = 1024;

/* One block. ids: [pairs]. Which of an expert's pairs share an item depends on the order in which threads come, and no
 * bit of the outputs on that. */
[[maybe_unused]] static __global__ void __launch_bounds__(gb_mma16_items_threads)
    gb_mma16_items_kernel(const int32_t *ids, uint32_t pairs, uint32_t experts, gb_mma16_items *items)
{
    __shared__ uint32_t place[GB_CUDA_MMA16_MOST_EXPERTS + 1]; /* of an expert: its pairs, then the next one's place */
    __shared__ uint32_t sums[32];                              /* of every warp */
    const uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    for (uint32_t e = thread; e <= experts; e += gb_mma16_items_threads)
        place[e] = 0;
    gb_wait_for_previous();
    gb_let_next_start();
    __syncthreads();
    for (uint32_t p = thread; p < pairs; p += gb_mma16_items_threads)
        atomicAdd(&place[min((uint32_t)ids[p], experts)], 1u);
    __syncthreads();
    /* a running sum of items over experts */
    const uint32_t each = experts / gb_mma16_items_threads + 1, from = thread * each;
    const uint32_t to = min(from + each, experts + 1);
    uint32_t mine = 0;
    for (uint32_t e = from; e < to; e++)
        mine += gb_mma16_items_of(place[e]);
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t m = 1; m < 32; m *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, m);
        sum += lane >= m ? other : 0;
    }
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    uint32_t item = sum - mine + __reduce_add_sync(0xFFFFFFFFu, lane < warp ? sums[lane] : 0);
    for (uint32_t e = from; e < to; e++) {
        const uint32_t of_expert = place[e];
        place[e] = item * gb_mma16_tokens;
        for (uint32_t done = 0; done < of_expert; done += gb_mma16_tokens, item++) {
            items->item[item].expert = e;
            items->item[item].pairs = min(gb_mma16_tokens, of_expert - done);
        }
    }
    if (thread == gb_mma16_items_threads - 1)
        items->count = item;
    __syncthreads();
    for (uint32_t p = thread; p < pairs; p += gb_mma16_items_threads) {
        const uint32_t at = atomicAdd(&place[min((uint32_t)ids[p], experts)], 1u);
        items->item[at / gb_mma16_tokens].pair[at % gb_mma16_tokens] = (uint16_t)p;
    }
}

#endif
