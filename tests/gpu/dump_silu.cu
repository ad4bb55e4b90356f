/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What x * (1 / (1 + expf(-x))) is on this GPU, with CUDA's expf, whose ex2.approx no CPU can compute: for every bf16
 * and every fp16 x, beside the form GB_SILU_RECIPROCAL, which has a correctly rounded exp. Writes the bits as
 * little-endian uint32 [2, 65536] (bf16 first) to FILE, if one is named, and prints how far the forms are apart.
 *
 * usage: gb_dump_silu [FILE]
 */
#include <cmath>
#include <cstring>
#include <vector>

#include "gpu/inputs.cuh"
#include "gpu/device.cuh"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/support/provenance.h"

namespace
{

__global__ void evaluate(float *results /* [2, 65536] */)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = i < 65536 ? gb_input_bf16::low(i) : gb_input_fp16::low(i & 0xFFFFu);
    results[i] = __fmul_rn(x, __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x))));
}

int64_t position(float value) /* neighbouring numbers have neighbouring positions */
{
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits < 0 ? -(int64_t)(bits & 0x7FFFFFFF) : bits;
}

} // namespace

int main(int argc, char **argv)
{
    struct gb_error error;
    if (gb_cuda_present(&error) != GB_OK)
        return skip(error.message);
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    std::vector<float> found(2 * 65536);
    float *on_device = NULL;
    require(cudaMalloc(&on_device, found.size() * sizeof(float)));
    require(gb_cuda_launch("evaluate", evaluate, dim3(512), 256, 0, NULL, NULL, on_device));
    require(cudaMemcpy(found.data(), on_device, found.size() * sizeof(float), cudaMemcpyDeviceToHost));
    require(cudaFree(on_device));
    printf("{");
    print_provenance(stdout, "gaugeblock.dump-silu/1", "gb_dump_silu");
    printf(", \"device\": \"%s\", \"formats\": [", properties.name);
    for (uint32_t f = 0; f < 2; f++) {
        uint32_t differing = 0, nan = 0, by_more = 0;
        int64_t most = 0;
        for (uint32_t i = 0; i < 65536; i++) {
            const float x = f ? gb_fp16_decode((uint16_t)i) : gb_bf16_decode({(uint16_t)i});
            const float ours = gb_silu_as(GB_SILU_RECIPROCAL, x), theirs = found[f * 65536 + i];
            nan += std::isnan(ours) != std::isnan(theirs);
            if (std::isnan(ours) || std::isnan(theirs) || memcmp(&ours, &theirs, sizeof ours) == 0)
                continue;
            const int64_t ulps = llabs(position(ours) - position(theirs));
            differing++;
            by_more += ulps > 1;
            most = ulps > most ? ulps : most;
        }
        printf(
            "%s\n  {\"input\": \"%s\", \"gates\": 65536, \"differing\": %u, \"by_more_than_1_ulp\": %u, \"most_ulp\": "
            "%lld, \"nan_differing\": %u}",
            f ? "," : "", f ? "fp16" : "bf16", differing, by_more, (long long)most, nan);
    }
    printf("]}\n");
    if (argc > 1) {
        FILE *file = fopen(argv[1], "wb");
        require_at(file && fwrite(found.data(), sizeof(float), found.size(), file) == found.size() && !fclose(file),
                   argv[1], "cannot be written", __LINE__);
    }
    return 0;
}
