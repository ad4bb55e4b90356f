/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of recipes whose scale is r = a / M in FP32 and whose elements are x / s, at the speed of memory.
 *
 * A quotient takes five operations. With c = RN(1 / s), q0 = RN(x * c) is right to 1.5 ulp; one step of Newton's
 * iteration, q1 = RN(q0 - c * (s * q0 - x)), leaves less than one ulp, and by Markstein's theorem (IBM J. Res. Dev.
 * 34(1), 1990) a second one, starting within an ulp and with c correctly rounded, gives RN(x / s). The residual s * q -
 * x is exact and nothing overflows while s and a stay well within binary32's range, which `plain` asks for; where x is
 * so small that the residual underflows, or the quotient itself, the quotient is far below half of the smallest code.
 * The residual is taken with this sign so that the quotient of a zero keeps its sign.
 */
#ifndef GB_GPU_BY_DIVISION_CUH
#define GB_GPU_BY_DIVISION_CUH

#include "gpu/quantise_rows.cuh"

/* RN(x / s), with c = RN(1 / s). */
__device__ __forceinline__ float gb_quotient(float x, float s, float c)
{
    const float q0 = __fmul_rn(x, c);
    const float q1 = __fmaf_rn(__fmaf_rn(q0, s, -x), -c, q0);
    return __fmaf_rn(__fmaf_rn(q1, s, -x), -c, q1);
}

/* The larger magnitude; NaN if either is NaN. */
__device__ __forceinline__ float gb_larger_or_nan(float a, float b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(fabsf(a)), "f"(fabsf(b)));
    return larger;
#else
    return isnan(a) || isnan(b) ? __uint_as_float(0x7FC00000u) : fmaxf(fabsf(a), fabsf(b));
#endif
}

struct gb_e4m3_codes {
    static constexpr enum gb_element_format element = GB_E4M3;
    static constexpr float largest = 448.0f;

    static __device__ __forceinline__ uint32_t four(float a, float b, float c, float d)
    {
        return gb_e4m3x2_encode(a, b) | gb_e4m3x2_encode(c, d) << 16;
    }
};

struct gb_int8_codes {
    static constexpr enum gb_element_format element = GB_INT8;
    static constexpr float largest = 127.0f;

    static __device__ __forceinline__ uint32_t one(float q)
    {
        return (uint32_t)__float2int_rn(fmaxf(fminf(q, largest), -largest)) & 0xFFu;
    }
    static __device__ __forceinline__ uint32_t four(float a, float b, float c, float d)
    {
        return one(a) | one(b) << 8 | one(c) << 16 | one(d) << 24;
    }
};

template <class Codes> struct gb_by_division {
    /* Whether it computes these rules. */
    static bool computes(const gb_quantiser &rules)
    {
        return rules.element == Codes::element && rules.largest == Codes::largest && rules.scale == GB_SCALE_FP32 &&
               rules.global == GB_GLOBAL_NONE && rules.bound != GB_BOUND_AMAX && rules.ratio == GB_RATIO_DIVIDE &&
               rules.ratio_intermediate == GB_INTERMEDIATE_FP32 && rules.four_over_six == GB_SIX &&
               rules.scale_rounding == GB_SCALE_NEAREST && rules.quotient == GB_QUOTIENT_DIVIDE &&
               rules.zero_multiplier == GB_ZERO_NEVER && rules.intermediate == GB_INTERMEDIATE_FP32 &&
               rules.rounding == GB_TIES_TO_EVEN &&
               (rules.zero_sign == GB_ZERO_KEEPS_SIGN || Codes::element == GB_INT8) && !rules.flush_subnormals;
    }

    /* The job, with what `computes` asks for written out, so that the compiler drops all other rules. */
    static __device__ __forceinline__ gb_quantise_job known(gb_quantise_job job)
    {
        gb_quantiser &rules = job.q.quantiser;
        rules.element = Codes::element;
        rules.largest = Codes::largest;
        rules.scale = GB_SCALE_FP32;
        rules.ratio = GB_RATIO_DIVIDE;
        rules.ratio_intermediate = rules.intermediate = GB_INTERMEDIATE_FP32;
        rules.four_over_six = GB_SIX;
        rules.scale_rounding = GB_SCALE_NEAREST;
        rules.quotient = GB_QUOTIENT_DIVIDE;
        rules.zero_multiplier = GB_ZERO_NEVER;
        rules.rounding = GB_TIES_TO_EVEN;
        rules.flush_subnormals = 0;
        return job;
    }

    /* The same block again, by its rules. */
    template <class Source, uint32_t Chunks>
    static __device__ __noinline__ void quantise_again(const gb_quantise_job &job, gb_team<Chunks> team, gb_place at,
                                                       const float *table)
    {
        typename Source::words words[Chunks] = {};
        float x[8 * Chunks];
        gb_load_block<Source>(job, team, at, words);
#pragma unroll
        for (uint32_t c = 0; c < Chunks; c++)
            Source::convert(job.q, words[c], table, x + 8 * c);
        gb_quantise_block(known(job), team, at, x);
    }

    /* Teams of 8: blocks of 64 are one chunk a thread, blocks of 128 two. */
    static __device__ __forceinline__ uint32_t lanes(const gb_quantiser &)
    {
        return 8;
    }

    template <class Source, uint32_t Chunks>
    static __device__ __forceinline__ void quantise(const gb_quantise_job &job, const gb_team<Chunks> &team,
                                                    const gb_place &at, const float *table,
                                                    const float (&x)[8 * Chunks])
    {
        const gb_quantiser &rules = job.q.quantiser;
        float a = rules.amax_start;
#pragma unroll
        for (uint32_t i = 0; i < 8 * Chunks; i++)
            a = gb_larger_or_nan(a, x[i]);
#pragma unroll
        for (uint32_t m = 4; m > 0; m /= 2)
            a = gb_larger_or_nan(a, __shfl_xor_sync(0xFFFFFFFFu, a, (int)m));
        float s = __fdiv_rn(a, Codes::largest);
        s = s == 0.0f ? rules.ratio_if_zero : s;
        s = rules.bound == GB_BOUND_RATIO ? fminf(s, job.q.bound) : s;
        s = fmaxf(s, rules.ratio_min);
        s = rules.ratio_max != 0.0f ? fminf(s, rules.ratio_max) : s;
        const bool plain = a < 0x1p+60f && s > 0x1p-60f && s < 0x1p+60f; /* no NaN is */
        if (!plain) {
            quantise_again<Source>(job, team, at, table);
            return;
        }
        if (at.row >= job.q.rows)
            return;
        gb_write_scale(job, team, at, {s, 0, s, true, false});
        const float c = __frcp_rn(s);
#pragma unroll
        for (uint32_t k = 0; k < Chunks; k++) {
            float q[8];
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                q[i] = gb_quotient(x[8 * k + i], s, c);
            gb_write_codes(job, (size_t)at.row * job.q.columns + at.block * team.block() + team.column(k),
                           Codes::four(q[0], q[1], q[2], q[3]), Codes::four(q[4], q[5], q[6], q[7]));
        }
    }
};

#endif
