/* SPDX-License-Identifier: Apache-2.0 */
/* silu(x) = x / (1 + e^-x), correctly rounded to binary32: docs/numerics.md#silu. */
#ifndef GB_GPU_SILU_CUH
#define GB_GPU_SILU_CUH

/*
 * One evaluation in double, rounded once, but for two cases:
 *   -Inf: the quotient would be -Inf / Inf;
 *   0 < |x| < 2^-125: silu(x) = x/2 + x^2/4 - ..., and x/2, exact in double, is a tie of binary32's subnormals for
 *   every odd x. The positive second term decides, and any double just above x/2 rounds as the exact value does.
 */
__device__ __forceinline__ float gb_cuda_silu(float x)
{
    double wide = (double)x;
    if (x == -INFINITY)
        return -0.0f;
    if (x != 0.0f && fabsf(x) < 0x1p-125f)
        return __double2float_rn(__dadd_ru(__dmul_rn(wide, 0.5), 0x1p-1000));
    return __double2float_rn(__ddiv_rn(wide, __dadd_rn(1.0, exp(-wide))));
}

#endif
