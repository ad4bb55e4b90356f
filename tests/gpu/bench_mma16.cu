/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the order mma16-sm90/1: every output of many small problems against the CPU reference, and times of large
 * ones beside a bare read of the same bytes in as many launches of the same kind of CUDA graph. The same of fma32/1 on
 * tensor cores, whose outputs are compared with those of the canonical layout's kernels.
 *
 * usage: bench_mma16 LIBRARY check [SEED]
 *        bench_mma16 LIBRARY time FORMAT SHAPE [BATCH...]
 *        bench_mma16 LIBRARY once                            a few small problems a kernel, for compute-sanitizer
 * FORMAT: nvfp4, mxfp8 or mxfp4, or with one kernel alone, as in mxfp8:repacked. SHAPE: qwen3-next, qwen3-30b,
 * deepseek-v3 or E,K,HIDDEN,INTERMEDIATE.
 */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "gpu/kernels.cuh"
#include "quant/quant.h"
extern "C" {
#include "reference/mma16.h"
}
#include "reference/reference.h"
#include "tests/gpu/bench.cuh"
#include "tests/support/provenance.h"

namespace
{

struct gb_error failure;

void require_ok(enum gb_status status, const char *what)
{
    if (status != GB_OK) {
        printf("FAILED %s: %s\n", what, failure.message);
        exit(1);
    }
}

float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

bool same(float a, float b)
{
    return (std::isnan(a) && std::isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

/* NULL: there is none. */
const struct gb_kernel *look_up(const struct gb_kernel_table *table, const std::string &name)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (name == table->kernels[i].name)
            return &table->kernels[i];
    return NULL;
}

const struct gb_kernel *find(const struct gb_kernel_table *table, const std::string &name)
{
    const struct gb_kernel *kernel = look_up(table, name);
    if (!kernel) {
        printf("FAILED: the library has no kernel %s\n", name.c_str());
        exit(1);
    }
    return kernel;
}

/* Weights in device memory. */
struct matrix {
    struct gb_weights device;
    std::vector<float> globals;
};

const struct {
    enum gb_format format;
    const char *name, *baseline; /* a kernel of fma32 */
} formats[] = {{GB_NVFP4, "nvfp4", "cuda/nvfp4-"}, {GB_MXFP8, "mxfp8", "cuda/mxfp8-"}, {GB_MXFP4, "mxfp4", NULL}};

const char *name_of(enum gb_format format)
{
    for (const auto &f : formats)
        if (f.format == format)
            return f.name;
    return NULL;
}

/* Bytes of so many weights. */
size_t code_bytes(enum gb_format format, size_t weights)
{
    return format == GB_MXFP8 ? weights : weights / 2;
}
size_t scale_bytes(enum gb_format format, size_t weights)
{
    return weights / (format == GB_NVFP4 ? 16 : 32);
}

matrix random_matrix(enum gb_format format, uint32_t experts, uint32_t rows, uint32_t columns, uint32_t parts,
                     uint64_t seed, int edge)
{
    matrix m;
    const size_t weights = (size_t)experts * rows * columns;
    uint8_t *codes = on_device<uint8_t>(code_bytes(format, weights));
    uint8_t *scales = on_device<uint8_t>(scale_bytes(format, weights));
    fill(codes, code_bytes(format, weights), seed, format == GB_MXFP8 ? E4M3_CODES : ANY, edge);
    fill(scales, scale_bytes(format, weights), seed + 1,
         format == GB_NVFP4   ? NVFP4_SCALES
         : format == GB_MXFP4 ? MXFP4_SCALES
                              : MXFP8_SCALES,
         edge);
    for (uint32_t i = 0; i < experts * parts && format == GB_NVFP4; i++)
        m.globals.push_back(0x1p-8f * (1.0f + (float)(mix(seed + i) % 1000) / 999.0f));
    m.device = {format, experts, rows, columns, parts, codes, scales, NULL};
    if (format == GB_NVFP4)
        m.device.global_scales = upload(m.globals);
    return m;
}

void release(matrix &m)
{
    cudaFree((void *)m.device.codes);
    cudaFree((void *)m.device.scales);
    cudaFree((void *)m.device.global_scales);
}

/* 0: gaussian-like. 1: 40 binades. 2: a few infinities, NaNs, zeros and subnormal numbers. */
gb_bf16 activation(uint64_t r, int kind)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(mix(r + (uint64_t)i) % 2001) / 1000.0f - 1.0f;
    if (kind == 1)
        sum = ldexpf(sum, (int)(mix(r + 9) % 40) - 30);
    if (kind == 2 && mix(r + 10) % 64 == 0) {
        const uint64_t which = mix(r + 11) % 512;
        const uint16_t bits[5] = {0x7F80, 0xFFC0, 0x0000, 0x8000, 0x0011};
        return gb_bf16{bits[which < 3 ? which % 2 : 2 + which % 3]};
    }
    return gb_bf16_encode(sum);
}

/* A row of device weights, as a matrix of one row. */
struct one_row {
    std::vector<uint8_t> codes, scales;
    struct gb_weights weights;
    one_row(const matrix &m, uint32_t expert, uint32_t row)
    {
        const struct gb_weights &w = m.device;
        const size_t index = (size_t)expert * w.rows + row;
        const size_t of_codes = code_bytes(w.format, w.columns), of_scales = scale_bytes(w.format, w.columns);
        codes = download((const uint8_t *)w.codes + index * of_codes, of_codes);
        scales = download((const uint8_t *)w.scales + index * of_scales, of_scales);
        weights = {w.format,
                   1,
                   1,
                   w.columns,
                   1,
                   codes.data(),
                   scales.data(),
                   m.globals.empty() ? NULL : &m.globals[expert * w.halves + row / (w.rows / w.halves)]};
    }
};

struct arranged {
    uint32_t columns;
    size_t floats;
    float *values;
    std::vector<const float *> pointers;
    arranged(enum gb_format format, const gb_bf16 *x, size_t count, uint32_t columns_) : columns(columns_)
    {
        floats = (gb_mma16_arranged_floats(format, columns) + 15) / 16 * 16;
        values = (float *)aligned_alloc(64, count * floats * sizeof(float));
        pointers.resize(count);
#pragma omp parallel for
        for (size_t i = 0; i < count; i++) {
            std::vector<float> row(columns);
            for (uint32_t c = 0; c < columns; c++)
                row[c] = from_bits((uint32_t)x[i * columns + c].bits << 16);
            pointers[i] = values + i * floats;
            gb_mma16_arrange(format, columns, row.data(), values + i * floats);
        }
    }
    ~arranged()
    {
        free(values);
    }
};

void dots(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t rows, uint32_t count,
          const float *const *x, float *out)
{
    if (gb_cpu_path_available(GB_CPU_AVX512))
        gb_mma16_dots_avx512(weights, expert, row, rows, count, x, out);
    else
        gb_mma16_dots(weights, expert, row, rows, count, x, out);
}

uint16_t finished(float gate, float up)
{
    return gb_bf16_encode(gb_silu(gate) * up).bits;
}

/* The operators on the CPU. */
std::vector<uint16_t> cpu_gate_up(const struct gb_shape &s, const struct gb_weights &w, const std::vector<int32_t> &ids,
                                  const std::vector<gb_bf16> &x)
{
    const arranged at(w.format, x.data(), s.tokens, s.hidden);
    std::vector<uint16_t> out(ids.size() * s.intermediate);
#pragma omp parallel for schedule(dynamic)
    for (uint32_t e = 0; e < s.experts; e++) {
        std::vector<size_t> pairs;
        std::vector<const float *> rows;
        for (size_t p = 0; p < ids.size(); p++)
            if (ids[p] == (int32_t)e) {
                pairs.push_back(p);
                rows.push_back(at.pointers[p / s.top_k]);
            }
        if (pairs.empty())
            continue;
        std::vector<float> gate(s.intermediate * pairs.size()), up(gate.size());
        dots(&w, e, 0, s.intermediate, (uint32_t)pairs.size(), rows.data(), gate.data());
        dots(&w, e, s.intermediate, s.intermediate, (uint32_t)pairs.size(), rows.data(), up.data());
        for (uint32_t i = 0; i < s.intermediate; i++)
            for (size_t n = 0; n < pairs.size(); n++)
                out[pairs[n] * s.intermediate + i] = finished(gate[i * pairs.size() + n], up[i * pairs.size() + n]);
    }
    return out;
}

std::vector<float> cpu_down(const struct gb_shape &s, const struct gb_weights &w, const std::vector<int32_t> &ids,
                            const std::vector<float> &routing, const std::vector<uint16_t> &intermediate)
{
    const arranged at(w.format, (const gb_bf16 *)intermediate.data(), ids.size(), s.intermediate);
    std::vector<float> all(ids.size() * s.hidden), out((size_t)s.tokens * s.hidden);
#pragma omp parallel for schedule(dynamic)
    for (uint32_t e = 0; e < s.experts; e++) {
        std::vector<size_t> pairs;
        std::vector<const float *> rows;
        for (size_t p = 0; p < ids.size(); p++)
            if (ids[p] == (int32_t)e) {
                pairs.push_back(p);
                rows.push_back(at.pointers[p]);
            }
        std::vector<float> of_rows(s.hidden * pairs.size());
        if (!pairs.empty())
            dots(&w, e, 0, s.hidden, (uint32_t)pairs.size(), rows.data(), of_rows.data());
        for (uint32_t h = 0; h < s.hidden; h++)
            for (size_t n = 0; n < pairs.size(); n++)
                all[pairs[n] * s.hidden + h] = of_rows[h * pairs.size() + n];
    }
#pragma omp parallel for
    for (uint32_t t = 0; t < s.tokens; t++)
        for (uint32_t h = 0; h < s.hidden; h++) {
            float y = 0;
            for (uint32_t j = 0; j < s.top_k; j++) {
                const size_t p = (size_t)t * s.top_k + j;
                if (ids[p] >= 0)
                    y = fmaf(routing[p], all[p * s.hidden + h], y);
            }
            out[(size_t)t * s.hidden + h] = y;
        }
    return out;
}

/* What kernels' names begin with. */
std::string kernel_of(enum gb_format format, int layout)
{
    return "cuda/" + std::string(name_of(format)) + (layout ? "-mma16-repacked-" : "-mma16-");
}

/* A layer in device memory, and what the kernels of one layout need. */
struct layer {
    struct gb_shape shape;
    matrix gate_up, down;
    std::vector<gb_bf16> x;
    std::vector<int32_t> ids;
    std::vector<float> routing;
    struct gb_arguments arguments;
    size_t workspace;

