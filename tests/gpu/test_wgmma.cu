/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wgmma m64n8k32 with E4M3 operands and FP32 accumulators against docs/numerics.md#wgmma-fp8: every output of many
 * instructions against a model in integers, for the number of fraction bits of the text and for its neighbours, which
 * must not fit.
 *
 * usage: test_wgmma [INSTRUCTIONS]    of every kind of data; 20000 by default. JSON on stdout
 */
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/gpu/gpu.h"

namespace
{

constexpr int rows = 64, columns = 8, depth = 32, outputs = rows * columns;
constexpr int fraction_bits = 13; /* of the text */

/* One warpgroup an instruction: a [64, 32] and b [8, 32] E4M3, d [64, 8] = a b^T + c. */
__global__ void multiply(const uint8_t *a, const uint8_t *b, const float *c, float *d)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    __shared__ alignas(128)
        uint8_t shared[columns * depth]; /* two matrices of 8 rows of 16 bytes, one after the other */
    a += (size_t)blockIdx.x * rows * depth;
    b += (size_t)blockIdx.x * columns * depth;
    c += (size_t)blockIdx.x * outputs;
    d += (size_t)blockIdx.x * outputs;
    for (int i = (int)threadIdx.x; i < columns * depth; i += 128)
        shared[i % depth / 16 * 128 + i / depth * 16 + i % 16] = b[i];
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane / 4, at = row * columns + lane % 4 * 2;
    uint32_t left[4];
    for (int i = 0; i < 4; i++)
        memcpy(&left[i], a + (row + i % 2 * 8) * depth + i / 2 * 16 + lane % 4 * 4, 4);
    float sum[4] = {c[at], c[at + 1], c[at + 8 * columns], c[at + 8 * columns + 1]};
    uint64_t address = (uint64_t)__cvta_generic_to_shared(shared);
    uint64_t right = (address & 0x3FFFF) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32;
    asm volatile(
        "wgmma.fence.sync.aligned;\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, 1, 1;\n"
        "wgmma.commit_group.sync.aligned;\n"
        "wgmma.wait_group.sync.aligned 0;\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right)
        : "memory");
    d[at] = sum[0];
    d[at + 1] = sum[1];
    d[at + 8 * columns] = sum[2];
    d[at + 8 * columns + 1] = sum[3];
#endif
}

/* significand * 2^exponent; as encoded, the significand of a normal number has its leading bit. */
struct number {
    int64_t significand;
    int exponent; /* of the encoding: that of a leading bit */
};

number of_e4m3(uint8_t code) /* significands in eighths */
{
    int e = code >> 3 & 15, m = code & 7;
    int64_t size = e ? 8 + m : m;
    return {code & 0x80 ? -size : size, e ? e - 7 : -6};
}

number of_float(float value) /* significands in 2^-23 */
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    int e = (int)(bits >> 23 & 255);
    int64_t size = (bits & 0x7FFFFF) | (e ? 1 << 23 : 0);
    return {bits >> 31 ? -size : size, e ? e - 127 : -126};
}

/* value * 2^shift toward zero. */
int64_t cut(int64_t value, int shift)
{
    uint64_t size = (uint64_t)(value < 0 ? -value : value);
    size = shift >= 0 ? size << shift : shift > -64 ? size >> -shift : 0;
    return value < 0 ? -(int64_t)size : (int64_t)size;
}

/* The text's steps: terms cut to 2^(E - F), added, and the sum cut to F fraction bits. */
float model(const uint8_t *a, const uint8_t *b, float c, int F)
{
    number term[depth + 1];
    int largest = -1000;
    for (int i = 0; i < depth; i++) {
        number x = of_e4m3(a[i]), y = of_e4m3(b[i]);
        term[i] = {x.significand * y.significand * (1 << 17), x.exponent + y.exponent}; /* sixty-fourths to 2^-23 */
    }
    term[depth] = of_float(c);
    for (const number &t : term)
        largest = t.significand && t.exponent > largest ? t.exponent : largest;
    int64_t sum = 0;
    for (const number &t : term)
        sum += cut(t.significand, t.exponent - largest + F - 23);
    if (!sum)
        return 0.0f;
    int bits = 0;
    while ((sum < 0 ? -sum : sum) >> bits)
        bits++;
    int drop = bits > F + 1 ? bits - (F + 1) : 0;
    return ldexpf((float)cut(cut(sum, -drop), drop), largest - F);
}

enum kind { ANY, NEAR, ZEROS, CANCEL, WIDE_C, KINDS };
const char *const names[KINDS] = {"any", "near", "zeros", "cancel", "wide c"};
const char *const meanings[KINDS] = {"any codes but NaN, c 0 or of 20 binades", "codes of 4 binades, c like their sums",
                                     "three quarters of the codes zeros of either sign",
                                     "products that cancel but for one",
                                     "c of 60 binades, from far below to far above"};

