/* SPDX-License-Identifier: Apache-2.0 */
/* Dispatch and combine on arrays of all ranks. */
#include <cmath>
#include <cstring>

#include "gpu/exchange.cuh"

namespace
{

/* Memory of a rank, part after part. A first pass without memory finds out how much. */
struct parts {
    char *memory;
    size_t used;

    template <class Type> void place(Type **pointer, size_t count)
    {
        *pointer = memory ? (Type *)(memory + used) : NULL;
        used += (count * sizeof(Type) + 255) / 256 * 256;
    }
};

void place_dispatch(struct gb_dispatch_job *job, struct parts *p)
{
    const size_t slots = (size_t)job->tokens * job->top_k;
    p->place((gb_bf16 **)&job->x, (size_t)job->tokens * job->hidden);
    p->place((int32_t **)&job->ids, slots);
    p->place((int32_t **)&job->placement, job->experts);
    p->place(&job->counts, (size_t)job->link.ranks * job->experts);
    p->place(&job->expected, job->link.ranks);
}

/* The rank's ids are among all. */
void place_combine(struct gb_combine_job *job, uint32_t most_rows, int32_t **all_ids, struct parts *p)
{
    const size_t slots = (size_t)job->tokens * job->top_k, all = slots * job->link.ranks;
    p->place((char **)&job->rows, (size_t)most_rows * job->hidden * (job->input == GB_BF16 ? 2 : 4));
    p->place((int32_t **)&job->row_of, all);
    p->place((float **)&job->all_weights, all);
    p->place(all_ids, all);
    job->ids = *all_ids + slots * job->link.rank;
    p->place((int32_t **)&job->placement, job->experts);
    p->place(&job->output, (size_t)job->tokens * job->hidden);
    p->place(&job->expected, (size_t)2 * job->tokens * job->at.parts);
}

struct gb_quantisation quantisation(const struct gb_exchange *x)
{
    struct gb_quantisation q = {};
    q.size = sizeof q;
    q.quantiser = x->quantiser;
    q.input = GB_BF16;
    q.rows = x->tokens;
    q.columns = q.input_columns = x->hidden;
    q.layout = GB_SCALES_LINEAR;
    q.bound = INFINITY;
    q.global_scale = x->global_scale;
    return q;
}

/* The jobs of a rank, and their memory. */
enum gb_status open_rank(struct gb_cuda_exchanger *e, uint32_t r, uint32_t most_rows, struct gb_error *error)
{
    const struct gb_exchange *x = &e->asked;
    struct gb_dispatch_job *d = &e->dispatch[r];
    struct gb_combine_job *c = &e->combine[r];
    d->link = c->link = e->ranks.of[r].link;
    d->tokens = c->tokens = x->tokens;
    d->hidden = c->hidden = x->hidden;
    d->experts = c->experts = x->experts;
    d->top_k = c->top_k = x->top_k;
    d->q = quantisation(x);
    c->accumulation = x->accumulation;
    c->ranks_per_node = x->ranks_per_node;
    c->input = x->input;
    if (e->operation == GB_DISPATCH)
        d->at = gb_cuda_dispatch_layout(x, most_rows);
    else
        c->at = gb_cuda_combine_layout(x);
    for (int pass = 0; pass < 2; pass++) {
        struct parts p = {e->memory[r], 0};
        if (e->operation == GB_DISPATCH)
            place_dispatch(d, &p);
        else
            place_combine(c, most_rows, &e->all_ids[r], &p);
        if (pass == 0) {
            const enum gb_status status = gb_cuda_ranks_allocate(&e->ranks, r, p.used, (void **)&e->memory[r], error);
            if (status != GB_OK)
                return status;
        }
    }
    return GB_OK;
}

enum gb_status copy(void *to, const void *from, size_t bytes, cudaStream_t stream, struct gb_error *error)
{
    return bytes ? gb_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync", error)
                 : GB_OK;
}

enum gb_status put_dispatch(struct gb_cuda_exchanger *e, uint32_t r, const struct gb_arguments *a,
                            struct gb_error *error)
{
    const struct gb_dispatch_job *job = &e->dispatch[r];
    const cudaStream_t stream = e->ranks.of[r].stream;
    const size_t values = (size_t)job->tokens * job->hidden, slots = (size_t)job->tokens * job->top_k;
    enum gb_status status = copy((void *)job->x, a->x + values * r, values * sizeof *job->x, stream, error);
    if (status == GB_OK)
        status = copy((void *)job->ids, a->ids + slots * r, slots * sizeof *job->ids, stream, error);
    if (status == GB_OK)
        status = copy((void *)job->placement, a->placement, job->experts * sizeof *job->placement, stream, error);
    return status;
}

/* All rows, of which the rank reads its own; and what dispatch has left on it of other ranks' routing. */
enum gb_status put_combine(struct gb_cuda_exchanger *e, uint32_t r, const struct gb_arguments *a,
                           struct gb_error *error)
{
    const struct gb_combine_job *job = &e->combine[r];
    const cudaStream_t stream = e->ranks.of[r].stream;
    const size_t all = (size_t)job->link.ranks * job->tokens * job->top_k;
    const size_t row_bytes = (size_t)job->hidden * (job->input == GB_BF16 ? 2 : 4);
    enum gb_status status = copy((void *)job->rows, a->values, e->asked.rows * row_bytes, stream, error);
    if (status == GB_OK)
        status = copy((void *)job->all_weights, a->routing_weights, all * sizeof *job->all_weights, stream, error);
    if (status == GB_OK)
        status = copy(e->all_ids[r], a->ids, all * sizeof *job->ids, stream, error);
    if (status == GB_OK)
        status = copy((void *)job->placement, a->placement, job->experts * sizeof *job->placement, stream, error);
    if (status == GB_OK)
        status =
            gb_cuda_find_rows(&e->asked, r, true, e->all_ids[r], job->placement, (int32_t *)job->row_of, stream, error);
    return status;
}

/* Where a receiver's rows begin among those of all ranks, and how many they are. counts: [ranks, experts]. */
__device__ void find_receiver(const gb_dispatch_job &job, uint32_t *first, uint32_t *rows)
{
    __shared__ uint32_t before, here;
    if (threadIdx.x == 0)
        before = here = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < job.link.ranks * job.experts; i += blockDim.x) {
        const uint32_t receiver = min((uint32_t)job.placement[i % job.experts], job.link.ranks - 1);
        if (receiver <= job.link.rank && job.counts[i])
            atomicAdd(receiver < job.link.rank ? &before : &here, (uint32_t)job.counts[i]);
    }
    __syncthreads();
    *first = before;
    *rows = here;
}

