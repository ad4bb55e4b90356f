/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate_up and down for several tokens, of mma16-sm90/1 and of fma32/1 on the repacked layout: as many blocks as the
 * multiprocessors hold at once take units in turns.
 *
 * Units are the groups of tiles of every item (gpu/mma16_items.cuh), item by item. Of n blocks, b has unit b, b + n and
 * so on: what all blocks read at any time lies side by side, and listed items of one expert are read at about the same
 * time, when the L2 cache can serve all but the first. A block's warps have the order's chains of every unit.
 * A warp's steps follow one another across the ends of units: each step's loads are under way in registers while it
 * computes what comes before.
 */
#ifndef GB_GPU_MMA16_TURNS_CUH
#define GB_GPU_MMA16_TURNS_CUH

#include "gpu/mma16_experts.cuh"

/* How the work is divided, which no bit depends on: tiles of a unit, steps whose loads are under way, blocks of a
 * multiprocessor, groups of an instruction's tokens that an item may have, and warps of a block, each with its place
 * for the sums of its chains. */
template <class Order_, uint32_t Tiles_, uint32_t Ahead_, uint32_t Resident_, uint32_t Groups_,
          uint32_t Warps_ = gb_mma16_warps>
struct gb_mma16_shape {
    using Order = Order_;
    static constexpr uint32_t Tiles = Tiles_, Ahead = Ahead_, Resident = Resident_, Groups = Groups_;
    static constexpr uint32_t Warps = Warps_, threads = 32 * Warps;
    static constexpr uint32_t Pairs = Groups * Order::tokens; /* of an item */
    /* A unit's chains, [chain][token][rows of its tiles][values of a row], in shared memory: floats of a token, and all
     * of them. A warp's stores of two tokens meet in no bank. */
    static constexpr uint32_t stride = Tiles * gb_mma16_tile * Order::values + Order::padding;
    static constexpr uint32_t sums = Warps * Pairs * stride;
};

/* Of a block's units, so many have their items in shared memory, which come by half of that at a time where they are
 * listed. Where the block finds them by itself, it has no more units: there are as many blocks as that takes. */
constexpr uint32_t gb_mma16_items_at_once = 32;

/* Bytes in shared memory: the sums of two units, in turns, the items of those to come, and the order's scratch. While a
 * block finds these, the sums' place holds what gb_mma16_place_pairs needs. Where no kernel lists the items and a
 * multiprocessor's blocks need more than 100 KB, down takes much longer unless all kernels ask for as much shared
 * memory. */
template <class Shape> __host__ __device__ constexpr uint32_t gb_mma16_turns_sums_bytes(uint32_t experts)
{
    const uint32_t sums = 2 * Shape::sums * (uint32_t)sizeof(float);
    const uint32_t places = (uint32_t)(sizeof(uint32_t) * experts + 2 * sizeof(uint16_t) * gb_mma16_few_pairs);
    return (sums > places ? sums : places + 15) / 16 * 16;
}
template <class Shape> __host__ __device__ constexpr uint32_t gb_mma16_turns_bytes(uint32_t experts)
{
    return gb_mma16_turns_sums_bytes<Shape>(experts) + gb_mma16_items_at_once * (uint32_t)sizeof(gb_mma16_item) +
           Shape::Warps * Shape::Order::template scratch_bytes<Shape::Tiles>;
}

/* gate_up: of gate's rows, or of up's; otherwise it has one. */
template <bool GateUp>
__device__ __forceinline__ float gb_mma16_global_scale(const gb_mma16_job &job, uint32_t expert, uint32_t side)
{
    return job.weights.global_scales[GateUp ? 2 * expert + side : expert];
}

