/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of experts' weights times the activations of their pairs, on tensor cores: the kernel behind gate_up and down of
 * mma16-sm90/1.
 *
 * The grid is persistent. All tiles of 16 rows of all items (gpu/mma16_items.cuh), one after the other as they lie in
 * memory, are cut into as many equal ranges as there are blocks. A block takes its range in groups of up to 8 tiles of
 * one item, and a group in slices of 4 steps of columns. Slices of weights and of activations pass through a ring in
 * shared memory, which producer warps fill across the ends of groups, so that loads are under way all the time; a
 * consumer warp has one of the order's chains of two tiles. Finisher warps make outputs of their sums.
 */
#ifndef GB_GPU_MMA16_EXPERTS_CUH
#define GB_GPU_MMA16_EXPERTS_CUH

#include "gpu/bf16.cuh"
#include "gpu/device.cuh"
#include "gpu/mma16_items.cuh"
#include "gpu/pipeline.cuh"
#include "gpu/silu.cuh"

/* What is multiplied, and where it goes. gate_up: a tile is 8 neurons, their gate rows and then their up rows. */
struct gb_mma16_job {
    const int32_t *ids;         /* [pairs] */
    const uint16_t *x;          /* bf16 [.., columns]: row pair / share */
    const uint8_t *codes;       /* canonical [experts, rows, columns / 2], or gb_mma16_repack's records */
    const uint8_t *scales;      /* canonical [experts, rows, columns / 16] */
    const float *global_scales; /* [experts, 2 or 1] */
    uint16_t *intermediate;     /* gate_up: out [pairs, tiles * 8] */
    float *dots;                /* down: out [pairs, tiles * 16], complete dot products */
    uint32_t pairs, share, experts, rows, columns, tiles;
    bool ids_ready; /* the kernel before this one on the stream does not write the ids */
};

constexpr uint32_t gb_mma16_group_tiles = 8;
constexpr uint32_t gb_mma16_slice = 4;      /* steps */
constexpr uint32_t gb_mma16_tiles_each = 2; /* of a consumer warp, one chain of each */
constexpr uint32_t gb_mma16_consumers = gb_mma16_chains * gb_mma16_group_tiles / gb_mma16_tiles_each; /* warps */
constexpr uint32_t gb_mma16_finishers = 4;                                                            /* warps */

/* A tile's slice in shared memory: codes [step][gate or up, first or last 8 rows][lane] of 16 bytes, and scales. */
constexpr uint32_t gb_mma16_step_codes = 1024, gb_mma16_step_scales = 128;
constexpr uint32_t gb_mma16_record = gb_mma16_step_codes + gb_mma16_step_scales;
constexpr uint32_t gb_mma16_tile_bytes = gb_mma16_slice * gb_mma16_record;
constexpr uint32_t gb_mma16_x_bytes = gb_mma16_slice * 2048; /* [step][word of a chunk][lane] of 8 activations */
constexpr uint32_t gb_mma16_stage_bytes = gb_mma16_group_tiles * gb_mma16_tile_bytes + gb_mma16_x_bytes;

__host__ __device__ constexpr uint32_t gb_mma16_steps(uint32_t columns)
{
    return (columns + gb_mma16_step - 1) / gb_mma16_step;
}

