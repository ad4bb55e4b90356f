/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel that gb_cuda_launch_early launches, and the kernel in front of it, say to each other. Where the GPU
 * knows no such launches (before compute capability 9.0), kernels follow one another and there is nothing to say. */
#ifndef GB_GPU_OVERLAP_CUH
#define GB_GPU_OVERLAP_CUH

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

#endif
