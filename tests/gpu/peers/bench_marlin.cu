/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vLLM's Marlin on NVFP4 weights and bf16 activations, as its experts run it: GEMM of gate and up, silu * up, GEMM of
 * down that multiplies by the routing weights, sum over the slots, on Qwen3-Next. Blocks of 8 tokens, which is vLLM's
 * choice up to batch 368. The tile of each GEMM, and how many blocks a multiprocessor has, are the fastest of all that
 * vLLM builds for that, which is no worse than the one that it takes; the two launches between are written here. Left
 * out in its favour: the router, and which tokens an expert has. Every layer of the graph has other experts, those that
 * bench_mma16 has. bench_peers.py sets the times beside the library's.
 *
 * Built if the sources are given: cmake -DGAUGEBLOCK_VLLM=FOLDER -DGAUGEBLOCK_VLLM_REVISION=TEXT, tried at vLLM 0.33.0.
 *
 * usage: bench_marlin [BATCH...]        JSON on stdout
 */
#include "tests/gpu/peers/peer.cuh"

#include "csrc/moe/marlin_moe_wna16/kernel.h"
#include "csrc/moe/marlin_moe_wna16/marlin_template.h"

namespace
{

const uint32_t EXPERTS = 512, TOP_K = 10, HIDDEN = 2048, INTERMEDIATE = 512, BLOCK = 8;

/* Relative error, in the mean square: gate, up, their product, the slot's weight, its output and the sum are rounded to
 * bf16, each by up to 2^-9 of itself. Gate's counts twice: silu(g) changes by 1 + g * (1 - sigmoid(g)) times as much as
 * g, which is between -2 and 2 for g > -3, and below that silu is nearly 0. */
const double MOST_ERROR = 7 * 0x1p-9;

const float GLOBAL_SCALE = 0x1p-7f;
const uint8_t SCALE_OFFSET = 0x78; /* E4M3 scales are stored times 2^7 with five bits of exponent and no sign */

__global__ void offset_scales(uint8_t *scales, size_t count)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
        scales[i] += SCALE_OFFSET;
}

struct matrix {
    uint32_t *codes; /* [experts, columns / 16, rows / 64, 32 lanes, 4 words]: 16 columns of 64 rows */
    uint8_t *scales; /* [experts, columns / 16, rows / 64, 64] */
    float *globals;  /* as the kernel wants them, times 2^119 */
    uint32_t rows, columns;

    matrix(uint32_t rows_, uint32_t columns_, uint64_t seed) : rows(rows_), columns(columns_)
    {
        const size_t weights = (size_t)EXPERTS * rows * columns;
        codes = on_device<uint32_t>(weights / 8);
        scales = on_device<uint8_t>(weights / 16);
        fill(codes, weights / 2, seed, ANY, false);
        fill(scales, weights / 16, seed + 1, E4M3_SCALES, false);
        offset_scales<<<1024, 256>>>(scales, weights / 16);
        require(cudaGetLastError());
        globals = upload(std::vector<float>(EXPERTS, GLOBAL_SCALE * 0x1p119f));
    }

    __device__ double operator()(uint32_t expert, uint32_t row, uint32_t column) const
    {
        const size_t tile = ((size_t)expert * (columns / 16) + column / 16) * (rows / 64) + row / 64;
        const uint32_t r = row % 64, c = column % 16;
        const uint32_t word = codes[tile * 128 + (r % 8 * 4 + c % 8 / 2) * 4 + r / 16];
        const uint32_t code = word >> 4 * (c / 8 + r / 8 % 2 * 2 + c % 2 * 4) & 15;
        const uint32_t magnitude = code & 7, place = r % 8 * 8 + r / 8;
        /* the two in the middle of four have changed places */
        const uint32_t byte = scales[tile * 64 + (place % 4 % 3 ? place ^ 3 : place)] - SCALE_OFFSET;
        const double e2m1 =
            magnitude < 2 ? 0.5 * magnitude : ldexp(1 + 0.5 * (magnitude & 1), (int)(magnitude / 2) - 1);
        const double e4m3 = ldexp(1 + 0.125 * (byte & 7), (int)(byte >> 3) - 7); /* none is subnormal */
        return (code & 8 ? -e2m1 : e2m1) * e4m3 * GLOBAL_SCALE;
    }
};

typedef void (*kernel_function)(MARLIN_KERNEL_PARAMS);

