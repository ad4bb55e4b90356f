/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda/route against the CPU reference, bit for bit: every router recipe and recipes at random, the widths of published
 * models, batches 1 to 4096, gaussian, tied, edge and negatively biased data, outputs and workspace poisoned with two
 * patterns, canaries around every buffer, inputs unchanged; CUDA-graph replays. With FILE, the counts as JSON.
 *
 * usage: test_route LIBRARY [FILE]
 */
#include <cmath>
#include <cstring>
#include <vector>

#include <dlfcn.h>

#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/route_problem.cuh"
#include "tests/support/provenance.h"

namespace
{

constexpr size_t canary_bytes = 256;
constexpr unsigned char canary = 0xC7;
constexpr uint64_t seed = 20251121;
constexpr uint32_t random_recipes = 2000;

const struct gb_device *device;
const struct gb_kernel *kernel;

struct tally {
    uint64_t pairs, mismatched, finite, bytes; /* bytes: outside the outputs, changed */
} total[64][KINDS], random_total;

void check(enum gb_status status, const struct gb_error &error, const char *what)
{
    if (status != GB_OK) {
        printf("FAILED: %s: %s\n", what, error.message);
        exit(1);
    }
}

/* Buffers one after the other, canaries between them. */
struct arena {
    std::vector<unsigned char> image;
    size_t add(const void *content, size_t bytes)
    {
        const size_t at = image.size();
        image.resize(at + (bytes + 255) / 256 * 256 + canary_bytes, canary);
        if (content)
            memcpy(&image[at], content, bytes);
        return at;
    }
};

struct gb_problem ask(const struct problem &p, const struct gb_router *recipe)
{
    struct gb_problem question = {};
    question.size = sizeof question;
    question.shape = p.shape;
    question.weights = GB_BF16;
    question.router = recipe;
    return question;
}

/* A problem laid out in device memory. */
struct layout {
    struct arena arena;
    size_t x, router, bias, ids, weights, workspace, workspace_bytes;

    layout(const struct problem &p, const struct gb_router *router_recipe)
    {
        const struct gb_problem question = ask(p, router_recipe);
        const size_t pairs = (size_t)p.shape.tokens * p.shape.top_k;
        workspace_bytes = kernel->workspace ? kernel->workspace(&question) : 0;
        arena.image.assign(canary_bytes, canary);
        x = arena.add(p.x.data(), p.x.size() * sizeof(gb_bf16));
        router = arena.add(p.router.data(), p.router.size() * sizeof(gb_bf16));
        bias = arena.add(p.bias.data(), p.bias.size() * sizeof(float));
        ids = arena.add(NULL, pairs * sizeof(int32_t));
        weights = arena.add(NULL, pairs * sizeof(float));
        workspace = arena.add(NULL, workspace_bytes);
    }

