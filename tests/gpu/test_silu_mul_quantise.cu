/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda/quantise and cuda/silu-mul-quantise against the CPU reference, bit for bit: every recipe that is defined for
 * them; bf16 and fp16; every form and rounding of silu * up; both scale layouts; with and without a bound; model
 * widths, 1 to 4,096 tokens; gaussian, tie-aligned and edge data. Outputs are poisoned and surrounded by canaries.
 * Every third case runs in a CUDA graph. Prints one JSON document; exit 1 on any difference.
 * --brief: a case or two by each recipe, for compute-sanitizer.
 *
 * usage: test_silu_mul_quantise LIBRARY [--brief]
 */
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "reference/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/quantise_data.cuh"
#include "tests/support/provenance.h"

namespace
{

constexpr size_t canary = 256; /* bytes before and after every output */

const struct gb_device *device;
const struct gb_kernel *kernels[2]; /* quantise, silu_mul_quantise */

void check(enum gb_status status, const struct gb_error &error, const char *what)
{
    require_at(status == GB_OK, what, error.message, __LINE__);
}

struct named_rules {
    std::string name;
    struct gb_quantiser rules;
};

struct tally {
    uint64_t cases, codes, nonzero, scales, wrong;
} total[KINDS];

/* Where the outputs lie in one piece of memory, with canaries around them. */
struct image {
    size_t codes, scales, code_bytes, scale_bytes, bytes;
};

image image_of(const struct gb_quantisation &q)
{
    image m = {};
    struct gb_error error;
    check(gb_quantiser_bytes(&q.quantiser, q.rows, q.columns, &m.code_bytes, &m.scale_bytes, &error), error, "bytes");
    const auto aligned = [](size_t n) { return (n + 255) / 256 * 256; };
    m.codes = canary;
    m.scales = m.codes + aligned(m.code_bytes) + canary;
    m.bytes = m.scales + aligned(m.scale_bytes) + canary;
    return m;
}

struct buffers {
    std::vector<uint16_t> values;
    std::vector<unsigned char> expected, found;
    void *in = NULL, *out = NULL;
    size_t in_bytes = 0, out_bytes = 0;
} memory;

void reserve(void **pointer, size_t *have, size_t bytes)
{
    struct gb_error error;
    if (bytes <= *have)
        return;
    device->release(*pointer);
    check(device->allocate(bytes, pointer, &error), error, "allocate");
    *have = bytes;
}

void report(const struct gb_quantisation &q, const named_rules &n, enum data_kind kind, uint64_t seed, const image &m,
            size_t at)
{
    const bool scale = at >= m.scales && at < m.scales + m.scale_bytes;
    const bool code = at >= m.codes && at < m.codes + m.code_bytes;
    const size_t i = at - (scale ? m.scales : m.codes), per_row = q.columns / (q.quantiser.element == GB_E2M1 ? 2 : 1);
    fprintf(stderr,
            "MISMATCH %s, %s, input %d, %u x %u, silu %d, roundings %d %d, layout %d, bound %g, %s, seed %llu: %s byte "
            "%zu",
            q.input_columns == q.columns ? "quantise" : "silu_mul_quantise", n.name.c_str(), (int)q.input, q.rows,
            q.columns, (int)q.silu, (int)q.activated, (int)q.product, (int)q.layout, (double)q.bound, kind_names[kind],
            (unsigned long long)seed,
            scale  ? "scale"
            : code ? "code"
                   : "canary",
            scale || code ? i : at);
    if (code)
        fprintf(stderr, " (row %zu, byte %zu)", i / per_row, i % per_row);
    fprintf(stderr, ": expected %02X, got %02X\n", memory.expected[at], memory.found[at]);
}

/* The kernel, captured in a CUDA graph that is replayed when the question is gone from host memory. */
void run_in_graph(const struct gb_kernel &kernel, struct gb_arguments a)
{
    struct gb_error error;
    struct gb_quantisation q = *a.quantise;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    a.quantise = &q;
    a.stream = stream;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check(kernel.run(&a, &error), error, "run while capturing");
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    memset(&q, 0xFF, sizeof q);
    require(cudaGraphLaunch(exec, stream));
    require(cudaStreamSynchronize(stream));
    require(cudaGraphExecDestroy(exec));
    require(cudaGraphDestroy(graph));
    require(cudaStreamDestroy(stream));
}

/* One case; every third one in a graph. */
void run_case(const struct gb_quantisation &q, const named_rules &n, enum data_kind kind, uint64_t seed)
{
    const bool gated = q.input_columns != q.columns;
    const struct gb_kernel &kernel = *kernels[gated];
    const unsigned char poison = seed % 2 ? 0xA5 : 0x5A;
    const image m = image_of(q);
    struct gb_error error;
    fill(memory.values, q, kind, seed);
    memory.expected.assign(m.bytes, poison);
    memory.found.assign(m.bytes, poison);
    struct gb_arguments a = {};
    a.size = sizeof a;
    a.quantise = &q;
    a.values = memory.values.data();
    a.codes = memory.expected.data() + m.codes;
    a.scales = memory.expected.data() + m.scales;
    check(gated ? gb_reference_silu_mul_quantise(&a, &error) : gb_reference_quantise(&a, &error), error, "reference");
    const size_t bytes = memory.values.size() * sizeof(uint16_t);
    reserve(&memory.in, &memory.in_bytes, bytes);
    reserve(&memory.out, &memory.out_bytes, m.bytes);
    check(device->upload(memory.in, memory.values.data(), bytes, &error), error, "upload");
    check(device->upload(memory.out, memory.found.data(), m.bytes, &error), error, "upload");
    a.values = memory.in;
    a.codes = (unsigned char *)memory.out + m.codes;
    a.scales = (unsigned char *)memory.out + m.scales;
    if (seed % 3 == 0)
        run_in_graph(kernel, a);
    else
        check(kernel.run(&a, &error), error, kernel.name);
    check(device->synchronise(&error), error, n.name.c_str());
    check(device->download(memory.found.data(), memory.out, m.bytes, &error), error, "download");
    struct tally &t = total[kind];
    t.cases++;
    t.codes += (uint64_t)q.rows * q.columns;
    t.scales += (uint64_t)q.rows * (q.columns / q.quantiser.block_columns);
    for (size_t i = m.codes; i < m.codes + m.code_bytes; i++)
        t.nonzero += (memory.expected[i] & 0x7F) != 0;
    if (memcmp(memory.expected.data(), memory.found.data(), m.bytes) == 0)
        return;
    bool first = t.wrong < 20;
    for (size_t i = 0; i < m.bytes; i++)
        if (memory.expected[i] != memory.found[i]) {
            t.wrong++;
            if (first)
                report(q, n, kind, seed, m, i);
            first = false;
        }
}

struct gb_quantisation question(const named_rules &n, bool gated, uint32_t rows, uint32_t columns)
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
    q.quantiser = n.rules;
    q.bound = INFINITY;
    check(gb_quantiser_global(&n.rules, 40.0f, &q.global_scale, &error), error, n.name.c_str());
    return q;
}

