/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mma.sync m16n8k16 with FP32 accumulators against docs/numerics.md#mma: every output of many blocks against a model
 * written here in double precision, and a sample of every kind of data against gb_mma (reference/mma.c).
 *
 * usage: test_mma [BLOCKS [SAMPLE]]    outputs of every kind of random data; 2^24 and 2^18 by default
 *        test_mma --vectors            prints a few blocks of every kind with the hardware's results
 *
 * Kind `pairs` is every pair of 16-bit operands with BLOCKS of 2^32, otherwise every so-many-th first operand.
 */
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <cuda_fp16.h>

#include "reference/mma.h"
#include "tests/gpu/gpu.h"
#include "tests/support/provenance.h"

namespace
{

constexpr uint32_t m = 16, n = 8, k = 16, warps = 4, outputs = m * n;

enum kind {
    NEAR,
    WIDE,
    ZEROS,
    SUBNORMAL,
    TINY,
    HUGE_NUMBERS,
    SPECIAL,
    SPARSE,
    CANCEL,
    BITS,
    LOW,
    WEIGHTS,
    PAIRS,
    KINDS
};
const char *const names[KINDS] = {"near",   "wide",   "zeros", "subnormal", "tiny",    "huge", "special",
                                  "sparse", "cancel", "bits",  "low",       "weights", "pairs"};
const char *const meanings[KINDS] = {
    "8 binades, c of 16",
    "40 binades (f16: 30), c of 100",
    "half of the operands are zeros of either sign, c half",
    "half of the operands subnormal, the others small, common or huge; c of 200 binades or subnormal",
    "products around the smallest numbers of binary32, c subnormal, zero or tiny",
    "sums around the largest number of binary32",
    "infinities, NaNs of either sign, zeros",
    "nearly all operands zeros of either sign, others of any exponent",
    "products that cancel but for their last bits, c of 60 binades",
    "operands and c of any bits",
    "any exponent below one, a third zeros, c tiny or subnormal",
    "E2M1 times E4M3 as a, an activation of 24 binades as b, c the sum of such products",
    "every pair of operands alone among zeros of either sign, c of either zero"};

/* One instruction's operands and result, bits. */
struct block {
    uint16_t a[m][k], b[n][k];
    uint32_t c[m][n], d[m][n];
};

__device__ __forceinline__ uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* An operand of a kind. Side 0 is a, 1 is b. */
template <bool Bf16> __device__ uint16_t operand(int kind, int side, uint64_t r)
{
    const uint32_t fraction = Bf16 ? 7 : 10, one = Bf16 ? 127 : 15, most = Bf16 ? 254 : 30;
    const uint32_t sign = (uint32_t)r & 1, low = (uint32_t)(r >> 1) & ((1u << fraction) - 1);
    const uint32_t choice = (uint32_t)(r >> 20) & 0xFFF, free = (uint32_t)(r >> 32);
    uint32_t field = one, mantissa = low;
    switch (kind) {
    case NEAR:
        field = one - 4 + free % 8;
        break;
    case WIDE:
        field = Bf16 ? one - 20 + free % 40 : 1 + free % 30;
        break;
    case ZEROS:
        if (choice & 1)
            return (uint16_t)(sign << 15);
        field = one - 6 + free % 12;
        break;
    case SUBNORMAL:
        field = choice & 1   ? 0
                : choice & 2 ? (Bf16 ? 240 : 20) + free % 8
                : choice & 4 ? one - 3 + free % 6
                             : 1 + free % 20;
        break;
    case TINY:
        if ((choice & 0xF0) == 0)
            return (uint16_t)(sign << 15);
        field = (choice & 15) == 0 ? 0 : Bf16 ? 50 + free % 16 : 1 + free % 6;
        break;
    case HUGE_NUMBERS:
        field = Bf16 ? 186 + free % 8 : 24 + free % 7;
        break;
    case SPECIAL:
        if ((choice & 15) == 0) {
            field = most + 1;
            mantissa = choice & 16 ? 0 : low;
        } else if ((choice & 0xE0) == 0)
            return (uint16_t)(sign << 15);
        else
            field = one - 6 + free % 12;
        break;
    case SPARSE:
        if (choice & 31)
            return (uint16_t)(sign << 15);
        field = choice & 32 ? 0 : free % (most + 1);
        break;
    case CANCEL:
        field = one - 1 + free % 2;
        break;
    case LOW:
        if (choice % 3 == 0)
            return (uint16_t)(sign << 15);
        field = 1 + free % (Bf16 ? 126 : 14);
        break;
    case WEIGHTS: {
        if (side) {
            field = one - (Bf16 ? 20 : 12) + free % (Bf16 ? 24 : 16);
            break;
        }
        const uint32_t code = choice & 7; /* 0, 0.5, 1, 1.5, 2, 3, 4, 6 */
        const float magnitude = code < 2 ? 0.5f * (float)code : ldexpf(code & 1 ? 1.5f : 1.0f, (int)(code >> 1) - 1);
        const float scale = ldexpf((float)(8 + (low & 7)), (int)(free % 12) - 9);
        const float value = sign ? -magnitude * scale : magnitude * scale;
        return Bf16 ? (uint16_t)(__float_as_uint(value) >> 16) : __half_as_ushort(__float2half_rn(value));
    }
    default:
        return (uint16_t)r;
    }
    return (uint16_t)(sign << 15 | field << fraction | mantissa);
}

template <bool Bf16> __device__ uint32_t accumulator(int kind, uint64_t r)
{
    const uint32_t sign = (uint32_t)r & 1, choice = (uint32_t)(r >> 24) & 0xFF, free = (uint32_t)(r >> 32);
    uint32_t mantissa = (uint32_t)(r >> 1) & 0x7FFFFF, field = 127;
    switch (kind) {
    case NEAR:
        field = 119 + free % 16;
        break;
    case WIDE:
        field = 77 + free % 100;
        break;
    case ZEROS:
        if (choice & 1)
            return sign << 31;
        field = 115 + free % 24;
        break;
    case SUBNORMAL:
        field = choice & 1 ? 0 : free % 200;
        break;
    case TINY:
        if ((choice & 6) == 0)
            return sign << 31;
        field = choice & 1 ? 0 : Bf16 ? free % 6 : 97 + free % 20;
        break;
    case HUGE_NUMBERS:
        field = Bf16 ? 240 + free % 15 : 127 + free % 128;
        break;
    case SPECIAL:
        field = (choice & 7) == 0 ? 255 : 119 + free % 16;
        mantissa = (choice & 15) == 0 ? 0 : mantissa;
        break;
    case SPARSE:
        if (choice & 1)
            return sign << 31;
        field = choice & 2 ? 0 : free % 60;
        break;
    case CANCEL:
        field = 97 + free % 60;
        break;
    case LOW:
        field = choice & 1 ? 0 : free % 140;
        mantissa >>= choice & 6 ? 0 : free % 23;
        break;
    case WEIGHTS:
        field = 109 + free % 24;
        break;
    case PAIRS:
        return sign << 31;
    default:
        return (uint32_t)(r >> 13);
    }
    return sign << 31 | field << 23 | mantissa;
}

/* The numbers of an instruction: of a kind and a seed; `pairs`: of 16 first and 8 second operands. */
template <bool Bf16> __device__ void fill(int kind, uint64_t at, uint64_t seed, uint32_t lane, block *out)
{
    const uint64_t base = mix(seed + at * 1000003);
    for (uint32_t i = lane; i < m * k; i += 32)
        out->a[i / k][i % k] =
            kind == PAIRS ? (uint16_t)(mix(base + i) & 0x8000) : operand<Bf16>(kind, 0, mix(base + i));
    for (uint32_t i = lane; i < n * k; i += 32)
        out->b[i / k][i % k] =
            kind == PAIRS ? (uint16_t)(mix(base + 256 + i) & 0x8000) : operand<Bf16>(kind, 1, mix(base + 256 + i));
    for (uint32_t i = lane; i < outputs; i += 32)
        out->c[i / n][i % n] = accumulator<Bf16>(kind, mix(base + 512 + i));
    __syncwarp();
    if (kind == PAIRS) {
        const uint32_t place = (uint32_t)(base % k);
        if (lane < m)
            out->a[lane][place] = (uint16_t)(at / 8192 * m + lane);
        else if (lane < m + n)
            out->b[lane - m][place] = (uint16_t)(at % 8192 * n + lane - m);
    } else if (kind == CANCEL) {
        for (uint32_t i = lane; i < m * 8; i += 32)
            out->a[i / 8][8 + i % 8] = (uint16_t)(out->a[i / 8][i % 8] ^ 0x8000u ^ (mix(base + 7 * i) % 4 == 0));
        for (uint32_t i = lane; i < n * 8; i += 32)
            out->b[i / 8][8 + i % 8] = out->b[i / 8][i % 8];
    }
    __syncwarp();
}

template <bool Bf16> __device__ double value_of(uint16_t bits)
{
    return Bf16 ? (double)__uint_as_float((uint32_t)bits << 16) : (double)__half2float(__ushort_as_half(bits));
}

template <bool Bf16> __device__ int exponent_of(uint16_t bits)
{
    return Bf16 ? max(bits >> 7 & 255, 1) - 127 : max(bits >> 10 & 31, 1) - 15;
}

/* docs/numerics.md#mma in double precision, which holds every product and every sum below exactly. */
template <bool Bf16> __device__ uint32_t model(const uint16_t *a, const uint16_t *b, uint32_t c)
{
    const double start = (double)__uint_as_float(c);
    double everything = start;
    int largest = start != 0.0 ? max((int)(c >> 23 & 255), 1) - 127 : -1000;
    for (uint32_t i = 0; i < k; i++) {
        const double product = value_of<Bf16>(a[i]) * value_of<Bf16>(b[i]);
        everything += product;
        if (product != 0.0)
            largest = max(largest, exponent_of<Bf16>(a[i]) + exponent_of<Bf16>(b[i]));
    }
    if (isnan(everything))
        return 0x7FFFFFFFu;
    if (isinf(everything))
        return everything > 0 ? 0x7F800000u : 0xFF800000u;
    largest = max(largest, -133);
    const double up = __hiloint2double((1023 + 25 - largest) << 20, 0);
    const double down = __hiloint2double((1023 - 25 + largest) << 20, 0);
    double sum = trunc(start * up);
    for (uint32_t i = 0; i < k; i++)
        sum += trunc(value_of<Bf16>(a[i]) * value_of<Bf16>(b[i]) * up);
    const float rounded = __double2float_rz(sum * down);
    if (fabs(sum * down) >= 0x1p128)
        return sum > 0 ? 0x7F800000u : 0xFF800000u;
    return rounded == 0.0f ? 0u : __float_as_uint(rounded);
}

template <bool Bf16>
__device__ void multiply(const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4], float (&d)[4])
{
    if (Bf16)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%10, %11, %12, %13};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]),
              "f"(c[3]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%10, %11, %12, %13};"
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
                       "f"(c[2]), "f"(c[3]));
}