    layer(const struct gb_kernel_table *table, const struct gb_shape &s, const matrix &first, const matrix &second,
          uint64_t seed, int data, int kind)
        : shape(s), gate_up(first), down(second), arguments()
    {
        for (size_t i = 0; i < (size_t)s.tokens * s.hidden; i++)
            x.push_back(activation(seed + 16 * i, data));
        ids = route(s.tokens, s.experts, s.top_k, seed, kind);
        for (size_t i = 0; i < ids.size(); i++)
            routing.push_back((float)(mix(seed + i) % 1000) / 1000.0f);
        struct gb_problem problem = {};
        problem.size = sizeof problem;
        problem.shape = s;
        problem.weights = first.device.format;
        workspace = 16;
        for (uint32_t i = 0; i < table->count; i++) {
            const struct gb_kernel &k = table->kernels[i];
            if (k.weights == problem.weights && k.activations == GB_BF16 && k.workspace)
                workspace = std::max(workspace, k.workspace(&problem));
        }
        arguments.size = sizeof arguments;
        arguments.shape = s;
        arguments.x = upload(x);
        arguments.ids = upload(ids);
        arguments.routing_weights = upload(routing);
        arguments.gate_up = gate_up.device;
        arguments.down = down.device;
        arguments.intermediate = on_device<gb_bf16>(ids.size() * s.intermediate);
        arguments.output = on_device<float>((size_t)s.tokens * s.hidden);
        arguments.workspace = on_device<uint8_t>(workspace);
        std::vector<gb_bf16> rows((size_t)s.experts * s.hidden);
        for (size_t i = 0; i < rows.size(); i++)
            rows[i] = gb_bf16{(uint16_t)((mix(seed * 1000003 + i) & 0x80FF) | 0x3C00)}; /* +-2^-7 .. 2^-5 */
        arguments.router = &gb_router_recipe_find("transformers.qwen3-moe/1")->router;
        arguments.router_weights = {GB_BF16, 1, s.experts, s.hidden, 1, upload(rows), NULL, NULL};
        arguments.routed_ids = on_device<int32_t>(ids.size());
        arguments.routed_weights = on_device<float>(ids.size());
        poison();
    }
    void poison()
    {
        require(cudaMemset(arguments.intermediate, 0xA5, ids.size() * shape.intermediate * 2));
        require(cudaMemset(arguments.output, 0xA5, (size_t)shape.tokens * shape.hidden * 4));
        require(cudaMemset(arguments.workspace, 0xA5, workspace));
    }
    void release()
    {
        cudaFree((void *)arguments.x);
        cudaFree((void *)arguments.ids);
        cudaFree((void *)arguments.routing_weights);
        cudaFree(arguments.intermediate);
        cudaFree(arguments.output);
        cudaFree(arguments.workspace);
        cudaFree((void *)arguments.router_weights.codes);
        cudaFree(arguments.routed_ids);
        cudaFree(arguments.routed_weights);
    }
    double bytes(bool first) const /* of the weights that are touched, once each */
    {
        std::vector<bool> seen(shape.experts);
        size_t active = 0;
        for (int32_t id : ids)
            if (id >= 0 && !seen[id]) {
                seen[id] = true;
                active++;
            }
        const double weights = (double)active * shape.hidden * shape.intermediate * (first ? 2 : 1);
        const size_t many = (size_t)weights;
        return (double)(code_bytes(gate_up.device.format, many) + scale_bytes(gate_up.device.format, many));
    }
};

size_t mismatches(const std::vector<uint16_t> &a, const std::vector<uint16_t> &b)
{
    size_t wrong = 0;
    for (size_t i = 0; i < a.size(); i++)
        wrong += !same(from_bits((uint32_t)a[i] << 16), from_bits((uint32_t)b[i] << 16));
    return wrong;
}

size_t mismatches(const std::vector<float> &a, const std::vector<float> &b)
{
    size_t wrong = 0;
    for (size_t i = 0; i < a.size(); i++)
        wrong += !same(a[i], b[i]);
    return wrong;
}

/* What a layer comes to. */
struct results {
    std::vector<uint16_t> intermediate;
    std::vector<float> output;
};

constexpr const char *operators[3] = {"gate-up", "down", "layer"};

/* What weights and activations are: the edge of either matrix (bench.cuh), and the kind of x. */
struct data_of {
    int gate_up, down, x;
};

/* Whether everything is repacked that an operator has and that must be. */
bool is_repacked(const void *prepared, int operation, const data_of &data)
{
    const gb_cuda_repacked *of = (const gb_cuda_repacked *)prepared;
    return (operation == 1 || data.gate_up == 2 || of->gate_up) && (operation == 0 || data.down == 2 || of->down);
}

/* The kernels PREFIXgate-up, PREFIXdown and PREFIXlayer against what is expected. Mismatches. */
size_t check_kernels(const struct gb_kernel_table *table, layer &one, const std::string &prefix, const data_of &data,
                     const results &expected, size_t *outputs)
{
    size_t bad[3] = {0, 0, 0};
    const size_t intermediate = expected.intermediate.size(), output = expected.output.size();
    for (int operation = 0; operation < 3; operation++) {
        const struct gb_kernel *kernel = find(table, prefix + operators[operation]);
        struct gb_arguments a = one.arguments;
        one.poison();
        if (operation == 1)
            require(cudaMemcpy(a.intermediate, expected.intermediate.data(), intermediate * 2, cudaMemcpyHostToDevice));
        if (kernel->prepare)
            require_ok(kernel->prepare(&a, &a.prepared, &failure), kernel->name);
        if (kernel->prepare && !is_repacked(a.prepared, operation, data))
            printf("NOT REPACKED %s\n", kernel->name), bad[operation]++;
        require_ok(kernel->run(&a, &failure), kernel->name);
        require(cudaDeviceSynchronize());
        if (operation != 1)
            bad[operation] +=
                mismatches(expected.intermediate, download((const uint16_t *)a.intermediate, intermediate));
        if (operation != 0)
            bad[operation] += mismatches(expected.output, download((const float *)a.output, output));
        if (kernel->release)
            kernel->release(a.prepared);
        *outputs += (operation != 1 ? intermediate : 0) + (operation ? output : 0);
    }
    const struct gb_shape &s = one.shape;
    if (bad[0] + bad[1] + bad[2])
        printf("MISMATCH %slayer %u,%u,%u,%u batch %u: gate_up %zu, down %zu, layer %zu\n", prefix.c_str(), s.experts,
               s.top_k, s.hidden, s.intermediate, s.tokens, bad[0], bad[1], bad[2]);
    return bad[0] + bad[1] + bad[2];
}

/* What the canonical kernel of fma32 makes of a problem, which test_gpu checks; nothing where it has too long rows. */
bool canonical_fma32(const struct gb_kernel_table *table, layer &one, results *found)
{
    const struct gb_kernel *kernel = find(table, "cuda/nvfp4-layer");
    struct gb_problem problem = {};
    problem.size = sizeof problem;
    problem.shape = one.shape;
    problem.weights = GB_NVFP4;
    if (kernel->supports(&problem, &failure) != GB_OK)
        return false;
    one.poison();
    require_ok(kernel->run(&one.arguments, &failure), kernel->name);
    require(cudaDeviceSynchronize());
    found->intermediate =
        download((const uint16_t *)one.arguments.intermediate, one.ids.size() * one.shape.intermediate);
    found->output = download((const float *)one.arguments.output, (size_t)one.shape.tokens * one.shape.hidden);
    return true;
}

/* Every kernel of a format on one problem. Mismatches. */
size_t check_problem(const struct gb_kernel_table *table, enum gb_format format, const struct gb_shape &s,
                     uint64_t seed, const data_of &data, int kind, size_t *outputs)
{
    matrix first = random_matrix(format, s.experts, 2 * s.intermediate, s.hidden, 2, seed * 7, data.gate_up);
    matrix second = random_matrix(format, s.experts, s.hidden, s.intermediate, 1, seed * 7 + 3, data.down);
    layer one(table, s, first, second, seed, data.x, kind);
    struct gb_weights host[2] = {first.device, second.device};
    std::vector<uint8_t> bytes[4];
    for (int i = 0; i < 2; i++) {
        const size_t weights = (size_t)host[i].experts * host[i].rows * host[i].columns;
        bytes[2 * i] = download((const uint8_t *)host[i].codes, code_bytes(format, weights));
        bytes[2 * i + 1] = download((const uint8_t *)host[i].scales, scale_bytes(format, weights));
        host[i].codes = bytes[2 * i].data();
        host[i].scales = bytes[2 * i + 1].data();
        host[i].global_scales = format == GB_NVFP4 ? (i ? second : first).globals.data() : NULL;
    }
    results expected;
    expected.intermediate = cpu_gate_up(s, host[0], one.ids, one.x);
    expected.output = cpu_down(s, host[1], one.ids, one.routing, expected.intermediate);
    size_t wrong = 0;
    for (int layout = 0; layout < 2; layout++)
        wrong += check_kernels(table, one, kernel_of(format, layout), data, expected, outputs);
    if (format == GB_NVFP4 && canonical_fma32(table, one, &expected))
        wrong += check_kernels(table, one, "cuda/nvfp4-repacked-", data, expected, outputs);
    one.release();
    release(first);
    release(second);
    return wrong;
}

/* Of the last shape, a block has more units than items at once (gpu/mma16_turns.cuh). */
int check(const struct gb_kernel_table *table, uint64_t seed)
{
    static const struct gb_shape shapes[] = {{0, 2048, 512, 64, 10}, {0, 2048, 768, 24, 8}, {0, 7168, 2048, 6, 4},
                                             {0, 1552, 368, 12, 3},  {0, 1664, 416, 9, 5},  {0, 128, 64, 4, 2},
                                             {0, 16, 16, 2, 1},      {0, 272, 1040, 5, 4},  {0, 64, 32, 600, 7},
                                             {0, 1568, 96, 7, 3},    {0, 32768, 64, 40, 3}};
    static const uint32_t batches[] = {1, 2, 5, 8, 9, 17, 33, 64, 200};
    size_t cases = 0, outputs = 0, wrong = 0;
    for (const auto &f : formats)
        for (const struct gb_shape &base : shapes)
            for (uint32_t tokens : batches) {
                if ((size_t)base.hidden * base.intermediate * tokens > 100u << 20 && tokens > 17)
                    continue;
                if (f.format != GB_NVFP4 && (base.hidden % 32 || base.intermediate % 32))
                    continue;
                const int kind = (int)(mix(seed + 3 * cases + 1) % 3);
                const auto of_three = [&](uint64_t stream) { return (int)(mix(seed + cases + stream) % 3); };
                data_of data = {of_three(1u << 20), of_three(1u << 21), of_three(0)};
                if ((size_t)base.hidden * base.intermediate * tokens > 16u << 20)
                    data = {}; /* the reference leaves the others to its plain definition, which is slow */
                struct gb_shape s = base;
                s.tokens = tokens;
                wrong += check_problem(table, f.format, s, seed + cases, data, kind, &outputs);
                cases++;
            }
    printf("check: %zu problems, %zu outputs, %zu mismatches\n", cases, outputs, wrong);
    return wrong != 0;
}

/* Only reads: four loads of 16 bytes under way in a thread. */
__global__ void __launch_bounds__(512) read_kernel(const uint4 *from, size_t count, uint32_t *sink)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    uint32_t sum = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += 4 * stride) {
        uint4 words[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            words[k] = i + k * stride < count ? __ldg(from + i + k * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++)
            sum ^= words[k].x ^ words[k].y ^ words[k].z ^ words[k].w;
    }
    if (sum == 0x12345678u)
        *sink = sum;
}

