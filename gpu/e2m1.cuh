/* SPDX-License-Identifier: Apache-2.0 */
/* E2M1 codes to binary32, built from the bits: docs/numerics.md#e2m1. */
#ifndef GB_GPU_E2M1_CUH
#define GB_GPU_E2M1_CUH

#include <stdint.h>

#include <cuda_fp16.h>

/* The hardware converts E2M1 on Blackwell, in code for one architecture (sm_100a, sm_120a and their like). */
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) ||                                      \
    defined(__CUDA_ARCH_FEAT_SM110_ALL) || defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define GB_E2M1_CVT 1
#else
#define GB_E2M1_CVT 0
#endif

/*
 * Where the GPU does not convert them, decoded weights are the exact values divided by 2^14, because that is what
 * E2M1's fields mean once they stand in binary16's (bias 1 against bias 15): s ee m becomes s 000ee m000000000. Whoever
 * multiplies by them multiplies x by GB_E2M1_FACTOR first. Both factors are powers of two, so fma(w / 2^14, x * 2^14,
 * p) has the bits of fma(w, x, p) wherever x * 2^14 is finite; dot.cuh takes care of the other x.
 */
#define GB_E2M1_FACTOR (GB_E2M1_CVT ? 1.0f : 0x1p+14f)

/* The two binary16 numbers of a word. */
__device__ __forceinline__ void gb_from_halves(uint32_t halves, float *low, float *high)
{
    *low = __half2float(__ushort_as_half((unsigned short)halves));
    *high = __half2float(__ushort_as_half((unsigned short)(halves >> 16)));
}

/* The eight codes of a word, low nibble first. */
__device__ __forceinline__ void gb_e2m1x8_decode(uint32_t codes, float (&w)[8])
{
#if GB_E2M1_CVT
    uint32_t halves[4];
    asm("{\n\t.reg .b8 a, b, c, d;\n\tmov.b32 {a, b, c, d}, %4;\n\t"
        "cvt.rn.f16x2.e2m1x2 %0, a;\n\tcvt.rn.f16x2.e2m1x2 %1, b;\n\t"
        "cvt.rn.f16x2.e2m1x2 %2, c;\n\tcvt.rn.f16x2.e2m1x2 %3, d;\n\t}"
        : "=r"(halves[0]), "=r"(halves[1]), "=r"(halves[2]), "=r"(halves[3])
        : "r"(codes));
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        gb_from_halves(halves[i], &w[2 * i], &w[2 * i + 1]);
#else
    /* four nibbles at a time become upper bytes of binary16 */
    const uint32_t even = (codes << 4 & 0x80808080u) | (codes << 1 & 0x0E0E0E0Eu);
    const uint32_t odd = (codes & 0x80808080u) | (codes >> 3 & 0x0E0E0E0Eu);
    gb_from_halves(__byte_perm(even, 0, 0x1404), &w[0], &w[2]);
    gb_from_halves(__byte_perm(odd, 0, 0x1404), &w[1], &w[3]);
    gb_from_halves(__byte_perm(even, 0, 0x3424), &w[4], &w[6]);
    gb_from_halves(__byte_perm(odd, 0, 0x3424), &w[5], &w[7]);
#endif
}

#endif
