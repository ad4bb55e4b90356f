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

/* Runs that exist in chunk c. */
template <class Format, bool Aligned> __device__ __forceinline__ uint32_t gb_runs(uint32_t c, uint32_t columns)
{
    constexpr uint32_t whole = Format::chunk / Format::run;
    return Aligned || (c + 1) * Format::chunk <= columns ? whole : (columns - c * Format::chunk) / Format::run;
}

/* Loads this thread's chunks of a round; first: the round's first chunk plus the thread's place in its team. */
template <class Format, uint32_t Lanes, uint32_t Rows, bool Aligned>
__device__ __forceinline__ void gb_round_load(const gb_cuda_row (&rows)[Rows], uint32_t first, uint32_t columns,
                                              gb_cuda_round<Lanes, Rows> &round)
{
#pragma unroll
    for (uint32_t k = 0; k < 32 / Lanes; k++) {
        uint32_t c = first + k * Lanes;
        if (c < gb_chunks<Format>(columns))
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                round.chunk[k][n] = Format::template load<Aligned>(rows[n], c, gb_runs<Format, Aligned>(c, columns));
    }
}

/* Step 3 for one run of a chunk in each row: acc = fma(scale, partial, acc). Huge: x was staged without its factor. */
template <class Format, bool Huge, uint32_t Rows>
__device__ __forceinline__ void gb_run_fma(const gb_cuda_chunk (&chunk)[Rows], uint32_t r, const float *x,
                                           const float (&scales)[Rows][Format::chunk / Format::run], float (&acc)[Rows])
{
    float xs[Format::run];
#pragma unroll
    for (uint32_t i = 0; i < Format::run; i += 4)
        *(float4 *)(xs + i) = *(const float4 *)(x + r * Format::run + i);
#pragma unroll
    for (uint32_t n = 0; n < Rows; n++) {
        float w[Format::run];
        Format::decode(chunk[n], r, w);
        float p = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < Format::run; i++)
            p = __fmaf_rn(Huge ? __fmul_rn(w[i], Format::x_factor) : w[i], xs[i], p);
        acc[n] = __fmaf_rn(scales[n][r], p, acc[n]);
    }
}

/* Steps 2 and 3 for this thread's chunks of a round. */
template <class Format, uint32_t Lanes, uint32_t Rows, bool Aligned, bool Huge>
__device__ __forceinline__ void gb_round_fma(const gb_cuda_round<Lanes, Rows> &round, uint32_t first, uint32_t columns,
                                             const float *x, float (&acc)[32 / Lanes][Rows])
{
#pragma unroll
    for (uint32_t k = 0; k < 32 / Lanes; k++) {
        uint32_t c = first + k * Lanes;
        if (c < gb_chunks<Format>(columns)) {
            float scales[Rows][Format::chunk / Format::run];
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                Format::scales(round.chunk[k][n], scales[n]);
#pragma unroll
            for (uint32_t r = 0; r < Format::chunk / Format::run; r++)
                if (r < gb_runs<Format, Aligned>(c, columns))
                    gb_run_fma<Format, Huge, Rows>(round.chunk[k], r, x + c * gb_staged_stride<Format>(), scales,
                                                   acc[k]);
        }
    }
}

/*
 * Step 4. Lane l + Lanes * k pairs with lane l + Lanes * (k xor m / Lanes) while m >= Lanes. Both lanes of a pair get
 * the same sum, so only the lower one is kept. Every thread of the warp takes part; all of a team get the result.
 */
template <uint32_t Lanes, uint32_t Rows>
__device__ __forceinline__ float gb_butterfly(float (&acc)[32 / Lanes][Rows], uint32_t n)
{
#pragma unroll
    for (uint32_t half = 32 / Lanes / 2; half > 0; half /= 2)
#pragma unroll
        for (uint32_t k = 0; k < half; k++)
            acc[k][n] = __fadd_rn(acc[k][n], acc[k + half][n]);
    float sum = acc[0][n];
#pragma unroll
    for (uint32_t m = Lanes / 2; m > 0; m /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFFu, sum, (int)m));
    return sum;
}

/*
 * All dot products of a block: `units` units of Rows rows, which the block's teams take in turn. The next round's
 * weights are under way while one round is computed.
 *   rows_of(unit, rows): the rows of a unit;
 *   x_of(unit): its staged x;
 *   finish(unit, sums): called by all threads of a team with the sums before step 5.
 * Every thread of a warp takes part in every unit of its warp; a team beyond the last unit repeats it unseen.
 */
template <class Format, uint32_t Lanes, uint32_t Rows, bool Aligned, bool Huge, class RowsOf, class XOf, class Finish>
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
                gb_round_load<Format, Lanes, Rows, Aligned>(rows, base + 32 + lane, columns, next);
            } else if (unit - in_warp + teams < units) {
                rows_of(min(unit + teams, units - 1), rows);
                gb_round_load<Format, Lanes, Rows, Aligned>(rows, lane, columns, next);
            }
            gb_round_fma<Format, Lanes, Rows, Aligned, Huge>(round, base + lane, columns, x_of(now), acc);
            round = next;
        }
        float sums[Rows];
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++)
            sums[n] = gb_butterfly<Lanes, Rows>(acc, n);
        if (unit < units)
            finish(unit, sums);
    }
}

/* The first round of a team's first unit, to be loaded before anything else is waited for. */
template <class Format, uint32_t Lanes, uint32_t Rows, bool Aligned, class RowsOf>
__device__ __forceinline__ gb_cuda_round<Lanes, Rows> gb_first_round(uint32_t units, uint32_t columns,
                                                                     const RowsOf &rows_of)
{
    gb_cuda_round<Lanes, Rows> round;
    gb_cuda_row rows[Rows];
    rows_of(min(threadIdx.x / Lanes, units - 1), rows);
    gb_round_load<Format, Lanes, Rows, Aligned>(rows, threadIdx.x % Lanes, columns, round);
    return round;
}

#endif
