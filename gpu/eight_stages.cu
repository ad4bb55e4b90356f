/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer as the classical pipeline around grouped GEMMs has it, to measure other kernels against: eight launches
 * that hand over through device memory. Count the pairs (token, slot) of every expert; add the counts up; sort the
 * pairs by expert; gather their activations; gate_up; silu_mul; down; combine. The GEMMs are as fast as this folder's,
 * in the order mma16-sm90/1, on NVFP4 weights in the canonical layout.
 */
#include "gpu/kernels.cuh"
#include "gpu/mma16_experts.cuh"

namespace
{

constexpr uint32_t threads = 256;

/* What the stages hand over, in the workspace. */
struct stages {
    uint32_t *counts;  /* [experts] */
    uint32_t *offsets; /* [experts + 1] */
    uint32_t *sorted;  /* [pairs]: pairs, those of an expert side by side; empty slots are left out */
    uint16_t *x;       /* bf16 [pairs, hidden], sorted */
    float *sums;       /* [pairs, 2 intermediate], sorted: gate, up */
    float *dots;       /* [pairs, hidden], by pairs */
    size_t bytes;
    stages(void *workspace, const struct gb_shape &s) : bytes(0)
    {
        const size_t pairs = (size_t)s.tokens * s.top_k;
        const auto take = [&](size_t size) {
            uint8_t *at = (uint8_t *)workspace + bytes;
            bytes += (size + 255) / 256 * 256;
            return at;
        };
        counts = (uint32_t *)take(sizeof(uint32_t) * s.experts);
        offsets = (uint32_t *)take(sizeof(uint32_t) * (s.experts + 1));
        sorted = (uint32_t *)take(sizeof(uint32_t) * pairs);
        x = (uint16_t *)take(sizeof(uint16_t) * pairs * s.hidden);
        sums = (float *)take(sizeof(float) * pairs * 2 * s.intermediate);
        dots = (float *)take(sizeof(float) * pairs * s.hidden);
    }
};

/* 1. Block e: pairs of expert e. */
__global__ void count_kernel(const int32_t *ids, uint32_t pairs, uint32_t *counts)
{
    uint32_t mine = 0;
    for (uint32_t p = threadIdx.x; p < pairs; p += 32)
        mine += (uint32_t)ids[p] == blockIdx.x;
    mine = __reduce_add_sync(0xFFFFFFFFu, mine);
    if (threadIdx.x == 0)
        counts[blockIdx.x] = mine;
}

/* 2. One warp. */
__global__ void offsets_kernel(const uint32_t *counts, uint32_t experts, uint32_t *offsets)
{
    uint32_t before = 0;
    for (uint32_t base = 0; base <= experts; base += 32) {
        const uint32_t e = base + threadIdx.x, count = e < experts ? counts[e] : 0;
        uint32_t sum = count;
#pragma unroll
        for (uint32_t m = 1; m < 32; m *= 2) {
            const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, sum, m);
            sum += threadIdx.x >= m ? other : 0;
        }
        if (e <= experts)
            offsets[e] = before + sum - count;
        before += __shfl_sync(0xFFFFFFFFu, sum, 31);
    }
}

/* 3. Block e, a warp: the pairs of expert e, ascending. */
__global__ void sort_kernel(const int32_t *ids, uint32_t pairs, const uint32_t *offsets, uint32_t *sorted)
{
    uint32_t at = offsets[blockIdx.x];
    for (uint32_t base = 0; base < pairs; base += 32) {
        const uint32_t p = base + threadIdx.x;
        const bool same = p < pairs && (uint32_t)ids[p] == blockIdx.x;
        const uint32_t mask = __ballot_sync(0xFFFFFFFFu, same);
        if (same)
            sorted[at + (uint32_t)__popc(mask & ((1u << threadIdx.x) - 1))] = p;
        at += (uint32_t)__popc(mask);
    }
}

/* 4. Block (b, i): 8 columns a thread of the i-th sorted pair. */
__global__ void gather_kernel(const gb_bf16 *x, const uint32_t *sorted, const uint32_t *total, uint32_t top_k,
                              uint32_t hidden, uint16_t *gathered)
{
    const uint32_t column = 8 * (blockIdx.x * threads + threadIdx.x);
    if (blockIdx.y < *total && column < hidden)
        *(uint4 *)(gathered + (size_t)blockIdx.y * hidden + column) =
            *(const uint4 *)(x + (size_t)(sorted[blockIdx.y] / top_k) * hidden + column);
}

/* 5 and 7. Block (tile, expert): a tile for all of the expert's pairs, 8 at a time. x of the i-th sorted pair lies in
 * row i (gate_up) or in the pair's row (down), and so does its output. */
