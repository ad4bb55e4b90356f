/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of combine: docs/numerics.md#combine. A launch on every rank.
 *
 * Block 0 tells the others that this rank has begun. Every other block has one token and GB_COMBINE_BYTES of its row,
 * to send or to receive: there are blocks that send for each token of each other rank, and blocks that receive for each
 * token of this rank. What is sent are the rows of the token's slots or, where the sender adds up, one row: into
 * *slots* that the token's rank has for each slot or for each sender. Few rows are tagged; others leave by bulk copies
 * and are counted. The rank's own rows are read where they are.
 */
#ifndef GB_GPU_COMBINE_CUH
#define GB_GPU_COMBINE_CUH

#include "gpu/bf16.cuh"
#include "gpu/bulk.cuh"
#include "gpu/kernels.cuh"
#include "gpu/ranks.cuh"

struct gb_combine_layout {
    uint32_t row_bytes; /* of what is sent */
    uint32_t parts;     /* blocks for a token's row */
    uint32_t slots;     /* of a token: top_k, or ranks where the sender adds up */
    uint32_t tagged;    /* 1: rows are sent tagged; 0: counted */
    uint32_t lead;      /* tokens by which blocks that send are ahead of those that receive */
    uint32_t blocks;    /* 1, and one for each part of each token of each rank */
    size_t made;        /* [blocks], calls that each has ended */
    size_t begun;       /* tagged [2, ranks], each rank's start of the call */
    size_t arrived;     /* [2, tokens, parts], counted rows so far */
    size_t rows;        /* [2, tokens, slots, row_bytes], twice as wide if tagged */
    size_t bytes;
};

struct gb_combine_job {
    struct gb_cuda_link link;
    struct gb_combine_layout at;
    uint32_t tokens, hidden, experts, top_k;
    enum gb_accumulation accumulation;
    uint32_t ranks_per_node;
    enum gb_format input;
    const void *rows;         /* [rows that this rank received, hidden] */
    const int32_t *row_of;    /* [ranks, tokens, top_k], of each route its row here, or -1 */
    const float *all_weights; /* [ranks, tokens, top_k] */
    const int32_t *ids;       /* [tokens, top_k], this rank's */
    const int32_t *placement; /* [experts] */
    float *output;            /* [tokens, hidden] */
    uint32_t *expected;       /* [2, tokens, parts], of `arrived`; kept from call to call */
    uint32_t halves;          /* of enum gb_cuda_halves, of this launch; GB_HALF_ANNOUNCE has nothing to do */
};

struct gb_combine_layout gb_cuda_combine_layout(const struct gb_exchange *x);
/* Launches these halves. */
enum gb_status gb_cuda_combine_launch(const struct gb_combine_job *job, void *stream, struct gb_error *error);
/* The row of each route on this rank, in the order of dispatch: row_of [ranks, tokens, top_k], from all ids. It is the
 * routing's and not the rows', so it is found once for all layers of work on them. global: rows are numbered over all
 * ranks. */
enum gb_status gb_cuda_find_rows(const struct gb_exchange *x, uint32_t rank, bool global, const int32_t *all_ids,
                                 const int32_t *placement, int32_t *row_of, void *stream, struct gb_error *error);

#ifdef __CUDACC__

enum {
    GB_COMBINE_THREADS = 128,
    GB_COMBINE_WARPS = GB_COMBINE_THREADS / 32,
    GB_COMBINE_BYTES = 16 * GB_COMBINE_THREADS
};
constexpr uint32_t GB_COMBINE_AT_ONCE = 8; /* rows of a token that a thread has under way */

/* 16 bytes of a row as numbers: 8 of bf16, 4 of FP32. */
template <enum gb_format Input> constexpr uint32_t gb_numbers = Input == GB_BF16 ? 8 : 4;

template <enum gb_format Input>
__device__ __forceinline__ void gb_numbers_of(const uint4 &words, float (&value)[gb_numbers<Input>])
{
    const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (Input == GB_BF16) {
            value[2 * i] = gb_bf16_low(word[i]);
            value[(2 * i + 1) % gb_numbers<Input>] = gb_bf16_high(word[i]);
        } else {
            value[i] = __uint_as_float(word[i]);
        }
    }
}

/* A block's token and the columns of its threads. */
struct gb_combine_place {
    uint32_t rank, token; /* whose token */
    uint32_t part;
    uint32_t column; /* of the thread's first number; 0 of a thread that has none */
    bool used;       /* whether it has any */
};

