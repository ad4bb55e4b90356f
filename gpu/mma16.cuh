/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order mma16-sm90/1 on tensor cores: docs/numerics.md#mma16-sm90.
 *
 * An instruction multiplies 16 rows (a tile) by up to 8 activations. Lane l of a warp stands for row l / 4 of the
 * tile's first eight rows and of its last eight, and for chunk l % 4 of the step: its 16 bytes of codes of either row
 * feed the step's eight instructions, so no lane needs another's.
 */
#ifndef GB_GPU_MMA16_CUH
#define GB_GPU_MMA16_CUH

#include <stdint.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gaugeblock.h"

constexpr uint32_t gb_mma16_tile = 16;       /* rows */
constexpr uint32_t gb_mma16_tokens = 8;      /* activations of an instruction */
constexpr uint32_t gb_mma16_step_bytes = 64; /* of a row's codes: 4 chunks of 16 */
constexpr uint32_t gb_mma16_chains = 4;

/* d += a b */
__device__ __forceinline__ void gb_mma16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

/* Both halves times both halves, bf16, each rounded once. */
__device__ __forceinline__ uint32_t gb_mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
#endif
    return product;
}

/* A pair of bf16, each in both halves. */
__device__ __forceinline__ void gb_spread_bf16x2(uint32_t pair, uint32_t &first, uint32_t &second)
{
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; mov.b32 %0, {low, low}; mov.b32 %1, {high, high};}"
        : "=r"(first), "=r"(second)
        : "r"(pair));
}

/* Two E4M3 scales times 2^118, each twice as bf16. */
__device__ __forceinline__ void gb_mma16_e4m3_scales(uint32_t codes, uint32_t &first, uint32_t &second)
{
    uint32_t halves = 0, pair = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)codes));
#endif
    const float low = __half2float(__ushort_as_half((unsigned short)halves));
    const float high = __half2float(__ushort_as_half((unsigned short)(halves >> 16)));
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    gb_spread_bf16x2(gb_mul_bf16x2(pair, 0x7A807A80u /* 2^118 */), first, second);
}

/* Two E8M0 scales, each twice as bf16: the code is bf16's exponent field, but for the subnormal 2^-127 and for NaN,
 * which the field has as infinity: times zero, and added. */
__device__ __forceinline__ void gb_mma16_e8m0_scales(uint32_t codes, uint32_t &first, uint32_t &second)
{
    const uint32_t fields = __vmaxu2(__byte_perm(codes, 0, 0x4140) << 7, 0x00400040u);
    uint32_t pair = 0;
#if __CUDA_ARCH__ >= 900
    asm("fma.rn.bf16x2 %0, %1, %2, %1;" : "=r"(pair) : "r"(fields), "r"(0u));
#endif
    gb_spread_bf16x2(pair, first, second);
}

/* Whether one of 16 E4M3 codes is NaN: 0x7F in its lower seven bits, which one more carries into the eighth. */
__device__ __forceinline__ bool gb_mma16_any_nan(const uint4 &codes)
{
    const uint32_t magnitude = 0x7F7F7F7Fu, one = 0x01010101u;
    return (((codes.x & magnitude) + one) | ((codes.y & magnitude) + one) | ((codes.z & magnitude) + one) |
            ((codes.w & magnitude) + one)) &
           ~magnitude;
}

/*
 * The eight E2M1 codes of a word in bf16's fields, as the a operands of two instructions: pair[0] and pair[1] are
 * columns 0 to 3, pair[2] and pair[3] columns 4 to 7. Plain: codes lie in a row; columns 0 and 2 share a register, and
 * 1 and 3.
 */
__device__ __forceinline__ void gb_mma16_plain_word(uint32_t word, uint32_t (&pair)[4])
{
    /* two codes in the upper byte of either half */
    const uint32_t spread[2] = {__byte_perm(word, 0, 0x1404), __byte_perm(word, 0, 0x3424)};
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        pair[2 * i] = (spread[i] << 4 & 0x80008000u) | (spread[i] >> 2 & 0x01C001C0u);
        pair[2 * i + 1] = (spread[i] & 0x80008000u) | (spread[i] >> 6 & 0x01C001C0u);
    }
}

/* Bytes of a word by selectors, whose highest bit asks for eight times the byte's sign. */
__device__ __forceinline__ uint32_t gb_select_bytes(uint32_t word, uint32_t selectors)
{
    uint32_t bytes;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(bytes) : "r"(word), "r"(selectors));
    return bytes;
}

/* Four E4M3 codes in bf16's fields: the value times 2^-120. Columns 0 and 1, then 2 and 3. */
__device__ __forceinline__ void gb_mma16_bytes_word(uint32_t word, uint32_t &first, uint32_t &second)
{
    first = gb_select_bytes(word, 0x9180) << 4 & 0x87F087F0u;
    second = gb_select_bytes(word, 0xB3A2) << 4 & 0x87F087F0u;
}

