/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs around other projects' kernels have in common: a layer's inputs, its outputs in float64 from the
 * weights as the peer's layout holds them, the record. */
#ifndef GB_TESTS_GPU_PEERS_PEER_CUH
#define GB_TESTS_GPU_PEERS_PEER_CUH

#include <cmath>
#include <string>

#include <cuda_bf16.h>

#include "tests/gpu/bench.cuh"

typedef __nv_bfloat16 bf16;

/* Nearly normal, with the variance 4/3. */
inline std::vector<bf16> random_activations(size_t count, uint64_t seed)
{
    std::vector<bf16> values(count);
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (uint64_t n = 0; n < 4; n++)
            sum += (float)(mix(seed + 16 * i + n) % 2001) / 1000.0f - 1.0f;
        values[i] = __float2bfloat16(sum);
    }
    return values;
}

/* What no kernel that is right leaves. */
inline void poison(bf16 *output, size_t count)
{
    require(cudaMemset(output, 0xFF, count * sizeof *output)); /* NaN */
}

inline __device__ double warp_sum(double value)
{
    for (int lane = 16; lane; lane /= 2)
        value += __shfl_xor_sync(~0u, value, lane);
    return value;
}

/* silu(gate) * up of a pair a block: inner [pairs, intermediate]. weight(expert, row, column), gate's rows first. */
template <class Weight>
__global__ void inner_in_float64(const bf16 *x, const int32_t *ids, Weight weight, uint32_t top_k, uint32_t hidden,
                                 uint32_t intermediate, double *inner)
{
    const uint32_t pair = blockIdx.x, lane = threadIdx.x % 32;
    for (uint32_t row = threadIdx.x / 32; row < intermediate; row += blockDim.x / 32) {
        double gate = 0, up = 0;
        for (uint32_t k = lane; k < hidden; k += 32) {
            const double value = __bfloat162float(x[pair / top_k * hidden + k]);
            gate += value * weight(ids[pair], row, k);
            up += value * weight(ids[pair], intermediate + row, k);
        }
        gate = warp_sum(gate);
        up = warp_sum(up);
        if (lane == 0)
            inner[pair * intermediate + row] = gate / (1 + exp(-gate)) * up;
    }
}

/* The layer of a token a block: y [tokens, hidden]. */
template <class Weight>
__global__ void outer_in_float64(const double *inner, const int32_t *ids, const float *routing, Weight weight,
                                 uint32_t top_k, uint32_t hidden, uint32_t intermediate, double *y)
{
    const uint32_t token = blockIdx.x, lane = threadIdx.x % 32;
    for (uint32_t row = threadIdx.x / 32; row < hidden; row += blockDim.x / 32) {
        double sum = 0;
        for (uint32_t pair = token * top_k; pair < (token + 1) * top_k; pair++)
            for (uint32_t k = lane; k < intermediate; k += 32)
                sum += routing[pair] * inner[pair * intermediate + k] * weight(ids[pair], row, k);
        sum = warp_sum(sum);
        if (lane == 0)
            y[token * hidden + row] = sum;
    }
}

/* The distance of an output from the layer in float64, of all that there is. Pointers to device memory. */
template <class First, class Second>
double relative_error(const bf16 *output, const bf16 *x, const int32_t *ids, const float *routing, First gate_up,
                      Second down, uint32_t tokens, uint32_t top_k, uint32_t hidden, uint32_t intermediate)
{
    double *inner = on_device<double>((size_t)tokens * top_k * intermediate);
    double *exact = on_device<double>((size_t)tokens * hidden);
    inner_in_float64<<<tokens * top_k, 256>>>(x, ids, gate_up, top_k, hidden, intermediate, inner);
    outer_in_float64<<<tokens, 1024>>>(inner, ids, routing, down, top_k, hidden, intermediate, exact);
    require(cudaGetLastError());
    const std::vector<double> y = download(exact, (size_t)tokens * hidden);
    const std::vector<bf16> got = download(output, y.size());
    double off = 0, all = 0;
    for (size_t i = 0; i < y.size(); i++) {
        const double difference = (double)__bfloat162float(got[i]) - y[i];
        off += difference * difference;
        all += y[i] * y[i];
    }
    cudaFree(inner);
    cudaFree(exact);
    return sqrt(off / all);
}

/* The JSON that bench_peers.py adds the library's times to, but for its rows. */
inline void print_head(const char *peer, uint32_t experts, uint32_t top_k, uint32_t hidden, uint32_t intermediate)
{
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    printf("{\"peer\": \"%s\", \"revision\": \"%s\", \"nvcc\": \"%d.%d.%d\", \"device\": \"%s\",\n"
           " \"experts\": %u, \"top_k\": %u, \"hidden\": %u, \"intermediate\": %u, \"batches\": [\n",
           peer, PEER_REVISION, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__, __CUDACC_VER_BUILD__, properties.name,
           experts, top_k, hidden, intermediate);
}

/* Exit 1 where what was timed is no layer. */
inline void require_error_below(double most, double error, uint32_t batch)
{
    if (!(error < most)) {
        printf("FAILED at batch %u: the peer's layer is off by %g, which may be %g\n", batch, error, most);
        exit(1);
    }
}

inline std::vector<uint32_t> batches_of(int argc, char **argv, const std::vector<uint32_t> &otherwise)
{
    std::vector<uint32_t> batches;
    for (int i = 1; i < argc; i++)
        batches.push_back((uint32_t)strtoul(argv[i], NULL, 10));
    return batches.empty() ? otherwise : batches;
}

#endif