/* Some outputs of a run of gate_up and down against the CPU. */
size_t samples_wrong(const layer &one, uint64_t seed)
{
    const struct gb_shape &s = one.shape;
    const std::vector<uint16_t> intermediate =
        download((const uint16_t *)one.arguments.intermediate, one.ids.size() * s.intermediate);
    const std::vector<float> output = download((const float *)one.arguments.output, (size_t)s.tokens * s.hidden);
    size_t wrong = 0;
    for (uint64_t i = 0; i < 48; i++) {
        const size_t pair = mix(seed + i) % one.ids.size();
        const uint32_t neuron = (uint32_t)(mix(seed + i + 1000) % s.intermediate);
        const uint32_t expert = (uint32_t)one.ids[pair];
        const one_row gate(one.gate_up, expert, neuron), up(one.gate_up, expert, s.intermediate + neuron);
        const arranged x(one.gate_up.device.format, &one.x[pair / s.top_k * s.hidden], 1, s.hidden);
        float values[2];
        dots(&gate.weights, 0, 0, 1, 1, x.pointers.data(), &values[0]);
        dots(&up.weights, 0, 0, 1, 1, x.pointers.data(), &values[1]);
        wrong += finished(values[0], values[1]) != intermediate[pair * s.intermediate + neuron];
        const uint32_t token = (uint32_t)(pair / s.top_k), h = (uint32_t)(mix(seed + i + 2000) % s.hidden);
        float y = 0;
        for (uint32_t j = 0; j < s.top_k; j++) {
            const size_t p = (size_t)token * s.top_k + j;
            const one_row row(one.down, (uint32_t)one.ids[p], h);
            const arranged m(one.down.device.format, (const gb_bf16 *)&intermediate[p * s.intermediate], 1,
                             s.intermediate);
            dots(&row.weights, 0, 0, 1, 1, m.pointers.data(), &values[0]);
            y = fmaf(one.routing[p], values[0], y);
        }
        wrong += !same(y, output[(size_t)token * s.hidden + h]);
    }
    return wrong;
}

