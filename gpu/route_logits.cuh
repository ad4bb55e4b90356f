/* SPDX-License-Identifier: Apache-2.0 */
/* Dot products of the router: how they are divided among blocks and warps, and how its weights are loaded. */
#ifndef GB_GPU_ROUTE_LOGITS_CUH
#define GB_GPU_ROUTE_LOGITS_CUH

#include <type_traits>

#include "gpu/dot.cuh"
#include "gpu/overlap.cuh"

constexpr uint32_t gb_route_threads = 256;
constexpr uint32_t gb_route_warps = gb_route_threads / 32;

/* How a cluster's work is divided: its tokens, and experts of a warp at a time, which share what is read of x. Of one
 * token's, whose weights take longest to come, half of those under way are in registers and half in shared memory: more
 * than either has room for beside a block of down. */
template <uint32_t Tokens_, uint32_t Rows_> struct gb_route_shape {
    static constexpr uint32_t Tokens = Tokens_, Rows = Rows_, Held = Tokens == 1 ? (Rows + 1) / 2 : Rows;
    static constexpr uint32_t Ahead = Tokens == 1 ? 8 : 4;    /* chunks of a row in a thread: a round */
    static constexpr uint32_t Pace = Tokens == 1 ? 2 : Ahead; /* of the first round under way at once */
    static constexpr uint32_t ring_bytes = sizeof(uint4) * Ahead * (Rows - Held) * gb_route_threads;
    static constexpr int registers = Tokens == 1 ? 112 : 255; /* 112: beside a block of down */
};

/* Asks for bytes, whose number 16 divides, to be in the L2 cache. */
__device__ __forceinline__ void gb_prefetch(const void *from, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* Copies 16 bytes to shared memory, and ends a group of such copies; all but `Later` groups have arrived. */
__device__ __forceinline__ void gb_copy_chunk(uint4 *to, const uint4 *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from)
                 : "memory");
}

__device__ __forceinline__ void gb_end_group()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <uint32_t Later> __device__ __forceinline__ void gb_wait_for_group()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(Later) : "memory");
}

/*
 * Dot products of the block's experts, every size-th Rows of them from `rank` on, with Tokens tokens, of which `tokens`
 * exist; the others are computed unseen. Weights are under way before the kernel in front has ended; then waited().
 * staged: room for x of the tokens; ring: of ring_bytes. finish(expert, sum), by a warp: takes the dot products of Rows
 * experts from this one on, if there are so many; lane n * (32 / (Rows * Tokens)) has that of the expert n / Tokens
 * further on and token n % Tokens.
 */