template <int COLUMNS, int ROWS, int THREADS> constexpr kernel_function instance()
{
    return marlin_moe_wna16::Marlin<vllm::kBFloat16.id(), vllm::kFE2M1f.id(), vllm::kBFloat16.id(), vllm::kFE4M3fn.id(),
                                    THREADS, 1, ROWS / 16, COLUMNS / 16, true, 4, 1, false>;
}

struct tile {
    int columns, rows, threads;
    kernel_function kernel;
    int blocks; /* of a multiprocessor */
};

/* Every tile with every number of blocks that fit; a block takes its part of the shared memory. */
std::vector<tile> all_tiles(int shared)
{
    const tile kinds[] = {{128, 128, 256, instance<128, 128, 256>(), 0},
                          {64, 128, 128, instance<64, 128, 128>(), 0},
                          {128, 64, 128, instance<128, 64, 128>(), 0}};
    std::vector<tile> tiles;
    for (tile one : kinds)
        for (one.blocks = 1; one.blocks <= 4; one.blocks++) {
            const int given = shared / one.blocks - 1024;
            /* four stages of 16 rows of bf16, of codes and of scales in two bytes; who is in the block */
            const int needed =
                4 * (16 * one.columns * 2 + one.columns * one.rows / 2 + one.columns / 16 * one.rows * 2) + 512;
            int resident = 0;
            require(cudaFuncSetAttribute(one.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
            require(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, one.kernel, one.threads, (size_t)given));
            if (needed <= given && one.blocks <= resident) /* blocks wait for each other */
                tiles.push_back(one);
        }
    return tiles;
}

/* Eight columns a thread. */
__global__ void silu_mul(const bf16 *gate_up, bf16 *inner)
{
    const uint32_t at = blockIdx.x * 2 * INTERMEDIATE + threadIdx.x * 8;
    bf16 gate[8], up[8], product[8];
    *(uint4 *)gate = *(const uint4 *)(gate_up + at);
    *(uint4 *)up = *(const uint4 *)(gate_up + at + INTERMEDIATE);
    for (int i = 0; i < 8; i++) {
        const float g = __bfloat162float(gate[i]);
        product[i] = __float2bfloat16(g / (1 + __expf(-g)) * __bfloat162float(up[i]));
    }
    *(uint4 *)(inner + blockIdx.x * INTERMEDIATE + threadIdx.x * 8) = *(uint4 *)product;
}

__global__ void add_slots(const bf16 *slots, bf16 *output)
{
    float sum[8] = {};
    for (uint32_t j = 0; j < TOP_K; j++) {
        bf16 slot[8];
        *(uint4 *)slot = *(const uint4 *)(slots + (blockIdx.x * TOP_K + j) * HIDDEN + threadIdx.x * 8);
        for (int i = 0; i < 8; i++)
            sum[i] += __bfloat162float(slot[i]);
    }
    bf16 total[8];
    for (int i = 0; i < 8; i++)
        total[i] = __float2bfloat16(sum[i]);
    *(uint4 *)(output + blockIdx.x * HIDDEN + threadIdx.x * 8) = *(uint4 *)total;
}

struct layer {
    uint32_t tokens;
    bf16 *x, *gate_up, *inner, *slots, *output;
    int32_t *ids, *pair_of, *expert_of, *padded; /* pairs by expert in blocks, with one past the last for none */
    float *routing;

    layer(uint32_t tokens_, uint64_t seed) : tokens(tokens_)
    {
        const std::vector<int32_t> chosen = route(tokens, EXPERTS, TOP_K, seed, UNIFORM);
        const int32_t pairs = (int32_t)chosen.size();
        std::vector<int32_t> by_expert, experts;
        for (int32_t expert = 0; expert < (int32_t)EXPERTS; expert++) {
            for (int32_t pair = 0; pair < pairs; pair++)
                if (chosen[(size_t)pair] == expert) {
                    if (by_expert.size() % BLOCK == 0)
                        experts.push_back(expert);
                    by_expert.push_back(pair);
                }
            while (by_expert.size() % BLOCK)
                by_expert.push_back(pairs);
        }
        std::vector<float> weights;
        for (size_t i = 0; i < chosen.size(); i++)
            weights.push_back((float)(mix(seed + i) % 1000) / 1000.0f);
        x = upload(random_activations((size_t)tokens * HIDDEN, seed));
        ids = upload(chosen);
        pair_of = upload(by_expert);
        expert_of = upload(experts);
        padded = upload(std::vector<int32_t>(1, (int32_t)by_expert.size()));
        routing = upload(weights);
        gate_up = on_device<bf16>(chosen.size() * 2 * INTERMEDIATE);
        inner = on_device<bf16>(chosen.size() * INTERMEDIATE);
        slots = on_device<bf16>(chosen.size() * HIDDEN);
        output = on_device<bf16>((size_t)tokens * HIDDEN);
        poison(output, (size_t)tokens * HIDDEN);
    }
};

struct peer {
    matrix gate_up, down;
    int multiprocessors, shared;
    float *sums; /* parts of outputs that several blocks have */
    int *locks;  /* of those, 0 between launches */

    peer() : gate_up(2 * INTERMEDIATE, HIDDEN, 1), down(HIDDEN, INTERMEDIATE, 3)
    {
        require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
        require(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
        const size_t blocks = (size_t)multiprocessors * 4;
        sums = on_device<float>(blocks * 16 * 256);
        locks = on_device<int>(blocks + 1);
        require(cudaMemset(locks, 0, (blocks + 1) * sizeof *locks));
    }

    void multiply(const layer &one, const tile &by, bool second, cudaStream_t stream) const
    {
        const matrix &m = second ? down : gate_up;
        const int rows = (int)(second ? one.tokens * TOP_K : one.tokens);
        by.kernel<<<multiprocessors * by.blocks, by.threads, (size_t)(shared / by.blocks - 1024), stream>>>(
            (const int4 *)(second ? one.inner : one.x), (const int4 *)m.codes,
            (int4 *)(second ? one.slots : one.gate_up), (int4 *)sums, NULL, NULL, (const int4 *)m.scales, m.globals,
            NULL, one.pair_of, one.expert_of, one.padded, one.routing, second ? 1 : (int)TOP_K, second, rows,
            (int)m.rows, (int)m.columns, locks, false, false, true);
        require(cudaGetLastError());
    }

    void run(const layer &one, const tile tiles[2], cudaStream_t stream) const
    {
        multiply(one, tiles[0], false, stream);
        silu_mul<<<one.tokens * TOP_K, INTERMEDIATE / 8, 0, stream>>>(one.gate_up, one.inner);
        multiply(one, tiles[1], true, stream);
        add_slots<<<one.tokens, HIDDEN / 8, 0, stream>>>(one.slots, one.output);
        require(cudaGetLastError());
    }

    double error(const layer &one) const
    {
        return relative_error(one.output, one.x, one.ids, one.routing, gate_up, down, one.tokens, TOP_K, HIDDEN,
                              INTERMEDIATE);
    }
};

void measure(const peer &of, uint32_t batch, bool last)
{
    std::vector<layer> layers;
    for (uint32_t i = 0; i < layers_of(batch); i++)
        layers.emplace_back(batch, 100 + i);
    tile fastest[2];
    double gemms[2];
    for (int second = 0; second < 2; second++) {
        gemms[second] = INFINITY;
        for (const tile &one : all_tiles(of.shared)) {
            const double us = median_us(layers_of(batch), [&](uint32_t i, cudaStream_t stream) {
                of.multiply(layers[i], one, second, stream);
            });
            if (us < gemms[second]) {
                gemms[second] = us;
                fastest[second] = one;
            }
        }
    }
    const double us =
        median_us(layers_of(batch), [&](uint32_t i, cudaStream_t stream) { of.run(layers[i], fastest, stream); });
    const double error = std::max(of.error(layers.front()), of.error(layers.back()));
    require_error_below(MOST_ERROR, error, batch);
    printf("  {\"batch\": %u, \"us\": %.1f, \"relative_error\": %.4f", batch, us, error);
    for (int second = 0; second < 2; second++)
        printf(", \"%s\": {\"us\": %.1f, \"columns\": %d, \"rows\": %d, \"threads\": %d, \"blocks\": %d}",
               second ? "down" : "gate_up", gemms[second], fastest[second].columns, fastest[second].rows,
               fastest[second].threads, fastest[second].blocks);
    printf("}%s\n", last ? "" : ",");
}

} // namespace

int main(int argc, char **argv)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return skip("no CUDA device");
    const std::vector<uint32_t> batches = batches_of(argc, argv, {1, 8, 32});
    const peer of;
    print_head("vLLM Marlin NVFP4", EXPERTS, TOP_K, HIDDEN, INTERMEDIATE);
    for (uint32_t batch : batches)
        measure(of, batch, batch == batches.back());
    printf(" ]}\n");
    return 0;
}
