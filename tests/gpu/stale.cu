/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A subject library of kernels that remember what they were given before, and of kernels that touch memory that is not
 * theirs, around cuda/nvfp4-layer, which does the work. Each claims the order fma32/1 and that it can be captured in a
 * CUDA graph. stale-cuda/none only does the work.
 */
#include <dlfcn.h>
#include <map>
#include <string.h>

#include "gpu/device.cuh"

namespace
{

const struct gb_kernel *layer()
{
    static const struct gb_kernel *found;
    void *library = found ? NULL : dlopen("libgaugeblock-cuda.so", RTLD_NOW | RTLD_LOCAL);
    const auto function = library ? (const struct gb_kernel_table *(*)())dlsym(library, GB_KERNELS_SYMBOL) : NULL;
    for (uint32_t i = 0; function && i < function()->count; i++)
        if (!strcmp(function()->kernels[i].name, "cuda/nvfp4-layer"))
            found = &function()->kernels[i];
    return found;
}

enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    const struct gb_kernel *correct = layer();
    return correct ? correct->supports(problem, error)
                   : gb_cuda_fail(error, GB_EUNSUPPORTED, "libgaugeblock-cuda.so cannot be loaded: %s", dlerror());
}

enum { WORKSPACE = 4096 };

size_t workspace(const struct gb_problem *)
{
    return WORKSPACE;
}

enum fault {
    NONE,
    /* what the first call was given */
    X,
    IDS,
    ROUTING,
    CODES,
    SCALES,
    GLOBALS,
    DOWN,
    DOWN_SCALES,
    LAST_ROW,
    /* the same by address, and by the number of tokens */
    ADDRESS_X,
    ADDRESS_IDS,
    ADDRESS_ROUTING,
    TOKENS_X,
    /* what the call before was given */
    LAG_X,
    LAG_IDS,
    LAG_ROUTING,
    /* a graph of its own, captured in the first call: with its addresses; with its x alone */
    GRAPH,
    GRAPH_X,
    /* right where it is launched, and wrong where it is replayed */
    CAPTURE_X,
    CAPTURE_ROUTING,
    OTHER_STREAM,
    /* wrong from that call on; sums over calls; no call like another */
    THIRD,
    FOURTH,
    TOTAL,
    RANDOM,
    /* memory */
    OWN_UNWRITTEN,
    POOL_UNWRITTEN,
    OLD_WORKSPACE,
    WORKSPACE_UNWRITTEN,
    ADDS,
    HALF,
    WRITES_PAST,
    WRITES_FAR,
    WRITES_BEFORE,
    WRITES_WORKSPACE_PAST,
    WRITES_X,
    WRITES_IDS,
    WRITES_WEIGHTS,
    READS_PAST,
    READS_X_PAST,
    READS_X_BEFORE
};

/* The stream of the call, and whether it is captured: memory cannot be allocated then. */
struct call {
    cudaStream_t stream;
    bool captured;
};

struct call call_of(const struct gb_arguments *a)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing((cudaStream_t)a->stream, &status);
    return {(cudaStream_t)a->stream, status != cudaStreamCaptureStatusNone};
}

void *copy_of(const struct call &c, const void *from, size_t bytes)
{
    void *copy = NULL;
    if (c.captured || cudaMalloc(&copy, bytes) != cudaSuccess)
        return NULL;
    (void)cudaMemcpyAsync(copy, from, bytes, cudaMemcpyDeviceToDevice, c.stream);
    return copy;
}

/* The copy that was kept under a key, of the call that first had it. */
template <typename T> void remember(const struct call &c, uintptr_t key, const T **what, size_t bytes)
{
    static std::map<uintptr_t, void *> kept;
    if (!kept.count(key))
        kept[key] = copy_of(c, *what, bytes);
    if (kept[key])
        *what = (const T *)kept[key];
}

template <typename T> void lag(const struct call &c, const T **what, size_t bytes)
{
    static void *before, *now;
    if (!c.captured) {
        before = now ? now : copy_of(c, *what, bytes);
        now = copy_of(c, *what, bytes);
    }
    *what = (const T *)before;
}

/* In a call that is captured, what the last one that was not had. */
template <typename T> void remember_for_capture(const struct call &c, const T **what, size_t bytes)
{
    static void *last;
    if (!c.captured)
        last = copy_of(c, *what, bytes);
    else
        *what = (const T *)last;
}

