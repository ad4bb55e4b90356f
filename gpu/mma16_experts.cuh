/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of experts' weights times the activations of their pairs, on tensor cores: what the kernels of mma16-sm90/1 have
 * in common, and those of fma32/1 for several tokens with them. A warp has a chain of a tile of 16 rows; weights go
 * from device memory through registers to the instruction, and nothing passes through shared memory but the chains'
 * sums. A kernel may start before the one in front of it has ended: down's blocks load weights before they wait for the
 * intermediate.
 */
#ifndef GB_GPU_MMA16_EXPERTS_CUH
#define GB_GPU_MMA16_EXPERTS_CUH

#include "gpu/bf16.cuh"
#include "gpu/mma16_items.cuh"
#include "gpu/mma16_weights.cuh"
#include "gpu/silu.cuh"

constexpr uint32_t gb_mma16_warps = 4; /* of a block; each has a chain of its own */
constexpr uint32_t gb_mma16_threads = 32 * gb_mma16_warps;

/* What is multiplied, and where it goes. */
struct gb_mma16_job {
    gb_mma16_matrix weights;
    const uint16_t *x; /* bf16 [.., columns]: row pair / share */
    uint32_t share;
    const int32_t *ids;   /* [pairs] */
    const uint64_t *told; /* of one token: where ids and weights are told (overlap.cuh), or NULL */
    uint32_t pairs;
    uint32_t of_item;             /* of several tokens: pairs that an item may have */
    const gb_mma16_items *items;  /* of several tokens; NULL: a block finds its items by itself */
    bool ids_ready;               /* the kernel in front writes neither ids nor items, or they are told */
    uint16_t *intermediate;       /* gate_up: out [pairs, tiles * 8] */
    float *dots;                  /* down: out [pairs, tiles * 16], complete dot products */
    const float *routing_weights; /* down of one token: [tokens, top_k] */
    float *output;                /* down of one token: out [tokens, tiles * 16] */
    uint32_t top_k;
};

/* The operands of two instructions: words 2 d and 2 d + 1 of bytes, or word d of E2M1 codes. */
template <class Layout>
__device__ __forceinline__ void gb_mma16_operands(const uint4 &codes, uint32_t d, uint32_t scale, uint32_t (&a)[4])
{
    Layout::fields(codes, d, a);
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        a[k] = Layout::Format::scaled(a[k], scale);
}

/* A lane's activations: its chunk of every step of a token's row. Lanes whose token does not exist have another one's,
 * for sums that nobody reads. */
template <class Format> struct gb_mma16_activations {
    static constexpr uint32_t words = Format::step / 32; /* of 8 activations, that a chunk has */
    const uint16_t *from;
    uint32_t columns; /* of the row */

    __device__ __forceinline__ gb_mma16_activations(const uint16_t *row, uint32_t columns_)
        : from(row + threadIdx.x % 4 * (Format::step / 4)), columns(columns_)
    {
    }
    /* Words first .. first + Words of a step. */
    template <uint32_t Words>
    __device__ __forceinline__ void load(uint32_t step, uint4 (&x)[Words], uint32_t first = 0) const
    {
        if ((step + 1) * Format::step <= columns)
            return load_whole(step, x, first);
        const uint4 *at = (const uint4 *)(from + step * Format::step);
        const uint32_t column = step * Format::step + threadIdx.x % 4 * (Format::step / 4);
#pragma unroll
        for (uint32_t d = 0; d < Words; d++)
            x[d] = column + 8 * (first + d) < columns ? at[first + d] : make_uint4(0, 0, 0, 0);
    }
    /* Of a step that ends within the row: without a branch. */
    template <uint32_t Words>
    __device__ __forceinline__ void load_whole(uint32_t step, uint4 (&x)[Words], uint32_t first = 0) const
    {
#pragma unroll
        for (uint32_t d = 0; d < Words; d++)
            x[d] = ((const uint4 *)(from + step * Format::step))[first + d];
    }
};

