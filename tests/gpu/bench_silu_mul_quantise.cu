/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time of silu(gate) * up to FP8 in groups of 128, bf16 in: the library's kernel by several tiles, beside a copy of as
 * many bytes (the faster of a kernel and cudaMemcpyAsync), and beside one block for each group with one thread for each
 * element, the shape in which vLLM has it: with the exact silu, so that its codes are the same, and with CUDA's expf,
 * which is cheaper and is no contract of ours. Every kernel's outputs are compared with the CPU reference.
 * At 4,096 x 7,168 both operators by other recipes, too. Times are medians over launches that rotate through inputs and
 * outputs of more than 200 MB. Prints one JSON document.
 *
 * usage: gb_bench_silu_mul_quantise LIBRARY > FILE.json
 */
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "gpu/by_division.cuh"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/support/provenance.h"

namespace
{

const struct gb_kernel *library_kernels[2]; /* quantise, silu_mul_quantise */

constexpr uint32_t group = 128, repeats = 31, launches = 12;
constexpr size_t rotated = 240u << 20; /* bytes of input, at least: several times an L2 cache */

__global__ void copy_kernel(const uint4 *from, uint4 *to, size_t count)
{
    constexpr uint32_t batch = 4;
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += batch * stride) {
        uint4 words[batch];
#pragma unroll
        for (uint32_t k = 0; k < batch; k++)
            if (i + k * stride < count)
                words[k] = __ldcs(from + i + k * stride);
#pragma unroll
        for (uint32_t k = 0; k < batch; k++)
            if (i + k * stride < count)
                __stcs(to + i + k * stride, words[k]);
    }
}

struct exact_silu {
    static __device__ float of(float x)
    {
        return gb_cuda_silu(x);
    }
};
struct expf_silu {
    static __device__ float of(float x)
    {
        return __fmul_rn(x, __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))));
    }
};