/* only: the label of one kernel, or NULL. */
int measure(const struct gb_kernel_table *table, enum gb_format format, const char *only, struct gb_shape s,
            const std::vector<uint32_t> &batches, const char *command)
{
    matrix first = random_matrix(format, s.experts, 2 * s.intermediate, s.hidden, 2, 1, 0);
    matrix second = random_matrix(format, s.experts, s.hidden, s.intermediate, 1, 2, 0);
    const size_t weights =
        (size_t)s.experts * 2 * s.intermediate * s.hidden; /* of gate_up: the most that one read needs */
    const size_t arena =
        std::max((size_t)1 << 32, (code_bytes(format, weights) + scale_bytes(format, weights)) / 16 * 16 + 1024);
    uint8_t *memory = on_device<uint8_t>(arena);
    fill(memory, arena, 5, ANY, 0);
    uint32_t *sink = on_device<uint32_t>(1);
    std::vector<std::string> kernels = {kernel_of(format, 0), kernel_of(format, 1)};
    std::vector<std::string> labels = {"canonical", "repacked"};
    for (const auto &f : formats)
        if (f.format == format && f.baseline) {
            kernels.push_back(f.baseline);
            labels.push_back("fma32");
        }
    if (format == GB_NVFP4) {
        kernels.insert(kernels.end(),
                       {"cuda/nvfp4-repacked-", "cuda/eight-stages-", "cuda/warp-decode-", "cuda/warp-decode-table-"});
        labels.insert(labels.end(), {"fma32 repacked", "eight stages", "warp decode", "warp decode by table"});
    }
    for (size_t k = kernels.size(); only && k-- > 0;)
        if (labels[k] != only) {
            kernels.erase(kernels.begin() + (ptrdiff_t)k);
            labels.erase(labels.begin() + (ptrdiff_t)k);
        }
    std::vector<void *> prepared(kernels.size());
    size_t wrong = 0;
    for (size_t k = 0; k < kernels.size(); k++) {
        const struct gb_kernel *kernel = find(table, kernels[k] + "layer");
        struct gb_arguments a = {};
        a.size = sizeof a;
        a.shape = s;
        a.shape.tokens = 1;
        a.gate_up = first.device;
        a.down = second.device;
        if (kernel->prepare)
            require_ok(kernel->prepare(&a, &prepared[k], &failure), kernel->name);
    }
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    printf("{");
    print_provenance(stdout, "gaugeblock.mma16/1", command);
    printf(
        ", \"device\": \"%s\", \"weights\": \"%s\", \"experts\": %u, \"top_k\": %u, \"hidden\": %u, \"intermediate\": %u,\n"
        " \"times\": \"of a run: microseconds, and times the bare read (a routed layer's: that of a layer)\",\n \"batches\": [\n",
        properties.name, name_of(format), s.experts, s.top_k, s.hidden, s.intermediate);
    for (uint32_t batch : batches) {
        s.tokens = batch;
        const uint32_t layers = layers_of(batch);
        std::vector<layer> all;
        double bytes[3] = {0, 0, 0};
        for (uint32_t i = 0; i < layers; i++) {
            all.emplace_back(table, s, first, second, 100 + i, 0, UNIFORM);
            bytes[0] += all[i].bytes(true) / layers;
            bytes[1] += all[i].bytes(false) / layers;
        }
        bytes[2] = bytes[0] + bytes[1];
        double read[3];
        const auto reads = [&](double amount, uint32_t i, cudaStream_t stream) {
            const size_t count = (size_t)amount / 16, spare = arena / 16 - count;
            const size_t at = spare ? (size_t)(mix(i * 31 + (uint64_t)amount) % spare) / 64 * 64 : 0;
            read_kernel<<<132 * 4, 512, 0, stream>>>((const uint4 *)memory + at, count, sink);
        };
        for (int i = 0; i < 2; i++)
            read[i] = median_us(layers, [&](uint32_t n, cudaStream_t stream) { reads(bytes[i], n, stream); });
        read[2] = median_us(layers, [&](uint32_t n, cudaStream_t stream) {
            reads(bytes[0], n, stream);
            reads(bytes[1], n + 1000, stream);
        });
        printf("  {\"batch\": %u, \"megabytes\": %.1f, \"read\": [%.1f, %.1f, %.1f]", batch, bytes[2] / 1e6, read[0],
               read[1], read[2]);
        for (size_t k = 0; k < kernels.size(); k++) {
            const char *names[4] = {"gate-up", "down", "layer", "routed-layer"};
            double us[4] = {0, 0, 0, 0};
            for (int o = 0; o < 4; o++) {
                const struct gb_kernel *kernel = look_up(table, kernels[k] + names[o]);
                if (!kernel)
                    continue;
                us[o] = median_us(layers, [&](uint32_t n, cudaStream_t stream) {
                    struct gb_arguments a = all[n].arguments;
                    a.stream = stream;
                    a.prepared = prepared[k];
                    require_ok(kernel->run(&a, &failure), kernel->name);
                });
                if (o == 2 && !strcmp(kernel->order, GB_ORDER_MMA16_SM90))
                    for (uint32_t n = 0; n < layers; n += layers - 1)
                        wrong += samples_wrong(all[n], 77 + n);
            }
            printf(", \"%s\": {", labels[k].c_str());
            for (int o = 0, some = 0; o < 4; o++)
                if (us[o] > 0)
                    printf("%s\"%s\": [%.1f, %.2f]", some++ ? ", " : "", names[o], us[o], us[o] / read[std::min(o, 2)]);
            printf("}");
        }
        printf("}%s\n", batch == batches.back() ? "" : ",");
        fflush(stdout);
        for (layer &one : all)
            one.release();
    }
    for (size_t k = 0; k < kernels.size(); k++)
        if (prepared[k])
            find(table, kernels[k] + "layer")->release(prepared[k]);
    release(first);
    release(second);
    cudaFree(memory);
    cudaFree(sink);
    printf(" ],\n \"sampled_outputs_wrong\": %zu}\n", wrong);
    return wrong != 0;
}