/* Blocks that send are `lead` tokens ahead of those that receive: first those of the first tokens, then both in turn,
 * at last those that receive the last tokens. On all ranks a token's senders come before its receivers. */
template <enum gb_format Input>
__device__ __forceinline__ gb_combine_place gb_place_of(const gb_combine_job &job, uint32_t block)
{
    const uint32_t senders = (job.link.ranks - 1) * job.at.parts, both = senders + job.at.parts;
    const uint32_t first = job.at.lead * senders, turns = (job.tokens - job.at.lead) * both;
    uint32_t of_token;
    gb_combine_place at;
    if (block < first) {
        at.token = block / senders;
        of_token = block % senders;
    } else if (block - first < turns) {
        at.token = (block - first) / both;
        of_token = (block - first) % both;
        at.token += of_token < senders ? job.at.lead : 0;
    } else {
        at.token = job.tokens - job.at.lead + (block - first - turns) / job.at.parts;
        of_token = senders + (block - first - turns) % job.at.parts;
    }
    at.part = of_token % job.at.parts; /* the next rank first, so that not all send to one; itself last */
    at.rank = (job.link.rank + 1 + of_token / job.at.parts) % job.link.ranks;
    at.column = (at.part * GB_COMBINE_THREADS + threadIdx.x) * gb_numbers<Input>;
    at.used = at.column < job.hidden;
    at.column = at.used ? at.column : 0;
    return at;
}

template <enum gb_format Input>
__device__ __forceinline__ uint4 gb_load_row(const gb_combine_job &job, int32_t row, uint32_t column)
{
    return __ldg(
        (const uint4 *)((const char *)job.rows + ((size_t)row * job.hidden + column) * (16 / gb_numbers<Input>)));
}

template <bool Tagged> __device__ __forceinline__ size_t gb_slot_bytes(const gb_combine_job &job)
{
    return (size_t)job.at.row_bytes * (Tagged ? 2 : 1);
}

/* The slot of a token in its rank's window: of a route, or of a sender. */
template <bool Tagged>
__device__ __forceinline__ char *gb_slot(const gb_combine_job &job, const gb_combine_place &at, uint32_t slot,
                                         uint32_t call)
{
    const size_t index = (((size_t)(call & 1) * job.tokens + at.token) * job.at.slots + slot);
    return job.link.window[at.rank] + job.at.rows + index * gb_slot_bytes<Tagged>(job);
}

/* Where a thread's first pair of tagged words is in a slot's row, from its byte `first` on. A second pair is half a row
 * further, so that what neighbours write at once is side by side. */
template <uint32_t Words> __device__ __forceinline__ uint64_t *gb_tagged_pair(char *slot, uint32_t first)
{
    return (uint64_t *)slot + first / (2 * Words);
}

/* Words of a slot's row, from its byte `first` on. */
template <uint32_t Words>
__device__ __forceinline__ void gb_put_tagged_words(const gb_combine_job &job, char *slot, uint32_t first,
                                                    const uint32_t (&word)[Words], uint32_t call)
{
#pragma unroll
    for (uint32_t i = 0; i < Words; i += 2)
        gb_put_tagged(gb_tagged_pair<Words>(slot, first) + i / 2 * (job.at.row_bytes / 8), word[i], word[i + 1], call);
}

template <bool Tagged, uint32_t Words>
__device__ __forceinline__ void gb_get_words(const gb_combine_job &job, char *slot, uint32_t first,
                                             uint32_t (&word)[Words], uint32_t call)
{
    uint2 two[Words / 2];
    const uint64_t *pair[Words / 2];
#pragma unroll
    for (uint32_t i = 0; i < Words / 2; i++) {
        pair[i] = gb_tagged_pair<Words>(slot, first) + i * (job.at.row_bytes / 8);
        if (!Tagged) /* another device wrote it while this kernel ran: not by way of the read-only cache */
            two[i] = __ldcg((const uint2 *)(slot + first) + i);
    }
    if (Tagged)
        gb_get_tagged_pairs(job.link, pair, call, GB_AWAITS_ROWS, job.link.ranks, two);
#pragma unroll
    for (uint32_t i = 0; i < Words / 2; i++) {
        word[2 * i] = two[i].x;
        word[2 * i + 1] = two[i].y;
    }
}

/* bf16(sum of weight * row) over the slots of a token whose rows are here, as words of two: p[d]. Whether there are
 * any; rank: of the token. */
