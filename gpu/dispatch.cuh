/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of dispatch: docs/numerics.md#dispatch. A launch on every rank; nothing is known of other ranks' routes.
 *
 *     block 0               counts the rank's routes by expert, and tells every rank; waits for what is sent to this one
 *     blocks 1 .. tokens    a token each: its routes' places, its codes, its rows into the windows of their receivers
 *     further blocks        rows that came tagged, to their places
 *
 * A sender's rows at a receiver are a contiguous region, in an order that the sender knows. Where the region begins
 * depends on all counts. The first `early` rows of each region therefore go, tagged, into a private buffer that the
 * receiver has for this sender, before any counts have come; the others go to their places. A receiver's counts also
 * say that it has begun this call, so that what it received in the last one may be overwritten.
 */
#ifndef GB_GPU_DISPATCH_CUH
#define GB_GPU_DISPATCH_CUH

#include "gpu/quantise_rows.cuh"
#include "gpu/ranks.cuh"

/* Where things are in a window, in bytes from its start; and how wide a row is. */
struct gb_dispatch_layout {
    uint32_t code_bytes, scale_bytes; /* of a row */
    uint32_t blocks;                  /* scales of a row */
    uint32_t early;                   /* rows of a sender's private buffer */
    uint32_t early_words;             /* tagged words of its rows: codes, scales one by one, the route */
    size_t counts;                    /* tagged [2, ranks, experts] */
    size_t arrived;                   /* [ranks], counted rows of each sender so far */
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

enum { GB_DISPATCH_RECEIVERS = 64 }; /* blocks for the rows that came tagged */

/* What a block finds out before it sends or receives, in shared memory. */
struct gb_dispatch_shared {
    uint32_t first[GB_CUDA_MAX_RANKS];  /* a sender: of its region at each receiver; a receiver: of each sender's */
    uint32_t routes[GB_CUDA_MAX_RANKS]; /* a receiver: each sender's */
    uint32_t counted[GB_CUDA_MAX_RANKS]; /* rows of the token that went to their places */
    int32_t receiver[GB_CUDA_MAX_TOP_K]; /* -1: an empty slot */
    uint32_t index[GB_CUDA_MAX_TOP_K];   /* in the region */
};

/* Codes of 8 values of a thread: so many words. */
struct gb_code_words {
    uint32_t word[4];
};

__device__ __forceinline__ const uint64_t *gb_counts_of(const gb_dispatch_job &job, uint32_t rank, uint32_t call)
{
    return (const uint64_t *)(job.link.window[rank] + job.at.counts) +
           (size_t)(call & 1) * job.link.ranks * job.experts;
}

/* add(sender, expert, count) for all counts, by the threads of a block. */
template <class Add>
__device__ __forceinline__ void gb_for_counts(const gb_dispatch_job &job, uint32_t call, const Add &add)
{
    const uint64_t *counts = gb_counts_of(job, job.link.rank, call);
    for (uint32_t i = threadIdx.x; i < job.link.ranks * job.experts; i += blockDim.x) {
        const uint32_t sender = i / job.experts;
        add(sender, i % job.experts, gb_get_tagged(job.link, counts + i, call, GB_AWAITS_COUNTS, sender));
    }
}

/* The routes of this rank by expert, to every rank. histogram: [experts] in shared memory. */
static __device__ void gb_announce(const gb_dispatch_job &job, uint32_t call, uint32_t *histogram)
{
    for (uint32_t e = threadIdx.x; e < job.experts; e += blockDim.x)
        histogram[e] = 0;
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < job.tokens * job.top_k; r += blockDim.x)
        if ((uint32_t)job.ids[r] < job.experts)
            atomicAdd(&histogram[job.ids[r]], 1u);
    __syncthreads();
    for (uint32_t rank = 0; rank < job.link.ranks; rank++) {
        uint64_t *counts = (uint64_t *)gb_counts_of(job, rank, call) + (size_t)job.link.rank * job.experts;
        for (uint32_t e = threadIdx.x; e < job.experts; e += blockDim.x)
            gb_put_tagged(counts + e, histogram[e], call);
    }
}

/* Receiver and place of the route of each slot: how many of the routes to the same receiver come before it, by expert,
 * then in their own order. A warp a slot. placed: [experts] in shared memory. */
