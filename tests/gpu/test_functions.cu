/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device functions of gpu/ against the codecs and functions of libgaugeblock: every E2M1 and E4M3 code by each path,
 * every bf16 rounding boundary, and silu on every stride-th of all 2^32 inputs.
 *
 * usage: test_functions [STRIDE]    STRIDE 1 is exhaustive; 4099 by default, a prime, so that all exponents occur
 */
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "gpu/bf16.cuh"
#include "gpu/device.cuh"
#include "gpu/e2m1.cuh"
#include "gpu/e4m3.cuh"
#include "gpu/silu.cuh"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/gpu/gpu.h"

namespace
{

constexpr unsigned threads = 256;

/* Thread i: four code pairs, each in two positions, made exact; the E4M3 pair i by both paths. */
__global__ void decode_kernel(float *e2m1 /* [65536, 8] */, float *e4m3 /* [65536, 4] */)
{
    uint32_t i = blockIdx.x * threads + threadIdx.x;
    uint32_t word = i << 16 | (i ^ 0xFFFF);
    float decoded[8];
    gb_e2m1x8_decode(word, decoded);
    for (int k = 0; k < 8; k++)
        e2m1[i * 8 + k] = __fmul_rn(decoded[k], GB_E2M1_FACTOR);
    gb_e4m3x2_decode((uint16_t)i, &e4m3[i * 4], &e4m3[i * 4 + 1]);
    e4m3[i * 4 + 2] = gb_e4m3_from_bits(i & 0xFF);
    e4m3[i * 4 + 3] = gb_e4m3_from_bits(i >> 8);
}

__global__ void silu_kernel(uint64_t first, uint32_t stride, uint32_t count, float *silu, uint16_t *rounded)
{
    uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i < count) {
        float x = __uint_as_float((uint32_t)(first + (uint64_t)i * stride));
        silu[i] = gb_cuda_silu(x);
        rounded[i] = gb_bf16_round(x);
    }
}

float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

bool same(float a, float b)
{
    return (std::isnan(a) && std::isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* Prints a mismatch if there is one and returns how many there are: 0 or 1. */
unsigned judge(const char *what, uint32_t input, float expected, float actual)
{
    if (same(expected, actual))
        return 0;
    printf("MISMATCH %s(%08X): expected %a, got %a\n", what, input, (double)expected, (double)actual);
    return 1;
}

unsigned test_decode()
{
    const uint32_t count = 65536;
    std::vector<float> e2m1(count * 8), e4m3(count * 4);
    float *device_e2m1 = NULL, *device_e4m3 = NULL;
    require(cudaMalloc(&device_e2m1, e2m1.size() * sizeof(float)));
    require(cudaMalloc(&device_e4m3, e4m3.size() * sizeof(float)));
    require(gb_cuda_launch("decode", decode_kernel, dim3(count / threads), threads, 0, NULL, NULL, device_e2m1,
                           device_e4m3));
    require(cudaMemcpy(e2m1.data(), device_e2m1, e2m1.size() * sizeof(float), cudaMemcpyDeviceToHost));
    require(cudaMemcpy(e4m3.data(), device_e4m3, e4m3.size() * sizeof(float), cudaMemcpyDeviceToHost));
    cudaFree(device_e2m1);
    cudaFree(device_e4m3);
    unsigned wrong = 0;
    for (uint32_t i = 0; i < count && wrong < 10; i++) {
        uint32_t word = i << 16 | (i ^ 0xFFFF);
        for (uint32_t k = 0; k < 8; k++) {
            gb_e2m1 code = {(uint8_t)(word >> 4 * k & 15)};
            wrong += judge("e2m1", word, gb_e2m1_decode(code), e2m1[i * 8 + k]);
        }
        for (uint32_t k = 0; k < 4; k++) {
            gb_e4m3 code = {(uint8_t)(k % 2 ? i >> 8 : i)};
            wrong += judge(k < 2 ? "e4m3 pair" : "e4m3 from bits", i, gb_e4m3_decode(code), e4m3[i * 4 + k]);
        }
    }
    printf("decode: %u E2M1 words, %u E4M3 pairs by two paths, %u mismatches\n", count, count, wrong);
    return wrong;
}

/* Inputs first, first + stride, ... up to 2^32, a batch at a time. */
unsigned test_silu(uint32_t stride)
{
    const uint32_t most = 1u << 24;
    std::vector<float> silu(most);
    std::vector<uint16_t> rounded(most);
    float *device_silu = NULL;
    uint16_t *device_rounded = NULL;
    require(cudaMalloc(&device_silu, most * sizeof(float)));
    require(cudaMalloc(&device_rounded, most * sizeof(uint16_t)));
    uint64_t wrong = 0, seen = 0, total = ((1ull << 32) + stride - 1) / stride;
    for (; seen < total && wrong < 10; seen += most) {
        const uint64_t first = seen * stride;
        const uint32_t count = (uint32_t)(total - seen < most ? total - seen : most);
        require(gb_cuda_launch("silu", silu_kernel, dim3((count + threads - 1) / threads), threads, 0, NULL, NULL,
                               first, stride, count, device_silu, device_rounded));
        require(cudaMemcpy(silu.data(), device_silu, count * sizeof(float), cudaMemcpyDeviceToHost));
        require(cudaMemcpy(rounded.data(), device_rounded, count * sizeof(uint16_t), cudaMemcpyDeviceToHost));
#pragma omp parallel for reduction(+ : wrong)
        for (uint32_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)(first + (uint64_t)i * stride);
            float x = from_bits(bits);
            wrong += judge("silu", bits, gb_silu(x), silu[i]);
            wrong += judge("bf16", bits, gb_bf16_decode(gb_bf16_encode(x)), from_bits((uint32_t)rounded[i] << 16));
        }
    }
    cudaFree(device_silu);
    cudaFree(device_rounded);
    printf("silu and bf16: %llu inputs, every %u-th, %llu mismatches\n", (unsigned long long)total, stride,
           (unsigned long long)wrong);
    return wrong != 0;
}

} // namespace

int main(int argc, char **argv)
{
    const unsigned long stride = argc > 1 ? strtoul(argv[1], NULL, 10) : 4099;
    if (stride == 0 || stride > 1u << 24) {
        fprintf(stderr, "usage: test_functions [STRIDE]\n");
        return 2;
    }
    struct gb_error error;
    if (gb_cuda_present(&error) != GB_OK)
        return skip(error.message);
    unsigned wrong = test_decode() + test_silu((uint32_t)stride);
    return wrong ? 1 : 0;
}
