/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of experts' weights times the activations of their pairs, on tensor cores: the kernels of gate_up and down of
 * mma16-sm90/1.
 *
 * A block has some tiles of 16 rows of an item's expert (gpu/mma16_items.cuh), and its four warps have the order's four
 * chains: a warp's steps follow one another across the ends of tiles, with the loads of several of them under way in
 * registers, so that nothing is copied through shared memory but the chains' sums. In down of one token a block has a
 * tile of every slot's expert, and a warp a slot. A kernel may start before the one in front of it has ended: down's
 * blocks load weights before they wait for the intermediate.
 */
#ifndef GB_GPU_MMA16_EXPERTS_CUH
#define GB_GPU_MMA16_EXPERTS_CUH

#include "gpu/bf16.cuh"
#include "gpu/mma16_items.cuh"
#include "gpu/mma16_weights.cuh"
#include "gpu/silu.cuh"

/* What is multiplied, and where it goes. */
struct gb_mma16_job {
    gb_mma16_matrix weights;
    const uint16_t *x; /* bf16 [.., columns]: row pair / share */
    uint32_t share;
    const int32_t *ids;          /* [pairs] */
    bool apart;                  /* every pair is an item */
    const gb_mma16_items *items; /* NULL: a block finds its item by itself */
    uint32_t pairs;
    bool ids_ready;               /* the kernel before this one on the stream writes neither ids nor items */
    uint32_t each;                /* groups of a block */
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
    __device__ __forceinline__ void load(uint32_t step, uint4 (&x)[words]) const
    {
        if ((step + 1) * Format::step <= columns)
            return load_whole(step, x);
        const uint4 *at = (const uint4 *)(from + step * Format::step);
        const uint32_t column = step * Format::step + threadIdx.x % 4 * (Format::step / 4);
#pragma unroll
        for (uint32_t d = 0; d < words; d++)
            x[d] = column + 8 * d < columns ? at[d] : make_uint4(0, 0, 0, 0);
    }
    /* Of a step that ends within the row: without a branch. */
    __device__ __forceinline__ void load_whole(uint32_t step, uint4 (&x)[words]) const
    {
#pragma unroll
        for (uint32_t d = 0; d < words; d++)
            x[d] = ((const uint4 *)(from + step * Format::step))[d];
    }
};

/* chain += a step of a tile times activations. */
template <class Layout, uint32_t Words>
__device__ __forceinline__ void gb_mma16_multiply(const gb_mma16_step &weights, const uint4 (&x)[Words],
                                                  float (&chain)[4])
{
    using Format = typename Layout::Format;
    uint32_t scale[Format::in_chunk][2]; /* [..][first or last 8 rows] */
#pragma unroll
    for (uint32_t i = 0; i < Format::in_chunk; i++)
        Format::scale(weights.scales >> 16 * i, scale[i][0], scale[i][1]);
    if (Format::step == gb_mma16_step_bytes && !Layout::marks_nan) {
        scale[0][0] |= gb_mma16_any_nan(weights.low) ? 0x7FFF7FFFu : 0;
        scale[0][1] |= gb_mma16_any_nan(weights.high) ? 0x7FFF7FFFu : 0;
    }
#pragma unroll
    for (uint32_t d = 0; d < Words; d++) {
        const uint4 b = Layout::activations(x[d]);
        uint32_t low[4], high[4];
        gb_mma16_operands<Layout>(weights.low, d, scale[d * Format::in_chunk / Words][0], low);
        gb_mma16_operands<Layout>(weights.high, d, scale[d * Format::in_chunk / Words][1], high);
        gb_mma16(chain, low[0], high[0], low[1], high[1], b.x, b.y);
        gb_mma16(chain, low[2], high[2], low[3], high[3], b.z, b.w);
    }
}

/* The chain that a warp has of a group. Where some chains have a step more than others, it is not the same warps that
 * have these in every group. */
__device__ __forceinline__ uint32_t gb_mma16_chain_of(uint32_t group, uint32_t steps)
{
    const uint32_t warp = threadIdx.x / 32, turn = group % 2 * 2 + group / 2;
    return (steps > gb_mma16_chains ? warp + turn : warp) % gb_mma16_chains;
}

/*
 * A warp's chains of `groups` groups of Tiles tiles, one group after the other: the loads of Ahead steps are under way,
 * across the ends of groups.
 *   part:                        where the first tile lies;
 *   ready():                     called before activations are read;
 *   done(group, n, chain, sum):  takes the chain of the n-th tile of a group.
 */
