/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of dispatch: docs/numerics.md#dispatch. A launch on every rank; nothing is known of other ranks' routes.
 *
 *     block 0            counts the rank's routes by receiver and by expert, tells every rank, and takes what they tell
 *     block 1            waits for the rows that are counted
 *     parts of tokens    a token's places, its codes, its rows into the windows of their receivers
 *     further blocks     rows that came tagged, to their places
 *
 * A sender's rows at a receiver are a contiguous region, in an order that the sender knows. Where the region begins
 * depends on all senders' totals. The first `early` rows of each region therefore go, tagged, into a private buffer
 * that the receiver has for this sender, before any totals have come; the others go to their places. A receiver's
 * totals also say that it has begun this call, so that what it received in the last one may be overwritten.
 */
#ifndef GB_GPU_DISPATCH_CUH
#define GB_GPU_DISPATCH_CUH

#include "gpu/quantise_rows.cuh"
#include "gpu/ranks.cuh"

/* Where things are in a window, in bytes from its start; and how wide a row is. */
struct gb_dispatch_layout {
    uint32_t code_bytes, scale_bytes; /* of a row */
    uint32_t row_scales;              /* of a row */
    uint32_t early;                   /* rows of a sender's private buffer */
    uint32_t early_words;             /* tagged words of its rows: codes, scales one by one, the route */
    uint32_t parts, part_pieces;      /* blocks for a token, and their threads, of 8 columns each */
    uint32_t receivers, blocks;       /* blocks that bring private rows to their places; all blocks */
    size_t made;                      /* [blocks], calls that each has ended */
    size_t totals;                    /* tagged [2, ranks, ranks], of each sender its routes to each receiver */
    size_t counts;                    /* tagged [2, ranks, experts] */
    size_t arrived;                   /* [ranks], counted parts of rows of each sender so far */
    size_t private_rows;              /* tagged [2, ranks, early, early_words] */
    size_t codes, scales, routes;     /* [rows], those of this receiver alone */
    size_t bytes;
};

struct gb_dispatch_job {
    struct gb_cuda_link link;
    struct gb_dispatch_layout at;
    uint32_t tokens, hidden, experts, top_k;
    struct gb_quantisation q; /* element 0: rows stay bf16 */
    const gb_bf16 *x;         /* [tokens, hidden], and so on: this rank's */
    const int32_t *ids;
    const int32_t *placement;
    int32_t *counts;    /* out [ranks, experts] */
    uint32_t *expected; /* [ranks], of `arrived`; kept from call to call */
    uint32_t halves;    /* of enum gb_cuda_halves, of this launch */
};

/* Of the rules, and of the size of a problem in which a receiver gets at most so many rows. */
struct gb_dispatch_layout gb_cuda_dispatch_layout(const struct gb_exchange *x, uint32_t most_rows);
/* Launches these halves. */
enum gb_status gb_cuda_dispatch_launch(const struct gb_dispatch_job *job, void *stream, struct gb_error *error);

#ifdef __CUDACC__

constexpr uint32_t GB_DISPATCH_THREADS = 512;
constexpr uint32_t GB_DISPATCH_STAGED = 4096; /* routes that shared memory has room for */
constexpr uint32_t GB_DISPATCH_PAIRS = 2;     /* of tagged words that a thread has under way */
constexpr uint32_t GB_DISPATCH_EXPERT = 16;   /* bits of an expert in the order of dispatch */

/* A row in a private buffer, or its place. */
struct gb_early_target {
    uint64_t *row;
    uint32_t route;
};

struct gb_placed_target {
    char *codes, *scales;
    uint32_t *to_route;
    uint32_t route, receiver, index;
};

/* What a block finds out before it sends or receives, in shared memory. */
struct gb_dispatch_shared {
    uint32_t first[GB_CUDA_MAX_RANKS];   /* a sender: of its region at each receiver; a receiver: of each sender's */
    uint32_t routes[GB_CUDA_MAX_RANKS];  /* a receiver: each sender's; the block of counts: this rank's to each */
    uint32_t counted[GB_CUDA_MAX_RANKS]; /* rows of the token that go to their places at other ranks */
    uint32_t index[GB_CUDA_MAX_TOP_K];   /* of each slot's row in its region */
    gb_early_target early[GB_CUDA_MAX_TOP_K];
    gb_placed_target placed[GB_CUDA_MAX_TOP_K];
    uint32_t early_count, placed_count;
    uint32_t any_counted;
};

