/* SPDX-License-Identifier: Apache-2.0 */
/* The host path of CUDA's headers against the rows of quant/recipes/conversions.c that name them: every bf16 value and
 * floats by a stride. */
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp6.h>
#include <cuda_fp8.h>

#include "quant/quant.h"

template <class To, class From> static To bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "bits of another size");
    To to;
    std::memcpy(&to, &value, sizeof to);
    return to;
}

typedef unsigned encoder(float value);

static const struct {
    const char *name;
    encoder *encode;
} rows[] = {
    {"e2m1.cuda", [](float x) -> unsigned { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest); }},
    {"e2m1.cuda-rz", [](float x) -> unsigned { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundZero); }},
    {"e3m2.cuda", [](float x) -> unsigned { return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundNearest); }},
    {"e3m2.cuda-rz", [](float x) -> unsigned { return __nv_cvt_float_to_fp6(x, __NV_E3M2, cudaRoundZero); }},
    {"e2m3.cuda", [](float x) -> unsigned { return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundNearest); }},
    {"e2m3.cuda-rz", [](float x) -> unsigned { return __nv_cvt_float_to_fp6(x, __NV_E2M3, cudaRoundZero); }},
    {"e4m3.cuda-satfinite", [](float x) -> unsigned { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }},
    {"e4m3.cuda-nosat", [](float x) -> unsigned { return __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3); }},
    {"e4m3.cuda-double-satfinite",
     [](float x) -> unsigned { return __nv_cvt_double_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }},
    {"e5m2.cuda-satfinite", [](float x) -> unsigned { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2); }},
    {"e5m2.cuda-nosat", [](float x) -> unsigned { return __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2); }},
    {"e8m0.cuda-rp-satfinite",
     [](float x) -> unsigned { return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf); }},
    {"e8m0.cuda-rp-nosat", [](float x) -> unsigned { return __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundPosInf); }},
    {"e8m0.cuda-rz-satfinite",
     [](float x) -> unsigned { return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundZero); }},
    {"e8m0.cuda-rz-nosat", [](float x) -> unsigned { return __nv_cvt_float_to_e8m0(x, __NV_NOSAT, cudaRoundZero); }},
    {"bf16.cuda", [](float x) -> unsigned { return bits<uint16_t>(__float2bfloat16_rn(x)); }},
    {"fp16.cuda", [](float x) -> unsigned { return bits<uint16_t>(__float2half_rn(x)); }},
};

int main()
{
    uint64_t differences = 0, compared = 0;
    for (const auto &row : rows) {
        const gb_conversion *conversion = gb_conversion_find(row.name);
        if (!conversion) {
            std::printf("%s: no such conversion\n", row.name);
            return 1;
        }
        const uint64_t strided = ((uint64_t)1 << 32) / 1021;
        for (uint64_t i = 0; i < 65536 + strided; i++, compared++) {
            uint32_t pattern = (uint32_t)(i < 65536 ? i << 16 : (i - 65536) * 1021);
            float value = bits<float>(pattern);
            unsigned theirs = row.encode(value), ours = gb_convert(conversion, value);
            if (theirs != ours && differences++ < 20)
                std::printf("%s(%08X): CUDA %02X, ours %02X\n", row.name, pattern, theirs, ours);
        }
    }
    std::printf("%zu conversions, %llu values, %llu differ\n", sizeof rows / sizeof *rows, (unsigned long long)compared,
                (unsigned long long)differences);
    return differences != 0;
}
