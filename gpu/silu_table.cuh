/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silu of bf16 gates from a table in shared memory. A bf16 gate has 65,536 values; the 8,192 with 2^-25 <= |x| < 2^7
 * are in the table, and those outside are simple. tests/gpu/test_silu_mul_quantise.cu goes through all of them.
 *
 * Index: bit 12 is the sign, bits 11 to 0 are exponent and mantissa, counted from those of 2^-25. The two gates of a
 * word are indexed together.
 */
#ifndef GB_GPU_SILU_TABLE_CUH
#define GB_GPU_SILU_TABLE_CUH

#include "gpu/bf16.cuh"
#include "gpu/silu_forms.cuh"

constexpr uint32_t gb_silu_entries = 8192;
constexpr uint32_t gb_silu_lowest = (127u - 25u) << 7; /* bf16 encoding of 2^-25 */

/* With all threads of the block, which are synchronised when it returns. table: [gb_silu_entries] in shared memory. */
__device__ __forceinline__ void gb_silu_table_fill(enum gb_silu_form form, float *table)
{
    for (uint32_t i = threadIdx.x; i < gb_silu_entries; i += blockDim.x) {
        const float x = __uint_as_float((i & 0x1000u) << 19 | (gb_silu_lowest + (i & 0xFFFu)) << 16);
        table[i] = form == GB_SILU_EXACT && fabsf(x) < 0x1p-7f ? gb_silu_small(x) : gb_silu_direct(form, x);
    }
    __syncthreads();
}

/* silu of the two gates of a word, if both are in the table; otherwise bits of *outside become set, and the results
 * mean nothing. */
__device__ __forceinline__ void gb_silu_look_up(const float *table, uint32_t gates, float *low, float *high,
                                                uint32_t *outside)
{
    const uint32_t above = (gates & 0x7FFF7FFFu) - (gb_silu_lowest << 16 | gb_silu_lowest);
    const uint32_t index = (above & 0x0FFF0FFFu) | (gates >> 3 & 0x10001000u);
    *outside |= above & 0xF000F000u;
    *low = table[index & 0xFFFFu];
    *high = table[index >> 16];
}

/*
 * silu of one gate, in the table or not. Below 2^-25 the forms with e^-x halve x, since e^-x is 1 to binary32. From 2^7
 * on, e^-x is beyond binary32 or nothing beside 1; for -Inf the forms that divide by e^-x make NaN.
 */
__device__ __forceinline__ float gb_silu_any(enum gb_silu_form form, const float *table, float x)
{
    if (fabsf(x) < 0x1p-25f)
        return form == GB_SILU_EXACT ? gb_silu_small(x) : __fmul_rn(0.5f, x);
    if (fabsf(x) < 0x1p+7f) {
        const uint32_t bits = __float_as_uint(x) >> 16;
        return table[((bits & 0x7FFFu) - gb_silu_lowest) | (bits >> 3 & 0x1000u)];
    }
    if (form != GB_SILU_EXACT && x == -INFINITY)
        return __uint_as_float(0x7FC00000u);
    return x < 0.0f ? -0.0f : x;
}

#endif
