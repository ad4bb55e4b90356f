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
 * Puts `rows` rows of activations [columns], times `factor`, into shared memory one after the other, with all threads
 * of the block. source(row): where row lies. True to the threads that met a value which is infinite afterwards. The
 * caller synchronises.
 */
template <class Format, class Source>
__device__ __forceinline__ bool gb_stage(uint32_t rows, uint32_t columns, const Source &source, float factor,
                                         float *staged)
{
    constexpr uint32_t batch = 4; /* loads under way in a thread */
    const uint32_t vectors = columns / 8;
    uint32_t row = 0, v = threadIdx.x;
    float largest = 0.0f;
    while (row < rows) {
        uint4 words[batch];
        float *to[batch];
#pragma unroll
        for (uint32_t k = 0; k < batch; k++, v += blockDim.x) {
            for (; v >= vectors && row < rows; row++)
                v -= vectors;
            to[k] = NULL;
            if (row < rows) {
                words[k] = __ldg((const uint4 *)source(row) + v);
                to[k] = staged + row * gb_staged_floats<Format>(columns) +
                        v * 8 / Format::chunk * gb_staged_stride<Format>() + v * 8 % Format::chunk;
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < batch; k++)
            if (to[k])
#pragma unroll
                for (uint32_t i = 0; i < 4; i += 2) {
                    const uint32_t a = gb_word(words[k], i), b = gb_word(words[k], i + 1);
                    const float4 x = make_float4(__fmul_rn(gb_bf16_low(a), factor), __fmul_rn(gb_bf16_high(a), factor),
                                                 __fmul_rn(gb_bf16_low(b), factor), __fmul_rn(gb_bf16_high(b), factor));
                    largest = fmaxf(fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y))), fmaxf(fabsf(x.z), fabsf(x.w)));
                    *(float4 *)(to[k] + 2 * i) = x;
                }
    }
    return largest == INFINITY;
}

/* What a thread of a team has under way: its chunks of one round, in each row. */
template <uint32_t Lanes, uint32_t Rows> struct gb_cuda_round {
    gb_cuda_row rows[Rows];
    gb_cuda_chunk chunk[32 / Lanes][Rows];
};

/* Loads chunk c of every row, if there is one, in place of what the round holds for lane k. */
template <class Format, uint32_t Lanes, uint32_t Rows>
__device__ __forceinline__ void gb_round_load(gb_cuda_round<Lanes, Rows> &round, uint32_t k, uint32_t c,
                                              uint32_t columns)
{
    if (c < gb_chunks<Format>(columns))
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++)
            round.chunk[k][n] = Format::load(round.rows[n], c, columns);
}

/* The first round of a team's first unit, to be loaded before anything else is waited for. */
template <class Format, uint32_t Lanes, uint32_t Rows, class RowsOf>
__device__ __forceinline__ gb_cuda_round<Lanes, Rows> gb_first_round(uint32_t units, uint32_t columns,
                                                                     const RowsOf &rows_of)
{
    gb_cuda_round<Lanes, Rows> round;
    rows_of(min(threadIdx.x / Lanes, units - 1), round.rows);
#pragma unroll
    for (uint32_t k = 0; k < 32 / Lanes; k++)
        gb_round_load<Format>(round, k, threadIdx.x % Lanes + k * Lanes, columns);
    return round;
}

/* Step 3 for chunk c, which the round holds for lane k, with each token's x. */
template <class Format, uint32_t Lanes, uint32_t Rows, uint32_t Tokens, bool Huge, class XOf>
__device__ __forceinline__ void gb_chunk_fma(const gb_cuda_round<Lanes, Rows> &round, uint32_t k, uint32_t c,
                                             uint32_t columns, const XOf &x_of, float (&acc)[Rows * Tokens])
{
    if (c >= gb_chunks<Format>(columns))
        return;
#pragma unroll
    for (uint32_t r = 0; r < Format::chunk / Format::run; r++) {
        if (r >= Format::runs(c, columns))
            continue;
        const uint32_t at = c * gb_staged_stride<Format>() + r * Format::run;
        const float *x[Tokens];
#pragma unroll
        for (uint32_t t = 0; t < Tokens; t++)
            x[t] = x_of(t) + at;
        Format::template run_fma<Rows, Tokens, Huge>(round.chunk[k], r, x, acc);
    }
}