/* Codes of 8 values of a thread: so many words. */
struct gb_code_words {
    uint32_t word[4];
};

/* What a rank has told this one, or another: totals [receivers], counts [experts]. */
__device__ __forceinline__ uint64_t *gb_totals_of(const gb_dispatch_job &job, uint32_t at, uint32_t sender,
                                                  uint32_t call)
{
    return (uint64_t *)(job.link.window[at] + job.at.totals) +
           ((size_t)(call & 1) * job.link.ranks + sender) * job.link.ranks;
}

__device__ __forceinline__ uint64_t *gb_counts_of(const gb_dispatch_job &job, uint32_t at, uint32_t sender,
                                                  uint32_t call)
{
    return (uint64_t *)(job.link.window[at] + job.at.counts) +
           ((size_t)(call & 1) * job.link.ranks + sender) * job.experts;
}

/* add(sender, receiver, routes) for all totals, by the threads of a block. */
template <class Add>
__device__ __forceinline__ void gb_for_totals(const gb_dispatch_job &job, uint32_t call, const Add &add)
{
    const uint64_t *totals = gb_totals_of(job, job.link.rank, 0, call);
    for (uint32_t i = threadIdx.x; i < job.link.ranks * job.link.ranks; i += blockDim.x) {
        const uint32_t sender = i / job.link.ranks;
        add(sender, i % job.link.ranks, gb_get_tagged(job.link, totals + i, call, GB_AWAITS_COUNTS, sender));
    }
    __syncthreads();
}

/* Where a route is in the order of dispatch: by receiver, then by expert; UINT32_MAX: nowhere, its slot is empty. */
__device__ __forceinline__ uint32_t gb_order_of(const gb_dispatch_job &job, uint32_t route)
{
    const uint32_t expert = (uint32_t)__ldg(job.ids + route);
    return expert < job.experts
               ? min((uint32_t)__ldg(job.placement + expert), job.link.ranks - 1) << GB_DISPATCH_EXPERT | expert
               : UINT32_MAX;
}

/* The same of a route that may be in shared memory: the first ones are. */
__device__ __forceinline__ uint32_t gb_order_at(const gb_dispatch_job &job, const uint32_t *orders, uint32_t route)
{
    return route < GB_DISPATCH_STAGED ? orders[route] : gb_order_of(job, route);
}

/* orders: [min(tokens * top_k, GB_DISPATCH_STAGED)], in shared memory. Nothing has been waited for before. */
__device__ __forceinline__ void gb_load_orders(const gb_dispatch_job &job, uint32_t *orders, gb_dispatch_shared *shared)
{
    const uint32_t routes = min(job.tokens * job.top_k, GB_DISPATCH_STAGED);
#pragma unroll 2
    for (uint32_t r = threadIdx.x; r < routes; r += blockDim.x)
        orders[r] = gb_order_of(job, r);
    for (uint32_t r = threadIdx.x; r < GB_CUDA_MAX_RANKS; r += blockDim.x)
        shared->first[r] = shared->routes[r] = shared->counted[r] = 0;
}

/* The routes of this rank to every rank: by receiver, which others wait for; then by expert. memory: of the kernel. */
static __device__ void gb_announce(const gb_dispatch_job &job, uint32_t call, uint32_t *memory,
                                   gb_dispatch_shared *shared)
{
    const uint32_t routes = job.tokens * job.top_k, lane = threadIdx.x % 32;
    uint32_t *histogram = memory + min(routes, GB_DISPATCH_STAGED);
    gb_load_orders(job, memory, shared);
    for (uint32_t e = threadIdx.x; e < job.experts; e += blockDim.x)
        histogram[e] = 0;
    __syncthreads();
    for (uint32_t first = threadIdx.x - lane; first < routes; first += blockDim.x) {
        const uint32_t order = first + lane < routes ? gb_order_at(job, memory, first + lane) : UINT32_MAX;
        const uint32_t receiver = order >> GB_DISPATCH_EXPERT;
        const uint32_t alike = __match_any_sync(0xFFFFFFFFu, receiver);
        if (order == UINT32_MAX)
            continue;
        if ((alike & ((1u << lane) - 1)) == 0)
            atomicAdd(&shared->routes[receiver], (uint32_t)__popc(alike));
        atomicAdd(&histogram[order % (1u << GB_DISPATCH_EXPERT)], 1u);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < job.link.ranks * job.link.ranks; i += blockDim.x) {
        const uint32_t receiver = i % job.link.ranks;
        gb_put_tagged(gb_totals_of(job, i / job.link.ranks, job.link.rank, call) + receiver, shared->routes[receiver],
                      call);
    }
    for (uint32_t rank = 0; rank < job.link.ranks; rank++)
        for (uint32_t e = threadIdx.x; e < job.experts; e += blockDim.x)
            gb_put_tagged(gb_counts_of(job, rank, job.link.rank, call) + e, histogram[e], call);
}