/* What a rank has received, to its place in the arrays of all ranks; rows: of these. */
__global__ void take_rows(const __grid_constant__ gb_dispatch_job job, uint32_t rows, char *codes, char *scales,
                          int32_t *routes)
{
    const char *window = job.link.window[job.link.rank];
    uint32_t first, here;
    find_receiver(job, &first, &here);
    for (uint32_t row = blockIdx.x; row < here && first + row < rows; row += gridDim.x) {
        const uint2 *from = (const uint2 *)(window + job.at.codes + (size_t)row * job.at.code_bytes);
        uint2 *to = (uint2 *)(codes + (size_t)(first + row) * job.at.code_bytes);
        for (uint32_t i = threadIdx.x; i < job.at.code_bytes / sizeof(uint2); i += blockDim.x)
            to[i] = from[i];
        for (uint32_t i = threadIdx.x; i < job.at.scale_bytes; i += blockDim.x)
            scales[(size_t)(first + row) * job.at.scale_bytes + i] =
                window[job.at.scales + (size_t)row * job.at.scale_bytes + i];
        if (threadIdx.x == 0)
            routes[first + row] = ((const int32_t *)(window + job.at.routes))[row];
    }
}

enum gb_status take_dispatch(struct gb_cuda_exchanger *e, uint32_t r, const struct gb_arguments *a,
                             struct gb_error *error)
{
    enum { BLOCKS = 64, THREADS = 256 };
    const struct gb_dispatch_job *job = &e->dispatch[r];
    const cudaStream_t stream = e->ranks.of[r].stream;
    enum gb_status status = GB_OK;
    if (r == 0)
        status =
            copy(a->counts, job->counts, (size_t)job->link.ranks * job->experts * sizeof *job->counts, stream, error);
    if (status == GB_OK)
        status = gb_cuda_launch("take_rows", take_rows, dim3(BLOCKS), THREADS, 0, stream, error, *job, e->asked.rows,
                                (char *)a->codes, (char *)a->scales, a->routes);
    return status;
}

