/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All 2^32 floats on the GPU against the CPU: silu, sigmoid and exp of gpu/, and the hardware's conversions to E4M3 and
 * E5M2 (cvt.rn.satfinite) against our codecs. NaN results of the functions are a class; codes are compared as bits.
 * Prints one JSON document; exit 1 on any difference.
 *
 * usage: exhaustive_functions [--date DATE] [--commit COMMIT] > FILE.json
 */
#include <cmath>
#include <cstring>
#include <vector>

#include <cuda_fp8.h>

#include "gpu/device.cuh"
#include "gpu/exp.cuh"
#include "gpu/sigmoid.cuh"
#include "gpu/silu.cuh"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/gpu/gpu.h"

namespace
{

constexpr unsigned threads = 256;
constexpr uint32_t part = 1u << 26; /* inputs at a time */

enum function { SILU, SIGMOID, EXP, E4M3, E5M2, FUNCTIONS };
const char *const names[FUNCTIONS] = {"silu", "sigmoid", "exp", "cvt.rn.satfinite.e4m3x2.f32",
                                      "cvt.rn.satfinite.e5m2x2.f32"};

__device__ uint32_t on_device(enum function f, float x)
{
    switch (f) {
    case SILU:
        return __float_as_uint(gb_cuda_silu(x));
    case SIGMOID:
        return __float_as_uint(gb_cuda_sigmoid(x));
    case EXP:
        return __float_as_uint(gb_cuda_exp(x));
    case E4M3:
        return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    default:
        return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    }
}

__global__ void evaluate(enum function f, uint32_t first, uint32_t *results /* [part] */)
{
    uint32_t i = blockIdx.x * threads + threadIdx.x;
    results[i] = on_device(f, __uint_as_float(first + i));
}

float number(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t encoding(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

uint32_t on_host(enum function f, float x)
{
    switch (f) {
    case SILU:
        return encoding(gb_silu(x));
    case SIGMOID:
        return encoding(gb_sigmoid(x));
    case EXP:
        return encoding(gb_exp(x));
    case E4M3:
        return gb_e4m3_encode(x).bits;
    default:
        return gb_e5m2_encode(x).bits;
    }
}

bool same(enum function f, uint32_t a, uint32_t b)
{
    return a == b || (f < E4M3 && std::isnan(number(a)) && std::isnan(number(b)));
}

struct result {
    uint64_t inputs, differences;
    uint32_t input, host, device; /* of the first difference found */
};

result compare(enum function f, uint32_t *on_gpu, std::vector<uint32_t> &found)
{
    result r = {0, 0, 0, 0, 0};
    for (uint64_t first = 0; first < 1ull << 32; first += part) {
        require(gb_cuda_launch("evaluate", evaluate, dim3(part / threads), threads, 0, NULL, NULL, f, (uint32_t)first,
                               on_gpu));
        require(cudaMemcpy(found.data(), on_gpu, part * sizeof(uint32_t), cudaMemcpyDeviceToHost));
        uint64_t differences = 0;
#pragma omp parallel for reduction(+ : differences)
        for (uint32_t i = 0; i < part; i++) {
            uint32_t expected = on_host(f, number((uint32_t)first + i));
            if (same(f, expected, found[i]))
                continue;
#pragma omp critical
            if (r.differences + differences == 0 || (uint32_t)first + i < r.input)
                r = {r.inputs, r.differences, (uint32_t)first + i, expected, found[i]};
            differences++;
        }
        r.inputs += part;
        r.differences += differences;
    }
    return r;
}

} // namespace

int main(int argc, char **argv)
{
    const char *date = "", *commit = "";
    for (int i = 1; i + 1 < argc; i += 2)
        *(strcmp(argv[i], "--date") == 0 ? &date : &commit) = argv[i + 1];
    struct gb_error error;
    if (gb_cuda_present(&error) != GB_OK)
        return skip(error.message);
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    std::vector<uint32_t> found(part);
    uint32_t *on_gpu = NULL;
    require(cudaMalloc(&on_gpu, part * sizeof(uint32_t)));
    uint64_t wrong = 0;
    printf(
        "{\"schema\": \"gaugeblock.exhaustive-functions/1\", \"command\": \"exhaustive_functions\", \"date\": \"%s\", "
        "\"commit\": \"%s\", \"device\": \"%s\",\n  \"results\": [",
        date, commit, properties.name);
    for (int f = 0; f < FUNCTIONS; f++) {
        result r = compare((enum function)f, on_gpu, found);
        printf("%s\n    {\"function\": \"%s\", \"inputs\": %llu, \"differences\": %llu", f ? "," : "", names[f],
               (unsigned long long)r.inputs, (unsigned long long)r.differences);
        if (r.differences)
            printf(", \"first\": {\"input\": \"0x%08x\", \"cpu\": \"0x%08x\", \"gpu\": \"0x%08x\"}", r.input, r.host,
                   r.device);
        printf("}");
        fflush(stdout);
        wrong += r.differences;
    }
    printf("\n]}\n");
    require(cudaFree(on_gpu));
    return wrong ? 1 : 0;
}