/* The i-th combination of input, layout, bound, form and roundings; there are 72 for a gated operator, 8 for a plain
 * one. */
struct gb_quantisation combined(struct gb_quantisation q, uint32_t i)
{
    q.input = i % 2 ? GB_FP16 : GB_BF16;
    q.layout = i / 2 % 2 ? GB_SCALES_TRANSPOSED : GB_SCALES_LINEAR;
    q.bound = i / 4 % 2 && q.quantiser.bound != GB_BOUND_NONE ? 0.015625f * 1.3f : INFINITY;
    if (q.input_columns != q.columns) {
        q.silu = (enum gb_silu_form)(1 + i / 8 % 3);
        q.activated = i / 24 % 3 == 2 ? q.input : GB_FP32;
        q.product = i / 24 % 3 >= 1 ? q.input : GB_FP32;
    }
    return q;
}

/* Every recipe that a row of blocks can be quantised by. */
std::vector<named_rules> all_rules()
{
    std::vector<named_rules> rules;
    size_t count = 0;
    const struct gb_recipe *recipes = gb_recipes(&count);
    for (size_t i = 0; i < count; i++)
        if (recipes[i].quantiser.element) {
            const named_rules n = {recipes[i].name, recipes[i].quantiser};
            const struct gb_quantisation q = question(n, false, 1, 7168);
            struct gb_problem problem = {};
            struct gb_error error;
            problem.size = sizeof problem;
            problem.quantise = &q;
            if (kernels[0]->supports(&problem, &error) == GB_OK)
                rules.push_back(n);
            else
                fprintf(stderr, "not for this operator: %s: %s\n", n.name.c_str(), error.message);
        }
    return rules;
}

void run_kinds(const named_rules &n, const struct gb_quantisation &q, uint64_t seed)
{
    for (int kind = 0; kind < KINDS; kind++)
        run_case(q, n, (enum data_kind)kind, seed + (uint64_t)kind);
}