template <class Shape, class Waited, class Finish>
__device__ __forceinline__ void gb_find_logits(const gb_arguments &a, uint32_t rank, uint32_t size, uint32_t tokens,
                                               uint4 *staged, uint4 *ring, const Waited &waited, const Finish &finish)
{
    constexpr uint32_t Tokens = Shape::Tokens, Rows = Shape::Rows, Held = Shape::Held, Ahead = Shape::Ahead;
    constexpr uint32_t Count = Rows * Tokens, round_chunks = 32 * Ahead;
    const uint32_t hidden = a.shape.hidden, chunks = gb_chunks<gb_cuda_bf16>(hidden), lane = threadIdx.x % 32;
    const uint32_t experts = a.shape.experts, stride = size * gb_route_warps * Rows;
    const gb_bf16 *x = a.x + (size_t)blockIdx.y * Tokens * hidden;
    uint4 held[Ahead][Held] = {};
    const uint4 *from[Rows]; /* what is loaded next: a round's first chunk of each row */
    uint32_t next = (rank + threadIdx.x / 32 * size) * Rows, next_chunk = lane;
    const auto aim = [&] {
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++)
            from[n] =
                (const uint4 *)gb_cuda_bf16::row(a.router_weights, 0, min(next + n, experts - 1)).codes + next_chunk;
    };
    const auto in_ring = [&](uint32_t k, uint32_t n) {
        return ring + (k * (Rows - Held) + n - Held) * gb_route_threads + threadIdx.x;
    };
    const auto load = [&](auto whole, uint32_t k) {
        if (decltype(whole)::value || next_chunk + 32 * k < chunks)
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                if (n < Held)
                    held[k][n] = __ldg(from[n] + 32 * k);
                else
                    gb_copy_chunk(in_ring(k, n), from[n] + 32 * k);
        gb_end_group();
    };
    float acc[1][Count] = {};
    /* A round from the thread's chunk `first` on. more: the next one is to be loaded; whole: of both, every lane has
     * all chunks. */
    const auto round = [&](auto more, auto whole, uint32_t first) {
        constexpr bool More = decltype(more)::value, Whole = decltype(whole)::value;
        if (!More)
            gb_wait_for_group<0>();
#pragma unroll
        for (uint32_t k = 0; k < Ahead; k++) {
            if (More)
                gb_wait_for_group<Ahead - 1>();
            if (Whole || first + 32 * k < chunks) {
                alignas(16) float values[Tokens][8];
                const float *of[Tokens];
#pragma unroll
                for (uint32_t t = 0; t < Tokens; t++) {
                    const uint4 words = staged[min(t, tokens - 1) * chunks + first + 32 * k];
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        values[t][2 * i] = gb_bf16_low(gb_word(words, i));
                        values[t][2 * i + 1] = gb_bf16_high(gb_word(words, i));
                    }
                    of[t] = values[t];
                }
                gb_cuda_chunk rows[Rows];
#pragma unroll
                for (uint32_t n = 0; n < Rows; n++)
                    rows[n] = {n < Held ? held[k][n] : *in_ring(k, n), 0};
                gb_cuda_bf16::run_fma<Rows, Tokens, false>(rows, 0, of, acc[0]);
            }
            if (More)
                load(whole, k);
        }
    };
    if (next < experts) {
        aim();
        if (Rows > Held && lane == 0) /* at once, though few loads are under way */
            gb_prefetch(gb_cuda_bf16::row(a.router_weights, 0, next).codes,
                        min(Rows, experts - next) * hidden * (uint32_t)sizeof(gb_bf16));
#pragma unroll
        for (uint32_t k = 0; k < Ahead; k++) {
            if (k >= Shape::Pace) /* a block of down waits for its loads behind these */
                gb_wait_for_group<Shape::Pace - 1>();
            load(std::false_type(), k);
        }
    }
    for (uint32_t line = threadIdx.x; line < (tokens * hidden + 63) / 64; line += gb_route_threads)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(x + (size_t)line * 64));
    gb_wait_for_previous();
    const auto chunk_of = [&](uint32_t v) { return __ldcg((const uint4 *)x + v); }; /* lines of L1 may be older */
    const uint4 first = chunk_of(min(threadIdx.x, tokens * chunks - 1));
    waited();
    for (uint32_t v = threadIdx.x; v < tokens * chunks; v += gb_route_threads)
        staged[v] = v == threadIdx.x ? first : chunk_of(v);
    __syncthreads();
    for (uint32_t expert = next; expert < experts;) {
        const uint32_t now = next_chunk;
        next_chunk += round_chunks;
        const bool last = next_chunk - lane >= chunks;
        if (last) {
            next_chunk = lane;
            next += stride;
        }
        const bool whole = max(now, next_chunk) - lane + round_chunks <= chunks;
        if (next < experts) {
            aim();
            if (whole)
                round(std::true_type(), std::true_type(), now);
            else
                round(std::true_type(), std::false_type(), now);
        } else if (whole) {
            round(std::false_type(), std::true_type(), now);
        } else {
            round(std::false_type(), std::false_type(), now);
        }
        if (!last)
            continue;
        finish(expert, gb_butterfly<32, Count>(acc));
#pragma unroll
        for (uint32_t i = 0; i < Count; i++)
            acc[0][i] = 0.0f;
        expert = next;
    }
}

#endif