__global__ void add_element(float *to, size_t at, const volatile float *from, float factor)
{
    to[at] += factor * *from;
}

__global__ void add_value(float *to, float value)
{
    *to += value;
}

__global__ void add_time(float *to)
{
    *to += 1e-3f * (float)(clock64() % 1021 + 1);
}

__global__ void add_array(float *to, const float *from, size_t count)
{
    for (size_t i = threadIdx.x; i < count; i += blockDim.x)
        to[i] += from[i];
}

__global__ void write_byte(uint8_t *to)
{
    *to ^= 1;
}

__global__ void add_bf16(float *to, const volatile uint16_t *from)
{
    *to += 0.0f * __uint_as_float((uint32_t)*from << 16);
}

/* What the layer is given in place of what this call was. */
template <enum fault Fault> void look_back(const struct call &c, struct gb_arguments *a)
{
    const size_t x = sizeof *a->x * a->shape.tokens * a->shape.hidden, pairs = (size_t)a->shape.tokens * a->shape.top_k;
    const size_t gate_up = (size_t)a->shape.experts * a->gate_up.rows * a->gate_up.columns;
    const size_t down = (size_t)a->shape.experts * a->down.rows * a->down.columns, row = x / a->shape.tokens;
    const size_t ids = sizeof *a->ids * pairs, routing = sizeof *a->routing_weights * pairs;
    switch (Fault) {
    case X:
        return remember(c, 0, &a->x, x);
    case IDS:
        return remember(c, 0, &a->ids, ids);
    case ROUTING:
        return remember(c, 0, &a->routing_weights, routing);
    case CODES:
        return remember(c, 0, &a->gate_up.codes, gate_up / 2);
    case SCALES:
        return remember(c, 0, &a->gate_up.scales, gate_up / 16);
    case GLOBALS:
        return remember(c, 0, &a->gate_up.global_scales, sizeof(float) * 2 * a->shape.experts);
    case DOWN:
        return remember(c, 0, &a->down.codes, down / 2);
    case DOWN_SCALES:
        return remember(c, 0, &a->down.scales, down / 16);
    case LAST_ROW: {
        static void *last, *all;
        if (!last) {
            last = copy_of(c, (const char *)a->x + x - row, row);
            all = copy_of(c, a->x, x);
        }
        (void)cudaMemcpyAsync(all, a->x, x - row, cudaMemcpyDeviceToDevice, c.stream);
        (void)cudaMemcpyAsync((char *)all + x - row, last, row, cudaMemcpyDeviceToDevice, c.stream);
        a->x = (const gb_bf16 *)all;
        return;
    }
    case ADDRESS_X:
        return remember(c, (uintptr_t)a->x, &a->x, x);
    case ADDRESS_IDS:
        return remember(c, (uintptr_t)a->ids, &a->ids, ids);
    case ADDRESS_ROUTING:
        return remember(c, (uintptr_t)a->routing_weights, &a->routing_weights, routing);
    case TOKENS_X:
        return remember(c, a->shape.tokens, &a->x, x);
    case LAG_X:
        return lag(c, &a->x, x);
    case LAG_IDS:
        return lag(c, &a->ids, ids);
    case LAG_ROUTING:
        return lag(c, &a->routing_weights, routing);
    case CAPTURE_X:
        return remember_for_capture(c, &a->x, x);
    case CAPTURE_ROUTING:
        return remember_for_capture(c, &a->routing_weights, routing);
    default:
        return;
    }
}