/*
 * Repacked words: bits lie so that the operands are a word, rotated, shifted or folded, under a mask. Fields of bf16
 * that three operands of E2M1, or one of E4M3, need leave bits over that do not lie as a field does; folded they do.
 */
constexpr uint32_t gb_mma16_e2m1_fields = 0x81C081C0u; /* s ee m at the bits of bf16's sign, exponent and mantissa */
constexpr uint32_t gb_mma16_e4m3_fields = 0x87F087F0u;

__host__ __device__ __forceinline__ uint32_t gb_mma16_folded(uint32_t word)
{
    return word << 4 ^ word >> 4;
}

__host__ __device__ __forceinline__ uint32_t gb_rotate_left(uint32_t word, uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __funnelshift_l(word, word, bits);
#else
    return word << bits | word >> (32 - bits);
#endif
}

/* Neighbours share registers. */
__host__ __device__ __forceinline__ void gb_mma16_repacked_word(uint32_t word, uint32_t (&pair)[4])
{
    pair[0] = word & gb_mma16_e2m1_fields;
    pair[1] = gb_rotate_left(word, 10) & gb_mma16_e2m1_fields;
    pair[2] = word << 6 & gb_mma16_e2m1_fields;
    pair[3] = gb_mma16_folded(word) & gb_mma16_e2m1_fields;
}
__host__ __device__ __forceinline__ void gb_mma16_repacked_bytes_word(uint32_t word, uint32_t &first, uint32_t &second)
{
    first = word & gb_mma16_e4m3_fields;
    second = gb_mma16_folded(word) & gb_mma16_e4m3_fields;
}

/* The word of which the bits `known` are given, and, folded, the bits `fields`: from the highest on, each is the last
 * to depend on one that is not known. */
__host__ __device__ inline uint32_t gb_mma16_unfold(uint32_t word, uint32_t known, uint32_t folded, uint32_t fields)
{
    for (uint32_t bit = 31; bit >= 4; bit--)
        if ((gb_mma16_folded(word) ^ folded) & fields & 1u << bit)
            word ^= 1u << (known >> (bit - 4) & 1 ? bit + 4 : bit - 4);
    return word;
}

/* Moves the bits of a word of eight E2M1 codes to where gb_mma16_repacked_word finds them. */
__host__ __device__ inline uint32_t gb_mma16_repack_word(uint32_t codes)
{
    uint32_t pair[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t low = codes >> 8 * i & 15u, high = codes >> (8 * i + 4) & 15u;
        pair[i] = (low & 8u) << 12 | (low & 7u) << 6 | (high & 8u) << 28 | (high & 7u) << 22;
    }
    const uint32_t fields = gb_mma16_e2m1_fields;
    return gb_mma16_unfold(pair[0] | pair[1] >> 10 | pair[1] << 22 | pair[2] >> 6,
                           fields | fields >> 10 | fields << 22 | fields >> 6, pair[3], fields);
}

/* The same of four E4M3 codes, for gb_mma16_repacked_bytes_word. */
__host__ __device__ inline uint32_t gb_mma16_repack_bytes_word(uint32_t codes)
{
    uint32_t pair[2];
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t low = codes >> 16 * i & 0xFFu, high = codes >> (16 * i + 8) & 0xFFu;
        pair[i] = (low & 0x80u) << 8 | (low & 0x7Fu) << 4 | (high & 0x80u) << 24 | (high & 0x7Fu) << 20;
    }
    return gb_mma16_unfold(pair[0], gb_mma16_e4m3_fields, pair[1], gb_mma16_e4m3_fields);
}

/*
 * What an order's format is here. The fields of codes in those of bf16 are the code times a power of two, which is
 * taken back before the scale (MXFP4, MXFP8: any scale is exact in bf16) or by it (NVFP4).
 *   step, block:              columns of a step, and of a scale;
 *   scales:                   scales of a row's step;
 *   in_chunk:                 scales that a chunk has, 2, 1 or half a one;
 *   scale(codes, i):          of two rows' codes in turns, those of place i, each twice as bf16;
 *   scaled():                 fields, with their scale.
 */
template <enum gb_format Format> struct gb_mma16_format;

/* E2M1's fields are the code times 2^-126, and the scale times 2^118 is the largest power that keeps 448 finite with
 * one to spare: operands are divided by 2^8. Products are exact. */
