/* SPDX-License-Identifier: Apache-2.0 */
/* Weight rows in device memory: where a row lies, how a chunk of 16 bytes is loaded, how a run of it is multiplied. */
#ifndef GB_GPU_ROWS_CUH
#define GB_GPU_ROWS_CUH

#include "gaugeblock.h"
#include "gpu/bf16.cuh"
#include "gpu/e2m1.cuh"
#include "gpu/e4m3.cuh"
#include "gpu/e8m0.cuh"
#include "gpu/fma2.cuh"

struct gb_cuda_row {
    const uint8_t *codes;
    const uint8_t *scales; /* NULL where the format has none */
};

/* 16 bytes of codes and the scales of its runs, the first one in the low byte. */
struct gb_cuda_chunk {
    uint4 codes;
    uint32_t scales;
};

__device__ __forceinline__ uint32_t gb_word(const uint4 &codes, uint32_t i)
{
    return i == 0 ? codes.x : i == 1 ? codes.y : i == 2 ? codes.z : codes.w;
}

/*
 * A format is a type with
 *   chunk, run:  elements in 16 bytes of codes, and under one scale;
 *   x_factor:    what x is multiplied by because decoded weights are divided by it, a power of two;
 *   row():       where a row lies;
 *   runs(c):     how many runs chunk c of a row has;
 *   load(c):     chunk c of a row;
 *   run_fma():   step 3 of fma32 for run r of a chunk in every row, with the x of every token: acc[row * Tokens +
 *                token]. x: the run's elements, in shared memory. Huge: x has not been multiplied by x_factor.
 *
 * Whole: every row is a whole number of chunks, so that it starts at a multiple of 16 bytes. Otherwise rows start at
 * multiples of 8 bytes and end in a chunk of 8.
 */
template <bool Whole> struct gb_cuda_nvfp4 {
    static constexpr uint32_t chunk = 32;
    static constexpr uint32_t run = 16;
    static constexpr float x_factor = GB_E2M1_FACTOR;

    static __device__ __forceinline__ gb_cuda_row row(const struct gb_weights &weights, uint32_t expert, uint32_t row)
    {
        size_t index = (size_t)expert * weights.rows + row;
        return {(const uint8_t *)weights.codes + index * (weights.columns / 2),
                (const uint8_t *)weights.scales + index * (weights.columns / 16)};
    }

    static __device__ __forceinline__ uint32_t runs(uint32_t c, uint32_t columns)
    {
        return Whole || (c + 1) * chunk <= columns ? 2 : 1;
    }

    static __device__ __forceinline__ gb_cuda_chunk load(const gb_cuda_row &row, uint32_t c, uint32_t columns)
    {
        if (Whole)
            return {__ldg((const uint4 *)row.codes + c), __ldg((const uint16_t *)row.scales + c)};
        uint2 first = __ldg((const uint2 *)row.codes + 2 * c), second = make_uint2(0, 0);
        uint32_t scales = __ldg(row.scales + 2 * c);
        if (runs(c, columns) == 2) {
            second = __ldg((const uint2 *)row.codes + 2 * c + 1);
            scales |= (uint32_t)__ldg(row.scales + 2 * c + 1) << 8;
        }
        return {make_uint4(first.x, first.y, second.x, second.y), scales};
    }

    template <uint32_t Rows, uint32_t Tokens, bool Huge>
    static __device__ __forceinline__ void run_fma(const gb_cuda_chunk (&data)[Rows], uint32_t r,
                                                   const float *const (&x)[Tokens], float (&acc)[Rows * Tokens])
    {
        float p[Rows * Tokens] = {};
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            float w[Rows][8];
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++)
                gb_e2m1x8_decode(gb_word(data[n].codes, 2 * r + half), w[n]);
#pragma unroll
            for (uint32_t i = 0; i < 8; i += 4)
#pragma unroll
                for (uint32_t t = 0; t < Tokens; t++) {
                    const float4 v = *(const float4 *)(x[t] + 8 * half + i);
                    const float xs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) {
                        float column[Rows];
#pragma unroll
                        for (uint32_t n = 0; n < Rows; n++)
                            column[n] = Huge ? __fmul_rn(w[n][i + j], x_factor) : w[n][i + j];
                        gb_fma_rows<Tokens>(column, xs[j], &p[t]);
                    }
                }
        }
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++) {
            float s[2];
            gb_e4m3x2_decode((uint16_t)data[n].scales, &s[0], &s[1]);
#pragma unroll
            for (uint32_t t = 0; t < Tokens; t++)
                acc[n * Tokens + t] = __fmaf_rn(s[r], p[n * Tokens + t], acc[n * Tokens + t]);
        }
    }
};

