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
    const uint8_t *codes;       /* canonical [experts, rows, bytes of columns], or records */
    const uint8_t *scales;      /* canonical [experts, rows, columns / block] */
    const float *global_scales; /* [experts, 2 or 1]; NULL: the format has none */
    uint16_t *intermediate;     /* gate_up: out [pairs, tiles * 8] */
    float *dots;                /* down: out [pairs, tiles * 16], complete dot products */
    uint32_t pairs, share, experts, rows, columns, tiles;
    bool ids_ready; /* the kernel before this one on the stream does not write the ids */
};

constexpr uint32_t gb_mma16_group_tiles = 8;
constexpr uint32_t gb_mma16_slice = 4;      /* steps */
constexpr uint32_t gb_mma16_tiles_each = 2; /* of a consumer warp, one chain of each */
constexpr uint32_t gb_mma16_consumers = gb_mma16_chains * gb_mma16_group_tiles / gb_mma16_tiles_each; /* warps */
static_assert(gb_mma16_tiles_each <= 2, "of the last group a consumer has all of its tiles, or one, or none");
constexpr uint32_t gb_mma16_finishers = 4; /* warps */

/* A step of a tile: codes [gate or up, first or last 8 rows][lane] of 16 bytes, and scales. */
constexpr uint32_t gb_mma16_step_codes = gb_mma16_tile * gb_mma16_step_bytes;

/* Sizes of a format's pieces in shared memory, bytes. x: [step][16 bytes of a chunk's activations][lane]. */
template <class Format> struct gb_mma16_sizes {
    static constexpr uint32_t record = gb_mma16_step_codes + gb_mma16_tile * Format::scales;
    static constexpr uint32_t tile = gb_mma16_slice * record;
    static constexpr uint32_t words = Format::step / 32; /* of 8 activations, that a chunk has */
    static constexpr uint32_t x_step = words * 512;
    static constexpr uint32_t x = gb_mma16_group_tiles * tile; /* where they lie in a stage */
    static constexpr uint32_t stage = x + gb_mma16_slice * x_step;
};

template <class Format> __host__ __device__ constexpr uint32_t gb_mma16_steps(uint32_t columns)
{
    return (columns + Format::step - 1) / Format::step;
}

