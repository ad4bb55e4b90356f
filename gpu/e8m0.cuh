/* SPDX-License-Identifier: Apache-2.0 */
/* E8M0 to binary32: docs/numerics.md#e8m0. */
#ifndef GB_GPU_E8M0_CUH
#define GB_GPU_E8M0_CUH

#include <stdint.h>

/* 2^(code - 127): the code is binary32's exponent field, but for the subnormal 2^-127 and for NaN. */
__device__ __forceinline__ float gb_e8m0_decode(uint32_t code)
{
    uint32_t bits = code == 0 ? 0x00400000u : code << 23;
    return __uint_as_float(code == 0xFFu ? 0x7FC00000u : bits);
}

#endif