/* chains += words From .. From + Words of a step of a tile times the activations of every group of 8 tokens. */
template <class Layout, uint32_t From, uint32_t Groups, uint32_t Words>
__device__ __forceinline__ void gb_mma16_multiply_words(const gb_mma16_step &weights, const uint4 (&x)[Groups][Words],
                                                        float (&chain)[Groups][4])
{
    using Format = typename Layout::Format;
    constexpr uint32_t of_scale = gb_mma16_activations<Format>::words / Format::in_chunk; /* words */
    constexpr uint32_t first = From / of_scale, scales = (From + Words - 1) / of_scale + 1 - first;
    uint32_t scale[scales][2]; /* [..][first or last 8 rows] */
#pragma unroll
    for (uint32_t i = 0; i < scales; i++)
        Format::scale(weights.scales, first + i, scale[i][0], scale[i][1]);
    if (Format::step == gb_mma16_step_bytes && Layout::has_nan) {
        scale[0][0] |= gb_mma16_any_nan(weights.low) ? 0x7FFF7FFFu : 0;
        scale[0][1] |= gb_mma16_any_nan(weights.high) ? 0x7FFF7FFFu : 0;
    }
#pragma unroll
    for (uint32_t d = 0; d < Words; d++) {
        uint32_t low[4], high[4];
        gb_mma16_operands<Layout>(weights.low, From + d, scale[(From + d) / of_scale - first][0], low);
        gb_mma16_operands<Layout>(weights.high, From + d, scale[(From + d) / of_scale - first][1], high);
#pragma unroll
        for (uint32_t g = 0; g < Groups; g++) {
            const uint4 b = Layout::activations(x[g][d]);
            gb_mma16(chain[g], low[0], high[0], low[1], high[1], b.x, b.y);
            gb_mma16(chain[g], low[2], high[2], low[3], high[3], b.z, b.w);
        }
    }
}

/* chain += a step of a tile times activations. */
template <class Layout, uint32_t Words>
__device__ __forceinline__ void gb_mma16_multiply(const gb_mma16_step &weights, const uint4 (&x)[Words],
                                                  float (&chain)[4])
{
    gb_mma16_multiply_words<Layout, 0, 1, Words>(weights, (const uint4(&)[1][Words])x, (float(&)[1][4])chain);
}

/* A warp's chain of a tile, of any length: the loads of Ahead steps are under way. */
template <class Layout, uint32_t Ahead>
__device__ __forceinline__ void gb_mma16_chain(const Layout &layout, const gb_mma16_part &part,
                                               const gb_mma16_activations<typename Layout::Format> &x, float (&sum)[4])
{
    using Format = typename Layout::Format;
    const uint32_t chain = threadIdx.x / 32, steps = gb_mma16_steps<Format>(layout.matrix.columns);
    gb_mma16_part at = layout.forward(part, chain);
    gb_mma16_step held[Ahead] = {};
    uint32_t next = chain; /* the step that is loaded next */
    const auto load = [&](gb_mma16_step &of) {
        if (next >= steps)
            return;
        of = layout.step_of(at, 0, next);
        next += gb_mma16_chains;
        at = layout.forward(at, gb_mma16_chains);
    };
#pragma unroll
    for (uint32_t k = 0; k < Ahead; k++)
        load(held[k]);
    for (uint32_t step = chain; step < steps;)
#pragma unroll
        for (uint32_t k = 0; k < Ahead && step < steps; k++, step += gb_mma16_chains) {
            uint4 now[gb_mma16_activations<Format>::words];
            x.load(step, now);
            gb_mma16_multiply<Layout>(held[k], now, sum);
            load(held[k]);
        }
}

/* A dot product from its chains, which lie `stride` floats apart: steps 4 and 5. */
template <class Format>
__device__ __forceinline__ float gb_mma16_dot(const float *chains, uint32_t stride, float global)
{
    const float sum =
        __fadd_rn(__fadd_rn(chains[0], chains[stride]), __fadd_rn(chains[2 * stride], chains[3 * stride]));
    return Format::format == GB_NVFP4 ? __fmul_rn(__fmul_rn(sum, Format::factor), global) : sum;
}