/* Of each slot of a token, how many of the routes to the same receiver come before it: by expert, then in their own
 * order. A warp a slot. */
__device__ __forceinline__ void gb_find_places(const gb_dispatch_job &job, uint32_t token, const uint32_t *orders,
                                               gb_dispatch_shared *shared)
{
    const uint32_t routes = job.tokens * job.top_k;
#pragma unroll 1
    for (uint32_t slot = threadIdx.x / 32; slot < job.top_k; slot += blockDim.x / 32) {
        const uint32_t route = token * job.top_k + slot, mine = gb_order_at(job, orders, route);
        const uint32_t expert = mine % (1u << GB_DISPATCH_EXPERT), receiver = mine - expert;
        const auto comes_before = [&](uint32_t r, uint32_t order) {
            return order - receiver < expert + (r < route); /* of others the difference is larger than any expert */
        };
        uint32_t before = 0, r = threadIdx.x % 32;
#pragma unroll 4
        for (; r < min(routes, GB_DISPATCH_STAGED); r += 32)
            before += comes_before(r, orders[r]);
#pragma unroll 1
        for (; r < routes; r += 32)
            before += comes_before(r, gb_order_of(job, r));
        before = __reduce_add_sync(0xFFFFFFFFu, before);
        if (threadIdx.x % 32 == 0)
            shared->index[slot] = before;
    }
}

/* What travels as a row. */
enum gb_dispatch_rows {
    GB_ROWS_BF16,
    GB_ROWS_BY_RULES,
    GB_ROWS_DEEPEP /* by rules that are known when the kernel is compiled, in a tenth of the instructions */
};

/* Rules with the choices of fp8g128.deepep/1: the same rules, where they are that recipe's. */
__host__ __device__ __forceinline__ gb_quantiser gb_deepep_choices(gb_quantiser rules)
{
    rules.element = GB_E4M3;
    rules.scale = GB_SCALE_FP32;
    rules.largest = 448.0f;
    rules.global = GB_GLOBAL_NONE;
    rules.amax_nan = GB_AMAX_DROPS_NAN;
    rules.bound = GB_BOUND_NONE;
    rules.ratio = GB_RATIO_MULTIPLY;
    rules.ratio_intermediate = rules.intermediate = GB_INTERMEDIATE_FP32;
    rules.ratio_if_zero = rules.ratio_min = rules.ratio_max = rules.multiplier_max = 0.0f;
    rules.four_over_six = GB_SIX;
    rules.quotient = GB_QUOTIENT_AMAX;
    rules.zero_multiplier = GB_ZERO_NEVER;
    rules.rounding = GB_TIES_TO_EVEN;
    rules.element_nan = GB_NAN_IS_NAN;
    rules.zero_sign = GB_ZERO_KEEPS_SIGN;
    rules.flush_subnormals = 0;
    rules.block_columns = 128;
    return rules;
}

template <enum gb_dispatch_rows Rows>
__device__ __forceinline__ gb_code_words gb_codes_of(const gb_quantiser &rules, const gb_scaling &scaling,
                                                     const float (&x)[8])
{
    gb_code_words codes = {};
    if (Rows == GB_ROWS_DEEPEP) { /* step 6 is the hardware's conversion */
        float q[8];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            q[i] = __fmul_rn(x[i], scaling.operand);
        codes.word[0] = gb_e4m3x2_encode(q[0], q[1]) | gb_e4m3x2_encode(q[2], q[3]) << 16;
        codes.word[1] = gb_e4m3x2_encode(q[4], q[5]) | gb_e4m3x2_encode(q[6], q[7]) << 16;
        return codes;
    }
    const uint32_t bits = rules.element == GB_E2M1 ? 4 : 8;
    uint64_t all = 0;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        all |= (uint64_t)gb_element_code(rules, scaling, x[i]) << bits * i;
    codes.word[0] = (uint32_t)all;
    codes.word[1] = (uint32_t)(all >> 32);
    return codes;
}

