/* SPDX-License-Identifier: Apache-2.0 */
/* The order fma32/1: its definition in plain C, every step numbered as in docs/numerics.md#fma32, and its vector paths.
 */
#include <math.h>

#include "reference/fma32_lanes.h"
#include "reference/order.h"

enum { LANES = GB_LANES, CHUNK_BYTES = GB_CHUNK_BYTES };

#if !defined(__x86_64__)
#define gb_dots_avx2 NULL
#define gb_dots_avx512 NULL
#endif

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Chunks that are added up side by side: each is a chain of additions that wait for each other. */
enum { SIDE = 4 };

/* Adds the sum of a run of products in block b. */
static inline void add_run(const struct gb_row *row, uint32_t b, float sum, const float *x_scales, float *acc)
{
    *acc = fmaf(x_scales ? row->scales[b] * x_scales[b] : row->scales[b], sum, *acc);
}

/* row . x. chunk: elements in 16 bytes of codes; x: [row->columns]; x_scales: [row->columns / row->block], rounded up,
 * of FP8 activations, or NULL. */
GB_FMA_CLONES
static float row_dot(const struct gb_row *row, uint32_t chunk, const float *x, const float *x_scales)
{
    float acc[LANES] = {0};
    uint32_t block = row->block ? row->block : chunk, first = 0, c = 0;
    for (; first + SIDE * chunk <= row->columns; first += SIDE * chunk, c += SIDE) /* steps 1 and 2, of whole chunks */
        for (uint32_t run = first; run < first + chunk; run += block) {            /* step 3 */
            float p[SIDE] = {0.0f};
            for (uint32_t i = run; i < smaller(run + block, first + chunk); i++)
                for (uint32_t k = 0; k < SIDE; k++)
                    p[k] = fmaf(row->codes[i + k * chunk], x[i + k * chunk], p[k]);
            for (uint32_t k = 0; k < SIDE; k++)
                add_run(row, (run + k * chunk) / block, p[k], x_scales, &acc[(c + k) % LANES]);
        }
    for (; first < row->columns; first += chunk, c++) {
        uint32_t end = smaller(first + chunk, row->columns);
        for (uint32_t run = first; run < end; run += block) {
            float p = 0.0f;
            for (uint32_t i = run; i < smaller(run + block, end); i++)
                p = fmaf(row->codes[i], x[i], p);
            add_run(row, run / block, p, x_scales, &acc[c % LANES]);
        }
    }
    for (uint32_t m = LANES / 2; m > 0; m /= 2) { /* step 4 */
        float next[LANES];
        for (uint32_t l = 0; l < LANES; l++)
            next[l] = acc[l] + acc[l ^ m];
        for (uint32_t l = 0; l < LANES; l++)
            acc[l] = next[l];
    }
    return acc[0] * row->global; /* step 5 */
}

/* A path's vector code. */
static const struct lanes {
    uint32_t team; /* chunks whose numbers share a register */
    void (*dots)(const struct gb_tile *tile, float *dots);
} lanes[] = {
    [GB_CPU_PLAIN] = {0, NULL},
    [GB_CPU_AVX2] = {8, gb_dots_avx2},
    [GB_CPU_AVX512] = {16, gb_dots_avx512},
};

static enum gb_cpu_path path_of(enum gb_format weights)
{
    bool vector = weights == GB_NVFP4 || weights == GB_MXFP8 || weights == GB_BF16;
    return vector ? gb_cpu_path_get() : GB_CPU_PLAIN;
}

/* Elements in 16 bytes of codes. */
static uint32_t chunk_of(enum gb_format weights)
{
    return 2 * CHUNK_BYTES / (uint32_t)gb_row_code_bytes(weights, 2);
}

static size_t vector_bytes(enum gb_cpu_path path, enum gb_format weights, uint32_t columns)
{
    size_t line = 64 / sizeof(float), team = lanes[path].team, unit = team ? team * chunk_of(weights) : line;
    return (columns + unit - 1) / unit * unit * sizeof(float);
}

/* One activation vector as reference/fma32_lanes.h says. x: [columns]; values: [teams, elements, team]. */
static void lay_out(const gb_bf16 *x, uint32_t columns, uint32_t elements, uint32_t team, float *values)
{
    float chunk[2 * CHUNK_BYTES];
    for (size_t first = 0; first < columns; first += (size_t)team * elements, values += (size_t)team * elements)
        for (uint32_t position = 0; position < team; position++) {
            size_t at = first + (size_t)(position % 4 * (team / 4) + position / 4) * elements;
            at = at < columns ? at : columns;
            uint32_t count = columns - at < elements ? (uint32_t)(columns - at) : elements;
            gb_bf16_decode_all(x + at, count, chunk);
            for (uint32_t k = 0; k < elements; k++)
                values[k * team + position] = k < count ? chunk[k] : -0.0f;
        }
}

static void arrange(enum gb_cpu_path path, enum gb_format weights, const gb_bf16 *x, uint32_t columns, void *values)
{
    float *to = values;
    if (lanes[path].team)
        lay_out(x, columns, chunk_of(weights), lanes[path].team, to);
    else
        gb_bf16_decode_all(x, columns, to);
}

static void plain_dots(const struct gb_product *product, struct gb_row *decoded, float *dots)
{
    uint32_t chunk = chunk_of(product->weights->format);
    for (uint32_t r = 0; r < product->rows; r++) {
        gb_row_decode(product->weights, product->expert, product->row + r, decoded);
        for (uint32_t i = 0; i < product->count; i++)
            dots[(size_t)r * product->count + i] =
                gb_one_nan(row_dot(decoded, chunk, product->x[i], product->x_scales ? product->x_scales[i] : NULL));
    }
}

/* The weights of a product's first row, and how long rows are. */
static struct gb_tile tile_at(const struct gb_product *product)
{
    const struct gb_weights *weights = product->weights;
    size_t row = (size_t)product->expert * weights->rows + product->row;
    struct gb_tile tile = {
        .format = weights->format,
        .rows = product->rows,
        .count = product->count,
        .code_bytes = gb_row_code_bytes(weights->format, weights->columns),
        .scale_bytes = gb_row_scale_bytes(weights->format, weights->columns),
        .x = (const float *const *)product->x,
    };
    tile.codes = (const uint8_t *)weights->codes + row * tile.code_bytes;
    tile.scales = weights->scales ? (const uint8_t *)weights->scales + row * tile.scale_bytes : NULL;
    return tile;
}

static void lane_dots(const struct gb_product *product, float *dots)
{
    struct gb_tile tile = tile_at(product);
    if (product->next) {
        struct gb_tile next = tile_at(product->next);
        tile.next_codes = next.codes;
        tile.next_scales = next.scales;
    }
    lanes[product->path].dots(&tile, dots);
    float global = gb_weights_global(product->weights, product->expert, product->row);
    for (size_t i = 0; i < (size_t)product->rows * product->count; i++)
        dots[i] = gb_one_nan(dots[i] * global); /* step 5 */
}

static void all_dots(const struct gb_product *product, struct gb_row *decoded, float *dots)
{
    if (product->path == GB_CPU_PLAIN)
        plain_dots(product, decoded, dots);
    else
        lane_dots(product, dots);
}

const struct gb_order gb_fma32 = {GB_ORDER_FMA32, path_of, vector_bytes, arrange, all_dots};
