/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3 to binary32: docs/numerics.md#e4m3. */
#ifndef GB_GPU_E4M3_CUH
#define GB_GPU_E4M3_CUH

#include <stdint.h>

#include <cuda_fp16.h>

/* The hardware converts E4M3 from compute capability 8.9 on. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define GB_E4M3_CVT 1
#else
#define GB_E4M3_CVT 0
#endif

/*
 *   bit   7    6 5 4 3   2 1 0
 *         sign exponent  mantissa     bias 7, 0x7F and 0xFF are NaN, no infinity
 *
 * The seven low bits stand in binary32's exponent and mantissa fields as the value times 2^(7 - 127), subnormals
 * included; the product with 2^120 is exact.
 */
__device__ __forceinline__ float gb_e4m3_from_bits(uint32_t code)
{
    float tiny = __uint_as_float((code & 0x80u) << 24 | (code & 0x7Fu) << 20);
    float value = __fmul_rn(tiny, 0x1p+120f);
    return (code & 0x7Fu) == 0x7Fu ? __uint_as_float(0x7FC00000u) : value;
}

/* Two codes, exact: *low from the low byte, *high from the high byte. */
__device__ __forceinline__ void gb_e4m3x2_decode(uint16_t codes, float *low, float *high)
{
#if GB_E4M3_CVT
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    *low = __half2float(__ushort_as_half((unsigned short)halves));
    *high = __half2float(__ushort_as_half((unsigned short)(halves >> 16)));
#else
    *low = gb_e4m3_from_bits(codes & 0xFFu);
    *high = gb_e4m3_from_bits(codes >> 8);
#endif
}

#endif
