/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order fma32/1 of NVFP4 weights on tensor cores: docs/numerics.md#fma32.
 *
 * Where every partial sum of a run is a number of binary32, the run's chain of fma rounds nothing: it comes to the
 * exact sum, which the instruction has too, whatever the order in which it adds. That is so if the products are
 * multiples of some u and 6 times the sum of |x| is no more than 2^24 u. The other runs are computed
 * as the text has it.
 *
 * A step is 16 rows times four chunks, as in mma16-sm90/1 (gpu/mma16.cuh). The b operand has a column for each chunk
 * and token, with zeros for the other chunks, so that an instruction's eight sums are runs of four chunks times two
 * tokens. Of the order's 32 lanes, the four chunks of a step are lanes 4 * (step mod 8) .. + 3: a chain here is every
 * eighth step, and the steps of the butterfly down to m = 4 are between chains.
 */
#ifndef GB_GPU_FMA32_RUNS_CUH
#define GB_GPU_FMA32_RUNS_CUH

#include "gpu/mma16_experts.cuh"

/* A lane's part of a step: as gb_mma16_step, but the scales of both rows are those of the two chunks whose sums the
 * lane gets: [chunk][run][row] a byte. */
struct gb_fma32_step {
    uint4 low, high;
    uint2 scales;
};

/* The records of mma16-sm90/1. */
template <bool GateUp> struct gb_fma32_records : gb_mma16_records<gb_mma16_format<GB_NVFP4>, GateUp> {
    using base = gb_mma16_records<gb_mma16_format<GB_NVFP4>, GateUp>;
    using step = gb_fma32_step;
    using base::base;

    __device__ __forceinline__ gb_mma16_part part(uint32_t expert, uint32_t tile) const
    {
        const uint32_t chunk = threadIdx.x % 4, first = chunk % 2 * 2;
        const gb_mma16_part own = base::part(expert, tile);
        return {own.codes, own.scales + ((int32_t)first - (int32_t)chunk) * 4};
    }
    __device__ __forceinline__ gb_fma32_step step_of(const gb_mma16_part &part, uint32_t n, uint32_t) const
    {
        const uint8_t *at = part.codes + n * base::bytes;
        return {gb_load_once(at), gb_load_once(at + base::codes / 2),
                __ldg((const uint2 *)(part.scales + n * base::bytes))};
    }
};

/* Codes' fields are the code times 2^-126 (gpu/mma16.cuh), x is multiplied by 2^119, and the scale or the sum by what
 * is left. */
constexpr uint32_t gb_fma32_x_factor = 0x7B007B00u;   /* 2^119, twice as bf16 */
constexpr float gb_fma32_x_limit = 512.0f;            /* less times 2^119 is finite in bf16 */
constexpr uint32_t gb_fma32_rest_twice = 0x58005800u; /* 2^7, twice as binary16 */
constexpr float gb_fma32_rest = 128.0f;

/* 16 bytes of activations, which the kernel in front may have written. */
__device__ __forceinline__ uint4 gb_load_x(const uint16_t *from)
{
    uint4 words;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from));
    return words;
}

/* Both halves of words, bf16, added and rounded. */
__host__ __device__ __forceinline__ uint32_t gb_add_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t sum = 0;
#if __CUDA_ARCH__ >= 900
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
#elif !defined(__CUDA_ARCH__) /* binary32 has as many bits as it takes for both roundings to come to one */
    sum = gb_bf16_round(gb_bf16_low(a) + gb_bf16_low(b)) | (uint32_t)gb_bf16_round(gb_bf16_high(a) + gb_bf16_high(b))
                                                               << 16;
#endif
    return sum;
}

static __device__ const uint4 gb_fma32_no_x[2] = {}; /* a run's x of lanes that multiply another chunk */

/* Of activations: the sum of |x|, and the smallest |x| that is not zero, as signed halves of less 1 modulo 2^16, in
 * which zero is the largest. */
struct gb_fma32_extent {
    float sum;
    uint32_t least;
};

/* Of eight. Two roundings to bf16 leave at least (256/257)^2 of the sum. */
__host__ __device__ __forceinline__ gb_fma32_extent gb_fma32_extent_of(const uint4 &words)
{
    const uint32_t magnitudes = 0x7FFF7FFFu;
    const uint32_t x[4] = {words.x & magnitudes, words.y & magnitudes, words.z & magnitudes, words.w & magnitudes};
    const uint32_t sums = gb_add_bf16x2(gb_add_bf16x2(x[0], x[1]), gb_add_bf16x2(x[2], x[3]));
    const uint32_t least = __vimin3_s16x2(x[0] + magnitudes, x[1] + magnitudes, x[2] + magnitudes);
    return {gb_bf16_low(sums) + gb_bf16_high(sums), __vimin3_s16x2(least, x[3] + magnitudes, x[3] + magnitudes)};
}