/* Items of this block's units from .. to, from the list to their places. All of the block call it. */
template <bool GateUp>
__device__ void gb_mma16_copy_items(const gb_mma16_job &job, uint32_t groups, uint32_t from, uint32_t to,
                                    gb_mma16_item *items)
{
    constexpr uint32_t words = sizeof *items / sizeof(uint4), second = offsetof(gb_mma16_item, expert) / sizeof(uint4);
    for (uint32_t i = from * words + threadIdx.x; i < to * words; i += blockDim.x) {
        const gb_mma16_item &item = job.items->item[(blockIdx.x + i / words * gridDim.x) / groups];
        uint4 word = __ldcg((const uint4 *)&item + i % words);
        if (i % words == second && job.weights.global_scales) {
            word.z = __float_as_uint(gb_mma16_global_scale<GateUp>(job, word.x, 0));
            word.w = __float_as_uint(gb_mma16_global_scale<GateUp>(job, word.x, 1));
        }
        ((uint4 *)items)[i % (gb_mma16_items_at_once * words)] = word;
    }
}

/* The items of this block's units, found among up to 256 pairs. All of the block call it. */
template <bool GateUp, uint32_t OfItem>
__device__ uint32_t gb_mma16_find_items(const gb_mma16_job &job, uint32_t groups, void *scratch, gb_mma16_item *items)
{
    __shared__ uint32_t found;
    uint16_t *place = (uint16_t *)scratch, *expert = place + gb_mma16_few_pairs;
    const uint32_t first = blockIdx.x, n = gridDim.x;
    if (threadIdx.x < 32)
        found = gb_mma16_place_pairs<OfItem>(job.ids, job.pairs, job.weights.experts, place, expert,
                                             (uint32_t *)(expert + gb_mma16_few_pairs));
    else if (threadIdx.x < 32 + gb_mma16_items_at_once)
        items[threadIdx.x - 32].pairs = 0;
    __syncthreads();
    for (uint32_t p = threadIdx.x; p < job.pairs; p += blockDim.x) {
        if (place[p] == gb_mma16_no_place)
            continue;
        const uint32_t begin = place[p] / gb_mma16_most_pairs * groups;
        for (uint32_t u = begin > first ? (begin - first + n - 1) / n : 0; first + u * n < begin + groups; u++) {
            items[u].pair[place[p] % gb_mma16_most_pairs] = (uint16_t)p;
            items[u].expert = expert[p];
            atomicAdd(&items[u].pairs, 1u);
        }
    }
    __syncthreads();
    const uint32_t of = threadIdx.x / 2, side = threadIdx.x % 2;
    if (job.weights.global_scales && of < gb_mma16_items_at_once && items[of].pairs)
        items[of].global[side] = gb_mma16_global_scale<GateUp>(job, items[of].expert, side);
    return found;
}

/* How many units this block has; items: out, [gb_mma16_items_at_once], of the first of them. All of the block call it.
 * groups: units of an item; scratch: gb_mma16_turns_sums_bytes. */
template <bool GateUp, uint32_t OfItem>
__device__ uint32_t gb_mma16_find_units(const gb_mma16_job &job, uint32_t groups, void *scratch, gb_mma16_item *items)
{
    const uint32_t used =
        job.items ? __ldcg(&job.items->used) : gb_mma16_find_items<GateUp, OfItem>(job, groups, scratch, items);
    const uint32_t all = used * groups, units = blockIdx.x < all ? (all - blockIdx.x - 1) / gridDim.x + 1 : 0;
    if (job.items)
        gb_mma16_copy_items<GateUp>(job, groups, 0, min(units, gb_mma16_items_at_once), items);
    __syncthreads();
    return units;
}

/* The n-th pair's expert is usually the n-th item's. Before a block has found its items, one of its threads brings the
 * first steps of the unit that it would then have nearer. */
template <class Layout>
__device__ __forceinline__ void gb_mma16_ask_early(const gb_mma16_job &job, const Layout &layout, uint32_t groups,
                                                   uint32_t tiles, uint32_t steps)
{
    const uint32_t pair = blockIdx.x / groups;
    const uint32_t expert = pair < job.pairs ? (uint32_t)__ldcg(job.ids + pair) : job.weights.experts;
    if (expert < job.weights.experts)
        layout.ask(layout.part(expert, blockIdx.x % groups * tiles), steps);
}