/*
 * Step 4 for Count dot products at once. Lane l + Lanes * k pairs with lane l + Lanes * (k xor m / Lanes) while
 * m >= Lanes, within the thread; both lanes of a pair get the same sum, so only the lower one is kept. Between
 * threads, a pair of threads divides the sums that both still hold: each gives away the half that it does not keep,
 * so that both operands of an addition meet in one thread. Thread t of the team ends with sum t / (Lanes / Count).
 * Every thread of the warp takes part.
 */
template <uint32_t Lanes, uint32_t Count> __device__ __forceinline__ float gb_butterfly(float (&acc)[32 / Lanes][Count])
{
    static_assert(Count <= Lanes && (Count & (Count - 1)) == 0, "the sums are divided among the team's threads");
#pragma unroll
    for (uint32_t half = 32 / Lanes / 2; half > 0; half /= 2)
#pragma unroll
        for (uint32_t k = 0; k < half; k++)
#pragma unroll
            for (uint32_t n = 0; n < Count; n++)
                acc[k][n] = __fadd_rn(acc[k][n], acc[k + half][n]);
    uint32_t held = Count;
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
 * All dot products of a block: `units` units of Rows rows times Tokens tokens, which the block's teams take in turn.
 * A chunk of the next round is under way as soon as the registers of this round's are free.
 *   rows_of(unit, rows): the rows of a unit;
 *   x_of(unit, t): the staged x of token t;
 *   finish(unit, n, t, sum): takes the sum before step 5 of row n of the unit for token t, once for each.
 * Every thread of a warp takes part in every unit of its warp; a team beyond the last unit repeats it unseen.
 */
template <class Format, uint32_t Tokens, bool Huge, uint32_t Lanes, uint32_t Rows, class RowsOf, class XOf,
          class Finish>
__device__ __forceinline__ void gb_dots(uint32_t units, uint32_t columns, gb_cuda_round<Lanes, Rows> round,
                                        const RowsOf &rows_of, const XOf &x_of, const Finish &finish)
{
    constexpr uint32_t Count = Rows * Tokens;
    const uint32_t teams = blockDim.x / Lanes, team = threadIdx.x / Lanes, lane = threadIdx.x % Lanes;
    const uint32_t in_warp = team % (32 / Lanes), chunks = gb_chunks<Format>(columns);
    for (uint32_t unit = team; unit - in_warp < units; unit += teams) {
        float acc[32 / Lanes][Count] = {};
        const uint32_t now = min(unit, units - 1);
        const auto x_now = [&](uint32_t t) { return x_of(now, t); };
        for (uint32_t base = 0; base < chunks; base += 32) {
            const bool last = base + 32 >= chunks, more = !last || unit - in_warp + teams < units;
            const uint32_t ahead = last ? 0 : base + 32;
            if (last && more)
                rows_of(min(unit + teams, units - 1), round.rows);
#pragma unroll
            for (uint32_t k = 0; k < 32 / Lanes; k++) {
                gb_chunk_fma<Format, Lanes, Rows, Tokens, Huge>(round, k, base + k * Lanes + lane, columns, x_now,
                                                                acc[k]);
                if (more)
                    gb_round_load<Format>(round, k, ahead + k * Lanes + lane, columns);
            }
        }
        const float sum = gb_butterfly<Lanes, Count>(acc);
        const uint32_t n = lane / (Lanes / Count);
        if (unit < units && lane % (Lanes / Count) == 0)
            finish(unit, n / Tokens, n % Tokens, sum);
    }
}

#endif