template <class Layout, uint32_t Tiles, uint32_t Ahead, class Ready, class Done>
__device__ __forceinline__ void
gb_mma16_chains_of(const Layout &layout, uint32_t groups, const gb_mma16_part &part, const Ready &ready,
                   const gb_mma16_activations<typename Layout::Format> &x, const Done &done)
{
    using Format = typename Layout::Format;
    const uint32_t steps = gb_mma16_steps<Format>(layout.matrix.columns);
    uint32_t group = 0, step = gb_mma16_chain_of(0, steps);
    uint32_t next = step < steps ? 0 : groups, next_step = step; /* what is loaded next */
    gb_mma16_part at = layout.forward(part, step);
    gb_mma16_step held[Ahead][Tiles] = {};
    const auto load = [&](gb_mma16_step(&of)[Tiles]) {
        if (next >= groups)
            return;
#pragma unroll
        for (uint32_t n = 0; n < Tiles; n++)
            of[n] = layout.step_of(at, n, next_step);
        next_step += gb_mma16_chains;
        if (next_step < steps) {
            at = layout.forward(at, gb_mma16_chains);
            return;
        }
        next_step = gb_mma16_chain_of(++next, steps);
        at = layout.forward(layout.beside(part, next * Tiles), next_step);
    };
#pragma unroll
    for (uint32_t k = 0; k < Ahead; k++)
        load(held[k]);
    ready();
    float sum[Tiles][4] = {};
    while (group < groups)
#pragma unroll
        for (uint32_t k = 0; k < Ahead; k++) {
            if (group >= groups)
                break;
            uint4 now[gb_mma16_activations<Format>::words];
            if (step < steps) {
                x.load(step, now);
#pragma unroll
                for (uint32_t n = 0; n < Tiles; n++)
                    gb_mma16_multiply<Layout>(held[k][n], now, sum[n]);
                load(held[k]);
            }
            step += gb_mma16_chains;
            if (step >= steps) {
#pragma unroll
                for (uint32_t n = 0; n < Tiles; n++) {
                    done(group, n, gb_mma16_chain_of(group, steps), sum[n]);
                    sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
                }
                step = gb_mma16_chain_of(++group, steps);
            }
        }
}

/* A warp's chain of a tile, which has as many steps as are under way: no branch is between the loads and what waits for
 * them, so a step does not wait for the loads of those after it. */
