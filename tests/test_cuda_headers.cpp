/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our codecs against the host paths of CUDA's own headers, a second author's reading of the same formats. Every code is
 * decoded. Without an argument the floats encoded are all 2^19 upper parts with six lower ones, among which is every
 * tie of every format with both its neighbours; `all` encodes all 2^32 and prints one JSON document.
 *
 * Codes that differ are counted and must be exactly those that docs/numerics.md#cuda-headers explains.
 *
 *     test_cuda_headers [all]
 */
#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include "quant/quant.h"
#include "tests/support/provenance.h"

namespace
{

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

bool is_nan(uint32_t bits)
{
    return (bits & 0x7FFFFFFF) > 0x7F800000;
}

/* Their binary16 to binary32 is the same header's. */
uint32_t half_encoding(__half_raw half)
{
    return encoding(__half2float(__half(half)));
}

struct e2m1 {
    static constexpr const char *name = "e2m1";
    static constexpr uint32_t codes = 16;
    static uint32_t encode(float x)
    {
        return gb_e2m1_encode(x).bits;
    }
    static uint32_t cuda_encode(float x)
    {
        return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest);
    }
    static uint32_t decode(uint32_t code)
    {
        return encoding(gb_e2m1_decode(gb_e2m1{(uint8_t)code}));
    }
    /* In either half of a byte, as cvt.rn.f16x2.e2m1x2 takes them on Blackwell; the code beside it is another one. */
    static uint32_t cuda_decode(uint32_t code)
    {
        const auto pair = [](uint32_t byte) {
            return __nv_cvt_fp4x2_to_halfraw2((__nv_fp4x2_storage_t)byte, __NV_E2M1);
        };
        const __half_raw low = {pair(code | (code ^ 15) << 4).x}, high = {pair(code << 4 | (code ^ 15)).y};
        return low.x == high.x ? half_encoding(low) : UINT32_MAX;
    }
    static uint32_t nan(uint32_t)
    {
        return 7;
    }
    static uint32_t cuda_nan(uint32_t)
    {
        return 7;
    }
};

struct e4m3 {
    static constexpr const char *name = "e4m3";
    static constexpr uint32_t codes = 256;
    static uint32_t encode(float x)
    {
        return gb_e4m3_encode(x).bits;
    }
    static uint32_t cuda_encode(float x)
    {
        return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    }
    static uint32_t decode(uint32_t code)
    {
        return encoding(gb_e4m3_decode(gb_e4m3{(uint8_t)code}));
    }
    static uint32_t cuda_decode(uint32_t code)
    {
        return half_encoding(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E4M3));
    }
    static uint32_t nan(uint32_t)
    {
        return 0x7F;
    }
    static uint32_t cuda_nan(uint32_t)
    {
        return 0x7F;
    }
};

struct e5m2 {
    static constexpr const char *name = "e5m2";
    static constexpr uint32_t codes = 256;
    static uint32_t encode(float x)
    {
        return gb_e5m2_encode(x).bits;
    }
    static uint32_t cuda_encode(float x)
    {
        return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    }
    static uint32_t decode(uint32_t code)
    {
        return encoding(gb_e5m2_decode(gb_e5m2{(uint8_t)code}));
    }
    static uint32_t cuda_decode(uint32_t code)
    {
        return half_encoding(__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)code, __NV_E5M2));
    }
    static uint32_t nan(uint32_t)
    {
        return 0x7F;
    }
    static uint32_t cuda_nan(uint32_t)
    {
        return 0x7F;
    }
};

struct e8m0 {
    static constexpr const char *name = "e8m0";
    static constexpr uint32_t codes = 256;
    static uint32_t encode(float x)
    {
        return gb_e8m0_encode(x).bits;
    }
    static uint32_t cuda_encode(float x)
    {
        return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf);
    }
    static uint32_t decode(uint32_t code)
    {
        return encoding(gb_e8m0_decode(gb_e8m0{(uint8_t)code}));
    }
    static uint32_t cuda_decode(uint32_t code)
    {
        return encoding(__bfloat162float(__nv_bfloat16(__nv_cvt_e8m0_to_bf16raw((__nv_fp8_storage_t)code))));
    }
    static uint32_t nan(uint32_t)
    {
        return 0xFF;
    }
    static uint32_t cuda_nan(uint32_t)
    {
        return 0xFF;
    }
};

struct bf16 {
    static constexpr const char *name = "bf16";
    static constexpr uint32_t codes = 65536;
    static uint32_t encode(float x)
    {
        return gb_bf16_encode(x).bits;
    }
    static uint32_t cuda_encode(float x)
    {
        return __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
    }
    static uint32_t decode(uint32_t code)
    {
        return encoding(gb_bf16_decode(gb_bf16{(uint16_t)code}));
    }
    static uint32_t cuda_decode(uint32_t code)
    {
        __nv_bfloat16_raw raw;
        raw.x = (unsigned short)code;
        return encoding(__bfloat162float(__nv_bfloat16(raw)));
    }
    static uint32_t nan(uint32_t bits)
    {
        return 0x7FC0 | (bits >> 31 << 15);
    }
    static uint32_t cuda_nan(uint32_t)
    {
        return 0x7FFF;
    }
};