__device__ __forceinline__ uint32_t gb_word_of4(const uint4 &words, uint32_t i)
{
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

/* The row of a matrix that row r (0 .. 15) of a tile is. */
template <bool GateUp>
__host__ __device__ __forceinline__ uint32_t gb_mma16_row(uint32_t rows, uint32_t tile, uint32_t r)
{
    return GateUp ? (r < 8 ? 0 : rows / 2) + tile * 8 + r % 8 : tile * 16 + r;
}

constexpr uint32_t gb_mma16_producers = 4; /* warps */

/*
 * A layout has a type that fetches the slices of a group, one after the other: made by every producer warp at the
 * group's start, with what does not change from slice to slice worked out. `arrivals`: how often a full stage is
 * arrived at for weights and activations together.
 */

/*
 * Records: [experts][tiles][steps], each the codes [2][32 lanes] of 16 bytes and the scales [32 lanes] of 4 bytes of 16
 * rows x 128 columns, so that a slice of a tile is one piece of memory. The first producer copies them all.
 */
struct gb_mma16_records {
    static constexpr uint32_t arrivals = 32 * gb_mma16_producers + 1;

    template <bool GateUp> struct fetch {
        const uint8_t *from;
        uint32_t lane, tiles;
        bool mine;

        __device__ __forceinline__ fetch(const gb_mma16_job &job, uint32_t expert, uint32_t tile, uint32_t tiles_,
                                         uint32_t producer)
            : lane(threadIdx.x % 32), tiles(tiles_), mine(producer == 0)
        {
            const size_t record = ((size_t)expert * job.tiles + tile + lane) * gb_mma16_steps(job.columns);
            from = job.codes + record * gb_mma16_record;
        }
        __device__ __forceinline__ void slice(uint32_t step, uint32_t steps, uint8_t *stage, uint64_t *full) const
        {
            if (!mine)
                return;
            if (lane == 0)
                gb_barrier_expect(full, tiles * steps * gb_mma16_record);
            __syncwarp();
            if (lane < tiles)
                gb_copy_bulk(stage + lane * gb_mma16_tile_bytes, from + step * gb_mma16_record, steps * gb_mma16_record,
                             full);
        }
    };

    static __device__ __forceinline__ const uint8_t *codes(const uint8_t *tile, uint32_t step)
    {
        return tile + step * gb_mma16_record;
    }
    /* Of the lane's row among the first 8 in the low half, of that among the last in the high half. */
    static __device__ __forceinline__ uint32_t scales(const uint8_t *tile, uint32_t step, uint32_t lane)
    {
        return *(const uint32_t *)(tile + step * gb_mma16_record + gb_mma16_step_codes + 4 * lane);
    }
    static __device__ __forceinline__ void word(uint32_t codes, uint32_t (&pair)[4])
    {
        gb_mma16_repacked_word(codes, pair);
    }
    /* Activations of eight columns in the pairs of the word. */
    static __device__ __forceinline__ uint4 activations(const uint4 &x)
    {
        return x;
    }
};

/*
 * The canonical layout: a row's codes are copied in pieces of Piece bytes, 16 or, where rows are no multiple of that,
 * 8; scales in pieces of ScalePiece, 16, 4 or 1. Every producer has every fourth tile.
 */
template <uint32_t Piece, uint32_t ScalePiece> struct gb_mma16_rows {
    static constexpr uint32_t arrivals = 32 * gb_mma16_producers * (ScalePiece == 1 ? 2 : 1);
    static constexpr uint32_t scale_row = 8 * gb_mma16_slice; /* bytes of a row's slice */
    static constexpr uint32_t of_row = 64 * gb_mma16_slice / Piece, of_scales = scale_row / ScalePiece; /* pieces */
    static constexpr uint32_t tiles_each = (gb_mma16_group_tiles + gb_mma16_producers - 1) / gb_mma16_producers;
    static_assert(of_row % 16 == 0 && of_row <= 32, "a warp copies one or two rows at a time");

    template <bool GateUp> struct fetch {
        const uint8_t *codes[tiles_each][2],
            *scales[tiles_each][2]; /* [tile][first or last 8 rows], a lane's first piece */
        uint32_t lane, tiles, producer, code_bytes, scale_bytes;

        __device__ __forceinline__ fetch(const gb_mma16_job &job, uint32_t expert, uint32_t tile, uint32_t tiles_,
                                         uint32_t producer_)
            : lane(threadIdx.x % 32), tiles(tiles_), producer(producer_), code_bytes(job.columns / 2),
              scale_bytes(job.columns / 16)
        {
#pragma unroll
            for (uint32_t i = 0; i < tiles_each; i++)
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    const size_t row =
                        (size_t)expert * job.rows +
                        gb_mma16_row<GateUp>(job.rows, tile + producer + i * gb_mma16_producers, 8 * half);
                    codes[i][half] = job.codes + (row + lane / of_row) * code_bytes + lane % of_row * Piece;
                    scales[i][half] =
                        job.scales + (row + lane / of_scales) * scale_bytes + lane % of_scales * ScalePiece;
                }
        }
        /* How much of a piece at `byte` of a row of `bytes` exists. */
        static __device__ __forceinline__ uint32_t part(uint32_t byte, uint32_t bytes, uint32_t piece)
        {
            return byte < bytes ? min(bytes - byte, piece) : 0;
        }
        __device__ __forceinline__ void slice(uint32_t step, uint32_t, uint8_t *stage, uint64_t *full) const
        {
            const uint32_t first = step * 64, first_scale = step * 8; /* bytes into a row */
            const uint32_t byte = lane % of_row * Piece, scale_byte = lane % of_scales * ScalePiece;
            const uint32_t exist = part(first + byte, code_bytes, Piece);
            const uint32_t scales_exist = part(first_scale + scale_byte, scale_bytes, ScalePiece);
            constexpr uint32_t rows = 32 / of_row, scale_rows = 32 / of_scales > 8 ? 8 : 32 / of_scales;
#pragma unroll
            for (uint32_t i = 0; i < tiles_each; i++) {
                if (producer + i * gb_mma16_producers >= tiles)
                    break;
                uint8_t *tile = stage + (producer + i * gb_mma16_producers) * gb_mma16_tile_bytes;
                uint8_t *to = tile + byte / 64 * gb_mma16_step_codes + lane / of_row * 64 + byte % 64;
                uint8_t *scale =
                    tile + gb_mma16_slice * gb_mma16_step_codes + lane / of_scales * scale_row + scale_byte;
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    const uint8_t *from = codes[i][half] + (exist ? first : 0);
#pragma unroll
                    for (uint32_t r = 0; r < 8; r += rows)
                        gb_copy<Piece>(to + half * 512 + r * 64, from + r * code_bytes, exist);
                    from = scales[i][half] + (scales_exist ? first_scale : 0);
                    if (lane / of_scales >= 8)
                        continue;
#pragma unroll
                    for (uint32_t r = 0; r < 8; r += scale_rows)
                        if constexpr (ScalePiece == 1)
                            scale[(half * 8 + r) * scale_row] = scales_exist ? __ldg(from + r * scale_bytes) : 0;
                        else
                            gb_copy<ScalePiece>(scale + (half * 8 + r) * scale_row, from + r * scale_bytes,
                                                scales_exist);
                }
            }
            if (ScalePiece == 1)
                gb_barrier_arrive(full);
        }
    };

    static __device__ __forceinline__ const uint8_t *codes(const uint8_t *tile, uint32_t step)
    {
        return tile + step * gb_mma16_step_codes;
    }
    static __device__ __forceinline__ uint32_t scales(const uint8_t *tile, uint32_t step, uint32_t lane)
    {
        const uint8_t *row =
            tile + gb_mma16_slice * gb_mma16_step_codes + lane / 4 * scale_row + step * 8 + lane % 4 * 2;
        return *(const uint16_t *)row | (uint32_t) * (const uint16_t *)(row + 8 * scale_row) << 16;
    }
    static __device__ __forceinline__ void word(uint32_t codes, uint32_t (&pair)[4])
    {
        gb_mma16_plain_word(codes, pair);
    }
    static __device__ __forceinline__ uint4 activations(const uint4 &x)
    {
        return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x5410),
                          __byte_perm(x.z, x.w, 0x7632));
    }
};