/* Where a warp is in its chains. */
struct gb_mma16_cursor {
    uint32_t unit, group, step; /* of the block, of the unit's item, of the row */
};

/* The first chain that a warp has of a unit. Where some chains have a step more than others, it is not the same warps
 * that have these in every unit. */
template <uint32_t Warps> __device__ __forceinline__ uint32_t gb_mma16_chain_of(uint32_t unit, uint32_t steps)
{
    const uint32_t warp = threadIdx.x / 32, turn = unit % 2 * 2 + unit / 2;
    return (steps > gb_mma16_warps ? warp + turn : warp) % Warps;
}

/* The chain whose sums the warp of this one adds to it next, in the order of fma32/1's butterfly; none, or more: it has
 * no more. Of four warps, each has every fourth chain; of two, w has w, w + 4 and w + 2, whose own fourth is +0: it is
 * no chain of rows of up to six steps. */
template <uint32_t Warps> __device__ __forceinline__ uint32_t gb_mma16_next_chain(uint32_t chain, uint32_t none)
{
    static_assert(Warps == 4 || Warps == 2, "fewer warps would add in another order");
    if (chain < Warps && chain + 4 < none)
        return chain + 4;
    if (Warps == 4)
        return none;
    return chain < 2 ? chain + 2 : chain >= 4 ? chain - 2 : none;
}

/* To the warp's next step, and what ends before it. The group of the next unit is `further` groups further on. */
enum gb_mma16_end { GB_NOTHING_ENDS, GB_CHAIN_ENDS, GB_UNIT_ENDS };
template <class Shape>
__device__ __forceinline__ gb_mma16_end gb_mma16_forward(gb_mma16_cursor &at, uint32_t steps, uint32_t groups,
                                                         uint32_t further)
{
    constexpr uint32_t chains = Shape::Order::chains;
    at.step += chains;
    if (at.step < steps)
        return GB_NOTHING_ENDS;
    if (chains > Shape::Warps) {
        const uint32_t none = min(chains, steps), next = gb_mma16_next_chain<Shape::Warps>(at.step % chains, none);
        if (next < none) {
            at.step = next;
            return GB_CHAIN_ENDS;
        }
    }
    at.step = gb_mma16_chain_of<Shape::Warps>(++at.unit, steps);
    at.group += at.group + further < groups ? further : further - groups;
    return GB_UNIT_ENDS;
}

