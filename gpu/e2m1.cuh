/* SPDX-License-Identifier: Apache-2.0 */
/* E2M1 codes to binary32, built from the bits: docs/numerics.md#e2m1. */
#ifndef GB_GPU_E2M1_CUH
#define GB_GPU_E2M1_CUH

#include "gpu/e4m3.cuh"

/*
 * Decoded weights are the exact values divided by 2^6, because that is what E2M1's fields mean once they stand in
 * E4M3's (bias 1 against bias 7): s ee m becomes s 00ee m00. Whoever multiplies by them multiplies x by 2^6 first.
 * Both factors are powers of two, so fma(w / 2^6, x * 2^6, p) has the bits of fma(w, x, p) wherever x * 2^6 is
 * finite; dot.cuh takes care of the other x.
 */
#define GB_E2M1_FACTOR 64.0f

/* The eight codes of a word, low nibble first, by way of E4M3. */
__device__ __forceinline__ void gb_e2m1x8_by_e4m3(uint32_t codes, float (&w)[8])
{
    uint32_t even = (codes << 4 & 0x80808080u) | (codes << 2 & 0x1C1C1C1Cu);
    uint32_t odd = (codes & 0x80808080u) | (codes >> 2 & 0x1C1C1C1Cu);
    gb_e4m3x2_decode((uint16_t)even, &w[0], &w[2]);
    gb_e4m3x2_decode((uint16_t)odd, &w[1], &w[3]);
    gb_e4m3x2_decode((uint16_t)(even >> 16), &w[4], &w[6]);
    gb_e4m3x2_decode((uint16_t)(odd >> 16), &w[5], &w[7]);
}

/* The same with integer operations and one exact product: s ee m in binary32's fields is the value times 2^-126. */
__device__ __forceinline__ void gb_e2m1x8_from_bits(uint32_t codes, float (&w)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint32_t code = codes >> (4 * i);
        float tiny = __uint_as_float((code & 8u) << 28 | (code & 7u) << 22);
        w[i] = __fmul_rn(tiny, 0x1p+126f / GB_E2M1_FACTOR);
    }
}

__device__ __forceinline__ void gb_e2m1x8_decode(uint32_t codes, float (&w)[8])
{
    if (GB_E4M3_CVT)
        gb_e2m1x8_by_e4m3(codes, w);
    else
        gb_e2m1x8_from_bits(codes, w);
}

#endif
