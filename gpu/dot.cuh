/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order fma32/1 on a GPU: docs/numerics.md#fma32.
 *
 * A team of Lanes threads (8, 16 or 32, all of one warp) computes one dot product, or several that share x. Thread t
 * of the team stands for the lanes t, t + Lanes, t + 2 * Lanes, ... of the order's 32 and holds an accumulator for
 * each. The butterfly's first steps then lie between accumulators of one thread, the others between threads; each
 * addition has the same two operands as in the text, so the bits do not depend on Lanes. A round is the 32 chunks
 * that the 32 lanes take at a time.
 */
#ifndef GB_GPU_DOT_CUH
#define GB_GPU_DOT_CUH

#include "gpu/rows.cuh"

/* x in shared memory: chunk c starts at float c * (Format::chunk + 4). The 4 spread the 8 chunks that 8 threads read
 * at once over all 32 banks. */
template <class Format> __host__ __device__ constexpr uint32_t gb_staged_stride()
{
    return Format::chunk + 4;
}

template <class Format> __host__ __device__ constexpr uint32_t gb_chunks(uint32_t columns)
{
    return (columns + Format::chunk - 1) / Format::chunk;
}

/* Floats that one staged row of `columns` activations takes. */
template <class Format> __host__ __device__ constexpr uint32_t gb_staged_floats(uint32_t columns)
{
    return gb_chunks<Format>(columns) * gb_staged_stride<Format>();
}

/*
 * Puts x [columns] times `factor` into shared memory, with all threads of the block. True to the threads that met a
 * value which is infinite afterwards. The caller synchronises.
 */