__device__ __forceinline__ void gb_find_places(const gb_dispatch_job &job, uint32_t token, const uint16_t *placed,
                                               gb_dispatch_shared *shared)
{
    for (uint32_t slot = threadIdx.x / 32; slot < job.top_k; slot += blockDim.x / 32) {
        const uint32_t route = token * job.top_k + slot, expert = (uint32_t)job.ids[route];
        uint32_t before = 0;
        const uint32_t receiver = expert < job.experts ? placed[expert] : 0;
#pragma unroll 4
        for (uint32_t r = threadIdx.x % 32; expert < job.experts && r < job.tokens * job.top_k; r += 32) {
            const uint32_t e = (uint32_t)job.ids[r];
            before += e < job.experts && (e < expert || (e == expert && r < route)) && placed[e] == receiver;
        }
        before = __reduce_add_sync(0xFFFFFFFFu, before);
        if (threadIdx.x % 32 == 0) {
            shared->receiver[slot] = expert < job.experts ? (int32_t)receiver : -1;
            shared->index[slot] = before;
        }
    }
}

/* Step 6 of the quantiser where the hardware's conversion is all that the rules ask for. */
__host__ __device__ __forceinline__ bool gb_converts_e4m3(const gb_quantiser &rules)
{
    return rules.element == GB_E4M3 && rules.largest == 448.0f && rules.rounding == GB_TIES_TO_EVEN &&
           rules.element_nan == GB_NAN_IS_NAN && rules.zero_sign == GB_ZERO_KEEPS_SIGN &&
           rules.intermediate == GB_INTERMEDIATE_FP32 && !rules.flush_subnormals;
}

