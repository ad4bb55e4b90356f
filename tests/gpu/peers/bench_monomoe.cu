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

struct layer {
    uint32_t tokens;
    bf16 *x, *logits, *output;
    int32_t *ids;
    float *routing; /* what the logits come to: softmax over those chosen */

    layer(uint32_t tokens_, uint64_t seed) : tokens(tokens_)
    {
        const std::vector<int32_t> chosen = route(tokens, EXPERTS, TOP_K, seed, UNIFORM);
        std::vector<bf16> all((size_t)tokens * EXPERTS);
        for (size_t i = 0; i < all.size(); i++)
            all[i] = __float2bfloat16(-1.0f - (float)(mix(seed + i) % 64) / 32.0f);
        std::vector<float> weights(chosen.size());
        for (uint32_t t = 0; t < tokens; t++) {
            float sum = 0;
            for (uint32_t j = 0; j < TOP_K; j++) {
                const float logit = 2.0f - 0.25f * (float)j;
                all[t * EXPERTS + (uint32_t)chosen[t * TOP_K + j]] = __float2bfloat16(logit);
                sum += weights[t * TOP_K + j] = expf(logit);
            }
            for (uint32_t j = 0; j < TOP_K; j++)
                weights[t * TOP_K + j] /= sum;
        }
        x = upload(random_activations((size_t)tokens * HIDDEN, seed));
        logits = upload(all);
        ids = upload(chosen);
        routing = upload(weights);
        output = on_device<bf16>((size_t)tokens * HIDDEN);
        poison(output, (size_t)tokens * HIDDEN);
    }
};

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

    void run(const layer &one, cudaStream_t stream) const
    {
        const size_t shared = monomoe::get_moe_shmem_size<peer_shape>();
        monomoe::moe_kernel_topk<peer_shape>
            <<<peer_shape::KernelConfig::GRID_SIZE, peer_shape::KernelConfig::BLOCK_SIZE, shared, stream>>>(
                one.x, one.tokens, one.logits, gate_up.codes, gate_up.scales, down.codes, down.scales, one.output,
                scratchpad, sizeof(monomoe::MoEGemmSpec<peer_shape>), shared, TOP_K, monomoe::ScoringFunc::SOFTMAX,
                true, gate_up_map, monomoe::create_activations_tma_desc(one.x, one.tokens, HIDDEN), down_map,
                inner_map);
        require(cudaGetLastError());
    }

    double error(const layer &one) const
    {
        return relative_error(one.output, one.x, one.ids, one.routing, gate_up_weight{gate_up}, down_weight{down},
                              one.tokens, TOP_K, HIDDEN, INTERMEDIATE);
    }
};

void measure(const peer &of, uint32_t batch, bool last)
{
    std::vector<layer> layers;
    for (uint32_t i = 0; i < layers_of(batch); i++)
        layers.emplace_back(batch, 100 + i);
    const double us = median_us(layers_of(batch), [&](uint32_t i, cudaStream_t stream) { of.run(layers[i], stream); });
    const double error = std::max(of.error(layers.front()), of.error(layers.back()));
    require_error_below(MOST_ERROR, error, batch);
    printf("  {\"batch\": %u, \"us\": %.1f, \"relative_error\": %.4f}%s\n", batch, us, error, last ? "" : ",");
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
