/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the quantising kernels are made of, against the CPU reference: every form of silu on all 65,536 bf16 gates, by
 * the table and directly, and on all fp16 gates; and the quotient in five operations against the division, on random
 * pairs. Prints one JSON document; exit 1 on any difference.
 *
 * usage: test_quantise_functions [PAIRS]
 */
#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/by_division.cuh"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/support/provenance.h"

namespace
{

constexpr unsigned threads = 256;

__global__ void silu_kernel(enum gb_silu_form form, float *by_table, float *direct /* [65536] each */, float *fp16)
{
    extern __shared__ float table[];
    gb_silu_table_fill(form, table);
    for (uint32_t i = blockIdx.x * threads + threadIdx.x; i < 65536; i += gridDim.x * threads) {
        float low, high;
        uint32_t outside = 0;
        const uint32_t mate = i * 40503u & 0xFFFFu; /* another gate in the word's upper half */
        gb_silu_look_up(table, mate << 16 | i, &low, &high, &outside);
        by_table[i] = outside ? gb_silu_any(form, table, gb_bf16_low(i)) : low;
        direct[i] = gb_silu_direct(form, gb_bf16_low(i));
        fp16[i] = gb_silu_direct(form, gb_input_fp16::low(i));
    }
}

bool same(float a, float b)
{
    return (std::isnan(a) && std::isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

uint64_t test_silu(enum gb_silu_form form)
{
    std::vector<float> found(3 * 65536);
    float *on_device = NULL;
    require(cudaMalloc(&on_device, found.size() * sizeof(float)));
    require(gb_cuda_launch("silu", silu_kernel, dim3(16), threads, sizeof(float) * gb_silu_entries, NULL, NULL, form,
                           on_device, on_device + 65536, on_device + 2 * 65536));
    require(cudaMemcpy(found.data(), on_device, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
    require(cudaFree(on_device));
    uint64_t wrong = 0;
    for (uint32_t path = 0; path < 3; path++)
        for (uint32_t i = 0; i < 65536; i++) {
            const float x = path == 2 ? gb_fp16_decode((uint16_t)i) : gb_bf16_decode({(uint16_t)i});
            const float expected = gb_silu_as(form, x), actual = found[path * 65536 + i];
            if (!same(expected, actual) && wrong++ < 5)
                fprintf(stderr, "MISMATCH silu form %d, %s, gate %04X = %a: expected %a, got %a\n", (int)form,
                        path == 0   ? "bf16 by table"
                        : path == 1 ? "bf16"
                                    : "fp16",
                        i, (double)x, (double)expected, (double)actual);
        }
    return wrong;
}

__device__ uint32_t mixed(uint64_t i)
{
    i = (i ^ i >> 30) * 0xBF58476D1CE4E5B9;
    i = (i ^ i >> 27) * 0x94D049BB133111EB;
    return (uint32_t)((i ^ i >> 31) >> 16);
}

/* x of any exponent up to 2^59, s within 2^-60 .. 2^60. Where the residual may underflow, or the quotient, the quotient
 * is too small to be seen and may differ, but not in its sign. */
__global__ void quotient_kernel(uint64_t first, unsigned long long *wrong, uint32_t *where)
{
    const uint64_t i = first + (uint64_t)blockIdx.x * threads + threadIdx.x;
    const uint32_t a = mixed(2 * i + 1), b = mixed(2 * i + 2);
    const float x = __uint_as_float((a & 0x807FFFFFu) | (a >> 8 & 0xFFu) % 187u << 23);
    const float s = __uint_as_float((b & 0x7FFFFFu) | (68u + (b >> 23) % 119u) << 23);
    const float expected = __fdiv_rn(x, s), actual = gb_quotient(x, s, __frcp_rn(s));
    const bool tiny = fabsf(expected) < 0x1p-20f && fabsf(actual) < 0x1p-20f && signbit(expected) == signbit(actual);
    if (__float_as_uint(expected) == __float_as_uint(actual) ||
        (tiny && (fabsf(x) < 0x1p-100f || fabsf(expected) < 0x1p-126f)))
        return;
    if (atomicAdd(wrong, 1ull) == 0) {
        where[0] = __float_as_uint(x);
        where[1] = __float_as_uint(s);
    }
}

uint64_t test_quotient(uint64_t pairs)
{
    unsigned long long *wrong = NULL, count = 0;
    uint32_t *where = NULL, first[2] = {0, 0};
    const uint64_t batch = pairs < 1ull << 30 ? pairs : 1ull << 30;
    require(cudaMalloc(&wrong, sizeof *wrong));
    require(cudaMalloc(&where, sizeof first));
    require(cudaMemset(wrong, 0, sizeof *wrong));
    for (uint64_t done = 0; done < pairs; done += batch)
        require(gb_cuda_launch("quotient", quotient_kernel, dim3((unsigned)(batch / threads)), threads, 0, NULL, NULL,
                               done, wrong, where));
    require(cudaMemcpy(&count, wrong, sizeof count, cudaMemcpyDeviceToHost));
    require(cudaMemcpy(first, where, sizeof first, cudaMemcpyDeviceToHost));
    require(cudaFree(wrong));
    require(cudaFree(where));
    if (count)
        fprintf(stderr, "MISMATCH quotient: %llu of %llu pairs; first %08X / %08X\n", count, (unsigned long long)pairs,
                first[0], first[1]);
    return count;
}

} // namespace

int main(int argc, char **argv)
{
    const uint64_t pairs = argc > 1 ? strtoull(argv[1], NULL, 10) : 1ull << 34;
    char command[64];
    struct gb_error error;
    if (pairs < 1u << 20) {
        fprintf(stderr, "test_quantise_functions: %s pairs are too few: give 2^20 or more\n", argv[1]);
        return 2;
    }
    if (gb_cuda_present(&error) != GB_OK)
        return skip(error.message);
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    uint64_t silu_wrong = 0;
    for (enum gb_silu_form form : {GB_SILU_EXACT, GB_SILU_DIVIDE, GB_SILU_RECIPROCAL})
        silu_wrong += test_silu(form);
    const uint64_t quotient_wrong = test_quotient(pairs);
    snprintf(command, sizeof command, "test_quantise_functions %llu", (unsigned long long)pairs);
    printf("{");
    print_provenance(stdout, "gaugeblock.quantise-functions/1", command);
    printf(", \"device\": \"%s\",\n  \"silu\": {\"forms\": 3, \"paths\": 3, \"gates\": 65536, \"differences\": %llu},\n"
           "  \"quotient\": {\"pairs\": %llu, \"differences\": %llu}}\n",
           properties.name, (unsigned long long)silu_wrong, (unsigned long long)pairs,
           (unsigned long long)quotient_wrong);
    return silu_wrong + quotient_wrong ? 1 : 0;
}
