/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures candidate orders for `fma32/1`, each with several divisions of the work (tiles), on NVFP4 weights.
 *   gate_up  A: partial per block of 16, then acc = fma(scale, partial, acc)     B: acc = fma(weight * scale, x, acc)
 *            i: a lane takes chunks of 16 bytes                                  ii: blocks of 8 bytes
 *   down     A: a complete dot per slot, combined in slot order                  B: total = fma(routing weight *
 * global, lane's sum of the slot, total), one butterfly for all slots With rows = 1 a butterfly shuffles each sum
 * alone; with more rows it is transposed: the same bits, fewer shuffles. `hash` is over the result's bits at this
 * batch: equal within an order, whatever the tile. `read` is the ceiling: a kernel that only reads the same bytes.
 * Times are of one launch, in CUDA graphs of 20 launches over rotating copies and experts, more than 120 MB apart.
 *
 * usage: gb_order_candidates [--date DATE] [--commit COMMIT] > FILE.json
 */
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/candidates.cuh"
#include "tests/gpu/gpu.h"

namespace
{

constexpr uint32_t copies = 5, launches = 20, repeats = 31, warm_up = 3, most_tokens = 32;

struct model {
    const char *name;
    uint32_t hidden, intermediate, experts, top_k;
};
constexpr model models[] = {{"Qwen3-Next-80B-A3B", 2048, 512, 512, 10}, {"Qwen3-30B-A3B", 2048, 768, 128, 8}};
constexpr uint32_t batches[] = {1, 2, 8, 32};

using text = gb_cuda_nvfp4<true>; /* the order of docs/numerics.md */
using by_fp16 = gb_candidate<32, false, gb_decode_by_fp16>;

std::vector<void *> owned; /* device memory of the model at hand */

template <class T> T *allocate(size_t count)
{
    void *pointer = NULL;
    require(cudaMalloc(&pointer, count * sizeof(T)));
    owned.push_back(pointer);
    return (T *)pointer;
}

void *filled(size_t bytes, uint32_t seed, uint32_t keep, uint32_t set)
{
    void *pointer = allocate<unsigned char>(bytes);
    require(gb_cuda_launch("fill", gb_fill_kernel, dim3(4096), 256, 0, NULL, NULL, (uint32_t *)pointer, bytes / 4, seed,
                           keep, set));
    return pointer;
}

struct entry {
    const char *projection, *order;
    std::string
        tile; /* gate_up: lanes, threads, block, tokens, resident; down: lanes, rows, threads, block, resident */
    std::function<enum gb_status(const struct gb_arguments &, struct gb_error *)> launch;
};

std::string numbers(std::vector<uint32_t> values)
{
    std::string text;
    for (uint32_t v : values)
        text += (text.empty() ? "" : ",") + std::to_string(v);
    return text;
}

template <class Format, uint32_t Lanes, uint32_t Neurons, uint32_t Threads, uint32_t Block, uint32_t Tokens,
          uint32_t Resident>
entry gate_up(const char *order)
{
    return {"gate_up", order, numbers({Lanes, Neurons, Threads, Block, Tokens, Resident}),
            gb_gate_up_launch<Format, gb_gate_up_tile<Lanes, Neurons, Threads, Block, Tokens, Resident>>};
}

template <class Format, uint32_t Lanes, uint32_t Rows, uint32_t Threads, uint32_t Block, uint32_t Resident>
entry down(const char *order)
{
    return {"down", order, numbers({Lanes, Rows, Threads, Block, Resident}),
            gb_down_launch<Format, gb_down_tile<Lanes, Rows, Threads, Block, Resident>>};
}

template <uint32_t Lanes, uint32_t Rows, uint32_t Threads, uint32_t Resident> entry down_folded()
{
    using tile = gb_down_tile<Lanes, Rows, Threads, Threads / Lanes * Rows, Resident>;
    return {"down", "B", numbers({Lanes, Rows, Threads, tile::Block, Resident}),
            [](const struct gb_arguments &a, struct gb_error *error) {
                const size_t bytes = sizeof(float) * a.shape.top_k * gb_staged_floats<text>(a.shape.intermediate);
                return gb_cuda_launch("folded", gb_folded_kernel<text, tile>,
                                      dim3(a.shape.hidden / tile::Block, a.shape.tokens), Threads, bytes, a.stream,
                                      error, a);
            }};
}

template <class Format> void add_order(std::vector<entry> &entries, const char *order)
{
    entries.push_back(gate_up<Format, 16, 1, 128, 8, 1, 5>(order));
    entries.push_back(gate_up<Format, 32, 1, 128, 16, 2, 5>(order));
    entries.push_back(gate_up<Format, 16, 1, 128, 16, 2, 4>(order));
}

std::vector<entry> all_entries()
{
    std::vector<entry> entries;
    add_order<text>(entries, "A.i");
    entries.push_back(gate_up<text, 16, 1, 128, 16, 1, 5>("A.i"));
    entries.push_back(gate_up<text, 32, 1, 128, 8, 1, 6>("A.i"));
    entries.push_back(gate_up<text, 16, 1, 256, 32, 2, 2>("A.i"));
    entries.push_back(gate_up<text, 16, 1, 128, 32, 2, 4>("A.i"));
    entries.push_back(gate_up<text, 8, 1, 128, 32, 2, 4>("A.i"));
    entries.push_back(gate_up<text, 32, 2, 128, 32, 2, 4>("A.i"));
    entries.push_back(gate_up<text, 16, 1, 128, 32, 4, 3>("A.i"));
    add_order<gb_candidate<32, true>>(entries, "B.i");
    add_order<gb_candidate<16, false>>(entries, "A.ii");
    add_order<gb_candidate<16, true>>(entries, "B.ii");
    add_order<by_fp16>(entries, "A.i by fp16");
    entries.push_back(down<text, 8, 1, 320, 8, 2>("A"));
    entries.push_back(down<text, 8, 2, 320, 8, 2>("A"));
    entries.push_back(down<text, 16, 2, 320, 8, 2>("A"));
    entries.push_back(down<text, 32, 1, 256, 16, 3>("A"));
    entries.push_back(down<text, 8, 1, 256, 16, 3>("A"));
    entries.push_back(down<text, 16, 2, 256, 16, 3>("A"));
    entries.push_back(down<text, 16, 2, 256, 32, 3>("A"));
    entries.push_back(down<text, 8, 2, 256, 32, 2>("A"));
    entries.push_back(down<text, 8, 2, 128, 32, 4>("A"));
    entries.push_back(down<text, 16, 4, 256, 32, 2>("A"));
    entries.push_back(down<text, 16, 4, 256, 64, 2>("A"));
    entries.push_back(down<by_fp16, 8, 1, 320, 8, 2>("A by fp16"));
    entries.push_back(down<by_fp16, 8, 2, 256, 32, 2>("A by fp16"));
    entries.push_back(down_folded<32, 1, 256, 3>());
    entries.push_back(down_folded<16, 2, 128, 5>());
    entries.push_back(down_folded<8, 1, 128, 5>());
    entries.push_back(down_folded<8, 2, 128, 4>());
    return entries;
}

/* One model's buffers on the device, and what one launch of the graph reads. */
struct bench {
    model m;
    struct gb_arguments arguments[copies];    /* ids and tokens are set for each launch */
    int32_t *ids;                             /* [launches, tokens, top_k], distinct experts within a token */
    std::vector<std::vector<int32_t>> active; /* [launches], the distinct experts */
    int32_t *device_active;                   /* [launches, experts] */
    uint32_t *sink;
    gb_bf16 *scratch; /* where gate_up writes: not what down reads */
};

void make_weights(struct gb_weights *w, uint32_t seed)
{
    const size_t weights = (size_t)w->experts * w->rows * w->columns;
    w->codes = filled(weights / 2, seed, 0xFFFFFFFFu, 0);
    w->scales = filled(weights / 16, seed + 1, 0x0F0F0F0Fu, 0x30303030u); /* 0.5 .. 1.875 */
    w->global_scales =
        (const float *)filled(4ull * w->experts * w->halves, seed + 2, 0x7FFFFFu, 0x3C800000u); /* 1/64 .. 1/32 */
}

bench make_bench(const model &m)
{
    bench b = {m, {}, NULL, {}, NULL, NULL, NULL};
    struct gb_arguments a = {};
    a.size = sizeof a;
    a.shape = {1, m.hidden, m.intermediate, m.experts, m.top_k};
    const size_t pairs = (size_t)most_tokens * m.top_k;
    /* bf16 of either sign, 2^-15 .. 2; routing weights in 1/16 .. 1/8 */
    a.x = (const gb_bf16 *)filled(2ull * most_tokens * m.hidden, 1, 0x87FF87FFu, 0x38003800u);
    a.intermediate = (gb_bf16 *)filled(2 * pairs * m.intermediate, 2, 0x87FF87FFu, 0x38003800u);
    a.routing_weights = (const float *)filled(4 * pairs, 3, 0x7FFFFFu, 0x3D800000u);
    a.output = filled(4ull * most_tokens * m.hidden, 4, 0xFFFFFFFFu, 0);
    for (uint32_t c = 0; c < copies; c++) {
        b.arguments[c] = a;
        b.arguments[c].gate_up = {GB_NVFP4, m.experts, 2 * m.intermediate, m.hidden, 2, NULL, NULL, NULL};
        b.arguments[c].down = {GB_NVFP4, m.experts, m.hidden, m.intermediate, 1, NULL, NULL, NULL};
        make_weights(&b.arguments[c].gate_up, 100 + 6 * c);
        make_weights(&b.arguments[c].down, 103 + 6 * c);
    }
    b.scratch = allocate<gb_bf16>(pairs * m.intermediate);
    b.ids = allocate<int32_t>(launches * pairs);
    b.device_active = allocate<int32_t>((size_t)launches * m.experts);
    b.sink = allocate<uint32_t>(1);
    return b;
}

/* Each token takes top_k experts of a shuffled deck; the deck is shuffled anew when used up, so that experts repeat as
 * late as possible. Tokens beyond the second take theirs at random, as many tokens do. */
void choose_experts(bench &b, uint32_t tokens)
{
    const uint32_t k = b.m.top_k;
    std::vector<int32_t> ids((size_t)launches * tokens * k), deck(b.m.experts);
    uint64_t state = 12345;
    const auto below = [&](uint32_t n) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (uint32_t)((state >> 32) * n >> 32);
    };
    for (uint32_t e = 0; e < b.m.experts; e++)
        deck[e] = (int32_t)e;
    size_t used = deck.size();
    b.active.assign(launches, {});
    for (uint32_t n = 0; n < launches; n++) {
        for (uint32_t t = 0; t < tokens; t++, used += k) {
            if (t >= 2 || used + k > deck.size()) {
                for (uint32_t e = b.m.experts - 1; e > 0; e--)
                    std::swap(deck[e], deck[below(e + 1)]);
                used = 0;
            }
            std::copy_n(deck.begin() + used, k, ids.begin() + ((size_t)n * tokens + t) * k);
        }
        auto first = ids.begin() + (size_t)n * tokens * k;
        std::vector<int32_t> &active = b.active[n];
        active.assign(first, first + tokens * k);
        std::sort(active.begin(), active.end());
        active.erase(std::unique(active.begin(), active.end()), active.end());
        require(cudaMemcpy(b.device_active + (size_t)n * b.m.experts, active.data(), sizeof(int32_t) * active.size(),
                           cudaMemcpyHostToDevice));
    }
    require(cudaMemcpy(b.ids, ids.data(), sizeof(int32_t) * ids.size(), cudaMemcpyHostToDevice));
}

struct gb_arguments launch_arguments(const bench &b, uint32_t n, uint32_t tokens, bool down, cudaStream_t stream)
{
    struct gb_arguments a = b.arguments[n % copies];
    a.shape.tokens = tokens;
    a.ids = b.ids + (size_t)n * tokens * b.m.top_k;
    a.stream = stream;
    if (!down)
        a.intermediate = b.scratch;
    return a;
}

struct timing {
    double median_us, min_us; /* of one launch */
};

timing measure(const std::function<void(uint32_t n, cudaStream_t stream)> &launch)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t start, stop;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    require(cudaEventCreate(&start));
    require(cudaEventCreate(&stop));
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (uint32_t n = 0; n < launches; n++)
        launch(n, stream);
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    std::vector<double> us;
    for (uint32_t i = 0; i < warm_up + repeats; i++) {
        float ms = 0;
        require(cudaEventRecord(start, stream));
        require(cudaGraphLaunch(exec, stream));
        require(cudaEventRecord(stop, stream));
        require(cudaEventSynchronize(stop));
        require(cudaEventElapsedTime(&ms, start, stop));
        if (i >= warm_up)
            us.push_back(ms * 1000.0 / launches);
    }
    require(cudaGraphExecDestroy(exec));
    require(cudaGraphDestroy(graph));
    require(cudaEventDestroy(start));
    require(cudaEventDestroy(stop));
    require(cudaStreamDestroy(stream));
    std::sort(us.begin(), us.end());
    return {us[us.size() / 2], us[0]};
}