template <> struct gb_mma16_format<GB_NVFP4> {
    static constexpr enum gb_format format = GB_NVFP4;
    static constexpr uint32_t step = 128, block = 16, scales = step / block, in_chunk = 2;
    static constexpr float factor = 256.0f;
    static constexpr bool clears = false;

    static __host__ __device__ bool keep(uint8_t code, uint8_t &byte) /* in records of fma32/1, as it is */
    {
        byte = code;
        return true;
    }

    static __device__ __forceinline__ void scale(uint32_t codes, uint32_t i, uint32_t &first, uint32_t &last)
    {
        gb_mma16_e4m3_scales(codes >> 16 * i, first, last);
    }
    static __device__ __forceinline__ uint32_t scaled(uint32_t field, uint32_t scale)
    {
        return gb_mul_bf16x2(field, scale);
    }
};

template <> struct gb_mma16_format<GB_MXFP4> {
    static constexpr enum gb_format format = GB_MXFP4;
    static constexpr uint32_t step = 128, block = 32, scales = step / block, in_chunk = 1;
    static constexpr float factor = 1.0f;

    static __device__ __forceinline__ void scale(uint32_t codes, uint32_t i, uint32_t &first, uint32_t &last)
    {
        gb_mma16_e8m0_scales(codes >> 16 * i, first, last);
    }
    static __device__ __forceinline__ uint32_t scaled(uint32_t field, uint32_t scale)
    {
        return gb_mul_bf16x2(gb_mul_bf16x2(field, 0x7E807E80u /* 2^126 */), scale);
    }
};

template <> struct gb_mma16_format<GB_MXFP8> {
    static constexpr enum gb_format format = GB_MXFP8;
    static constexpr uint32_t step = 64, block = 32, scales = step / block, in_chunk = 1;
    static constexpr float factor = 1.0f;

    static __device__ __forceinline__ void scale(uint32_t codes, uint32_t i, uint32_t &first, uint32_t &last)
    {
        gb_mma16_format<GB_MXFP4>::scale(codes, i, first, last);
    }
    static __device__ __forceinline__ uint32_t scaled(uint32_t field, uint32_t scale)
    {
        return gb_mul_bf16x2(gb_mul_bf16x2(field, 0x7B807B80u /* 2^120 */), scale);
    }
};

/*
 * The same of records: a scale is kept as a byte from which one multiply-add makes the scale times the power of two
 * that fields lack, so that one multiplication makes an operand.
 *   keep(code, byte):  byte: out, of a scale; false: there is none, and weights with such a scale have no records;
 *   bits, zero:        the scale times the power of two, as bf16, is the byte times 2^bits, plus zero;
 *   clears:            codes whose scale is zero are kept as zeros, because no byte is the scale zero.
 */
template <enum gb_format Format> struct gb_mma16_kept_scale;

/* E4M3 from 2^-9 to 448, times 2^118: with five bits of exponent none is subnormal. */
template <> struct gb_mma16_kept_scale<GB_NVFP4> {
    static constexpr uint32_t bits = 4, zero = (127 + 118 - 9) << 7;
    static constexpr bool clears = true;
    static __host__ __device__ bool keep(uint8_t code, uint8_t &byte)
    {
        const uint32_t exponent = code >= 4 ? 2 : code >= 2; /* of a subnormal, from 2^-9 on */
        byte = (uint8_t)(code >= 8 ? code + 16 : code ? exponent << 3 | (code << (3 - exponent) & 7u) : 0);
        return code < 0x7F;
    }
};

/* E8M0 times 2^Power, where that is a number. */
template <uint32_t Power> struct gb_mma16_kept_e8m0 {
    static constexpr uint32_t bits = 7, zero = Power << 7;
    static constexpr bool clears = false;
    static __host__ __device__ bool keep(uint8_t code, uint8_t &byte)
    {
        byte = code;
        return code + Power < 255;
    }
};
template <> struct gb_mma16_kept_scale<GB_MXFP4> : gb_mma16_kept_e8m0<126> {
};
template <> struct gb_mma16_kept_scale<GB_MXFP8> : gb_mma16_kept_e8m0<120> {
};

template <enum gb_format Format> struct gb_mma16_kept : gb_mma16_format<Format> {
    using kept = gb_mma16_kept_scale<Format>;
    static constexpr bool clears = kept::clears;

    static __host__ __device__ bool keep(uint8_t code, uint8_t &byte)
    {
        return kept::keep(code, byte);
    }
    static __device__ __forceinline__ void scale(uint32_t codes, uint32_t i, uint32_t &first, uint32_t &last)
    {
        const uint32_t pair = __byte_perm(codes, 0, i ? 0x4342 : 0x4140);
        gb_spread_bf16x2((pair << kept::bits) + kept::zero * 0x10001u, first, last);
    }
    static __device__ __forceinline__ uint32_t scaled(uint32_t field, uint32_t scale)
    {
        return gb_mul_bf16x2(field, scale);
    }
};

#endif
