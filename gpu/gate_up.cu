/* SPDX-License-Identifier: Apache-2.0 */
/* gate and up projection, SiLU and product: docs/numerics.md#gate_up. */
#include "gpu/dot.cuh"
#include "gpu/kernels.cuh"
#include "gpu/silu.cuh"

namespace
{

constexpr uint32_t threads = 256;
constexpr uint32_t lanes = 16;
constexpr uint32_t teams = threads / lanes;

/* Shared memory: x [staged], then the block's gate and up sums [2][teams]. */
template <class Format> constexpr size_t shared_bytes(uint32_t hidden)
{
    return sizeof(float) * (gb_staged_floats<Format>(hidden) + 2 * (size_t)teams);
}

/* Block (b, pair): neurons b * teams .. of the pair's expert, one to a team, gate and up row together. */
template <class Format, bool Aligned>
__global__ void __launch_bounds__(threads, 2) gate_up_kernel(const __grid_constant__ struct gb_arguments a)
{
    extern __shared__ float4 shared[];
    const uint32_t hidden = a.shape.hidden, intermediate = a.shape.intermediate, pair = blockIdx.y;
    float *staged = (float *)shared;
    float *sums = staged + gb_staged_floats<Format>(hidden);
    const uint32_t first = blockIdx.x * teams, units = min(teams, intermediate - first);
    gb_bf16 *out = a.intermediate + (size_t)pair * intermediate + first;
    const uint32_t expert = (uint32_t)a.ids[pair];
    if (expert >= a.shape.experts) {
        if (threadIdx.x < units)
            out[threadIdx.x].bits = 0;
        return;
    }
    const auto rows_of = [&](uint32_t unit, gb_cuda_row(&rows)[2]) {
        rows[0] = Format::row(a.gate_up, expert, first + unit);
        rows[1] = Format::row(a.gate_up, expert, intermediate + first + unit);
    };
    const auto x_of = [&](uint32_t) { return staged; };
    const auto finish = [&](uint32_t unit, const float(&dots)[2]) {
        sums[unit] = dots[0];
        sums[teams + unit] = dots[1];
    };
    const auto round = gb_first_round<Format, lanes, 2, Aligned>(units, hidden, rows_of);
    const gb_bf16 *x = a.x + (size_t)(pair / a.shape.top_k) * hidden;
    if (!__syncthreads_or(gb_stage<Format>(x, hidden, Format::x_factor, staged))) {
        gb_dots<Format, lanes, 2, Aligned, false>(units, hidden, round, rows_of, x_of, finish);
    } else {
        gb_stage<Format>(x, hidden, 1.0f, staged);
        __syncthreads();
        gb_dots<Format, lanes, 2, Aligned, true>(units, hidden, round, rows_of, x_of, finish);
    }
    __syncthreads();
    if (threadIdx.x < units) {
        float gate = __fmul_rn(sums[threadIdx.x], gb_cuda_global(a.gate_up, expert, 0));
        float up = __fmul_rn(sums[teams + threadIdx.x], gb_cuda_global(a.gate_up, expert, 1));
        out[threadIdx.x].bits = gb_bf16_round(__fmul_rn(gb_cuda_silu(gate), up));
    }
}

template <class Format, bool Aligned> enum gb_status launch(const struct gb_arguments *a, struct gb_error *error)
{
    dim3 grid((a->shape.intermediate + teams - 1) / teams, a->shape.tokens * a->shape.top_k);
    return gb_cuda_launch("gate_up", gate_up_kernel<Format, Aligned>, grid, threads,
                          shared_bytes<Format>(a->shape.hidden), a->stream, error, *a);
}

} // namespace

size_t gb_cuda_gate_up_shared(enum gb_format weights, const struct gb_shape *shape)
{
    return weights == GB_NVFP4 ? shared_bytes<gb_cuda_nvfp4>(shape->hidden) : shared_bytes<gb_cuda_bf16>(shape->hidden);
}

enum gb_status gb_cuda_gate_up(const struct gb_arguments *a, struct gb_error *error)
{
    if (a->gate_up.format == GB_BF16)
        return launch<gb_cuda_bf16, true>(a, error);
    if (a->shape.hidden % gb_cuda_nvfp4::chunk == 0)
        return launch<gb_cuda_nvfp4, true>(a, error);
    return launch<gb_cuda_nvfp4, false>(a, error);
}
