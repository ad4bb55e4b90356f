/* SPDX-License-Identifier: Apache-2.0 */
/* sigmoid(x) = 1 / (1 + e^-x), correctly rounded to binary32: docs/numerics.md#sigmoid. */
#ifndef GB_GPU_SIGMOID_CUH
#define GB_GPU_SIGMOID_CUH

/*
 * For small x the value is 1/2 + tanh(x/2)/2, close to a tie of binary32 for many x. The sum is rounded to odd: of its
 * two neighbours in double the one whose last bit is 1, so that rounding to binary32 sees on which side of a tie it
 * lies.
 */
__device__ __forceinline__ float gb_cuda_sigmoid(float x)
{
    double wide = (double)x;
    if (fabsf(x) < 0.25f) {
        double t = __dmul_rn(0.5, tanh(__dmul_rn(0.5, wide)));
        double below = __dadd_rd(0.5, t), above = __dadd_ru(0.5, t);
        return __double2float_rn(__double_as_longlong(below) & 1 ? below : above);
    }
    return __double2float_rn(__ddiv_rn(1.0, __dadd_rn(1.0, exp(-wide))));
}

#endif