__host__ __device__ __forceinline__ gb_fma32_extent gb_fma32_extent_of_both(const gb_fma32_extent &a,
                                                                            const gb_fma32_extent &b)
{
    return {a.sum + b.sum, __vimin3_s16x2(a.least, b.least, b.least)};
}

/* Whether an instruction may have a run of this extent. u is half a unit in the last place of the smallest x, 2^-8 of
 * its power of two, and 6 / (256/257)^2 < 6.05. A smallest one below 2^-90 is left to the text, with its subnormal
 * products. */
__host__ __device__ __forceinline__ bool gb_fma32_exact(const gb_fma32_extent &run)
{
    const uint32_t turned = gb_rotate_left(run.least, 16);
    const uint32_t least = (__vimin3_s16x2(run.least, turned, turned) - 0x7FFFu) & 0xFFFFu; /* 0: all are zero */
    const float power = gb_bf16_low(least & 0x7F80u);
    const bool ordinary = power >= 0x1p-90f || least == 0;
    return run.sum * (6.05f * 0x1p-16f) <= power && run.sum < gb_fma32_x_limit && ordinary;
}

/* The x of a group of two tokens. Lane l stands for token l / 16: it has the b operands of chunk l % 4, if that is its
 * column's, and looks at the 8 activations from 8 * (l % 16) on of a step whether their run is exact. */
struct gb_fma32_activations {
    const uint16_t *row; /* of the token; NULL: there is none */
    uint32_t columns;    /* of the row */

    __device__ __forceinline__ gb_fma32_activations(const uint16_t *row_, uint32_t columns_)
        : row(row_), columns(columns_)
    {
    }

    /* The b operands of run 0 or 1 of a step's chunks, times 2^119. */
    __device__ __forceinline__ void load(uint32_t step, uint32_t run, uint4 (&x)[2]) const
    {
        const uint32_t lane = threadIdx.x % 32, column = step * 128 + lane % 4 * 32 + 16 * run;
        const bool own = row && lane / 4 % 4 == lane % 4 && column < columns;
        const uint16_t *at = own ? row + column : (const uint16_t *)gb_fma32_no_x;
#pragma unroll
        for (uint32_t d = 0; d < 2; d++) {
            const uint4 now = gb_load_x(at + 8 * d);
            x[d] = make_uint4(gb_mul_bf16x2(now.x, gb_fma32_x_factor), gb_mul_bf16x2(now.y, gb_fma32_x_factor),
                              gb_mul_bf16x2(now.z, gb_fma32_x_factor), gb_mul_bf16x2(now.w, gb_fma32_x_factor));
        }
    }

    /* Which runs of a step an instruction may not have: bits 16 * token + 4 * chunk + 2 * run, and the next one. */
    __device__ __forceinline__ uint32_t inexact(uint32_t step) const
    {
        const uint32_t column = step * 128 + threadIdx.x % 16 * 8;
        const uint4 words = row && column < columns ? gb_load_x(row + column) : make_uint4(0, 0, 0, 0);
        const gb_fma32_extent own = gb_fma32_extent_of(words);
        const gb_fma32_extent other = {__shfl_xor_sync(0xFFFFFFFFu, own.sum, 1),
                                       __shfl_xor_sync(0xFFFFFFFFu, own.least, 1)};
        return __ballot_sync(0xFFFFFFFFu, !gb_fma32_exact(gb_fma32_extent_of_both(own, other)));
    }
};

/* Two E4M3 scales, of a row and of the row 8 further down; times what is left of the factors, if asked for. */
template <bool Rest> __device__ __forceinline__ void gb_fma32_scales(uint32_t codes, float &low, float &high)
{
    uint32_t halves = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)codes));
    if (Rest)
        asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(halves) : "r"(gb_fma32_rest_twice));
#endif
    low = __half2float(__ushort_as_half((unsigned short)halves));
    high = __half2float(__ushort_as_half((unsigned short)(halves >> 16)));
}

