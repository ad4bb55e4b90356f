/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine over ranks against the CPU reference, bit for bit: 1 to 16 ranks on the devices there are,
 * batches of 1 to 128 tokens a rank, every routing, placement and accumulation; a captured call replayed on changing
 * routing; and a rank that never comes.
 *
 * usage: test_ranks [check | once | replay [COUNT] | late]
 */
#include "tests/gpu/ranks_problem.cuh"

namespace
{

constexpr const char *deepep = "fp8g128.deepep/1";

/* All calls on one exchanger: the second on other routing, and so often that a rank may be in the next call while
 * another is in the last; then the first again. Returns bytes that differ. */
unsigned long long run_kind(const ranks_kind &kind, uint64_t seed)
{
    struct gb_error error;
    const uint32_t slots = kind.ranks * kind.tokens * kind.top_k;
    const ranks_problem first(kind, seed), second(kind, seed + 1);
    struct gb_cuda_exchanger e;
    unsigned long long wrong = 0;
    check(gb_cuda_exchange_check(&first.asked, kind.operation, &error), error, first.name.c_str());
    check(gb_cuda_ranks_check(kind.ranks, &error), error, first.name.c_str());
    check(gb_cuda_exchanger_open(kind.operation, &first.asked, slots, &e, &error), error, first.name.c_str());
    for (int call = 0; call < 3; call++) {
        const ranks_problem &p = call == 1 ? second : first;
        ranks_arrays arrays(p);
        const std::vector<char *> kept = arrays.keep(p);
        e.asked.rows = p.asked.rows;
        for (struct gb_dispatch_job &job : e.dispatch)
            job.q.global_scale = p.asked.global_scale;
        arrays.arguments.exchange = &p.asked;
        arrays.put(p, kept, 0);
        arrays.poison(p, call == 1 ? 0x5A : 0xFF, 0);
        check(gb_cuda_ranks_fork(&e.ranks, 0, &error), error, "fork");
        check(gb_cuda_exchanger_put(&e, &arrays.arguments, &error), error, "put");
        for (int again = 0; again < (call == 1 ? 3 : 1); again++)
            check(gb_cuda_exchanger_run(&e, &error), error, "run");
        check(gb_cuda_exchanger_take(&e, &arrays.arguments, &error), error, "take");
        check(gb_cuda_ranks_join(&e.ranks, 0, &error), error, "join");
        arrays.compare(p, kept, 0);
        const unsigned long long differ = arrays.different();
        check(gb_cuda_ranks_late(&error), error, p.name.c_str());
        if (differ)
            printf("%s, call %d: %llu bytes differ\n", p.name.c_str(), call, differ);
        wrong += differ;
        for (const ranks_array &array : p.arrays)
            cudaFree(arrays.at(array));
    }
    gb_cuda_exchanger_close(&e);
    return wrong;
}

std::vector<ranks_kind> kinds()
{
    static const char *const routings[] = {"uniform", "skewed", "hot", "holes"};
    static const char *const placements[] = {"blocks", "one", "random", "round-robin"};
    static const char *const recipes[] = {
        deepep, NULL, "fp8g128.deepep-ue8m0/1", "nvfp4.trtllm/1", "mxfp8.rceil/1", "int8g128.vllm/1"};
    static const uint32_t batches[] = {1, 2, 3, 8, 32, 128};
    std::vector<ranks_kind> all;
    uint32_t n = 0;
    for (uint32_t ranks : {2u, 1u, 3u, 8u, 16u})
        for (uint32_t tokens : batches) {
            if (ranks > 3 && tokens > 8)
                continue;
            for (uint32_t i = 0; i < 4; i++, n++) {
                const bool large = ranks == 2 && i < 2;
                const char *const recipe = recipes[i < 2 ? i : n % 6];
                ranks_kind kind = {GB_DISPATCH,
                                   ranks,
                                   tokens,
                                   large ? 7168u : 1024u,
                                   large ? 256u : 48u,
                                   8,
                                   recipe,
                                   routings[n / 2 % 4],
                                   placements[n % 4],
                                   recipe && n % 3 == 2 ? "edge/1" : "gaussian/1",
                                   (enum gb_accumulation)0,
                                   1,
                                   GB_BF16,
                                   ranks > 2 && i == 3};
                all.push_back(kind);
                kind.operation = GB_COMBINE;
                kind.recipe = NULL;
                kind.data = "gaussian/1";
                kind.top_k = i == 3 ? 11 : 8;
                kind.accumulation = (enum gb_accumulation)(GB_AT_RECEIVER + (large ? i : n % 3));
                kind.ranks_per_node = ranks < 2 ? 1 : 2;
                kind.input = i == 2 ? GB_FP32 : GB_BF16;
                all.push_back(kind);
            }
        }
    return all;
}

/* few: small ones, for a sanitizer. */
int check_all(bool few)
{
    unsigned cases = 0, bad = 0;
    for (const ranks_kind &kind : kinds()) {
        if (few && (kind.hidden > 1024 || kind.ranks > 3 || kind.tokens % 16 == 1))
            continue;
        bad += run_kind(kind, 100 + cases) != 0;
        cases++;
    }
    printf("check: %u problems, 3 calls each, %u with other bits than the reference's\n", cases, bad);
    return bad != 0;
}

/* One captured call, with everything that it reads copied in and all that it writes compared, on problem after problem
 * of the same size. */
unsigned long long replay(const ranks_kind &base, uint32_t count)
{
    enum { PROBLEMS = 12 };
    static const char *const routings[] = {"uniform", "skewed", "hot"};
    static const char *const placements[] = {"blocks", "random", "one", "round-robin"};
    struct gb_error error;
    struct gb_cuda_exchanger e;
    std::vector<ranks_problem> problems;
    std::vector<std::vector<char *>> kept;
    for (uint32_t i = 0; i < PROBLEMS; i++) {
        ranks_kind kind = base;
        kind.routing = routings[i % 3];
        kind.placement = placements[i % 4];
        problems.emplace_back(kind, 1000 + i);
    }
    const ranks_problem &p = problems[0];
    ranks_arrays arrays(p);
    for (const ranks_problem &one : problems)
        kept.push_back(arrays.keep(one));
    arrays.arguments.exchange = &p.asked;
    check(gb_cuda_exchanger_open(base.operation, &p.asked, p.asked.rows, &e, &error), error, p.name.c_str());
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    arrays.poison(p, 0xFF, stream);
    check(gb_cuda_ranks_fork(&e.ranks, stream, &error), error, "fork");
    check(gb_cuda_exchanger_put(&e, &arrays.arguments, &error), error, "put");
    check(gb_cuda_exchanger_run(&e, &error), error, "run");
    check(gb_cuda_exchanger_take(&e, &arrays.arguments, &error), error, "take");
    check(gb_cuda_ranks_join(&e.ranks, stream, &error), error, "join");
    require(cudaStreamEndCapture(stream, &graph));
    require(cudaGraphInstantiate(&exec, graph, 0));
    uint32_t random = 1;
    for (uint32_t i = 0; i < count; i++) {
        random = random * 1664525u + 1013904223u;
        const uint32_t n = (random >> 8) % PROBLEMS;
        arrays.put(problems[n], kept[n], stream);
        require(cudaGraphLaunch(exec, stream));
        arrays.compare(problems[n], kept[n], stream);
    }
    require(cudaStreamSynchronize(stream));
    const unsigned long long differ = arrays.different();
    check(gb_cuda_ranks_late(&error), error, p.name.c_str());
    printf("replay: %s: %u replays over %u routings, %llu bytes differ\n", p.name.c_str(), count, (unsigned)PROBLEMS,
           differ);
    require(cudaGraphExecDestroy(exec));
    require(cudaGraphDestroy(graph));
    require(cudaStreamDestroy(stream));
    gb_cuda_exchanger_close(&e);
    return differ;
}

int replay_all(uint32_t count)
{
    unsigned bad = 0;
    for (uint32_t tokens : {1u, 8u, 128u}) {
        ranks_kind kind = {
            GB_DISPATCH, 2,       tokens, 7168, 256, 8, deepep, NULL, NULL, "gaussian/1", (enum gb_accumulation)0,
            1,           GB_BF16, 0};
        bad += replay(kind, count) != 0;
        kind.recipe = NULL;
        bad += replay(kind, count) != 0;
        kind.operation = GB_COMBINE;
        kind.input = GB_BF16;
        kind.accumulation = GB_AT_RECEIVER;
        bad += replay(kind, count) != 0;
        kind.accumulation = GB_AT_SENDER;
        bad += replay(kind, count) != 0;
    }
    return bad != 0;
}

/* A rank that is not launched: the others give up, and say for whom they waited. */
int late()
{
    unsigned bad = 0;
    for (enum gb_operator operation : {GB_DISPATCH, GB_COMBINE}) {
        const ranks_kind kind = {operation,
                                 2,
                                 16,
                                 1024,
                                 48,
                                 8,
                                 NULL,
                                 "uniform",
                                 "blocks",
                                 "gaussian/1",
                                 operation == GB_COMBINE ? GB_AT_RECEIVER : (enum gb_accumulation)0,
                                 1,
                                 GB_BF16,
                                 0};
        const ranks_problem p(kind, 7);
        struct gb_error error;
        struct gb_cuda_exchanger e;
        ranks_arrays arrays(p);
        const std::vector<char *> kept = arrays.keep(p);
        arrays.arguments.exchange = &p.asked;
        arrays.put(p, kept, 0);
        check(gb_cuda_exchanger_open(operation, &p.asked, p.asked.rows, &e, &error), error, p.name.c_str());
        check(gb_cuda_exchanger_put(&e, &arrays.arguments, &error), error, "put");
        e.dispatch[0].link.limit_ns = e.combine[0].link.limit_ns = 200000000;
        e.dispatch[0].halves = e.combine[0].halves = GB_HALVES;
        gb_cuda_on device(e.ranks.of[0].device);
        check(operation == GB_DISPATCH ? gb_cuda_dispatch_launch(&e.dispatch[0], e.ranks.of[0].stream, &error)
                                       : gb_cuda_combine_launch(&e.combine[0], e.ranks.of[0].stream, &error),
              error, "launch");
        require(cudaStreamSynchronize(e.ranks.of[0].stream));
        const bool told = gb_cuda_ranks_late(&error) == GB_EDEVICE && strstr(error.message, "rank 0 waited for");
        printf("late: %s: %s\n", p.name.c_str(), told ? error.message : "FAILED: nobody waited");
        bad += !told;
        gb_cuda_exchanger_close(&e);
    }
    return bad != 0;
}

} // namespace

int main(int argc, char **argv)
{
    const std::string mode = argc > 1 ? argv[1] : "";
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return skip("no CUDA device");
    if (mode != "" && mode != "check" && mode != "once" && mode != "replay" && mode != "late") {
        fprintf(stderr, "usage: test_ranks [check | once | replay [COUNT] | late]\n");
        return 2;
    }
    const uint32_t count = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 10000;
    int bad = 0;
    if (mode == "" || mode == "check")
        bad |= check_all(false);
    if (mode == "once")
        bad |= check_all(true);
    if (mode == "" || mode == "late")
        bad |= late();
    if (mode == "" || mode == "replay")
        bad |= replay_all(count);
    printf("%d devices: %s\n", devices, bad ? "FAILED" : "passed");
    return bad;
}
