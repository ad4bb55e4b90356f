/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of dispatch and combine share: the memory through which ranks reach each other, and how they wait.
 *
 * Every rank has a *window*, memory on its device that all ranks can write to. What a rank writes into another's window
 * is either *tagged* or *counted*. Tagged: 8 bytes hold 4 of the data and 4 of the call's number, and are written at
 * once, so that whoever reads the number has the data. Counted: stores or bulk copies, then, past a fence, an addition
 * to a counter that the other waits for. Tags cost twice the bytes and save the fence.
 *
 * Nothing is reset between calls. Numbers and counters only go up, and live in device memory, so a captured launch can
 * be replayed. Every block counts its own calls, which takes no word from another block. What a rank may write before
 * all others have begun the same call is there twice, for odd and even calls: no rank is two calls ahead of another,
 * since a call ends only when it has seen that every other has begun it.
 */
#ifndef GB_GPU_RANKS_CUH
#define GB_GPU_RANKS_CUH

#include "gpu/device.cuh"
#include "gpu/overlap.cuh"

#define GB_CUDA_MAX_RANKS 64u

/* What a wait was for that took longer than its limit. */
enum gb_cuda_awaited { GB_AWAITS_NOTHING = 0, GB_AWAITS_COUNTS, GB_AWAITS_ROWS, GB_AWAITS_START };

/* The first such wait, in memory that the host reads. */
struct gb_cuda_late {
    uint32_t what; /* enum gb_cuda_awaited */
    uint32_t rank; /* which waited */
    uint32_t of;   /* for this one; the number of ranks: for any */
    uint32_t call;
    uint32_t limit_ms;
};

struct gb_cuda_link {
    uint32_t ranks, rank;
    uint32_t *gave_up; /* 1: a wait took too long, and no other wait is begun */
    struct gb_cuda_late *late;
    uint64_t limit_ns;
    char *window[GB_CUDA_MAX_RANKS];
};

/* Halves of a call. All in one launch, or each in a launch of its own: then the launches of one half on all ranks are
 * in front of the next half's, wherever ranks share a device. */
enum gb_cuda_halves { GB_HALF_ANNOUNCE = 1u, GB_HALF_SEND = 2u, GB_HALF_RECEIVE = 4u, GB_HALVES = 7u };

/* The ranks of a process: a device each, as far as there are, with memory and a stream of its own. */
struct gb_cuda_ranks {
    uint32_t count;
    bool share; /* a device has several ranks, and halves are launched one by one */
    cudaEvent_t begun;
    struct gb_cuda_rank {
        int device;
        cudaStream_t stream; /* one a device */
        cudaEvent_t ended;
        struct gb_cuda_link link;
    } of[GB_CUDA_MAX_RANKS];
};

/* GB_EUNSUPPORTED, with the reason, where so many ranks have no devices that reach each other. */
enum gb_status gb_cuda_ranks_check(uint32_t count, struct gb_error *error);
/* Windows and the memory of calls are zero. GB_EDEVICE; ranks_close in any case. */
enum gb_status gb_cuda_ranks_open(uint32_t count, size_t window_bytes, struct gb_cuda_ranks *ranks,
                                  struct gb_error *error);
void gb_cuda_ranks_close(struct gb_cuda_ranks *ranks);
/* What is put into the ranks' streams between these two comes after what is in `stream`, and before what comes next. */
enum gb_status gb_cuda_ranks_fork(struct gb_cuda_ranks *ranks, void *stream, struct gb_error *error);
enum gb_status gb_cuda_ranks_join(struct gb_cuda_ranks *ranks, void *stream, struct gb_error *error);
/* Zeroed memory of a rank's device. */
enum gb_status gb_cuda_ranks_allocate(const struct gb_cuda_ranks *ranks, uint32_t rank, size_t bytes, void **memory,
                                      struct gb_error *error);
/* GB_EDEVICE, once, if a wait took too long: which rank waited for what. */
enum gb_status gb_cuda_ranks_late(struct gb_error *error);

/* Makes a rank's device the current one for as long as it exists. */
struct gb_cuda_on {
    int before;
    explicit gb_cuda_on(int device)
    {
        (void)cudaGetDevice(&before);
        (void)cudaSetDevice(device);
    }
    ~gb_cuda_on()
    {
        (void)cudaSetDevice(before);
    }
    gb_cuda_on(const gb_cuda_on &) = delete;
};

/* launch(rank, halves) on every rank: at once, or half by half where ranks share a device. */
template <class Launch> enum gb_status gb_cuda_ranks_launch(const struct gb_cuda_ranks *ranks, const Launch &launch)
{
    enum gb_status status = GB_OK;
    for (uint32_t half = 1; half < (ranks->share ? GB_HALVES : 2); half *= 2)
        for (uint32_t r = 0; status == GB_OK && r < ranks->count; r++) {
            gb_cuda_on device(ranks->of[r].device);
            status = launch(r, ranks->share ? half : (uint32_t)GB_HALVES);
        }
    return status;
}

#ifdef __CUDACC__

/* A kernel's parameters are in no cache when it starts. Warps ask for their lines side by side, while the kernel in
 * front may still run; one after the other, where each is first used, they would take microseconds. */
template <class Job> __device__ __forceinline__ void gb_fetch_parameters(const Job &job)
{
    constexpr uint32_t line_words = 16;
    uint32_t all = 0;
    for (uint32_t i = threadIdx.x / 32 * line_words; i < sizeof job / 4; i += blockDim.x / 32 * line_words)
        all |= ((const uint32_t *)&job)[i];
    asm volatile("" ::"r"(all));
}