template <enum gb_format Input>
__device__ __forceinline__ bool gb_partial(const gb_combine_job &job, const gb_combine_place &at,
                                           uint32_t (&word)[gb_numbers<Input> / 2])
{
    const size_t route = ((size_t)at.rank * job.tokens + at.token) * job.top_k;
    float sum[gb_numbers<Input>] = {};
    bool any = false;
#pragma unroll 1
    for (uint32_t first = 0; first < job.top_k; first += GB_COMBINE_AT_ONCE) {
        int32_t row[GB_COMBINE_AT_ONCE];
        float weight[GB_COMBINE_AT_ONCE];
        uint4 words[GB_COMBINE_AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++) {
            row[i] = first + i < job.top_k ? __ldg(job.row_of + route + first + i) : -1;
            weight[i] = first + i < job.top_k ? __ldg(job.all_weights + route + first + i) : 0.0f;
        }
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++)
            if (row[i] >= 0)
                words[i] = gb_load_row<Input>(job, row[i], at.column);
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++) {
            float value[gb_numbers<Input>];
            if (row[i] < 0)
                continue;
            any = true;
            gb_numbers_of<Input>(words[i], value);
#pragma unroll
            for (uint32_t n = 0; n < gb_numbers<Input>; n++)
                sum[n] = __fmaf_rn(weight[i], value[n], sum[n]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < gb_numbers<Input> / 2; i++)
        word[i] = gb_bf16_round(sum[2 * i]) | (uint32_t)gb_bf16_round(sum[2 * i + 1]) << 16;
    return any;
}

/* What a block sends untagged of a token, in shared memory. */
struct alignas(16) gb_combine_rows {
    char row[GB_COMBINE_AT_ONCE][GB_COMBINE_BYTES];
};

/* The block's bytes of a row, from shared memory to a slot; by a warp. width: of all threads' bytes. */
__device__ __forceinline__ void gb_copy_to_slot(const gb_combine_job &job, const gb_combine_place &at, const char *row,
                                                uint32_t width, uint32_t slot, uint32_t call)
{
    const uint32_t first = at.part * width;
    gb_begin_copy(gb_slot<false>(job, at, slot, call) + first, row, min(width, job.at.row_bytes - first));
}

/* Rows that this rank has of another's token. */
template <enum gb_format Input, bool Tagged>
__device__ __forceinline__ uint32_t gb_send_rows(const gb_combine_job &job, const gb_combine_place &at, uint32_t call,
                                                 gb_combine_rows *kept)
{
    const int32_t *row_of = job.row_of + ((size_t)at.rank * job.tokens + at.token) * job.top_k;
    uint32_t sent = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < job.top_k; first += GB_COMBINE_AT_ONCE) {
        char *slots = gb_slot<Tagged>(job, at, first, call);
        uint4 words[GB_COMBINE_AT_ONCE];
        int32_t row[GB_COMBINE_AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++) {
            row[i] = first + i < job.top_k ? __ldg(row_of + first + i) : -1;
            sent += row[i] >= 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++)
            if (row[i] >= 0)
                words[i] = gb_load_row<Input>(job, row[i], at.column);
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++)
            if (row[i] >= 0) {
                const uint32_t word[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
                if (Tagged && at.used)
                    gb_put_tagged_words(job, slots + i * gb_slot_bytes<true>(job), at.column * (16 / gb_numbers<Input>),
                                        word, call);
                else if (!Tagged)
                    *(uint4 *)(kept->row[i] + 16 * threadIdx.x) = words[i];
            }
        if (Tagged)
            continue;
        gb_let_copy();
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++)
            if (row[i] >= 0 && i % GB_COMBINE_WARPS == threadIdx.x / 32)
                gb_copy_to_slot(job, at, kept->row[i], GB_COMBINE_BYTES, first + i, call);
        gb_end_copies();
        __syncthreads();
    }
    return sent;
}