/* Bytes of a row's codes. */
template <class Format> __host__ __device__ constexpr uint32_t gb_mma16_code_bytes(uint32_t columns)
{
    return columns / (Format::step / gb_mma16_step_bytes);
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

/*
 * A layout has a type that fetches the slices of a group, one after the other: a producer warp tells it of another
 * expert and of another group, and what does not change from slice to slice is worked out then. `arrivals`: how often a
 * full stage is arrived at for weights and activations together.
 */

/*
 * Records: [experts][tiles][steps], each the codes [2][32 lanes] of 16 bytes and the scales [8][scales of a step][2] of
 * 16 rows, [2] for the first and the last 8 of them, so that a slice of a tile is one piece of memory. A lane of the
 * first producer copies it. The scale of MXFP8 codes with a NaN among them is NaN.
 */
template <class Format> struct gb_mma16_records {
    using format = Format;
    using sizes = gb_mma16_sizes<Format>;
    static constexpr uint32_t producers = 3; /* warps */
    static constexpr uint32_t arrivals = 32 * producers + 1;
    static constexpr bool marks_nan = true;

    template <bool GateUp> struct fetch {
        const gb_mma16_job &job;
        const uint8_t *of_expert, *from;
        uint32_t lane, tiles;
        bool mine;

        __device__ __forceinline__ fetch(const gb_mma16_job &job_, uint32_t producer)
            : job(job_), lane(threadIdx.x % 32), mine(producer == 0)
        {
        }
        __device__ __forceinline__ void expert(uint32_t expert)
        {
            const size_t records = (size_t)job.tiles * gb_mma16_steps<Format>(job.columns);
            of_expert = job.codes + expert * records * sizes::record;
        }
        __device__ __forceinline__ void group(uint32_t tile, uint32_t tiles_)
        {
            from = of_expert + (size_t)(tile + lane) * gb_mma16_steps<Format>(job.columns) * sizes::record;
            tiles = tiles_;
        }
        __device__ __forceinline__ void slice(uint32_t step, uint32_t steps, uint8_t *stage, uint64_t *full) const
        {
            if (!mine)
                return;
            if (lane == 0)
                gb_barrier_expect(full, tiles * steps * sizes::record);
            __syncwarp();
            if (lane < tiles)
                gb_copy_bulk(stage + lane * sizes::tile, from + step * sizes::record, steps * sizes::record, full);
        }
    };

    /* Where in a tile a lane finds the codes and the scales of a step, bytes. */
    static __device__ __forceinline__ uint32_t codes_at(uint32_t step, uint32_t lane)
    {
        return step * sizes::record + 16 * lane;
    }
    static __device__ __forceinline__ uint32_t scales_at(uint32_t step, uint32_t lane)
    {
        return step * sizes::record + gb_mma16_step_codes + lane * Format::scales / 4 * 2;
    }
    /* The scales there of the lane's row and of the row 8 further down, in turns. */
    static __device__ __forceinline__ uint32_t scales(const uint8_t *at)
    {
        return Format::in_chunk == 2 ? *(const uint32_t *)at : *(const uint16_t *)at;
    }
    static __device__ __forceinline__ void word(uint32_t codes, uint32_t (&pair)[4])
    {
        gb_mma16_repacked_word(codes, pair);
    }
    /* Activations of eight columns in the pairs of a word of E2M1 codes. */
    static __device__ __forceinline__ uint4 activations(const uint4 &x)
    {
        return x;
    }
};

/*
 * The canonical layout: a row's codes are copied in pieces of Piece bytes, 16 or, where rows are no multiple of that,
 * 8; scales in pieces of ScalePiece, 16, 4 or 1. Every producer has every eighth tile.
 */
template <class Format, uint32_t Piece, uint32_t ScalePiece> struct gb_mma16_rows {
    using format = Format;
    using sizes = gb_mma16_sizes<Format>;
    static constexpr uint32_t producers = 8; /* warps */
    static constexpr uint32_t arrivals = 32 * producers * (ScalePiece == 1 ? 2 : 1);
    static constexpr bool marks_nan = false;
    static constexpr uint32_t scale_row = Format::scales * gb_mma16_slice;           /* bytes of a row's slice */
    static constexpr uint32_t of_row = gb_mma16_step_bytes * gb_mma16_slice / Piece; /* pieces */
    static constexpr uint32_t of_scales = scale_row / ScalePiece;
    static constexpr uint32_t tiles_each = (gb_mma16_group_tiles + producers - 1) / producers;
    static_assert(of_row % 16 == 0 && of_row <= 32, "a warp copies one or two rows at a time");

    template <bool GateUp> struct fetch {
        const gb_mma16_job &job;
        const uint8_t *codes[tiles_each][2],
            *scales[tiles_each][2]; /* [tile][first or last 8 rows], a lane's first piece */
        uint32_t lane, of_expert, tiles, producer, code_bytes, scale_bytes;

        __device__ __forceinline__ fetch(const gb_mma16_job &job_, uint32_t producer_)
            : job(job_), lane(threadIdx.x % 32), producer(producer_),
              code_bytes(gb_mma16_code_bytes<Format>(job.columns)), scale_bytes(job.columns / Format::block)
        {
        }
        __device__ __forceinline__ void expert(uint32_t expert)
        {
            of_expert = expert;
        }
        __device__ __forceinline__ void group(uint32_t tile, uint32_t tiles_)
        {
            tiles = tiles_;
#pragma unroll
            for (uint32_t i = 0; i < tiles_each; i++)
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    const size_t row = (size_t)of_expert * job.rows +
                                       gb_mma16_row<GateUp>(job.rows, tile + producer + i * producers, 8 * half);
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
            const uint32_t first = step * gb_mma16_step_bytes, first_scale = step * Format::scales; /* into a row */
            const uint32_t byte = lane % of_row * Piece, scale_byte = lane % of_scales * ScalePiece;
            const uint32_t exist = part(first + byte, code_bytes, Piece);
            const uint32_t scales_exist = part(first_scale + scale_byte, scale_bytes, ScalePiece);
            constexpr uint32_t rows = 32 / of_row, scale_rows = 32 / of_scales > 8 ? 8 : 32 / of_scales;
#pragma unroll
            for (uint32_t i = 0; i < tiles_each; i++) {
                if (producer + i * producers >= tiles)
                    break;
                uint8_t *tile = stage + (producer + i * producers) * sizes::tile;
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

    static __device__ __forceinline__ uint32_t codes_at(uint32_t step, uint32_t lane)
    {
        return step * gb_mma16_step_codes + 16 * lane;
    }
    static __device__ __forceinline__ uint32_t scales_at(uint32_t step, uint32_t lane)
    {
        return gb_mma16_slice * gb_mma16_step_codes + lane / 4 * scale_row + step * Format::scales +
               lane % 4 * Format::scales / 4;
    }
    static __device__ __forceinline__ uint32_t scales(const uint8_t *at)
    {
        const uint8_t *last = at + 8 * scale_row;
        if (Format::in_chunk == 2)
            return __byte_perm(*(const uint16_t *)at, *(const uint16_t *)last, 0x5140);
        return at[0] | (uint32_t)last[0] << 8;
    }
    static __device__ __forceinline__ void word(uint32_t codes, uint32_t (&pair)[4])
    {
        gb_mma16_plain_word(codes, pair);
    }
    static __device__ __forceinline__ uint4 activations(const uint4 &x)
    {
        if (Format::step == gb_mma16_step_bytes)
            return x;
        return make_uint4(__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x5410),
                          __byte_perm(x.z, x.w, 0x7632));
    }
};

/* A slice of a group's activations: producer p has the token p - 1, so that the first one is the last to have any, and
 * every Producers-th from there on. A lane has 8 columns of every 256 of the slice. */
template <class Format, uint32_t Producers> struct gb_mma16_fetch_x {
    static constexpr uint32_t tokens = (gb_mma16_tokens + Producers - 1) / Producers; /* at most */
    static constexpr uint32_t words = gb_mma16_sizes<Format>::words, steps_each = 256 / Format::step;

    const uint16_t *from[tokens];
    uint32_t column, columns, to;
    bool exists[tokens];

    __device__ __forceinline__ void start(const gb_mma16_job &job, const gb_mma16_items &items, uint32_t item,
                                          uint32_t window, uint32_t producer)
    {
        column = threadIdx.x % 32 * 8;
        columns = job.columns;
        const uint32_t lane = threadIdx.x % 32, t = (producer + Producers - 1) % Producers;
#pragma unroll
        for (uint32_t i = 0; i < tokens; i++) {
            exists[i] = t + Producers * i < items.pairs[item];
            const uint32_t pair = window + items.order[items.first[item] + (exists[i] ? t + Producers * i : 0)];
            from[i] = job.x + (size_t)(pair / job.share) * columns + column;
        }
        to = lane / (4 * words) * gb_mma16_sizes<Format>::x_step + lane % words * 512 + (4 * t + lane / words % 4) * 16;
    }
    __device__ __forceinline__ void slice(uint32_t step, uint32_t steps, uint8_t *x) const
    {
        const uint32_t first = step * Format::step;
#pragma unroll
        for (uint32_t i = 0; i < tokens; i++)
            if (exists[i])
#pragma unroll
                for (uint32_t c = 0; c < gb_mma16_slice / steps_each; c++) {
                    const bool inside = first + column + 256 * c < columns;
                    if (steps_each * c < steps)
                        gb_copy<16>(x + to + c * steps_each * gb_mma16_sizes<Format>::x_step + i * Producers * 64,
                                    from[i] + (inside ? first + 256 * c : 0), inside ? 16 : 0);
                }
    }
};

/* The operands of two instructions: words 2 d and 2 d + 1 of bytes, or word d of E2M1 codes. */
template <class Layout>
__device__ __forceinline__ void gb_mma16_operands(const uint4 &codes, uint32_t d, uint32_t scale, uint32_t (&a)[4])
{
    if (Layout::format::step == gb_mma16_step_bytes) {
        gb_mma16_bytes_word(gb_word_of4(codes, 2 * d), a[0], a[1]);
        gb_mma16_bytes_word(gb_word_of4(codes, 2 * d + 1), a[2], a[3]);
    } else {
        Layout::word(gb_word_of4(codes, d), a);
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; k++)
        a[k] = Layout::format::scaled(a[k], scale);
}

/* A number that the compiler does not work out again where it is used. */
__device__ __forceinline__ uint32_t gb_kept(uint32_t value)
{
    asm volatile("" : "+r"(value));
    return value;
}

/* Where a lane of a consumer warp, which has one step of every slice, finds its part of a stage: bytes. */
template <class Layout> struct gb_mma16_reads {
    uint32_t codes, scales, x;
    __device__ __forceinline__ gb_mma16_reads(uint32_t tile, uint32_t step, uint32_t lane)
    {
        using sizes = gb_mma16_sizes<typename Layout::format>;
        codes = gb_kept(tile * sizes::tile + Layout::codes_at(step, lane));
        scales = gb_kept(tile * sizes::tile + Layout::scales_at(step, lane));
        x = gb_kept(sizes::x + step * sizes::x_step + 16 * lane);
    }
};

/* A step of Tiles tiles side by side: they share the activations. */
template <class Layout, uint32_t Tiles>
__device__ __forceinline__ void gb_mma16_multiply(const uint8_t *stage, const gb_mma16_reads<Layout> &at,
                                                  float (&chain)[gb_mma16_tiles_each][4])
{
    using format = typename Layout::format;
    using sizes = gb_mma16_sizes<format>;
    uint4 low[Tiles], high[Tiles];
    uint32_t scale[Tiles][2][2]; /* [scale of the chunk][first or last 8 rows] */
#pragma unroll
    for (uint32_t i = 0; i < Tiles; i++) {
        low[i] = *(const uint4 *)(stage + at.codes + i * sizes::tile);
        high[i] = *(const uint4 *)(stage + at.codes + i * sizes::tile + 512);
        const uint32_t scales = Layout::scales(stage + at.scales + i * sizes::tile);
#pragma unroll
        for (uint32_t b = 0; b < format::in_chunk; b++)
            format::scale(scales >> 16 * b, scale[i][b][0], scale[i][b][1]);
        if (format::step == gb_mma16_step_bytes && !Layout::marks_nan) {
            scale[i][0][0] |= gb_mma16_any_nan(low[i]) ? 0x7FFF7FFFu : 0;
            scale[i][0][1] |= gb_mma16_any_nan(high[i]) ? 0x7FFF7FFFu : 0;
        }
    }
#pragma unroll
    for (uint32_t d = 0; d < sizes::words; d++) {
        const uint4 b = Layout::activations(*(const uint4 *)(stage + at.x + d * 512));
        uint32_t a[Tiles][4], c[Tiles][4];
#pragma unroll
        for (uint32_t i = 0; i < Tiles; i++) {
            gb_mma16_operands<Layout>(low[i], d, scale[i][d * format::in_chunk / sizes::words][0], a[i]);
            gb_mma16_operands<Layout>(high[i], d, scale[i][d * format::in_chunk / sizes::words][1], c[i]);
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
template <class Format>
__device__ __forceinline__ float gb_mma16_dot(const float *chains, uint32_t stride, float global)
{
    const float sum =
        __fadd_rn(__fadd_rn(chains[0], chains[stride]), __fadd_rn(chains[2 * stride], chains[3 * stride]));
    return Format::format == GB_NVFP4 ? __fmul_rn(__fmul_rn(sum, Format::factor), global) : sum;
}

/* Of a block. */
template <class Layout>
constexpr uint32_t gb_mma16_threads = 32 * (gb_mma16_consumers + Layout::producers + gb_mma16_finishers);

/* The block's barriers by which consumers hand sums to finishers, and finishers their place back: one of either for
 * each of the two places. */
constexpr uint32_t gb_mma16_summed = 1, gb_mma16_taken = 3, gb_mma16_places = 2;
constexpr uint32_t gb_mma16_handing_over = 32 * (gb_mma16_consumers + gb_mma16_finishers); /* threads */

/* Shared memory beside the ring's stages. */
struct gb_mma16_shared {
    gb_mma16_items items;
    float4 sums[gb_mma16_places][gb_mma16_group_tiles][gb_mma16_chains][32]; /* of a group */
    uint64_t full[8], empty[8];
};

/* What a finisher knows of an item. */
struct gb_mma16_known {
    uint32_t item, first, pairs;
    float scale[2]; /* the global scales, gate's and up's or both down's */

    template <bool GateUp>
    __device__ __forceinline__ void learn(const gb_mma16_job &job, const gb_mma16_items &items, uint32_t item_)
    {
        item = item_;
        first = items.first[item];
        pairs = items.pairs[item];
        if (!job.global_scales)
            return;
        const uint32_t expert = items.expert[item];
        scale[0] = job.global_scales[GateUp ? 2 * expert : expert];
        scale[1] = job.global_scales[GateUp ? 2 * expert + 1 : expert];
    }
};
constexpr uint32_t gb_mma16_nothing = 0xFFFFFFFFu; /* an item that there is not */

/*
 * What is left of a group, by the finisher warps, while the consumers go on: outputs (token, tile, row) of the tile,
 * rows side by side.
 */
template <class Format, bool GateUp>
__device__ __forceinline__ void gb_mma16_finish(const gb_mma16_job &job, gb_mma16_shared *shared, uint32_t finisher,
                                                uint32_t window, const gb_mma16_known &of, uint32_t tile,
                                                uint32_t tiles, uint32_t place)
{
    constexpr uint32_t at_once = gb_mma16_finishers * 32;
    const uint32_t row = threadIdx.x % 8, count = of.pairs * gb_mma16_group_tiles * 8;
    gb_block_barrier_wait(gb_mma16_summed + place, gb_mma16_handing_over);
    const float *sums = (const float *)shared->sums[place]; /* [tile][chain][lane][4] */
    for (uint32_t base = 0; base < count; base += at_once) {
        const uint32_t i = base + finisher * 32 + threadIdx.x % 32;
        const uint32_t mine = i / 8 % gb_mma16_group_tiles, t = i / (8 * gb_mma16_group_tiles);
        const bool exists = i < count && mine < tiles;
        const float *at = sums + (mine * gb_mma16_chains * 32 + row * 4 + t / 2) * 4 + t % 2;
        float low = 0.0f, high = 0.0f;
        if (exists) {
            low = gb_mma16_dot<Format>(at, 128, of.scale[0]);
            high = gb_mma16_dot<Format>(at + 2, 128, of.scale[1]);
        }
        __syncwarp();
        if (base + at_once >= count)
            gb_block_barrier_arrive(gb_mma16_taken + place, gb_mma16_handing_over);
        if (!exists)
            continue;
        const size_t pair = window + shared->items.order[of.first + t];
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

/* A range of tiles, as a block has it. */
struct gb_mma16_range {
    uint32_t at, end;
    __device__ __forceinline__ gb_mma16_range(uint32_t items, uint32_t tiles)
    {
        const uint64_t all = (uint64_t)items * tiles;
        const uint32_t unit = gb_mma16_unit((uint32_t)all, tiles);
        at = (uint32_t)(all / unit * blockIdx.x / gridDim.x) * unit;
        end = (uint32_t)(all / unit * (blockIdx.x + 1) / gridDim.x) * unit;
    }
};

template <class Layout, bool GateUp, uint32_t Stages>
__global__ void __launch_bounds__(gb_mma16_threads<Layout>, 1)
    gb_mma16_kernel(const __grid_constant__ struct gb_mma16_job job)
{
    extern __shared__ uint4 dynamic[];
    using format = typename Layout::format;
    using sizes = gb_mma16_sizes<format>;
    uint8_t *ring = (uint8_t *)dynamic;
    gb_mma16_shared *shared = (gb_mma16_shared *)(ring + Stages * sizes::stage);
    uint32_t *starts = (uint32_t *)(shared + 1);
    gb_mma16_items *items = &shared->items;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t steps = gb_mma16_steps<format>(job.columns);
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
    typename Layout::template fetch<GateUp> weights(job, warp - gb_mma16_consumers);
    gb_mma16_fetch_x<format, Layout::producers> activations;
    const uint32_t chain = warp % gb_mma16_chains, mine = warp / gb_mma16_chains * gb_mma16_tiles_each;
    const gb_mma16_reads<Layout> reads(mine, chain, lane); /* a consumer's */
    gb_mma16_known known = {gb_mma16_nothing, 0, 0, {0.0f, 0.0f}};
    for (uint32_t window = 0; window < job.pairs; window += gb_mma16_window) {
        const uint32_t pairs = min(gb_mma16_window, job.pairs - window);
        gb_mma16_group(job.ids + window, pairs, job.experts, items, starts);
        if (GateUp)
            for (uint32_t p = blockIdx.x; p < pairs; p += gridDim.x)
                if (items->ids[p] == 0xFFFFu)
                    for (uint32_t i = threadIdx.x; i < job.tiles * 8; i += blockDim.x)
                        job.intermediate[(size_t)(window + p) * job.tiles * 8 + i] = 0;
        if (window == 0 && warp >= gb_mma16_consumers + Layout::producers)
            gb_wait_for_previous();
        gb_mma16_range range(items->count, job.tiles);
        uint32_t item = range.at / job.tiles, tile = range.at % job.tiles;
        known.item = gb_mma16_nothing;
        for (uint32_t tiles; range.at < range.end; range.at += tiles, groups++) {
            tiles = min(min(gb_mma16_group_tiles, job.tiles - tile), range.end - range.at);
            if (warp >= gb_mma16_consumers && warp < gb_mma16_consumers + Layout::producers) {
                const bool another = item != known.item;
                if (another)
                    weights.expert(items->expert[item]);
                weights.group(tile, tiles);
                for (uint32_t step = 0; step < steps; step += gb_mma16_slice, slices++) {
                    const uint32_t slot = slices % Stages, now = min(gb_mma16_slice, steps - step);
                    uint8_t *stage = ring + slot * sizes::stage;
                    if (slices >= Stages)
                        gb_barrier_wait(&shared->empty[slot], slices / Stages + 1 & 1);
                    weights.slice(step, now, stage, &shared->full[slot]);
                    if (step == 0 && another)
                        activations.start(job, *items, item, window, warp - gb_mma16_consumers);
                    if (!waited && activations.exists[0]) {
                        gb_wait_for_previous();
                        waited = true;
                    }
                    activations.slice(step, now, stage + sizes::x);
                    gb_barrier_arrive_copied(&shared->full[slot]);
                }
                known.item = item;
            } else if (warp < gb_mma16_consumers) {
                float sums[gb_mma16_tiles_each][4] = {};
                for (uint32_t step = 0; step < steps; step += gb_mma16_slice, slices++) {
                    const uint32_t slot = slices % Stages;
                    const uint8_t *stage = ring + slot * sizes::stage;
                    gb_barrier_wait(&shared->full[slot], slices / Stages & 1);
                    if (step + chain < steps) {
                        if (mine + gb_mma16_tiles_each <= tiles)
                            gb_mma16_multiply<Layout, gb_mma16_tiles_each>(stage, reads, sums);
                        else if (mine < tiles)
                            gb_mma16_multiply<Layout, 1>(stage, reads, sums);
                    }
                    __syncwarp();
                    if (lane == 0)
                        gb_barrier_arrive(&shared->empty[slot]);
                }
                const uint32_t place = groups % gb_mma16_places;
                if (groups >= gb_mma16_places)
                    gb_block_barrier_wait(gb_mma16_taken + place, gb_mma16_handing_over);
#pragma unroll
                for (uint32_t i = 0; i < gb_mma16_tiles_each; i++)
                    shared->sums[place][mine + i][chain][lane] =
                        make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
                gb_block_barrier_arrive(gb_mma16_summed + place, gb_mma16_handing_over);
            } else {
                if (item != known.item)
                    known.learn<GateUp>(job, *items, item);
                gb_mma16_finish<format, GateUp>(job, shared, warp - gb_mma16_consumers - Layout::producers, window,
                                                known, tile, tiles, groups % gb_mma16_places);
            }
            tile += tiles;
            if (tile == job.tiles) {
                tile = 0;
                item++;
            }
        }
        __syncthreads(); /* nobody reads the items any more */
    }
    for (uint32_t i = min(groups, gb_mma16_places); i > 0 && warp < gb_mma16_consumers; i--)
        gb_block_barrier_wait(gb_mma16_taken + (groups - i) % gb_mma16_places, gb_mma16_handing_over);
}

#endif