enum gb_status take_combine(struct gb_cuda_exchanger *e, uint32_t r, const struct gb_arguments *a,
                            struct gb_error *error)
{
    const struct gb_combine_job *job = &e->combine[r];
    const size_t values = (size_t)job->tokens * job->hidden;
    return copy((float *)a->output + values * r, job->output, values * sizeof *job->output, e->ranks.of[r].stream,
                error);
}

/* So that a rank that did not come is told of. */
enum gb_status wait_unless_captured(cudaStream_t stream, struct gb_error *error)
{
    cudaStreamCaptureStatus capture;
    enum gb_status status = gb_cuda_check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing", error);
    if (status != GB_OK || capture != cudaStreamCaptureStatusNone)
        return status;
    status = gb_cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", error);
    return status == GB_OK ? gb_cuda_ranks_late(error) : status;
}

enum gb_status check_sizes(const struct gb_exchange *x, struct gb_error *error)
{
    constexpr uint32_t most_experts = 16384, most_slots = 65535, most_hidden = 1u << 20;
    if (!x || x->size < sizeof *x)
        return gb_cuda_fail(error, GB_EINVAL, "no struct gb_exchange of at least %zu bytes", sizeof *x);
    if (!x->ranks || !x->tokens || !x->hidden || !x->experts || !x->top_k || x->top_k > x->experts)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "every size must be at least 1, and top_k at most experts");
    if (x->one_rank)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "one rank alone; this kernel has all ranks in one process");
    if (x->hidden % 16 || x->hidden > most_hidden)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "hidden %u is no multiple of 16 up to %u", x->hidden, most_hidden);
    if (x->top_k > GB_CUDA_MAX_TOP_K || (uint64_t)x->tokens * x->top_k > most_slots || x->experts > most_experts)
        return gb_cuda_fail(error, GB_EUNSUPPORTED,
                            "top_k %u, tokens * top_k %llu, experts %u; they are at most %u, %u and %u", x->top_k,
                            (unsigned long long)x->tokens * x->top_k, x->experts, GB_CUDA_MAX_TOP_K, most_slots,
                            most_experts);
    return GB_OK;
}

} // namespace

enum gb_status gb_cuda_exchange_check(const struct gb_exchange *x, enum gb_operator operation, struct gb_error *error)
{
    enum gb_status status = check_sizes(x, error);
    if (status == GB_OK && operation == GB_DISPATCH && x->quantiser.element) {
        const struct gb_quantisation q = quantisation(x);
        if (gb_cuda_quantise_check(&q, GB_QUANTISE, error) != GB_OK)
            status = GB_EUNSUPPORTED;
    }
    if (status == GB_OK && operation == GB_COMBINE && x->input != GB_BF16 && x->input != GB_FP32)
        status = gb_cuda_fail(error, GB_EUNSUPPORTED, "rows of format %d; they are bf16 (%d) or FP32 (%d)",
                              (int)x->input, (int)GB_BF16, (int)GB_FP32);
    if (status == GB_OK && operation == GB_COMBINE &&
        (x->accumulation < GB_AT_RECEIVER || x->accumulation > GB_AT_SENDER_NODE ||
         (x->accumulation == GB_AT_SENDER_NODE && !x->ranks_per_node)))
        status = gb_cuda_fail(error, GB_EUNSUPPORTED, "accumulation %d over nodes of %u ranks does not exist",
                              (int)x->accumulation, x->ranks_per_node);
    return status;
}