/* Rows of a multiple of 32 elements are whole chunks; two chunks share a scale. */
struct gb_cuda_mxfp8 {
    static constexpr uint32_t chunk = 16;
    static constexpr uint32_t run = 16;
    static constexpr float x_factor = 1.0f;

    static __device__ __forceinline__ gb_cuda_row row(const struct gb_weights &weights, uint32_t expert, uint32_t row)
    {
        size_t index = (size_t)expert * weights.rows + row;
        return {(const uint8_t *)weights.codes + index * weights.columns,
                (const uint8_t *)weights.scales + index * (weights.columns / 32)};
    }

    static __device__ __forceinline__ uint32_t runs(uint32_t, uint32_t)
    {
        return 1;
    }

    static __device__ __forceinline__ gb_cuda_chunk load(const gb_cuda_row &row, uint32_t c, uint32_t)
    {
        return {__ldg((const uint4 *)row.codes + c), __ldg(row.scales + c / 2)};
    }

    template <uint32_t Rows, uint32_t Tokens, bool Huge>
    static __device__ __forceinline__ void run_fma(const gb_cuda_chunk (&data)[Rows], uint32_t,
                                                   const float *const (&x)[Tokens], float (&acc)[Rows * Tokens])
    {
        float p[Rows * Tokens] = {};
#pragma unroll
        for (uint32_t i = 0; i < run; i += 4) {
            float w[4][Rows];
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++) {
                const uint32_t word = gb_word(data[n].codes, i / 4);
                gb_e4m3x2_decode((uint16_t)word, &w[0][n], &w[1][n]);
                gb_e4m3x2_decode((uint16_t)(word >> 16), &w[2][n], &w[3][n]);
            }
#pragma unroll
            for (uint32_t t = 0; t < Tokens; t++) {
                const float4 v = *(const float4 *)(x[t] + i);
                const float xs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (uint32_t j = 0; j < 4; j++)
                    gb_fma_rows<Tokens>(w[j], xs[j], &p[t]);
            }
        }
#pragma unroll
        for (uint32_t n = 0; n < Rows; n++)
#pragma unroll
            for (uint32_t t = 0; t < Tokens; t++)
                acc[n * Tokens + t] = __fmaf_rn(gb_e8m0_decode(data[n].scales), p[n * Tokens + t], acc[n * Tokens + t]);
    }
};

/* Rows of a multiple of 16 elements are whole chunks. There are no scales: s = 1. */
struct gb_cuda_bf16 {
    static constexpr uint32_t chunk = 8;
    static constexpr uint32_t run = 8;
    static constexpr float x_factor = 1.0f;

    static __device__ __forceinline__ gb_cuda_row row(const struct gb_weights &weights, uint32_t expert, uint32_t row)
    {
        size_t index = (size_t)expert * weights.rows + row;
        return {(const uint8_t *)weights.codes + index * weights.columns * 2, NULL};
    }

    static __device__ __forceinline__ uint32_t runs(uint32_t, uint32_t)
    {
        return 1;
    }

    static __device__ __forceinline__ gb_cuda_chunk load(const gb_cuda_row &row, uint32_t c, uint32_t)
    {
        return {__ldg((const uint4 *)row.codes + c), 0};
    }

    template <uint32_t Rows, uint32_t Tokens, bool Huge>
    static __device__ __forceinline__ void run_fma(const gb_cuda_chunk (&data)[Rows], uint32_t,
                                                   const float *const (&x)[Tokens], float (&acc)[Rows * Tokens])
    {
#pragma unroll
        for (uint32_t t = 0; t < Tokens; t++) {
            const float4 a = *(const float4 *)x[t], b = *(const float4 *)(x[t] + 4);
            const float xs[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (uint32_t n = 0; n < Rows; n++) {
                float p = 0.0f;
#pragma unroll
                for (uint32_t i = 0; i < 8; i += 2) {
                    p = __fmaf_rn(gb_bf16_low(gb_word(data[n].codes, i / 2)), xs[i], p);
                    p = __fmaf_rn(gb_bf16_high(gb_word(data[n].codes, i / 2)), xs[i + 1], p);
                }
                acc[n * Tokens + t] = __fadd_rn(p, acc[n * Tokens + t]);
            }
        }
    }
};

/* The global scale of a row's part; 1 where the format has none. */
__device__ __forceinline__ float gb_cuda_global(const struct gb_weights &weights, uint32_t expert, uint32_t part)
{
    return weights.global_scales ? weights.global_scales[(size_t)expert * weights.halves + part] : 1.0f;
}

#endif
