/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs (token, slot) have the same expert, found by every block for itself. */
#ifndef GB_GPU_MMA16_ITEMS_CUH
#define GB_GPU_MMA16_ITEMS_CUH

#include "gpu/mma16.cuh"

constexpr uint32_t gb_mma16_window = 1024; /* pairs that are grouped at a time */

/* An item: up to 8 pairs of one expert, which one pass over its weights serves. */
struct gb_mma16_items {
    uint32_t count;
    uint32_t sums[32];                         /* of every warp */
    alignas(16) uint16_t ids[gb_mma16_window]; /* of the window's pairs; 0xFFFF: none */
    uint16_t order[gb_mma16_window];           /* the window's pairs, those of an expert side by side and ascending */
    uint16_t expert[gb_mma16_window];          /* of an item */
    uint16_t first[gb_mma16_window];           /* of an item: its pairs are order[first ..] */
    uint8_t pairs[gb_mma16_window];            /* of an item: how many */
};

__device__ __forceinline__ uint32_t gb_mma16_items_of(uint32_t pairs)
{
    return (pairs + gb_mma16_tokens - 1) / gb_mma16_tokens;
}

/* Up to 32 pairs, by one warp: experts in the order in which they first occur. */
__device__ inline void gb_mma16_group_few(const int32_t *ids, uint32_t count, uint32_t experts, gb_mma16_items *items)
{
    const uint32_t lane = threadIdx.x % 32, before = (1u << lane) - 1;
    const uint32_t e = lane < count ? (uint32_t)ids[lane] : 0xFFFFu;
    const uint32_t same = __match_any_sync(0xFFFFFFFFu, e < experts ? e : 0xFFFFu);
    const uint32_t rank = (uint32_t)__popc(same & before), pairs = (uint32_t)__popc(same);
    const bool leads = e < experts && rank == 0;
    uint32_t sum = leads ? gb_mma16_items_of(pairs) << 16 | pairs : 0;
    const uint32_t mine = sum;
#pragma unroll
    for (uint32_t m = 1; m < 32; m *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, m);
        sum += lane >= m ? other : 0;
    }
    const uint32_t start = __shfl_sync(0xFFFFFFFFu, sum - mine, __ffs((int)same) - 1) & 0xFFFF;
    items->ids[lane] = (uint16_t)(e < experts ? e : 0xFFFFu);
    if (e < experts)
        items->order[start + rank] = (uint16_t)lane;
    if (leads)
        for (uint32_t done = 0, item = sum - mine >> 16; done < pairs; done += gb_mma16_tokens, item++) {
            items->expert[item] = (uint16_t)e;
            items->first[item] = (uint16_t)(start + done);
            items->pairs[item] = (uint8_t)min(gb_mma16_tokens, pairs - done);
        }
    if (lane == 31)
        items->count = sum >> 16;
}

/*
 * Groups `count` pairs, at most the window, with all threads of the block, at least half as many and a multiple of 32.
 * starts: [experts], shared. Synchronises before it returns. The same result in every block.
 */
__device__ inline void gb_mma16_group(const int32_t *ids, uint32_t count, uint32_t experts, gb_mma16_items *items,
                                      uint32_t *starts)
{
    const uint32_t thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = thread / 32;
    if (count <= 32) {
        if (warp == 0)
            gb_mma16_group_few(ids, count, experts, items);
        __syncthreads();
        return;
    }
    for (uint32_t p = thread; p < count; p += threads) {
        const uint32_t e = (uint32_t)ids[p];
        items->ids[p] = (uint16_t)(e < experts ? e : 0xFFFFu);
    }
    for (uint32_t e = thread; e < experts; e += threads)
        starts[e] = 0;
    __syncthreads();
    for (uint32_t p = thread; p < count; p += threads)
        if (items->ids[p] != 0xFFFFu)
            atomicAdd(&starts[items->ids[p]], 1u);
    __syncthreads();
    /* a running sum over experts of (items, pairs), 16 bits each */
    const uint32_t each = (experts + threads - 1) / threads, from = thread * each, to = min(from + each, experts);
    uint32_t mine = 0;
    for (uint32_t e = from; e < to; e++)
        mine += gb_mma16_items_of(starts[e]) << 16 | starts[e];
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t m = 1; m < 32; m *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, m);
        sum += lane >= m ? other : 0;
    }
    if (lane == 31)
        items->sums[warp] = sum;
    __syncthreads();
    uint32_t before = sum - mine + __reduce_add_sync(0xFFFFFFFFu, lane < warp ? items->sums[lane] : 0);
    for (uint32_t e = from; e < to; e++) {
        const uint32_t pairs = starts[e];
        uint32_t item = before >> 16, at = before & 0xFFFF;
        starts[e] = pairs << 16 | at;
        before += gb_mma16_items_of(pairs) << 16 | pairs;
        for (uint32_t done = 0; done < pairs; done += gb_mma16_tokens, item++) {
            items->expert[item] = (uint16_t)e;
            items->first[item] = (uint16_t)(at + done);
            items->pairs[item] = (uint8_t)min(gb_mma16_tokens, pairs - done);
        }
    }
    if (thread == threads - 1)
        items->count = before >> 16;
    __syncthreads();
    for (uint32_t p = thread; p < count; p += threads)
        if (items->ids[p] != 0xFFFFu)
            items->order[atomicAdd(&starts[items->ids[p]], 1u) & 0xFFFF] = (uint16_t)p;
    __syncthreads();
    /* An expert's pairs in one item may have any order. Those of several are put in ascending order, by counting. */
    uint32_t places[2], kept = 0; /* of the thread's pairs */
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t p = thread + k * threads;
        places[k] = 0xFFFFFFFFu;
        if (p >= count || items->ids[p] == 0xFFFFu)
            continue;
        const uint32_t state = starts[items->ids[p]], pairs = state >> 16, first = (state & 0xFFFF) - pairs;
        if (pairs <= gb_mma16_tokens)
            continue;
        places[k] = first;
        for (uint32_t q = 0; q < pairs; q++)
            places[k] += items->order[first + q] < p;
        kept++;
    }
    if (!__syncthreads_or((int)kept))
        return;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++)
        if (places[k] != 0xFFFFFFFFu)
            items->order[places[k]] = (uint16_t)(thread + k * threads);
    __syncthreads();
}

#endif
