/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs (token, slot) have the same expert, found by every block for itself. */
#ifndef GB_GPU_MMA16_ITEMS_CUH
#define GB_GPU_MMA16_ITEMS_CUH

#include "gpu/mma16.cuh"

constexpr uint32_t gb_mma16_window = 1024;     /* pairs that are grouped at a time */

/* An item: up to 8 pairs of one expert, which one pass over its weights serves. */
struct gb_mma16_items {
    uint32_t count;
    uint32_t sums[32];                    /* of every warp */
    uint16_t order[gb_mma16_window];      /* the window's pairs, those of an expert side by side */
    uint16_t expert[gb_mma16_window];     /* of an item */
    uint16_t first[gb_mma16_window];      /* of an item: its pairs are order[first ..] */
    uint8_t pairs[gb_mma16_window];       /* of an item: how many */
};

/*
 * Groups the pairs first .. first + count - 1, count at most the window, with all threads of the block, of which there
 * are at least 64 and a multiple of 32. starts: [experts], shared. Synchronises before it returns. An expert's pairs are in
 * ascending order, so that all blocks cut them into the same items.
 */
__device__ inline void gb_mma16_group(const int32_t *ids, uint32_t first, uint32_t count, uint32_t experts,
                                      gb_mma16_items *items, uint32_t *starts)
{
    const uint32_t thread = threadIdx.x, threads = blockDim.x, lane = thread % 32, warp = thread / 32;
    for (uint32_t e = thread; e < experts; e += threads)
        starts[e] = 0;
    __syncthreads();
    for (uint32_t p = thread; p < count; p += threads) {
        const uint32_t e = (uint32_t)ids[first + p];
        if (e < experts)
            atomicAdd(&starts[e], 1u);
    }
    __syncthreads();
    /* a running sum over experts of (items, pairs), 16 bits each */
    const uint32_t each = (experts + threads - 1) / threads, from = thread * each, to = min(from + each, experts);
    uint32_t mine = 0;
    for (uint32_t e = from; e < to; e++)
        mine += (starts[e] + gb_mma16_tokens - 1) / gb_mma16_tokens << 16 | starts[e];
    uint32_t sum = mine;
#pragma unroll
    for (uint32_t m = 1; m < 32; m *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, m);
        sum += lane >= m ? other : 0;
    }
    if (lane == 31)
        items->sums[warp] = sum;
    __syncthreads();
    uint32_t before = sum - mine;
    for (uint32_t w = 0; w < warp; w++)
        before += items->sums[w];
    for (uint32_t e = from; e < to; e++) {
        const uint32_t pairs = starts[e];
        uint32_t item = before >> 16, at = before & 0xFFFF;
        starts[e] = at;
        before += (pairs + gb_mma16_tokens - 1) / gb_mma16_tokens << 16 | pairs;
        for (uint32_t done = 0; done < pairs; done += gb_mma16_tokens, item++) {
            items->expert[item] = (uint16_t)e;
            items->first[item] = (uint16_t)(at + done);
            items->pairs[item] = (uint8_t)min(gb_mma16_tokens, pairs - done);
        }
    }
    if (thread == threads - 1)
        items->count = before >> 16;
    __syncthreads();
    if (warp == 0)
        for (uint32_t base = 0; base < count; base += 32) {
            const uint32_t p = base + lane, e = p < count ? (uint32_t)ids[first + p] : experts;
            const uint32_t same = __match_any_sync(0xFFFFFFFFu, e);
            const uint32_t at = e < experts ? starts[e] : 0;
            __syncwarp();
            if (e < experts) {
                items->order[at + (uint32_t)__popc(same & ((1u << lane) - 1))] = (uint16_t)p;
                if (lane == 31u - (uint32_t)__clz((int)same))
                    starts[e] = at + (uint32_t)__popc(same);
            }
            __syncwarp();
        }
    __syncthreads();
}

#endif