/* Runs the graph of the first call, its output, or a buffer that is copied to each call's. */
enum gb_status run_own_graph(const struct gb_arguments *a, bool copied, struct gb_error *error)
{
    static cudaGraphExec_t graph;
    static void *output;
    const struct call c = call_of(a);
    const size_t bytes = sizeof(float) * a->shape.tokens * a->shape.hidden;
    if (!graph && !c.captured) {
        struct gb_arguments given = *a;
        cudaStream_t stream;
        cudaGraph_t nodes;
        output = a->output;
        if (copied && cudaMalloc(&output, bytes) != cudaSuccess)
            return gb_cuda_fail(error, GB_ENOMEM, "no memory for the output of a graph");
        (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        (void)cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        given.stream = stream;
        given.output = output;
        const enum gb_status status = layer()->run(&given, error);
        (void)cudaStreamEndCapture(stream, &nodes);
        if (status != GB_OK || cudaGraphInstantiate(&graph, nodes, 0) != cudaSuccess)
            return gb_cuda_fail(error, GB_EDEVICE, "the layer cannot be captured");
    }
    if (c.captured) /* a graph in a graph is not launched */
        return layer()->run(a, error);
    (void)cudaGraphLaunch(graph, c.stream);
    if (copied)
        (void)cudaMemcpyAsync(a->output, output, bytes, cudaMemcpyDeviceToDevice, c.stream);
    return gb_cuda_check(cudaGetLastError(), "cudaGraphLaunch", error);
}

/* After the layer. */
template <enum fault Fault> void spoil(const struct call &c, const struct gb_arguments *a, const float *before)
{
    static int calls;
    static float *own;
    float *output = (float *)a->output;
    const size_t count = (size_t)a->shape.tokens * a->shape.hidden, row = sizeof(float) * a->shape.hidden;
    calls += !c.captured;
    switch (Fault) {
    case THIRD:
    case FOURTH:
        if (calls > (Fault == THIRD ? 2 : 3))
            add_value<<<1, 1, 0, c.stream>>>(output, 1.0f);
        return;
    case TOTAL:
        if (!own)
            own = (float *)copy_of(c, output, sizeof *own);
        else
            add_element<<<1, 1, 0, c.stream>>>(own, 0, output, 1.0f);
        (void)cudaMemcpyAsync(output, own, sizeof *own, cudaMemcpyDeviceToDevice, c.stream);
        return;
    case RANDOM:
        return add_time<<<1, 1, 0, c.stream>>>(output);
    case OWN_UNWRITTEN:
        if (!own)
            (void)cudaMalloc((void **)&own, count * sizeof *own);
        return add_array<<<1, 256, 0, c.stream>>>(output, own, count);
    case POOL_UNWRITTEN: {
        float *pool;
        (void)cudaMallocAsync((void **)&pool, count * sizeof *pool, c.stream);
        add_array<<<1, 256, 0, c.stream>>>(output, pool, count);
        (void)cudaFreeAsync(pool, c.stream);
        return;
    }
    case OLD_WORKSPACE: {
        static float *old;
        if (!old) {
            old = (float *)a->workspace;
            (void)cudaMemsetAsync(old, 0, WORKSPACE, c.stream);
        }
        return add_element<<<1, 1, 0, c.stream>>>(output, 0, old, 1.0f);
    }
    case WORKSPACE_UNWRITTEN:
        return add_element<<<1, 1, 0, c.stream>>>(output, 0, (const float *)a->workspace + 7, 1.0f);
    case ADDS:
        return add_array<<<1, 256, 0, c.stream>>>(output, before, count);
    case HALF:
        (void)cudaMemcpyAsync(output + count - a->shape.hidden, before + count - a->shape.hidden, row,
                              cudaMemcpyDeviceToDevice, c.stream);
        return;
    case WRITES_PAST:
        return write_byte<<<1, 1, 0, c.stream>>>((uint8_t *)(output + count));
    case WRITES_FAR:
        return write_byte<<<1, 1, 0, c.stream>>>((uint8_t *)(output + count) + 4352);
    case WRITES_BEFORE:
        return write_byte<<<1, 1, 0, c.stream>>>((uint8_t *)output - 1);
    case WRITES_WORKSPACE_PAST:
        return write_byte<<<1, 1, 0, c.stream>>>((uint8_t *)a->workspace + WORKSPACE);
    case WRITES_X:
        return write_byte<<<1, 1, 0, c.stream>>>((uint8_t *)a->x);
    case WRITES_IDS:
        return write_byte<<<1, 1, 0, c.stream>>>((uint8_t *)a->ids);
    case WRITES_WEIGHTS:
        return write_byte<<<1, 1, 0, c.stream>>>((uint8_t *)a->down.codes);
    case READS_PAST:
        return add_element<<<1, 1, 0, c.stream>>>(output, 0, output + count, 0.0f);
    case READS_X_PAST:
        return add_bf16<<<1, 1, 0, c.stream>>>(output, (const uint16_t *)a->x + count);
    case READS_X_BEFORE:
        return add_bf16<<<1, 1, 0, c.stream>>>(output, (const uint16_t *)a->x - 1);
    default:
        return;
    }
}

template <enum fault Fault> enum gb_status run(const struct gb_arguments *a, struct gb_error *error)
{
    static cudaStream_t other;
    static float *before; /* [tokens, hidden], what the output held */
    const struct call c = call_of(a);
    const size_t bytes = sizeof(float) * a->shape.tokens * a->shape.hidden;
    struct gb_arguments given = *a;
    if (Fault == GRAPH || Fault == GRAPH_X)
        return run_own_graph(a, Fault == GRAPH_X, error);
    if (Fault == OTHER_STREAM) {
        if (!other)
            (void)cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
        given.stream = other;
    }
    if ((Fault == ADDS || Fault == HALF) && !before)
        before = (float *)copy_of(c, a->output, bytes);
    if (before)
        (void)cudaMemcpyAsync(before, a->output, bytes, cudaMemcpyDeviceToDevice, c.stream);
    look_back<Fault>(c, &given);
    const enum gb_status status = layer()->run(&given, error);
    if (status == GB_OK)
        spoil<Fault>(c, a, before);
    return status == GB_OK ? gb_cuda_check(cudaGetLastError(), "kernel launch", error) : status;
}

template <enum fault Fault> constexpr struct gb_kernel kernel(const char *name)
{
    return {name,       GB_LAYER,  GB_NVFP4, GB_BF16,
            GB_FP32,    "fma32/1", 24,       GB_DEVICE_POINTERS | GB_GRAPH_CAPTURABLE | GB_STAGE_OUTPUTS,
            supports,   workspace, NULL,     NULL,
            run<Fault>, {}};
}

const struct gb_kernel kernels[] = {
    kernel<NONE>("stale-cuda/none"),
    kernel<X>("stale-cuda/x"),
    kernel<IDS>("stale-cuda/ids"),
    kernel<ROUTING>("stale-cuda/routing"),
    kernel<CODES>("stale-cuda/codes"),
    kernel<SCALES>("stale-cuda/scales"),
    kernel<GLOBALS>("stale-cuda/globals"),
    kernel<DOWN>("stale-cuda/down"),
    kernel<DOWN_SCALES>("stale-cuda/down-scales"),
    kernel<LAST_ROW>("stale-cuda/last-row"),
    kernel<ADDRESS_X>("stale-cuda/address-x"),
    kernel<ADDRESS_IDS>("stale-cuda/address-ids"),
    kernel<ADDRESS_ROUTING>("stale-cuda/address-routing"),
    kernel<TOKENS_X>("stale-cuda/tokens-x"),
    kernel<LAG_X>("stale-cuda/lag-x"),
    kernel<LAG_IDS>("stale-cuda/lag-ids"),
    kernel<LAG_ROUTING>("stale-cuda/lag-routing"),
    kernel<GRAPH>("stale-cuda/graph"),
    kernel<GRAPH_X>("stale-cuda/graph-x"),
    kernel<CAPTURE_X>("stale-cuda/capture-x"),
    kernel<CAPTURE_ROUTING>("stale-cuda/capture-routing"),
    kernel<OTHER_STREAM>("stale-cuda/other-stream"),
    kernel<THIRD>("stale-cuda/third"),
    kernel<FOURTH>("stale-cuda/fourth"),
    kernel<TOTAL>("stale-cuda/total"),
    kernel<RANDOM>("stale-cuda/random"),
    kernel<OWN_UNWRITTEN>("stale-cuda/own-unwritten"),
    kernel<POOL_UNWRITTEN>("stale-cuda/pool-unwritten"),
    kernel<OLD_WORKSPACE>("stale-cuda/old-workspace"),
    kernel<WORKSPACE_UNWRITTEN>("stale-cuda/workspace-unwritten"),
    kernel<ADDS>("stale-cuda/adds"),
    kernel<HALF>("stale-cuda/half"),
    kernel<WRITES_PAST>("stale-cuda/writes-past"),
    kernel<WRITES_FAR>("stale-cuda/writes-far"),
    kernel<WRITES_BEFORE>("stale-cuda/writes-before"),
    kernel<WRITES_WORKSPACE_PAST>("stale-cuda/writes-workspace-past"),
    kernel<WRITES_X>("stale-cuda/writes-x"),
    kernel<WRITES_IDS>("stale-cuda/writes-ids"),
    kernel<WRITES_WEIGHTS>("stale-cuda/writes-weights"),
    kernel<READS_PAST>("stale-cuda/reads-past"),
    kernel<READS_X_PAST>("stale-cuda/reads-x-past"),
    kernel<READS_X_BEFORE>("stale-cuda/reads-x-before"),
};

} // namespace

extern "C" GB_API const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof(struct gb_kernel),
                                                 sizeof kernels / sizeof kernels[0], kernels};
    return &table;
}
