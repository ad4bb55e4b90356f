/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the weights of mma16-sm90/1 lie in device memory, in either layout. A layout is a type with
 *   part(expert, tile):       where a lane finds its part of the first step of a tile;
 *   beside(part, n):          the same of the n-th tile after that, the first of a group;
 *   forward(part, steps):     the same of as many steps further on;
 *   ask(part, steps):         brings so many steps of a group's tiles nearer, if they lie side by side;
 *   step_of(part, n, step):   a lane's part of the n-th tile of the group, in the step where `part` is, loaded;
 *   fields(), activations():  codes in bf16's fields as the a operands of two instructions, and the activations in the
 *                             order that these have.
 */
#ifndef GB_GPU_MMA16_WEIGHTS_CUH
#define GB_GPU_MMA16_WEIGHTS_CUH

#include "gpu/mma16.cuh"

/* A matrix of all experts. gate_up: a tile is 8 neurons, their gate rows and then their up rows. */
struct gb_mma16_matrix {
    const uint8_t *codes;       /* canonical [experts, rows, bytes of columns], or records */
    const uint8_t *scales;      /* canonical [experts, rows, columns / block] */
    const float *global_scales; /* [experts, 2 or 1]; NULL: the format has none */
    uint32_t experts, rows, columns, tiles;
};

template <class Format> __host__ __device__ constexpr uint32_t gb_mma16_steps(uint32_t columns)
{
    return (columns + Format::step - 1) / Format::step;
}

/* Bytes of a row's codes. */
template <class Format> __host__ __device__ constexpr uint32_t gb_mma16_code_bytes(uint32_t columns)
{
    return columns / (Format::step / gb_mma16_step_bytes);
}

/* The row of a matrix that row r (0 .. 15) of a tile is. */
template <bool GateUp>
__host__ __device__ __forceinline__ uint32_t gb_mma16_row(uint32_t rows, uint32_t tile, uint32_t r)
{
    return GateUp ? (r < 8 ? 0 : rows / 2) + tile * 8 + r % 8 : tile * 16 + r;
}

/* Where a lane finds its part of a tile's first step: of the first 8 rows. */
struct gb_mma16_part {
    const uint8_t *codes, *scales;
};

/* A lane's part of a step: its chunk of a row, and of the row 8 further down; the scales of both, in turns. */
struct gb_mma16_step {
    uint4 low, high;
    uint32_t scales;
};

/* 16 bytes that are read once. */
__device__ __forceinline__ uint4 gb_load_once(const uint8_t *from)
{
    uint4 words;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                 : "l"(from));
    return words;
}

