/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of dispatch: which instance, and how much of a window it takes. */
#include <cstddef>
#include <cstring>

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
    constexpr uint32_t most = 16;
    return x->tokens * x->top_k < most ? x->tokens * x->top_k : most;
}

/* Blocks for each token's columns: enough to use all multiprocessors for few tokens, and not too many for many. */
void cut_tokens(const struct gb_exchange *x, struct gb_dispatch_layout *at)
{
    constexpr uint32_t fewest = 128, most_blocks = 128; /* threads of a block; blocks of few tokens */
    const uint32_t pieces = x->hidden / 8, whole = (pieces + GB_DISPATCH_THREADS - 1) / GB_DISPATCH_THREADS;
    const uint32_t parts = most_blocks / x->tokens > whole ? most_blocks / x->tokens : whole;
    const uint32_t even = (pieces + parts - 1) / parts, wanted = even < fewest ? fewest : even;
    at->part_pieces = (wanted + 31) / 32 * 32; /* a scale's block is in one part */
    at->parts = (pieces + at->part_pieces - 1) / at->part_pieces;
}

} // namespace

struct gb_dispatch_layout gb_cuda_dispatch_layout(const struct gb_exchange *x, uint32_t most_rows)
{
    const struct gb_quantiser *rules = &x->quantiser;
    constexpr uint32_t most_receivers = 128;
    const size_t tagged = 2 * sizeof(uint64_t) * x->ranks;
    struct gb_dispatch_layout at = {};
    at.code_bytes = !rules->element ? x->hidden * 2 : rules->element == GB_E2M1 ? x->hidden / 2 : x->hidden;
    at.row_scales = rules->element ? x->hidden / rules->block_columns : 0;
    at.scale_bytes = at.row_scales * (rules->scale == GB_SCALE_FP32 ? 4 : 1);
    at.early = early_rows(x);
    at.early_words = (at.code_bytes / 4 + at.row_scales + 1 + 1) / 2 * 2; /* rows begin at multiples of 16 bytes */
    cut_tokens(x, &at);
    const uint32_t words = 2 * GB_DISPATCH_PAIRS * at.part_pieces;
    const uint32_t pieces = (x->ranks - 1) * at.early * ((at.early_words + words - 1) / words);
    at.receivers = pieces < most_receivers ? pieces : most_receivers;
    at.blocks = GB_DISPATCH_OTHERS + x->tokens * at.parts + at.receivers;
    at.totals = at.made + aligned(sizeof(uint32_t) * at.blocks);
    at.counts = at.totals + aligned(tagged * x->ranks);
    at.arrived = at.counts + aligned(tagged * x->experts);
    at.private_rows = at.arrived + aligned(sizeof(uint32_t) * x->ranks);
    at.codes = at.private_rows + aligned(tagged * at.early * at.early_words);
    at.scales = at.codes + aligned((size_t)most_rows * at.code_bytes);
    at.routes = at.scales + aligned((size_t)most_rows * at.scale_bytes);
    at.bytes = at.routes + aligned((size_t)most_rows * sizeof(int32_t));
    return at;
}

/* Field by field: between scale_nan and quotient lie bytes of no field, which copies need not keep. */
static bool are_same(const gb_quantiser &a, const gb_quantiser &b)
{
    constexpr size_t gap = offsetof(gb_quantiser, scale_nan) + sizeof a.scale_nan,
                     rest = offsetof(gb_quantiser, quotient);
    return memcmp(&a, &b, gap) == 0 && memcmp(&a.quotient, &b.quotient, sizeof a - rest) == 0;
}

enum gb_status gb_cuda_dispatch_launch(const struct gb_dispatch_job *job, void *stream, struct gb_error *error)
{
    const struct gb_dispatch_layout *at = &job->at;
    const uint32_t slots = job->tokens * job->top_k;
    const size_t shared = (job->experts + (slots < GB_DISPATCH_STAGED ? slots : GB_DISPATCH_STAGED)) * sizeof(uint32_t);
    const gb_quantiser &rules = job->q.quantiser;
    const auto kernel = !rules.element                              ? gb_dispatch_kernel<GB_ROWS_BF16>
                        : are_same(rules, gb_deepep_choices(rules)) ? gb_dispatch_kernel<GB_ROWS_DEEPEP>
                                                                    : gb_dispatch_kernel<GB_ROWS_BY_RULES>;
    return gb_cuda_launch_early("dispatch", kernel, dim3(at->blocks), at->part_pieces, shared, stream, error, *job);
}
