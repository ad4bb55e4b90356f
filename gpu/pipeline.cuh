/* SPDX-License-Identifier: Apache-2.0 */
/* Barriers in shared memory, and copies that complete on them (compute capability 9.0). */
#ifndef GB_GPU_PIPELINE_CUH
#define GB_GPU_PIPELINE_CUH

#include <stdint.h>

__device__ __forceinline__ uint32_t gb_shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

/* Returns when the kernels before this one on the stream are complete, if it was launched by gb_cuda_launch_early. */
__device__ __forceinline__ void gb_wait_for_previous()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The next kernel's blocks may start where there is room, once every block of this one has said so or ended. */
__device__ __forceinline__ void gb_let_next_start()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void gb_barrier_start(uint64_t *barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(gb_shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Before the block's next __syncthreads: the copies see the barriers, too. */
__device__ __forceinline__ void gb_barriers_started()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void gb_barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(gb_shared_address(barrier)) : "memory");
}

/* Arrives, and has the phase wait for `bytes` of bulk copies. */
__device__ __forceinline__ void gb_barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(gb_shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/* Arrives once all earlier gb_copy of this thread have arrived. */
__device__ __forceinline__ void gb_barrier_arrive_copied(uint64_t *barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(gb_shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void gb_barrier_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}\n" ::"r"(gb_shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* One of the block's own barriers: whole warps, `threads` of those that wait and those that arrive together. */
__device__ __forceinline__ void gb_block_barrier_wait(uint32_t barrier, uint32_t threads)
{
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ __forceinline__ void gb_block_barrier_arrive(uint32_t barrier, uint32_t threads)
{
    asm volatile("barrier.cta.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

/* Contiguous bytes, a multiple of 16, both ends aligned to 16. */
__device__ __forceinline__ void gb_copy_bulk(void *to, const void *from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     gb_shared_address(to)),
                 "l"(from), "r"(bytes), "r"(gb_shared_address(barrier))
                 : "memory");
}

/* Bytes (4, 8 or 16), the first `exist` of them from memory and then zeros. */
template <uint32_t Bytes> __device__ __forceinline__ void gb_copy(void *to, const void *from, uint32_t exist)
{
    if (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(gb_shared_address(to)), "l"(from), "r"(exist)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(gb_shared_address(to)), "l"(from),
                     "n"(Bytes), "r"(exist)
                     : "memory");
}

#endif

#endif