/* Block (g, token): a thread for each element, the largest magnitude by a tree in shared memory. */
template <class Silu> __global__ void __launch_bounds__(group) one_thread_an_element(const gb_quantise_job job)
{
    __shared__ float magnitude[group];
    const size_t row = (size_t)blockIdx.y * 2 * job.q.columns;
    const uint32_t column = blockIdx.x * group + threadIdx.x;
    const uint16_t *values = (const uint16_t *)job.values;
    const float gate = gb_bf16_low(values[row + column]), up = gb_bf16_low(values[row + job.q.columns + column]);
    const float x = __fmul_rn(Silu::of(gate), up);
    magnitude[threadIdx.x] = fabsf(x);
    __syncthreads();
    for (uint32_t m = group / 2; m > 0; m /= 2) {
        if (threadIdx.x < m)
            magnitude[threadIdx.x] = fmaxf(magnitude[threadIdx.x], magnitude[threadIdx.x + m]);
        __syncthreads();
    }
    const gb_quantiser &rules = job.q.quantiser;
    const float s = fmaxf(fminf(__fdiv_rn(magnitude[0], rules.largest), job.q.bound), rules.ratio_min);
    if (threadIdx.x == 0)
        ((float *)job.scales)[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = s;
    const float q = fmaxf(fminf(__fdiv_rn(x, s), rules.largest), -rules.largest);
    ((uint8_t *)job.codes)[(size_t)blockIdx.y * job.q.columns + column] = (uint8_t)gb_e4m3x2_encode(q, 0.0f);
}

template <class Silu>
enum gb_status launch_one_thread_an_element(const gb_quantise_job &job, void *stream, struct gb_error *error)
{
    return gb_cuda_launch("one thread an element", one_thread_an_element<Silu>, dim3(job.q.columns / group, job.q.rows),
                          group, 0, stream, error, job);
}

using by_table = gb_gated_source<gb_input_bf16, gb_silu_by_table>;
using directly = gb_gated_source<gb_input_bf16, gb_silu_directly>;

struct entry {
    const char *name;
    std::function<enum gb_status(const gb_quantise_job &, void *, struct gb_error *)> launch;
};

template <class Source, uint32_t Threads, uint32_t Resident> entry tile(const char *name)
{
    return {name, gb_quantise_launch<Source, gb_by_division<gb_e4m3_codes>, group / 64, Threads, Resident>};
}

enum gb_status launch_library(const gb_quantise_job &job, void *stream, struct gb_error *error)
{
    struct gb_arguments a = {};
    a.size = sizeof a;
    a.quantise = &job.q;
    a.values = job.values;
    a.codes = job.codes;
    a.scales = job.scales;
    a.stream = stream;
    return library_kernels[job.q.input_columns != job.q.columns]->run(&a, error);
}

const entry entries[] = {
    tile<by_table, 768, 1>("by table, 1 x 768"),
    tile<by_table, 640, 1>("by table, 1 x 640"),
    tile<by_table, 512, 1>("by table, 1 x 512"),
    tile<by_table, 384, 2>("by table, 2 x 384"),
    tile<directly, 256, 2>("in double, 2 x 256"),
    {"library", launch_library},
    {"one thread an element", launch_one_thread_an_element<exact_silu>},
    {"one thread an element, expf", launch_one_thread_an_element<expf_silu>},
};

void check(enum gb_status status, const struct gb_error &error)
{
    require_at(status == GB_OK, "launch", error.message, __LINE__);
}

/* Median microseconds of one of `launches` calls. */
double measure(const std::function<void(uint32_t n)> &launch)
{
    cudaEvent_t start, stop;
    std::vector<double> us;
    require(cudaEventCreate(&start));
    require(cudaEventCreate(&stop));
    for (uint32_t i = 0; i < repeats + 3; i++) {
        float ms = 0;
        require(cudaEventRecord(start));
        for (uint32_t n = 0; n < launches; n++)
            launch(n);
        require(cudaEventRecord(stop));
        require(cudaEventSynchronize(stop));
        require(cudaEventElapsedTime(&ms, start, stop));
        if (i >= 3)
            us.push_back((double)ms * 1e3 / launches);
    }
    require(cudaEventDestroy(start));
    require(cudaEventDestroy(stop));
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
}

struct buffers {
    size_t in_bytes, codes, scale_bytes;
    uint32_t copies;
    std::vector<uint16_t> values;
    std::vector<unsigned char> expected; /* codes, then scales, by the CPU reference */
    unsigned char *in, *out;             /* on the device, [copies, in_bytes] and [copies, codes + scale_bytes] */
};

buffers make(const struct gb_quantisation &q)
{
    buffers b = {};
    b.in_bytes = 4ull * q.rows * q.columns;
    b.codes = (size_t)q.rows * q.columns;
    b.scale_bytes = b.codes / group * sizeof(float);
    b.copies = (uint32_t)std::max<size_t>(2, rotated / b.in_bytes + 1);
    b.values.resize(b.in_bytes / 2);
    b.expected.resize(b.codes + b.scale_bytes);
    uint64_t state = 1;
    for (size_t i = 0; i < b.values.size(); i++) {
        double sum = -6; /* gaussian: gates of standard deviation 2, ups of 1 */
        for (int k = 0; k < 12; k++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            sum += (double)(state >> 40) / (1 << 24);
        }
        const bool gate = i % (2 * q.columns) < q.columns;
        b.values[i] = gb_bf16_encode((float)sum * (gate ? 2.0f : 1.0f)).bits;
    }
    struct gb_arguments a = {};
    struct gb_error error;
    a.size = sizeof a;
    a.quantise = &q;
    a.values = b.values.data();
    a.codes = b.expected.data();
    a.scales = b.expected.data() + b.codes;
    check(gb_reference_silu_mul_quantise(&a, &error), error);
    require(cudaMalloc(&b.in, b.copies * b.in_bytes));
    require(cudaMalloc(&b.out, b.copies * b.in_bytes)); /* as large as the inputs, for the copy */
    for (uint32_t c = 0; c < b.copies; c++)
        require(cudaMemcpy(b.in + c * b.in_bytes, b.values.data(), b.in_bytes, cudaMemcpyHostToDevice));
    return b;
}

gb_quantise_job job_of(const struct gb_quantisation &q, const buffers &b, uint32_t n)
{
    unsigned char *out = b.out + n % b.copies * (b.codes + b.scale_bytes);
    return {q, b.in + n % b.copies * b.in_bytes, out, out + b.codes};
}

/* Bytes that differ from the reference, of the codes and scales that a launch writes over poison. */
uint64_t differing(const entry &e, const struct gb_quantisation &q, const buffers &b)
{
    std::vector<unsigned char> found(b.expected.size());
    struct gb_error error;
    require(cudaMemset(b.out, 0xA5, found.size()));
    check(e.launch(job_of(q, b, 0), NULL, &error), error);
    require(cudaMemcpy(found.data(), b.out, found.size(), cudaMemcpyDeviceToHost));
    uint64_t count = 0;
    for (size_t i = 0; i < found.size(); i++)
        count += found[i] != b.expected[i];
    return count;
}

/* GB/s of the faster of two ways to copy as many bytes as the operator reads and writes together. */
double copy_speed(const buffers &b, size_t bytes, int multiprocessors)
{
    const size_t half = std::min(bytes / 2, b.in_bytes) / 16 * 16;
    struct gb_error error;
    const double by_kernel = measure([&](uint32_t n) {
        const size_t at = n % b.copies * b.in_bytes;
        check(gb_cuda_launch("copy", copy_kernel, dim3((unsigned)multiprocessors * 4), 512, 0, NULL, &error,
                             (const uint4 *)(b.in + at), (uint4 *)(b.out + at), half / 16),
              error);
    });
    const double by_runtime = measure([&](uint32_t n) {
        const size_t at = n % b.copies * b.in_bytes;
        require(cudaMemcpyAsync(b.out + at, b.in + at, half, cudaMemcpyDeviceToDevice));
    });
    return 2.0 * (double)half / std::min(by_kernel, by_runtime) * 1e-3;
}

struct gb_quantisation question(const char *recipe, bool gated, uint32_t rows, uint32_t columns)
{
    struct gb_quantisation q = {};
    struct gb_error error;
    q.size = sizeof q;
    q.input = GB_BF16;
    q.rows = rows;
    q.columns = columns;
    q.input_columns = gated ? 2 * columns : columns;
    q.silu = GB_SILU_EXACT;
    q.activated = q.product = GB_FP32;
    q.quantiser = gb_recipe_find(recipe)->quantiser;
    q.bound = INFINITY;
    check(gb_quantiser_global(&q.quantiser, 40.0f, &q.global_scale, &error), error);
    return q;
}

/* Both operators of the library by several recipes, on the inputs of b, beside the copy of its shape. */
void bench_recipes(const buffers &b, uint32_t rows, uint32_t columns, double ceiling)
{
    static const char *const recipes[] = {"fp8g128.vllm-fused/1", "fp8fnuzg128.vllm-fused/1", "int8g128.vllm-fused/1",
                                          "fp8g64.vllm-fused/1",  "fp8g128.deepgemm/1",       "nvfp4.modelopt/1",
                                          "mxfp8.rceil/1"};
    printf(",\n      \"recipes\": [");
    for (const char *recipe : recipes)
        for (bool gated : {false, true}) {
            const struct gb_quantisation q = question(recipe, gated, rows, columns);
            struct gb_error error;
            size_t codes, scales;
            check(gb_quantiser_bytes(&q.quantiser, rows, columns, &codes, &scales, &error), error);
            const double bytes = 2.0 * rows * q.input_columns + (double)codes + (double)scales;
            const double us = measure([&](uint32_t n) { check(launch_library(job_of(q, b, n), NULL, &error), error); });
            printf(
                "%s\n      {\"operator\": \"%s\", \"recipe\": \"%s\", \"us\": %.2f, \"GB_s\": %.1f, \"of_copy\": %.3f}",
                recipe == recipes[0] && !gated ? "" : ",", gated ? "silu_mul_quantise" : "quantise", recipe, us,
                bytes / us * 1e-3, bytes / us * 1e-3 / ceiling);
        }
    printf("]");
}

bool bench(uint32_t rows, uint32_t columns, int multiprocessors, bool first)
{
    const struct gb_quantisation q = question("fp8g128.vllm-fused/1", true, rows, columns);
    buffers b = make(q);
    const size_t bytes = b.in_bytes + b.codes + b.scale_bytes;
    const double ceiling = copy_speed(b, bytes, multiprocessors);
    printf("%s\n    {\"rows\": %u, \"columns\": %u, \"bytes\": %zu, \"copy_GB_s\": %.1f, \"kernels\": [",
           first ? "" : ",", rows, columns, bytes, ceiling);
    bool equal = true;
    for (const entry &e : entries) {
        struct gb_error error;
        const uint64_t wrong = differing(e, q, b);
        const double us = measure([&](uint32_t n) { check(e.launch(job_of(q, b, n), NULL, &error), error); });
        const double speed = (double)bytes / us * 1e-3;
        printf(
            "%s\n      {\"kernel\": \"%s\", \"us\": %.2f, \"GB_s\": %.1f, \"of_copy\": %.3f, \"differing_bytes\": %llu}",
            &e == entries ? "" : ",", e.name, us, speed, speed / ceiling, (unsigned long long)wrong);
        fflush(stdout);
        equal = equal && (wrong == 0 || strstr(e.name, "expf"));
    }
    printf("]");
    if (rows == 4096 && columns == 7168)
        bench_recipes(b, rows, columns, ceiling);
    printf("}");
    require(cudaFree(b.in));
    require(cudaFree(b.out));
    return equal;
}

} // namespace

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const auto kernels = library ? (gb_kernels_function)dlsym(library, GB_KERNELS_SYMBOL) : NULL;
    if (!kernels) {
        fprintf(stderr, "usage: gb_bench_silu_mul_quantise LIBRARY%s%s\n", argc == 2 ? ": " : "",
                argc == 2 ? dlerror() : "");
        return 2;
    }
    for (uint32_t k = 0; k < kernels()->count; k++)
        if (const gb_kernel *kernel = &kernels()->kernels[k];
            kernel->operation == GB_QUANTISE || kernel->operation == GB_SILU_MUL_QUANTISE)
            library_kernels[kernel->operation == GB_SILU_MUL_QUANTISE] = kernel;
    require_at(library_kernels[0] && library_kernels[1], argv[1], "lacks the kernels", __LINE__);
    struct gb_error error;
    if (gb_cuda_present(&error) != GB_OK)
        return skip(error.message);
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    static const uint32_t shapes[][2] = {{64, 7168},   {512, 7168},   {4096, 2048}, {4096, 7168},
                                         {8192, 7168}, {4096, 14336}, {16384, 7168}};
    printf("{");
    print_provenance(stdout, "gaugeblock.bench-silu-mul-quantise/1", "gb_bench_silu_mul_quantise");
    printf(", \"device\": \"%s\",\n  \"shapes\": [", properties.name);
    bool equal = true, first = true;
    for (const auto &shape : shapes) {
        equal &= bench(shape[0], shape[1], properties.multiProcessorCount, first);
        first = false;
    }
    printf("\n]}\n");
    return equal ? 0 : 1;
}
