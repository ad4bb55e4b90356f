/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dot products of gpu/naive.cu, whose functions are compiled for the CPU here, against the reference, bit for bit:
 * every weight format, rows with and without short chunks and blocks, codes and scales of any bits. Needs no GPU.
 */
#include <cstdio>
#include <vector>

#include "gpu/naive.cu"
#include "quant/quant.h"
#include "tests/support/fma32.h"

namespace
{

uint64_t state = 1;

uint32_t random_bits()
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

float random_float(float size)
{
    return size * ((float)random_bits() * 0x1p-31f - 1.0f);
}

struct matrix {
    std::vector<uint8_t> codes, scales;
    std::vector<float> fp32_scales, globals;
    struct gb_weights weights;

    matrix(enum gb_format format, uint32_t experts, uint32_t rows, uint32_t columns)
    {
        size_t bytes[3];
        weights = {format, experts, rows, columns, 2, NULL, NULL, NULL};
        gb_weights_bytes(&weights, &bytes[0], &bytes[1], &bytes[2], NULL);
        for (size_t i = 0; i < bytes[0]; i++)
            codes.push_back((uint8_t)(format == GB_BF16 && i % 2 ? 0x3E ^ (random_bits() & 0x81) : random_bits()));
        for (uint8_t &code : codes)
            if ((format == GB_MXFP8 || format == GB_FP8_BLOCK) && (code & 0x7F) == 0x7F && random_bits() % 64)
                code ^= 1; /* few rows are NaN */
        for (size_t i = 0; i < bytes[1]; i++)
            scales.push_back((uint8_t)(format == GB_NVFP4 ? random_bits() % 0x7F : 90 + random_bits() % 70));
        for (size_t i = 0; i < bytes[1] / 4; i++)
            fp32_scales.push_back(random_float(0.01f) + 0.02f);
        for (size_t i = 0; i < bytes[2] / 4; i++)
            globals.push_back(random_float(0.1f) + 0.2f);
        weights.codes = codes.data();
        if (format == GB_FP8_BLOCK)
            weights.scales = fp32_scales.data();
        else if (format != GB_BF16)
            weights.scales = scales.data();
        if (format == GB_NVFP4)
            weights.global_scales = globals.data();
    }
};

/* The warp's five steps on its 32 lanes. */
template <enum gb_format Format>
float warp_dot(const struct gb_weights &w, uint32_t expert, uint32_t row, const gb_bf16 *x)
{
    float acc[32], next[32];
    for (uint32_t lane = 0; lane < 32; lane++)
        acc[lane] = accumulate<Format>(w, expert, row, x, lane);
    for (uint32_t m = 16; m > 0; m /= 2) {
        for (uint32_t lane = 0; lane < 32; lane++)
            next[lane] = acc[lane] + acc[lane ^ m];
        memcpy(acc, next, sizeof acc);
    }
    return acc[0] * (w.global_scales ? w.global_scales[expert * 2 + row / (w.rows / 2)] : 1.0f);
}

template <enum gb_format Format> unsigned compare(const char *name)
{
    static const uint32_t widths[] = {32, 96, 160, 512, 1056, 2048, 7168};
    unsigned wrong = 0, finite = 0, all = 0;
    for (uint32_t columns : widths) {
        const matrix m(Format, 2, 258, columns);
        std::vector<gb_bf16> x;
        for (uint32_t i = 0; i < columns; i++)
            x.push_back(gb_bf16_encode(random_float(2.0f)));
        for (uint32_t row = 0; row < m.weights.rows; row++, all++) {
            const float got = warp_dot<Format>(m.weights, row % 2, row, x.data());
            const float expected = fma32_dot(&m.weights, row % 2, row, x.data());
            finite += std::isfinite(expected) && expected != 0;
            wrong += memcmp(&got, &expected, sizeof got) != 0 && !(std::isnan(got) && std::isnan(expected));
        }
    }
    printf("%-6s %u dot products, %u finite and not zero, %u differ\n", name, all, finite, wrong);
    return wrong || finite * 2 < all;
}

} // namespace

int main()
{
    const unsigned bad = compare<GB_NVFP4>("nvfp4") + compare<GB_MXFP8>("mxfp8") + compare<GB_MXFP4>("mxfp4") +
                         compare<GB_FP8_BLOCK>("fp8") + compare<GB_BF16>("bf16");
    return bad != 0;
}
