/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this GPU's approximate instructions return where recipes use them (docs/recipes.md#not-modelled): the constants
 * rcp.approx.ftz of every element's largest value; rcp.approx.ftz of all 2^32 inputs, as distances in ulp from the
 * rounded reciprocal, and whether they depend on the input's fraction alone; powers of two through ex2.approx.ftz and
 * lg2.approx.ftz; div.approx.ftz of the largest value by every bf16 amax. Prints one JSON document.
 *
 * usage: dump_approx [--date DATE] [--commit COMMIT] [--table FILE] > FILE.json
 * --table: the distance for each of the 2^23 fractions of [1, 2), one signed byte each.
 */
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "tests/gpu/gpu.h"

namespace
{

constexpr unsigned threads = 256;
constexpr uint32_t part = 1u << 26; /* inputs at a time */
constexpr uint32_t fractions = 1u << 23;

enum instruction { RECIPROCAL, EXP2, LOG2, DIVIDE_448, DIVIDE_6, DIVIDE_127 };

__device__ float on_device(enum instruction instruction, float x)
{
    float result;
    switch (instruction) {
    case RECIPROCAL:
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
        return result;
    case EXP2:
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
        return result;
    case LOG2:
        asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
        return result;
    default:
        float largest = instruction == DIVIDE_448 ? 448.0f : instruction == DIVIDE_6 ? 6.0f : 127.0f;
        asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(result) : "f"(largest), "f"(x));
        return result;
    }
}

__global__ void evaluate(enum instruction instruction, const float *x, uint32_t first, float *results /* [count] */,
                         uint32_t count)
{
    uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i < count)
        results[i] = on_device(instruction, x ? x[i] : __uint_as_float(first + i));
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

