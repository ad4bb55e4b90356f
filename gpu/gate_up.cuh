/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of gate_up: docs/numerics.md#gate_up. */
#ifndef GB_GPU_GATE_UP_CUH
#define GB_GPU_GATE_UP_CUH

#include "gpu/device.cuh"
#include "gpu/dot.cuh"
#include "gpu/silu.cuh"

/*
 * How the work is divided, which no bit depends on: blocks of Threads, teams of Lanes threads, units of Neurons
 * neurons (their gate and up rows), Block neurons to a block.
 */
template <uint32_t Lanes_, uint32_t Neurons_, uint32_t Threads_, uint32_t Block_> struct gb_gate_up_tile {
    static constexpr uint32_t Lanes = Lanes_, Neurons = Neurons_, Threads = Threads_, Block = Block_;
    static_assert(16 % Neurons == 0 && Block % Neurons == 0 && Block <= Threads, "an intermediate has 16 * n neurons");
};

/* Shared memory: x [staged], then the block's gate and up sums [2][Block]. */
template <class Format, class Tile> size_t gb_gate_up_shared_bytes(uint32_t hidden)
{
    return sizeof(float) * (gb_staged_floats<Format>(hidden) + 2 * (size_t)Tile::Block);
}

/* Block (b, pair): neurons b * Tile::Block .. of the pair's expert. */
template <class Format, class Tile>
__global__ void __launch_bounds__(Tile::Threads, 512 / Tile::Threads)
    gb_gate_up_kernel(const __grid_constant__ struct gb_arguments a)
{
    extern __shared__ float4 shared[];
    constexpr uint32_t Lanes = Tile::Lanes, Rows = 2 * Tile::Neurons;
    const uint32_t hidden = a.shape.hidden, intermediate = a.shape.intermediate, pair = blockIdx.y;
    float *staged = (float *)shared;
    float *sums = staged + gb_staged_floats<Format>(hidden);
    const uint32_t first = blockIdx.x * Tile::Block, neurons = min(Tile::Block, intermediate - first);
    gb_bf16 *out = a.intermediate + (size_t)pair * intermediate + first;
    const uint32_t expert = (uint32_t)a.ids[pair];
    if (expert >= a.shape.experts) {
        if (threadIdx.x < neurons)
            out[threadIdx.x].bits = 0;
        return;
    }
    const auto rows_of = [&](uint32_t unit, gb_cuda_row(&rows)[Rows]) {
#pragma unroll
        for (uint32_t n = 0; n < Tile::Neurons; n++) {
            rows[2 * n] = Format::row(a.gate_up, expert, first + unit * Tile::Neurons + n);
            rows[2 * n + 1] = Format::row(a.gate_up, expert, intermediate + first + unit * Tile::Neurons + n);
        }
    };
    const auto x_of = [&](uint32_t) { return staged; };
    const auto finish = [&](uint32_t unit, uint32_t n, float sum) {
        sums[n % 2 * Tile::Block + unit * Tile::Neurons + n / 2] = sum;
    };
    const uint32_t units = neurons / Tile::Neurons;
    const auto round = gb_first_round<Format, Lanes, Rows>(units, hidden, rows_of);
    const gb_bf16 *x = a.x + (size_t)(pair / a.shape.top_k) * hidden;
    if (!__syncthreads_or(gb_stage<Format>(x, hidden, Format::x_factor, staged))) {
        gb_dots<Format, Lanes, Rows, false>(units, hidden, round, rows_of, x_of, finish);
    } else {
        gb_stage<Format>(x, hidden, 1.0f, staged);
        __syncthreads();
        gb_dots<Format, Lanes, Rows, true>(units, hidden, round, rows_of, x_of, finish);
    }
    __syncthreads();
    if (threadIdx.x < neurons) {
        const float gate = __fmul_rn(sums[threadIdx.x], gb_cuda_global(a.gate_up, expert, 0));
        const float up = __fmul_rn(sums[Tile::Block + threadIdx.x], gb_cuda_global(a.gate_up, expert, 1));
        out[threadIdx.x].bits = gb_bf16_round(__fmul_rn(gb_cuda_silu(gate), up));
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
