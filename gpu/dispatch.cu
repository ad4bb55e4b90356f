/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of dispatch: which instance, and how much of a window it takes. */
#include "gpu/dispatch.cuh"

namespace
{

size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Rows that go tagged. Few rows are there sooner that way; of many, it fills the link while counts travel. */
uint32_t early_rows(const struct gb_exchange *x)
{
    constexpr uint32_t most = 64;
    return x->tokens * x->top_k < most ? x->tokens * x->top_k : most;
}

} // namespace

struct gb_dispatch_layout gb_cuda_dispatch_layout(const struct gb_exchange *x, uint32_t most_rows)
{
    const struct gb_quantiser *rules = &x->quantiser;
    struct gb_dispatch_layout at = {};
    at.code_bytes = !rules->element ? x->hidden * 2 : rules->element == GB_E2M1 ? x->hidden / 2 : x->hidden;
    at.blocks = rules->element ? x->hidden / rules->block_columns : 0;
    at.scale_bytes = at.blocks * (rules->scale == GB_SCALE_FP32 ? 4 : 1);
    at.early = early_rows(x);
    at.early_words = (at.code_bytes / 4 + at.blocks + 1 + 1) / 2 * 2; /* rows begin at multiples of 16 bytes */
    at.arrived = aligned(2 * sizeof(uint64_t) * x->ranks * x->experts);
    at.private_rows = at.arrived + aligned(sizeof(uint32_t) * x->ranks);
    at.codes = at.private_rows + aligned(2 * sizeof(uint64_t) * x->ranks * at.early * at.early_words);
    at.scales = at.codes + aligned((size_t)most_rows * at.code_bytes);
    at.routes = at.scales + aligned((size_t)most_rows * at.scale_bytes);
    at.bytes = at.routes + aligned((size_t)most_rows * sizeof(int32_t));
    return at;
}

enum gb_status gb_cuda_dispatch_launch(const struct gb_dispatch_job *job, void *stream, struct gb_error *error)
{
    const uint32_t pieces = (job->hidden / 8 + 31) / 32 * 32;
    const unsigned threads = pieces < 256 ? 256 : pieces > 1024 ? 1024 : pieces;
    const size_t shared = job->experts * (sizeof(uint32_t) + sizeof(uint16_t));
    const dim3 grid(1 + job->tokens + GB_DISPATCH_RECEIVERS);
    const bool quantises = job->q.quantiser.element != 0;
    if (quantises && gb_converts_e4m3(job->q.quantiser))
        return gb_cuda_launch("dispatch", gb_dispatch_kernel<true, true>, grid, threads, shared, stream, error, *job);
    if (quantises)
        return gb_cuda_launch("dispatch", gb_dispatch_kernel<true, false>, grid, threads, shared, stream, error, *job);
    return gb_cuda_launch("dispatch", gb_dispatch_kernel<false, false>, grid, threads, shared, stream, error, *job);
}
