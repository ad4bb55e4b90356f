/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel of quantise and silu_mul_quantise: docs/numerics.md#quantise.
 *
 * A team of 2, 4, 8 or 16 threads quantises a block; a thread holds one chunk of 8 values of it, or two. The largest
 * magnitude goes round the team by shuffles, and every thread of it finds the same scale. Teams stride over all blocks;
 * the chunks of a team's next block are under way while it works on this one.
 */
#ifndef GB_GPU_QUANTISE_ROWS_CUH
#define GB_GPU_QUANTISE_ROWS_CUH

#include "gpu/inputs.cuh"
#include "gpu/kernels.cuh"
#include "gpu/quantiser.cuh"

/* What a launch is about. values: [rows, input_columns]; codes, scales: as in gb_arguments. */
struct gb_quantise_job {
    struct gb_quantisation q;
    const void *values;
    void *codes;
    void *scales;
};

template <uint32_t Chunks> struct gb_team {
    uint32_t lanes; /* threads */

    __device__ __forceinline__ uint32_t block() const
    {
        return lanes * Chunks * 8;
    }
    __device__ __forceinline__ uint32_t lane() const
    {
        return threadIdx.x & (lanes - 1);
    }
    /* The first column of a thread's chunk in its block. */
    __device__ __forceinline__ uint32_t column(uint32_t chunk) const
    {
        return (lane() + chunk * lanes) * 8;
    }
    __device__ __forceinline__ uint32_t mask() const
    {
        return ((1u << lanes) - 1) << (threadIdx.x % 32 & ~(lanes - 1));
    }
};

/* A block of the matrix. */
struct gb_place {
    uint32_t row, block;
};

template <class Source, uint32_t Chunks>
__device__ __forceinline__ void gb_load_block(const gb_quantise_job &job, const gb_team<Chunks> &team,
                                              const gb_place &at, typename Source::words (&words)[Chunks])
{
    if (at.row < job.q.rows)
#pragma unroll
        for (uint32_t c = 0; c < Chunks; c++)
            words[c] = Source::load(job.q, job.values, at.row, at.block * team.block() + team.column(c));
}

/* Step 2: a from the thread's values, over the team, whose threads are all here. */
template <uint32_t Chunks>
__device__ __forceinline__ float gb_amax_of(const gb_quantisation &q, const gb_team<Chunks> &team,
                                            const float (&x)[8 * Chunks])
{
    float a = q.quantiser.amax_start;
    bool any = false, all = true;
#pragma unroll
    for (uint32_t i = 0; i < 8 * Chunks; i++) {
        a = fmaxf(a, fabsf(x[i]));
        any |= isnan(x[i]);
        all &= isnan(x[i]);
    }
    for (uint32_t m = team.lanes / 2; m > 0; m /= 2)
        a = fmaxf(a, __shfl_xor_sync(team.mask(), a, (int)m));
    any = __any_sync(team.mask(), any);
    all = __all_sync(team.mask(), all);
    if ((q.quantiser.amax_nan == GB_AMAX_PROPAGATES_NAN && any) ||
        (q.quantiser.amax_nan == GB_AMAX_NAN_IF_ALL_ARE && all))
        return __uint_as_float(0x7FC00000u);
    return q.quantiser.bound == GB_BOUND_AMAX ? fminf(a, q.bound) : a;
}

/* What a candidate of four-over-six loses, summed in element order: chunk after chunk, thread after thread. */
template <uint32_t Chunks>
__device__ __forceinline__ float gb_error_of(const gb_quantisation &q, const gb_team<Chunks> &team,
                                             const gb_scaling &scaling, const float (&x)[8 * Chunks])
{
    const gb_quantiser &rules = q.quantiser;
    const float decode = gb_divide(rules, 1.0f, q.global_scale);
    float terms[8 * Chunks], e = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 8 * Chunks; i++) {
        const float value = gb_code_value(rules.element, gb_element_code(rules, scaling, x[i]));
        const float back = gb_multiply(rules, gb_multiply(rules, value, scaling.scale), decode);
        const float t = gb_add(rules, back, -x[i]);
        terms[i] = rules.four_over_six == GB_FOUR_OVER_SIX_ABSOLUTE ? fabsf(t) : gb_multiply(rules, t, t);
    }
#pragma unroll
    for (uint32_t c = 0; c < Chunks; c++)
#pragma unroll 1
        for (uint32_t l = 0; l < team.lanes; l++) {
            if (team.lane() == l)
#pragma unroll
                for (uint32_t i = 0; i < 8; i++)
                    e = gb_add(rules, e, terms[8 * c + i]);
            e = __shfl_sync(team.mask(), e, (int)l, (int)team.lanes);
        }
    return e;
}

/* Steps 2 to 5. */
template <uint32_t Chunks>
__device__ __forceinline__ gb_scaling gb_block_scaling(const gb_quantisation &q, const gb_team<Chunks> &team,
                                                       const float (&x)[8 * Chunks])
{
    const gb_quantiser &rules = q.quantiser;
    const float a = gb_amax_of(q, team, x), r = gb_ratio_of(rules, a, q.global_scale, q.bound);
    if (rules.four_over_six == GB_SIX)
        return gb_scaling_of(rules, a, r, q.global_scale);
    if (gb_flushed(rules, a) == 0.0f)
        return {0.0f, 0, 0.0f, false, true};
    gb_scaling best = {};
    float least = 0.0f;
#pragma unroll 1
    for (uint32_t four = 0; four < 2; four++) { /* six first, which stays unless four is better */
        const gb_scaling scaling = gb_scaling_of(rules, a, four ? gb_multiply(rules, r, 1.5f) : r, q.global_scale);
        const float error = gb_error_of(q, team, scaling, x);
        if (!four || error < least) {
            best = scaling;
            least = error;
        }
    }
    return best;
}

