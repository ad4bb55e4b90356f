/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of experts' weights times the activations of their pairs, on tensor cores: the kernel behind gate_up and down of
 * mma16-sm90/1.
 *
 * The grid is persistent. All tiles of 16 rows of all items (gpu/mma16_items.cuh), one after the other as they lie in
 * memory, are cut into as many equal ranges as there are blocks. A block takes its range in groups of up to 8 tiles of one
 * item, and a group in slices of 4 steps of columns. Slices of weights and of activations pass through a ring in shared
 * memory, which producer warps fill across the ends of groups, so that loads are under way all the time; two consumer
 * warps share a tile, one has the order's first two chains and one the others. Finisher warps make outputs of their sums.
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
    const int32_t *ids;           /* [pairs] */
    const uint16_t *x;            /* bf16 [.., columns]: row pair / share */
    const uint8_t *codes;         /* canonical [experts, rows, columns / 2], or gb_mma16_repack's records */
    const uint8_t *scales;        /* canonical [experts, rows, columns / 16] */
    const float *global_scales;   /* [experts, 2 or 1] */
    uint16_t *intermediate;       /* gate_up: out [pairs, tiles * 8] */
    float *dots;                  /* down: out [pairs, tiles * 16], complete dot products */
    uint32_t pairs, share, experts, rows, columns, tiles;
};

constexpr uint32_t gb_mma16_group_tiles = 8;
constexpr uint32_t gb_mma16_slice = 4;       /* steps */
constexpr uint32_t gb_mma16_consumers = 2 * gb_mma16_group_tiles; /* warps */
constexpr uint32_t gb_mma16_finishers = 4;                        /* warps */

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

/* A slice of a group: which tiles, which steps. */
struct gb_mma16_place {
    uint32_t expert, tile, tiles, step, steps;
};

/*
 * Records: [experts][tiles][steps], each the codes [2][32 lanes] of 16 bytes and the scales [32 lanes] of 4 bytes of 16
 * rows x 128 columns, so that a slice of a tile is one piece of memory.
 */
struct gb_mma16_records {
    static constexpr uint32_t producers = 1;
    static constexpr uint32_t arrivals = 33; /* on a full stage: the bulk copies', and every lane's copies of x */