/* The chain of a run of a row: its two words of codes, and the run's x. */
__device__ __forceinline__ float gb_fma32_run(const uint2 &words, const uint4 (&x)[2])
{
    float p = 0.0f;
#pragma unroll
    for (uint32_t d = 0; d < 2; d++) {
        uint32_t pair[4];
        gb_mma16_repacked_word(d ? words.y : words.x, pair);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t of_x = gb_word_of4(x[d], i), codes = gb_mul_bf16x2(pair[i], 0x7E807E80u /* 2^126 */);
            p = __fmaf_rn(gb_bf16_low(codes), gb_bf16_low(of_x), p);
            p = __fmaf_rn(gb_bf16_high(codes), gb_bf16_high(of_x), p);
        }
    }
    return p;
}

/* What a warp has in shared memory for the runs of a step that are not exact: sums [token, chunk][rows of its tiles],
 * and the codes of a run of each row. */
template <uint32_t Tiles> struct gb_fma32_scratch {
    float sums[8][Tiles * gb_mma16_tile];
    uint2 codes[Tiles * gb_mma16_tile];
};

/* Those of the chunks' runs 0 or 1 that `inexact` names, as the text has them. */
template <uint32_t Tiles>
__device__ __forceinline__ void gb_fma32_inexact_runs(const gb_fma32_step (&weights)[Tiles],
                                                      const gb_fma32_activations &x, uint32_t step, uint32_t run,
                                                      uint32_t inexact, gb_fma32_scratch<Tiles> &scratch)
{
    constexpr uint32_t rows = Tiles * gb_mma16_tile;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t left = inexact >> 2 * run & 0x11111111u; left; left &= left - 1) {
        const uint32_t of = (uint32_t)__ffs((int)left) / 4, token = of / 4, chunk = of % 4;
        const uint16_t *row = (const uint16_t *)__shfl_sync(0xFFFFFFFFu, (uint64_t)x.row, (int)(16 * token));
        const uint16_t *from = row + step * 128 + chunk * 32 + run * 16;
        const uint4 now[2] = {gb_load_x(from), gb_load_x(from + 8)};
        if (lane % 4 == chunk)
#pragma unroll
            for (uint32_t n = 0; n < Tiles; n++) {
                const uint4 &low = weights[n].low, &high = weights[n].high;
                scratch.codes[n * gb_mma16_tile + lane / 4] = run ? make_uint2(low.z, low.w) : make_uint2(low.x, low.y);
                scratch.codes[n * gb_mma16_tile + lane / 4 + 8] =
                    run ? make_uint2(high.z, high.w) : make_uint2(high.x, high.y);
            }
        __syncwarp();
#pragma unroll
        for (uint32_t i = lane; i < rows; i += 32)
            scratch.sums[of][i] = gb_fma32_run(scratch.codes[i], now);
        __syncwarp();
    }
}

/* chain [row and chunk] += a run of four chunks of 16 rows. Some: not all runs are exact. */
template <class Layout, bool Some, uint32_t Tiles>
__device__ __forceinline__ void gb_fma32_multiply(const gb_fma32_step &weights, const uint4 (&b)[2], uint32_t run,
                                                  uint32_t inexact, const gb_fma32_scratch<Tiles> &scratch,
                                                  uint32_t tile, float (&chain)[4])
{
    const uint32_t lane = threadIdx.x % 32;
    float sums[4] = {}, scales[4];
#pragma unroll
    for (uint32_t d = 0; d < 2; d++) {
        uint32_t low[4], high[4];
        Layout::fields(weights.low, 2 * run + d, low);
        Layout::fields(weights.high, 2 * run + d, high);
        gb_mma16(sums, low[0], high[0], low[1], high[1], b[d].x, b[d].y);
        gb_mma16(sums, low[2], high[2], low[3], high[3], b[d].z, b[d].w);
    }
    gb_fma32_scales<!Some>(weights.scales.x >> 16 * run, scales[0], scales[2]);
    gb_fma32_scales<!Some>(weights.scales.y >> 16 * run, scales[1], scales[3]);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        float p = Some ? __fmul_rn(sums[j], gb_fma32_rest) : sums[j];
        const uint32_t of = lane % 4 * 2 + j % 2; /* token, chunk */
        if (Some && inexact >> (4 * of + 2 * run) & 1)
            p = scratch.sums[of][tile * gb_mma16_tile + lane / 4 + j / 2 * 8];
        chain[j] = __fmaf_rn(scales[j], p, chain[j]);
    }
}