/* What a thread sends of a row: 8 columns, and the scale of the block that they begin. */
struct gb_row_piece {
    gb_code_words codes;
    uint32_t words;  /* of the codes: 1, 2 or 4 */
    uint32_t column; /* the first; a multiple of 8 */
    uint32_t scale;  /* its bits */
    uint32_t block;  /* its number; UINT32_MAX: another thread sends it */
};

template <enum gb_dispatch_rows Rows>
__device__ __forceinline__ gb_row_piece gb_make_piece(const gb_dispatch_job &job, const uint4 &x, uint32_t column)
{
    gb_row_piece piece = {{{x.x, x.y, x.z, x.w}}, 4, column, 0, UINT32_MAX};
    if (Rows != GB_ROWS_BF16) {
        gb_quantisation q = job.q;
        if (Rows == GB_ROWS_DEEPEP)
            q.quantiser = gb_deepep_choices(q.quantiser);
        const gb_quantiser &rules = q.quantiser;
        const gb_team<1> team = {rules.block_columns / 8};
        float values[8];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            values[2 * i] = gb_bf16_low(piece.codes.word[i]);
            values[2 * i + 1] = gb_bf16_high(piece.codes.word[i]);
        }
        const gb_scaling scaling = gb_block_scaling(q, team, values);
        piece.codes = gb_codes_of<Rows>(rules, scaling, values);
        piece.words = rules.element == GB_E2M1 ? 1 : 2;
        piece.scale = rules.scale == GB_SCALE_FP32 ? __float_as_uint(scaling.scale) : scaling.code;
        if (team.lane() == 0)
            piece.block = column / rules.block_columns;
    }
    return piece;
}

__device__ __forceinline__ void gb_put_codes(const gb_row_piece &piece, char *codes)
{
    const uint32_t *word = piece.codes.word;
    if (piece.words == 4)
        *(uint4 *)(codes + piece.column * 2) = make_uint4(word[0], word[1], word[2], word[3]);
    else if (piece.words == 2)
        *(uint2 *)(codes + piece.column) = make_uint2(word[0], word[1]);
    else
        *(uint32_t *)(codes + piece.column / 2) = word[0];
}

__device__ __forceinline__ void gb_put_scale(const gb_dispatch_job &job, uint32_t bits, uint32_t block, char *scales)
{
    if (job.q.quantiser.scale == GB_SCALE_FP32)
        ((uint32_t *)scales)[block] = bits;
    else
        ((uint8_t *)scales)[block] = (uint8_t)bits;
}

/* To its place at the receiver. */
__device__ __forceinline__ void gb_send_placed(const gb_dispatch_job &job, const gb_row_piece &piece,
                                               const gb_placed_target &to)
{
    gb_put_codes(piece, to.codes);
    if (piece.block != UINT32_MAX)
        gb_put_scale(job, piece.scale, piece.block, to.scales);
    if (piece.column == 0)
        *to.to_route = to.route;
}

__device__ __forceinline__ uint64_t *gb_early_row(const gb_dispatch_job &job, uint32_t receiver, uint32_t sender,
                                                  uint32_t index, uint32_t call)
{
    return (uint64_t *)(job.link.window[receiver] + job.at.private_rows) +
           (((size_t)(call & 1) * job.link.ranks + sender) * job.at.early + index) * job.at.early_words;
}

/* To the private buffer that the receiver has for this rank. Of 4 words of codes the first two of all threads come
 * before the last two of all, so that what neighbours write at once is side by side. */
