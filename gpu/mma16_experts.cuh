/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of experts' weights times the activations of their pairs, on tensor cores: the kernels of gate_up and down of
 * mma16-sm90/1.
 *
 * A block has some tiles of 16 rows of an item's expert (gpu/mma16_items.cuh), or, in down of few tokens, a tile of
 * every slot's expert. Four of its warps have the order's four chains. A warp's steps follow one another across the
 * ends of tiles, with the loads of several of them under way in registers, so that nothing is copied through shared
 * memory but the chains' sums. A kernel may start before the one in front of it has ended: down's blocts load weights
 * before they wait for the intermediate.
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
    const int32_t *ids;           /* [pairs] */
    gb_mma16_items *items;        /* NULL: every pair is an item */
    uint32_t most;                /* items that there may be */
    bool ids_ready;               /* the kernel before this one on the stream writes neither ids nor items */
    uint32_t each;                /* groups of a block */
    uint16_t *intermediate;       /* gate_up: out [pairs, tiles * 8] */
    float *dots;                  /* down: out [pairs, tiles * 16], complete dot products */
    const float *routing_weights; /* down of few tokens: [tokens, top_k] */
    float *output;                /* down of few tokens: out [tokens, tiles * 16] */
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
    /* Asks for a step to be in the L1 cache. */
    __device__ __forceinline__ void prefetch(uint32_t step) const
    {
        asm volatile("prefetch.global.L1 [%0];" ::"l"(from + step * Format::step));
    }
    __device__ __forceinline__ void load(uint32_t step, uint4 (&x)[words]) const
    {
        const uint4 *at = (const uint4 *)(from + step * Format::step);
        if ((step + 1) * Format::step <= columns) {
#pragma unroll
            for (uint32_t d = 0; d < words; d++)
                x[d] = at[d];
        } else {
            const uint32_t column = step * Format::step + threadIdx.x % 4 * (Format::step / 4);
#pragma unroll
            for (uint32_t d = 0; d < words; d++)
                x[d] = column + 8 * d < columns ? at[d] : make_uint4(0, 0, 0, 0);
        }
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

/*
 * A warp's chain of units one after the other, each of `groups` groups of Tiles tiles: the loads of Ahead steps are
 * under way, with one of them across the ends of groups and units.
 *   unit(at):             where the tiles of the next unit to be loaded lie, one place for all of a group where Shared;
 *                         whether there is one;
 *   beside(at, group):    moves places to another group of the unit;
 *   ready():              called before activations are read;
 *   x(n):                 the activations of the n-th tiles; one for all of them where Shared;
 *   done(group, n, sum):  takes the chain of a tile;
 *   end():                called at the end of a unit; whether there is another one.
 */
template <class Layout, uint32_t Tiles, uint32_t Ahead, bool Shared, class Unit, class Ready, class X, class Done,
          class End>
__device__ __forceinline__ void gb_mma16_chain(const Layout &layout, uint32_t groups, const Unit &unit,
                                               const Ready &ready, const X &x, const Done &done, const End &end)
{
    using Format = typename Layout::Format;
    const uint32_t steps = gb_mma16_steps<Format>(layout.matrix.columns);
    const uint32_t chain = threadIdx.x / 32 % gb_mma16_chains;
    constexpr uint32_t Parts = Shared ? 1 : Tiles;
    gb_mma16_step held[Ahead][Tiles] = {};
    gb_mma16_part first[Parts], at[Parts]; /* of the unit, and of what is loaded next */
    uint32_t next = 0, next_step = chain;
    bool more = unit(first) && chain < steps;
    const auto begin = [&] {
#pragma unroll
        for (uint32_t n = 0; n < Parts; n++)
            at[n] = layout.forward(layout.beside(first[n], next * Tiles), chain);
    };
    const auto load = [&](gb_mma16_step &of, uint32_t n) {
        if (more)
            of = layout.step_of(at[Shared ? 0 : n], Shared ? n : 0, next_step);
    };
    const auto advance = [&] {
        next_step += gb_mma16_chains;
        if (next_step < steps) {
#pragma unroll
            for (uint32_t n = 0; n < Parts; n++)
                at[n] = layout.forward(at[n], gb_mma16_chains);
            return;
        }
        next_step = chain;
        if (++next == groups) {
            next = 0;
            more = more && Ahead == 1 && unit(first);
        }
        begin();
    };
    begin();
#pragma unroll
    for (uint32_t k = 0; k < Ahead; k++) {
        if (k > 0)
            advance();
#pragma unroll
        for (uint32_t n = 0; n < Tiles; n++)
            load(held[k][n], n);
    }
    ready();
#ifdef XPRE
    if (Ahead > 1 && Shared)
#pragma unroll
        for (uint32_t k = 0; k < Ahead; k++)
            if (chain + k * gb_mma16_chains < steps)
                x(0).prefetch(chain + k * gb_mma16_chains);
#endif
    do {
        for (uint32_t group = 0; group < groups; group++) {
            float sum[Tiles][4] = {};
            for (uint32_t step = chain; step < steps; step += Ahead * gb_mma16_chains)
#pragma unroll
                for (uint32_t k = 0; k < Ahead; k++) {
                    if (step + k * gb_mma16_chains >= steps)
                        break;
                    uint4 now[gb_mma16_activations<Format>::words];
                    advance();
#pragma unroll
                    for (uint32_t n = 0; n < Tiles; n++) {
                        if (n == 0 || !Shared)
                            x(n).load(step + k * gb_mma16_chains, now);
                        gb_mma16_multiply<Layout>(held[k][n], now, sum[n]);
                        load(held[k][n], n);
                    }
                }
#pragma unroll
            for (uint32_t n = 0; n < Tiles; n++)
                done(group, n, sum[n]);
        }
    } while (end());
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

/* Floats of the chains of a unit, [chain][token][rows of its tiles], in shared memory: a warp's stores of two tokens,
 * four rows apart in banks, meet in none. */
__host__ __device__ constexpr uint32_t gb_mma16_sums_stride(uint32_t tiles)
{
    return tiles * gb_mma16_tile + 4;
}
__host__ __device__ constexpr uint32_t gb_mma16_sums(uint32_t tiles)
{
    return gb_mma16_chains * gb_mma16_tokens * gb_mma16_sums_stride(tiles);
}

/* Some tiles of an item, which a block computes at a time. */
struct gb_mma16_unit {
    uint32_t item, first; /* its first tile */
    uint32_t expert, pairs; /* 0: there is no such unit */
    uint32_t pair; /* of the lane's activations */
};

/* The u-th unit of `tiles` tiles. All loads are under way at once. */
__device__ __forceinline__ gb_mma16_unit gb_mma16_unit_at(const gb_mma16_job &job, uint32_t u, uint32_t tiles)
{
    const uint32_t of_item = job.weights.tiles / tiles, i = min(u / of_item, job.most - 1);
    if (!job.items)
        return {i, u % of_item * tiles, (uint32_t)__ldcg(&job.ids[i]), 1, i};
    const gb_mma16_item &item = job.items->item[i];
    const uint32_t t = threadIdx.x % 32 / 4, mine = __ldcg(&item.pair[t]), other = __ldcg(&item.pair[0]);
    const uint32_t expert = __ldcg(&item.expert), pairs = __ldcg(&item.pairs), count = __ldcg(&job.items->count);
    return {i, u % of_item * tiles, expert, u / of_item < count ? pairs : 0, t < pairs ? mine : other};
}

/* A unit's outputs from its chains' sums. Empty slots: zeros, or nothing. */
template <class Format, bool GateUp>
__device__ __forceinline__ void gb_mma16_finish(const gb_mma16_job &job, const gb_mma16_unit &unit, uint32_t tiles,
                                                const float *sums, float gate, float up)
{
    const uint32_t stride = gb_mma16_sums_stride(tiles);
    const bool empty = unit.expert >= job.weights.experts;
    if (empty && !GateUp)
        return;
    for (uint32_t i = threadIdx.x; i < unit.pairs * tiles * 8; i += gb_mma16_threads) {
        const uint32_t r = i % 8, tile = i / 8 % tiles, t = i / 8 / tiles;
        const uint32_t pair = job.items ? __ldcg(&job.items->item[unit.item].pair[t]) : unit.item;
        const size_t to = (size_t)pair * job.weights.tiles + unit.first + tile;
        const float *at = sums + t * stride + tile * gb_mma16_tile + r;
        const float low = gb_mma16_dot<Format>(at, gb_mma16_tokens * stride, gate);
        const float high = gb_mma16_dot<Format>(at + 8, gb_mma16_tokens * stride, up);
        if (GateUp) {
            job.intermediate[to * 8 + r] = empty ? 0 : gb_bf16_round(__fmul_rn(gb_cuda_silu(low), high));
        } else {
            job.dots[to * 16 + r] = low;
            job.dots[to * 16 + r + 8] = high;
        }
    }
}

/* Units of `each` groups of tiles: block b has the b-th, and then, where Takes, one after the other that no block has
 * taken; two are known ahead. */
template <class Layout, bool GateUp, class Shape>
__global__ void __launch_bounds__(gb_mma16_threads, Shape::Resident)
    gb_mma16_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    using Format = typename Layout::Format;
    constexpr uint32_t Tiles = Shape::Tiles;
    constexpr bool Takes = Shape::Ahead == 1;
    extern __shared__ float sums[]; /* of units, [2] in turns */
    __shared__ uint32_t taken[2];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t tiles = job.each * Tiles, stride = gb_mma16_sums_stride(tiles);
    if (!job.ids_ready)
        gb_wait_for_previous();
    gb_let_next_start();
    gb_mma16_unit now = gb_mma16_unit_at(job, blockIdx.x, tiles), after = {};
    const auto take = [&] {
        return threadIdx.x == 0 && Takes ? gridDim.x + atomicAdd(&job.items->taken[GateUp], 1u) : 0;
    };
    uint32_t mine = take();
    const auto take_over = [&](uint32_t turn) { /* all of the block */
        if (threadIdx.x == 0)
            taken[turn] = mine;
        __syncthreads();
        after = gb_mma16_unit_at(job, taken[turn], tiles);
        mine = take();
    };
    if (!now.pairs) {
        if (job.ids_ready)
            gb_wait_for_previous();
        return;
    }
    const Layout layout(job.weights);
    const auto expert_of = [&](const gb_mma16_unit &unit) {
        return unit.expert < job.weights.experts ? unit.expert : 0;
    };
    const auto x_of = [&](const gb_mma16_unit &unit) {
        const size_t row = unit.pair / job.share;
        return gb_mma16_activations<Format>(job.x + row * job.weights.columns, job.weights.columns);
    };
    float global[2];
    const auto scales_of = [&](const gb_mma16_unit &unit) {
        const uint32_t e = expert_of(unit);
        global[0] = job.weights.global_scales ? job.weights.global_scales[GateUp ? 2 * e : e] : 1.0f;
        global[1] = job.weights.global_scales && GateUp ? job.weights.global_scales[2 * e + 1] : global[0];
    };
    gb_mma16_activations<Format> x = x_of(now);
    uint32_t turn = 0, begun = 0;
    scales_of(now);
    gb_mma16_chain<Layout, Tiles, Shape::Ahead, true>(
        layout, job.each,
        [&](gb_mma16_part(&at)[1]) {
            const gb_mma16_unit &unit = begun++ ? after : now;
            at[0] = layout.part(expert_of(unit), unit.first);
            return unit.pairs > 0;
        },
        [&] {
            if (Takes)
                take_over(1);
            if (job.ids_ready)
                gb_wait_for_previous();
        },
        [&](uint32_t) { return x; },
        [&](uint32_t group, uint32_t n, const float(&sum)[4]) {
            float *at = sums + turn % 2 * gb_mma16_sums(tiles) + (warp * gb_mma16_tokens + lane % 4 * 2) * stride +
                        (group * Tiles + n) * gb_mma16_tile + lane / 4;
            at[0] = sum[0];
            at[8] = sum[2];
            at[stride] = sum[1];
            at[stride + 8] = sum[3];
        },
        [&] {
            const gb_mma16_unit last = now;
            const float gate = global[0], up = global[1];
            now = after;
            if (Takes)
                take_over(turn % 2);
            else
                __syncthreads();
            x = x_of(now);
            scales_of(now);
            gb_mma16_finish<Format, GateUp>(job, last, tiles, sums + turn % 2 * gb_mma16_sums(tiles), gate, up);
            turn++;
            return now.pairs > 0;
        });
}

constexpr uint32_t gb_mma16_most_teams = 5; /* of a block, four warps each */

/* Block (tile, token), of few tokens: the tile of every slot, combined. A slot that is empty or not there is computed
 * on another's weights, unseen. A team of four warps has Slots slots. */
template <class Layout, uint32_t Slots>
__global__ void __launch_bounds__(gb_mma16_most_teams *gb_mma16_threads, 1)
    gb_mma16_few_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    using Format = typename Layout::Format;
    __shared__ float sums[Slots * gb_mma16_most_teams][gb_mma16_chains][gb_mma16_tile];
    __shared__ float dots[GB_CUDA_MAX_TOP_K][gb_mma16_tile], routed[GB_CUDA_MAX_TOP_K];
    __shared__ bool used[GB_CUDA_MAX_TOP_K];
    const uint32_t lane = threadIdx.x % 32, chain = threadIdx.x / 32 % gb_mma16_chains;
    const uint32_t columns = job.weights.columns, experts = job.weights.experts, top_k = job.top_k;
    const uint32_t team = threadIdx.x / gb_mma16_threads * Slots; /* its first slot */
    const size_t pair = (size_t)blockIdx.y * top_k;
    if (!job.ids_ready)
        gb_wait_for_previous();
    gb_let_next_start();
    const auto expert_of = [&](uint32_t slot) {
        const uint32_t expert = (uint32_t)__ldcg(&job.ids[pair + min(slot, top_k - 1)]);
        return expert < experts ? expert : 0;
    };
    const uint32_t row = threadIdx.x % gb_mma16_tile, slot = threadIdx.x / gb_mma16_tile; /* that the thread finishes */
    const float global = job.weights.global_scales ? job.weights.global_scales[expert_of(slot)] : 1.0f;
    const Layout layout(job.weights);
    if (threadIdx.x < top_k) {
        used[threadIdx.x] = (uint32_t)__ldcg(&job.ids[pair + threadIdx.x]) < experts;
        routed[threadIdx.x] = __ldcg(&job.routing_weights[pair + threadIdx.x]);
    }
    bool begun = false;
    gb_mma16_chain<Layout, Slots, 1, false>(
        layout, 1,
        [&](gb_mma16_part(&at)[Slots]) {
            if (begun)
                return false;
#pragma unroll
            for (uint32_t n = 0; n < Slots; n++)
                at[n] = layout.part(expert_of(team + n), blockIdx.x);
            return begun = true;
        },
        [&] {
            if (job.ids_ready)
                gb_wait_for_previous();
        },
        [&](uint32_t n) {
            return gb_mma16_activations<Format>(job.x + (pair + min(team + n, top_k - 1)) * columns, columns);
        },
        [&](uint32_t, uint32_t n, const float(&sum)[4]) {
            if (lane % 4 == 0) {
                sums[team + n][chain][lane / 4] = sum[0];
                sums[team + n][chain][lane / 4 + 8] = sum[2];
            }
        },
        [] { return false; });
    __syncthreads();
    if (slot < top_k)
        dots[slot][row] = gb_mma16_dot<Format>(&sums[slot][0][row], gb_mma16_tile, global);
    __syncthreads();
    if (slot > 0)
        return;
    float y = 0.0f;
    for (uint32_t j = 0; j < top_k; j++)
        if (used[j])
            y = __fmaf_rn(routed[j], dots[j][row], y);
    job.output[((size_t)blockIdx.y * job.weights.tiles + blockIdx.x) * gb_mma16_tile + row] = y;
}

#endif
