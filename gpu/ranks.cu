/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a process: their devices, windows and streams. */
#include <cstdio>

#include "gpu/ranks.cuh"

namespace
{

constexpr uint64_t wait_limit_ns = 5000000000u; /* what a rank waits for another takes microseconds */

struct gb_cuda_late *late; /* of all ranks of the process, in memory that every device reaches; NULL before the first */

enum gb_status count_devices(int *devices, struct gb_error *error)
{
    const enum gb_status status = gb_cuda_present(error);
    return status == GB_OK ? gb_cuda_check(cudaGetDeviceCount(devices), "cudaGetDeviceCount", error) : status;
}

/* Each reaches the other's memory from now on. */
enum gb_status reach(int device, int other, struct gb_error *error)
{
    gb_cuda_on on(device);
    const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
    if (code != cudaErrorPeerAccessAlreadyEnabled)
        return gb_cuda_check(code, "cudaDeviceEnablePeerAccess", error);
    (void)cudaGetLastError();
    return GB_OK;
}

enum gb_status reach_all(int devices, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (int device = 0; device < devices; device++)
        for (int other = 0; status == GB_OK && other < devices; other++)
            if (other != device)
                status = reach(device, other, error);
    return status;
}

enum gb_status make_late(struct gb_error *error)
{
    if (late)
        return GB_OK;
    const enum gb_status status =
        gb_cuda_check(cudaHostAlloc((void **)&late, sizeof *late, cudaHostAllocPortable | cudaHostAllocMapped),
                      "cudaHostAlloc", error);
    if (status == GB_OK)
        *late = {};
    return status;
}

/* A rank's stream is that of the first rank on its device. */
enum gb_status open_rank(struct gb_cuda_ranks *ranks, uint32_t r, int devices, size_t window_bytes,
                         struct gb_error *error)
{
    struct gb_cuda_ranks::gb_cuda_rank *rank = &ranks->of[r];
    rank->device = (int)r % devices;
    gb_cuda_on on(rank->device);
    void *window = NULL, *gave_up = NULL;
    enum gb_status status = gb_cuda_ranks_allocate(ranks, r, window_bytes, &window, error);
    if (status == GB_OK)
        status = gb_cuda_ranks_allocate(ranks, r, sizeof(uint32_t), &gave_up, error);
    rank->link.window[r] = (char *)window;
    rank->link.gave_up = (uint32_t *)gave_up;
    if (status == GB_OK)
        status =
            gb_cuda_check(cudaEventCreateWithFlags(&rank->ended, cudaEventDisableTiming), "cudaEventCreate", error);
    if (r >= (uint32_t)devices)
        rank->stream = ranks->of[rank->device].stream;
    else if (status == GB_OK)
        status =
            gb_cuda_check(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking), "cudaStreamCreate", error);
    return status;
}

/* Every rank knows every window. */
void exchange_windows(struct gb_cuda_ranks *ranks)
{
    for (uint32_t r = 0; r < ranks->count; r++) {
        struct gb_cuda_link *link = &ranks->of[r].link;
        for (uint32_t other = 0; other < ranks->count; other++)
            link->window[other] = ranks->of[other].link.window[other];
        link->ranks = ranks->count;
        link->rank = r;
        link->late = late;
        link->limit_ns = wait_limit_ns;
    }
}

} // namespace

enum gb_status gb_cuda_ranks_check(uint32_t count, struct gb_error *error)
{
    int devices = 0, reaches = 1;
    enum gb_status status = count_devices(&devices, error);
    if (status == GB_OK && count > GB_CUDA_MAX_RANKS)
        return gb_cuda_fail(error, GB_EUNSUPPORTED, "%u ranks; at most %u", count, GB_CUDA_MAX_RANKS);
    const int used = (int)count < devices ? (int)count : devices;
    for (int device = 0; device < used; device++)
        for (int other = 0; status == GB_OK && other < used; other++) {
            if (other != device)
                status =
                    gb_cuda_check(cudaDeviceCanAccessPeer(&reaches, device, other), "cudaDeviceCanAccessPeer", error);
            if (status == GB_OK && !reaches)
                return gb_cuda_fail(error, GB_EUNSUPPORTED, "device %d does not reach the memory of device %d", device,
                                    other);
        }
    return status == GB_OK ? gb_cuda_image(error) : status;
}