/* FNV-1a over what the first launch computes. */
uint64_t result_hash(const bench &b, const entry &e, uint32_t tokens)
{
    const bool down = strcmp(e.projection, "down") == 0;
    struct gb_arguments a = launch_arguments(b, 0, tokens, down, NULL);
    std::vector<unsigned char> bytes(down ? 4ull * tokens * b.m.hidden : 2ull * tokens * b.m.top_k * b.m.intermediate);
    require(e.launch(a, NULL));
    require(cudaMemcpy(bytes.data(), down ? a.output : a.intermediate, bytes.size(), cudaMemcpyDeviceToHost));
    uint64_t hash = 0xCBF29CE484222325ull;
    for (unsigned char byte : bytes)
        hash = (hash ^ byte) * 0x100000001B3ull;
    return hash;
}

void print_timing(bool *first, const model &m, const char *projection, const char *order, uint32_t tokens, double bytes,
                  const timing &t, const timing &read, const std::string &more)
{
    printf("%s\n    {\"model\": \"%s\", \"projection\": \"%s\", \"order\": \"%s\", \"tokens\": %u, \"bytes\": %.0f, "
           "\"median_us\": %.3f, \"min_us\": %.3f, \"GB_per_s\": %.1f, \"of_read\": %.4f%s}",
           *first ? "" : ",", m.name, projection, order, tokens, bytes, t.median_us, t.min_us,
           bytes / t.median_us / 1000, read.median_us / t.median_us, more.c_str());
    *first = false;
}

