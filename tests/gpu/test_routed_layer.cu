/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers that route by themselves against the CPU reference, bit for bit: every such kernel of libgaugeblock-cuda whose
 * activations are bf16, in its own order, several shapes, batches and recipes, and CUDA graphs, of one layer and of
 * several, captured once and replayed on other inputs.
 *
 * usage: test_routed_layer LIBRARY
 */
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <dlfcn.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/problem.h"

namespace
{

constexpr int poison = 0xA5;

const struct gb_device *device;

void check(enum gb_status status, const struct gb_error &error, const char *what)
{
    if (status != GB_OK) {
        printf("FAILED: %s: %s\n", what, error.message);
        exit(1);
    }
}

struct buffer {
    void *memory = NULL;
    size_t bytes;
    explicit buffer(size_t size) : bytes(size)
    {
        struct gb_error error;
        check(device->allocate(bytes, &memory, &error), error, "allocate");
    }
    ~buffer()
    {
        device->release(memory);
    }
    void put(const void *content)
    {
        struct gb_error error;
        check(device->upload(memory, content, bytes, &error), error, "upload");
    }
    void get(void *content)
    {
        struct gb_error error;
        check(device->download(content, memory, bytes, &error), error, "download");
    }
};

/* A problem of problem.h with a router, and what the reference makes of it. */
struct routed {
    struct problem problem;
    std::vector<gb_bf16> router; /* [experts, hidden] */
    std::vector<float> bias;     /* [experts] */
    const struct gb_router *recipe;
    std::vector<unsigned char> before, after;
    std::vector<int32_t> ids;   /* [tokens, top_k] */
    std::vector<float> weights; /* [tokens, top_k] */

    /* zeros: router weights are 0 and the least of both signs, so that logits in bf16 are zeros of both signs. */
    routed(const struct gb_shape &shape, const struct gb_kernel *kernel, const struct gb_router *rules, uint64_t seed,
           bool zeros = false)
        : router((size_t)shape.experts * shape.hidden), bias(shape.experts), recipe(rules),
          ids((size_t)shape.tokens * shape.top_k), weights(ids.size())
    {
        struct gb_error error;
        uint64_t state = seed;
        if (!problem_make(&problem, &shape, kernel->weights, DATA_ORDINARY, seed))
            exit(1);
        for (gb_bf16 &w : router) { /* in -1 .. 1 */
            state = state * 6364136223846793005u + 1442695040888963407u;
            w = gb_bf16_encode((float)(int32_t)(state >> 32) * 0x1p-31f);
        }
        for (uint32_t e = 0; e < shape.experts; e++) { /* of the first three of eight, two logits are equal, one near */
            gb_bf16 *row = &router[(size_t)e * shape.hidden];
            if (e % 8 == 1 || e % 8 == 2)
                memcpy(row, row - shape.hidden, sizeof(gb_bf16) * shape.hidden);
            if (e % 8 < 3)
                row[0] = gb_bf16_encode(e % 8 == 2 ? 0x1p-16f : 0.0f);
        }
        for (uint32_t e = 0; zeros && e < shape.experts; e++) {
            gb_bf16 *row = &router[(size_t)e * shape.hidden];
            memset(row, 0, sizeof(gb_bf16) * shape.hidden);
            row[0].bits = e % 3 == 0 ? 0x0000 : e % 3 == 1 ? 0x8001 : 0x0001;
        }
        for (uint32_t e = 0; e < shape.experts; e++)
            bias[e] = (float)(e % 5) * 0.0625f;
        before.resize(problem.bytes);
        problem_before(&problem, GB_LAYER, poison, before.data());
        after = before;
        struct gb_arguments a = arguments(after.data(), router.data(), bias.data(), ids.data(), weights.data());
        check(gb_reference_routed_layer(gb_contract_of(&a, GB_LAYER, kernel->order), &a, &error), error, "reference");
    }
    ~routed()
    {
        problem_free(&problem);
    }
    struct gb_arguments arguments(void *image, const gb_bf16 *rows, const float *biases, int32_t *out_ids,
                                  float *out_weights) const
    {
        struct gb_arguments a = problem_arguments_at(&problem, image);
        a.ids = NULL;
        a.routing_weights = NULL;
        a.router = recipe;
        a.router_weights = {GB_BF16, 1, problem.shape.experts, problem.shape.hidden, 1, rows, NULL, NULL};
        a.router_bias = recipe->bias == GB_ROUTER_BIAS_NONE ? NULL : biases;
        a.routed_ids = out_ids;
        a.routed_weights = out_weights;
        return a;
    }
};

/* Everything that one kernel needs on the device for problems of one shape. */
struct bench {
    const struct gb_kernel *kernel;
    buffer image, router, bias, ids, weights, workspace;
    void *prepared = NULL;