template <bool ConvertsE4m3>
__device__ __forceinline__ gb_code_words gb_codes_of(const gb_quantiser &rules, const gb_scaling &scaling,
                                                     const float (&x)[8])
{
    gb_code_words codes = {};
    if (ConvertsE4m3) {
        float q[8];
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            q[i] = scaling.zero      ? 0.0f
                   : scaling.divides ? __fdiv_rn(x[i], scaling.operand)
                                     : __fmul_rn(x[i], scaling.operand);
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

template <bool Quantises, bool ConvertsE4m3>
__device__ __forceinline__ gb_row_piece gb_make_piece(const gb_dispatch_job &job, const uint4 &x, uint32_t column)
{
    gb_row_piece piece = {{{x.x, x.y, x.z, x.w}}, 4, column, 0, UINT32_MAX};
    if (Quantises) {
        const gb_quantiser &rules = job.q.quantiser;
        const gb_team<1> team = {rules.block_columns / 8};
        float values[8];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            values[2 * i] = gb_bf16_low(piece.codes.word[i]);
            values[2 * i + 1] = gb_bf16_high(piece.codes.word[i]);
        }
        const gb_scaling scaling = gb_block_scaling(job.q, team, values);
        piece.codes = gb_codes_of<ConvertsE4m3>(rules, scaling, values);
        piece.words = !ConvertsE4m3 && rules.element == GB_E2M1 ? 1 : 2;
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
__device__ __forceinline__ void gb_send_placed(const gb_dispatch_job &job, const gb_row_piece &piece, uint32_t receiver,
                                               uint32_t row, uint32_t route)
{
    char *window = job.link.window[receiver];
    gb_put_codes(piece, window + job.at.codes + (size_t)row * job.at.code_bytes);
    if (piece.block != UINT32_MAX)
        gb_put_scale(job, piece.scale, piece.block, window + job.at.scales + (size_t)row * job.at.scale_bytes);
    if (piece.column == 0)
        ((uint32_t *)(window + job.at.routes))[row] = route;
}

__device__ __forceinline__ uint64_t *gb_early_row(const gb_dispatch_job &job, uint32_t receiver, uint32_t sender,
                                                  uint32_t index, uint32_t call)
{
    return (uint64_t *)(job.link.window[receiver] + job.at.private_rows) +
           (((size_t)(call & 1) * job.link.ranks + sender) * job.at.early + index) * job.at.early_words;
}

/* To the private buffer that the receiver has for this rank. */
__device__ __forceinline__ void gb_send_early(const gb_dispatch_job &job, const gb_row_piece &piece, uint64_t *row,
                                              uint32_t route, uint32_t call)
{
    const uint32_t *word = piece.codes.word;
    uint64_t *codes = row + piece.column / 8 * piece.words;
    if (piece.words == 1)
        gb_put_tagged(codes, word[0], call);
    else
        gb_put_tagged(codes, word[0], word[1], call);
    if (piece.words == 4)
        gb_put_tagged(codes + 2, word[2], word[3], call);
    if (piece.block != UINT32_MAX)
        gb_put_tagged(row + job.hidden / 8 * piece.words + piece.block, piece.scale, call);
    if (piece.column == 0)
        gb_put_tagged(row + job.at.early_words - 1, route, call);
}

__device__ __forceinline__ bool gb_goes_early(const gb_dispatch_job &job, const gb_dispatch_shared &shared,
                                              uint32_t slot)
{
    return shared.receiver[slot] >= 0 && shared.receiver[slot] != (int32_t)job.link.rank &&
           shared.index[slot] < job.at.early;
}

/* Where this rank's regions begin. */
__device__ __forceinline__ void gb_find_regions(const gb_dispatch_job &job, uint32_t call, const uint16_t *placed,
                                                gb_dispatch_shared *shared)
{
    gb_for_counts(job, call, [&](uint32_t sender, uint32_t expert, uint32_t count) {
        if (sender < job.link.rank && count)
            atomicAdd(&shared->first[placed[expert]], count);
    });
    __syncthreads();
}

template <bool Quantises, bool ConvertsE4m3>
static __device__ void gb_send_token(const gb_dispatch_job &job, uint32_t token, uint32_t call, const uint16_t *placed,
                                     gb_dispatch_shared *shared)
{
    const uint4 *x = (const uint4 *)(job.x + (size_t)token * job.hidden);
    const uint32_t pieces = job.hidden / 8;
    uint4 values = threadIdx.x < pieces ? __ldg(x + threadIdx.x) : make_uint4(0, 0, 0, 0);
    gb_find_places(job, token, placed, shared);
    __syncthreads();
    for (uint32_t start = 0, at = threadIdx.x; start < pieces; start += blockDim.x, at += blockDim.x) {
        const bool mine = at < pieces;
        gb_row_piece piece = {};
        if (mine)
            piece = gb_make_piece<Quantises, ConvertsE4m3>(job, values, at * 8);
        const uint32_t next = at + blockDim.x;
        values = next < pieces ? __ldg(x + next) : values;
        for (uint32_t slot = 0; mine && slot < job.top_k; slot++)
            if (gb_goes_early(job, *shared, slot))
                gb_send_early(job, piece,
                              gb_early_row(job, (uint32_t)shared->receiver[slot], job.link.rank, shared->index[slot],
                                           call),
                              (job.link.rank * job.tokens + token) * job.top_k + slot, call);
        if (start == 0)
            gb_find_regions(job, call, placed, shared);
        for (uint32_t slot = 0; mine && slot < job.top_k; slot++) {
            const int32_t receiver = shared->receiver[slot];
            if (receiver >= 0 && !gb_goes_early(job, *shared, slot))
                gb_send_placed(job, piece, (uint32_t)receiver, shared->first[receiver] + shared->index[slot],
                               (job.link.rank * job.tokens + token) * job.top_k + slot);
        }
    }
    if (threadIdx.x < job.top_k && shared->receiver[threadIdx.x] >= 0 &&
        shared->receiver[threadIdx.x] != (int32_t)job.link.rank && !gb_goes_early(job, *shared, threadIdx.x))
        atomicAdd(&shared->counted[shared->receiver[threadIdx.x]], 1u);
    __syncthreads();
    if (threadIdx.x < job.link.ranks && shared->counted[threadIdx.x])
        gb_count((uint32_t *)(job.link.window[threadIdx.x] + job.at.arrived) + job.link.rank,
                 shared->counted[threadIdx.x]);
}

/* Every sender's routes to this rank, and where its region begins. */
__device__ __forceinline__ void gb_find_senders(const gb_dispatch_job &job, uint32_t call, const uint16_t *placed,
                                                gb_dispatch_shared *shared)
{
    gb_for_counts(job, call, [&](uint32_t sender, uint32_t expert, uint32_t count) {
        if (placed[expert] == job.link.rank && count)
            atomicAdd(&shared->routes[sender], count);
    });
    __syncthreads();
    if (threadIdx.x < job.link.ranks)
        for (uint32_t s = 0; s < threadIdx.x; s++)
            shared->first[threadIdx.x] += shared->routes[s];
    __syncthreads();
}

/* A row of a private buffer, to its place. */
__device__ __forceinline__ void gb_take_early(const gb_dispatch_job &job, const uint64_t *from, uint32_t row,
                                              uint32_t sender, uint32_t call)
{
    char *window = job.link.window[job.link.rank];
    char *codes = window + job.at.codes + (size_t)row * job.at.code_bytes;
    char *scales = window + job.at.scales + (size_t)row * job.at.scale_bytes;
    const uint32_t words = job.at.code_bytes / 4, last = job.at.early_words - 1;
    for (uint32_t i = 2 * threadIdx.x; i + 1 < words; i += 2 * blockDim.x)
        *(uint2 *)(codes + 4 * i) = gb_get_two_tagged(job.link, from + i, call, GB_AWAITS_ROWS, sender);
    if (words % 2 && threadIdx.x == 0)
        ((uint32_t *)codes)[words - 1] = gb_get_tagged(job.link, from + words - 1, call, GB_AWAITS_ROWS, sender);
    for (uint32_t i = threadIdx.x; i < job.at.blocks; i += blockDim.x)
        gb_put_scale(job, gb_get_tagged(job.link, from + words + i, call, GB_AWAITS_ROWS, sender), i, scales);
    if (threadIdx.x == 0)
        ((uint32_t *)(window + job.at.routes))[row] =
            gb_get_tagged(job.link, from + last, call, GB_AWAITS_ROWS, sender);
}

/* The rows of all private buffers, every `stride`th from `first` on. */
static __device__ void gb_take_all_early(const gb_dispatch_job &job, uint32_t call, const uint16_t *placed,
                                         gb_dispatch_shared *shared, uint32_t first, uint32_t stride)
{
    gb_find_senders(job, call, placed, shared);
    uint32_t passed = 0;
    for (uint32_t sender = 0; sender < job.link.ranks; sender++) {
        if (sender == job.link.rank)
            continue;
        const uint32_t rows = min(shared->routes[sender], job.at.early);
        for (uint32_t i = (first + stride - passed % stride) % stride; i < rows; i += stride)
            gb_take_early(job, gb_early_row(job, job.link.rank, sender, i, call), shared->first[sender] + i, sender,
                          call);
        passed += rows;
    }
}

/* Waits until all counted rows are here; writes the counts. */
static __device__ void gb_await_rows(const gb_dispatch_job &job, uint32_t call, const uint16_t *placed,
                                     gb_dispatch_shared *shared)
{
    gb_for_counts(job, call, [&](uint32_t sender, uint32_t expert, uint32_t count) {
        job.counts[(size_t)sender * job.experts + expert] = (int32_t)count;
        if (placed[expert] == job.link.rank && count)
            atomicAdd(&shared->routes[sender], count);
    });
    __syncthreads();
    const uint32_t sender = threadIdx.x;
    if (sender >= job.link.ranks || sender == job.link.rank)
        return;
    const uint32_t rows = shared->routes[sender];
    const uint32_t expected = job.expected[sender] + (rows > job.at.early ? rows - job.at.early : 0);
    job.expected[sender] = expected;
    gb_await_count(job.link, (const uint32_t *)(job.link.window[job.link.rank] + job.at.arrived) + sender, expected,
                   sender);
}

template <bool Quantises, bool ConvertsE4m3>
__global__ void __launch_bounds__(1024, 1) gb_dispatch_kernel(const __grid_constant__ gb_dispatch_job job)
{
    extern __shared__ uint32_t histogram[]; /* [experts]; of blocks that are not block 0, placed */
    __shared__ gb_dispatch_shared shared;
    __shared__ uint32_t call;
    const uint32_t senders = job.tokens, block = blockIdx.x;
    uint16_t *placed = (uint16_t *)(histogram + job.experts); /* [experts] */
    if (threadIdx.x == 0)
        call = gb_call_number(job.link);
    for (uint32_t e = threadIdx.x; e < job.experts; e += blockDim.x)
        placed[e] = (uint16_t)min((uint32_t)job.placement[e], job.link.ranks - 1);
    for (uint32_t r = threadIdx.x; r < GB_CUDA_MAX_RANKS; r += blockDim.x)
        shared.first[r] = shared.routes[r] = shared.counted[r] = 0;
    __syncthreads();
    if (block == 0) {
        if (job.halves & GB_HALF_ANNOUNCE)
            gb_announce(job, call, histogram);
        if (job.halves & GB_HALF_RECEIVE)
            gb_await_rows(job, call, placed, &shared);
    } else if (block <= senders) {
        if (job.halves & GB_HALF_SEND)
            gb_send_token<Quantises, ConvertsE4m3>(job, block - 1, call, placed, &shared);
    } else if (job.halves & GB_HALF_RECEIVE) {
        gb_take_all_early(job, call, placed, &shared, block - senders - 1, gridDim.x - senders - 1);
    }
    if (job.halves & GB_HALF_RECEIVE)
        gb_end_call(job.link);
}

#endif
#endif
