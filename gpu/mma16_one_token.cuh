/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate_up and down of mma16-sm90/1 for one token, every slot of which is an item by itself. In gate_up a block has a
 * tile of a slot, and in down a tile of all slots, which it combines at once.
 */
#ifndef GB_GPU_MMA16_ONE_TOKEN_CUH
#define GB_GPU_MMA16_ONE_TOKEN_CUH

#include "gpu/mma16_experts.cuh"

/* A warp's chain of a tile, which has as many steps as are under way: no branch is between the loads and what waits for
 * them, so a step does not wait for the loads of those after it. */
template <class Layout, uint32_t Ahead>
__device__ __forceinline__ void gb_mma16_short_chain(const Layout &layout, const gb_mma16_part &part,
                                                     const gb_mma16_activations<typename Layout::Format> &x,
                                                     float (&sum)[4])
{
    const uint32_t chain = threadIdx.x / 32;
    const gb_mma16_part at = layout.forward(part, chain);
    gb_mma16_step held[Ahead];
#pragma unroll
    for (uint32_t k = 0; k < Ahead; k++)
        held[k] = layout.step_of(layout.forward(at, k * gb_mma16_chains), 0, chain + k * gb_mma16_chains);
#pragma unroll
    for (uint32_t k = 0; k < Ahead; k++) {
        uint4 now[gb_mma16_activations<typename Layout::Format>::words];
        x.load_whole(chain + k * gb_mma16_chains, now);
        gb_mma16_multiply<Layout>(held[k], now, sum);
    }
}

/* Block (tile, slot). Ahead: steps whose loads are under way; Resident: blocks of a multiprocessor. */
template <class Layout, uint32_t Ahead, uint32_t Resident>
__global__ void __launch_bounds__(gb_mma16_threads, Resident)
    gb_mma16_one_token_gate_up_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    using Format = typename Layout::Format;
    __shared__ float sums[gb_mma16_chains][gb_mma16_tile];
    __shared__ uint32_t id;
    const uint32_t columns = job.weights.columns, lane = threadIdx.x % 32, chain = threadIdx.x / 32, r = threadIdx.x;
    const auto put = [&](uint16_t value) {
        job.intermediate[((size_t)blockIdx.y * job.weights.tiles + blockIdx.x) * 8 + r] = value;
    };
    if (!job.told)
        gb_wait_for_previous();
    if (r == 0)
        id = job.told ? gb_hear(job.told, blockIdx.y) : (uint32_t)__ldcg(&job.ids[blockIdx.y]);
    __syncthreads();
    gb_let_next_start();
    const uint32_t expert = id;
    if (expert >= job.weights.experts) { /* an empty slot */
        if (r < 8)
            put(0);
        return;
    }
    float global[2] = {1.0f, 1.0f};
    if (job.weights.global_scales) {
        global[0] = job.weights.global_scales[2 * expert];
        global[1] = job.weights.global_scales[2 * expert + 1];
    }
    const gb_mma16_activations<Format> x(job.x, columns);
    const Layout layout(job.weights);
    const gb_mma16_part part = layout.part(expert, blockIdx.x);
    float sum[4] = {};
    if (columns == gb_mma16_chains * Ahead * Format::step)
        gb_mma16_short_chain<Layout, Ahead>(layout, part, x, sum);
    else
        gb_mma16_chain<Layout, Ahead>(layout, part, x, sum);
    if (lane % 4 == 0) {
        sums[chain][lane / 4] = sum[0];
        sums[chain][lane / 4 + 8] = sum[2];
    }
    __syncthreads();
    if (r >= 8)
        return;
    const float gate = gb_mma16_dot<Format>(&sums[0][r], gb_mma16_tile, global[0]);
    const float up = gb_mma16_dot<Format>(&sums[0][r + 8], gb_mma16_tile, global[1]);
    put(gb_bf16_round(__fmul_rn(gb_cuda_silu(gate), up)));
}

/* A block of down has at most so many warps, and a warp so many columns under way. */
constexpr uint32_t gb_mma16_one_token_warps = 10, gb_mma16_one_token_columns = 512;

/* Block (tile): the tile of every slot, combined. A warp has a slot, all four chains of it, and after that the tenth
 * further on. A slot that is empty is computed on another's weights, unseen. */