/* Their sum. */
template <enum gb_format Input, bool Tagged>
__device__ __forceinline__ uint32_t gb_send_partial(const gb_combine_job &job, const gb_combine_place &at,
                                                    uint32_t call, gb_combine_rows *kept)
{
    constexpr uint32_t bytes = gb_numbers<Input> * 2;
    uint32_t word[gb_numbers<Input> / 2];
    const bool any = gb_partial<Input>(job, at, word);
    if constexpr (Tagged) {
        if (any && at.used)
            gb_put_tagged_words(job, gb_slot<true>(job, at, job.link.rank, call), at.column * 2, word, call);
    } else if (any) {
#pragma unroll
        for (uint32_t i = 0; i < gb_numbers<Input> / 2; i++)
            ((uint32_t *)(kept->row[0] + bytes * threadIdx.x))[i] = word[i];
        gb_let_copy();
        __syncthreads();
        if (threadIdx.x < 32) {
            gb_copy_to_slot(job, at, kept->row[0], bytes * GB_COMBINE_THREADS, job.link.rank, call);
            gb_end_copies();
        }
    }
    return any;
}

/* The row of a slot of this rank's token; or elsewhere, or nowhere, where the slot is empty or past the last. */
enum { GB_ROW_ELSEWHERE = -1, GB_ROW_NOWHERE = -2 };
__device__ __forceinline__ int32_t gb_row_is(const gb_combine_job &job, uint32_t token, uint32_t slot)
{
    if (slot >= job.top_k)
        return GB_ROW_NOWHERE;
    const uint32_t route = token * job.top_k + slot;
    const uint32_t expert = (uint32_t)__ldg(job.ids + route);
    const int32_t row = __ldg(job.row_of + (size_t)job.link.rank * job.tokens * job.top_k + route);
    return expert < job.experts ? row : (int32_t)GB_ROW_NOWHERE;
}

/* The rank of a slot's expert; `ranks` of an empty slot. */
__device__ __forceinline__ uint32_t gb_rank_of(const gb_combine_job &job, uint32_t token, uint32_t slot)
{
    const uint32_t expert = (uint32_t)job.ids[(size_t)token * job.top_k + slot];
    return expert < job.experts ? min((uint32_t)job.placement[expert], job.link.ranks - 1) : job.link.ranks;
}

__device__ __forceinline__ void gb_two_pairs(const uint4 &four, uint2 *two)
{
    two[0] = make_uint2(four.x, four.y);
    two[1] = make_uint2(four.z, four.w);
}

/* Rows of GB_COMBINE_AT_ONCE slots, from here or, once they are there, from where their ranks send them. row: of the
 * slots, or what gb_row_is says. */
template <enum gb_format Input, bool Tagged, class Await>
__device__ __forceinline__ void gb_get_slots(const gb_combine_job &job, const gb_combine_place &at, uint32_t first,
                                             const int32_t (&row)[GB_COMBINE_AT_ONCE], uint32_t call,
                                             const Await &await, uint2 (&two)[2 * GB_COMBINE_AT_ONCE])
{
    const uint32_t byte = at.column * (16 / gb_numbers<Input>);
    char *slots = gb_slot<Tagged>(job, at, first, call);
    const uint64_t *pair[2 * GB_COMBINE_AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++) {
        pair[2 * i] = pair[2 * i + 1] = NULL;
        if (row[i] >= 0) {
            gb_two_pairs(gb_load_row<Input>(job, row[i], at.column), &two[2 * i]);
        } else if (row[i] == GB_ROW_ELSEWHERE && Tagged) {
            pair[2 * i] = gb_tagged_pair<4>(slots + i * gb_slot_bytes<true>(job), byte);
            pair[2 * i + 1] = pair[2 * i] + job.at.row_bytes / 8;
        }
    }
    await();
#pragma unroll
    for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++)
        if (row[i] == GB_ROW_ELSEWHERE && !Tagged) /* written while this kernel ran: not by the read-only cache */
            gb_two_pairs(__ldcg((const uint4 *)(gb_slot<Tagged>(job, at, first + i, call) + byte)), &two[2 * i]);
    if (Tagged)
        gb_get_tagged_pairs(job.link, pair, call, GB_AWAITS_ROWS, job.link.ranks, two);
}

