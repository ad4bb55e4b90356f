/* SPDX-License-Identifier: Apache-2.0 */
/* The forms of silu: docs/numerics.md#silu_mul. */
#ifndef GB_GPU_SILU_FORMS_CUH
#define GB_GPU_SILU_FORMS_CUH

#include "gaugeblock.h"
#include "gpu/exp.cuh"
#include "gpu/silu.cuh"

/* Any x, by way of double. */
__device__ __forceinline__ float gb_silu_direct(enum gb_silu_form form, float x)
{
    if (form == GB_SILU_EXACT)
        return gb_cuda_silu(x);
    const float denominator = __fadd_rn(1.0f, gb_cuda_exp(-x));
    return form == GB_SILU_DIVIDE ? __fdiv_rn(x, denominator) : __fmul_rn(x, __fdiv_rn(1.0f, denominator));
}

/*
 * silu(x), correctly rounded, of x with at most 8 significant bits and |x| < 2^-7: with h = x/2 it is
 * h + h^2 - h^4/3 + ..., and the exact h + h^2 rounds as the whole does. A zero keeps its sign.
 */
__device__ __forceinline__ float gb_silu_small(float x)
{
    const float h = __fmul_rn(0.5f, x);
    return copysignf(__fmaf_rn(h, h, h), x);
}

#endif