void run_model(const model &m, const std::vector<entry> &entries, bool *first)
{
    bench b = make_bench(m);
    for (uint32_t tokens : batches) {
        choose_experts(b, tokens);
        for (const char *projection : {"gate_up", "down"}) {
            const bool down = strcmp(projection, "down") == 0;
            const uint32_t words =
                (down ? 1 : 2) * m.hidden * m.intermediate / 32; /* of 16 bytes of codes, an expert */
            double experts = 0;
            for (const auto &active : b.active)
                experts += (double)active.size() / launches;
            const double bytes = experts * (words + words / 8) * 16;
            const timing read = measure([&](uint32_t n, cudaStream_t stream) {
                const struct gb_arguments &a = b.arguments[n % copies];
                require(gb_cuda_launch("read", gb_read_kernel,
                                       dim3((words + words / 8 + 2047) / 2048, (unsigned)b.active[n].size()), 512, 0,
                                       stream, NULL, down ? a.down : a.gate_up, b.device_active + (size_t)n * m.experts,
                                       words, words / 8, b.sink));
            });
            print_timing(first, m, projection, "read", tokens, bytes, read, read, "");
            for (const entry &e : entries) {
                if (strcmp(e.projection, projection) != 0)
                    continue;
                const uint64_t hash = result_hash(b, e, tokens);
                const timing t = measure([&](uint32_t n, cudaStream_t stream) {
                    require(e.launch(launch_arguments(b, n, tokens, down, stream), NULL));
                });
                char more[160];
                snprintf(more, sizeof more, ", \"tile\": \"%s\", \"hash\": \"%016llx\"", e.tile.c_str(),
                         (unsigned long long)hash);
                print_timing(first, m, projection, e.order, tokens, bytes, t, read, more);
            }
            fflush(stdout);
        }
    }
    for (void *pointer : owned)
        require(cudaFree(pointer));
    owned.clear();
}

} // namespace