enum gb_status gb_cuda_ranks_open(uint32_t count, size_t window_bytes, struct gb_cuda_ranks *ranks,
                                  struct gb_error *error)
{
    int devices = 0;
    *ranks = {};
    enum gb_status status = count_devices(&devices, error);
    if (status != GB_OK)
        return status;
    devices = (int)count < devices ? (int)count : devices;
    ranks->count = count;
    ranks->share = (int)count > devices;
    status = gb_cuda_check(cudaEventCreateWithFlags(&ranks->begun, cudaEventDisableTiming), "cudaEventCreate", error);
    if (status == GB_OK)
        status = make_late(error);
    if (status == GB_OK)
        status = reach_all(devices, error);
    for (uint32_t r = 0; status == GB_OK && r < count; r++)
        status = open_rank(ranks, r, devices, window_bytes, error);
    if (status == GB_OK)
        exchange_windows(ranks);
    return status;
}

void gb_cuda_ranks_close(struct gb_cuda_ranks *ranks)
{
    for (uint32_t r = 0; r < ranks->count; r++) {
        struct gb_cuda_ranks::gb_cuda_rank *rank = &ranks->of[r];
        gb_cuda_on on(rank->device);
        if (rank->stream)
            (void)cudaStreamSynchronize(rank->stream); /* others may write to this window */
    }
    for (uint32_t r = ranks->count; r-- > 0;) {
        struct gb_cuda_ranks::gb_cuda_rank *rank = &ranks->of[r];
        gb_cuda_on on(rank->device);
        (void)cudaFree(rank->link.window[r]);
        (void)cudaFree(rank->link.gave_up);
        if (rank->ended)
            (void)cudaEventDestroy(rank->ended);
        if (rank->stream && (int)r == rank->device)
            (void)cudaStreamDestroy(rank->stream);
    }
    if (ranks->begun)
        (void)cudaEventDestroy(ranks->begun);
    *ranks = {};
}

enum gb_status gb_cuda_ranks_fork(struct gb_cuda_ranks *ranks, void *stream, struct gb_error *error)
{
    enum gb_status status =
        gb_cuda_check(cudaEventRecord(ranks->begun, (cudaStream_t)stream), "cudaEventRecord", error);
    for (uint32_t r = 0; status == GB_OK && r < ranks->count; r++) {
        gb_cuda_on on(ranks->of[r].device);
        status = gb_cuda_check(cudaStreamWaitEvent(ranks->of[r].stream, ranks->begun, 0), "cudaStreamWaitEvent", error);
    }
    return status;
}

enum gb_status gb_cuda_ranks_join(struct gb_cuda_ranks *ranks, void *stream, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t r = 0; status == GB_OK && r < ranks->count; r++) {
        {
            gb_cuda_on on(ranks->of[r].device);
            status = gb_cuda_check(cudaEventRecord(ranks->of[r].ended, ranks->of[r].stream), "cudaEventRecord", error);
        }
        if (status == GB_OK) /* stream 0 is the current device's: the caller's */
            status = gb_cuda_check(cudaStreamWaitEvent((cudaStream_t)stream, ranks->of[r].ended, 0),
                                   "cudaStreamWaitEvent", error);
    }
    return status;
}

enum gb_status gb_cuda_ranks_allocate(const struct gb_cuda_ranks *ranks, uint32_t rank, size_t bytes, void **memory,
                                      struct gb_error *error)
{
    gb_cuda_on on(ranks->of[rank].device);
    *memory = NULL;
    const cudaError_t code = cudaMalloc(memory, bytes);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return gb_cuda_fail(error, GB_ENOMEM, "cudaMalloc: no %zu bytes of device memory for rank %u", bytes, rank);
    }
    enum gb_status status = gb_cuda_check(code, "cudaMalloc", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaMemset(*memory, 0, bytes), "cudaMemset", error);
    return status == GB_OK ? gb_cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", error) : status;
}

enum gb_status gb_cuda_ranks_late(struct gb_error *error)
{
    static const char *const awaited[] = {"nothing", "counts", "rows", "the start"};
    char of[32] = "other ranks";
    if (!late || *(volatile uint32_t *)&late->what == GB_AWAITS_NOTHING)
        return GB_OK;
    const struct gb_cuda_late seen = *late;
    *late = {};
    if (seen.of < GB_CUDA_MAX_RANKS && seen.what != GB_AWAITS_NOTHING)
        snprintf(of, sizeof of, "rank %u", seen.of);
    return gb_cuda_fail(error, GB_EDEVICE, "rank %u waited for %s of %s for longer than %u ms, in call %u", seen.rank,
                        awaited[seen.what % 4], of, seen.limit_ms, seen.call);
}
