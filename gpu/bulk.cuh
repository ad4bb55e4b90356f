/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies from shared memory to where another device may have it. From compute capability 9.0 on a lane begins a copy
 * and a unit of the multiprocessor makes it, in packets as large as the link takes. The end of one copy is known
 * without a fence, which would wait for all that the multiprocessor has stored.
 */
#ifndef GB_GPU_BULK_CUH
#define GB_GPU_BULK_CUH

#include <cstdint>

/* What a thread has put into shared memory may be copied, past the block's next barrier. */
__device__ __forceinline__ void gb_let_copy()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Begins a copy; by all lanes of a warp. from: in shared memory. All are multiples of 16. */
__device__ __forceinline__ void gb_begin_copy(char *to, const char *from, uint32_t bytes)
{
    const uint32_t lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"((uint32_t)__cvta_generic_to_shared(from)), "r"(bytes)
                     : "memory");
#else
    for (uint32_t i = 16 * lane; i < bytes; i += 16 * 32)
        *(uint4 *)(to + i) = *(const uint4 *)(from + i);
#endif
}

/* Returns when all copies that the warp has begun are where they go, for whom a lane's release tells of them. */
__device__ __forceinline__ void gb_end_copies()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group 0;" ::: "memory");
#endif
    __syncwarp();
}

#endif