/* Instructions first .. first + count - 1 of a kind. kept: [count] or NULL. wrong: how many outputs differ from the
 * model. */
template <bool Bf16>
__global__ void __launch_bounds__(warps * 32)
    blocks_kernel(int kind, uint64_t seed, uint64_t first, uint64_t count, block *kept, unsigned long long *wrong)
{
    __shared__ block all[warps];
    const uint32_t lane = threadIdx.x % 32, group = lane / 4, t = lane % 4;
    block *one = &all[threadIdx.x / 32];
    uint32_t bad = 0;
    for (uint64_t i = (uint64_t)blockIdx.x * warps + threadIdx.x / 32; i < count; i += (uint64_t)gridDim.x * warps) {
        fill<Bf16>(kind, first + i, seed, lane, one);
        uint32_t a[4], b[2];
        float c[4], d[4];
        for (uint32_t j = 0; j < 4; j++)
            a[j] = *(const uint32_t *)&one->a[group + j % 2 * 8][2 * t + j / 2 * 8];
        for (uint32_t j = 0; j < 2; j++)
            b[j] = *(const uint32_t *)&one->b[group][2 * t + j * 8];
        for (uint32_t j = 0; j < 4; j++)
            c[j] = __uint_as_float(one->c[group + j / 2 * 8][2 * t + j % 2]);
        multiply<Bf16>(a, b, c, d);
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t row = group + j / 2 * 8, column = 2 * t + j % 2;
            one->d[row][column] = __float_as_uint(d[j]);
            bad += model<Bf16>(one->a[row], one->b[column], one->c[row][column]) != __float_as_uint(d[j]);
        }
        __syncwarp();
        if (kept)
            for (uint32_t w = lane; w < sizeof(block) / 4; w += 32)
                ((uint32_t *)&kept[i])[w] = ((const uint32_t *)one)[w];
        __syncwarp();
    }
    if (bad)
        atomicAdd(wrong, (unsigned long long)bad);
}

