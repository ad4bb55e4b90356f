/* SPDX-License-Identifier: Apache-2.0 */
/* Fused multiply-adds of several rows with the same x; two in an instruction where the GPU has one for it. */
#ifndef GB_GPU_FMA2_CUH
#define GB_GPU_FMA2_CUH

#include <stdint.h>

/* From compute capability 10.0 on (PTX ISA, fma). */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define GB_FMA2 1
#else
#define GB_FMA2 0
#endif

/* p0 = fma(w0, x, p0), p1 = fma(w1, x, p1), each rounded on its own to nearest even, subnormal numbers kept. */
__device__ __forceinline__ void gb_fma2(float w0, float w1, float x, float *p0, float *p1)
{
#if GB_FMA2
    asm("{\n\t.reg .b64 w, x, p;\n\t"
        "mov.b64 w, {%2, %3};\n\tmov.b64 x, {%4, %4};\n\tmov.b64 p, {%0, %1};\n\t"
        "fma.rn.f32x2 p, w, x, p;\n\tmov.b64 {%0, %1}, p;\n\t}"
        : "+f"(*p0), "+f"(*p1)
        : "f"(w0), "f"(w1), "f"(x));
#else
    *p0 = __fmaf_rn(w0, x, *p0);
    *p1 = __fmaf_rn(w1, x, *p1);
#endif
}

/* p[n * Apart] = fma(w[n], x, p[n * Apart]) of every row n. */
template <uint32_t Apart, uint32_t Rows>
__device__ __forceinline__ void gb_fma_rows(const float (&w)[Rows], float x, float *p)
{
#pragma unroll
    for (uint32_t n = 0; n + 1 < Rows; n += 2)
        gb_fma2(w[n], w[n + 1], x, &p[n * Apart], &p[(n + 1) * Apart]);
    if (Rows % 2)
        p[(Rows - 1) * Apart] = __fmaf_rn(w[Rows - 1], x, p[(Rows - 1) * Apart]);
}

#endif