struct draw {
    uint64_t state;
    uint32_t next()
    {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 33);
    }
    uint8_t code(kind of)
    {
        uint8_t c = (uint8_t)(next() >> 3);
        if (of == NEAR)
            c = (uint8_t)((c & 0x87) | (6 + next() % 4) << 3);
        if (of == ZEROS && next() % 4)
            c &= 0x80;
        return (c & 0x7F) == 0x7F ? c ^ 1 : c;
    }
    /* In FP32 any 23 fraction bits: the text says how they are cut. */
    float c(kind of)
    {
        float v = 1.0f + ldexpf((float)(next() & 0x7FFFFF), -23);
        int least = of == NEAR ? -4 : of == WIDE_C ? -30 : -10, binades = of == NEAR ? 10 : of == WIDE_C ? 60 : 20;
        return of != WIDE_C && !(next() % 4) ? 0.0f
                                             : ldexpf(next() % 2 ? v : -v, least + (int)(next() % (uint32_t)binades));
    }
};

void fill(kind of, draw *from, std::vector<uint8_t> &a, std::vector<uint8_t> &b, std::vector<float> &c)
{
    for (uint8_t &code : a)
        code = from->code(of);
    for (uint8_t &code : b)
        code = from->code(of);
    for (float &value : c)
        value = from->c(of);
    for (size_t i = 0; of == CANCEL && i < a.size(); i++) /* pairs of opposite a; b the same for both */
        if (i % 2)
            a[i] = i % depth == depth - 1 ? a[i] : a[i - 1] ^ 0x80;
    for (size_t i = 1; of == CANCEL && i < b.size(); i += 2)
        b[i] = i % depth == depth - 1 ? b[i] : b[i - 1];
}

} // namespace

int main(int argc, char **argv)
{
    cudaDeviceProp device;
    int count = argc > 1 ? atoi(argv[1]) : 20000, gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || !gpus)
        return skip("there is no GPU");
    require(cudaGetDeviceProperties(&device, 0));
    if (device.major != 9)
        return skip("wgmma is Hopper's alone");
    uint8_t *a, *b;
    float *c, *d;
    draw from = {1};
    uint64_t wrong[KINDS][3] = {{0}}, compared = 0;
    require(cudaMallocManaged(&a, (size_t)count * rows * depth));
    require(cudaMallocManaged(&b, (size_t)count * columns * depth));
    require(cudaMallocManaged(&c, (size_t)count * outputs * sizeof *c));
    require(cudaMallocManaged(&d, (size_t)count * outputs * sizeof *d));
    printf("{\"device\": \"%s\", \"fraction_bits\": %d, \"kinds\": [\n", device.name, fraction_bits);
    for (int of = 0; of < KINDS; of++) {
        std::vector<uint8_t> left((size_t)count * rows * depth), right((size_t)count * columns * depth);
        std::vector<float> added((size_t)count * outputs);
        fill((kind)of, &from, left, right, added);
        memcpy(a, left.data(), left.size());
        memcpy(b, right.data(), right.size());
        memcpy(c, added.data(), added.size() * sizeof *c);
        multiply<<<(unsigned)count, 128>>>(a, b, c, d);
        require(cudaGetLastError());
        require(cudaDeviceSynchronize());
        uint64_t shown = 0;
#pragma omp parallel for
        for (int64_t i = 0; i < (int64_t)count * outputs; i++)
            for (int F = 0; F < 3; F++) {
                int64_t block = i / outputs, row = i % outputs / columns, column = i % columns;
                float want =
                    model(&left[(size_t)(block * rows + row) * depth],
                          &right[(size_t)(block * columns + column) * depth], added[(size_t)i], fraction_bits - 1 + F);
                if (memcmp(&want, &d[i], sizeof want))
#pragma omp critical
                {
                    wrong[of][F]++;
                    if (F == 1 && shown++ < 4)
                        fprintf(stderr, "%s: c %a, wgmma %a, model %a\n", names[of], (double)added[(size_t)i],
                                (double)d[i], (double)want);
                }
            }
        compared += (uint64_t)count * outputs;
        printf(
            "  {\"kind\": \"%s\", \"meaning\": \"%s\", \"outputs\": %llu, \"mismatches\": %llu, \"with one bit less\": %llu, "
            "\"with one bit more\": %llu}%s\n",
            names[of], meanings[of], (unsigned long long)count * outputs, (unsigned long long)wrong[of][1],
            (unsigned long long)wrong[of][0], (unsigned long long)wrong[of][2], of + 1 < KINDS ? "," : "");
    }
    printf("], \"outputs\": %llu}\n", (unsigned long long)compared);
    for (int of = 0; of < KINDS; of++)
        if (wrong[of][1] || !wrong[of][0] || !wrong[of][2])
            return 1;
    return 0;
}
