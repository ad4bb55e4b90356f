/* SPDX-License-Identifier: Apache-2.0 */
/* Down projection and combine: docs/numerics.md#down. */
#include "gpu/dot.cuh"
#include "gpu/kernels.cuh"

namespace
{

constexpr uint32_t threads = 256;
constexpr uint32_t lanes = 8;
constexpr uint32_t rows_per_block = 16;
constexpr size_t staging_bytes = 40 * 1024; /* what the staged slots of a block may take, unless one needs more */

/* How many slots are staged at a time. */
template <class Format> __host__ __device__ constexpr uint32_t slots_staged(uint32_t intermediate, uint32_t top_k)
{
    uint32_t fit = (uint32_t)(staging_bytes / (sizeof(float) * gb_staged_floats<Format>(intermediate)));
    return fit == 0 ? 1 : fit < top_k ? fit : top_k;
}

/* Shared memory: staged intermediates [slots][staged], then dot products [top_k][rows_per_block]. */
template <class Format> constexpr size_t shared_bytes(uint32_t intermediate, uint32_t top_k)
{
    return sizeof(float) * ((size_t)slots_staged<Format>(intermediate, top_k) * gb_staged_floats<Format>(intermediate) +
                            (size_t)top_k * rows_per_block);
}

/* The slots of a token that are not empty, in slot order. */
struct slot_list {
    uint32_t count;
    uint32_t slot[GB_CUDA_MAX_TOP_K];
    uint32_t expert[GB_CUDA_MAX_TOP_K];
};

/* Called by the block's first warp; thread j looks at slot j. */
__device__ __forceinline__ void list_slots(const int32_t *ids, const struct gb_shape &shape, slot_list *list)
{
    static_assert(GB_CUDA_MAX_TOP_K <= 32, "a warp lists the slots");
    uint32_t expert = threadIdx.x < shape.top_k ? (uint32_t)ids[threadIdx.x] : shape.experts;
    uint32_t present = __ballot_sync(0xFFFFFFFFu, expert < shape.experts);
    if (expert < shape.experts) {
        uint32_t place = (uint32_t)__popc(present & ((1u << threadIdx.x) - 1));
        list->slot[place] = threadIdx.x;
        list->expert[place] = expert;
    }
    if (threadIdx.x == 0)
        list->count = (uint32_t)__popc(present);
}

/* Intermediates of the listed slots first .. first+count-1 to shared memory, times factor. */
template <class Format>
__device__ __forceinline__ bool stage_slots(const gb_bf16 *intermediate, uint32_t columns, const slot_list &list,
                                            uint32_t first, uint32_t count, float factor, float *staged)
{
    bool huge = false;
    for (uint32_t j = 0; j < count; j++)
        huge |= gb_stage<Format>(intermediate + (size_t)list.slot[first + j] * columns, columns, factor,
                                 staged + j * gb_staged_floats<Format>(columns));
    return huge;
}

/* Block (b, token): output rows b * rows_per_block .. of one token. A unit is one row of one slot. */
template <class Format, bool Aligned>
__global__ void __launch_bounds__(threads, 2) down_kernel(const __grid_constant__ struct gb_arguments a)
{
    extern __shared__ float4 shared[];
    __shared__ slot_list list;
    const uint32_t columns = a.shape.intermediate, top_k = a.shape.top_k;
    const size_t pair = (size_t)blockIdx.y * top_k; /* of slot 0 */
    const uint32_t slots = slots_staged<Format>(columns, top_k), stride = gb_staged_floats<Format>(columns);
    const gb_bf16 *intermediate = a.intermediate + pair * columns;
    float *staged = (float *)shared;
    float *dots = staged + slots * stride;
    const uint32_t row = blockIdx.x * rows_per_block, rows = min(rows_per_block, a.shape.hidden - row);
    if (threadIdx.x < 32)
        list_slots(a.ids + pair, a.shape, &list);
    __syncthreads();
    for (uint32_t first = 0; first < list.count; first += slots) {
        const uint32_t count = min(slots, list.count - first), units = count * rows;
        const auto rows_of = [&](uint32_t unit, gb_cuda_row(&weights)[1]) {
            weights[0] = Format::row(a.down, list.expert[first + unit / rows], row + unit % rows);
        };
        const auto x_of = [&](uint32_t unit) { return staged + unit / rows * stride; };
        const auto finish = [&](uint32_t unit, const float(&sums)[1]) {
            dots[(first + unit / rows) * rows_per_block + unit % rows] = sums[0];
        };
        const auto round = gb_first_round<Format, lanes, 1, Aligned>(units, columns, rows_of);
        __syncthreads(); /* nobody reads the slots staged before any more */
        if (!__syncthreads_or(
                stage_slots<Format>(intermediate, columns, list, first, count, Format::x_factor, staged))) {
            gb_dots<Format, lanes, 1, Aligned, false>(units, columns, round, rows_of, x_of, finish);
        } else {
            stage_slots<Format>(intermediate, columns, list, first, count, 1.0f, staged);
            __syncthreads();
            gb_dots<Format, lanes, 1, Aligned, true>(units, columns, round, rows_of, x_of, finish);
        }
    }
    __syncthreads();
    if (threadIdx.x < rows) {
        float y = 0.0f;
        for (uint32_t j = 0; j < list.count; j++) {
            float dot = __fmul_rn(dots[j * rows_per_block + threadIdx.x], gb_cuda_global(a.down, list.expert[j], 0));
            y = __fmaf_rn(a.routing_weights[pair + list.slot[j]], dot, y);
        }
        ((float *)a.output)[(size_t)blockIdx.y * a.shape.hidden + row + threadIdx.x] = y;
    }
}

template <class Format, bool Aligned> enum gb_status launch(const struct gb_arguments *a, struct gb_error *error)
{
    dim3 grid((a->shape.hidden + rows_per_block - 1) / rows_per_block, a->shape.tokens);
    return gb_cuda_launch("down", down_kernel<Format, Aligned>, grid, threads,
                          shared_bytes<Format>(a->shape.intermediate, a->shape.top_k), a->stream, error, *a);
}

} // namespace

size_t gb_cuda_down_shared(enum gb_format weights, const struct gb_shape *shape)
{
    return weights == GB_NVFP4 ? shared_bytes<gb_cuda_nvfp4>(shape->intermediate, shape->top_k)
                               : shared_bytes<gb_cuda_bf16>(shape->intermediate, shape->top_k);
}

enum gb_status gb_cuda_down(const struct gb_arguments *a, struct gb_error *error)
{
    if (a->down.format == GB_BF16)
        return launch<gb_cuda_bf16, true>(a, error);
    if (a->shape.intermediate % gb_cuda_nvfp4::chunk == 0)
        return launch<gb_cuda_nvfp4, true>(a, error);
    return launch<gb_cuda_nvfp4, false>(a, error);
}