int main(int argc, char **argv)
{
    const char *date = "", *commit = "";
    for (int i = 1; i < argc; i += 2) {
        const bool is_date = strcmp(argv[i], "--date") == 0, is_commit = strcmp(argv[i], "--commit") == 0;
        if (i + 1 == argc || (!is_date && !is_commit)) {
            fprintf(stderr, "usage: gb_order_candidates [--date DATE] [--commit COMMIT]\n");
            return 2;
        }
        (is_date ? date : commit) = argv[i + 1];
    }
    struct gb_error error;
    if (gb_cuda_present(&error) != GB_OK)
        return skip(error.message);
    cudaDeviceProp properties;
    int driver = 0, runtime = 0;
    require(cudaGetDeviceProperties(&properties, 0));
    require(cudaDriverGetVersion(&driver));
    require(cudaRuntimeGetVersion(&runtime));
    printf("{\"schema\": \"gaugeblock.order-candidates/2\", \"date\": \"%s\", \"commit\": \"%s\", \"device\": \"%s\", "
           "\"driver\": %d, \"runtime\": %d, \"repeats\": %u, \"launches\": %u,\n  \"results\": [",
           date, commit, properties.name, driver, runtime, repeats, launches);
    bool first = true;
    const std::vector<entry> entries = all_entries();
    for (const model &m : models)
        run_model(m, entries, &first);
    printf("\n]}\n");
    return 0;
}
