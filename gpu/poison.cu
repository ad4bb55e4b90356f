/* SPDX-License-Identifier: Apache-2.0 */
/* What device memory that a kernel allocates for itself holds (gb_device_poison). */
#include <cstdint>
#include <vector>

#include "gpu/device.cuh"

namespace
{

/* cudaMalloc cuts small requests out of chunks, which it keeps for as long as one piece of them is in use. */
enum { PIECE_BYTES = 1 << 16, PIECES = 1024, PIECES_OF_ONE_KEPT = 16, POOL_BYTES = 1 << 26 };

enum gb_status poison_pieces(uint8_t byte, struct gb_error *error)
{
    std::vector<void *> pieces;
    enum gb_status status = GB_OK;
    while (status == GB_OK && pieces.size() < PIECES) {
        void *piece = NULL;
        status = gb_cuda_check(cudaMalloc(&piece, PIECE_BYTES), "cudaMalloc", error);
        if (status == GB_OK) {
            pieces.push_back(piece);
            status = gb_cuda_check(cudaMemset(piece, byte, PIECE_BYTES), "cudaMemset", error);
        }
    }
    for (size_t n = 0; n < pieces.size(); n++)
        if (n % PIECES_OF_ONE_KEPT)
            (void)cudaFree(pieces[n]);
    return status;
}

/* The default pool of cudaMallocAsync, which keeps what it has from here on. */
enum gb_status poison_pool(uint8_t byte, struct gb_error *error)
{
    int device = 0, has_pools = 0;
    uint64_t threshold = UINT64_MAX;
    void *memory = NULL;
    cudaMemPool_t pool;
    enum gb_status status = gb_cuda_check(cudaGetDevice(&device), "cudaGetDevice", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, device),
                               "cudaDeviceGetAttribute", error);
    if (status != GB_OK || !has_pools)
        return status;
    status = gb_cuda_check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
                               "cudaMemPoolSetAttribute", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaMallocAsync(&memory, POOL_BYTES, 0), "cudaMallocAsync", error);
    if (status == GB_OK)
        status = gb_cuda_check(cudaMemsetAsync(memory, byte, POOL_BYTES, 0), "cudaMemsetAsync", error);
    if (memory)
        (void)cudaFreeAsync(memory, 0);
    return status == GB_OK ? gb_cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", error) : status;
}

} // namespace

extern "C" GB_API enum gb_status gb_device_poison(uint8_t byte, struct gb_error *error)
{
    const enum gb_status status = poison_pieces(byte, error);
    return status == GB_OK ? poison_pool(byte, error) : status;
}