struct fp16 {
    static constexpr const char *name = "fp16";
    static constexpr uint32_t codes = 65536;
    static uint32_t encode(float x)
    {
        return gb_fp16_encode(x);
    }
    static uint32_t cuda_encode(float x)
    {
        return __half_raw(__float2half_rn(x)).x;
    }
    static uint32_t decode(uint32_t code)
    {
        return encoding(gb_fp16_decode((uint16_t)code));
    }
    static uint32_t cuda_decode(uint32_t code)
    {
        __half_raw raw;
        raw.x = (unsigned short)code;
        return half_encoding(raw);
    }
    static uint32_t nan(uint32_t bits)
    {
        return 0x7E00 | (bits >> 31 << 15);
    }
    static uint32_t cuda_nan(uint32_t)
    {
        return 0x7FFF;
    }
};

/* What was compared. A difference is explained, or it is wrong. */
struct tally {
    uint64_t inputs, nans, explained, wrong;
};

void wrong(struct tally *tally, const char *format, const char *what, uint32_t input, uint32_t ours, uint32_t cuda)
{
    if (tally->wrong++ < 10)
        fprintf(stderr, "%s %s(%08" PRIX32 "): ours %08" PRIX32 ", CUDA's %08" PRIX32 "\n", format, what, input, ours,
                cuda);
}

/* A NaN has the two codes that the text gives it; everything else has one. */
template <class format> void compare_encoding(uint32_t bits, struct tally *tally)
{
    uint32_t ours = format::encode(number(bits)), cuda = format::cuda_encode(number(bits));
    bool nan = is_nan(bits),
         expected = nan ? ours == format::nan(bits) && cuda == format::cuda_nan(bits) : ours == cuda;
    tally->inputs++;
    tally->nans += nan;
    tally->explained += nan && ours != cuda;
    if (!expected)
        wrong(tally, format::name, "encode", bits, ours, cuda);
}

/* NaN is a class. */
template <class format> void compare_decoding(uint32_t code, struct tally *tally)
{
    uint32_t ours = format::decode(code), cuda = format::cuda_decode(code);
    bool nan = is_nan(ours);
    tally->inputs++;
    tally->nans += nan;
    tally->explained += nan && ours != cuda;
    if (nan ? !is_nan(cuda) : ours != cuda)
        wrong(tally, format::name, "decode", code, ours, cuda);
}

/* part 0 .. 255: all floats whose upper byte it is, or the subset of them. */
template <class format> void compare_part(uint32_t part, bool all, struct tally *tally)
{
    const uint32_t tails[] = {0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF};
    for (uint32_t i = 0; all && i < 1u << 24; i++)
        compare_encoding<format>(part << 24 | i, tally);
    for (uint32_t i = 0; !all && i < 1u << 11; i++)
        for (uint32_t tail : tails)
            compare_encoding<format>(part << 24 | i << 13 | tail, tally);
}

/* Whether there is no difference but those that docs/numerics.md#cuda-headers counts: all NaNs encoded or none, and so
 * many NaN codes decoded with another pattern. */
template <class format> bool compare(bool all, bool every_nan, uint64_t nan_codes, const char *separator)
{
    struct tally encoded = {}, decoded = {};
#pragma omp parallel for schedule(dynamic)
    for (uint32_t part = 0; part < 256; part++) {
        struct tally tally = {};
        compare_part<format>(part, all, &tally);
#pragma omp critical
        {
            encoded.inputs += tally.inputs;
            encoded.nans += tally.nans;
            encoded.explained += tally.explained;
            encoded.wrong += tally.wrong;
        }
    }
    for (uint32_t code = 0; code < format::codes; code++)
        compare_decoding<format>(code, &decoded);
    printf("%s    {\"format\": \"%s\", \"floats\": %" PRIu64 ", \"nans\": %" PRIu64
           ", \"nans_encoded_otherwise\": %" PRIu64 ", \"unexplained\": %" PRIu64 ",\n     \"codes\": %" PRIu64
           ", \"nan_codes\": %" PRIu64 ", \"nans_decoded_otherwise\": %" PRIu64 ", \"unexplained_codes\": %" PRIu64 "}",
           separator, format::name, encoded.inputs, encoded.nans, encoded.explained, encoded.wrong, decoded.inputs,
           decoded.nans, decoded.explained, decoded.wrong);
    fflush(stdout);
    return encoded.wrong == 0 && encoded.inputs == (all ? 1ull << 32 : 6ull << 19) &&
           encoded.nans == (all ? 2 * ((1ull << 23) - 1) : 2 * (6ull * (1 << 10) - 1)) &&
           encoded.explained == (every_nan ? encoded.nans : 0) && decoded.wrong == 0 && decoded.explained == nan_codes;
}

} // namespace

int main(int argc, char **argv)
{
    bool all = argc == 2 && !strcmp(argv[1], "all");
    if (argc > 1 && !all) {
        fprintf(stderr, "usage: test_cuda_headers [all]\n");
        return 2;
    }
    printf("{");
    print_provenance(stdout, "gaugeblock.cuda-headers/1", all ? "test_cuda_headers all" : "test_cuda_headers");
    printf(", \"cuda\": \"%d.%d\", \"results\": [\n", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    bool good = compare<e2m1>(all, false, 0, "");
    good &= compare<e4m3>(all, false, 2, ",\n");
    good &= compare<e5m2>(all, false, 6, ",\n");
    good &= compare<e8m0>(all, false, 1, ",\n");
    good &= compare<bf16>(all, true, 0, ",\n");
    good &= compare<fp16>(all, true, 2046, ",\n");
    printf("\n]}\n");
    return good ? 0 : 1;
}