/* Brings bytes, a multiple of 16, to the L2 cache. */
__device__ __forceinline__ void gb_ask_l2(const uint8_t *from, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

__device__ __forceinline__ uint32_t gb_word_of4(const uint4 &words, uint32_t i)
{
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

/* Tiles of a group, whose records of a step lie side by side: of all there are, if that divides them. */
constexpr uint32_t gb_mma16_group_tiles = 4;

__host__ __device__ __forceinline__ uint32_t gb_mma16_group(uint32_t tiles)
{
    return tiles % gb_mma16_group_tiles ? 1 : gb_mma16_group_tiles;
}

/*
 * Records: [experts][groups][steps][tiles of a group], each the codes [2][32 lanes] of 16 bytes and the scales
 * [8][scales of a step][2] of 16 rows, [2] for the first and the last 8 of them. No code is NaN.
 */
template <class Format_, bool GateUp> struct gb_mma16_records {
    using Format = Format_;
    using step = gb_mma16_step;
    static constexpr bool has_nan = false;
    static constexpr uint32_t codes = gb_mma16_tile * gb_mma16_step_bytes;
    static constexpr uint32_t bytes = codes + gb_mma16_tile * Format::scales; /* of a record */

    const gb_mma16_matrix &matrix;
    uint32_t group, step_bytes; /* of a group */
    size_t tile_bytes;

    __device__ __forceinline__ explicit gb_mma16_records(const gb_mma16_matrix &of)
        : matrix(of), group(gb_mma16_group(of.tiles)), step_bytes(group * bytes),
          tile_bytes((size_t)gb_mma16_steps<Format>(of.columns) * bytes)
    {
    }
    __device__ __forceinline__ gb_mma16_part part(uint32_t expert, uint32_t tile) const
    {
        const uint32_t lane = threadIdx.x % 32, n = tile & (group - 1);
        const uint8_t *record = matrix.codes + ((size_t)expert * matrix.tiles + tile - n) * tile_bytes + n * bytes;
        return {record + 16 * lane, record + codes + lane * Format::scales / 4 * 2};
    }
    __device__ __forceinline__ void ask(const gb_mma16_part &first, uint32_t steps) const
    {
        gb_ask_l2(first.codes - threadIdx.x % 32 * 16, steps * step_bytes);
    }
    __device__ __forceinline__ gb_mma16_part beside(const gb_mma16_part &part, uint32_t n) const
    {
        return {part.codes + n * tile_bytes, part.scales + n * tile_bytes};
    }
    __device__ __forceinline__ gb_mma16_part forward(const gb_mma16_part &part, uint32_t steps) const
    {
        return {part.codes + steps * step_bytes, part.scales + steps * step_bytes};
    }
    __device__ __forceinline__ gb_mma16_step step_of(const gb_mma16_part &part, uint32_t n, uint32_t) const
    {
        const uint8_t *at = part.codes + n * bytes, *scales = part.scales + n * bytes;
        return {gb_load_once(at), gb_load_once(at + codes / 2),
                Format::in_chunk == 2 ? __ldg((const uint32_t *)scales) : __ldg((const uint16_t *)scales)};
    }
    static __device__ __forceinline__ void fields(const uint4 &of, uint32_t d, uint32_t (&a)[4])
    {
        if (Format::step == gb_mma16_step_bytes) {
            gb_mma16_repacked_bytes_word(gb_word_of4(of, 2 * d), a[0], a[1]);
            gb_mma16_repacked_bytes_word(gb_word_of4(of, 2 * d + 1), a[2], a[3]);
        } else {
            gb_mma16_repacked_word(gb_word_of4(of, d), a);
        }
    }
    static __device__ __forceinline__ uint4 activations(const uint4 &x)
    {
        return x;
    }
};

/* The canonical layout. Whole: rows are whole chunks; otherwise they are NVFP4's and end in half a one. */
template <class Format_, bool GateUp, bool Whole> struct gb_mma16_rows {
    using Format = Format_;
    using step = gb_mma16_step;
    static constexpr bool has_nan = true;

    const gb_mma16_matrix &matrix;
    uint32_t code_bytes, scale_bytes; /* of a row */

    __device__ __forceinline__ explicit gb_mma16_rows(const gb_mma16_matrix &of)
        : matrix(of), code_bytes(gb_mma16_code_bytes<Format>(of.columns)), scale_bytes(of.columns / Format::block)
    {
    }
    __device__ __forceinline__ gb_mma16_part part(uint32_t expert, uint32_t tile) const
    {
        const uint32_t lane = threadIdx.x % 32;
        const size_t row = (size_t)expert * matrix.rows + gb_mma16_row<GateUp>(matrix.rows, tile, lane / 4);
        return {matrix.codes + row * code_bytes + 16 * (lane % 4),
                matrix.scales + row * scale_bytes + lane % 4 * Format::scales / 4};
    }
    __device__ __forceinline__ void ask(const gb_mma16_part &, uint32_t) const {}
    __device__ __forceinline__ gb_mma16_part beside(const gb_mma16_part &part, uint32_t n) const
    {
        const size_t rows = n * (GateUp ? gb_mma16_tile / 2 : gb_mma16_tile);
        return {part.codes + rows * code_bytes, part.scales + rows * scale_bytes};
    }
    __device__ __forceinline__ gb_mma16_part forward(const gb_mma16_part &part, uint32_t steps) const
    {
        return {part.codes + steps * gb_mma16_step_bytes, part.scales + steps * Format::scales};
    }
    /* Zeros where there is no chunk. */
    __device__ __forceinline__ uint4 chunk(const uint8_t *from, uint32_t byte) const
    {
        if (Whole)
            return byte < code_bytes ? gb_load_once(from) : make_uint4(0, 0, 0, 0);
        const uint2 none = make_uint2(0, 0), first = byte < code_bytes ? __ldg((const uint2 *)from) : none;
        const uint2 second = byte + 8 < code_bytes ? __ldg((const uint2 *)from + 1) : none;
        return make_uint4(first.x, first.y, second.x, second.y);
    }
    /* The chunk's scales. */
    __device__ __forceinline__ uint32_t scales_of(const uint8_t *from, uint32_t scale) const
    {
        if (scale >= scale_bytes)
            return 0;
        if (Format::in_chunk == 1)
            return __ldg(from);
        if (Whole)
            return __ldg((const uint16_t *)from);
        return __ldg(from) | (scale + 1 < scale_bytes ? (uint32_t)__ldg(from + 1) << 8 : 0);
    }
    __device__ __forceinline__ gb_mma16_step step_of(const gb_mma16_part &first, uint32_t n, uint32_t step) const
    {
        const gb_mma16_part part = beside(first, n);
        const uint32_t lane = threadIdx.x % 32, further = GateUp ? matrix.rows / 2 : 8;
        const uint32_t byte = step * gb_mma16_step_bytes + 16 * (lane % 4);
        const uint32_t scale = step * Format::scales + lane % 4 * Format::scales / 4;
        const uint32_t low = scales_of(part.scales, scale);
        const uint32_t high = scales_of(part.scales + (size_t)further * scale_bytes, scale);
        return {chunk(part.codes, byte), chunk(part.codes + (size_t)further * code_bytes, byte),
                Format::in_chunk == 2 ? __byte_perm(low, high, 0x5140) : low | high << 8};
    }
    static __device__ __forceinline__ void fields(const uint4 &of, uint32_t d, uint32_t (&a)[4])
    {
        if (Format::step == gb_mma16_step_bytes) {
            gb_mma16_bytes_word(gb_word_of4(of, 2 * d), a[0], a[1]);
            gb_mma16_bytes_word(gb_word_of4(of, 2 * d + 1), a[2], a[3]);
        } else {
            gb_mma16_plain_word(gb_word_of4(of, d), a);
        }
    }
    static __device__ __forceinline__ uint4 activations(const uint4 &x)
    {
        if (Format::step == gb_mma16_step_bytes)
            return x;
        return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x5410),
                          __byte_perm(x.z, x.w, 0x7632));
    }
};

#endif