/* y = fma(weight, row, y) in slot order. */
template <enum gb_format Input, bool Tagged, class Await>
__device__ __forceinline__ void gb_sum_slots(const gb_combine_job &job, const gb_combine_place &at, uint32_t call,
                                             const Await &await, float (&y)[gb_numbers<Input>])
{
    const float *weights = job.all_weights + ((size_t)at.rank * job.tokens + at.token) * job.top_k;
#pragma unroll 1
    for (uint32_t first = 0; first < job.top_k; first += GB_COMBINE_AT_ONCE) {
        int32_t row[GB_COMBINE_AT_ONCE];
        float weight[GB_COMBINE_AT_ONCE]; /* loaded before anything is waited for */
        uint2 two[2 * GB_COMBINE_AT_ONCE];
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++) {
            row[i] = gb_row_is(job, at.token, first + i);
            weight[i] = first + i < job.top_k ? __ldg(weights + first + i) : 0.0f;
        }
        gb_get_slots<Input, Tagged>(
            job, at, first, row, call,
            [&] {
                if (first == 0)
                    await();
            },
            two);
#pragma unroll
        for (uint32_t i = 0; i < GB_COMBINE_AT_ONCE; i++)
            if (row[i] != GB_ROW_NOWHERE) {
                float value[gb_numbers<Input>];
                gb_numbers_of<Input>(make_uint4(two[2 * i].x, two[2 * i].y, two[2 * i + 1].x, two[2 * i + 1].y), value);
#pragma unroll
                for (uint32_t n = 0; n < gb_numbers<Input>; n++)
                    y[n] = __fmaf_rn(weight[i], value[n], y[n]);
            }
    }
}

/* Whether a slot of the token is on the rank. */
__device__ __forceinline__ bool gb_sends(const gb_combine_job &job, const uint32_t *ranks, uint32_t rank)
{
    bool any = false;
    for (uint32_t slot = 0; slot < job.top_k; slot++)
        any |= ranks[slot] == rank;
    return any;
}

/* The p[d] in rank order; of each node a sum in bf16, where nodes add up. */
template <enum gb_format Input, bool Tagged, class Await>
__device__ __forceinline__ void gb_sum_senders(const gb_combine_job &job, const gb_combine_place &at,
                                               const uint32_t *ranks, uint32_t call, const Await &await,
                                               float (&y)[gb_numbers<Input>])
{
    const uint32_t of_node = job.accumulation == GB_AT_SENDER_NODE ? job.ranks_per_node : job.link.ranks;
    uint32_t own[gb_numbers<Input> / 2]; /* before anything is waited for */
    gb_partial<Input>(job, at, own);
    await();
    for (uint32_t first = 0; first < job.link.ranks; first += of_node) {
        float sum[gb_numbers<Input>] = {};
        bool any = false;
        for (uint32_t d = first; d < min(first + of_node, job.link.ranks); d++) {
            uint32_t word[gb_numbers<Input> / 2] = {};
            if (!gb_sends(job, ranks, d))
                continue;
            any = true;
            if (d != job.link.rank)
                gb_get_words<Tagged>(job, gb_slot<Tagged>(job, at, d, call), at.column * 2, word, call);
#pragma unroll
            for (uint32_t i = 0; i < gb_numbers<Input> / 2; i++) {
                const uint32_t two = d == job.link.rank ? own[i] : word[i];
                sum[2 * i] = __fadd_rn(sum[2 * i], gb_bf16_low(two));
                sum[2 * i + 1] = __fadd_rn(sum[2 * i + 1], gb_bf16_high(two));
            }
        }
#pragma unroll
        for (uint32_t i = 0; any && i < gb_numbers<Input>; i++)
            y[i] = job.accumulation == GB_AT_SENDER_NODE
                       ? __fadd_rn(y[i], __uint_as_float((uint32_t)gb_bf16_round(sum[i]) << 16))
                       : sum[i];
    }
}

/* Which counter of a token's rank is the block's. */
__device__ __forceinline__ size_t gb_counter(const gb_combine_job &job, const gb_combine_place &at, uint32_t call)
{
    return ((size_t)(call & 1) * job.tokens + at.token) * job.at.parts + at.part;
}

/* Rows of a token that come from others. ranks: [top_k], of the slots, where senders add up. */
__device__ __forceinline__ uint32_t gb_rows_from_others(const gb_combine_job &job, const gb_combine_place &at,
                                                        const uint32_t *ranks)
{
    uint32_t rows = 0;
    for (uint32_t slot = 0; slot < job.top_k; slot++) {
        bool sent = job.accumulation == GB_AT_RECEIVER ? gb_row_is(job, at.token, slot) == GB_ROW_ELSEWHERE
                                                       : ranks[slot] != job.link.ranks && ranks[slot] != job.link.rank;
        for (uint32_t other = 0; job.accumulation != GB_AT_RECEIVER && other < slot; other++)
            sent &= ranks[other] != ranks[slot];
        rows += sent;
    }
    return rows;
}

