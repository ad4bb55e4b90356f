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

/* Blocks for each token's columns: enough to use all multiprocessors for few tokens, and not too many for many. */
void cut_tokens(const struct gb_exchange *x, struct gb_dispatch_layout *at)
{
    constexpr uint32_t least = 128, most_blocks = 256;
    const uint32_t pieces = x->hidden / 8;
    const uint32_t blocks = x->tokens < most_blocks ? most_blocks / x->tokens : 1;
    const uint32_t even = (pieces + blocks - 1) / blocks, wanted = even < least ? least : even;
    at->part_pieces = (wanted + 31) / 32 * 32; /* a scale's block is in one part */
    at->parts = (pieces + at->part_pieces - 1) / at->part_pieces;
}

} // namespace

struct gb_dispatch_layout gb_cuda_dispatch_layout(const struct gb_exchange *x, uint32_t most_rows)
{
    const struct gb_quantiser *rules = &x->quantiser;
    const size_t tagged = 2 * sizeof(uint64_t) * x->ranks;
    struct gb_dispatch_layout at = {};
    at.code_bytes = !rules->element ? x->hidden * 2 : rules->element == GB_E2M1 ? x->hidden / 2 : x->hidden;
    at.blocks = rules->element ? x->hidden / rules->block_columns : 0;
    at.scale_bytes = at.blocks * (rules->scale == GB_SCALE_FP32 ? 4 : 1);
    at.early = early_rows(x);
    at.early_words = (at.code_bytes / 4 + at.blocks + 1 + 1) / 2 * 2; /* rows begin at multiples of 16 bytes */
    cut_tokens(x, &at);
    at.counts = at.totals + aligned(tagged * x->ranks);
    at.arrived = at.counts + aligned(tagged * x->experts);
    at.private_rows = at.arrived + aligned(sizeof(uint32_t) * x->ranks);
    at.codes = at.private_rows + aligned(tagged * at.early * at.early_words);
    at.scales = at.codes + aligned((size_t)most_rows * at.code_bytes);
    at.routes = at.scales + aligned((size_t)most_rows * at.scale_bytes);
    at.bytes = at.routes + aligned((size_t)most_rows * sizeof(int32_t));
    return at;
}

enum gb_status gb_cuda_dispatch_launch(const struct gb_dispatch_job *job, void *stream, struct gb_error *error)
{
    constexpr uint32_t most_receivers = 128;
    const struct gb_dispatch_layout *at = &job->at;
    const uint32_t slots = job->tokens * job->top_k;
    const unsigned threads = at->part_pieces < GB_DISPATCH_THREADS ? at->part_pieces : GB_DISPATCH_THREADS;
    const uint32_t words = 2 * GB_DISPATCH_PAIRS * threads;
    const uint32_t pieces = (job->link.ranks - 1) * at->early * ((at->early_words + words - 1) / words);
    const size_t shared = job->experts * (sizeof(uint32_t) + sizeof(uint16_t)) +
                          (slots <= GB_DISPATCH_STAGED ? slots * sizeof(int32_t) : 0);
    const dim3 grid(1 + job->tokens * at->parts + (pieces < most_receivers ? pieces : most_receivers));
    const bool quantises = job->q.quantiser.element != 0;
    const auto kernel = quantises && gb_converts_e4m3(job->q.quantiser) ? gb_dispatch_kernel<true, true>
                        : quantises                                     ? gb_dispatch_kernel<true, false>
                                                                        : gb_dispatch_kernel<false, false>;
    return gb_cuda_launch("dispatch", kernel, grid, threads, shared, stream, error, *job);
}