    static struct gb_problem question(const struct routed &r)
    {
        struct gb_problem q = {};
        q.size = sizeof q;
        q.shape = r.problem.shape;
        q.weights = r.problem.format;
        q.router = r.recipe;
        return q;
    }
    static size_t scratch(const struct gb_kernel *k, const struct routed &r)
    {
        const struct gb_problem q = question(r);
        return k->workspace(&q);
    }
    bench(const struct gb_kernel *k, const struct routed &r)
        : kernel(k), image(r.problem.bytes), router(r.router.size() * sizeof(gb_bf16)),
          bias(r.bias.size() * sizeof(float)), ids(r.ids.size() * sizeof(int32_t)),
          weights(r.weights.size() * sizeof(float)), workspace(scratch(k, r))
    {
    }
    ~bench()
    {
        if (kernel->release)
            kernel->release(prepared);
    }
    /* After put(), whose weights it is of. */
    void prepare(struct gb_arguments *a)
    {
        struct gb_error error;
        if (kernel->prepare && !prepared)
            check(kernel->prepare(a, &prepared, &error), error, "prepare");
        a->prepared = prepared;
    }
    void put(const struct routed &r)
    {
        image.put(r.before.data());
        router.put(r.router.data());
        bias.put(r.bias.data());
        ids.put(std::vector<int32_t>(r.ids.size(), -7).data());
        weights.put(std::vector<float>(r.weights.size(), -7).data());
    }
    struct gb_arguments arguments(const struct routed &r, void *stream)
    {
        struct gb_arguments a = r.arguments(image.memory, (const gb_bf16 *)router.memory, (const float *)bias.memory,
                                            (int32_t *)ids.memory, (float *)weights.memory);
        a.workspace = workspace.memory;
        a.stream = stream;
        return a;
    }
    void compare(const struct routed &r, const char *label, struct tally *tally)
    {
        std::vector<unsigned char> found(image.bytes);
        std::vector<int32_t> found_ids(r.ids.size());
        std::vector<float> found_weights(r.weights.size());
        image.get(found.data());
        ids.get(found_ids.data());
        weights.get(found_weights.data());
        problem_compare(&r.problem, GB_LAYER, r.after.data(), found.data(), label, tally);
        const uint64_t wrong = memcmp(found_ids.data(), r.ids.data(), ids.bytes) != 0 ||
                               memcmp(found_weights.data(), r.weights.data(), weights.bytes) != 0;
        tally->mismatched += wrong;
        if (wrong)
            printf("MISMATCH %s: ids or routing weights differ\n", label);
    }
};

void test_shapes(const struct gb_kernel *kernel, struct tally *tally)
{
    static const uint32_t sizes[][4] = {
        {64, 32, 16, 4}, {384, 192, 32, 8}, {2048, 512, 64, 10}, {1056, 96, 24, 1}, {512, 64, 64, 16}};
    static const char *const recipes[] = {"gaugeblock.renormalised/1", "transformers.qwen3-moe/1",
                                          "moonshotai.kimi-k2/1"};
    struct gb_error error;
    uint64_t seed = 1;
    for (const auto &s : sizes)
        for (const uint32_t tokens : {1u, 3u, 33u, 0u}) { /* 0: one, on logits of zero */
            const struct gb_shape shape = {std::max(tokens, 1u), s[0], s[1], s[2], s[3]};
            const struct gb_router *recipe = &gb_router_recipe_find(recipes[tokens ? seed % 3 : 1])->router;
            const struct routed r(shape, kernel, recipe, seed++, !tokens);
            const std::string label =
                std::string(kernel->name) + ", H " + std::to_string(s[0]) + ", " + std::to_string(tokens) + " tokens";
            const struct gb_problem question = bench::question(r);
            check(kernel->supports(&question, &error), error, kernel->name);
            bench b(kernel, r);
            b.put(r);
            struct gb_arguments a = b.arguments(r, NULL);
            b.prepare(&a);
            check(kernel->run(&a, &error), error, label.c_str());
            check(device->synchronise(&error), error, label.c_str());
            b.compare(r, label.c_str(), tally);
        }
}

/* Captured once, replayed on three sets of inputs, which choose other experts; where weights are prepared, on three
 * times the first. */
void test_graph(const struct gb_kernel *kernel, struct tally *tally)
{
    const struct gb_shape shape = {5, 384, 192, 32, 8};
    const struct gb_router *recipe = &gb_router_recipe_find("transformers.qwen3-moe/1")->router;
    struct gb_error error;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    const struct routed first(shape, kernel, recipe, 100);
    bench b(kernel, first);
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    struct gb_arguments a = b.arguments(first, stream);
    b.put(first);
    b.prepare(&a);
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check(kernel->run(&a, &error), error, "run while capturing");
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    for (uint64_t seed = 100; seed < 103; seed++) {
        const struct routed r(shape, kernel, recipe, kernel->prepare ? 100 : seed);
        b.put(r);
        require(cudaGraphLaunch(exec, stream));
        require(cudaStreamSynchronize(stream));
        b.compare(r, "graph replay", tally);
    }
    require(cudaGraphExecDestroy(exec));
    require(cudaGraphDestroy(graph));
    require(cudaStreamDestroy(stream));
}

/* bytes, a multiple of 4: to and from are of device memory. */
__global__ void move(void *to, const void *from, size_t bytes)
{
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < bytes / 4; i += (size_t)gridDim.x * blockDim.x)
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

/* Layers of one token, one behind the other, that share their weights and the workspace, captured once: kernels of a
 * layer start while those in front of them end. Every replay has the tokens at other places. in_place: layers share
 * x and what they write, too, and kernels between them move x in and results out. */
void test_chain(const struct gb_kernel *kernel, bool in_place, struct tally *tally)
{
    constexpr uint32_t layers = 8, replays = 100;
    const struct gb_shape shape = {layers, 1024, 32, 512, 10};
    const struct gb_router *recipe = &gb_router_recipe_find("transformers.qwen3-moe/1")->router;
    struct gb_error error;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    const struct routed r(shape, kernel, recipe, 200);
    bench b(kernel, r);
    const size_t pair_bytes = shape.top_k * sizeof(int32_t), x_bytes = shape.hidden * sizeof(gb_bf16);
    buffer x_here(x_bytes), y_here(2 * x_bytes), ids_here(pair_bytes), weights_here(pair_bytes);
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    const struct gb_arguments all = b.arguments(r, stream);
    struct gb_arguments a = all;
    b.put(r);
    b.prepare(&a);
    a.shape.tokens = 1;
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t n = 0; n < layers; n++) {
        a.x = all.x + (size_t)n * shape.hidden;
        a.routed_ids = all.routed_ids + n * shape.top_k;
        a.routed_weights = all.routed_weights + n * shape.top_k;
        a.intermediate = all.intermediate + (size_t)n * shape.top_k * shape.intermediate;
        a.output = (float *)all.output + (size_t)n * shape.hidden;
        const struct gb_arguments to = a;
        if (in_place) {
            a.x = (const gb_bf16 *)x_here.memory;
            a.routed_ids = (int32_t *)ids_here.memory;
            a.routed_weights = (float *)weights_here.memory;
            a.intermediate = all.intermediate;
            a.output = y_here.memory;
            move<<<8, 128, 0, stream>>>(x_here.memory, to.x, x_bytes);
        }
        check(kernel->run(&a, &error), error, "run while capturing");
        if (in_place) {
            move<<<1, 32, 0, stream>>>(to.routed_ids, ids_here.memory, pair_bytes);
            move<<<1, 32, 0, stream>>>(to.routed_weights, weights_here.memory, pair_bytes);
            move<<<8, 128, 0, stream>>>(to.output, y_here.memory, 2 * x_bytes);
        }
    }
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    const struct gb_arguments want = problem_arguments_at(&r.problem, (void *)r.after.data());
    std::vector<gb_bf16> x((size_t)layers * shape.hidden);
    std::vector<float> y(x.size()), weights(r.weights.size());
    std::vector<int32_t> ids(r.ids.size());
    for (uint32_t replay = 0; replay < replays; replay++) {
        const auto token = [&](uint32_t n) { return (n * 3 + replay * 5) % layers; };
        for (uint32_t n = 0; n < layers; n++)
            memcpy(&x[(size_t)n * shape.hidden], want.x + (size_t)token(n) * shape.hidden,
                   shape.hidden * sizeof(gb_bf16));
        require(cudaMemcpyAsync((void *)all.x, x.data(), x.size() * sizeof(gb_bf16), cudaMemcpyDefault, stream));
        require(cudaGraphLaunch(exec, stream));
        require(cudaMemcpyAsync(y.data(), all.output, y.size() * sizeof(float), cudaMemcpyDefault, stream));
        require(cudaStreamSynchronize(stream));
        b.ids.get(ids.data());
        b.weights.get(weights.data());
        uint64_t wrong = 0;
        for (uint32_t n = 0; n < layers; n++) {
            const size_t row = (size_t)token(n) * shape.hidden, slots = (size_t)token(n) * shape.top_k;
            wrong += memcmp(&ids[n * shape.top_k], &r.ids[slots], shape.top_k * sizeof(int32_t)) != 0 ||
                     memcmp(&weights[n * shape.top_k], &r.weights[slots], shape.top_k * sizeof(float)) != 0 ||
                     memcmp(&y[(size_t)n * shape.hidden], (const float *)want.output + row,
                            shape.hidden * sizeof(float)) != 0;
        }
        if (wrong && !tally->mismatched)
            printf("MISMATCH %s: replay %u of a chain%s: %llu of %u layers\n", kernel->name, replay,
                   in_place ? " in place" : "", (unsigned long long)wrong, layers);
        tally->mismatched += wrong;
    }
    require(cudaGraphExecDestroy(exec));
    require(cudaGraphDestroy(graph));
    require(cudaStreamDestroy(stream));
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: test_routed_layer LIBRARY\n");
        return 2;
    }
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    const gb_device_function get_device = library ? (gb_device_function)dlsym(library, GB_DEVICE_SYMBOL) : NULL;
    const gb_kernels_function get_kernels = library ? (gb_kernels_function)dlsym(library, GB_KERNELS_SYMBOL) : NULL;
    if (!get_device || !get_kernels) {
        fprintf(stderr, "%s: not a library of kernels\n", argv[1]);
        return 1;
    }
    char text[256];
    struct gb_error error;
    device = get_device();
    if (device->describe(text, sizeof text, &error) != GB_OK)
        return skip(error.message);
    printf("%s\n", text);
    const struct gb_kernel_table *table = get_kernels();
    unsigned kernels = 0, bad = 0;
    for (uint32_t k = 0; k < table->count; k++) {
        const struct gb_kernel *kernel = &table->kernels[k];
        struct tally tally = {0, 0, 0};
        if (!(kernel->flags & GB_ROUTES) || kernel->activations != GB_BF16)
            continue; /* with quantised activations: verify */
        test_shapes(kernel, &tally);
        test_graph(kernel, &tally);
        test_chain(kernel, false, &tally);
        test_chain(kernel, true, &tally);
        const bool vacuous = tally.finite * 4 < tally.compared || tally.compared == 0;
        printf("%-26s %10llu words compared, %10llu finite and not zero, %llu mismatches%s\n", kernel->name,
               (unsigned long long)tally.compared, (unsigned long long)tally.finite,
               (unsigned long long)tally.mismatched, vacuous ? " VACUOUS" : "");
        bad += tally.mismatched != 0 || vacuous;
        kernels++;
    }
    bad += kernels == 0;
    printf("%s\n", bad ? "FAILED" : "passed");
    return bad ? 1 : 0;
}
