/* SPDX-License-Identifier: Apache-2.0 */
/* Weight rows in device memory: where a row lies, how a chunk of 16 bytes is loaded, how a run of it is decoded. */
#ifndef GB_GPU_ROWS_CUH
#define GB_GPU_ROWS_CUH

#include "gaugeblock.h"
#include "gpu/bf16.cuh"
#include "gpu/e2m1.cuh"

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

struct gb_cuda_nvfp4 {
    static constexpr enum gb_format format = GB_NVFP4;
    static constexpr const char *name = "nvfp4";
    static constexpr uint32_t chunk = 32;             /* elements in 16 bytes */
    static constexpr uint32_t run = 16;               /* elements under one scale */
    static constexpr float x_factor = GB_E2M1_FACTOR; /* decoded weights are divided by it */

    static __device__ __forceinline__ gb_cuda_row row(const struct gb_weights &weights, uint32_t expert, uint32_t row)
    {
        size_t index = (size_t)expert * weights.rows + row;
        return {(const uint8_t *)weights.codes + index * (weights.columns / 2),
                (const uint8_t *)weights.scales + index * (weights.columns / 16)};
    }

    /* Chunk c of a row. Aligned: rows are whole chunks, so every one starts at a multiple of 16 bytes. Otherwise rows
     * start at multiples of 8 bytes, and `runs` says whether the chunk has 1 or 2 runs. */
    template <bool Aligned>
    static __device__ __forceinline__ gb_cuda_chunk load(const gb_cuda_row &row, uint32_t c, uint32_t runs)
    {
        if (Aligned)
            return {__ldg((const uint4 *)row.codes + c), __ldg((const uint16_t *)row.scales + c)};
        uint2 first = __ldg((const uint2 *)row.codes + 2 * c);
        uint32_t scales = __ldg(row.scales + 2 * c);
        if (runs == 1)
            return {make_uint4(first.x, first.y, 0, 0), scales};
        uint2 second = __ldg((const uint2 *)row.codes + 2 * c + 1);
        scales |= (uint32_t)__ldg(row.scales + 2 * c + 1) << 8;
        return {make_uint4(first.x, first.y, second.x, second.y), scales};
    }

    static __device__ __forceinline__ void decode(const gb_cuda_chunk &data, uint32_t r, float (&w)[run])
    {
        float half[8];
        gb_e2m1x8_decode(gb_word(data.codes, 2 * r), half);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            w[i] = half[i];
        gb_e2m1x8_decode(gb_word(data.codes, 2 * r + 1), half);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            w[8 + i] = half[i];
    }

    static __device__ __forceinline__ void scales(const gb_cuda_chunk &data, float (&s)[chunk / run])
    {
        gb_e4m3x2_decode((uint16_t)data.scales, &s[0], &s[1]);
    }
};

struct gb_cuda_bf16 {
    static constexpr enum gb_format format = GB_BF16;
    static constexpr const char *name = "bf16";
    static constexpr uint32_t chunk = 8;
    static constexpr uint32_t run = 8;
    static constexpr float x_factor = 1.0f;

    static __device__ __forceinline__ gb_cuda_row row(const struct gb_weights &weights, uint32_t expert, uint32_t row)
    {
        size_t index = (size_t)expert * weights.rows + row;
        return {(const uint8_t *)weights.codes + index * weights.columns * 2, NULL};
    }

    template <bool Aligned>
    static __device__ __forceinline__ gb_cuda_chunk load(const gb_cuda_row &row, uint32_t c, uint32_t)
    {
        return {__ldg((const uint4 *)row.codes + c), 0};
    }

    static __device__ __forceinline__ void decode(const gb_cuda_chunk &data, uint32_t, float (&w)[run])
    {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            w[2 * i] = gb_bf16_low(gb_word(data.codes, i));
            w[2 * i + 1] = gb_bf16_high(gb_word(data.codes, i));
        }
    }

    static __device__ __forceinline__ void scales(const gb_cuda_chunk &, float (&s)[1])
    {
        s[0] = 1.0f;
    }
};

/* The global scale of a row's part; 1 where the format has none. */
__device__ __forceinline__ float gb_cuda_global(const struct gb_weights &weights, uint32_t expert, uint32_t part)
{
    return weights.global_scales ? weights.global_scales[(size_t)expert * weights.parts + part] : 1.0f;
}

#endif