__device__ __forceinline__ void gb_send_early(const gb_dispatch_job &job, const gb_row_piece &piece,
                                              const gb_early_target &to, uint32_t call)
{
    const uint32_t *word = piece.codes.word;
    uint64_t *codes = to.row + piece.column / 8 * min(piece.words, 2u);
    if (piece.words == 1)
        gb_put_tagged(codes, word[0], call);
    else
        gb_put_tagged(codes, word[0], word[1], call);
    if (piece.words == 4)
        gb_put_tagged(codes + job.hidden / 4, word[2], word[3], call);
    if (piece.block != UINT32_MAX)
        gb_put_tagged(to.row + job.hidden / 8 * piece.words + piece.block, piece.scale, call);
    if (piece.column == 0) {
        const uint32_t last = job.at.code_bytes / 4 + job.at.row_scales;
        gb_put_tagged(to.row + last, to.route, call);
        if (last + 1 < job.at.early_words) /* so that the last pair is whole */
            gb_put_tagged(to.row + last + 1, 0, call);
    }
}

/* Which of the token's rows go early and which to their places, but for where their regions begin. A lane a slot. */
__device__ __forceinline__ void gb_sort_slots(const gb_dispatch_job &job, const uint32_t *orders, uint32_t token,
                                              uint32_t call, gb_dispatch_shared *shared)
{
    const uint32_t slot = threadIdx.x, route = token * job.top_k + slot;
    const uint32_t order = slot < job.top_k ? gb_order_at(job, orders, route) : UINT32_MAX;
    const uint32_t receiver = order == UINT32_MAX ? job.link.rank : order >> GB_DISPATCH_EXPERT;
    const bool away = receiver != job.link.rank, early = away && shared->index[slot] < job.at.early;
    const uint32_t all_early = __ballot_sync(0xFFFFFFFFu, early), in_front = (1u << slot) - 1;
    const uint32_t all_placed = __ballot_sync(0xFFFFFFFFu, order != UINT32_MAX && !early);
    const uint32_t all_counted = __ballot_sync(0xFFFFFFFFu, away && !early);
    const uint32_t number = job.link.rank * job.tokens * job.top_k + route;
    if (early)
        shared->early[__popc(all_early & in_front)] = {
            gb_early_row(job, receiver, job.link.rank, shared->index[slot], call), number};
    else if (order != UINT32_MAX)
        shared->placed[__popc(all_placed & in_front)] = {NULL, NULL, NULL, number, receiver, shared->index[slot]};
    if (away && !early)
        atomicAdd(&shared->counted[receiver], 1u);
    if (slot == 0) {
        shared->early_count = (uint32_t)__popc(all_early);
        shared->placed_count = (uint32_t)__popc(all_placed);
        shared->any_counted = all_counted;
    }
}

/* Where the regions of this rank begin, and so the places of the token's rows. */
__device__ __forceinline__ void gb_find_regions(const gb_dispatch_job &job, uint32_t call, gb_dispatch_shared *shared)
{
    gb_for_totals(job, call, [&](uint32_t sender, uint32_t receiver, uint32_t routes) {
        if (sender < job.link.rank && routes)
            atomicAdd(&shared->first[receiver], routes);
    });
    if (threadIdx.x < shared->placed_count) {
        gb_placed_target *to = &shared->placed[threadIdx.x];
        const size_t row = shared->first[to->receiver] + to->index;
        char *window = job.link.window[to->receiver];
        to->codes = window + job.at.codes + row * job.at.code_bytes;
        to->scales = window + job.at.scales + row * job.at.scale_bytes;
        to->to_route = (uint32_t *)(window + job.at.routes) + row;
    }
    __syncthreads();
}

/* Tells the receivers of rows at their places that these parts of them are there. */
__device__ __forceinline__ void gb_count_rows(const gb_dispatch_job &job, const gb_dispatch_shared *shared)
{
    if (!shared->any_counted)
        return;
    __syncthreads();
    for (uint32_t rank = threadIdx.x; rank < job.link.ranks; rank += blockDim.x)
        if (shared->counted[rank])
            gb_count((uint32_t *)(job.link.window[rank] + job.at.arrived) + job.link.rank, shared->counted[rank]);
}

