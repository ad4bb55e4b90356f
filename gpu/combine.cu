/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of combine, how much of a window it takes, and where dispatch has put each route's row. */
#include "gpu/combine.cuh"

namespace
{

size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* A warp a route: its row is the number of routes in front of it, by receiver, sender, expert and place; -1 of other
 * ranks' routes. */
__global__ void find_rows(uint32_t routes, uint32_t of_rank, uint32_t experts, uint32_t ranks, uint32_t rank,
                          bool global, const int32_t *ids, const int32_t *placement, int32_t *row_of)
{
    const uint32_t route = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (route >= routes)
        return;
    const auto place = [&](uint32_t expert) {
        return expert < experts ? min((uint32_t)placement[expert], ranks - 1) : ranks;
    };
    const uint32_t expert = (uint32_t)ids[route], sender = route / of_rank;
    uint32_t before = 0;
    for (uint32_t r = threadIdx.x % 32; place(expert) == rank && r < routes; r += 32) {
        const uint32_t e = (uint32_t)ids[r], receiver = place(e), s = r / of_rank;
        const bool earlier = s < sender || (s == sender && (e < expert || (e == expert && r < route)));
        before += receiver < rank ? global : receiver == rank && earlier;
    }
    before = __reduce_add_sync(0xFFFFFFFFu, before);
    if (threadIdx.x % 32 == 0)
        row_of[route] = place(expert) == rank ? (int32_t)before : -1;
}

} // namespace

struct gb_combine_layout gb_cuda_combine_layout(const struct gb_exchange *x)
{
    constexpr uint64_t tagged_bytes = 1u << 19; /* up to so many that a rank gets, tags take less time than fences */
    constexpr uint32_t lead_blocks = 800;       /* enough that the link is never idle */
    const bool partial = x->accumulation != GB_AT_RECEIVER;
    const uint32_t input_bytes = x->hidden * (x->input == GB_BF16 ? 2 : 4);
    const uint32_t rows = partial && x->ranks - 1 < x->top_k ? x->ranks - 1 : x->top_k; /* at most, for a token */
    struct gb_combine_layout at = {};
    at.row_bytes = partial ? x->hidden * 2 : input_bytes;
    at.parts = (input_bytes + GB_COMBINE_BYTES - 1) / GB_COMBINE_BYTES;
    at.slots = partial ? x->ranks : x->top_k;
    at.tagged = (uint64_t)x->tokens * rows * at.row_bytes <= tagged_bytes;
    const uint32_t lead = lead_blocks / (x->ranks * at.parts) + 1;
    at.lead = lead < x->tokens ? lead : x->tokens;
    at.blocks = 1 + x->ranks * x->tokens * at.parts;
    at.begun = at.made + aligned(sizeof(uint32_t) * at.blocks);
    at.arrived = at.begun + aligned(2 * sizeof(uint64_t) * x->ranks);
    at.rows = at.arrived + aligned(2 * sizeof(uint32_t) * x->tokens * at.parts);
    at.bytes = at.rows + 2 * (size_t)x->tokens * at.slots * at.row_bytes * (at.tagged ? 2 : 1);
    return at;
}

enum gb_status gb_cuda_combine_launch(const struct gb_combine_job *job, void *stream, struct gb_error *error)
{
    const auto kernel = job->input == GB_BF16
                            ? (job->at.tagged ? gb_combine_kernel<GB_BF16, true> : gb_combine_kernel<GB_BF16, false>)
                            : (job->at.tagged ? gb_combine_kernel<GB_FP32, true> : gb_combine_kernel<GB_FP32, false>);
    return gb_cuda_launch_early("combine", kernel, dim3(job->at.blocks), GB_COMBINE_THREADS, 0, stream, error, *job);
}

enum gb_status gb_cuda_find_rows(const struct gb_exchange *x, uint32_t rank, bool global, const int32_t *all_ids,
                                 const int32_t *placement, int32_t *row_of, void *stream, struct gb_error *error)
{
    constexpr unsigned threads = 256;
    const uint32_t of_rank = x->tokens * x->top_k, routes = x->ranks * of_rank;
    return gb_cuda_launch("find_rows", find_rows, dim3((routes * 32 + threads - 1) / threads), threads, 0, stream,
                          error, routes, of_rank, x->experts, x->ranks, rank, global, all_ids, placement, row_of);
}