/*
 * What the kernels for several tokens ask of an order: of mma16-sm90/1.
 *   chains, values, tokens:  chains of a dot product; floats that a chain comes to; tokens of an instruction;
 *   padding:                 floats after a token's sums in shared memory;
 *   narrow_step():           sum [tile][group of tokens] += a step of a unit of one group. used(n): is told when tile
 *                            n's weights are;
 *   wide_step():             the same of two groups;
 *   scratch, scratch_bytes:  what a warp has in shared memory for so many tiles, if anything; bytes of all warps';
 *   store():                 a chain of a tile to shared memory: to[token * stride + row * values + value]; Added: to
 *                            the chain that lies there;
 *   dot():                   a dot product from its chains, `stride` floats apart, of a row of so many steps.
 */
template <class Layout_> struct gb_mma16_order {
    using Layout = Layout_;
    using activations = gb_mma16_activations<typename Layout::Format>;
    template <uint32_t Tiles> using scratch = void;
    template <uint32_t Tiles> static constexpr uint32_t scratch_bytes = 0;
    static constexpr uint32_t chains = gb_mma16_chains, values = 1, tokens = gb_mma16_tokens, padding = 4;

    static __device__ __forceinline__ activations activations_of(const gb_mma16_job &job, const gb_mma16_item &item,
                                                                 uint32_t group)
    {
        const uint32_t row = item.pair[min(group * tokens + threadIdx.x % 32 / 4, item.pairs - 1)] / job.share;
        return activations(job.x + (size_t)row * job.weights.columns, job.weights.columns);
    }

    template <uint32_t Tiles, uint32_t Groups, class Used>
    static __device__ __forceinline__ void narrow_step(const gb_mma16_step (&weights)[Tiles], const activations &x,
                                                       uint32_t step, float (&sum)[Tiles][Groups][4], void *,
                                                       const Used &used)
    {
        uint4 now[activations::words];
        x.load(step, now);
#pragma unroll
        for (uint32_t n = 0; n < Tiles; n++) {
            gb_mma16_multiply<Layout>(weights[n], now, sum[n][0]);
            used(n);
        }
    }

    /* Two words of all tiles, then the other two, if there are; registers hold no more. */
    template <uint32_t Tiles, class Used>
    static __device__ __forceinline__ void wide_step(const gb_mma16_step (&weights)[Tiles], const activations (&x)[2],
                                                     uint32_t step, float (&sum)[Tiles][2][4], const Used &used)
    {
        constexpr uint32_t words = activations::words;
        uint4 now[2][2];
        x[0].load(step, now[0]);
        x[1].load(step, now[1]);
#pragma unroll
        for (uint32_t n = 0; n < Tiles; n++) {
            gb_mma16_multiply_words<Layout, 0>(weights[n], now, sum[n]);
            if (words == 2)
                used(n);
        }
        if constexpr (words > 2) {
            x[0].load(step, now[0], 2);
            x[1].load(step, now[1], 2);
#pragma unroll
            for (uint32_t n = 0; n < Tiles; n++) {
                gb_mma16_multiply_words<Layout, 2>(weights[n], now, sum[n]);
                used(n);
            }
        }
    }

    template <bool> static __device__ __forceinline__ void store(const float (&chain)[4], float *to, uint32_t stride)
    {
        const uint32_t lane = threadIdx.x % 32;
        float *at = to + lane % 4 * 2 * stride + lane / 4;
        at[0] = chain[0];
        at[8] = chain[2];
        at[stride] = chain[1];
        at[stride + 8] = chain[3];
    }

    template <uint32_t>
    static __device__ __forceinline__ float dot(const float *from, uint32_t stride, uint32_t, float global)
    {
        return gb_mma16_dot<typename Layout::Format>(from, stride, global);
    }
};

#endif