/* Every sender's routes to this rank, and where its region begins. */
__device__ __forceinline__ void gb_find_senders(const gb_dispatch_job &job, uint32_t call, gb_dispatch_shared *shared)
{
    gb_for_totals(job, call, [&](uint32_t sender, uint32_t receiver, uint32_t routes) {
        if (receiver == job.link.rank)
            shared->routes[sender] = routes;
    });
    for (uint32_t rank = threadIdx.x; rank < job.link.ranks; rank += blockDim.x) {
        uint32_t before = 0;
        for (uint32_t s = 0; s < rank; s++)
            before += shared->routes[s];
        shared->first[rank] = before;
    }
    __syncthreads();
}

/* Two words of a private buffer's row, from its i'th on, to their place; i is even. */
__device__ __forceinline__ void gb_place_words(const gb_dispatch_job &job, uint32_t row, uint32_t i, const uint2 &two)
{
    char *window = job.link.window[job.link.rank];
    const uint32_t words = job.at.code_bytes / 4, half = job.hidden / 4;
    if (i < words) { /* gb_send_early's order */
        const uint32_t word = words <= half ? i : i < half ? 2 * i : 2 * (i - half) + 2;
        *(uint2 *)(window + job.at.codes + (size_t)row * job.at.code_bytes + 4 * word) = two;
        return;
    }
    for (uint32_t k = 0; k < 2; k++, i++)
        if (i < words + job.at.row_scales)
            gb_put_scale(job, k ? two.y : two.x, i - words, window + job.at.scales + (size_t)row * job.at.scale_bytes);
        else if (i == words + job.at.row_scales)
            ((uint32_t *)(window + job.at.routes))[row] = k ? two.y : two.x;
}

/* Words of a row of a private buffer, from `first` on, to their place: as many as GB_DISPATCH_PAIRS of each thread. */
__device__ __forceinline__ void gb_take_early(const gb_dispatch_job &job, const uint64_t *from, uint32_t first,
                                              uint32_t row, uint32_t sender, uint32_t call)
{
    const uint64_t *pair[GB_DISPATCH_PAIRS];
    uint2 two[GB_DISPATCH_PAIRS];
#pragma unroll
    for (uint32_t k = 0; k < GB_DISPATCH_PAIRS; k++) {
        const uint32_t i = first + 2 * (k * blockDim.x + threadIdx.x);
        pair[k] = i < job.at.early_words ? from + i : NULL;
    }
    gb_get_tagged_pairs(job.link, pair, call, GB_AWAITS_ROWS, sender, two);
#pragma unroll
    for (uint32_t k = 0; k < GB_DISPATCH_PAIRS; k++) {
        const uint32_t i = first + 2 * (k * blockDim.x + threadIdx.x);
        if (!pair[k])
            continue;
        gb_place_words(job, row, i, two[k]);
    }
}

/* The rows of all private buffers, in pieces, every `stride`th from `first` on. */
static __device__ void gb_take_all_early(const gb_dispatch_job &job, uint32_t call, gb_dispatch_shared *shared,
                                         uint32_t first, uint32_t stride)
{
    const uint32_t words = 2 * GB_DISPATCH_PAIRS * blockDim.x, pieces = (job.at.early_words + words - 1) / words;
    gb_find_senders(job, call, shared);
    uint32_t passed = 0;
    for (uint32_t sender = 0; sender < job.link.ranks; sender++) {
        if (sender == job.link.rank)
            continue;
        const uint32_t all = min(shared->routes[sender], job.at.early) * pieces;
        for (uint32_t i = (first + stride - passed % stride) % stride; i < all; i += stride)
            gb_take_early(job, gb_early_row(job, job.link.rank, sender, i / pieces, call), i % pieces * words,
                          shared->first[sender] + i / pieces, sender, call);
        passed += all;
    }
}

/* Writes the counts that all ranks have told. */
static __device__ void gb_bring_counts(const gb_dispatch_job &job, uint32_t call)
{
    enum { WORDS = 4 };
    const uint64_t *counts = gb_counts_of(job, job.link.rank, 0, call);
    const uint32_t all = job.link.ranks * job.experts;
    for (uint32_t first = threadIdx.x; first < all; first += WORDS * blockDim.x) {
        const uint64_t *from[WORDS];
        uint32_t count[WORDS];
#pragma unroll
        for (uint32_t k = 0; k < WORDS; k++)
            from[k] = first + k * blockDim.x < all ? counts + first + k * blockDim.x : NULL;
        gb_get_tagged_words(job.link, from, call, GB_AWAITS_COUNTS, job.link.ranks, count);
#pragma unroll
        for (uint32_t k = 0; k < WORDS; k++)
            if (from[k])
                job.counts[first + k * blockDim.x] = (int32_t)count[k];
    }
}

