/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a cluster: their numbers, and values that they send to each other's shared memory. */
#ifndef GB_GPU_CLUSTER_CUH
#define GB_GPU_CLUSTER_CUH

#include <cstdint>

/* The block's number in its cluster, and how many there are. */
__device__ __forceinline__ uint32_t gb_cluster_rank()
{
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

__device__ __forceinline__ uint32_t gb_cluster_size()
{
    uint32_t size = 1;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
#endif
    return size;
}

/* What a block of a cluster is sent: two barriers in shared memory that count bytes, of which so many will come to this
 * block. By all threads of the cluster, before anything is sent. */
__device__ __forceinline__ void gb_expect(uint64_t (&barriers)[2], uint32_t first_bytes, uint32_t second_bytes)
{
#if __CUDA_ARCH__ >= 900
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(barriers);
    if (threadIdx.x == 0)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                     "mbarrier.init.shared::cta.b64 [%0 + 8], 1;\n"
                     "fence.mbarrier_init.release.cluster;" ::"r"(address)
                     : "memory");
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64 _, [%0], %1;\n"
                     "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64 _, [%0 + 8], %2;" ::"r"(address),
                     "r"(first_bytes), "r"(second_bytes)
                     : "memory");
#endif
}

/* Sends 1, 2 or 4 words to the cluster's block `rank`, to the place that `to`, aligned to all of them, has in this
 * block's shared memory. */
template <uint32_t Count>
__device__ __forceinline__ void gb_send(uint32_t *to, uint64_t *barrier, uint32_t rank, const uint32_t (&values)[Count])
{
    static_assert(Count == 1 || Count == 2 || Count == 4, "what st.async sends");
#if __CUDA_ARCH__ >= 900
    uint32_t place, counter;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"((uint32_t)__cvta_generic_to_shared(to)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(counter)
        : "r"((uint32_t)__cvta_generic_to_shared(barrier)), "r"(rank));
    const auto bits = [&](uint32_t i) { return values[i < Count ? i : 0]; };
    if (Count == 4)
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                place),
            "r"(bits(0)), "r"(bits(1)), "r"(bits(2)), "r"(bits(3)), "r"(counter)
            : "memory");
    else if (Count == 2)
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(place),
            "r"(bits(0)), "r"(bits(1)), "r"(counter)
            : "memory");
    else
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(place),
                     "r"(bits(0)), "r"(counter)
                     : "memory");
#else
    for (uint32_t i = 0; i < Count; i++)
        to[i] = values[i];
#endif
}

/* By all threads of the block, or by a whole warp in code for clusters, that has been sent what it expects: it is there
 * afterwards. */
__device__ __forceinline__ void gb_receive(uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    uint32_t there = 0;
    while (!there)
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(there)
                     : "r"((uint32_t)__cvta_generic_to_shared(barrier))
                     : "memory");
#else
    __syncthreads();
#endif
}

#endif