    struct gb_arguments arguments(const struct problem &p, const struct gb_router *recipe, void *base) const
    {
        unsigned char *at = (unsigned char *)base;
        struct gb_arguments a = {};
        a.size = sizeof a;
        a.shape = p.shape;
        a.x = (const gb_bf16 *)(at + x);
        a.router = recipe;
        a.router_weights = {GB_BF16, 1, p.shape.experts, p.shape.hidden, 1, at + router, NULL, NULL};
        a.router_bias = (const float *)(at + bias);
        a.routed_ids = (int32_t *)(at + ids);
        a.routed_weights = (float *)(at + weights);
        a.workspace = at + workspace;
        return a;
    }
};

/* Compares the whole image with what it must be; the workspace may hold anything. */
void compare(const struct problem &p, const struct layout &l, const std::vector<unsigned char> &expected,
             const std::vector<unsigned char> &found, const char *label, struct tally &tally)
{
    const size_t pairs = (size_t)p.shape.tokens * p.shape.top_k;
    const int32_t *want_ids = (const int32_t *)&expected[l.ids], *ids = (const int32_t *)&found[l.ids];
    const float *want = (const float *)&expected[l.weights], *weights = (const float *)&found[l.weights];
    for (size_t i = 0; i < pairs; i++) {
        const bool same =
            want_ids[i] == ids[i] && ((isnan(want[i]) && isnan(weights[i])) || !memcmp(&want[i], &weights[i], 4));
        if (!same && tally.mismatched++ == 0)
            printf("MISMATCH %s: token %zu, slot %zu: expected expert %d with %a, got %d with %a\n", label,
                   i / p.shape.top_k, i % p.shape.top_k, want_ids[i], (double)want[i], ids[i], (double)weights[i]);
        tally.finite += isfinite(want[i]) && want[i] != 0;
    }
    tally.pairs += pairs;
    const size_t between[][2] = {{0, l.ids},
                                 {l.ids + pairs * 4, l.weights},
                                 {l.weights + pairs * 4, l.workspace},
                                 {l.workspace + l.workspace_bytes, found.size()}};
    for (const size_t(&range)[2] : between) {
        if (!memcmp(&found[range[0]], &expected[range[0]], range[1] - range[0]))
            continue;
        for (size_t i = range[0]; i < range[1]; i++)
            if (found[i] != expected[i] && tally.bytes++ == 0)
                printf("MISMATCH %s: byte %zu outside the outputs changed\n", label, i);
    }
}

/* What the image must be after a run, from the CPU reference. */
std::vector<unsigned char> expect(const struct problem &p, const struct layout &l, const struct gb_router *recipe)
{
    struct gb_error error;
    std::vector<unsigned char> expected = l.arena.image;
    struct gb_arguments a = l.arguments(p, recipe, expected.data());
    check(fma32_router(&a, &error), error, "reference");
    return expected;
}

void run_problem(const struct problem &p, const char *name, const struct gb_router &recipe, struct tally &tally)
{
    struct gb_error error;
    char label[256];
    const struct gb_problem question = ask(p, &recipe);
    snprintf(label, sizeof label, "%s, %u tokens, hidden %u, top %u of %u, %s", name, p.shape.tokens, p.shape.hidden,
             p.shape.top_k, p.shape.experts, kind_names[p.kind]);
    check(kernel->supports(&question, &error), error, label);
    struct layout l(p, &recipe);
    const std::vector<unsigned char> expected = expect(p, l, &recipe);
    std::vector<unsigned char> found(expected.size());
    const size_t pairs = (size_t)p.shape.tokens * p.shape.top_k;
    void *memory;
    check(device->allocate(found.size(), &memory, &error), error, label);
    for (int poison : {0xA5, 0x5A}) {
        memset(&l.arena.image[l.ids], poison, pairs * 4);
        memset(&l.arena.image[l.weights], poison, pairs * 4);
        memset(l.arena.image.data() + l.workspace, poison, l.workspace_bytes);
        check(device->upload(memory, l.arena.image.data(), found.size(), &error), error, label);
        struct gb_arguments a = l.arguments(p, &recipe, memory);
        check(kernel->run(&a, &error), error, label);
        check(device->synchronise(&error), error, label);
        check(device->download(found.data(), memory, found.size(), &error), error, label);
        compare(p, l, expected, found, label, tally);
    }
    device->release(memory);
}

/* tokens is set by the tests: hidden, experts and top_k of published models, and odd sizes. */
const struct gb_shape models[] = {
    {0, 2048, 1, 512, 10}, /* Qwen3-Next */
    {0, 2048, 1, 128, 8},  /* Qwen3-30B-A3B */
    {0, 2048, 1, 64, 8},   /* OLMoE */
    {0, 4096, 1, 8, 2},    /* Mixtral-8x7B */
    {0, 2880, 1, 128, 4},  /* gpt-oss-120b */
    {0, 7168, 1, 256, 8},  /* DeepSeek-V3 */
    {0, 7168, 1, 384, 8},  /* Kimi-K2 */
    {0, 5120, 1, 128, 1},  /* Llama-4 Maverick */
    {0, 384, 1, 16, 4},    {0, 8, 1, 1, 1}, {0, 40, 1, 33, 33}, {0, 264, 1, 24, 7}, {0, 1032, 1, 1000, 20},
};

/* All recipes and kinds at small batches; at large ones the recipes take the kinds in turn. */
void test_models()
{
    size_t recipes;
    const struct gb_router_recipe *recipe = gb_router_recipes(&recipes);
    for (struct gb_shape shape : models)
        for (uint32_t tokens : {1u, 2u, 3u, 4u, 5u, 8u, 33u, 256u, 1024u, 4096u}) {
            shape.tokens = tokens;
            for (unsigned k = 0; k < KINDS; k++) {
                const struct problem p = make(shape, (enum kind)k, seed + tokens);
                for (size_t r = 0; r < recipes; r++)
                    if (shape.experts % recipe[r].router.groups == 0 &&
                        (tokens <= 8 || r % KINDS == (k + tokens) % KINDS))
                        run_problem(p, recipe[r].name, recipe[r].router, total[r][k]);
            }
        }
}

/* Recipes that no system has. */
void test_random_recipes()
{
    uint64_t state = seed;
    for (uint32_t n = 0; n < random_recipes; n++) {
        const struct gb_router router = random_router(state);
        const struct gb_shape shape = {2 + n % 4, 16, 1, 24, 1 + random_below(state, 24)};
        char name[32];
        snprintf(name, sizeof name, "random recipe %u", n);
        run_problem(make(shape, (enum kind)(n % KINDS), seed + n), name, router, random_total);
    }
    printf("%u recipes at random: %llu pairs, %llu weights finite and not zero, %llu mismatches\n", random_recipes,
           (unsigned long long)random_total.pairs, (unsigned long long)random_total.finite,
           (unsigned long long)(random_total.mismatched + random_total.bytes));
}

/* run() captured once for each recipe; the graph replayed on three sets of inputs at the same addresses. */
uint64_t test_graph()
{
    size_t recipes;
    const struct gb_router_recipe *recipe = gb_router_recipes(&recipes);
    const struct gb_shape shape = {3, 2048, 1, 128, 8};
    struct tally tally = {};
    struct gb_error error;
    for (size_t r = 0; r < recipes; r++) {
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t exec = NULL;
        void *memory = NULL;
        require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (uint64_t i = 0; i < 3; i++) {
            const struct problem p = make(shape, (enum kind)i, seed + i);
            const struct layout l(p, &recipe[r].router);
            const std::vector<unsigned char> expected = expect(p, l, &recipe[r].router);
            std::vector<unsigned char> found(expected.size());
            if (!exec) {
                check(device->allocate(found.size(), &memory, &error), error, "allocate");
                struct gb_arguments a = l.arguments(p, &recipe[r].router, memory);
                a.stream = stream;
                require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                check(kernel->run(&a, &error), error, "run while capturing");
                require(cudaStreamEndCapture(stream, &graph));
                require(cudaGraphInstantiate(&exec, graph, 0));
            }
            check(device->upload(memory, l.arena.image.data(), found.size(), &error), error, "upload");
            require(cudaGraphLaunch(exec, stream));
            require(cudaStreamSynchronize(stream));
            check(device->download(found.data(), memory, found.size(), &error), error, "download");
            compare(p, l, expected, found, "graph replay", tally);
        }
        device->release(memory);
        require(cudaGraphExecDestroy(exec));
        require(cudaGraphDestroy(graph));
        require(cudaStreamDestroy(stream));
    }
    printf("graphs: %llu pairs compared in replays, %llu mismatches\n", (unsigned long long)tally.pairs,
           (unsigned long long)(tally.mismatched + tally.bytes));
    return tally.mismatched + tally.bytes + (tally.pairs == 0);
}

/* Every recipe must have matched everywhere, on weights of which a tenth are finite and not zero. One NaN among the
 * logits leaves a softmax nothing else, so edge data need not have any. */
unsigned report(const char *file, const char *command, const char *gpu)
{
    size_t recipes;
    unsigned bad = 0;
    const struct gb_router_recipe *recipe = gb_router_recipes(&recipes);
    FILE *out = file ? fopen(file, "w") : NULL;
    if (out) {
        fprintf(out, "{");
        print_provenance(out, "gaugeblock.route/1", command);
        fprintf(out, ", \"device\": \"%s\", \"kernel\": \"%s\", \"routers\": [", gpu, kernel->name);
    }
    for (size_t r = 0; r < recipes; r++)
        for (unsigned k = 0; k < KINDS; k++) {
            const struct tally &t = total[r][k];
            const bool vacuous = (k != EDGE && t.finite * 10 < t.pairs) || t.pairs == 0;
            printf("%-34s %-9s %10llu pairs, %10llu weights finite and not zero, %llu mismatches%s\n", recipe[r].name,
                   kind_names[k], (unsigned long long)t.pairs, (unsigned long long)t.finite,
                   (unsigned long long)(t.mismatched + t.bytes), vacuous ? " VACUOUS" : "");
            if (out)
                fprintf(out,
                        "%s\n{\"router\": \"%s\", \"data\": \"%s\", \"pairs\": %llu, \"finite_nonzero\": %llu, "
                        "\"mismatching\": %llu, \"stray_bytes\": %llu}",
                        r || k ? "," : "", recipe[r].name, kind_names[k], (unsigned long long)t.pairs,
                        (unsigned long long)t.finite, (unsigned long long)t.mismatched, (unsigned long long)t.bytes);
            bad += t.mismatched != 0 || t.bytes != 0 || vacuous;
        }
    bad += random_total.mismatched != 0 || random_total.bytes != 0 || random_total.finite * 10 < random_total.pairs;
    if (out) {
        fprintf(out,
                "],\n\"random_recipes\": {\"count\": %u, \"pairs\": %llu, \"finite_nonzero\": %llu, "
                "\"mismatching\": %llu, \"stray_bytes\": %llu}",
                random_recipes, (unsigned long long)random_total.pairs, (unsigned long long)random_total.finite,
                (unsigned long long)random_total.mismatched, (unsigned long long)random_total.bytes);
        fprintf(out, ",\n\"result\": \"%s\"}\n", bad ? "FAIL" : "PASS");
        bad += fclose(out) != 0;
    }
    return bad + (file && !out);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: test_route LIBRARY [FILE]\n");
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    const gb_device_function get_device = library ? (gb_device_function)dlsym(library, GB_DEVICE_SYMBOL) : NULL;
    const gb_kernels_function get_kernels = library ? (gb_kernels_function)dlsym(library, GB_KERNELS_SYMBOL) : NULL;
    if (!get_device || !get_kernels) {
        fprintf(stderr, "%s: not a library of kernels\n", argv[1]);
        return 1;
    }
    device = get_device();
    const struct gb_kernel_table *table = get_kernels();
    for (uint32_t k = 0; k < table->count; k++)
        if (!strcmp(table->kernels[k].name, "cuda/route"))
            kernel = &table->kernels[k];
    if (!kernel) {
        printf("FAILED: there is no cuda/route\n");
        return 1;
    }
    char text[256];
    struct gb_error error;
    if (device->describe(text, sizeof text, &error) != GB_OK)
        return skip(error.message);
    printf("%s\n", text);
    test_models();
    test_random_recipes();
    const uint64_t bad = test_graph() + report(argc > 2 ? argv[2] : NULL, "test_route", text);
    printf("%s\n", bad ? "FAILED" : "passed");
    return bad ? 1 : 0;
}