int once(const struct gb_kernel_table *table)
{
    const struct gb_shape shapes[] = {
        {9, 2048, 512, 6, 4}, {3, 288, 96, 5, 2}, {5, 320, 192, 4, 2}, {150, 128, 64, 4, 2}};
    size_t outputs = 0, wrong = 0;
    for (const auto &f : formats)
        for (const struct gb_shape &s : shapes)
            wrong += check_problem(table, f.format, s, 3, {}, HOLES, &outputs);
    printf("once: %zu outputs, %zu mismatches\n", outputs, wrong);
    return wrong != 0;
}

} // namespace

int main(int argc, char **argv)
{
    int devices = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: bench_mma16 LIBRARY check [SEED] | time FORMAT SHAPE [BATCH...] | once\n");
        return 2;
    }
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return skip("no CUDA device");
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("FAILED: %s\n", dlerror());
        return 1;
    }
    const struct gb_kernel_table *table = ((gb_kernels_function)dlsym(library, GB_KERNELS_SYMBOL))();
    const std::string mode = argv[2];
    if (mode == "check")
        return check(table, argc > 3 ? strtoull(argv[3], NULL, 10) : 1);
    if (mode == "once")
        return once(table);
    enum gb_format format = GB_NVFP4;
    const char *only = argc > 3 ? strchr(argv[3], ':') : NULL;
    for (const auto &f : formats)
        if (argc > 3 && !strncmp(argv[3], f.name, strlen(f.name)))
            format = f.format;
    struct gb_shape s = {1, 2048, 512, 512, 10};
    if (argc > 4 && !strcmp(argv[4], "qwen3-30b"))
        s = {1, 2048, 768, 128, 8};
    else if (argc > 4 && !strcmp(argv[4], "deepseek-v3"))
        s = {1, 7168, 2048, 256, 8};
    else if (argc > 4 && strchr(argv[4], ','))
        sscanf(argv[4], "%u,%u,%u,%u", &s.experts, &s.top_k, &s.hidden, &s.intermediate);
    std::vector<uint32_t> batches;
    for (int i = 5; i < argc; i++)
        batches.push_back((uint32_t)strtoul(argv[i], NULL, 10));
    if (batches.empty())
        batches = {1, 2, 4, 8, 16, 32, 64};
    std::string command = "bench_mma16";
    for (int i = 2; i < argc; i++)
        command += std::string(" ") + argv[i];
    return measure(table, format, only ? only + 1 : NULL, s, batches, command.c_str());
}
