/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warp decode as its public descriptions tell it (Cursor, "warp decode"; Morph, "decode"), to measure other kernels
 * against: two launches, a warp an output, 8 warps a block, no shared memory and no tokens that share weights. A lane
 * loads 16 bytes of NVFP4 codes at a time and the 32 activations that belong to them. Codes become numbers by their
 * bits, or through a table in constant memory, which is slow where lanes ask for different entries.
 *
 * Where those descriptions fold all slots into one sum, this keeps a dot product for each, and so the order fma32/1.
 */
#include "gpu/bf16.cuh"
#include "gpu/e4m3.cuh"
#include "gpu/kernels.cuh"
#include "gpu/silu.cuh"

namespace
{

constexpr uint32_t warps = 8; /* of a block */
constexpr uint32_t chunk = 32, run = 16;

__constant__ float table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

template <bool Table> __device__ __forceinline__ float decode(uint32_t code)
{
    if (Table)
        return table[code];
    const uint32_t magnitude = code & 7;
    const uint32_t bits = magnitude >= 2 ? (magnitude << 22) + (126u << 23) : magnitude * 0x3F000000u;
    return __uint_as_float(bits | (code & 8) << 28);
}

/* One lane's part of the dot products of several rows with x; lanes take chunks in turn. */
template <bool Table, uint32_t Rows>
__device__ __forceinline__ void accumulate(const uint8_t *const (&codes)[Rows], const uint8_t *const (&scales)[Rows],
                                           const gb_bf16 *x, uint32_t columns, float (&acc)[Rows])
{
    for (uint32_t c = threadIdx.x % 32; c < columns / chunk; c += 32) {
        uint4 words[Rows];
        uint32_t scale[Rows];
#pragma unroll
        for (uint32_t r = 0; r < Rows; r++) {
            words[r] = __ldg((const uint4 *)codes[r] + c);
            scale[r] = __ldg((const uint16_t *)scales[r] + c);
        }
        float p[Rows] = {};
#pragma unroll
        for (uint32_t i = 0; i < chunk; i += 8) {
            const uint4 eight = *(const uint4 *)(x + c * chunk + i);
            const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
            for (uint32_t r = 0; r < Rows; r++) {
                const uint32_t word = i == 0 ? words[r].x : i == 8 ? words[r].y : i == 16 ? words[r].z : words[r].w;
#pragma unroll
                for (uint32_t k = 0; k < 8; k++)
                    p[r] = __fmaf_rn(decode<Table>(word >> 4 * k & 15),
                                     k % 2 ? gb_bf16_high(pairs[k / 2]) : gb_bf16_low(pairs[k / 2]), p[r]);
                if (i % run == 0)
                    continue;
                float s[2];
                gb_e4m3x2_decode((uint16_t)scale[r], &s[0], &s[1]);
                acc[r] = __fmaf_rn(s[i / run], p[r], acc[r]);
                p[r] = 0.0f;
            }
        }
    }
}

__device__ __forceinline__ float butterfly(float acc)
{
#pragma unroll
    for (int m = 16; m > 0; m /= 2)
        acc = __fadd_rn(acc, __shfl_xor_sync(0xFFFFFFFFu, acc, m));
    return acc;
}

__device__ __forceinline__ const uint8_t *codes_of(const gb_weights &w, uint32_t expert, uint32_t row)
{
    return (const uint8_t *)w.codes + ((size_t)expert * w.rows + row) * (w.columns / 2);
}

__device__ __forceinline__ const uint8_t *scales_of(const gb_weights &w, uint32_t expert, uint32_t row)
{
    return (const uint8_t *)w.scales + ((size_t)expert * w.rows + row) * (w.columns / run);
}

/* Block (b, pair): a neuron of one token and slot a warp. */
template <bool Table>
__global__ void __launch_bounds__(32 * warps) gate_up_kernel(const __grid_constant__ struct gb_arguments a)
{
    const uint32_t neuron = blockIdx.x * warps + threadIdx.x / 32, neurons = a.shape.intermediate;
    const uint32_t expert = (uint32_t)a.ids[blockIdx.y];
    if (neuron >= neurons)
        return;
    uint16_t bits = 0; /* of an empty slot */
    if (expert < a.shape.experts) {
        const uint8_t *codes[2] = {codes_of(a.gate_up, expert, neuron), codes_of(a.gate_up, expert, neurons + neuron)};
        const uint8_t *scales[2] = {scales_of(a.gate_up, expert, neuron),
                                    scales_of(a.gate_up, expert, neurons + neuron)};
        float acc[2] = {0.0f, 0.0f};
        accumulate<Table>(codes, scales, a.x + (size_t)(blockIdx.y / a.shape.top_k) * a.shape.hidden, a.shape.hidden,
                          acc);
        const float gate = __fmul_rn(butterfly(acc[0]), a.gate_up.global_scales[2 * expert]);
        const float up = __fmul_rn(butterfly(acc[1]), a.gate_up.global_scales[2 * expert + 1]);
        bits = gb_bf16_round(__fmul_rn(gb_cuda_silu(gate), up));
    }
    if (threadIdx.x % 32 == 0)
        a.intermediate[(size_t)blockIdx.y * neurons + neuron].bits = bits;
}

/* Block (b, token): an output a warp, over all slots. */
template <bool Table>
__global__ void __launch_bounds__(32 * warps) down_kernel(const __grid_constant__ struct gb_arguments a)
{
    const uint32_t row = blockIdx.x * warps + threadIdx.x / 32, top_k = a.shape.top_k;
    if (row >= a.shape.hidden)
        return;
    float y = 0.0f;
    for (uint32_t slot = 0; slot < top_k; slot++) {
        const size_t pair = (size_t)blockIdx.y * top_k + slot;
        const uint32_t expert = (uint32_t)a.ids[pair];
        if (expert >= a.shape.experts)
            continue;
        const uint8_t *codes[1] = {codes_of(a.down, expert, row)}, *scales[1] = {scales_of(a.down, expert, row)};
        float acc[1] = {0.0f};
        accumulate<Table>(codes, scales, a.intermediate + pair * a.shape.intermediate, a.shape.intermediate, acc);
        y = __fmaf_rn(a.routing_weights[pair], __fmul_rn(butterfly(acc[0]), a.down.global_scales[expert]), y);
    }
    if (threadIdx.x % 32 == 0)
        ((float *)a.output)[(size_t)blockIdx.y * a.shape.hidden + row] = y;
}

template <bool Table> enum gb_status launch(enum gb_operator operation, const gb_arguments &a, struct gb_error *error)
{
    const struct gb_shape &s = a.shape;
    const uint32_t outputs = operation == GB_GATE_UP ? s.intermediate : s.hidden;
    const dim3 grid((outputs + warps - 1) / warps, operation == GB_GATE_UP ? s.tokens * s.top_k : s.tokens);
    return gb_cuda_launch("warp decode", operation == GB_GATE_UP ? gate_up_kernel<Table> : down_kernel<Table>, grid,
                          32 * warps, 0, a.stream, error, a);
}

} // namespace

enum gb_status gb_cuda_warp_decode(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error)
{
    return launch<false>(operation, *a, error);
}

enum gb_status gb_cuda_warp_decode_table(enum gb_operator operation, const struct gb_arguments *a,
                                         struct gb_error *error)
{
    return launch<true>(operation, *a, error);
}
