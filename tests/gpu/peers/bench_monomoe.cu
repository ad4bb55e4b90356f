/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MonoMoE of FlashInfer: top-k of given logits and a layer in one kernel, FP8 weights with an FP32 scale for 128 x 128,
 * activations that it brings to FP8 itself, one shape, up to 8 tokens. Every layer of the graph has other experts,
 * those that bench_mma16 has: their logits are the largest. bench_peers.py sets the times beside the library's.
 *
 * Built if the checkouts are given: cmake -DGAUGEBLOCK_FLASHINFER=FOLDER -DGAUGEBLOCK_FLASHINFER_REVISION=TEXT
 * -DGAUGEBLOCK_CUTLASS=FOLDER, tried at FlashInfer's fb28d7242b35 and CUTLASS's 7107b05535f8.
 *
 * usage: bench_monomoe [BATCH...]        JSON on stdout
 */
#include <cuda_fp8.h>

#include "tvm_ffi_utils.h"

#include "src/moe.cuh"
#include "src/moe_tma.cu"

#include "tests/gpu/peers/peer.cuh"

namespace
{

typedef monomoe::Dims_BS8_E256_N512_K2048_BlockFP8_WGMMA_TMA peer_shape;

const uint32_t EXPERTS = 256, TOP_K = 8, HIDDEN = 2048, INTERMEDIATE = 512;

/* Relative error, in the mean square: E4M3 is off by up to 2^-4 of a number, evenly spread by 2^-4 / sqrt(3), and three
 * such errors come in, by gate, by up and by the intermediate. */
const double MOST_ERROR = 0x1p-4;

/* codes [experts, rows, columns], scales [experts, rows / 128, columns / 128]. */
struct matrix {
    __nv_fp8_e4m3 *codes;
    float *scales;
    uint32_t rows, columns;

    matrix(uint32_t rows_, uint32_t columns_, uint64_t seed) : rows(rows_), columns(columns_)
    {
        const size_t weights = (size_t)EXPERTS * rows * columns;
        codes = on_device<__nv_fp8_e4m3>(weights);
        fill(codes, weights, seed, E4M3_CODES, false);
        std::vector<float> values(weights / 128 / 128);
        for (size_t i = 0; i < values.size(); i++) /* codes are near 128 in the mean square */
            values[i] = (0.5f + (float)(mix(seed + i) % 1000) / 1000.0f) / (128.0f * sqrtf((float)columns));
        scales = upload(values);
    }
};

/* A weight of a matrix of which row `row` lies at `at`. */
__device__ inline double weight_at(const matrix &m, uint32_t expert, uint32_t row, uint32_t at, uint32_t column)
{
    const size_t scale = ((size_t)expert * (m.rows / 128) + row / 128) * (m.columns / 128) + column / 128;
    return (double)(float)m.codes[((size_t)expert * m.rows + at) * m.columns + column] * m.scales[scale];
}

/* Eight rows of gate and the same eight of up take turns; scales are by gate's rows, then up's. */
struct gate_up_weight {
    matrix m;
    __device__ double operator()(uint32_t expert, uint32_t row, uint32_t column) const
    {
        const uint32_t neuron = row % INTERMEDIATE;
        return weight_at(m, expert, row, neuron / 8 * 16 + row / INTERMEDIATE * 8 + neuron % 8, column);
    }
};

struct down_weight {
    matrix m;
    __device__ double operator()(uint32_t expert, uint32_t row, uint32_t column) const
    {
        return weight_at(m, expert, row, row, column);
    }
};

/* A block an expert, with eight columns a thread: logits [tokens, experts] of x [tokens, hidden]. */
__global__ void __launch_bounds__(HIDDEN / 8)
    router_logits(const bf16 *x, const bf16 *router, uint32_t tokens, bf16 *logits)
{
    __shared__ float parts[8][HIDDEN / 256];
    const uint32_t at = threadIdx.x * 8, warp = threadIdx.x / 32;
    bf16 row[8], value[8];
    *(uint4 *)row = *(const uint4 *)(router + blockIdx.x * HIDDEN + at);
    for (uint32_t t = 0; t < tokens; t++) {
        *(uint4 *)value = *(const uint4 *)(x + t * HIDDEN + at);
        float sum = 0;
        for (int i = 0; i < 8; i++)
            sum += __bfloat162float(row[i]) * __bfloat162float(value[i]);
        for (int lane = 16; lane; lane /= 2)
            sum += __shfl_xor_sync(~0u, sum, lane);
        if (threadIdx.x % 32 == 0)
            parts[t][warp] = sum;
    }
    __syncthreads();
    if (threadIdx.x < tokens) {
        float sum = 0;
        for (uint32_t i = 0; i < HIDDEN / 256; i++)
            sum += parts[threadIdx.x][i];
        logits[threadIdx.x * EXPERTS + blockIdx.x] = __float2bfloat16(sum);
    }
}

/* x and the router of bench_mma16's layer of this seed, and logits that choose its experts. */
struct layer {
    uint32_t tokens;
    std::vector<bf16> rows, columns; /* of x and of the router */
    bf16 *x, *router, *given, *computed, *output;