/* A slice of a group's activations: producer p has the tokens p - 1, so that the first one is the last to have any, and
 * p + 3. A lane has 8 columns of steps 0 and 2 of the slice, or of 1 and 3. */
struct gb_mma16_fetch_x {
    const uint16_t *from[2];
    uint32_t column, columns, to;
    bool exists[2];

    __device__ __forceinline__ void start(const gb_mma16_job &job, const uint16_t *order, uint32_t window,
                                          uint32_t tokens, uint32_t producer)
    {
        column = threadIdx.x % 32 * 8;
        columns = job.columns;
        const uint32_t lane = threadIdx.x % 32, t = (producer + gb_mma16_producers - 1) % gb_mma16_producers;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            exists[i] = t + 4 * i < tokens;
            const uint32_t pair = window + order[exists[i] ? t + 4 * i : 0];
            from[i] = job.x + (size_t)(pair / job.share) * columns + column;
        }
        to = lane / 16 * 2048 + lane % 4 * 512 + (4 * t + lane % 16 / 4) * 16;
    }
    __device__ __forceinline__ void slice(uint32_t step, uint32_t steps, uint8_t *x) const
    {
        const uint32_t first = step * gb_mma16_step;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            if (exists[i])
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    const bool inside = first + column + 256 * c < columns;
                    if (2 * c < steps)
                        gb_copy<16>(x + to + c * 4096 + i * 256, from[i] + (inside ? first + 256 * c : 0),
                                    inside ? 16 : 0);
                }
    }
};
static_assert(gb_mma16_producers == 4 && gb_mma16_slice == 4, "as gb_mma16_fetch_x has it");

