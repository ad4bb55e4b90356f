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

/* Operands of NVFP4 are divided by 2^8: E2M1's fields in those of bf16 are the code times 2^-126, and the scale times
 * 2^118 is the largest power that keeps 448 finite with one to spare. Products are exact. */
constexpr float gb_mma16_nvfp4_factor = 256.0f;

constexpr uint32_t gb_mma16_tile = 16;  /* rows */
constexpr uint32_t gb_mma16_tokens = 8; /* activations of an instruction */
constexpr uint32_t gb_mma16_step = 128; /* columns of E2M1 codes: 4 chunks of 16 bytes */
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

/* A number in both halves. */
__device__ __forceinline__ uint32_t gb_bf16_twice(float value)
{
    uint32_t both = 0;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %1;" : "=r"(both) : "f"(value));
#endif
    return both;
}

/* Two E4M3 scales times 2^118, each twice as bf16. */
__device__ __forceinline__ void gb_mma16_scales(uint32_t codes, uint32_t *first, uint32_t *second)
{
    uint32_t halves = 0;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)codes));
#endif
    const float low = __half2float(__ushort_as_half((unsigned short)halves));
    const float high = __half2float(__ushort_as_half((unsigned short)(halves >> 16)));
    *first = gb_bf16_twice(__fmul_rn(low, 0x1p118f));
    *second = gb_bf16_twice(__fmul_rn(high, 0x1p118f));
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

/* Where gb_mma16_repack_word puts them: neighbours share registers. */
__device__ __forceinline__ void gb_mma16_repacked_word(uint32_t word, uint32_t (&pair)[4])
{
    pair[0] = word & 0x81C081C0u;
    pair[1] = __funnelshift_l(word, word, 12) & 0x81C081C0u;
    pair[2] = word << 6 & 0x81C081C0u;
    pair[3] = (__funnelshift_l(word, word, 10) & 0x81808180u) | (word << 2 & 0x00400040u);
}

/* s ee m of a code at the bits of bf16's sign, exponent and mantissa, in the low half. */
__device__ __forceinline__ uint32_t gb_mma16_field(uint32_t code)
{
    return (code & 8u) << 12 | (code & 7u) << 6;
}

/* Moves the bits of a word of eight codes to where gb_mma16_repacked_word finds them. */
__device__ __forceinline__ uint32_t gb_mma16_repack_word(uint32_t codes)
{
    uint32_t word = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t pair = gb_mma16_field(codes >> 8 * i & 15u) | gb_mma16_field(codes >> (8 * i + 4) & 15u) << 16;
        if (i == 3)
            word |= __funnelshift_r(pair & 0x81808180u, pair & 0x81808180u, 10) |
                    __funnelshift_r(pair & 0x00400040u, pair & 0x00400040u, 2);
        else
            word |= __funnelshift_r(pair, pair, i == 0 ? 0 : i == 1 ? 12 : 6);
    }
    return word;
}

#endif