/* Waits for them, if they are counted. */
__device__ __forceinline__ void gb_await_token(const gb_combine_job &job, const gb_combine_place &at,
                                               const uint32_t *ranks, uint32_t call)
{
    if (threadIdx.x == 0) {
        const size_t index = gb_counter(job, at, call);
        const uint32_t expected = job.expected[index] + gb_rows_from_others(job, at, ranks);
        job.expected[index] = expected;
        gb_await_count(job.link, (const uint32_t *)(job.link.window[job.link.rank] + job.at.arrived) + index, expected,
                       job.link.ranks, call);
    }
    __syncthreads();
}

template <enum gb_format Input, bool Tagged>
__device__ __forceinline__ void gb_receive_token(const gb_combine_job &job, const gb_combine_place &at, uint32_t call)
{
    __shared__ uint32_t ranks[GB_CUDA_MAX_TOP_K];
    if (job.accumulation != GB_AT_RECEIVER) {
        if (threadIdx.x < job.top_k)
            ranks[threadIdx.x] = gb_rank_of(job, at.token, threadIdx.x);
        __syncthreads();
    }
    const auto await = [&] {
        if (!Tagged)
            gb_await_token(job, at, ranks, call);
    };
    float y[gb_numbers<Input>] = {};
    if (job.accumulation == GB_AT_RECEIVER)
        gb_sum_slots<Input, Tagged>(job, at, call, await, y);
    else
        gb_sum_senders<Input, Tagged>(job, at, ranks, call, await, y);
    if (!at.used)
        return;
    float4 *output = (float4 *)(job.output + (size_t)at.token * job.hidden + at.column);
#pragma unroll
    for (uint32_t i = 0; i < gb_numbers<Input> / 4; i++)
        output[i] = make_float4(y[4 * i], y[4 * i + 1], y[4 * i + 2], y[4 * i + 3]);
}

template <enum gb_format Input, bool Tagged>
__device__ __forceinline__ void gb_send_token_rows(const gb_combine_job &job, const gb_combine_place &at, uint32_t call)
{
    __shared__ gb_combine_rows kept;
    const uint32_t sent = job.accumulation == GB_AT_RECEIVER ? gb_send_rows<Input, Tagged>(job, at, call, &kept)
                                                             : gb_send_partial<Input, Tagged>(job, at, call, &kept);
    if (!Tagged && sent && threadIdx.x == 0)
        gb_count((uint32_t *)(job.link.window[at.rank] + job.at.arrived) + gb_counter(job, at, call), sent);
}

/* Tells every rank that this one has begun; or waits until all have. A thread a rank. */
__device__ __forceinline__ void gb_begin(const gb_combine_job &job, uint32_t call)
{
    if (threadIdx.x < job.link.ranks)
        gb_put_tagged((uint64_t *)(job.link.window[threadIdx.x] + job.at.begun) + (call & 1) * job.link.ranks +
                          job.link.rank,
                      0, call);
}

__device__ __forceinline__ void gb_await_all(const gb_combine_job &job, uint32_t call)
{
    if (threadIdx.x < job.link.ranks)
        gb_get_tagged(job.link,
                      (const uint64_t *)(job.link.window[job.link.rank] + job.at.begun) + (call & 1) * job.link.ranks +
                          threadIdx.x,
                      call, GB_AWAITS_START, threadIdx.x);
}

template <enum gb_format Input, bool Tagged>
__global__ void __launch_bounds__(GB_COMBINE_THREADS, Tagged ? 2 : 7)
    gb_combine_kernel(const __grid_constant__ gb_combine_job job)
{
    const gb_combine_place at = gb_place_of<Input>(job, blockIdx.x - 1);
    gb_fetch_parameters(job);
    gb_wait_for_previous();
    gb_let_next_start();
    const uint32_t call = *gb_made(job.link, job.at.made) + 1;
    if (blockIdx.x == 0) {
        if (job.halves & GB_HALF_SEND)
            gb_begin(job, call);
        if (job.halves & GB_HALF_RECEIVE)
            gb_await_all(job, call);
    } else if (at.rank != job.link.rank) {
        if (job.halves & GB_HALF_SEND)
            gb_send_token_rows<Input, Tagged>(job, at, call);
    } else if (job.halves & GB_HALF_RECEIVE) {
        gb_receive_token<Input, Tagged>(job, at, call);
    }
    if (job.halves & GB_HALF_RECEIVE)
        gb_end_call(job.link, job.at.made, call);
}

#endif
#endif
