/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel of libgaugeblock-cuda in the order fma32 against the CPU reference, bit for bit: shapes with and without
 * short chunks, batches 1 to 64, top_k 1 to 16, empty slots, seven kinds of data, outputs poisoned with two patterns,
 * canaries around every buffer, inputs unchanged; batch invariance; CUDA-graph replays.
 *
 * usage: test_gpu LIBRARY [SEED]
 */
#include <cstring>
#include <vector>

#include <dlfcn.h>

#include "tests/gpu/gpu.h"
#include "tests/gpu/problem.h"

namespace
{

const struct gb_device *device;
const struct gb_kernel_table *table;
void *memory; /* on the device, [memory_bytes] */
size_t memory_bytes;
std::vector<unsigned char> before, after, found;
struct tally total[DATA_KINDS];

void check(enum gb_status status, const struct gb_error &error, const char *what)
{
    if (status != GB_OK) {
        printf("FAILED: %s: %s\n", what, error.message);
        exit(1);
    }
}

void reserve(size_t bytes)
{
    struct gb_error error;
    before.resize(bytes);
    after.resize(bytes);
    found.resize(bytes);
    if (bytes <= memory_bytes)
        return;
    device->release(memory);
    memory_bytes = bytes;
    check(device->allocate(bytes, &memory, &error), error, "allocate");
}

/* One run on poisoned buffers; a workspace is poisoned, too. */
void run_once(const struct gb_kernel &kernel, const struct gb_problem &question, const struct problem &p, int poison)
{
    struct gb_error error;
    char label[256];
    snprintf(label, sizeof label, "%s, H %u I %u E %u, %u tokens, top %u, %s, seed %llu, poison %02X", kernel.name,
             p.shape.hidden, p.shape.intermediate, p.shape.experts, p.shape.tokens, p.shape.top_k,
             data_kind_name(p.kind), (unsigned long long)p.seed, (unsigned)poison);
    reserve(p.bytes);
    problem_before(&p, kernel.operation, poison, before.data());
    problem_after(&p, kernel.operation, poison, after.data());
    check(device->upload(memory, before.data(), p.bytes, &error), error, label);
    struct gb_arguments a = problem_arguments_at(&p, memory);
    const size_t workspace = kernel.workspace ? kernel.workspace(&question) : 0;
    if (workspace) {
        check(device->allocate(workspace, &a.workspace, &error), error, "allocate");
        require(cudaMemset(a.workspace, poison, workspace));
    }
    if (kernel.prepare)
        check(kernel.prepare(&a, &a.prepared, &error), error, label);
    check(kernel.run(&a, &error), error, label);
    check(device->synchronise(&error), error, label);
    if (kernel.prepare)
        kernel.release(a.prepared);
    if (workspace)
        device->release(a.workspace);
    check(device->download(found.data(), memory, p.bytes, &error), error, label);
    problem_compare(&p, kernel.operation, after.data(), found.data(), label, &total[p.kind]);
}

/* Every kernel of the problem's format on one problem. */
void run_problem(const struct gb_shape &shape, enum gb_format format, enum data_kind kind, uint64_t seed)
{
    struct problem p;
    if (!problem_make(&p, &shape, format, kind, seed))
        exit(1);
    for (uint32_t k = 0; k < table->count; k++) {
        const struct gb_kernel &kernel = table->kernels[k];
        if (kernel.weights != format || kernel.activations != GB_BF16 || kernel.operation == GB_ROUTE ||
            kernel.flags & GB_ROUTES || strcmp(kernel.order, GB_ORDER_FMA32) != 0)
            continue; /* routers: test_route.cu; layers that route: test_routed_layer.cu; quantised activations: the
                         operator by itself, and verify; mma16: bench_mma16.cu */
        struct gb_error error;
        struct gb_problem question = {};
        question.size = sizeof question;
        question.shape = shape;
        question.weights = format;
        const enum gb_status status = kernel.supports(&question, &error);
        if (status == GB_EUNSUPPORTED && (strstr(kernel.name, "warp-decode") || strstr(kernel.name, "repacked")))
            continue; /* whose rows are whole chunks, or whose tensor cores are those of compute capability 9 */
        check(status, error, kernel.name);
        run_once(kernel, question, p, 0xA5);
        run_once(kernel, question, p, 0x5A);
    }
    problem_free(&p);
}

/* Small shapes: all batches, all top_k, all kinds. Large ones: a choice of them. */
void test_shapes(uint64_t seed)
{
    static const uint32_t batches[] = {1, 2, 3, 8, 32, 64};
    static const struct {
        uint32_t hidden, intermediate, experts;
    } shapes[] = {{16, 16, 16},  {32, 32, 20},   {48, 48, 17},    {80, 80, 16},     {16, 1040, 16},
                  {528, 48, 24}, {384, 192, 32}, {2048, 512, 32}, {1040, 2064, 16}, {2880, 2880, 16}};
    for (const auto &size : shapes) {
        const size_t weights = (size_t)size.hidden * size.intermediate * size.experts;
        unsigned cases = 0;
        for (uint32_t tokens : batches)
            for (uint32_t top_k = 1; top_k <= 16; top_k++) {
                const bool chosen = top_k == 1 || top_k == 2 || top_k == 8 || top_k == 10 || top_k == 16;
                if (weights > 1u << 20 && (!chosen || (weights > 1u << 26 && tokens > 3 && top_k != 8)))
                    continue;
                const struct gb_shape shape = {tokens, size.hidden, size.intermediate, size.experts, top_k};
                const unsigned kinds = weights > 1u << 20 ? 1 : DATA_KINDS;
                for (unsigned k = 0; k < kinds; k++, cases++) {
                    const enum data_kind kind = (enum data_kind)(cases % DATA_KINDS);
                    run_problem(shape, GB_NVFP4, kind, seed + cases);
                    if (cases % 4 == 0)
                        run_problem(shape, GB_BF16, (enum data_kind)(cases / 4 % DATA_KINDS), seed + cases);
                    if (cases % 4 == 2 && size.hidden % 32 == 0 && size.intermediate % 32 == 0)
                        run_problem(shape, GB_MXFP8, (enum data_kind)(cases / 4 % DATA_KINDS), seed + cases);
                    if (cases % 8 == 1 && size.hidden % 32 == 0 && size.intermediate % 32 == 0)
                        run_problem(shape, GB_MXFP4, (enum data_kind)(cases / 8 % DATA_KINDS), seed + cases);
                    if (cases % 8 == 5)
                        run_problem(shape, GB_FP8_BLOCK, DATA_ORDINARY, seed + cases);
                }
            }
        printf("H %u I %u E %u: %u cases\n", size.hidden, size.intermediate, size.experts, cases);
        fflush(stdout);
    }
}

/* A token's results in a batch of 32 are its results alone. */
unsigned test_batch_invariance(uint64_t seed)
{
    const struct gb_shape shape = {32, 2048, 512, 32, 10};
    unsigned wrong = 0;
    struct gb_error error;
    struct problem p;
    if (!problem_make(&p, &shape, GB_NVFP4, DATA_ORDINARY, seed))
        exit(1);
    run_once(table->kernels[0], {}, p, 0xA5); /* leaves the batch's results in `found` */
    std::vector<unsigned char> batch = found, alone(p.bytes);
    const struct gb_arguments at = problem_arguments_at(&p, batch.data());
    for (uint32_t t = 0; t < shape.tokens; t++) {
        struct gb_arguments a = problem_arguments_at(&p, memory);
        const size_t pair = (size_t)t * shape.top_k;
        a.shape.tokens = 1;
        a.x += (size_t)t * shape.hidden;
        a.ids += pair;
        a.routing_weights += pair;
        check(device->upload(memory, before.data(), p.bytes, &error), error, "upload");
        check(table->kernels[0].run(&a, &error), error, "one token");
        check(device->synchronise(&error), error, "one token");
        check(device->download(alone.data(), memory, p.bytes, &error), error, "download");
        const struct gb_arguments one = problem_arguments_at(&p, alone.data());
        wrong +=
            memcmp(one.output, (const float *)at.output + (size_t)t * shape.hidden, sizeof(float) * shape.hidden) != 0;
        wrong += memcmp(one.intermediate, at.intermediate + pair * shape.intermediate,
                        sizeof(gb_bf16) * shape.top_k * shape.intermediate) != 0;
    }
    printf("batch invariance: %u tokens alone and in a batch, %u differ\n", shape.tokens, wrong);
    problem_free(&p);
    return wrong;
}

/* run() captured once; the graph replayed on three sets of inputs at the same addresses. */
unsigned test_graph(uint64_t seed)
{
    const struct gb_shape shape = {3, 384, 192, 32, 8};
    struct tally tally = {0, 0, 0};
    struct gb_error error;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (uint64_t i = 0; i < 3; i++) {
        struct problem p;
        if (!problem_make(&p, &shape, GB_NVFP4, DATA_ORDINARY, seed + i))
            exit(1);
        reserve(p.bytes);
        problem_before(&p, GB_LAYER, 0x5A, before.data());
        problem_after(&p, GB_LAYER, 0x5A, after.data());
        if (!exec) {
            struct gb_arguments a = problem_arguments_at(&p, memory);
            a.stream = stream;
            require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
            check(table->kernels[0].run(&a, &error), error, "run while capturing");
            require(cudaStreamEndCapture(stream, &graph));
            require(cudaGraphInstantiate(&exec, graph, 0));
        }
        check(device->upload(memory, before.data(), p.bytes, &error), error, "upload");
        require(cudaGraphLaunch(exec, stream));
        require(cudaStreamSynchronize(stream));
        check(device->download(found.data(), memory, p.bytes, &error), error, "download");
        problem_compare(&p, GB_LAYER, after.data(), found.data(), "graph replay", &tally);
        problem_free(&p);
    }
    require(cudaGraphExecDestroy(exec));
    require(cudaGraphDestroy(graph));
    require(cudaStreamDestroy(stream));
    printf("graph: 3 replays, %llu words compared, %llu mismatches\n", (unsigned long long)tally.compared,
           (unsigned long long)tally.mismatched);
    return tally.mismatched != 0;
}

/* Every kind must have matched everywhere, on results of which a quarter are finite and not zero. */
unsigned report()
{
    unsigned bad = 0;
    for (int k = 0; k < DATA_KINDS; k++) {
        const struct tally &t = total[k];
        const bool vacuous = t.finite * 4 < t.compared || t.compared == 0;
        printf("%-10s %12llu words compared, %12llu of them finite and not zero, %llu mismatches%s\n",
               data_kind_name((enum data_kind)k), (unsigned long long)t.compared, (unsigned long long)t.finite,
               (unsigned long long)t.mismatched, vacuous ? " VACUOUS" : "");
        bad += t.mismatched != 0 || vacuous;
    }
    return bad;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test_gpu LIBRARY [SEED]\n");
        return 2;
    }
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 20251121;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const gb_device_function get_device = (gb_device_function)dlsym(library, GB_DEVICE_SYMBOL);
    const gb_kernels_function get_kernels = (gb_kernels_function)dlsym(library, GB_KERNELS_SYMBOL);
    if (!get_device || !get_kernels) {
        fprintf(stderr, "%s: no %s or no %s\n", argv[1], GB_DEVICE_SYMBOL, GB_KERNELS_SYMBOL);
        return 1;
    }
    device = get_device();
    table = get_kernels();
    char text[256];
    struct gb_error error;
    if (device->describe(text, sizeof text, &error) != GB_OK)
        return skip(error.message);
    printf("%s\nseed %llu\n", text, (unsigned long long)seed);
    test_shapes(seed);
    unsigned bad = test_batch_invariance(seed) + test_graph(seed) + report();
    device->release(memory);
    printf("%s\n", bad ? "FAILED" : "passed");
    return bad ? 1 : 0;
}