/* What a unit's chains come to: sums, [Shape::sums], of rows of so many steps. turn: the unit's number. */
template <bool GateUp, class Shape>
__device__ __forceinline__ void gb_mma16_finish_unit(const gb_mma16_job &job, const gb_mma16_item &item, uint32_t group,
                                                     uint32_t steps, uint32_t turn, const float *sums)
{
    using Order = typename Shape::Order;
    constexpr uint32_t Tiles = Shape::Tiles, stride = Shape::stride;
    const auto index = [&](uint32_t t, uint32_t tile) {
        return (size_t)item.pair[t] * job.weights.tiles + group * Tiles + tile;
    };
    const auto dot = [&](uint32_t t, uint32_t tile, uint32_t row) {
        const float *from = sums + t * stride + (tile * gb_mma16_tile + row) * Order::values;
        return Order::template dot<Shape::Warps>(from, Shape::Pairs * stride, steps, item.global[row / 8]);
    };
    if constexpr (Order::values == 1) {
        for (uint32_t i = threadIdx.x; i < item.pairs * Tiles * 8; i += Shape::threads) {
            const uint32_t r = i % 8, tile = i / 8 % Tiles, t = i / 8 / Tiles;
            const size_t to = index(t, tile);
            const float low = dot(t, tile, r), high = dot(t, tile, r + 8);
            if (GateUp) {
                job.intermediate[to * 8 + r] = gb_bf16_round(__fmul_rn(gb_cuda_silu(low), high));
            } else {
                job.dots[to * 16 + r] = low;
                job.dots[to * 16 + r + 8] = high;
            }
        }
    } else { /* there is more to add: a thread has one dot product, and it is not the same warps that have them */
        const uint32_t all = item.pairs * Tiles * gb_mma16_tile;
        const uint32_t first = (threadIdx.x + turn % 2 * (Shape::threads / 2)) % Shape::threads;
        for (uint32_t i = first; i - threadIdx.x % 32 < all; i += Shape::threads) {
            const uint32_t r = i % 16, tile = i / 16 % Tiles, t = min(i / 16 / Tiles, item.pairs - 1);
            const size_t to = index(t, tile);
            const float own = dot(t, tile, r), other = GateUp ? __shfl_xor_sync(0xFFFFFFFFu, own, 8) : 0.0f;
            if (GateUp && r < 8 && i < all)
                job.intermediate[to * 8 + r] = gb_bf16_round(__fmul_rn(gb_cuda_silu(own), other));
            if (!GateUp && i < all)
                job.dots[to * 16 + r] = own;
        }
    }
}

/* A warp's chain of a unit to shared memory, or added to the one that lies there; sum is zero afterwards. */
template <class Shape, bool Added>
__device__ __forceinline__ void gb_mma16_store(float (&sum)[Shape::Tiles][Shape::Groups][4], float *to, bool wide)
{
    using Order = typename Shape::Order;
#pragma unroll
    for (uint32_t g = 0; g < Shape::Groups; g++) {
        if (g && !wide)
            break;
#pragma unroll
        for (uint32_t n = 0; n < Shape::Tiles; n++) {
            float *of_tile = to + g * Order::tokens * Shape::stride + n * gb_mma16_tile * Order::values;
            Order::template store<Added>(sum[n][g], of_tile, Shape::stride);
            sum[n][g][0] = sum[n][g][1] = sum[n][g][2] = sum[n][g][3] = 0.0f;
        }
    }
}

/* gate_up of empty slots is zero. */
[[maybe_unused]] static __device__ void gb_mma16_clear_empty(const gb_mma16_job &job)
{
    for (uint32_t p = blockIdx.x; p < job.pairs; p += gridDim.x)
        if ((uint32_t)__ldcg(job.ids + p) >= job.weights.experts)
            for (uint32_t i = threadIdx.x; i < job.weights.tiles; i += blockDim.x)
                ((uint4 *)job.intermediate)[(size_t)p * job.weights.tiles + i] = make_uint4(0, 0, 0, 0);
}

