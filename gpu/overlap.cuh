/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel that gb_cuda_launch_early launches, and the kernel in front of it, say to each other. Code for compute
 * capabilities before 9.0 knows no such launches: its kernels follow one another, and there is nothing to say. */
#ifndef GB_GPU_OVERLAP_CUH
#define GB_GPU_OVERLAP_CUH

#include <cstddef>
#include <cstdint>

/* Returns when the kernel in front of this one on the stream is complete. So are those further in front, if that one
 * waited too; of one that it did not wait for, but heard, only what was told is there. */
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
 * Words that a kernel tells the next ones before it ends, in device memory, each in a cache line of its own, because
 * many blocks hear the same one at once; a word may be told more than once, always the same. A warp takes them back
 * first, after gb_wait_for_previous, and then lets the next kernel start, before any other thread of its block does;
 * other blocks tell when something of that block has reached them. The next kernel hears them and need not wait:
 * whatever is in front of the one that tells was complete before the next one's first block started. It writes
 * nothing that the one that tells reads or writes. A later kernel may hear, too, if the one between lets it start
 * after hearing; and one that a kernel waits for before it takes the words back must have heard all of them.
 */
constexpr uint32_t gb_told_stride = 16; /* from a word to the next */

__device__ __forceinline__ void gb_put_told(uint64_t *told, uint32_t i, uint64_t value)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(told + (size_t)i * gb_told_stride), "l"(value) : "memory");
}

/* The first `count` words are told later. By a warp. */
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

/* Word i and 2^32, or 0 if it has not been told. */
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
