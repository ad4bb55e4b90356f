/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of dispatch and combine over the devices of a host, beside NCCL's all-to-all of the same bytes and a copy over
 * the same link: DeepSeek-V3's sizes, in a CUDA graph of 10 calls. One JSON object.
 *
 * usage: bench_ranks [TOKENS...]
 */
#include <algorithm>

#include "tests/gpu/ranks_problem.cuh"
#include "tests/support/provenance.h"
#ifdef GB_HAVE_NCCL
#include "tests/gpu/all_to_all.cuh"
#endif

namespace
{

enum { CALLS = 10, SAMPLES = 31 };

/* Microseconds of a call: median of samples, of a graph of CALLS calls on all devices. call(n): into the ranks'
 * streams. */
template <class Call> double median_us(struct gb_cuda_ranks *ranks, const Call &call)
{
    struct gb_error error;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t start, stop;
    std::vector<float> times;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    require(cudaEventCreate(&start));
    require(cudaEventCreate(&stop));
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    check(gb_cuda_ranks_fork(ranks, stream, &error), error, "fork");
    for (int i = 0; i < CALLS; i++)
        call();
    check(gb_cuda_ranks_join(ranks, stream, &error), error, "join");
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = -5; i < SAMPLES; i++) {
        float ms = 0;
        require(cudaEventRecord(start, stream));
        require(cudaGraphLaunch(exec, stream));
        require(cudaEventRecord(stop, stream));
        require(cudaEventSynchronize(stop));
        require(cudaEventElapsedTime(&ms, start, stop));
        if (i >= 0)
            times.push_back(ms * 1000 / CALLS);
    }
    check(gb_cuda_ranks_late(&error), error, "timing");
    require(cudaEventDestroy(start));
    require(cudaEventDestroy(stop));
    require(cudaGraphExecDestroy(exec));
    require(cudaGraphDestroy(graph));
    require(cudaStreamDestroy(stream));
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

__global__ void nothing() {}

/* Of launches that do nothing. */
double launch_us()
{
    struct gb_error error;
    struct gb_cuda_ranks ranks;
    check(gb_cuda_ranks_open(2, 256, &ranks, &error), error, "ranks");
    const double us = median_us(&ranks, [&] {
        for (uint32_t r = 0; r < 2; r++) {
            gb_cuda_on on(ranks.of[r].device);
            nothing<<<1, 32, 0, ranks.of[r].stream>>>();
        }
    });
    gb_cuda_ranks_close(&ranks);
    return us;
}

/* Bytes a second from each of two devices to the other at once. */
double link_rate()
{
    constexpr size_t bytes = (size_t)512 << 20;
    struct gb_error error;
    struct gb_cuda_ranks ranks;
    check(gb_cuda_ranks_open(2, 2 * bytes, &ranks, &error), error, "ranks");
    const double us = median_us(&ranks, [&] {
        for (uint32_t r = 0; r < 2; r++) {
            gb_cuda_on on(ranks.of[r].device);
            require(cudaMemcpyAsync(ranks.of[1 - r].link.window[1 - r], ranks.of[r].link.window[r] + bytes, bytes,
                                    cudaMemcpyDefault, ranks.of[r].stream));
        }
    });
    gb_cuda_ranks_close(&ranks);
    return (double)bytes / us * 1e6;
}

/* The rows that each rank dispatches to each other. once: as many of a token to a rank as come back where that rank
 * adds them up. [ranks * ranks] */
std::vector<size_t> rows_between(const ranks_problem &p, bool once)
{
    const struct gb_exchange &x = p.asked;
    const int32_t *ids = NULL, *placement = NULL;
    for (const ranks_array &array : p.arrays) {
        if (array.argument == offsetof(struct gb_arguments, ids))
            ids = (const int32_t *)array.content.data();
        if (array.argument == offsetof(struct gb_arguments, placement))
            placement = (const int32_t *)array.content.data();
    }
    std::vector<size_t> rows((size_t)x.ranks * x.ranks);
    for (size_t token = 0; token < (size_t)x.ranks * x.tokens; token++) {
        std::vector<size_t> to(x.ranks);
        for (uint32_t slot = 0; slot < x.top_k; slot++)
            if (ids[token * x.top_k + slot] >= 0)
                to[(size_t)placement[ids[token * x.top_k + slot]]]++;
        for (uint32_t r = 0; r < x.ranks; r++)
            rows[token / x.tokens * x.ranks + r] += once && to[r] ? 1 : to[r];
    }
    return rows;
}

struct times {
    double us, nccl_us, bytes;
};

/* row_bytes: of what travels. */
times time_kind(const ranks_kind &kind, size_t row_bytes)
{
    struct gb_error error;
    struct gb_cuda_exchanger e;
    const ranks_problem p(kind, 17);
    ranks_arrays arrays(p);
    const std::vector<char *> kept = arrays.keep(p);
    arrays.arguments.exchange = &p.asked;
    arrays.put(p, kept, 0);
    require(cudaDeviceSynchronize());
    check(gb_cuda_exchanger_open(kind.operation, &p.asked, p.asked.rows, &e, &error), error, p.name.c_str());
    check(gb_cuda_exchanger_put(&e, &arrays.arguments, &error), error, "put");
    check(gb_cuda_ranks_join(&e.ranks, 0, &error), error, "join");
    require(cudaDeviceSynchronize());
    times t = {};
    t.us = median_us(&e.ranks, [&] { check(gb_cuda_exchanger_run(&e, &error), error, "run"); });
    arrays.poison(p, 0xFF, 0); /* and what was timed is right */
    require(cudaDeviceSynchronize());
    check(gb_cuda_exchanger_take(&e, &arrays.arguments, &error), error, "take");
    check(gb_cuda_ranks_join(&e.ranks, 0, &error), error, "join");
    arrays.compare(p, kept, 0);
    if (arrays.different()) {
        printf("FAILED: %s: other bits than the reference's\n", p.name.c_str());
        exit(1);
    }
    std::vector<size_t> rows = rows_between(p, kind.operation == GB_COMBINE && kind.accumulation != GB_AT_RECEIVER);
    if (kind.operation == GB_COMBINE)
        std::swap(rows[1], rows[2]);
    t.bytes = (double)(rows[1] + rows[2]) / 2 * (double)row_bytes;
#ifdef GB_HAVE_NCCL
    static all_to_all nccl(2);
    for (size_t &n : rows)
        n *= row_bytes;
    t.nccl_us = nccl.time(rows, median_us<std::function<void()>>);
#endif
    gb_cuda_exchanger_close(&e);
    return t;
}

void print_times(const char *name, const times &t, double rate)
{
    printf("\"%s\": {\"bytes\": %.0f, \"us\": %.2f, \"link_us\": %.2f, \"share_of_link\": %.2f", name, t.bytes, t.us,
           t.bytes / rate * 1e6, t.bytes / rate * 1e6 / t.us);
    if (t.nccl_us > 0)
        printf(", \"nccl_us\": %.2f, \"times_nccl\": %.2f", t.nccl_us, t.nccl_us / t.us);
    printf("}");
}

/* The version of the library that runs; the header may have another. */
void print_nccl()
{
#ifdef GB_HAVE_NCCL
    int version = 0;
    require_nccl(ncclGetVersion(&version), __LINE__);
    printf("\"nccl\": \"%d.%d.%d\", ", version / 10000, version / 100 % 100, version % 100);
#endif
}

int measure(const std::vector<uint32_t> &batches, const char *command)
{
    const double rate = link_rate();
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0));
    printf("{");
    print_provenance(stdout, "gaugeblock.ranks-bench/1", command);
    printf(", \"device\": \"2 x %s\", \"hidden\": 7168, \"experts\": 256, \"top_k\": 8, \"link_gb_per_s\": %.1f,\n"
           " \"launch_us\": %.2f,\n"
           " \"times\": \"microseconds a call, median of %d graphs of %d calls\", ",
           properties.name, rate * 1e-9, launch_us(), SAMPLES, CALLS);
    print_nccl();
    printf("\"batches\": [\n");
    for (uint32_t tokens : batches) {
        ranks_kind kind = {GB_DISPATCH,
                           2,
                           tokens,
                           7168,
                           256,
                           8,
                           "fp8g128.deepep/1",
                           "uniform",
                           "blocks",
                           "gaussian/1",
                           (enum gb_accumulation)0,
                           1,
                           GB_BF16,
                           0};
        printf("  {\"tokens\": %u, ", tokens);
        print_times("dispatch_fp8", time_kind(kind, 7168 + 56 * 4), rate);
        kind.recipe = NULL;
        printf(",\n   ");
        print_times("dispatch_bf16", time_kind(kind, 7168 * 2), rate);
        kind.operation = GB_COMBINE;
        kind.accumulation = GB_AT_RECEIVER;
        printf(",\n   ");
        print_times("combine_receiver", time_kind(kind, 7168 * 2), rate);
        kind.accumulation = GB_AT_SENDER;
        printf(",\n   ");
        print_times("combine_sender", time_kind(kind, 7168 * 2), rate);
        printf("}%s\n", tokens == batches.back() ? "" : ",");
        fflush(stdout);
    }
    printf(" ]}\n");
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2)
        return skip("fewer than two CUDA devices");
    std::vector<uint32_t> batches;
    std::string command = "bench_ranks";
    for (int i = 1; i < argc; i++) {
        batches.push_back((uint32_t)strtoul(argv[i], NULL, 10));
        command += std::string(" ") + argv[i];
    }
    if (batches.empty())
        batches = {1, 8, 32, 128};
    return measure(batches, command.c_str());
}
