/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of gate_up: docs/numerics.md#gate_up. */
#ifndef GB_GPU_GATE_UP_CUH
#define GB_GPU_GATE_UP_CUH

#include "gpu/device.cuh"
#include "gpu/dot.cuh"
#include "gpu/silu.cuh"

/*
 * How the work is divided, which no bit depends on: blocks of Threads, Resident of them on a multiprocessor, teams of
 * Lanes threads, units of so many Neurons (their gate and their up rows), Block neurons to a block, Tokens tokens of
 * the same expert at a time, so that a weight is decoded once for all of them.
 */
template <uint32_t Lanes_, uint32_t Neurons_, uint32_t Threads_, uint32_t Block_, uint32_t Tokens_, uint32_t Resident_>
struct gb_gate_up_tile {
    static constexpr uint32_t Lanes = Lanes_, Neurons = Neurons_, Threads = Threads_, Block = Block_, Tokens = Tokens_,
                              Resident = Resident_;
    static constexpr uint32_t Rows = 2 * Neurons;
    static_assert(Tokens * Block <= Threads, "a thread finishes one neuron for one token");
    static_assert(16 % Neurons == 0 && Block % Neurons == 0, "units are whole: intermediate is a multiple of 16");
};

/* Pairs (token, slot) of the same expert are found among this many neighbours. */
constexpr uint32_t gb_gate_up_window = 1024;

/* Shared memory: x of the tokens [Tokens][staged], then gate and up sums [Tokens][2][Block]. */
template <class Format, class Tile> size_t gb_gate_up_shared_bytes(uint32_t hidden)
{
    return sizeof(float) * Tile::Tokens * (gb_staged_floats<Format>(hidden) + 2 * (size_t)Tile::Block);
}

/* The pairs of one window that have the same expert, ascending. */
struct gb_pair_list {
    uint32_t count;
    uint32_t pair[gb_gate_up_window];
};

/* Called by the block's first warp: lists the pairs of `pair`'s window that have its expert. */
__device__ __forceinline__ void gb_list_pairs(const int32_t *ids, uint32_t pairs, uint32_t pair, gb_pair_list *list)
{
    const int32_t expert = ids[pair];
    const uint32_t first = pair / gb_gate_up_window * gb_gate_up_window, end = min(first + gb_gate_up_window, pairs);
    uint32_t count = 0;
#pragma unroll 4
    for (uint32_t base = first; base < end; base += 32) {
        const uint32_t at = base + threadIdx.x;
        const bool same = at < end && ids[at] == expert;
        const uint32_t mask = __ballot_sync(0xFFFFFFFFu, same);
        if (same)
            list->pair[count + (uint32_t)__popc(mask & ((1u << threadIdx.x) - 1))] = at;
        count += (uint32_t)__popc(mask);
    }
    if (threadIdx.x == 0)
        list->count = count;
}

/*
 * Block (b, pair): neurons b * Tile::Block .. of the pair's expert, for every pair of the window with that expert. The
 * block of the first such pair does all, those of the others nothing.
 */
template <class Format, class Tile>
__global__ void __launch_bounds__(Tile::Threads, Tile::Resident)
    gb_gate_up_kernel(const __grid_constant__ struct gb_arguments a)
{
    extern __shared__ float4 shared[];
    __shared__ gb_pair_list list;
    const uint32_t hidden = a.shape.hidden, intermediate = a.shape.intermediate, top_k = a.shape.top_k;
    const uint32_t first = blockIdx.x * Tile::Block, neurons = min(Tile::Block, intermediate - first);
    const uint32_t expert = (uint32_t)a.ids[blockIdx.y];
    if (expert >= a.shape.experts) {
        if (threadIdx.x < neurons)
            a.intermediate[(size_t)blockIdx.y * intermediate + first + threadIdx.x].bits = 0;
        return;
    }
    if (threadIdx.x < 32)
        gb_list_pairs(a.ids, a.shape.tokens * top_k, blockIdx.y, &list);
    __syncthreads();
    if (list.pair[0] != blockIdx.y)
        return;
    const uint32_t stride = gb_staged_floats<Format>(hidden);
    float *staged = (float *)shared, *sums = staged + Tile::Tokens * stride;
    const float global[2] = {gb_cuda_global(a.gate_up, expert, 0), gb_cuda_global(a.gate_up, expert, 1)};
    const auto rows_of = [&](uint32_t unit, gb_cuda_row(&rows)[Tile::Rows]) {
#pragma unroll
        for (uint32_t n = 0; n < Tile::Rows; n++)
            rows[n] = Format::row(a.gate_up, expert,
                                  n / Tile::Neurons * intermediate + first + unit * Tile::Neurons + n % Tile::Neurons);
    };
    const auto x_of = [&](uint32_t, uint32_t t) { return staged + t * stride; };
    const auto finish = [&](uint32_t unit, uint32_t n, uint32_t t, float sum) {
        sums[(2 * t + n / Tile::Neurons) * Tile::Block + unit * Tile::Neurons + n % Tile::Neurons] = sum;
    };
    const uint32_t units = neurons / Tile::Neurons;
    uint32_t together;
    for (uint32_t at = 0; at < list.count; at += together) {
        const auto source = [&](uint32_t t) { return a.x + (size_t)(list.pair[at + t] / top_k) * hidden; };
        const auto round = gb_first_round<Format, Tile::Lanes, Tile::Rows>(units, hidden, rows_of);
        together = min(Tile::Tokens, list.count - at);
        if (__syncthreads_or(gb_stage<Format>(together, hidden, source, Format::x_factor, staged))) {
            together = 1;
            gb_stage<Format>(together, hidden, source, 1.0f, staged);
            __syncthreads();
            gb_dots<Format, 1, true>(units, hidden, round, rows_of, x_of, finish);
        } else if (together < Tile::Tokens) {
            together = 1;
            gb_dots<Format, 1, false>(units, hidden, round, rows_of, x_of, finish);
        } else {
            gb_dots<Format, Tile::Tokens, false>(units, hidden, round, rows_of, x_of, finish);
        }
        __syncthreads();
        const uint32_t t = threadIdx.x / Tile::Block, i = threadIdx.x % Tile::Block;
        if (t < together && i < neurons) {
            const float gate = __fmul_rn(sums[2 * t * Tile::Block + i], global[0]);
            const float up = __fmul_rn(sums[(2 * t + 1) * Tile::Block + i], global[1]);
            a.intermediate[(size_t)list.pair[at + t] * intermediate + first + i].bits =
                gb_bf16_round(__fmul_rn(gb_cuda_silu(gate), up));
        }
        __syncthreads(); /* nobody reads the sums or the staged x any more */
    }
}

template <class Format, class Tile>
enum gb_status gb_gate_up_launch(const struct gb_arguments &a, struct gb_error *error)
{
    const dim3 grid((a.shape.intermediate + Tile::Block - 1) / Tile::Block, a.shape.tokens * a.shape.top_k);
    return gb_cuda_launch("gate_up", gb_gate_up_kernel<Format, Tile>, grid, Tile::Threads,
                          gb_gate_up_shared_bytes<Format, Tile>(a.shape.hidden), a.stream, error, a);
}

#endif