/* Both operators by every recipe, one combination each: enough for compute-sanitizer. */
void test_briefly(const std::vector<named_rules> &rules)
{
    uint32_t combination = 0;
    uint64_t seed = 1;
    for (const named_rules &n : rules)
        for (int gated = 0; gated < 2; gated++)
            run_kinds(n, combined(question(n, gated, 33, 512), combination += 5), seed++);
}

void test_operators(const std::vector<named_rules> &rules)
{
    static const uint32_t widths[] = {512, 768, 1024, 1408, 2048, 2880, 7168, 14336};
    static const uint32_t tokens[] = {1, 5, 16};
    uint64_t seed = 1;
    uint32_t combination = 0;
    for (const named_rules &n : rules)
        for (int gated = 0; gated < 2; gated++) {
            for (uint32_t i = 0; i < (gated ? 72u : 8u); i++)
                run_kinds(n, combined(question(n, gated, 33, 512), i), seed++);
            for (uint32_t width : widths)
                for (uint32_t t : tokens)
                    if (width % n.rules.block_columns == 0)
                        run_kinds(n, combined(question(n, gated, t, width), combination += 5), seed++);
        }
    for (const char *name : {"fp8g128.vllm-fused/1", "int8g128.vllm-fused/1", "nvfp4.modelopt/1", "mxfp8.rceil/1"}) {
        const named_rules n = {name, gb_recipe_find(name)->quantiser};
        for (bool gated : {false, true})
            for (uint32_t t : {300u, 4096u})
                run_kinds(n, combined(question(n, gated, t, 7168), combination += 5), seed++);
    }
    const named_rules fp8 = {"fp8g128.vllm-fused/1", gb_recipe_find("fp8g128.vllm-fused/1")->quantiser};
    run_kinds(fp8, combined(question(fp8, true, 4096, 14336), 0), seed++);
}

/* Every kind of data must have been compared, on codes that are not zeros. */
int report(bool brief, const char *gpu, size_t recipes)
{
    uint64_t bad = 0;
    printf("{");
    print_provenance(stdout, "gaugeblock.silu-mul-quantise/1",
                     brief ? "test_silu_mul_quantise --brief" : "test_silu_mul_quantise");
    printf(", \"device\": \"%s\", \"recipes\": %zu,\n\"operators\": [", gpu, recipes);
    for (int k = 0; k < KINDS; k++) {
        const struct tally &t = total[k];
        printf("%s\n{\"data\": \"%s\", \"cases\": %llu, \"codes\": %llu, \"nonzero_bytes\": %llu, \"scales\": %llu, "
               "\"differing_bytes\": %llu}",
               k ? "," : "", kind_names[k], (unsigned long long)t.cases, (unsigned long long)t.codes,
               (unsigned long long)t.nonzero, (unsigned long long)t.scales, (unsigned long long)t.wrong);
        bad += t.wrong || t.nonzero * 8 < t.codes;
    }
    printf("],\n\"result\": \"%s\"}\n", bad ? "FAIL" : "PASS");
    return bad ? 1 : 0;
}

} // namespace

int main(int argc, char **argv)
{
    const bool brief = argc == 3 && strcmp(argv[2], "--brief") == 0;
    if (argc < 2 || (argc > 2 && !brief)) {
        fprintf(stderr, "usage: test_silu_mul_quantise LIBRARY [--brief]\n");
        return 2;
    }
    char text[256];
    struct gb_error error;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    require_at(library != NULL, argv[1], "cannot be loaded", __LINE__);
    const auto table = ((gb_kernels_function)dlsym(library, GB_KERNELS_SYMBOL))();
    device = ((gb_device_function)dlsym(library, GB_DEVICE_SYMBOL))();
    if (device->describe(text, sizeof text, &error) != GB_OK)
        return skip(error.message);
    for (uint32_t k = 0; k < table->count; k++)
        if (table->kernels[k].operation == GB_QUANTISE || table->kernels[k].operation == GB_SILU_MUL_QUANTISE)
            kernels[table->kernels[k].operation == GB_SILU_MUL_QUANTISE] = &table->kernels[k];
    require_at(kernels[0] && kernels[1], "kernels", "are not in the library", __LINE__);
    const std::vector<named_rules> rules = all_rules();
    brief ? test_briefly(rules) : test_operators(rules);
    return report(brief, text, rules.size());
}