template <bool GateUp, class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Resident)
    gb_mma16_turns_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    using Order = typename Shape::Order;
    using Layout = typename Order::Layout;
    constexpr uint32_t Tiles = Shape::Tiles, Ahead = Shape::Ahead, Groups = Shape::Groups, stride = Shape::stride;
    extern __shared__ float4 shared[];
    const uint32_t groups = job.weights.tiles / Tiles, further = gridDim.x % groups;
    const uint32_t steps = gb_mma16_steps<typename Layout::Format>(job.weights.columns);
    float *sums = (float *)shared;
    gb_mma16_item *items =
        (gb_mma16_item *)(sums + gb_mma16_turns_sums_bytes<Shape>(job.weights.experts) / sizeof(float));
    auto *scratch = (typename Order::template scratch<Tiles> *)(items + gb_mma16_items_at_once);
    const auto item_of = [&](uint32_t unit) -> const gb_mma16_item & { return items[unit % gb_mma16_items_at_once]; };
    if (!job.ids_ready)
        gb_wait_for_previous();
    gb_let_next_start();
    const Layout layout(job.weights);
    if (!job.ids_ready && !job.items && threadIdx.x == Shape::threads - 1) /* of a warp that does not place pairs */
        gb_mma16_ask_early(job, layout, groups, Tiles, min(steps, Order::chains));
    const uint32_t units = gb_mma16_find_units<GateUp, Shape::Pairs>(job, groups, sums, items);
    gb_mma16_cursor now = {0, blockIdx.x % groups, gb_mma16_chain_of<Shape::Warps>(0, steps)}; /* computed */
    gb_mma16_cursor next = now;                                                                /* loaded */
    gb_mma16_part at;
    const auto find_part = [&] {
        if (next.unit < units)
            at = layout.forward(layout.part(item_of(next.unit).expert, next.group * Tiles), next.step);
    };
    typename Layout::step held[Ahead][Tiles] = {};
    const auto load = [&](typename Layout::step &of, uint32_t n) {
        if (next.unit < units)
            of = layout.step_of(at, n, next.step);
    };
    const auto forward = [&] {
        if (next.unit >= units)
            return;
        if (gb_mma16_forward<Shape>(next, steps, groups, further))
            find_part();
        else
            at = layout.forward(at, Order::chains);
    };
    if (next.step >= steps) /* the warp's chain has no step */
        next.unit = units;
    find_part();
#pragma unroll
    for (uint32_t k = 0; k < Ahead; k++) {
#pragma unroll
        for (uint32_t n = 0; n < Tiles; n++)
            load(held[k][n], n);
        forward();
    }
    typename Order::activations x[2] = {Order::activations_of(job, items[0], 0),
                                        Order::activations_of(job, items[0], Groups - 1)};
    bool wide = Groups > 1 && items[0].pairs > Order::tokens;
    if (job.ids_ready)
        gb_wait_for_previous();
    float sum[Tiles][Groups][4] = {};
    while (now.unit < units)
#pragma unroll
        for (uint32_t k = 0; k < Ahead; k++) {
            if (now.unit >= units)
                break;
            if (now.step < steps) {
                const auto used = [&](uint32_t n) { load(held[k][n], n); };
                if constexpr (Groups == 1)
                    Order::narrow_step(held[k], x[0], now.step, sum, scratch, used);
                else if (wide)
                    Order::wide_step(held[k], x, now.step, sum, used);
                else
                    Order::narrow_step(held[k], x[0], now.step, sum, scratch, used);
                forward();
            }
            const gb_mma16_cursor done = now;
            const gb_mma16_end ended = gb_mma16_forward<Shape>(now, steps, groups, further);
            if (ended == GB_NOTHING_ENDS)
                continue;
            float *of_unit = sums + done.unit % 2 * Shape::sums;
            const uint32_t chain = done.step % Order::chains;
            float *to = of_unit + chain % Shape::Warps * Shape::Pairs * stride;
            if (chain < Shape::Warps)
                gb_mma16_store<Shape, false>(sum, to, wide);
            else
                gb_mma16_store<Shape, true>(sum, to, wide);
            if (ended == GB_CHAIN_ENDS)
                continue;
            __syncthreads(); /* and all have read the sums that the next unit's will replace */
            gb_mma16_finish_unit<GateUp, Shape>(job, item_of(done.unit), done.group, steps, done.unit, of_unit);
            constexpr uint32_t page = gb_mma16_items_at_once / 2;
            if (job.items && done.unit % page == 0 && done.unit) /* the page in front is done */
                gb_mma16_copy_items<GateUp>(job, groups, done.unit + page, min(units, done.unit + 2 * page), items);
            if (now.unit < units) {
                const gb_mma16_item &item = item_of(now.unit);
                x[0] = Order::activations_of(job, item, 0);
                x[1] = Order::activations_of(job, item, Groups - 1);
                wide = Groups > 1 && item.pairs > Order::tokens;
            }
        }
    if (GateUp)
        gb_mma16_clear_empty(job);
}

#endif