    template <bool GateUp>
    static __device__ __forceinline__ void fetch(const gb_mma16_job &job, const gb_mma16_place &at, uint32_t, uint8_t *to,
                                                 uint64_t *full)
    {
        const uint32_t lane = threadIdx.x % 32, bytes = at.steps * gb_mma16_record;
        if (lane == 0)
            gb_barrier_expect(full, at.tiles * bytes);
        __syncwarp();
        if (lane < at.tiles) {
            const size_t record =
                ((size_t)at.expert * job.tiles + at.tile + lane) * gb_mma16_steps(job.columns) + at.step;
            gb_copy_bulk(to + lane * gb_mma16_tile_bytes, job.codes + record * gb_mma16_record, bytes, full);
        }
    }

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
 * The canonical layout: a row's codes are copied in pieces of Piece bytes, 16 or, where rows are no multiple of that, 8;
 * scales in pieces of ScalePiece, 16, 4 or 1.
 */
template <uint32_t Piece, uint32_t ScalePiece> struct gb_mma16_rows {
    static constexpr uint32_t producers = 4;
    static constexpr uint32_t arrivals = 32 * producers * (ScalePiece == 1 ? 2 : 1);
    static constexpr uint32_t scale_row = 8 * gb_mma16_slice; /* bytes of a row's slice */

    template <bool GateUp>
    static __device__ __forceinline__ void fetch(const gb_mma16_job &job, const gb_mma16_place &at, uint32_t producer,
                                                 uint8_t *to, uint64_t *full)
    {
        const uint32_t lane = threadIdx.x % 32, code_bytes = job.columns / 2, scale_bytes = job.columns / 16;
        const uint32_t first = at.step * 64, first_scale = at.step * 8; /* bytes into a row */
        for (uint32_t i = producer; i < at.tiles; i += producers) {
            uint8_t *tile = to + i * gb_mma16_tile_bytes;
            for (uint32_t piece = lane; piece < 16 * (64 * gb_mma16_slice / Piece); piece += 32) {
                const uint32_t r = piece / (64 * gb_mma16_slice / Piece);
                const uint32_t byte = piece % (64 * gb_mma16_slice / Piece) * Piece, chunk = byte / 16;
                if (byte < at.steps * 64) {
                    const size_t row = (size_t)at.expert * job.rows + gb_mma16_row<GateUp>(job.rows, at.tile + i, r);
                    const bool exists = first + byte < code_bytes;
                    gb_copy<Piece>(tile + chunk / 4 * gb_mma16_step_codes + r / 8 * 512 + (r % 8 * 4 + chunk % 4) * 16 +
                                       byte % 16,
                                   job.codes + row * code_bytes + (exists ? first + byte : 0), exists ? Piece : 0);
                }
            }
            for (uint32_t piece = lane; piece < 16 * (scale_row / ScalePiece); piece += 32) {
                const uint32_t r = piece / (scale_row / ScalePiece), byte = piece % (scale_row / ScalePiece) * ScalePiece;
                if (byte < at.steps * 8) {
                    const size_t row = (size_t)at.expert * job.rows + gb_mma16_row<GateUp>(job.rows, at.tile + i, r);
                    const bool exists = first_scale + byte < scale_bytes;
                    const uint8_t *from = job.scales + row * scale_bytes + (exists ? first_scale + byte : 0);
                    uint8_t *scale = tile + gb_mma16_slice * gb_mma16_step_codes + r * scale_row + byte;
                    if constexpr (ScalePiece == 1)
                        *scale = exists ? __ldg(from) : 0;
                    else
                        gb_copy<ScalePiece>(scale, from, exists ? min(ScalePiece, scale_bytes - first_scale - byte) : 0);
                }
            }
        }
        if (ScalePiece == 1)
            gb_barrier_arrive(full);
    }

    static __device__ __forceinline__ const uint8_t *codes(const uint8_t *tile, uint32_t step)
    {
        return tile + step * gb_mma16_step_codes;
    }
    static __device__ __forceinline__ uint32_t scales(const uint8_t *tile, uint32_t step, uint32_t lane)
    {
        const uint8_t *row = tile + gb_mma16_slice * gb_mma16_step_codes + lane / 4 * scale_row + step * 8 + lane % 4 * 2;
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

/* Steps first .. first + Steps - 1 of a tile, eight instructions each, side by side: they belong to different chains. */
template <class Layout, uint32_t Steps>
__device__ __forceinline__ void gb_mma16_multiply(const uint8_t *tile, const uint8_t *x, uint32_t first,
                                                  float (&chain)[2][4])
{
    const uint32_t lane = threadIdx.x % 32;
    uint4 low[Steps], high[Steps];
    uint32_t scale[Steps][2][2]; /* [block][first or last 8 rows] */
#pragma unroll
    for (uint32_t s = 0; s < Steps; s++) {
        const uint8_t *codes = Layout::codes(tile, first + s);
        low[s] = *(const uint4 *)(codes + 16 * lane);
        high[s] = *(const uint4 *)(codes + 512 + 16 * lane);
        const uint32_t scales = Layout::scales(tile, first + s, lane);
        gb_mma16_scales(scales & 0xFFFFu, &scale[s][0][0], &scale[s][1][0]);
        gb_mma16_scales(scales >> 16, &scale[s][0][1], &scale[s][1][1]);
    }
#pragma unroll
    for (uint32_t d = 0; d < 4; d++)
#pragma unroll
        for (uint32_t s = 0; s < Steps; s++) {
            const uint4 b = Layout::activations(*(const uint4 *)(x + (first + s) * 2048 + d * 512 + 16 * lane));
            uint32_t a[4], c[4];
            Layout::word(gb_word_of4(low[s], d), a);
            Layout::word(gb_word_of4(high[s], d), c);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                a[i] = gb_mul_bf16x2(a[i], scale[s][d / 2][0]);
                c[i] = gb_mul_bf16x2(c[i], scale[s][d / 2][1]);
            }
            gb_mma16(chain[s], a[0], c[0], a[1], c[1], b.x, b.y);
            gb_mma16(chain[s], a[2], c[2], a[3], c[3], b.z, b.w);
        }
}

/* A dot product from the sums of the first two chains and the others: steps 4 and 5. */
__device__ __forceinline__ float gb_mma16_dot(float first, float second, float global)
{
    return __fmul_rn(__fmul_rn(__fadd_rn(first, second), gb_mma16_nvfp4_factor), global);
}

template <class Layout> constexpr uint32_t gb_mma16_threads = 32 * (gb_mma16_consumers + Layout::producers + gb_mma16_finishers);

/* Shared memory beside the ring's stages. */
struct gb_mma16_shared {
    gb_mma16_items items;
    float4 sums[2][gb_mma16_consumers][32]; /* of a group's warps, by its parity */
    uint64_t full[8], empty[8], summed[2], taken[2];
};

/*
 * What is left of a group, by the finisher warps, while the consumers go on: outputs (tile, token, row) of the tile, rows
 * side by side.
 */
template <bool GateUp>
__device__ __forceinline__ void gb_mma16_finish(const gb_mma16_job &job, gb_mma16_shared *shared, uint32_t group,
                                                uint32_t finisher, uint32_t window, uint32_t item, uint32_t tile,
                                                uint32_t tiles)
{
    const uint32_t lane = threadIdx.x % 32, box = group % 2;
    const uint32_t expert = shared->items.expert[item], first = shared->items.first[item];
    const uint32_t tokens = shared->items.pairs[item];
    const float globals[2] = {job.global_scales[GateUp ? 2 * expert : expert],
                              job.global_scales[GateUp ? 2 * expert + 1 : expert]};
    gb_barrier_wait(&shared->summed[box], group / 2 & 1);
    const float *sums = (const float *)shared->sums[box]; /* [warp][lane][4] */
    for (uint32_t i = finisher * 32 + lane; i < tiles * tokens * 8; i += 32 * gb_mma16_finishers) {
        const uint32_t row = i % 8, t = i / 8 % tokens, mine = i / 8 / tokens;
        const float *at = sums + (2 * mine * 32 + row * 4 + t / 2) * 4 + t % 2;
        const float low = gb_mma16_dot(at[0], at[128], globals[0]), high = gb_mma16_dot(at[2], at[130], globals[1]);
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
    __syncwarp();
    if (lane == 0)
        gb_barrier_arrive(&shared->taken[box]);
}

template <class Layout, bool GateUp, uint32_t Stages>
__global__ void __launch_bounds__(gb_mma16_threads<Layout>, 1)
    gb_mma16_kernel(const __grid_constant__ struct gb_mma16_job job)
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
        if (threadIdx.x < 2) {
            gb_barrier_start(&shared->summed[threadIdx.x], gb_mma16_consumers);
            gb_barrier_start(&shared->taken[threadIdx.x], gb_mma16_finishers);
        }
        gb_barriers_started();
    }
    uint32_t slices = 0, groups = 0; /* so far */
    for (uint32_t window = 0; window < job.pairs; window += gb_mma16_window) {
        const uint32_t pairs = min(gb_mma16_window, job.pairs - window);
        gb_mma16_group(job.ids, window, pairs, job.experts, items, starts);
        if (GateUp)
            for (uint32_t p = blockIdx.x; p < pairs; p += gridDim.x)
                if ((uint32_t)job.ids[window + p] >= job.experts)
                    for (uint32_t i = threadIdx.x; i < job.tiles * 8; i += blockDim.x)
                        job.intermediate[(size_t)(window + p) * job.tiles * 8 + i] = 0;
        const uint64_t all = (uint64_t)items->count * job.tiles;
        uint32_t at = (uint32_t)(all * blockIdx.x / gridDim.x);
        const uint32_t end = (uint32_t)(all * (blockIdx.x + 1) / gridDim.x);
        uint32_t item = at / job.tiles, tile = at % job.tiles;
        for (uint32_t tiles; at < end; at += tiles, groups++) {
            tiles = min(min(gb_mma16_group_tiles, job.tiles - tile), end - at);
            const uint32_t expert = items->expert[item], first = items->first[item], tokens = items->pairs[item];
            if (warp >= gb_mma16_consumers && warp < gb_mma16_consumers + Layout::producers) {
                const uint32_t producer = warp - gb_mma16_consumers;
                const uint32_t pair = window + items->order[first + min(lane, tokens - 1)];
                const uint64_t row = (uint64_t)(job.x + (size_t)(pair / job.share) * job.columns);
                for (uint32_t step = 0; step < steps; step += gb_mma16_slice, slices++) {
                    const gb_mma16_place place = {expert, tile, tiles, step, min(gb_mma16_slice, steps - step)};
                    const uint32_t slot = slices % Stages;
                    uint8_t *stage = ring + slot * gb_mma16_stage_bytes;
                    uint8_t *x = stage + gb_mma16_group_tiles * gb_mma16_tile_bytes;
                    if (slices >= Stages)
                        gb_barrier_wait(&shared->empty[slot], slices / Stages + 1 & 1);
                    Layout::template fetch<GateUp>(job, place, producer, stage, &shared->full[slot]);
                    for (uint32_t t = producer; t < tokens; t += Layout::producers) {
                        const uint16_t *from = (const uint16_t *)__shfl_sync(0xFFFFFFFFu, row, t);
                        for (uint32_t c = lane; c < 16 * place.steps; c += 32) {
                            const uint32_t column = step * gb_mma16_step + 8 * c;
                            const bool exists = column < job.columns;
                            gb_copy<16>(x + (c / 16 * 4 + c % 4) * 512 + (4 * t + c % 16 / 4) * 16,
                                        from + (exists ? column : 0), exists ? 16 : 0);
                        }
                    }
                    gb_barrier_arrive_copied(&shared->full[slot]);
                }
            } else if (warp < gb_mma16_consumers) {
                const uint32_t mine = warp / 2, half = warp % 2;
                float chain[2][4] = {};
                for (uint32_t step = 0; step < steps; step += gb_mma16_slice, slices++) {
                    const uint32_t slot = slices % Stages;
                    const uint8_t *stage = ring + slot * gb_mma16_stage_bytes;
                    gb_barrier_wait(&shared->full[slot], slices / Stages & 1);
                    const uint8_t *weights = stage + mine * gb_mma16_tile_bytes;
                    const uint8_t *x = stage + gb_mma16_group_tiles * gb_mma16_tile_bytes;
                    if (mine < tiles && step + 2 * half + 1 < steps)
                        gb_mma16_multiply<Layout, 2>(weights, x, 2 * half, chain);
                    else if (mine < tiles && step + 2 * half < steps)
                        gb_mma16_multiply<Layout, 1>(weights, x, 2 * half, chain);
                    __syncwarp();
                    if (lane == 0)
                        gb_barrier_arrive(&shared->empty[slot]);
                }
                const uint32_t box = groups % 2;
                if (groups >= 2)
                    gb_barrier_wait(&shared->taken[box], groups / 2 + 1 & 1);
                float sum[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    sum[i] = __fadd_rn(chain[0][i], chain[1][i]);
                shared->sums[box][warp][lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
                __syncwarp();
                if (lane == 0)
                    gb_barrier_arrive(&shared->summed[box]);
            } else {
                gb_mma16_finish<GateUp>(job, shared, groups, warp - gb_mma16_consumers - Layout::producers, window, item,
                                        tile, tiles);
            }
            tile += tiles;
            if (tile == job.tiles) {
                tile = 0;
                item++;
            }
        }
        __syncthreads(); /* nobody reads the items any more */
    }
}

#endif