/* Waits until all counted rows are here. */
static __device__ void gb_await_rows(const gb_dispatch_job &job, uint32_t call, gb_dispatch_shared *shared)
{
    const uint32_t *arrived = (const uint32_t *)(job.link.window[job.link.rank] + job.at.arrived);
    gb_find_senders(job, call, shared);
    for (uint32_t sender = threadIdx.x; sender < job.link.ranks; sender += blockDim.x) {
        const uint32_t rows = sender == job.link.rank ? 0 : shared->routes[sender];
        if (rows <= job.at.early)
            continue;
        const uint32_t expected = job.expected[sender] + (rows - job.at.early) * job.at.parts;
        job.expected[sender] = expected;
        gb_await_count(job.link, arrived + sender, expected, sender, call);
    }
}

/* orders: gb_load_orders'. */
template <enum gb_dispatch_rows Rows>
static __device__ void gb_send_token(const gb_dispatch_job &job, uint32_t token, uint32_t part, uint32_t call,
                                     uint32_t *orders, gb_dispatch_shared *shared)
{
    const uint4 *x = (const uint4 *)(job.x + (size_t)token * job.hidden);
    const uint32_t at = part * job.at.part_pieces + threadIdx.x;
    const bool used = at < job.hidden / 8;
    uint4 values = make_uint4(0, 0, 0, 0); /* on their way while the block finds its places */
    if (used)
        values = __ldg(x + at);
    gb_load_orders(job, orders, shared);
    __syncthreads();
    gb_find_places(job, token, orders, shared);
    __syncthreads();
    if (threadIdx.x < 32)
        gb_sort_slots(job, orders, token, call, shared);
    __syncthreads();
    gb_row_piece piece = {};
    if (used) {
        piece = gb_make_piece<Rows>(job, values, at * 8);
#pragma unroll 1
        for (uint32_t i = 0; i < shared->early_count; i++)
            gb_send_early(job, piece, shared->early[i], call);
    }
    gb_find_regions(job, call, shared);
    if (used)
#pragma unroll 1
        for (uint32_t i = 0; i < shared->placed_count; i++)
            gb_send_placed(job, piece, shared->placed[i]);
    gb_count_rows(job, shared);
}

/* Blocks that are neither sender's nor receiver's: of the counts, and of what is counted. */
enum { GB_DISPATCH_OF_COUNTS = 0, GB_DISPATCH_OF_ROWS, GB_DISPATCH_OTHERS };

template <enum gb_dispatch_rows Rows>
__global__ void __launch_bounds__(GB_DISPATCH_THREADS, 2)
    gb_dispatch_kernel(const __grid_constant__ gb_dispatch_job job)
{
    extern __shared__ uint32_t memory[];
    __shared__ gb_dispatch_shared shared;
    const uint32_t block = blockIdx.x - GB_DISPATCH_OTHERS, senders = job.tokens * job.at.parts;
    const uint32_t token = block / job.at.parts, part = block % job.at.parts;
    gb_fetch_parameters(job);
    gb_wait_for_previous();
    gb_let_next_start();
    const uint32_t call = *gb_made(job.link, job.at.made) + 1;
    if (blockIdx.x == GB_DISPATCH_OF_COUNTS) {
        if (job.halves & GB_HALF_ANNOUNCE)
            gb_announce(job, call, memory, &shared);
        if (job.halves & GB_HALF_RECEIVE)
            gb_bring_counts(job, call);
    } else if (blockIdx.x == GB_DISPATCH_OF_ROWS) {
        if (job.halves & GB_HALF_RECEIVE)
            gb_await_rows(job, call, &shared);
    } else if (block < senders) {
        if (job.halves & GB_HALF_SEND)
            gb_send_token<Rows>(job, token, part, call, memory, &shared);
    } else if (job.halves & GB_HALF_RECEIVE) {
        gb_take_all_early(job, call, &shared, block - senders, job.at.receivers);
    }
    if (job.halves & GB_HALF_RECEIVE)
        gb_end_call(job.link, job.at.made, call);
}

#endif
#endif