enum gb_status gb_cuda_exchanger_open(enum gb_operator operation, const struct gb_exchange *x, uint32_t most_rows,
                                      struct gb_cuda_exchanger *e, struct gb_error *error)
{
    *e = {};
    e->asked = *x;
    e->operation = operation;
    const size_t window =
        operation == GB_DISPATCH ? gb_cuda_dispatch_layout(x, most_rows).bytes : gb_cuda_combine_layout(x).bytes;
    enum gb_status status = gb_cuda_ranks_open(x->ranks, window, &e->ranks, error);
    for (uint32_t r = 0; status == GB_OK && r < x->ranks; r++)
        status = open_rank(e, r, most_rows, error);
    return status;
}

void gb_cuda_exchanger_close(struct gb_cuda_exchanger *e)
{
    int device[GB_CUDA_MAX_RANKS];
    const uint32_t count = e->ranks.count;
    for (uint32_t r = 0; r < count; r++)
        device[r] = e->ranks.of[r].device;
    gb_cuda_ranks_close(&e->ranks);
    for (uint32_t r = 0; r < count; r++) {
        gb_cuda_on on(device[r]);
        (void)cudaFree(e->memory[r]);
    }
    *e = {};
}

enum gb_status gb_cuda_exchanger_put(struct gb_cuda_exchanger *e, const struct gb_arguments *a, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t r = 0; status == GB_OK && r < e->ranks.count; r++) {
        gb_cuda_on on(e->ranks.of[r].device);
        status = e->operation == GB_DISPATCH ? put_dispatch(e, r, a, error) : put_combine(e, r, a, error);
    }
    return status;
}

enum gb_status gb_cuda_exchanger_run(struct gb_cuda_exchanger *e, struct gb_error *error)
{
    return gb_cuda_ranks_launch(&e->ranks, [&](uint32_t r, uint32_t halves) {
        e->dispatch[r].halves = e->combine[r].halves = halves;
        return e->operation == GB_DISPATCH ? gb_cuda_dispatch_launch(&e->dispatch[r], e->ranks.of[r].stream, error)
                                           : gb_cuda_combine_launch(&e->combine[r], e->ranks.of[r].stream, error);
    });
}

enum gb_status gb_cuda_exchanger_take(struct gb_cuda_exchanger *e, const struct gb_arguments *a, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t r = 0; status == GB_OK && r < e->ranks.count; r++) {
        gb_cuda_on on(e->ranks.of[r].device);
        status = e->operation == GB_DISPATCH ? take_dispatch(e, r, a, error) : take_combine(e, r, a, error);
    }
    return status;
}

enum gb_status gb_cuda_exchange_prepare(enum gb_operator operation, const struct gb_arguments *a, void **prepared,
                                        struct gb_error *error)
{
    struct gb_cuda_exchanger *e = new gb_cuda_exchanger();
    const enum gb_status status = gb_cuda_exchanger_open(operation, a->exchange, a->exchange->rows, e, error);
    *prepared = e;
    if (status != GB_OK) {
        gb_cuda_exchange_release(e);
        *prepared = NULL;
    }
    return status;
}

void gb_cuda_exchange_release(void *prepared)
{
    gb_cuda_exchanger_close((struct gb_cuda_exchanger *)prepared);
    delete (struct gb_cuda_exchanger *)prepared;
}

enum gb_status gb_cuda_exchange(enum gb_operator operation, const struct gb_arguments *a, struct gb_error *error)
{
    struct gb_cuda_exchanger *e = (struct gb_cuda_exchanger *)a->prepared;
    if (e->operation != operation || memcmp(&e->asked, a->exchange, sizeof e->asked) != 0)
        return gb_cuda_fail(error, GB_EINVAL, "the arguments are not those that were prepared");
    enum gb_status status = gb_cuda_ranks_fork(&e->ranks, a->stream, error);
    if (status == GB_OK)
        status = gb_cuda_exchanger_put(e, a, error);
    if (status == GB_OK)
        status = gb_cuda_exchanger_run(e, error);
    if (status == GB_OK)
        status = gb_cuda_exchanger_take(e, a, error);
    if (status == GB_OK)
        status = gb_cuda_ranks_join(&e->ranks, a->stream, error);
    return status == GB_OK ? wait_unless_captured((cudaStream_t)a->stream, error) : status;
}
