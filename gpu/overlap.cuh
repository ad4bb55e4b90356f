/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel that gb_cuda_launch_early launches, and the kernel in front of it, say to each other. Where the GPU
 * knows no such launches (before compute capability 9.0), kernels follow one another and there is nothing to say. */
#ifndef GB_GPU_OVERLAP_CUH
#define GB_GPU_OVERLAP_CUH

#include <cstddef>
#include <cstdint>

/* Returns when the kernels before this one on the stream are complete. */
__device__ __forceinline__ void gb_wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next kernel's blocks may start where there is room, once every block of this one has said so or ended. */
__device__ __forceinline__ void gb_let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/*
 * Words that a kernel tells the next ones before it ends, in device memory, each in a cache line of its own, for many
 * blocks read one at once. By a warp of the kernel, after gb_wait_for_previous: gb_tell_later of all, and then
 * gb_let_next_start, the first of its block. The next kernel, which hears them, need not wait for it. What that one
 * reads besides is of the kernels in front of both, and what it writes no kernel in front of both reads.
 */
constexpr uint32_t gb_told_stride = 16; /* from a word to the next */

__device__ __forceinline__ void gb_put_told(uint64_t *told, uint32_t i, uint64_t value)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(told + (size_t)i * gb_told_stride), "l"(value) : "memory");
}

/* Words 0 .. count are told later. By a warp. */
__device__ __forceinline__ void gb_tell_later(uint64_t *told, uint32_t count)
{
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32)
        gb_put_told(told, i, 0);
    __threadfence();
    __syncwarp();
}

__device__ __forceinline__ void gb_tell(uint64_t *told, uint32_t i, uint32_t word)
{
    gb_put_told(told, i, 1ull << 32 | word);
}

/* Word i, if it has been told, or 0. */
__device__ __forceinline__ uint64_t gb_listen(const uint64_t *told, uint32_t i)
{
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(told + (size_t)i * gb_told_stride)
                 : "memory");
    return value;
}

/* Waits for word i, of which `value` is what gb_listen has said. */
__device__ __forceinline__ uint32_t gb_hear(const uint64_t *told, uint32_t i, uint64_t value = 0)
{
    while (!value)
        value = gb_listen(told, i);
    return (uint32_t)value;
}

#endif