/* A step of Tiles tiles side by side, eight instructions each: they share the activations. */
template <class Layout, uint32_t Tiles>
__device__ __forceinline__ void gb_mma16_multiply(const uint8_t *tile, const uint8_t *x, uint32_t step,
                                                  float (&chain)[gb_mma16_tiles_each][4])
{
    const uint32_t lane = threadIdx.x % 32;
    uint4 low[Tiles], high[Tiles];
    uint32_t scale[Tiles][2][2]; /* [block][first or last 8 rows] */
#pragma unroll
    for (uint32_t i = 0; i < Tiles; i++) {
        const uint8_t *codes = Layout::codes(tile + i * gb_mma16_tile_bytes, step);
        low[i] = *(const uint4 *)(codes + 16 * lane);
        high[i] = *(const uint4 *)(codes + 512 + 16 * lane);
        const uint32_t scales = Layout::scales(tile + i * gb_mma16_tile_bytes, step, lane);
        gb_mma16_scales(scales & 0xFFFFu, &scale[i][0][0], &scale[i][1][0]);
        gb_mma16_scales(scales >> 16, &scale[i][0][1], &scale[i][1][1]);
    }
#pragma unroll
    for (uint32_t d = 0; d < 4; d++) {
        const uint4 b = Layout::activations(*(const uint4 *)(x + step * 2048 + d * 512 + 16 * lane));
        uint32_t a[Tiles][4], c[Tiles][4];
#pragma unroll
        for (uint32_t i = 0; i < Tiles; i++) {
            Layout::word(gb_word_of4(low[i], d), a[i]);
            Layout::word(gb_word_of4(high[i], d), c[i]);
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                a[i][k] = gb_mul_bf16x2(a[i][k], scale[i][d / 2][0]);
                c[i][k] = gb_mul_bf16x2(c[i][k], scale[i][d / 2][1]);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < Tiles; i++)
            gb_mma16(chain[i], a[i][0], c[i][0], a[i][1], c[i][1], b.x, b.y);
#pragma unroll
        for (uint32_t i = 0; i < Tiles; i++)
            gb_mma16(chain[i], a[i][2], c[i][2], a[i][3], c[i][3], b.z, b.w);
    }
}

/* A dot product from its chains, which lie `stride` floats apart: steps 4 and 5. */
__device__ __forceinline__ float gb_mma16_dot(const float *chains, uint32_t stride, float global)
{
    const float sum =
        __fadd_rn(__fadd_rn(chains[0], chains[stride]), __fadd_rn(chains[2 * stride], chains[3 * stride]));
    return __fmul_rn(__fmul_rn(sum, gb_mma16_nvfp4_factor), global);
}

constexpr uint32_t gb_mma16_threads = 32 * (gb_mma16_consumers + gb_mma16_producers + gb_mma16_finishers);

/* The block's barriers by which consumers hand sums to finishers, and finishers their place back. */
constexpr uint32_t gb_mma16_summed = 1, gb_mma16_taken = 2;
constexpr uint32_t gb_mma16_handing_over = 32 * (gb_mma16_consumers + gb_mma16_finishers); /* threads */

/* Shared memory beside the ring's stages. */
struct gb_mma16_shared {
    gb_mma16_items items;
    float4 sums[gb_mma16_group_tiles][gb_mma16_chains][32]; /* of a group */
    uint64_t full[8], empty[8];
};

/* The global scales of an expert, gate's and up's or both down's. */
struct gb_mma16_globals {
    uint32_t expert;
    float scale[2];
};

/*
 * What is left of a group, by the finisher warps, while the consumers go on: outputs (tile, token, row) of the tile,
 * rows side by side.
 */