std::vector<float> results_of(enum instruction instruction, const std::vector<float> &x)
{
    std::vector<float> results(x.size());
    float *in, *out;
    require(cudaMalloc(&in, x.size() * sizeof(float)));
    require(cudaMalloc(&out, x.size() * sizeof(float)));
    require(cudaMemcpy(in, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    evaluate<<<(unsigned)(x.size() / threads + 1), threads>>>(instruction, in, 0, out, (uint32_t)x.size());
    require(cudaMemcpy(results.data(), out, x.size() * sizeof(float), cudaMemcpyDeviceToHost));
    require(cudaFree(in));
    require(cudaFree(out));
    return results;
}

float flushed(float value)
{
    return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}

/* Distance in ulp from the rounded reciprocal, both flushed; 127 where one is not finite or zero and the other is. */
int distance(float x, float result)
{
    float rounded = flushed(1.0f / flushed(x));
    if (encoding(rounded) == encoding(result) || (std::isnan(rounded) && std::isnan(result)))
        return 0;
    if (!std::isfinite(rounded) || !std::isfinite(result) || rounded == 0 || result == 0)
        return 127;
    int64_t apart = (int64_t)encoding(result) - (int64_t)encoding(rounded);
    return apart < -126 || apart > 126 ? 127 : (int)apart;
}

void constants()
{
    const std::vector<float> largest = {6.0f, 7.5f, 28.0f, 127.0f, 224.0f, 240.0f, 448.0f, 57344.0f};
    std::vector<float> results = results_of(RECIPROCAL, largest);
    printf(" \"rcp.approx.ftz.f32\": {\n");
    for (size_t i = 0; i < largest.size(); i++)
        printf("  \"%g\": {\"bits\": \"%08X\", \"rounded\": \"%08X\"}%s\n", (double)largest[i], encoding(results[i]),
               encoding(1.0f / largest[i]), i + 1 < largest.size() ? "," : "");
    printf(" },\n");
}

/* All inputs. The table is that of exponent 127; inputs of other exponents whose result is normal must agree. */
void reciprocals(const char *table_path)
{
    std::vector<signed char> table(fractions);
    std::vector<float> results(part);
    std::map<int, uint64_t> distances;
    uint64_t by_fraction = 0;
    float *out;
    std::vector<float> ones(fractions);
    for (uint32_t i = 0; i < fractions; i++)
        ones[i] = number(0x3F800000 + i);
    std::vector<float> first = results_of(RECIPROCAL, ones);
    for (uint32_t i = 0; i < fractions; i++)
        table[i] = (signed char)distance(ones[i], first[i]);
    require(cudaMalloc(&out, part * sizeof(float)));
    for (uint64_t start = 0; start < (uint64_t)1 << 32; start += part) {
        evaluate<<<part / threads, threads>>>(RECIPROCAL, nullptr, (uint32_t)start, out, part);
        require(cudaMemcpy(results.data(), out, part * sizeof(float), cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < part; i++) {
            uint32_t bits = (uint32_t)start + i;
            int apart = distance(number(bits), results[i]);
            distances[apart]++;
            bool normal = std::isnormal(number(bits)) && std::isnormal(1.0f / number(bits));
            by_fraction += normal && apart != table[bits % fractions];
        }
    }
    require(cudaFree(out));
    printf(" \"reciprocals of all 2^32 floats, by distance in ulp\": {");
    for (auto d = distances.begin(); d != distances.end(); ++d)
        printf("%s\"%d\": %llu", d == distances.begin() ? "" : ", ", d->first, (unsigned long long)d->second);
    printf("},\n \"normal inputs with a normal reciprocal whose distance is not their fraction's\": %llu,\n",
           (unsigned long long)by_fraction);
    if (!table_path)
        return;
    FILE *file = fopen(table_path, "wb");
    require_at(file && fwrite(table.data(), 1, fractions, file) == fractions && fclose(file) == 0, "--table",
               table_path, __LINE__);
}

void powers_of_two()
{
    std::vector<float> exponents, powers;
    for (int e = -126; e <= 127; e++) {
        exponents.push_back((float)e);
        powers.push_back(std::ldexp(1.0f, e));
    }
    std::vector<float> exp2 = results_of(EXP2, exponents), log2 = results_of(LOG2, powers);
    std::vector<float> inverse = results_of(RECIPROCAL, powers);
    unsigned exp2_wrong = 0, log2_wrong = 0, reciprocal_wrong = 0;
    for (size_t i = 0; i < powers.size(); i++) {
        exp2_wrong += exp2[i] != powers[i];
        log2_wrong += log2[i] != exponents[i];
        reciprocal_wrong += inverse[i] != flushed(1.0f / powers[i]);
    }
    printf(" \"powers of two that are not exact\": {\"ex2.approx.ftz.f32\": %u, \"lg2.approx.ftz.f32\": %u, "
           "\"rcp.approx.ftz.f32\": %u},\n",
           exp2_wrong, log2_wrong, reciprocal_wrong);
}

/* Over every positive normal bf16 amax. */
void quotients()
{
    const float largest[] = {448.0f, 6.0f, 127.0f};
    const enum instruction instructions[] = {DIVIDE_448, DIVIDE_6, DIVIDE_127};
    std::vector<float> amax;
    for (uint32_t bits = 0x0080; bits < 0x7F80; bits++)
        amax.push_back(number(bits << 16));
    printf(" \"div.approx.ftz.f32 by every positive normal bf16\": {");
    for (int k = 0; k < 3; k++) {
        std::vector<float> results = results_of(instructions[k], amax);
        uint64_t different = 0;
        for (size_t i = 0; i < amax.size(); i++)
            different += encoding(results[i]) != encoding(flushed(largest[k] / amax[i]));
        printf("%s\"%g\": {\"inputs\": %zu, \"not the rounded quotient\": %llu}", k ? ", " : "", (double)largest[k],
               amax.size(), (unsigned long long)different);
    }
    printf("}\n");
}

} /* namespace */

int main(int argc, char **argv)
{
    const char *date = "", *commit = "", *table = nullptr;
    int devices = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--date"))
            date = argv[i + 1];
        if (!strcmp(argv[i], "--commit"))
            commit = argv[i + 1];
        if (!strcmp(argv[i], "--table"))
            table = argv[i + 1];
    }
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return skip("no CUDA device");
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    printf("{\n \"schema\": \"gaugeblock.approximations/1\",\n \"command\": \"dump_approx --date %s --commit %s\",\n"
           " \"date\": \"%s\",\n \"commit\": \"%s\",\n \"device\": \"%s\",\n",
           date, commit, date, commit, properties.name);
    constants();
    reciprocals(table);
    powers_of_two();
    quotients();
    printf("}\n");
    return 0;
}
