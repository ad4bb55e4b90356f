/* SPDX-License-Identifier: Apache-2.0 */
/* bf16, the upper half of binary32: docs/numerics.md#bf16. */
#ifndef GB_GPU_BF16_CUH
#define GB_GPU_BF16_CUH

#include <stdint.h>
#include <string.h>

__host__ __device__ __forceinline__ float gb_float_of_bits(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

__host__ __device__ __forceinline__ uint32_t gb_bits_of_float(float value)
{
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

/* The two bf16 values of a word, the low half first. */
__host__ __device__ __forceinline__ float gb_bf16_low(uint32_t word)
{
    return gb_float_of_bits(word << 16);
}

__host__ __device__ __forceinline__ float gb_bf16_high(uint32_t word)
{
    return gb_float_of_bits(word & 0xFFFF0000u);
}

/* Round to nearest even; overflow gives infinity; NaN gives 0x7FC0 with its sign. */
__host__ __device__ __forceinline__ uint16_t gb_bf16_round(float value)
{
    uint32_t bits = gb_bits_of_float(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(0x7FC0u | (bits >> 16 & 0x8000u));
    uint32_t odd = bits >> 16 & 1u;
    return (uint16_t)((bits + 0x7FFFu + odd) >> 16);
}

#endif