struct device {
    block *kept;
    unsigned long long *wrong;
    uint64_t most; /* blocks that `kept` holds */
};

/* Mismatches with the model here. keep: leave the blocks in device->kept. */
unsigned long long run(const device &on, bool bf16, int kind, uint64_t first, uint64_t count, bool keep)
{
    unsigned long long wrong = 0;
    require(cudaMemset(on.wrong, 0, sizeof wrong));
    (bf16 ? blocks_kernel<true> : blocks_kernel<false>)<<<132 * 8, warps * 32>>>(
        kind, 20261122u + (uint64_t)kind, first, count, keep ? on.kept : NULL, on.wrong);
    require(cudaGetLastError());
    require(cudaMemcpy(&wrong, on.wrong, sizeof wrong, cudaMemcpyDeviceToHost));
    return wrong;
}

/* Mismatches of kept blocks with gb_mma; the first is printed. */
unsigned long long compare(const std::vector<block> &blocks, bool bf16, const char *name)
{
    const struct gb_mma_unit *unit = gb_mma_unit_find("sm_90");
    unsigned long long wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
    for (size_t i = 0; i < blocks.size(); i++)
        for (uint32_t o = 0; o < outputs; o++) {
            const block &one = blocks[i];
            const uint32_t row = o / n, column = o % n;
            float c, d;
            memcpy(&c, &one.c[row][column], sizeof c);
            d = gb_mma(unit, bf16 ? GB_BF16 : GB_FP16, one.a[row], one.b[column], k, c);
            if (memcmp(&d, &one.d[row][column], sizeof d) != 0) {
#pragma omp critical
                if (wrong++ == 0)
                    printf("MISMATCH %s %s block %zu row %u column %u: c %08X, hardware %08X, gb_mma %a\n", name,
                           bf16 ? "bf16" : "f16", i, row, column, one.c[row][column], one.d[row][column], (double)d);
            }
        }
    return wrong;
}