    layer(uint32_t tokens_, uint64_t seed) : tokens(tokens_)
    {
        rows = random_activations((size_t)tokens * HIDDEN, seed);
        columns.resize((size_t)EXPERTS * HIDDEN);
        for (size_t i = 0; i < columns.size(); i++)
            columns[i] = __ushort_as_bfloat16((uint16_t)((mix(seed * 1000003 + i) & 0x80FF) | 0x3C00));
        std::vector<bf16> logits((size_t)tokens * EXPERTS);
        for (size_t i = 0; i < logits.size(); i++)
            logits[i] = __float2bfloat16(-1.0f - (float)(mix(seed + i) % 64) / 32.0f);
        const std::vector<int32_t> ids = route(tokens, EXPERTS, TOP_K, seed, UNIFORM);
        for (size_t i = 0; i < ids.size(); i++)
            logits[i / TOP_K * EXPERTS + (size_t)ids[i]] = __float2bfloat16(2.0f - 0.25f * (float)(i % TOP_K));
        x = upload(rows);
        router = upload(columns);
        given = upload(logits);
        computed = on_device<bf16>(logits.size());
        output = on_device<bf16>((size_t)tokens * HIDDEN);
        poison(computed, logits.size());
        poison(output, (size_t)tokens * HIDDEN);
    }
};

/* The largest logits of every token, the lower expert of equal ones, and softmax over those. */
void choose(const std::vector<bf16> &logits, std::vector<int32_t> &ids, std::vector<float> &routing)
{
    for (size_t token = 0; token < logits.size() / EXPERTS; token++) {
        std::vector<int32_t> order(EXPERTS);
        for (uint32_t expert = 0; expert < EXPERTS; expert++)
            order[expert] = (int32_t)expert;
        const auto logit = [&](int32_t expert) { return __bfloat162float(logits[token * EXPERTS + (size_t)expert]); };
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
        float sum = 0;
        for (uint32_t j = 0; j < TOP_K; j++)
            sum += expf(logit(order[j]) - logit(order[0]));
        for (uint32_t j = 0; j < TOP_K; j++) {
            ids.push_back(order[j]);
            routing.push_back(expf(logit(order[j]) - logit(order[0])) / sum);
        }
    }
}

/* Of the router's logits, which are rounded to bf16 once, by up to 2^-9, from sums of FP32. */
void require_logits(const layer &one, uint32_t batch)
{
    const std::vector<bf16> logits = download(one.computed, (size_t)one.tokens * EXPERTS);
    double off = 0, all = 0;
    for (size_t i = 0; i < logits.size(); i++) {
        double exact = 0;
        for (size_t k = 0; k < HIDDEN; k++)
            exact += (double)__bfloat162float(one.rows[i / EXPERTS * HIDDEN + k]) *
                     __bfloat162float(one.columns[i % EXPERTS * HIDDEN + k]);
        const double difference = __bfloat162float(logits[i]) - exact;
        off += difference * difference;
        all += exact * exact;
    }
    require_error_below(0x1p-9, sqrt(off / all), batch);
}

struct peer {
    matrix gate_up, down;
    uint8_t *scratchpad; /* zero before the first launch, and left as the next one needs it */
    CUtensorMap gate_up_map, down_map, inner_map;

