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
 * Numbers that a kernel tells the next one before it ends, in device memory, each in a cache line of its own, for many
 * blocks read one at once. By one thread: gb_tell_later of each, then gb_let_next_start, which is the first of its
 * block and comes after gb_wait_for_previous; then gb_tell. What the next kernel reads beyond them is that of the
 * kernels in front of both, and it must wait for the previous before it ends.
 */
constexpr uint32_t gb_told_words = 32;   /* from a number to the next */
constexpr int32_t gb_untold = INT32_MIN; /* no number that is told */

__device__ __forceinline__ void gb_tell(int32_t *told, uint32_t i, int32_t number)
{
    asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(told + (size_t)i * gb_told_words), "r"(number) : "memory");
}

/* Numbers 0 .. count are told later. */
__device__ __forceinline__ void gb_tell_later(int32_t *told, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        gb_tell(told, i, gb_untold);
    __threadfence();
}

/* Waits for number i. */
__device__ __forceinline__ int32_t gb_hear(const int32_t *told, uint32_t i)
{
    int32_t number = gb_untold;
    while (number == gb_untold)
        asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];"
                     : "=r"(number)
                     : "l"(told + (size_t)i * gb_told_words)
                     : "memory");
    return number;
}

#endif