/* sum += a step of a unit: run 0 of all tiles, then run 1; registers hold no more. */
template <class Layout, bool Some, uint32_t Tiles, uint32_t Groups, class Used>
__device__ __forceinline__ void gb_fma32_multiply_tiles(const gb_fma32_step (&weights)[Tiles],
                                                        const gb_fma32_activations &x, uint32_t step, uint32_t inexact,
                                                        gb_fma32_scratch<Tiles> &scratch,
                                                        float (&sum)[Tiles][Groups][4], const Used &used)
{
#pragma unroll
    for (uint32_t run = 0; run < 2; run++) {
        if (Some)
            gb_fma32_inexact_runs(weights, x, step, run, inexact, scratch);
        uint4 now[2];
        x.load(step, run, now);
#pragma unroll
        for (uint32_t n = 0; n < Tiles; n++) {
            gb_fma32_multiply<Layout, Some>(weights[n], now, run, inexact, scratch, n, sum[n][0]);
            if (run == 1)
                used(n);
        }
    }
}

__device__ __forceinline__ float4 gb_fma32_add(const float4 &a, const float4 &b)
{
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

/* What the kernels ask of an order (gpu/mma16_experts.cuh). A chain comes to four floats, one of each chunk. */
template <bool GateUp> struct gb_fma32_order {
    using Layout = gb_fma32_records<GateUp>;
    using activations = gb_fma32_activations;
    static constexpr uint32_t chains = 8, values = 4, tokens = 2, padding = 16;
    template <uint32_t Tiles> using scratch = gb_fma32_scratch<Tiles>;
    template <uint32_t Tiles> static constexpr uint32_t scratch_bytes = sizeof(gb_fma32_scratch<Tiles>);

    static __device__ __forceinline__ activations activations_of(const gb_mma16_job &job, const gb_mma16_item &item,
                                                                 uint32_t group)
    {
        const uint32_t n = group * tokens + threadIdx.x % 32 / 16;
        return activations(n < item.pairs ? job.x + (size_t)(GateUp ? item.pair[n] / job.share : item.pair[n]) *
                                                        job.weights.columns
                                          : NULL,
                           job.weights.columns);
    }

    template <uint32_t Tiles, uint32_t Groups, class Used>
    static __device__ __forceinline__ void narrow_step(const gb_fma32_step (&weights)[Tiles], const activations &x,
                                                       uint32_t step, float (&sum)[Tiles][Groups][4],
                                                       gb_fma32_scratch<Tiles> *scratch, const Used &used)
    {
        const uint32_t inexact = x.inexact(step);
        gb_fma32_scratch<Tiles> &own = scratch[threadIdx.x / 32];
        if (inexact)
            gb_fma32_multiply_tiles<Layout, true>(weights, x, step, inexact, own, sum, used);
        else
            gb_fma32_multiply_tiles<Layout, false>(weights, x, step, 0, own, sum, used);
    }

    /* Added: the butterfly's first step, between the two chains that a warp has. */
    template <bool Added>
    static __device__ __forceinline__ void store(const float (&chain)[4], float *to, uint32_t stride)
    {
        const uint32_t lane = threadIdx.x % 32;
        float2 *at = (float2 *)(to + lane % 4 / 2 * stride + lane / 4 * values + lane % 2 * 2);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            float2 *sum = at + half * 4 * values;
            const float2 own = make_float2(chain[2 * half], chain[2 * half + 1]);
            *sum = Added ? make_float2(__fadd_rn(sum->x, own.x), __fadd_rn(sum->y, own.y)) : own;
        }
    }

    /* Steps 4 and 5, of the sums that Warps warps have. A chain without a step is +0: of two warps, some are. */
    template <uint32_t Warps>
    static __device__ __forceinline__ float dot(const float *from, uint32_t stride, uint32_t steps, float global)
    {
        float4 sums[Warps];
#pragma unroll
        for (uint32_t w = 0; w < Warps; w++) {
            const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            const float4 first = w < steps ? *(const float4 *)(from + w * stride) : none;
            sums[w] = Warps == gb_mma16_warps && w + Warps < steps ? first : gb_fma32_add(first, none);
        }
#pragma unroll
        for (uint32_t half = Warps / 2; half > 0; half /= 2)
#pragma unroll
            for (uint32_t w = 0; w < half; w++)
                sums[w] = gb_fma32_add(sums[w], sums[w + half]);
        return __fmul_rn(__fadd_rn(__fadd_rn(sums[0].x, sums[0].z), __fadd_rn(sums[0].y, sums[0].w)), global);
    }
};

#endif
