/* SPDX-License-Identifier: Apache-2.0 */
/* e^x, correctly rounded to binary32: docs/numerics.md#exp. */
#ifndef GB_GPU_EXP_CUH
#define GB_GPU_EXP_CUH

/* One evaluation in double, rounded once; tests/gpu/exhaustive_functions.cu proves it for every input. */
__device__ __forceinline__ float gb_cuda_exp(float x)
{
    return __double2float_rn(exp((double)x));
}

#endif