template <class Layout, uint32_t Ahead>
__device__ __forceinline__ void gb_mma16_short_chain(const Layout &layout, const gb_mma16_part &part,
                                                     const gb_mma16_activations<typename Layout::Format> &x,
                                                     float (&sum)[4])
{
    const uint32_t chain = threadIdx.x / 32;
    const gb_mma16_part at = layout.forward(part, chain);
    gb_mma16_step held[Ahead];
#pragma unroll
    for (uint32_t k = 0; k < Ahead; k++)
        held[k] = layout.step_of(layout.forward(at, k * gb_mma16_chains), 0, chain + k * gb_mma16_chains);
#pragma unroll
    for (uint32_t k = 0; k < Ahead; k++) {
        uint4 now[gb_mma16_activations<typename Layout::Format>::words];
        x.load_whole(chain + k * gb_mma16_chains, now);
        gb_mma16_multiply<Layout>(held[k], now, sum);
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

constexpr uint32_t gb_mma16_threads = 32 * gb_mma16_chains; /* a warp for each of the chains */

/* How the work of a block is divided, which no bit depends on. */
template <uint32_t Tiles_, uint32_t Ahead_, uint32_t Resident_> struct gb_mma16_shape {
    static constexpr uint32_t Tiles = Tiles_, Ahead = Ahead_, Resident = Resident_;
};

/* Floats of the chains of a block, [chain][token][rows of its tiles], in shared memory: a warp's stores of two tokens,
 * four rows apart in banks, meet in none. */
__host__ __device__ constexpr uint32_t gb_mma16_sums_stride(uint32_t tiles)
{
    return tiles * gb_mma16_tile + 4;
}
__host__ __device__ constexpr uint32_t gb_mma16_sums(uint32_t tiles)
{
    return gb_mma16_chains * gb_mma16_tokens * gb_mma16_sums_stride(tiles);
}

/* Block (b, i): groups b * each .. of the i-th item, or of the one that the i-th pair leads. */
template <class Layout, bool GateUp, class Shape>
__global__ void __launch_bounds__(gb_mma16_threads, Shape::Resident)
    gb_mma16_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    using Format = typename Layout::Format;
    constexpr uint32_t Tiles = Shape::Tiles;
    extern __shared__ float sums[];
    __shared__ gb_mma16_item found;
    const uint32_t lane = threadIdx.x % 32, columns = job.weights.columns;
    const uint32_t first = blockIdx.x * job.each * Tiles, tiles = min(job.each * Tiles, job.weights.tiles - first);
    const uint32_t stride = gb_mma16_sums_stride(job.each * Tiles);
    if (!job.ids_ready)
        gb_wait_for_previous();
    gb_let_next_start();
    const gb_mma16_item *item = job.items ? &job.items->item[blockIdx.y] : &found;
    if (job.items   ? blockIdx.y >= __ldcg(&job.items->count)
        : job.apart ? false
                    : !gb_mma16_find_item(job.ids, job.pairs, blockIdx.y, &found)) {
        if (job.ids_ready)
            gb_wait_for_previous();
        return;
    }
    const uint32_t expert = job.apart ? (uint32_t)__ldcg(&job.ids[blockIdx.y]) : item->expert;
    const uint32_t pairs = job.apart ? 1 : item->pairs;
    const auto pair_of = [&](uint32_t t) { return job.apart ? blockIdx.y : item->pair[t]; };
    if (expert >= job.weights.experts) { /* empty slots */
        if (job.ids_ready)
            gb_wait_for_previous();
        if (GateUp)
            for (uint32_t i = threadIdx.x; i < pairs * tiles * 8; i += gb_mma16_threads)
                job.intermediate[((size_t)pair_of(i / (tiles * 8)) * job.weights.tiles + first) * 8 + i % (tiles * 8)] =
                    0;
        return;
    }
    float global[2] = {1.0f, 1.0f};
    if (job.weights.global_scales) {
        global[0] = job.weights.global_scales[GateUp ? 2 * expert : expert];
        global[1] = job.weights.global_scales[GateUp ? 2 * expert + 1 : expert];
    }
    const gb_mma16_activations<Format> x(job.x + (size_t)(pair_of(min(lane / 4, pairs - 1)) / job.share) * columns,
                                         columns);
    const Layout layout(job.weights);
    const gb_mma16_part part = layout.part(expert, first);
    const auto put = [&](uint32_t group, uint32_t n, uint32_t chain, const float(&sum)[4]) {
        float *at =
            sums + (chain * gb_mma16_tokens + lane % 4 * 2) * stride + (group * Tiles + n) * gb_mma16_tile + lane / 4;
        at[0] = sum[0];
        at[8] = sum[2];
        at[stride] = sum[1];
        at[stride + 8] = sum[3];
    };
    if (GateUp && Tiles == 1 && columns == gb_mma16_chains * Shape::Ahead * Format::step) { /* has waited for its ids */
        float sum[4] = {};
        gb_mma16_short_chain<Layout, Shape::Ahead>(layout, part, x, sum);
        put(0, 0, threadIdx.x / 32, sum);
    } else {
        gb_mma16_chains_of<Layout, Tiles, Shape::Ahead>(
            layout, tiles / Tiles, part,
            [&] {
                if (job.ids_ready)
                    gb_wait_for_previous();
            },
            x, put);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs * tiles * 8; i += gb_mma16_threads) {
        const uint32_t r = i % 8, tile = i / 8 % tiles, t = i / 8 / tiles;
        const size_t to = (size_t)pair_of(t) * job.weights.tiles + first + tile;
        const float *at = sums + t * stride + tile * gb_mma16_tile + r;
        const float low = gb_mma16_dot<Format>(at, gb_mma16_tokens * stride, global[0]);
        const float high = gb_mma16_dot<Format>(at + 8, gb_mma16_tokens * stride, global[1]);
        if (GateUp) {
            job.intermediate[to * 8 + r] = gb_bf16_round(__fmul_rn(gb_cuda_silu(low), high));
        } else {
            job.dots[to * 16 + r] = low;
            job.dots[to * 16 + r + 8] = high;
        }
    }
}

/* A block of down of one token has at most so many warps, and a warp so many columns under way. */
constexpr uint32_t gb_mma16_few_warps = 10, gb_mma16_few_columns = 512;

/* Block (tile, token), of one token: the tile of every slot, combined. A warp has a slot, all four chains of it, and
 * after that the tenth further on. A slot that is empty is computed on another's weights, unseen. */
template <class Layout>
__global__ void __launch_bounds__(32 * gb_mma16_few_warps, Layout::Format::format == GB_MXFP8 ? 1 : 2)
    gb_mma16_few_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    using Format = typename Layout::Format;
    constexpr uint32_t Ahead = gb_mma16_few_columns / Format::step;                  /* steps */
    constexpr uint32_t in_step = Format::step / 8, words = gb_mma16_few_columns / 8; /* of 8 activations */
    __shared__ uint4 staged[gb_mma16_few_warps][words];
    __shared__ float dots[GB_CUDA_MAX_TOP_K][gb_mma16_tile], routed[GB_CUDA_MAX_TOP_K];
    __shared__ bool used[GB_CUDA_MAX_TOP_K];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = job.weights.columns;
    const uint32_t steps = gb_mma16_steps<Format>(columns), experts = job.weights.experts, top_k = job.top_k;
    const size_t pair = (size_t)blockIdx.y * top_k;
    if (!job.ids_ready)
        gb_wait_for_previous();
    gb_let_next_start();
    const Layout layout(job.weights);
    for (uint32_t slot = warp; slot < top_k; slot += gb_mma16_few_warps) {
        const uint32_t expert = (uint32_t)__ldcg(&job.ids[pair + slot]), some = expert < experts ? expert : 0;
        gb_mma16_part at = layout.part(some, blockIdx.x);
        gb_mma16_step held[Ahead] = {};
#pragma unroll
        for (uint32_t k = 0; k < Ahead; k++, at = layout.forward(at, 1))
            if (k < steps)
                held[k] = layout.step_of(at, 0, k);
        const float global = job.weights.global_scales ? job.weights.global_scales[some] : 1.0f;
        if (lane == 0) {
            used[slot] = expert < experts;
            routed[slot] = __ldcg(&job.routing_weights[pair + slot]);
        }
        if (slot == warp && job.ids_ready)
            gb_wait_for_previous();
        const uint4 *row = (const uint4 *)(job.x + (pair + slot) * columns);
        uint4 x[words / 32];
        const auto load_x = [&](uint32_t step) {
#pragma unroll
            for (uint32_t i = 0; i < words / 32; i++) {
                const uint32_t word = step * in_step + i * 32 + lane;
                x[i] = word < columns / 8 ? __ldcg(row + word) : make_uint4(0, 0, 0, 0);
            }
        };
        load_x(0);
        float sum[gb_mma16_chains][4] = {};
        for (uint32_t step = 0; step < steps; step += Ahead) {
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < words / 32; i++)
                staged[warp][i * 32 + lane] = x[i];
            __syncwarp();
            load_x(step + Ahead);
            const auto multiply = [&](uint32_t k) {
                uint4 now[in_step / 4];
#pragma unroll
                for (uint32_t d = 0; d < in_step / 4; d++)
                    now[d] = staged[warp][k * in_step + lane % 4 * (in_step / 4) + d];
                gb_mma16_multiply<Layout>(held[k], now, sum[k % gb_mma16_chains]);
            };
            if (step + Ahead == steps) { /* the last: without a branch, the chains are side by side */
#pragma unroll
                for (uint32_t k = 0; k < Ahead; k++)
                    multiply(k);
                continue;
            }
#pragma unroll
            for (uint32_t k = 0; k < Ahead; k++) {
                if (step + k < steps)
                    multiply(k);
                if (step + k + Ahead < steps)
                    held[k] = layout.step_of(at, 0, step + k + Ahead);
                at = layout.forward(at, 1);
            }
        }
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const float chains[gb_mma16_chains] = {sum[0][2 * half], sum[1][2 * half], sum[2][2 * half],
                                                   sum[3][2 * half]};
            if (lane % 4 == 0)
                dots[slot][lane / 4 + 8 * half] = gb_mma16_dot<Format>(chains, 1, global);
        }
    }
    __syncthreads();
    if (threadIdx.x >= gb_mma16_tile)
        return;
    float y = 0.0f;
    for (uint32_t j = 0; j < top_k; j++)
        if (used[j])
            y = __fmaf_rn(routed[j], dots[j][threadIdx.x], y);
    job.output[((size_t)blockIdx.y * job.weights.tiles + blockIdx.x) * gb_mma16_tile + threadIdx.x] = y;
}

#endif