template <bool GateUp>
__device__ __forceinline__ void gb_mma16_finish(const gb_mma16_job &job, gb_mma16_shared *shared, uint32_t finisher,
                                                uint32_t window, uint32_t item, uint32_t tile, uint32_t tiles,
                                                gb_mma16_globals *of)
{
    const uint32_t lane = threadIdx.x % 32, count = tiles * shared->items.pairs[item] * 8;
    const uint32_t expert = shared->items.expert[item], first = shared->items.first[item];
    const uint32_t tokens = shared->items.pairs[item];
    if (expert != of->expert) {
        of->expert = expert;
        of->scale[0] = job.global_scales[GateUp ? 2 * expert : expert];
        of->scale[1] = job.global_scales[GateUp ? 2 * expert + 1 : expert];
    }
    gb_block_barrier_wait(gb_mma16_summed, gb_mma16_handing_over);
    const float *sums = (const float *)shared->sums; /* [tile][chain][lane][4] */
    for (uint32_t base = finisher * 32; base < count || base == finisher * 32; base += 32 * gb_mma16_finishers) {
        const uint32_t i = base + lane, row = i % 8, t = i / 8 % tokens, mine = i / 8 / tokens;
        const float *at = sums + (mine * gb_mma16_chains * 32 + row * 4 + t / 2) * 4 + t % 2;
        float low = 0.0f, high = 0.0f;
        if (i < count) {
            low = gb_mma16_dot(at, 128, of->scale[0]);
            high = gb_mma16_dot(at + 2, 128, of->scale[1]);
        }
        __syncwarp();
        if (base + 32 * gb_mma16_finishers >= count)
            gb_block_barrier_arrive(gb_mma16_taken, gb_mma16_handing_over);
        if (i >= count)
            continue;
        const size_t pair = window + shared->items.order[first + t];
        if (GateUp) {
            job.intermediate[pair * job.tiles * 8 + (tile + mine) * 8 + row] =
                gb_bf16_round(__fmul_rn(gb_cuda_silu(low), high));
        } else {
            float *to = job.dots + pair * job.tiles * 16 + (tile + mine) * 16 + row;
            to[0] = low;
            to[8] = high;
        }
    }
}

/*
 * Blocks' ranges start at multiples of so many tiles. At a whole group no item's end cuts a group in two, for the price
 * of ranges that differ by a group; at one tile they are equal. `all` tiles, `tiles` of them an item.
 */
__device__ __forceinline__ uint32_t gb_mma16_unit(uint32_t all, uint32_t tiles)
{
    const uint32_t each = all / gridDim.x, groups = all / gb_mma16_group_tiles;
    const uint32_t most = (groups + gridDim.x - 1) / gridDim.x * gb_mma16_group_tiles;
    const bool whole = tiles % gb_mma16_group_tiles == 0 && each >= 2 * gb_mma16_group_tiles &&
                       most <= each + gb_mma16_group_tiles / 2;
    return whole ? gb_mma16_group_tiles : 1;
}

