/* SPDX-License-Identifier: Apache-2.0 */
/* gate_up and down in the order mma16-sm90/1: launches, the combine, and the repacked layout. */
#include "gpu/kernels.cuh"
#include "gpu/mma16_experts.cuh"

/* What prepare() returns: the weights of the operator, repacked, in device memory. */
struct gb_cuda_repacked {
    uint8_t *gate_up, *down; /* gb_mma16_records; NULL: the operator has none */
};

namespace
{

constexpr uint32_t stages = 4;

uint32_t tiles_of(const struct gb_weights &weights)
{
    return weights.rows / gb_mma16_tile;
}

size_t record_bytes(const struct gb_weights &weights)
{
    return (size_t)weights.experts * tiles_of(weights) * gb_mma16_steps(weights.columns) * gb_mma16_record;
}

/* A thread for every word of codes and every 4 bytes of scales of a record; block (record). */
template <bool GateUp>
__global__ void repack_kernel(const __grid_constant__ struct gb_weights weights, uint32_t tiles, uint32_t steps,
                              uint8_t *records)
{
    const uint32_t step = blockIdx.x % steps, tile = blockIdx.x / steps % tiles, expert = blockIdx.x / steps / tiles;
    const uint32_t code_bytes = weights.columns / 2, scale_bytes = weights.columns / 16;
    uint8_t *record = records + (size_t)blockIdx.x * gb_mma16_record;
    const uint8_t *codes = (const uint8_t *)weights.codes, *scales = (const uint8_t *)weights.scales;
    const auto row_of = [&](uint32_t r) {
        return (size_t)expert * weights.rows + gb_mma16_row<GateUp>(weights.rows, tile, r);
    };
    const uint32_t i = threadIdx.x;
    if (i < gb_mma16_step_codes / 4) {
        const uint32_t half = i / 128, lane = i / 4 % 32, byte = step * 64 + lane % 4 * 16 + i % 4 * 4;
        const uint8_t *from = codes + row_of(8 * half + lane / 4) * code_bytes + byte;
        uint32_t word = 0;
        for (uint32_t b = 0; b < 4; b++)
            word |= byte + b < code_bytes ? (uint32_t)from[b] << 8 * b : 0;
        ((uint32_t *)record)[i] = gb_mma16_repack_word(word);
    } else if (i < gb_mma16_record / 4) {
        const uint32_t lane = i - gb_mma16_step_codes / 4, byte = step * 8 + lane % 4 * 2;
        uint32_t word = 0;
        for (uint32_t b = 0; b < 4; b++)
            if (byte + b % 2 < scale_bytes)
                word |= (uint32_t)scales[row_of(8 * (b / 2) + lane / 4) * scale_bytes + byte + b % 2] << 8 * b;
        ((uint32_t *)record)[i] = word;
    }
}

template <bool GateUp>
enum gb_status repack(const struct gb_weights &weights, uint8_t **records, void *stream, struct gb_error *error)
{
    enum gb_status status = gb_cuda_check(cudaMalloc(records, record_bytes(weights)), "cudaMalloc", error);
    if (status != GB_OK)
        return status;
    const uint32_t tiles = tiles_of(weights), steps = gb_mma16_steps(weights.columns);
    return gb_cuda_launch("repack", repack_kernel<GateUp>, dim3(weights.experts * tiles * steps), gb_mma16_record / 4,
                          0, stream, error, weights, tiles, steps, *records);
}

/* y = fma(routing weight, dot, y) over the slots: block (b, token), a thread four columns. */
__global__ void combine_kernel(const int32_t *ids, const float *routing_weights, const float *dots, float *output,
                               uint32_t top_k, uint32_t experts, uint32_t hidden)
{
    const uint32_t column = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    const size_t first = (size_t)blockIdx.y * top_k;
    gb_let_next_start();
    gb_wait_for_previous();
    if (column >= hidden)
        return;
    float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (uint32_t j = 0; j < top_k; j++) {
        if ((uint32_t)ids[first + j] >= experts)
            continue;
        const float w = routing_weights[first + j];
        const float4 dot = *(const float4 *)(dots + (first + j) * hidden + column);
        y = make_float4(__fmaf_rn(w, dot.x, y.x), __fmaf_rn(w, dot.y, y.y), __fmaf_rn(w, dot.z, y.z),
                        __fmaf_rn(w, dot.w, y.w));
    }
    *(float4 *)(output + (size_t)blockIdx.y * hidden + column) = y;
}

size_t shared_bytes(uint32_t experts)
{
    return stages * gb_mma16_stage_bytes + sizeof(gb_mma16_shared) + sizeof(uint32_t) * experts;
}

template <class Layout, bool GateUp>
enum gb_status launch(const gb_mma16_job &job, void *stream, struct gb_error *error)
{
    int device = 0, multiprocessors = 0;
    enum gb_status status = gb_cuda_check(cudaGetDevice(&device), "cudaGetDevice", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
                               "cudaDeviceGetAttribute", error);
    if (status != GB_OK)
        return status;
    return gb_cuda_launch_early(GateUp ? "gate_up" : "down", gb_mma16_kernel<Layout, GateUp, stages>,
                                dim3((unsigned)multiprocessors), gb_mma16_threads, shared_bytes(job.experts), stream,
                                error, job);
}

/* On the repacked layout if there are records, otherwise on the canonical one. */
template <bool GateUp>
enum gb_status run(const struct gb_arguments &a, const struct gb_weights &weights, const uint8_t *records,
                   bool ids_ready, struct gb_error *error)
{
    const struct gb_shape &s = a.shape;
    gb_mma16_job job = {};
    job.ids = a.ids;
    job.x = GateUp ? (const uint16_t *)a.x : (const uint16_t *)a.intermediate;
    job.codes = records ? records : (const uint8_t *)weights.codes;
    job.scales = (const uint8_t *)weights.scales;
    job.global_scales = weights.global_scales;
    job.intermediate = (uint16_t *)a.intermediate;
    job.dots = (float *)a.workspace;
    job.pairs = s.tokens * s.top_k;
    job.share = GateUp ? s.top_k : 1;
    job.experts = s.experts;
    job.rows = weights.rows;
    job.columns = weights.columns;
    job.tiles = tiles_of(weights);
    job.ids_ready = ids_ready;
    if (records)
        return launch<gb_mma16_records, GateUp>(job, a.stream, error);
    if (weights.columns % 256 == 0)
        return launch<gb_mma16_rows<16, 16>, GateUp>(job, a.stream, error);
    if (weights.columns % 64 == 0)
        return launch<gb_mma16_rows<16, 4>, GateUp>(job, a.stream, error);
    return launch<gb_mma16_rows<8, 1>, GateUp>(job, a.stream, error);
}

} // namespace