std::vector<block> fetch(const device &on, uint64_t count)
{
    std::vector<block> blocks(count);
    require(cudaMemcpy(blocks.data(), on.kept, count * sizeof(block), cudaMemcpyDeviceToHost));
    return blocks;
}

void print_vector(const block &one, bool bf16, uint32_t row, uint32_t column)
{
    printf("%s", bf16 ? "bf16" : "fp16");
    for (uint32_t j = 0; j < k; j++)
        printf(" %04X", one.a[row][j]);
    for (uint32_t j = 0; j < k; j++)
        printf(" %04X", one.b[column][j]);
    printf(" %08X %08X\n", one.c[row][column], one.d[row][column]);
}

/* Whether another least exponent would give another result. */
bool tells_least_exponent(const block &one, bool bf16, uint32_t row, uint32_t column, int32_t least)
{
    struct gb_mma_unit other = *gb_mma_unit_find("sm_90");
    float c, d;
    other.least_exponent = least;
    memcpy(&c, &one.c[row][column], sizeof c);
    d = gb_mma(&other, bf16 ? GB_BF16 : GB_FP16, one.a[row], one.b[column], k, c);
    return memcmp(&d, &one.d[row][column], sizeof d) != 0;
}

void print_vectors(const device &on)
{
    for (int bf16 = 1; bf16 >= 0; bf16--)
        for (int kind = 0; kind < KINDS; kind++) {
            run(on, bf16, kind, kind == PAIRS ? 1000003 : 0, on.most, true);
            const std::vector<block> blocks = fetch(on, on.most);
            for (uint32_t i = 0; i < 12; i++)
                print_vector(blocks[i], bf16, i % m, i % n);
            for (int32_t least = -134; least <= -132; least += 2)
                for (uint32_t i = 0, found = 0; found < 4 && i < blocks.size() * outputs; i++) {
                    const uint32_t row = i / n % m, column = i % n;
                    if (tells_least_exponent(blocks[i / outputs], bf16, row, column, least)) {
                        print_vector(blocks[i / outputs], bf16, row, column);
                        found++;
                    }
                }
        }
}

} // namespace