template <class Layout, bool GateUp, uint32_t Stages>
__global__ void __launch_bounds__(gb_mma16_threads, 1) gb_mma16_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    extern __shared__ uint4 dynamic[];
    uint8_t *ring = (uint8_t *)dynamic;
    gb_mma16_shared *shared = (gb_mma16_shared *)(ring + Stages * gb_mma16_stage_bytes);
    uint32_t *starts = (uint32_t *)(shared + 1);
    gb_mma16_items *items = &shared->items;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t steps = gb_mma16_steps(job.columns);
    if (threadIdx.x < Stages) {
        gb_barrier_start(&shared->full[threadIdx.x], Layout::arrivals);
        gb_barrier_start(&shared->empty[threadIdx.x], gb_mma16_consumers);
        gb_barriers_started();
    }
    if (!job.ids_ready)
        gb_wait_for_previous();
    gb_let_next_start();
    uint32_t slices = 0, groups = 0; /* so far */
    bool waited = !job.ids_ready;    /* a producer, for the activations */
    gb_mma16_globals globals = {0xFFFFFFFFu, {0.0f, 0.0f}};
    for (uint32_t window = 0; window < job.pairs; window += gb_mma16_window) {
        const uint32_t pairs = min(gb_mma16_window, job.pairs - window);
        gb_mma16_group(job.ids + window, pairs, job.experts, items, starts);
        if (GateUp)
            for (uint32_t p = blockIdx.x; p < pairs; p += gridDim.x)
                if (items->ids[p] == 0xFFFFu)
                    for (uint32_t i = threadIdx.x; i < job.tiles * 8; i += blockDim.x)
                        job.intermediate[(size_t)(window + p) * job.tiles * 8 + i] = 0;
        if (window == 0 && warp >= gb_mma16_consumers + gb_mma16_producers)
            gb_wait_for_previous();
        const uint64_t all = (uint64_t)items->count * job.tiles;
        const uint32_t unit = gb_mma16_unit((uint32_t)all, job.tiles);
        uint32_t at = (uint32_t)(all / unit * blockIdx.x / gridDim.x) * unit;
        const uint32_t end = (uint32_t)(all / unit * (blockIdx.x + 1) / gridDim.x) * unit;
        uint32_t item = at / job.tiles, tile = at % job.tiles;
        for (uint32_t tiles; at < end; at += tiles, groups++) {
            tiles = min(min(gb_mma16_group_tiles, job.tiles - tile), end - at);
            const uint32_t expert = items->expert[item], first = items->first[item], tokens = items->pairs[item];
            if (warp >= gb_mma16_consumers && warp < gb_mma16_consumers + gb_mma16_producers) {
                const uint32_t producer = warp - gb_mma16_consumers;
                const typename Layout::template fetch<GateUp> weights(job, expert, tile, tiles, producer);
                gb_mma16_fetch_x activations;
                for (uint32_t step = 0; step < steps; step += gb_mma16_slice, slices++) {
                    const uint32_t slot = slices % Stages, now = min(gb_mma16_slice, steps - step);
                    uint8_t *stage = ring + slot * gb_mma16_stage_bytes;
                    if (slices >= Stages)
                        gb_barrier_wait(&shared->empty[slot], slices / Stages + 1 & 1);
                    weights.slice(step, now, stage, &shared->full[slot]);
                    if (step == 0)
                        activations.start(job, items->order + first, window, tokens, producer);
                    if (!waited && activations.exists[0]) {
                        gb_wait_for_previous();
                        waited = true;
                    }
                    activations.slice(step, now, stage + gb_mma16_group_tiles * gb_mma16_tile_bytes);
                    gb_barrier_arrive_copied(&shared->full[slot]);
                }
            } else if (warp < gb_mma16_consumers) {
                const uint32_t mine = warp / gb_mma16_chains * gb_mma16_tiles_each, chain = warp % gb_mma16_chains;
                float sums[gb_mma16_tiles_each][4] = {};
                for (uint32_t step = 0; step < steps; step += gb_mma16_slice, slices++) {
                    const uint32_t slot = slices % Stages;
                    const uint8_t *stage = ring + slot * gb_mma16_stage_bytes;
                    const uint8_t *weights = stage + mine * gb_mma16_tile_bytes;
                    const uint8_t *x = stage + gb_mma16_group_tiles * gb_mma16_tile_bytes;
                    gb_barrier_wait(&shared->full[slot], slices / Stages & 1);
                    if (step + chain < steps) {
                        if (gb_mma16_tiles_each == 2 && mine + 1 < tiles)
                            gb_mma16_multiply<Layout, gb_mma16_tiles_each>(weights, x, chain, sums);
                        else if (mine < tiles)
                            gb_mma16_multiply<Layout, 1>(weights, x, chain, sums);
                    }
                    __syncwarp();
                    if (lane == 0)
                        gb_barrier_arrive(&shared->empty[slot]);
                }
                if (groups)
                    gb_block_barrier_wait(gb_mma16_taken, gb_mma16_handing_over);
#pragma unroll
                for (uint32_t i = 0; i < gb_mma16_tiles_each; i++)
                    shared->sums[mine + i][chain][lane] = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
                gb_block_barrier_arrive(gb_mma16_summed, gb_mma16_handing_over);
            } else {
                gb_mma16_finish<GateUp>(job, shared, warp - gb_mma16_consumers - gb_mma16_producers, window, item, tile,
                                        tiles, &globals);
            }
            tile += tiles;
            if (tile == job.tiles) {
                tile = 0;
                item++;
            }
        }
        __syncthreads(); /* nobody reads the items any more */
    }
    if (groups && warp < gb_mma16_consumers)
        gb_block_barrier_wait(gb_mma16_taken, gb_mma16_handing_over);
}

#endif
