/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start reading here: gate_up and down in the order fma32/1, written down as docs/numerics.md has them, for every
 * weight format and with nothing done for speed. A warp computes a dot product, and its threads are the order's 32
 * lanes. The faster kernels of this folder take the same steps, many at a time.
 */
#include <cmath>
#include <cstring>

#include "gpu/bf16.cuh"
#include "gpu/kernels.cuh"
#include "gpu/silu.cuh"

namespace
{

/* Codes to numbers: docs/numerics.md#e2m1, #e4m3, #e8m0, #bf16. All exact. */
__host__ __device__ float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

__host__ __device__ float e2m1(uint32_t code)
{
    const uint32_t m = code & 7;
    const float magnitude = m >= 2 ? from_bits((m << 22) + (126u << 23)) : m == 1 ? 0.5f : 0.0f;
    return code & 8 ? -magnitude : magnitude;
}

__host__ __device__ float e4m3(uint32_t code)
{
    const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    const float magnitude = exponent
                                ? (float)(8 + mantissa) * from_bits((exponent - 10 + 127) << 23) /* (1 + m/8) 2^(e-7) */
                                : (float)mantissa * 0x1p-9f;                                     /* m/8 2^-6 */
    if ((code & 0x7F) == 0x7F)
        return NAN;
    return code & 0x80 ? -magnitude : magnitude;
}

__host__ __device__ float e8m0(uint32_t code)
{
    return code == 0xFF ? NAN : from_bits(code ? code << 23 : 0x00400000u /* 2^-127 */);
}

__host__ __device__ float bf16(gb_bf16 value)
{
    return from_bits((uint32_t)value.bits << 16);
}

/* Elements in 16 bytes of codes, and columns that share a scale; bf16 has no scales, and a chunk is one run. */
template <enum gb_format Format>
constexpr uint32_t chunk = Format == GB_BF16                              ? 8
                           : Format == GB_MXFP8 || Format == GB_FP8_BLOCK ? 16
                                                                          : 32;
template <enum gb_format Format>
constexpr uint32_t block = Format == GB_BF16        ? 8
                           : Format == GB_NVFP4     ? 16
                           : Format == GB_FP8_BLOCK ? 128
                                                    : 32;
template <enum gb_format Format>
constexpr uint32_t run_length = chunk<Format> < block<Format> ? chunk<Format> : block<Format>;

/* w[i]: the decoded code of a column, without any scale. */
template <enum gb_format Format>
__host__ __device__ float weight(const struct gb_weights &w, uint32_t expert, uint32_t row, uint32_t column)
{
    const size_t i = ((size_t)expert * w.rows + row) * w.columns + column;
    if (Format == GB_BF16)
        return bf16(((const gb_bf16 *)w.codes)[i]);
    if (Format == GB_MXFP8 || Format == GB_FP8_BLOCK)
        return e4m3(((const uint8_t *)w.codes)[i]);
    return e2m1(((const uint8_t *)w.codes)[i / 2] >> i % 2 * 4 & 15); /* rows are whole bytes: columns are even */
}

/* s: the scale of the block that a column lies in. */
template <enum gb_format Format>
__host__ __device__ float scale(const struct gb_weights &w, uint32_t expert, uint32_t row, uint32_t column)
{
    if (Format == GB_BF16)
        return 1.0f;
    if (Format == GB_FP8_BLOCK) { /* blocks of 128 x 128, cut from the first row of a half */
        const uint32_t rows = w.rows / w.halves, down = (rows + 127) / 128, across = (w.columns + 127) / 128;
        const size_t half = (size_t)expert * w.halves + row / rows;
        return ((const float *)w.scales)[(half * down + row % rows / 128) * across + column / 128];
    }
    const size_t row_scales = w.columns / block<Format>;
    const uint8_t code =
        ((const uint8_t *)w.scales)[((size_t)expert * w.rows + row) * row_scales + column / block<Format>];
    return Format == GB_NVFP4 ? e4m3(code) : e8m0(code);
}

/* Steps 1 to 3: a lane's accumulator. */
template <enum gb_format Format>
__host__ __device__ float accumulate(const struct gb_weights &w, uint32_t expert, uint32_t row, const gb_bf16 *x,
                                     uint32_t lane)
{
    float acc = 0.0f;
    for (uint32_t first = lane * chunk<Format>; first < w.columns; first += 32 * chunk<Format>)
        for (uint32_t run = first; run < first + chunk<Format> && run < w.columns; run += run_length<Format>) {
            float p = 0.0f;
            for (uint32_t i = run; i < run + run_length<Format> && i < w.columns; i++)
                p = fmaf(weight<Format>(w, expert, row, i), bf16(x[i]), p);
            acc = fmaf(scale<Format>(w, expert, row, run), p, acc);
        }
    return acc;
}

/* All five steps, by a warp: every thread has the result. */
template <enum gb_format Format>
__device__ float dot(const struct gb_weights &w, uint32_t expert, uint32_t row, const gb_bf16 *x)
{
    float acc = accumulate<Format>(w, expert, row, x, threadIdx.x % 32);
    for (uint32_t m = 16; m > 0; m /= 2)
        acc = acc + __shfl_xor_sync(0xFFFFFFFFu, acc, m);
    const uint32_t half = row / (w.rows / w.halves);
    return acc * (w.global_scales ? w.global_scales[(size_t)expert * w.halves + half] : 1.0f);
}

constexpr uint32_t warps = 4; /* of a block: as many neurons or output rows */

/* Block (b, pair): a neuron of one token and slot a warp. docs/numerics.md#gate_up. */
template <enum gb_format Format> __global__ void gate_up_kernel(const __grid_constant__ struct gb_arguments a)
{
    const uint32_t pair = blockIdx.y, i = blockIdx.x * warps + threadIdx.x / 32, neurons = a.shape.intermediate;
    const uint32_t expert = (uint32_t)a.ids[pair];
    if (i >= neurons)
        return;
    uint16_t bits = 0; /* of an empty slot */
    if (expert < a.shape.experts) {
        const gb_bf16 *x = a.x + (size_t)(pair / a.shape.top_k) * a.shape.hidden;
        const float gate = dot<Format>(a.gate_up, expert, i, x), up = dot<Format>(a.gate_up, expert, neurons + i, x);
        bits = gb_bf16_round(gb_cuda_silu(gate) * up);
    }
    if (threadIdx.x % 32 == 0)
        a.intermediate[(size_t)pair * neurons + i].bits = bits;
}

/* Block (b, token): an output a warp. docs/numerics.md#down. */
template <enum gb_format Format> __global__ void down_kernel(const __grid_constant__ struct gb_arguments a)
{
    const uint32_t token = blockIdx.y, h = blockIdx.x * warps + threadIdx.x / 32, top_k = a.shape.top_k;
    if (h >= a.shape.hidden)
        return;
    float y = 0.0f;
    for (size_t pair = (size_t)token * top_k; pair < (size_t)(token + 1) * top_k; pair++) {
        const uint32_t expert = (uint32_t)a.ids[pair];
        if (expert < a.shape.experts)
            y = fmaf(a.routing_weights[pair],
                     dot<Format>(a.down, expert, h, a.intermediate + pair * a.shape.intermediate), y);
    }
    if (threadIdx.x % 32 == 0)
        ((float *)a.output)[(size_t)token * a.shape.hidden + h] = y;
}

template <enum gb_format Format>
enum gb_status launch(enum gb_operator operation, const struct gb_arguments &a, struct gb_error *error)
{
    const struct gb_shape &s = a.shape;
    const uint32_t outputs = operation == GB_GATE_UP ? s.intermediate : s.hidden;
    const dim3 grid((outputs + warps - 1) / warps, operation == GB_GATE_UP ? s.tokens * s.top_k : s.tokens);
    return gb_cuda_launch("naive", operation == GB_GATE_UP ? gate_up_kernel<Format> : down_kernel<Format>, grid,
                          32 * warps, 0, a.stream, error, a);
}

} // namespace

enum gb_status gb_cuda_naive(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error)
{
    switch (operation == GB_GATE_UP ? a->gate_up.format : a->down.format) {
    case GB_NVFP4:
        return launch<GB_NVFP4>(operation, *a, error);
    case GB_MXFP8:
        return launch<GB_MXFP8>(operation, *a, error);
    case GB_MXFP4:
        return launch<GB_MXFP4>(operation, *a, error);
    case GB_FP8_BLOCK:
        return launch<GB_FP8_BLOCK>(operation, *a, error);
    default:
        return launch<GB_BF16>(operation, *a, error);
    }
}