template <class Layout>
__global__ void __launch_bounds__(32 * gb_mma16_one_token_warps, Layout::Format::format == GB_MXFP8 ? 1 : 2)
    gb_mma16_one_token_down_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    using Format = typename Layout::Format;
    constexpr uint32_t Ahead = gb_mma16_one_token_columns / Format::step;                  /* steps */
    constexpr uint32_t in_step = Format::step / 8, words = gb_mma16_one_token_columns / 8; /* of 8 activations */
    __shared__ uint4 staged[gb_mma16_one_token_warps][words];
    __shared__ float dots[GB_CUDA_MAX_TOP_K][gb_mma16_tile], routed[GB_CUDA_MAX_TOP_K];
    __shared__ bool used[GB_CUDA_MAX_TOP_K];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = job.weights.columns;
    const uint32_t steps = gb_mma16_steps<Format>(columns), experts = job.weights.experts, top_k = job.top_k;
    if (!job.ids_ready)
        gb_wait_for_previous();
    gb_let_next_start();
    const Layout layout(job.weights);
    for (uint32_t slot = warp; slot < top_k; slot += gb_mma16_one_token_warps) {
        const uint32_t expert = job.told ? gb_hear(job.told, slot) : (uint32_t)__ldcg(&job.ids[slot]);
        const uint32_t some = expert < experts ? expert : 0;
        gb_mma16_part at = layout.part(some, blockIdx.x);
        gb_mma16_step held[Ahead] = {};
#pragma unroll
        for (uint32_t k = 0; k < Ahead; k++, at = layout.forward(at, 1))
            if (k < steps)
                held[k] = layout.step_of(at, 0, k);
        const float global = job.weights.global_scales ? job.weights.global_scales[some] : 1.0f;
        if (slot == warp && job.ids_ready)
            gb_wait_for_previous();
        const uint4 *row = (const uint4 *)(job.x + (size_t)slot * columns);
        uint4 x[words / 32];
        const auto load_x = [&](uint32_t step) {
#pragma unroll
            for (uint32_t i = 0; i < words / 32; i++) {
                const uint32_t word = step * in_step + i * 32 + lane;
                x[i] = word < columns / 8 ? __ldcg(row + word) : make_uint4(0, 0, 0, 0);
            }
        };
        load_x(0);
        const uint64_t weight =
            job.told ? gb_listen(job.told, top_k + slot) : __float_as_uint(__ldcg(&job.routing_weights[slot]));
        float sum[gb_mma16_chains][4] = {};
        for (uint32_t step = 0; step < steps; step += Ahead) {
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < words / 32; i++)
                staged[warp][i * 32 + lane] = x[i];
            __syncwarp();
            load_x(step + Ahead);
            const auto multiply = [&](uint32_t k) {
                uint4 now[in_step / 4];
#pragma unroll
                for (uint32_t d = 0; d < in_step / 4; d++)
                    now[d] = staged[warp][k * in_step + lane % 4 * (in_step / 4) + d];
                gb_mma16_multiply<Layout>(held[k], now, sum[k % gb_mma16_chains]);
            };
            if (step + Ahead == steps) { /* the last: without a branch, the chains are side by side */
#pragma unroll
                for (uint32_t k = 0; k < Ahead; k++)
                    multiply(k);
                continue;
            }
#pragma unroll
            for (uint32_t k = 0; k < Ahead; k++) {
                if (step + k < steps)
                    multiply(k);
                if (step + k + Ahead < steps)
                    held[k] = layout.step_of(at, 0, step + k + Ahead);
                at = layout.forward(at, 1);
            }
        }
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const float chains[gb_mma16_chains] = {sum[0][2 * half], sum[1][2 * half], sum[2][2 * half],
                                                   sum[3][2 * half]};
            if (lane % 4 == 0)
                dots[slot][lane / 4 + 8 * half] = gb_mma16_dot<Format>(chains, 1, global);
        }
        if (lane == 0) {
            used[slot] = expert < experts;
            routed[slot] = __uint_as_float(job.told ? gb_hear(job.told, top_k + slot, weight) : (uint32_t)weight);
        }
    }
    __syncthreads();
    if (threadIdx.x >= gb_mma16_tile)
        return;
    float y = 0.0f;
    for (uint32_t j = 0; j < top_k; j++)
        if (used[j])
            y = __fmaf_rn(routed[j], dots[j][threadIdx.x], y);
    job.output[blockIdx.x * gb_mma16_tile + threadIdx.x] = y;
}

#endif
