/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that time layers have in common: random data, the routing of every layer, medians of graphs. */
#ifndef GB_TESTS_GPU_BENCH_CUH
#define GB_TESTS_GPU_BENCH_CUH

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/gpu/gpu.h"

__host__ __device__ inline uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

template <class T> T *on_device(size_t count)
{
    T *pointer = NULL;
    require(cudaMalloc(&pointer, count * sizeof(T)));
    return pointer;
}

template <class T> T *upload(const std::vector<T> &values)
{
    T *pointer = on_device<T>(values.size());
    require(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return pointer;
}

template <class T> std::vector<T> download(const T *pointer, size_t count)
{
    std::vector<T> values(count);
    require(cudaMemcpy(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

/* What bytes are: any; codes of E4M3; scales of NVFP4, MXFP4 and MXFP8. edge 0: scales as of weights; 1: all that the
 * repacked layout of mma16 has (gpu/mma16.cuh); 2: all kinds, negative ones and NaN too, and a few codes that are NaN.
 */
enum content { ANY, E4M3_CODES, NVFP4_SCALES, MXFP4_SCALES, MXFP8_SCALES };

__global__ void fill_kernel(uint8_t *bytes, size_t count, uint64_t seed, int content, int edge)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
        const uint64_t random = mix(seed + i);
        const uint32_t seldom = edge == 2 ? (uint32_t)random % (1u << 20) : 1u << 20;
        uint32_t byte = (uint32_t)(random >> 32) & 0xFF;
        if (content == E4M3_CODES && (byte & 0x7F) == 0x7F && seldom >= 8)
            byte ^= 1;
        if (content == NVFP4_SCALES)
            byte = edge ? (seldom < 8 ? 0x7F : byte % 0x7F) | (seldom < 10000 ? byte & 0x80 : 0) : 0x28 + byte % 24;
        if (content == MXFP4_SCALES || content == MXFP8_SCALES)
            byte = edge == 0        ? 112 + byte % 12
                   : edge == 1      ? byte % (content == MXFP4_SCALES ? 129 : 135)
                   : seldom < 8     ? 0xFE + byte % 2
                   : seldom < 10000 ? byte % 140
                                    : 100 + byte % 40;
        bytes[i] = (uint8_t)byte;
    }
}

inline void fill(void *bytes, size_t count, uint64_t seed, enum content content, int edge)
{
    fill_kernel<<<1024, 256>>>((uint8_t *)bytes, count, seed, content, edge);
    require(cudaGetLastError());
}

enum routing { UNIFORM, SKEWED, HOLES };

inline std::vector<int32_t> route(uint32_t tokens, uint32_t experts, uint32_t top_k, uint64_t seed, int kind)
{
    std::vector<int32_t> ids;
    for (uint32_t t = 0; t < tokens; t++) {
        std::vector<int32_t> chosen;
        for (uint64_t r = seed + t * 1000003ull; chosen.size() < top_k; r = mix(r)) {
            const int32_t id = (int32_t)(mix(r) % (kind == SKEWED ? top_k + 1 : experts));
            if (std::find(chosen.begin(), chosen.end(), id) == chosen.end())
                chosen.push_back(id);
        }
        for (int32_t id : chosen)
            ids.push_back(kind == HOLES && mix(seed ^ (uint64_t)id * 77 ^ t) % 4 == 0 ? -1 : id);
    }
    return ids;
}

/* Layers of a graph, each with experts of its own, so that weights come from beyond the L2. */
inline uint32_t layers_of(uint32_t batch)
{
    return batch <= 2 ? 24 : batch <= 8 ? 12 : 6;
}

/* Median microseconds of a launch, of 15 replays of a graph of all of them. */
template <class Launch> double median_us(uint32_t launches, const Launch &launch)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaEvent_t start, stop;
    require(cudaStreamCreate(&stream));
    require(cudaEventCreate(&start));
    require(cudaEventCreate(&stop));
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t i = 0; i < launches; i++)
        launch(i, stream);
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&executable, graph, 0));
    std::vector<float> times;
    for (int i = 0; i < 18; i++) {
        float ms = 0;
        require(cudaEventRecord(start, stream));
        require(cudaGraphLaunch(executable, stream));
        require(cudaEventRecord(stop, stream));
        require(cudaEventSynchronize(stop));
        require(cudaEventElapsedTime(&ms, start, stop));
        if (i >= 3)
            times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    cudaStreamDestroy(stream);
    return times[times.size() / 2] * 1e3 / launches;
}

#endif