size_t gb_cuda_mma16_shared(const struct gb_shape *shape)
{
    return shared_bytes(shape->experts);
}

size_t gb_cuda_mma16_workspace(const struct gb_shape *shape)
{
    return sizeof(float) * shape->tokens * shape->top_k * shape->hidden;
}

enum gb_status gb_cuda_mma16_gate_up(const struct gb_arguments *a, struct gb_error *error)
{
    const gb_cuda_repacked *repacked = (const gb_cuda_repacked *)a->prepared;
    return run<true>(*a, a->gate_up, repacked ? repacked->gate_up : NULL, false, error);
}

enum gb_status gb_cuda_mma16_down(const struct gb_arguments *a, bool after_gate_up, struct gb_error *error)
{
    const gb_cuda_repacked *repacked = (const gb_cuda_repacked *)a->prepared;
    const enum gb_status status = run<false>(*a, a->down, repacked ? repacked->down : NULL, after_gate_up, error);
    if (status != GB_OK)
        return status;
    constexpr uint32_t threads = 128;
    const struct gb_shape &s = a->shape;
    return gb_cuda_launch_early("combine", combine_kernel, dim3((s.hidden / 4 + threads - 1) / threads, s.tokens),
                                threads, 0, a->stream, error, a->ids, a->routing_weights, (const float *)a->workspace,
                                (float *)a->output, s.top_k, s.experts, s.hidden);
}

enum gb_status gb_cuda_mma16_prepare(enum gb_operator operation, const struct gb_arguments *a, void **prepared,
                                     struct gb_error *error)
{
    gb_cuda_repacked *repacked = new gb_cuda_repacked();
    enum gb_status status = GB_OK;
    if (operation != GB_DOWN)
        status = repack<true>(a->gate_up, &repacked->gate_up, a->stream, error);
    if (status == GB_OK && operation != GB_GATE_UP)
        status = repack<false>(a->down, &repacked->down, a->stream, error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaStreamSynchronize((cudaStream_t)a->stream), "repack", error);
    if (status == GB_OK)
        *prepared = repacked;
    else
        gb_cuda_mma16_release(repacked);
    return status;
}

void gb_cuda_mma16_release(void *prepared)
{
    gb_cuda_repacked *repacked = (gb_cuda_repacked *)prepared;
    if (!repacked)
        return;
    (void)cudaFree(repacked->gate_up);
    (void)cudaFree(repacked->down);
    delete repacked;
}