int main(int argc, char **argv)
{
    const bool vectors = argc > 1 && !strcmp(argv[1], "--vectors");
    const unsigned long long each = argc > 1 && !vectors ? strtoull(argv[1], NULL, 10) : 1ull << 24;
    const unsigned long long sample = argc > 2 ? strtoull(argv[2], NULL, 10) : 1ull << 18;
    if (each < outputs || each > 1ull << 40 || sample < outputs || sample > 1ull << 28) {
        fprintf(stderr, "usage: test_mma [BLOCKS [SAMPLE]] | test_mma --vectors\n");
        return 2;
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return skip("no CUDA device");
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    if (properties.major != 9)
        return skip("the model is of compute capability 9.0");
    device on = {NULL, NULL, sample / outputs};
    require(cudaMalloc(&on.kept, (on.most < 16 ? 16 : on.most) * sizeof(block)));
    require(cudaMalloc(&on.wrong, sizeof *on.wrong));
    if (vectors) {
        print_vectors(on);
        return 0;
    }
    unsigned long long total = 0, compared = 0, wrong = 0;
    char command[64];
    snprintf(command, sizeof command, "test_mma %llu %llu", each, sample);
    printf("{");
    print_provenance(stdout, "gaugeblock.mma/1", command);
    printf(", \"device\": \"%s\",\n \"instruction\": \"mma.sync.aligned.m16n8k16.row.col.f32, accumulators FP32\",\n"
           " \"kinds\": [\n",
           properties.name);
    for (int bf16 = 1; bf16 >= 0; bf16--)
        for (int kind = 0; kind < KINDS; kind++) {
            const uint64_t every = (1ull << 32) / outputs;
            const uint64_t count = kind == PAIRS && each / outputs > every ? every : each / outputs;
            const uint64_t first = kind == PAIRS ? 12345678 % (every - count + 1) : 0;
            const unsigned long long by_model = run(on, bf16, kind, first, count, false);
            run(on, bf16, kind, first + (count > on.most ? (count - on.most) / 2 : 0), on.most, true);
            const unsigned long long by_c = compare(fetch(on, on.most), bf16, names[kind]);
            printf(
                "  {\"operands\": \"%s\", \"kind\": \"%s\", \"data\": \"%s\", \"outputs\": %llu, \"mismatches\": %llu, "
                "\"outputs_in_c\": %llu, \"mismatches_in_c\": %llu}%s\n",
                bf16 ? "bf16" : "f16", names[kind], meanings[kind], (unsigned long long)(count * outputs), by_model,
                (unsigned long long)(on.most * outputs), by_c, bf16 || kind + 1 < KINDS ? "," : "");
            total += count * outputs;
            compared += on.most * outputs;
            wrong += by_model + by_c;
        }
    printf(" ],\n \"outputs\": %llu, \"outputs_in_c\": %llu, \"mismatches\": %llu}\n", total, compared, wrong);
    cudaFree(on.kept);
    cudaFree(on.wrong);
    return wrong ? 1 : 0;
}
