/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs (token, slot) have the same expert. */
#ifndef GB_GPU_MMA16_ITEMS_CUH
#define GB_GPU_MMA16_ITEMS_CUH

#include "gpu/kernels.cuh"
#include "gpu/mma16.cuh"
#include "gpu/overlap.cuh"

constexpr uint32_t gb_mma16_most_groups = 2; /* of 8 tokens, which an item has */
constexpr uint32_t gb_mma16_most_pairs = gb_mma16_most_groups * gb_mma16_tokens;

/* Pairs of one expert, which one pass over its weights serves: up to 8 of them, or 16. */
struct alignas(16) gb_mma16_item {
    uint16_t pair[gb_mma16_most_pairs];
    uint32_t expert;
    uint32_t pairs;
    float global[2];    /* where a block has it in shared memory: the expert's global scales */
    uint32_t unused[4]; /* to a power of two of bytes: an address takes fewer registers */
};

/* The items of a batch, by expert. */
struct alignas(16) gb_mma16_items {
    uint32_t used;         /* how many there are */
    gb_mma16_item item[1]; /* [used] */
};

/* No batch has more, if an item may have `of_item` pairs or more: every expert ends in one that may have one pair. */
__host__ __device__ constexpr uint32_t gb_mma16_most_items(uint32_t pairs, uint32_t experts, uint32_t of_item)
{
    const uint32_t most = (pairs + (of_item - 1) * experts) / of_item;
    return pairs < most ? pairs : most;
}

constexpr uint32_t gb_mma16_few_pairs = 256; /* up to so many, every block finds the items by itself */

/*
 * Which items up to 256 pairs make, those of empty slots left out, in the order of the first pair of each. A warp calls
 * it, and in every block it comes to the same: how many items there are. All in shared memory:
 *   place [pairs]:      out, of a pair: its item times 16 and its place in it; empty slots have gb_mma16_no_place;
 *   expert [pairs]:     out, of a pair;
 *   entries [experts]:  scratch; of an expert's pairs so far, how many there are, and the last one's item.
 */
constexpr uint16_t gb_mma16_no_place = 0xFFFF;

template <uint32_t OfItem>
__device__ uint32_t gb_mma16_place_pairs(const int32_t *ids, uint32_t pairs, uint32_t experts, uint16_t *place,
                                         uint16_t *expert, uint32_t *entries)
{
    constexpr uint32_t rounds = gb_mma16_few_pairs / 32;
    const uint32_t lane = threadIdx.x % 32, before = (1u << lane) - 1;
    uint32_t id[rounds], count = 0;
#pragma unroll
    for (uint32_t k = 0; k < rounds; k++)
        id[k] = 32 * k + lane < pairs ? min((uint32_t)__ldcg(ids + 32 * k + lane), experts) : experts;
#pragma unroll
    for (uint32_t k = 0; k < rounds; k++)
        if (id[k] < experts)
            entries[id[k]] = 0;
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < rounds; k++) {
        if (32 * k >= pairs)
            break;
        const bool used = id[k] < experts;
        const uint32_t same = __match_any_sync(0xFFFFFFFFu, id[k]), entry = used ? entries[id[k]] : 0;
        const uint32_t rank = (entry & 0xFFFFu) + (uint32_t)__popc(same & before); /* among the expert's pairs */
        const bool leads = used && rank % OfItem == 0;
        const uint32_t leaders = __ballot_sync(0xFFFFFFFFu, leads), own = count + (uint32_t)__popc(leaders & before);
        const uint32_t leader = same & leaders & (before << 1 | 1u); /* the last of them has this pair's item */
        const uint32_t theirs = __shfl_sync(0xFFFFFFFFu, own, leader ? 31 - __clz((int)leader) : (int)lane);
        const uint32_t item = leader ? theirs : entry >> 16;
        __syncwarp();
        if (32 * k + lane < pairs) {
            place[32 * k + lane] = used ? (uint16_t)(item * gb_mma16_most_pairs + rank % OfItem) : gb_mma16_no_place;
            expert[32 * k + lane] = (uint16_t)id[k];
        }
        if (used && !(same & ~(before << 1 | 1u)))
            entries[id[k]] = rank + 1 | item << 16;
        count += (uint32_t)__popc(leaders);
        __syncwarp();
    }
    return count;
}

constexpr uint32_t gb_mma16_items_threads = 1024;

__host__ __device__ constexpr uint32_t gb_mma16_items_bytes(uint32_t experts)
{
    return (uint32_t)sizeof(uint32_t) * 2 * experts;
}

/* One block. ids: [pairs]. Which of an expert's pairs share an item depends on the order in which threads come, and no
 * bit of the outputs on that. Shared: kernels of an order that asks for shared memory follow (gpu/mma16.cu). */
template <bool Shared>
__global__ void __launch_bounds__(gb_mma16_items_threads)
    gb_mma16_items_kernel(const int32_t *ids, uint32_t pairs, uint32_t experts, uint32_t of_item, gb_mma16_items *items)
{
    extern __shared__ uint32_t before[]; /* [experts]: items of the experts in front */
    uint32_t *count = before + experts;  /* [experts]: pairs, then those that have their places */
    __shared__ uint32_t sums[32];        /* of every warp */
    const uint32_t thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    for (uint32_t e = thread; e < experts; e += gb_mma16_items_threads)
        count[e] = 0;
    gb_wait_for_previous();
    gb_let_next_start();
    __syncthreads();
    for (uint32_t p = thread; p < pairs; p += gb_mma16_items_threads)
        if ((uint32_t)ids[p] < experts)
            atomicAdd(&count[ids[p]], 1u);
    __syncthreads();
    /* a running sum of items over experts */
    const uint32_t each = experts / gb_mma16_items_threads + 1;
    const uint32_t from = min(thread * each, experts), to = min(from + each, experts);
    uint32_t mine = 0;
    for (uint32_t e = from; e < to; e++)
        mine += (count[e] + of_item - 1) / of_item;
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t m = 1; m < 32; m *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, m);
        sum += lane >= m ? other : 0;
    }
    if (lane == 31)
        sums[warp] = sum;
    __syncthreads();
    uint32_t next = sum - mine + __reduce_add_sync(0xFFFFFFFFu, lane < warp ? sums[lane] : 0);
    for (uint32_t e = from; e < to; e++) {
        before[e] = next;
        for (uint32_t k = 0; k < count[e]; k += of_item) {
            items->item[next].expert = e;
            items->item[next++].pairs = min(of_item, count[e] - k);
        }
        count[e] = 0;
    }
    if (thread == gb_mma16_items_threads - 1)
        items->used = next;
    __syncthreads();
    for (uint32_t p = thread; p < pairs; p += gb_mma16_items_threads) {
        const uint32_t e = (uint32_t)ids[p];
        if (e >= experts)
            continue;
        const uint32_t at = atomicAdd(&count[e], 1u);
        items->item[before[e] + at / of_item].pair[at % of_item] = (uint16_t)p;
    }
}

#endif