/* Eight codes in a word or two, the first in the low bits. */
__device__ __forceinline__ void gb_write_codes(const gb_quantise_job &job, size_t first, uint32_t low, uint32_t high)
{
    if (job.q.quantiser.element == GB_E2M1)
        __stcs((uint32_t *)((uint8_t *)job.codes + first / 2), low);
    else
        __stcs((uint2 *)((uint8_t *)job.codes + first), make_uint2(low, high));
}

template <uint32_t Chunks>
__device__ __forceinline__ void gb_write_scale(const gb_quantise_job &job, const gb_team<Chunks> &team,
                                               const gb_place &at, const gb_scaling &scaling)
{
    if (team.lane() != 0)
        return;
    const size_t index = job.q.layout == GB_SCALES_TRANSPOSED
                             ? (size_t)at.block * job.q.rows + at.row
                             : (size_t)at.row * (job.q.columns / team.block()) + at.block;
    if (job.q.quantiser.scale == GB_SCALE_FP32)
        ((float *)job.scales)[index] = scaling.scale;
    else
        ((uint8_t *)job.scales)[index] = (uint8_t)scaling.code;
}

/* A block by any rules. */
template <uint32_t Chunks>
__device__ __forceinline__ void gb_quantise_block(const gb_quantise_job &job, const gb_team<Chunks> &team,
                                                  const gb_place &at, const float (&x)[8 * Chunks])
{
    const gb_scaling scaling = gb_block_scaling(job.q, team, x);
    const uint32_t bits = job.q.quantiser.element == GB_E2M1 ? 4 : 8;
    if (at.row >= job.q.rows)
        return;
    gb_write_scale(job, team, at, scaling);
#pragma unroll
    for (uint32_t c = 0; c < Chunks; c++) {
        uint64_t codes = 0;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            codes |= (uint64_t)gb_element_code(job.q.quantiser, scaling, x[8 * c + i]) << bits * i;
        gb_write_codes(job, (size_t)at.row * job.q.columns + at.block * team.block() + team.column(c), (uint32_t)codes,
                       (uint32_t)(codes >> 32));
    }
}

/* How a kernel quantises a block whose values it has: by any rules, with teams of any size. */
struct gb_by_rules {
    static __device__ __forceinline__ uint32_t lanes(const gb_quantiser &rules)
    {
        return rules.block_columns / 8;
    }

    template <class Source>
    static __device__ __forceinline__ void quantise(const gb_quantise_job &job, const gb_team<1> &team,
                                                    const gb_place &at, const float *, const float (&x)[8])
    {
        gb_quantise_block(job, team, at, x);
    }
};

template <class Source, class Quantiser, uint32_t Chunks, uint32_t Threads, uint32_t Resident>
__global__ void __launch_bounds__(Threads, Resident) gb_quantise_kernel(const __grid_constant__ gb_quantise_job job)
{
    extern __shared__ float table[]; /* Source::shared_bytes */
    const gb_team<Chunks> team = {Quantiser::lanes(job.q.quantiser)};
    const uint32_t blocks = job.q.columns / team.block();
    const uint32_t unit = (blockIdx.x * Threads + threadIdx.x) / team.lanes, stride = gridDim.x * Threads / team.lanes;
    const gb_place step = {stride / blocks, stride % blocks};
    gb_place at = {unit / blocks, unit % blocks};
    typename Source::words now[Chunks] = {}, next[Chunks] = {};
    gb_load_block<Source>(job, team, at, now);
    Source::start(job.q, table);
    /* The warp's first team is the last to run out of blocks. */
    while (__shfl_sync(0xFFFFFFFFu, at.row, 0) < job.q.rows) {
        gb_place after = {at.row + step.row, at.block + step.block};
        if (after.block >= blocks) {
            after.block -= blocks;
            after.row++;
        }
        gb_load_block<Source>(job, team, after, next);
        float x[8 * Chunks];
#pragma unroll
        for (uint32_t c = 0; c < Chunks; c++)
            Source::convert(job.q, now[c], table, x + 8 * c);
        Quantiser::template quantise<Source>(job, team, at, table, x);
        at = after;
#pragma unroll
        for (uint32_t c = 0; c < Chunks; c++)
            now[c] = next[c];
    }
}

/* As many blocks as the device holds at once, or fewer where there is less to do. Table-driven sources want the first.
 */
template <class Source, class Quantiser, uint32_t Chunks, uint32_t Threads, uint32_t Resident>
enum gb_status gb_quantise_launch(const gb_quantise_job &job, void *stream, struct gb_error *error)
{
    int multiprocessors = 0;
    const enum gb_status status = gb_cuda_attribute(cudaDevAttrMultiProcessorCount, &multiprocessors, error);
    if (status != GB_OK)
        return status;
    const uint64_t threads = (uint64_t)job.q.rows * (job.q.columns / (8 * Chunks));
    const uint64_t wanted = (threads + Threads - 1) / Threads, most = (uint64_t)multiprocessors * Resident;
    return gb_cuda_launch("quantise", gb_quantise_kernel<Source, Quantiser, Chunks, Threads, Resident>,
                          dim3((unsigned)(wanted < most ? wanted : most)), Threads, Source::shared_bytes, stream, error,
                          job);
}

#endif
