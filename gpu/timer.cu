/* SPDX-License-Identifier: Apache-2.0 */
/* The device's clock for the harness (gb_timer): events, graphs, and the kernel that only reads. */
#include <vector>

#include "gpu/device.cuh"

namespace
{

struct timer {
    cudaStream_t stream;
    cudaEvent_t start, stop;
    uint32_t *sink; /* [1], of the reads */
    unsigned blocks;
};

struct graph {
    cudaGraph_t nodes;
    cudaGraphExec_t executable;
};

enum { READ_THREADS = 512, READ_BLOCKS = 4, READ_LOADS = 4 };

/* READ_LOADS loads of 16 bytes under way in a thread. What is read must be used, and what is written never is. */
__global__ void __launch_bounds__(READ_THREADS) read_bytes(const uint4 *from, size_t count, uint32_t *sink)
{
    const size_t stride = (size_t)gridDim.x * READ_THREADS;
    uint32_t sum = 0;
    for (size_t i = blockIdx.x * (size_t)READ_THREADS + threadIdx.x; i < count; i += READ_LOADS * stride) {
        uint4 words[READ_LOADS];
#pragma unroll
        for (uint32_t k = 0; k < READ_LOADS; k++)
            words[k] = i + k * stride < count ? __ldg(from + i + k * stride) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (uint32_t k = 0; k < READ_LOADS; k++)
            sum ^= words[k].x ^ words[k].y ^ words[k].z ^ words[k].w;
    }
    if (sum == 0x12345678u)
        *sink = sum;
}

enum gb_status cache_bytes(size_t *bytes, struct gb_error *error)
{
    int cache = 0;
    const enum gb_status status = gb_cuda_attribute(cudaDevAttrL2CacheSize, &cache, error);
    *bytes = (size_t)cache;
    return status;
}

void close(void *opened)
{
    timer *t = (timer *)opened;
    if (!t)
        return;
    if (t->stop)
        (void)cudaEventDestroy(t->stop);
    if (t->start)
        (void)cudaEventDestroy(t->start);
    if (t->stream)
        (void)cudaStreamDestroy(t->stream);
    (void)cudaFree(t->sink);
    delete t;
}

enum gb_status open(void **opened, void **stream, struct gb_error *error)
{
    int processors = 0;
    timer *t = new timer();
    enum gb_status status = gb_cuda_check(cudaStreamCreate(&t->stream), "cudaStreamCreate", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaEventCreate(&t->start), "cudaEventCreate", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaEventCreate(&t->stop), "cudaEventCreate", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaMalloc((void **)&t->sink, sizeof *t->sink), "cudaMalloc", error);
    if (status == GB_OK)
        status = gb_cuda_attribute(cudaDevAttrMultiProcessorCount, &processors, error);
    t->blocks = (unsigned)processors * READ_BLOCKS;
    *opened = t;
    *stream = t->stream;
    if (status != GB_OK)
        close(t);
    return status;
}

enum gb_status capture(void *opened, struct gb_error *error)
{
    return gb_cuda_check(cudaStreamBeginCapture(((timer *)opened)->stream, cudaStreamCaptureModeThreadLocal),
                         "cudaStreamBeginCapture", error);
}

void discard(void *captured)
{
    graph *g = (graph *)captured;
    if (!g)
        return;
    if (g->executable)
        (void)cudaGraphExecDestroy(g->executable);
    if (g->nodes)
        (void)cudaGraphDestroy(g->nodes);
    delete g;
}

enum gb_status count_launches(cudaGraph_t nodes, size_t *launches, struct gb_error *error)
{
    size_t count = 0;
    *launches = 0;
    enum gb_status status = gb_cuda_check(cudaGraphGetNodes(nodes, NULL, &count), "cudaGraphGetNodes", error);
    std::vector<cudaGraphNode_t> node(count);
    if (status == GB_OK && count)
        status = gb_cuda_check(cudaGraphGetNodes(nodes, node.data(), &count), "cudaGraphGetNodes", error);
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        cudaGraphNodeType type;
        status = gb_cuda_check(cudaGraphNodeGetType(node[i], &type), "cudaGraphNodeGetType", error);
        *launches += status == GB_OK && type == cudaGraphNodeTypeKernel;
    }
    return status;
}

enum gb_status captured(void *opened, void **kept, size_t *launches, struct gb_error *error)
{
    graph *g = new graph();
    enum gb_status status =
        gb_cuda_check(cudaStreamEndCapture(((timer *)opened)->stream, &g->nodes), "cudaStreamEndCapture", error);
    if (status == GB_OK)
        status = count_launches(g->nodes, launches, error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaGraphInstantiate(&g->executable, g->nodes, 0), "cudaGraphInstantiate", error);
    *kept = g;
    if (status != GB_OK) {
        discard(g);
        *kept = NULL;
    }
    return status;
}

enum gb_status replay(void *opened, void *kept, struct gb_error *error)
{
    return gb_cuda_check(cudaGraphLaunch(((graph *)kept)->executable, ((timer *)opened)->stream), "cudaGraphLaunch",
                         error);
}

enum gb_status start(void *opened, struct gb_error *error)
{
    timer *t = (timer *)opened;
    return gb_cuda_check(cudaEventRecord(t->start, t->stream), "cudaEventRecord", error);
}

enum gb_status stop(void *opened, double *seconds, struct gb_error *error)
{
    timer *t = (timer *)opened;
    float milliseconds = 0;
    enum gb_status status = gb_cuda_check(cudaEventRecord(t->stop, t->stream), "cudaEventRecord", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaEventSynchronize(t->stop), "what was timed", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaEventElapsedTime(&milliseconds, t->start, t->stop), "cudaEventElapsedTime", error);
    *seconds = milliseconds * 1e-3;
    return status;
}

enum gb_status read(void *opened, const void *from, size_t bytes, struct gb_error *error)
{
    timer *t = (timer *)opened;
    return gb_cuda_launch("read_bytes", read_bytes, dim3(t->blocks), READ_THREADS, 0, t->stream, error,
                          (const uint4 *)from, bytes / sizeof(uint4), t->sink);
}

} // namespace

extern "C" GB_API const struct gb_timer *gb_timer(void)
{
    static const struct gb_timer timer = {sizeof timer, cache_bytes, open,  close, capture, captured,
                                          replay,       discard,     start, stop,  read};
    return &timer;
}