template <class Layout, bool GateUp>
__global__ void __launch_bounds__(gb_mma16_threads)
    gemm_kernel(const __grid_constant__ struct gb_mma16_matrix weights, const uint16_t *x, const uint32_t *sorted,
                const uint32_t *offsets, float *out)
{
    using Format = typename Layout::Format;
    __shared__ float4 sums[gb_mma16_chains][32];
    const uint32_t lane = threadIdx.x % 32, expert = blockIdx.y, columns = weights.columns;
    const uint32_t end = offsets[expert + 1];
    const Layout layout(weights);
    for (uint32_t first = offsets[expert]; first < end; first += gb_mma16_tokens) {
        const uint32_t pairs = min(gb_mma16_tokens, end - first);
        const auto row_of = [&](uint32_t t) { return (size_t)(GateUp ? first + t : sorted[first + t]); };
        const gb_mma16_activations<Format> mine(x + row_of(min(lane / 4, pairs - 1)) * columns, columns);
        const gb_mma16_part part = layout.part(expert, blockIdx.x);
        float sum[4] = {};
        gb_mma16_chain<Layout, 4>(layout, part, mine, sum);
        sums[threadIdx.x / 32][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
        __syncthreads();
        const uint32_t r = threadIdx.x % gb_mma16_tile, t = threadIdx.x / gb_mma16_tile;
        if (t < pairs) {
            const float *at = (const float *)&sums[0][r % 8 * 4 + t / 2] + t % 2 + r / 8 * 2;
            const float global = weights.global_scales[GateUp ? 2 * expert + r / 8 : expert];
            const uint32_t row = gb_mma16_row<GateUp>(weights.rows, blockIdx.x, r);
            out[row_of(t) * weights.rows + row] = gb_mma16_dot<Format>(at, 128, global);
        }
        __syncthreads();
    }
}

/* 6. Block (b, i): a neuron a thread of the i-th sorted pair, or zero for the i-th pair if its slot is empty. */
__global__ void silu_mul_kernel(const float *sums, const int32_t *ids, const uint32_t *sorted, const uint32_t *total,
                                uint32_t experts, uint32_t neurons, gb_bf16 *intermediate)
{
    const uint32_t neuron = blockIdx.x * threads + threadIdx.x;
    if (neuron >= neurons)
        return;
    if ((uint32_t)ids[blockIdx.y] >= experts)
        intermediate[(size_t)blockIdx.y * neurons + neuron].bits = 0;
    if (blockIdx.y >= *total)
        return;
    const float *of = sums + (size_t)blockIdx.y * 2 * neurons;
    intermediate[(size_t)sorted[blockIdx.y] * neurons + neuron].bits =
        gb_bf16_round(__fmul_rn(gb_cuda_silu(of[neuron]), of[neurons + neuron]));
}

/* 8. Block (b, token): an output a thread. */
__global__ void combine_kernel(const int32_t *ids, const float *routing_weights, const float *dots, uint32_t top_k,
                               uint32_t experts, uint32_t hidden, float *output)
{
    const uint32_t h = blockIdx.x * threads + threadIdx.x;
    if (h >= hidden)
        return;
    float y = 0.0f;
    for (size_t pair = (size_t)blockIdx.y * top_k; pair < (size_t)(blockIdx.y + 1) * top_k; pair++)
        if ((uint32_t)ids[pair] < experts)
            y = __fmaf_rn(routing_weights[pair], dots[pair * hidden + h], y);
    output[(size_t)blockIdx.y * hidden + h] = y;
}

template <bool GateUp>
enum gb_status gemm(const struct gb_weights &w, const uint16_t *x, const stages &at, float *out, void *stream,
                    struct gb_error *error)
{
    using format = gb_mma16_format<GB_NVFP4>;
    const gb_mma16_matrix matrix = {
        (const uint8_t *)w.codes, (const uint8_t *)w.scales, w.global_scales, w.experts, w.rows, w.columns,
        w.rows / gb_mma16_tile};
    return gb_cuda_launch("gemm",
                          w.columns % 32 ? gemm_kernel<gb_mma16_rows<format, GateUp, false>, GateUp>
                                         : gemm_kernel<gb_mma16_rows<format, GateUp, true>, GateUp>,
                          dim3(matrix.tiles, w.experts), gb_mma16_threads, 0, stream, error, matrix, x,
                          (const uint32_t *)at.sorted, (const uint32_t *)at.offsets, out);
}

} // namespace

size_t gb_cuda_eight_stages_workspace(const struct gb_shape *shape)
{
    return stages(NULL, *shape).bytes;
}

enum gb_status gb_cuda_eight_stages(const struct gb_arguments *a, struct gb_error *error)
{
    const struct gb_shape &s = a->shape;
    const uint32_t pairs = s.tokens * s.top_k, experts = s.experts, hidden = s.hidden, neurons = s.intermediate;
    const stages at(a->workspace, s);
    const uint32_t *counts = at.counts, *offsets = at.offsets, *sorted = at.sorted, *total = at.offsets + experts;
    const float *sums = at.sums, *dots = at.dots;
    void *stream = a->stream;
    const auto blocks = [](uint32_t items) { return (items + threads - 1) / threads; };
    enum gb_status status =
        gb_cuda_launch("count", count_kernel, experts, 32, 0, stream, error, a->ids, pairs, at.counts);
    if (status == GB_OK)
        status = gb_cuda_launch("offsets", offsets_kernel, 1, 32, 0, stream, error, counts, experts, at.offsets);
    if (status == GB_OK)
        status = gb_cuda_launch("sort", sort_kernel, experts, 32, 0, stream, error, a->ids, pairs, offsets, at.sorted);
    if (status == GB_OK)
        status = gb_cuda_launch("gather", gather_kernel, dim3(blocks(hidden / 8), pairs), threads, 0, stream, error,
                                a->x, sorted, total, s.top_k, hidden, at.x);
    if (status == GB_OK)
        status = gemm<true>(a->gate_up, at.x, at, at.sums, stream, error);
    if (status == GB_OK)
        status = gb_cuda_launch("silu_mul", silu_mul_kernel, dim3(blocks(neurons), pairs), threads, 0, stream, error,
                                sums, a->ids, sorted, total, experts, neurons, a->intermediate);
    if (status == GB_OK)
        status = gemm<false>(a->down, (const uint16_t *)a->intermediate, at, at.dots, stream, error);
    if (status == GB_OK)
        status = gb_cuda_launch("combine", combine_kernel, dim3(blocks(hidden), s.tokens), threads, 0, stream, error,
                                a->ids, a->routing_weights, dots, s.top_k, experts, hidden, (float *)a->output);
    return status;
}
