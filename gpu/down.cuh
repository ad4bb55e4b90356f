/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of down: docs/numerics.md#down. */
#ifndef GB_GPU_DOWN_CUH
#define GB_GPU_DOWN_CUH

#include "gpu/dot.cuh"
#include "gpu/kernels.cuh"

/*
 * How the work is divided, which no bit depends on: blocks of at most Threads, Resident of them on a multiprocessor,
 * teams of Lanes threads, units of Rows output rows of one slot, Block output rows to a block.
 */
template <uint32_t Lanes_, uint32_t Rows_, uint32_t Threads_, uint32_t Block_, uint32_t Resident_> struct gb_down_tile {
    static constexpr uint32_t Lanes = Lanes_, Rows = Rows_, Threads = Threads_, Block = Block_, Resident = Resident_;
    static_assert(Block % Rows == 0 && Block <= Threads && Threads % 32 == 0, "a thread finishes a row");
};

constexpr size_t gb_down_staging_bytes = 40 * 1024; /* what a block's staged slots may take, unless one needs more */

/* How many slots are staged at a time. */
template <class Format> __host__ __device__ constexpr uint32_t gb_slots_staged(uint32_t intermediate, uint32_t top_k)
{
    const uint32_t fit = (uint32_t)(gb_down_staging_bytes / (sizeof(float) * gb_staged_floats<Format>(intermediate)));
    return fit == 0 ? 1 : fit < top_k ? fit : top_k;
}

/* Shared memory: staged intermediates [slots][staged], then dot products [top_k][Block]. */
template <class Format, class Tile> size_t gb_down_shared_bytes(uint32_t intermediate, uint32_t top_k)
{
    const size_t slots = gb_slots_staged<Format>(intermediate, top_k);
    return sizeof(float) * (slots * gb_staged_floats<Format>(intermediate) + (size_t)top_k * Tile::Block);
}

/* The slots of a token that are not empty, in slot order. */
struct gb_slot_list {
    uint32_t count;
    uint32_t slot[GB_CUDA_MAX_TOP_K];
    uint32_t expert[GB_CUDA_MAX_TOP_K];
};

/* Called by the block's first warp; thread j looks at slot j. */
__device__ __forceinline__ void gb_list_slots(const int32_t *ids, const struct gb_shape &shape, gb_slot_list *list)
{
    static_assert(GB_CUDA_MAX_TOP_K <= 32, "a warp lists the slots");
    const uint32_t expert = threadIdx.x < shape.top_k ? (uint32_t)ids[threadIdx.x] : shape.experts;
    const uint32_t present = __ballot_sync(0xFFFFFFFFu, expert < shape.experts);
    if (expert < shape.experts) {
        const uint32_t place = (uint32_t)__popc(present & ((1u << threadIdx.x) - 1));
        list->slot[place] = threadIdx.x;
        list->expert[place] = expert;
    }
    if (threadIdx.x == 0)
        list->count = (uint32_t)__popc(present);
}

/* Block (b, token): output rows b * Tile::Block .. of one token. The rows past the last one are computed unseen. */
template <class Format, class Tile>
__global__ void __launch_bounds__(Tile::Threads, Tile::Resident)
    gb_down_kernel(const __grid_constant__ struct gb_arguments a)
{
    extern __shared__ float4 shared[];
    __shared__ gb_slot_list list;
    constexpr uint32_t Rows = Tile::Rows, groups = Tile::Block / Rows;
    const uint32_t columns = a.shape.intermediate, top_k = a.shape.top_k, hidden = a.shape.hidden;
    const size_t pair = (size_t)blockIdx.y * top_k; /* of slot 0 */
    const uint32_t slots = gb_slots_staged<Format>(columns, top_k), stride = gb_staged_floats<Format>(columns);
    float *staged = (float *)shared, *dots = staged + slots * stride;
    const uint32_t row = blockIdx.x * Tile::Block;
    if (threadIdx.x < 32)
        gb_list_slots(a.ids + pair, a.shape, &list);
    __syncthreads();
    for (uint32_t first = 0; first < list.count; first += slots) {
        const uint32_t count = min(slots, list.count - first), units = count * groups;
        const auto rows_of = [&](uint32_t unit, gb_cuda_row(&rows)[Rows]) {
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                rows[n] = Format::row(a.down, list.expert[first + unit / groups],
                                      min(row + unit % groups * Rows + n, hidden - 1));
        };
        const auto source = [&](uint32_t j) { return a.intermediate + (pair + list.slot[first + j]) * columns; };
        const auto x_of = [&](uint32_t unit, uint32_t) { return staged + unit / groups * stride; };
        const auto finish = [&](uint32_t unit, uint32_t n, uint32_t, float sum) {
            dots[(first + unit / groups) * Tile::Block + unit % groups * Rows + n] = sum;
        };
        const auto round = gb_first_round<Format, Tile::Lanes, Rows>(units, columns, rows_of);
        __syncthreads(); /* nobody reads the slots staged before any more */
        if (!__syncthreads_or(gb_stage<Format>(count, columns, source, Format::x_factor, staged))) {
            gb_dots<Format, 1, false>(units, columns, round, rows_of, x_of, finish);
        } else {
            gb_stage<Format>(count, columns, source, 1.0f, staged);
            __syncthreads();
            gb_dots<Format, 1, true>(units, columns, round, rows_of, x_of, finish);
        }
    }
    __syncthreads();
    if (threadIdx.x < Tile::Block && row + threadIdx.x < hidden) {
        float y = 0.0f;
        for (uint32_t j = 0; j < list.count; j++) {
            const float dot = __fmul_rn(dots[j * Tile::Block + threadIdx.x], gb_cuda_global(a.down, list.expert[j], 0));
            y = __fmaf_rn(a.routing_weights[pair + list.slot[j]], dot, y);
        }
        ((float *)a.output)[(size_t)blockIdx.y * hidden + row + threadIdx.x] = y;
    }
}

/* As many threads as have a unit in one pass over all slots, if that is no more than the tile has. */
template <class Format, class Tile> enum gb_status gb_down_launch(const struct gb_arguments &a, struct gb_error *error)
{
    const dim3 grid((a.shape.hidden + Tile::Block - 1) / Tile::Block, a.shape.tokens);
    const uint32_t used = a.shape.top_k * (Tile::Block / Tile::Rows) * Tile::Lanes;
    const uint32_t threads = used < Tile::Threads ? (used + 31) / 32 * 32 : Tile::Threads;
    return gb_cuda_launch("down", gb_down_kernel<Format, Tile>, grid, threads,
                          gb_down_shared_bytes<Format, Tile>(a.shape.intermediate, a.shape.top_k), a.stream, error, a);
}

#endif
