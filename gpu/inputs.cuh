/* SPDX-License-Identifier: Apache-2.0 */
/* Where the values that are quantised come from: bf16 or fp16 in memory, or silu(gate) * up of them. */
#ifndef GB_GPU_INPUTS_CUH
#define GB_GPU_INPUTS_CUH

#include <cuda_fp16.h>

#include "gpu/silu_table.cuh"

struct gb_input_bf16 {
    static __device__ __forceinline__ float low(uint32_t word)
    {
        return gb_bf16_low(word);
    }
    static __device__ __forceinline__ float high(uint32_t word)
    {
        return gb_bf16_high(word);
    }
    static __device__ __forceinline__ float rounded(float value)
    {
        return __uint_as_float((uint32_t)gb_bf16_round(value) << 16);
    }
};

/* The conversion keeps every sign but a NaN's. */
struct gb_input_fp16 {
    static __device__ __forceinline__ float high(uint32_t word)
    {
        const float value = __half2float(__ushort_as_half((unsigned short)(word >> 16)));
        return __uint_as_float(__float_as_uint(value) | (word & 0x80000000u));
    }
    static __device__ __forceinline__ float low(uint32_t word)
    {
        return high(word << 16);
    }
    static __device__ __forceinline__ float rounded(float value)
    {
        return __half2float(__float2half_rn(value));
    }
};

__device__ __forceinline__ uint32_t gb_word_of(const uint4 &words, uint32_t i)
{
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

/* Eight values of a row as they lie in memory. */
struct gb_plain_words {
    uint4 value;
};

struct gb_plain_source {
    using words = gb_plain_words;
    static constexpr size_t shared_bytes = 0;

    static __device__ __forceinline__ void start(const gb_quantisation &, float *) {}

    static __device__ __forceinline__ words load(const gb_quantisation &q, const void *values, uint32_t row,
                                                 uint32_t column)
    {
        return {__ldcs((const uint4 *)((const uint16_t *)values + (size_t)row * q.columns + column))};
    }

    template <class Input> static __device__ __forceinline__ void convert(const words &w, float *x)
    {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            x[2 * i] = Input::low(gb_word_of(w.value, i));
            x[2 * i + 1] = Input::high(gb_word_of(w.value, i));
        }
    }
    static __device__ __forceinline__ void convert(const gb_quantisation &q, const words &w, const float *, float *x)
    {
        if (q.input == GB_BF16)
            convert<gb_input_bf16>(w, x);
        else
            convert<gb_input_fp16>(w, x);
    }
};

/* Eight gates, and what they multiply. */
struct gb_gated_words {
    uint4 gate, up;
};

/* silu(gate) directly or, of bf16 gates, from a table. */
struct gb_silu_directly {
    static constexpr size_t shared_bytes = 0;

    static __device__ __forceinline__ void start(const gb_quantisation &, float *) {}

    /* Not inlined: a thread has up to 16 gates, and this takes long beside a call. */
    static __device__ __noinline__ float of(enum gb_silu_form form, float gate)
    {
        return gb_silu_direct(form, gate);
    }

    template <class Input>
    static __device__ __forceinline__ void activate(const gb_quantisation &q, const uint4 &gate, const float *,
                                                    float *x)
    {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            x[2 * i] = of(q.silu, Input::low(gb_word_of(gate, i)));
            x[2 * i + 1] = of(q.silu, Input::high(gb_word_of(gate, i)));
        }
    }
};

struct gb_silu_by_table {
    static constexpr size_t shared_bytes = sizeof(float) * gb_silu_entries;

    static __device__ __forceinline__ void start(const gb_quantisation &q, float *table)
    {
        gb_silu_table_fill(q.silu, table);
    }

    template <class Input>
    static __device__ __forceinline__ void activate(const gb_quantisation &q, const uint4 &gate, const float *table,
                                                    float *x)
    {
        uint32_t outside = 0;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            gb_silu_look_up(table, gb_word_of(gate, i), &x[2 * i], &x[2 * i + 1], &outside);
        if (outside)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                x[2 * i] = gb_silu_any(q.silu, table, gb_bf16_low(gb_word_of(gate, i)));
                x[2 * i + 1] = gb_silu_any(q.silu, table, gb_bf16_high(gb_word_of(gate, i)));
            }
    }
};

template <class Input, class Silu> struct gb_gated_source {
    using words = gb_gated_words;
    static constexpr size_t shared_bytes = Silu::shared_bytes;

    static __device__ __forceinline__ void start(const gb_quantisation &q, float *table)
    {
        Silu::start(q, table);
    }

    static __device__ __forceinline__ words load(const gb_quantisation &q, const void *values, uint32_t row,
                                                 uint32_t column)
    {
        const uint16_t *gate = (const uint16_t *)values + (size_t)row * 2 * q.columns + column;
        return {__ldcs((const uint4 *)gate), __ldcs((const uint4 *)(gate + q.columns))};
    }

    static __device__ __forceinline__ void convert(const gb_quantisation &q, const words &w, const float *table,
                                                   float *x)
    {
        Silu::template activate<Input>(q, w.gate, table, x);
        if (q.activated != GB_FP32)
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                x[i] = Input::rounded(x[i]);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            x[2 * i] = __fmul_rn(x[2 * i], Input::low(gb_word_of(w.up, i)));
            x[2 * i + 1] = __fmul_rn(x[2 * i + 1], Input::high(gb_word_of(w.up, i)));
        }
        if (q.product != GB_FP32)
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                x[i] = Input::rounded(x[i]);
    }
};

#endif