template <class Format>
__device__ __forceinline__ bool gb_stage(const gb_bf16 *x, uint32_t columns, float factor, float *staged)
{
    float largest = 0.0f;
    for (uint32_t i = threadIdx.x * 8; i < columns; i += blockDim.x * 8) {
        uint4 words = __ldg((const uint4 *)(x + i));
        float *to = staged + i / Format::chunk * gb_staged_stride<Format>() + i % Format::chunk;
#pragma unroll
        for (uint32_t k = 0; k < 4; k += 2) {
            float4 v = make_float4(__fmul_rn(gb_bf16_low(gb_word(words, k)), factor),
                                   __fmul_rn(gb_bf16_high(gb_word(words, k)), factor),
                                   __fmul_rn(gb_bf16_low(gb_word(words, k + 1)), factor),
                                   __fmul_rn(gb_bf16_high(gb_word(words, k + 1)), factor));
            largest = fmaxf(fmaxf(largest, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
            *(float4 *)(to + 2 * k) = v;
        }
    }
    return largest == INFINITY;
}

template <uint32_t Lanes, uint32_t Rows> struct gb_cuda_round {
    gb_cuda_chunk chunk[32 / Lanes][Rows];
};

/* Loads this thread's chunks of a round; first: the round's first chunk plus the thread's place in its team. */
template <class Format, uint32_t Lanes, uint32_t Rows>
__device__ __forceinline__ void gb_round_load(const gb_cuda_row (&rows)[Rows], uint32_t first, uint32_t columns,
                                              gb_cuda_round<Lanes, Rows> &round)
{
#pragma unroll
    for (uint32_t k = 0; k < 32 / Lanes; k++)
        if (first + k * Lanes < gb_chunks<Format>(columns))
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                round.chunk[k][n] = Format::load(rows[n], first + k * Lanes, columns);
}

/* Steps 2 and 3 for this thread's chunks of a round. */
template <class Format, uint32_t Lanes, uint32_t Rows, bool Huge>
__device__ __forceinline__ void gb_round_fma(const gb_cuda_round<Lanes, Rows> &round, uint32_t first, uint32_t columns,
                                             const float *staged, float (&acc)[32 / Lanes][Rows])
{
#pragma unroll
    for (uint32_t k = 0; k < 32 / Lanes; k++) {
        const uint32_t c = first + k * Lanes;
        if (c >= gb_chunks<Format>(columns))
            continue;
#pragma unroll
        for (uint32_t r = 0; r < Format::chunk / Format::run; r++) {
            if (r >= Format::runs(c, columns))
                continue;
            float x[Format::run];
#pragma unroll
            for (uint32_t i = 0; i < Format::run; i += 4)
                *(float4 *)(x + i) =
                    *(const float4 *)(staged + c * gb_staged_stride<Format>() + r * Format::run + i);
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                acc[k][n] = Format::template run_fma<Huge>(round.chunk[k][n], r, x, acc[k][n]);
        }
    }
}

/*
 * Step 4 for Rows dot products at once. Lane l + Lanes * k pairs with lane l + Lanes * (k xor m / Lanes) while
 * m >= Lanes, within the thread; both lanes of a pair get the same sum, so only the lower one is kept. Between
 * threads, a pair of threads divides the rows that both still hold: each gives away the half that it does not keep,
 * so that both operands of a row's sum meet in one thread. Thread t of the team ends with row t / (Lanes / Rows).
 * Every thread of the warp takes part.
 */
template <uint32_t Lanes, uint32_t Rows>
__device__ __forceinline__ float gb_butterfly(float (&acc)[32 / Lanes][Rows])
{
    static_assert(Rows <= Lanes && (Rows & (Rows - 1)) == 0, "rows are divided among the team's threads");
#pragma unroll
    for (uint32_t half = 32 / Lanes / 2; half > 0; half /= 2)
#pragma unroll
        for (uint32_t k = 0; k < half; k++)
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                acc[k][n] = __fadd_rn(acc[k][n], acc[k + half][n]);
    uint32_t held = Rows;
#pragma unroll
    for (uint32_t m = Lanes / 2; m > 0; m /= 2) {
        const bool upper = threadIdx.x & m;
        if (held == 1) {
            acc[0][0] = __fadd_rn(acc[0][0], __shfl_xor_sync(0xFFFFFFFFu, acc[0][0], (int)m));
            continue;
        }
        held /= 2;
#pragma unroll
        for (uint32_t n = 0; n < held; n++) {
            const float keep = upper ? acc[0][n + held] : acc[0][n];
            const float give = upper ? acc[0][n] : acc[0][n + held];
            acc[0][n] = __fadd_rn(keep, __shfl_xor_sync(0xFFFFFFFFu, give, (int)m));
        }
    }
    return acc[0][0];
}

/*
 * All dot products of a block: `units` units of Rows rows, which the block's teams take in turn. The next round's
 * weights are under way while one round is computed.
 *   rows_of(unit, rows): the rows of a unit;
 *   x_of(unit): its staged x;
 *   finish(unit, n, sum): takes the sum before step 5 of row n of the unit, once for each row.
 * Every thread of a warp takes part in every unit of its warp; a team beyond the last unit repeats it unseen.
 */
template <class Format, uint32_t Lanes, uint32_t Rows, bool Huge, class RowsOf, class XOf, class Finish>
__device__ __forceinline__ void gb_dots(uint32_t units, uint32_t columns, gb_cuda_round<Lanes, Rows> round,
                                        const RowsOf &rows_of, const XOf &x_of, const Finish &finish)
{
    const uint32_t teams = blockDim.x / Lanes, team = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
    const uint32_t in_warp = team % (32 / Lanes), chunks = gb_chunks<Format>(columns);
    for (uint32_t unit = team; unit - in_warp < units; unit += teams) {
        float acc[32 / Lanes][Rows] = {};
        const uint32_t now = min(unit, units - 1);
        for (uint32_t base = 0; base < chunks; base += 32) {
            gb_cuda_round<Lanes, Rows> next;
            gb_cuda_row rows[Rows];
            if (base + 32 < chunks) {
                rows_of(now, rows);
                gb_round_load<Format>(rows, base + 32 + lane, columns, next);
            } else if (unit - in_warp + teams < units) {
                rows_of(min(unit + teams, units - 1), rows);
                gb_round_load<Format>(rows, lane, columns, next);
            }
            gb_round_fma<Format, Lanes, Rows, Huge>(round, base + lane, columns, x_of(now), acc);
            round = next;
        }
        const float sum = gb_butterfly<Lanes, Rows>(acc);
        if (unit < units && lane % (Lanes / Rows) == 0)
            finish(unit, lane / (Lanes / Rows), sum);
    }
}

/* The first round of a team's first unit, to be loaded before anything else is waited for. */
template <class Format, uint32_t Lanes, uint32_t Rows, class RowsOf>
__device__ __forceinline__ gb_cuda_round<Lanes, Rows> gb_first_round(uint32_t units, uint32_t columns,
                                                                     const RowsOf &rows_of)
{
    gb_cuda_round<Lanes, Rows> round;
    gb_cuda_row rows[Rows];
    rows_of(min(threadIdx.x / Lanes, units - 1), rows);
    gb_round_load<Format>(rows, threadIdx.x % Lanes, columns, round);
    return round;
}

#endif
