/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of gate_up: docs/numerics.md#gate_up. */
#ifndef GB_GPU_GATE_UP_CUH
#define GB_GPU_GATE_UP_CUH

#include "gpu/device.cuh"
#include "gpu/dot.cuh"
#include "gpu/silu.cuh"

/*
 * How the work is divided, which no bit depends on: blocks of Threads, Resident of them on a multiprocessor, teams of
 * Lanes threads, units of one neuron (its gate and its up row), Block neurons to a block, one or two Tokens
 * of the same expert at a time, so that a weight is decoded once for both.
 */
template <uint32_t Lanes_, uint32_t Threads_, uint32_t Block_, uint32_t Tokens_, uint32_t Resident_>
struct gb_gate_up_tile {
    static constexpr uint32_t Lanes = Lanes_, Threads = Threads_, Block = Block_, Tokens = Tokens_,
                              Resident = Resident_;
    static_assert(Tokens == 1 || Tokens == 2, "x of one or two tokens is staged");
    static_assert(Tokens * Block <= Threads, "a thread finishes one neuron for one token");
};

/* Pairs (token, slot) of the same expert are found among this many neighbours. */
constexpr uint32_t gb_gate_up_window = 1024;

/* Shared memory: x of the tokens [Tokens][staged], then gate and up sums [Tokens][2][Block]. */
template <class Format, class Tile> size_t gb_gate_up_shared_bytes(uint32_t hidden)
{
    return sizeof(float) * Tile::Tokens * (gb_staged_floats<Format>(hidden) + 2 * (size_t)Tile::Block);
}

/* Which pairs of one window have the same expert: bit i of word w stands for the window's pair 32 * w + i. */
struct gb_pair_set {
    uint32_t word[gb_gate_up_window / 32];
};

/* Called by the whole block: finds the pairs of `pair`'s window that have its expert. True if it is the first. */
__device__ __forceinline__ bool gb_find_pairs(const int32_t *ids, uint32_t pairs, uint32_t pair, gb_pair_set *set)
{
    const int32_t expert = ids[pair];
    const uint32_t first = pair - pair % gb_gate_up_window;
    bool earlier = false;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < gb_gate_up_window; i += blockDim.x) {
        const bool same = first + i < pairs && ids[first + i] == expert;
        const uint32_t word = __ballot_sync(0xFFFFFFFFu, same);
        if (threadIdx.x % 32 == 0)
            set->word[i / 32] = word;
        earlier |= same && first + i < pair;
    }
    return !__syncthreads_or(earlier);
}

/* The first pair of the set at or after `from`, as its place in the window; the window's size if there is none. */
__device__ __forceinline__ uint32_t gb_next_pair(const gb_pair_set &set, uint32_t from)
{
    static_assert(gb_gate_up_window == 32 * 32, "a thread of a warp looks at one word");
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t before = from <= 32 * lane ? 0 : from - 32 * lane;
    const uint32_t word = before < 32 ? set.word[lane] >> before << before : 0;
    const uint32_t present = __ballot_sync(0xFFFFFFFFu, word != 0);
    if (present == 0)
        return gb_gate_up_window;
    const uint32_t at = (uint32_t)__ffs((int)present) - 1;
    return 32 * at + (uint32_t)__ffs((int)__shfl_sync(0xFFFFFFFFu, word, (int)at)) - 1;
}

/*
 * Block (b, pair): neurons b * Tile::Block .. of the pair's expert. With two Tokens the block of an expert's first pair
 * in the window does all of its pairs there, and those of the others do nothing.
 */
template <class Format, class Tile>
__global__ void __launch_bounds__(Tile::Threads, Tile::Resident)
    gb_gate_up_kernel(const __grid_constant__ struct gb_arguments a)
{
    extern __shared__ float4 shared[];
    __shared__ gb_pair_set set;
    const uint32_t hidden = a.shape.hidden, intermediate = a.shape.intermediate, pair = blockIdx.y;
    const uint32_t first = blockIdx.x * Tile::Block, neurons = min(Tile::Block, intermediate - first);
    const uint32_t expert = (uint32_t)a.ids[pair];
    if (expert >= a.shape.experts) {
        if (threadIdx.x < neurons)
            a.intermediate[(size_t)pair * intermediate + first + threadIdx.x].bits = 0;
        return;
    }
    if (Tile::Tokens == 2 && !gb_find_pairs(a.ids, a.shape.tokens * a.shape.top_k, pair, &set))
        return;
    const uint32_t stride = gb_staged_floats<Format>(hidden);
    float *staged = (float *)shared, *sums = staged + Tile::Tokens * stride;
    const auto rows_of = [&](uint32_t unit, gb_cuda_row(&rows)[2]) {
        rows[0] = Format::row(a.gate_up, expert, first + unit);
        rows[1] = Format::row(a.gate_up, expert, intermediate + first + unit);
    };
    const auto x_of = [&](uint32_t, uint32_t t) { return staged + t * stride; };
    const auto finish = [&](uint32_t unit, uint32_t n, uint32_t t, float sum) {
        sums[(2 * t + n) * Tile::Block + unit] = sum;
    };
    const uint32_t window = pair - pair % gb_gate_up_window; /* its first pair */
    for (uint32_t here = pair - window; here < gb_gate_up_window;) {
        const auto round = gb_first_round<Format, Tile::Lanes, 2>(neurons, hidden, rows_of);
        const uint32_t other = Tile::Tokens == 2 ? gb_next_pair(set, here + 1) : gb_gate_up_window;
        uint32_t together = other < gb_gate_up_window ? 2 : 1;
        const auto pair_of = [&](uint32_t t) { return window + (t == 0 ? here : other); };
        const auto source = [&](uint32_t t) { return a.x + (size_t)(pair_of(t) / a.shape.top_k) * hidden; };
        const bool huge = __syncthreads_or(gb_stage<Format>(together, hidden, source, Format::x_factor, staged));
        if (huge && Format::x_factor != 1.0f) {
            together = 1;
            gb_stage<Format>(together, hidden, source, 1.0f, staged);
            __syncthreads();
            gb_dots<Format, 1, true>(neurons, hidden, round, rows_of, x_of, finish);
        } else if (Tile::Tokens == 2 && together == 2) {
            gb_dots<Format, 2, false>(neurons, hidden, round, rows_of, x_of, finish);
        } else {
            gb_dots<Format, 1, false>(neurons, hidden, round, rows_of, x_of, finish);
        }
        __syncthreads();
        const uint32_t t = threadIdx.x / Tile::Block, i = threadIdx.x % Tile::Block;
        if (t < together && i < neurons) {
            const float gate = __fmul_rn(sums[2 * t * Tile::Block + i], gb_cuda_global(a.gate_up, expert, 0));
            const float up = __fmul_rn(sums[(2 * t + 1) * Tile::Block + i], gb_cuda_global(a.gate_up, expert, 1));
            a.intermediate[(size_t)pair_of(t) * intermediate + first + i].bits =
                gb_bf16_round(__fmul_rn(gb_cuda_silu(gate), up));
        }
        here = together == 2 ? gb_next_pair(set, other + 1) : other;
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