/* Calls that a block has ended: a word of its rank's window, which no other block reads. */
__device__ __forceinline__ uint32_t *gb_made(const gb_cuda_link &link, size_t made)
{
    return (uint32_t *)(link.window[link.rank] + made) + blockIdx.x;
}

/* Once all threads of the block have the number. */
__device__ __forceinline__ void gb_end_call(const gb_cuda_link &link, size_t made, uint32_t call)
{
    __syncthreads();
    if (threadIdx.x == 0)
        *gb_made(link, made) = call;
}

__device__ __forceinline__ uint64_t gb_nanoseconds()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

/* Whether to go on waiting; *since: when it began, 0 at first. */
__device__ __forceinline__ bool gb_wait_on(const gb_cuda_link &link, uint64_t *since, enum gb_cuda_awaited what,
                                           uint32_t of, uint32_t call)
{
    const uint64_t now = gb_nanoseconds();
    *since = *since ? *since : now;
    if (*(volatile uint32_t *)link.gave_up)
        return false;
    if (now - *since < link.limit_ns)
        return true;
    if (atomicExch(link.gave_up, 1u) == 0) {
        volatile gb_cuda_late *late = link.late;
        late->rank = link.rank;
        late->of = of;
        late->call = call;
        late->limit_ms = (uint32_t)(link.limit_ns / 1000000);
        __threadfence_system();
        late->what = what;
    }
    return false;
}

/* until(): whether what is waited for has come. */
template <class Until>
__device__ __forceinline__ void gb_wait(const gb_cuda_link &link, enum gb_cuda_awaited what, uint32_t of, uint32_t call,
                                        const Until &until)
{
    enum { POLLS = 256 };
    uint64_t since = 0;
    do {
        for (int i = 0; i < POLLS; i++)
            if (until())
                return;
    } while (gb_wait_on(link, &since, what, of, call));
}

/* Tagged words. */

__device__ __forceinline__ uint64_t gb_tagged(uint32_t data, uint32_t call)
{
    return (uint64_t)call << 32 | data;
}

__device__ __forceinline__ void gb_put_tagged(uint64_t *to, uint32_t data, uint32_t call)
{
    asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(to), "l"(gb_tagged(data, call)) : "memory");
}

/* Two, at a multiple of 16 bytes. */
__device__ __forceinline__ void gb_put_tagged(uint64_t *to, uint32_t first, uint32_t second, uint32_t call)
{
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(gb_tagged(first, call)),
                 "l"(gb_tagged(second, call))
                 : "memory");
}

__device__ __forceinline__ uint32_t gb_get_tagged(const gb_cuda_link &link, const uint64_t *from, uint32_t call,
                                                  enum gb_cuda_awaited what, uint32_t of)
{
    uint64_t word;
    gb_wait(link, what, of, call, [&] {
        asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
        return (uint32_t)(word >> 32) == call;
    });
    return (uint32_t)word;
}

/* As many words, or pairs of them, at once: all their loads are under way together. from: NULL: none. */
template <uint32_t Words>
__device__ __forceinline__ void gb_get_tagged_words(const gb_cuda_link &link, const uint64_t *const (&from)[Words],
                                                    uint32_t call, enum gb_cuda_awaited what, uint32_t of,
                                                    uint32_t (&data)[Words])
{
    gb_wait(link, what, of, call, [&] {
        uint64_t word[Words];
        bool all = true;
#pragma unroll
        for (uint32_t i = 0; i < Words; i++)
            if (from[i])
                asm volatile("ld.relaxed.sys.global.b64 %0, [%1];" : "=l"(word[i]) : "l"(from[i]) : "memory");
#pragma unroll
        for (uint32_t i = 0; i < Words; i++)
            if (from[i]) {
                all &= (uint32_t)(word[i] >> 32) == call;
                data[i] = (uint32_t)word[i];
            }
        return all;
    });
}

template <uint32_t Pairs>
__device__ __forceinline__ void gb_get_tagged_pairs(const gb_cuda_link &link, const uint64_t *const (&from)[Pairs],
                                                    uint32_t call, enum gb_cuda_awaited what, uint32_t of,
                                                    uint2 (&two)[Pairs])
{
    gb_wait(link, what, of, call, [&] {
        uint64_t word[Pairs][2];
        bool all = true;
#pragma unroll
        for (uint32_t i = 0; i < Pairs; i++)
            if (from[i])
                asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
                             : "=l"(word[i][0]), "=l"(word[i][1])
                             : "l"(from[i])
                             : "memory");
#pragma unroll
        for (uint32_t i = 0; i < Pairs; i++)
            if (from[i]) {
                all &= (uint32_t)(word[i][0] >> 32) == call && (uint32_t)(word[i][1] >> 32) == call;
                two[i] = make_uint2((uint32_t)word[i][0], (uint32_t)word[i][1]);
            }
        return all;
    });
}

/* Counters. Everything that the block has written before its last barrier comes first. */
__device__ __forceinline__ void gb_count(uint32_t *counter, uint32_t more)
{
    asm volatile("red.release.sys.global.add.u32 [%0], %1;" ::"l"(counter), "r"(more) : "memory");
}

__device__ __forceinline__ void gb_await_count(const gb_cuda_link &link, const uint32_t *counter, uint32_t count,
                                               uint32_t of, uint32_t call)
{
    gb_wait(link, GB_AWAITS_ROWS, of, call, [&] {
        uint32_t now;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
        return now == count;
    });
}

#endif
#endif