    peer() : gate_up(2 * INTERMEDIATE, HIDDEN, 1), down(HIDDEN, INTERMEDIATE, 2)
    {
        typedef monomoe::MoEGemmSpec<peer_shape> scratch;
        scratchpad = on_device<uint8_t>(sizeof(scratch));
        require(cudaMemset(scratchpad, 0, sizeof(scratch)));
        gate_up_map = monomoe::create_up_weight_tma_desc(gate_up.codes, EXPERTS, INTERMEDIATE, HIDDEN);
        down_map = monomoe::create_down_weight_tma_desc(down.codes, EXPERTS, HIDDEN, INTERMEDIATE, 128);
        inner_map = monomoe::create_down_activation_tma_desc(scratchpad + scratch::TEMP_FP8_OFFSET,
                                                             scratch::TEMP_ROWS_TMA, INTERMEDIATE);
        require(cudaFuncSetAttribute(monomoe::moe_kernel_topk<peer_shape>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)monomoe::get_moe_shmem_size<peer_shape>()));
    }

    void run(const layer &one, const bf16 *logits, cudaStream_t stream) const
    {
        const size_t shared = monomoe::get_moe_shmem_size<peer_shape>();
        monomoe::moe_kernel_topk<peer_shape>
            <<<peer_shape::KernelConfig::GRID_SIZE, peer_shape::KernelConfig::BLOCK_SIZE, shared, stream>>>(
                one.x, one.tokens, logits, gate_up.codes, gate_up.scales, down.codes, down.scales, one.output,
                scratchpad, sizeof(monomoe::MoEGemmSpec<peer_shape>), shared, TOP_K, monomoe::ScoringFunc::SOFTMAX,
                true, gate_up_map, monomoe::create_activations_tma_desc(one.x, one.tokens, HIDDEN), down_map,
                inner_map);
        require(cudaGetLastError());
    }

    void route_and_run(const layer &one, cudaStream_t stream) const
    {
        router_logits<<<EXPERTS, HIDDEN / 8, 0, stream>>>(one.x, one.router, one.tokens, one.computed);
        run(one, one.computed, stream);
    }

    double error(const layer &one, const bf16 *logits) const
    {
        std::vector<int32_t> chosen;
        std::vector<float> weights;
        choose(download(logits, (size_t)one.tokens * EXPERTS), chosen, weights);
        int32_t *ids = upload(chosen);
        float *routing = upload(weights);
        const double off = relative_error(one.output, one.x, ids, routing, gate_up_weight{gate_up}, down_weight{down},
                                          one.tokens, TOP_K, HIDDEN, INTERMEDIATE);
        cudaFree(ids);
        cudaFree(routing);
        return off;
    }
};

void measure(const peer &of, uint32_t batch, bool last)
{
    std::vector<layer> layers;
    for (uint32_t i = 0; i < layers_of(batch); i++)
        layers.emplace_back(batch, 100 + i);
    const double us = median_us(layers_of(batch),
                                [&](uint32_t i, cudaStream_t stream) { of.run(layers[i], layers[i].given, stream); });
    double error = 0;
    for (const layer *one : {&layers.front(), &layers.back()})
        error = std::max(error, of.error(*one, one->given));
    for (const layer &one : layers)
        poison(one.output, (size_t)batch * HIDDEN);
    const double routed =
        median_us(layers_of(batch), [&](uint32_t i, cudaStream_t stream) { of.route_and_run(layers[i], stream); });
    for (const layer *one : {&layers.front(), &layers.back()}) {
        require_logits(*one, batch);
        error = std::max(error, of.error(*one, one->computed));
    }
    require_error_below(MOST_ERROR, error, batch);
    printf("  {\"batch\": %u, \"us\": %.1f, \"routed_us\": %.1f, \"relative_error\": %.4f}%s\n", batch, us, routed,
           error, last ? "" : ",");
}

} // namespace

int main(int argc, char **argv)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return skip("no CUDA device");
    const std::vector<uint32_t> batches = batches_of(argc, argv, {1, 2, 4, 8});
    const peer of;
    print_head("FlashInfer MonoMoE", EXPERTS, TOP_K, HIDDEN, INTERMEDIATE);
    for (uint32_t batch : batches)
        measure(of, batch, batch == batches.back());
    printf(" ]}\n");
    return 0;
}
