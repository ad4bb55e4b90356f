/* SPDX-License-Identifier: Apache-2.0 */
/* The paths of fma32/1: which one is in force, and activations and rows as each of them reads them. */
#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "reference/dot.h"
#include "reference/lanes.h"

static bool always(void)
{
    return true;
}

#if defined(__x86_64__)
#include <cpuid.h>

/* clang 14 does not know f16c as a name. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}
#else
static bool never(void)
{
    return false;
}

#define has_avx2 never
#define has_avx512 never
#define gb_dots_avx2 NULL
#define gb_dots_avx512 NULL
#endif

/* In ascending order of speed. */
static const struct path {
    const char *name;
    bool (*available)(void);
    uint32_t team; /* chunks whose numbers share a register */
    void (*dots)(const struct gb_tile *tile, float *dots);
} paths[] = {
    [GB_CPU_PLAIN] = {"plain", always, 0, NULL},
    [GB_CPU_AVX2] = {"avx2", has_avx2, 8, gb_dots_avx2},
    [GB_CPU_AVX512] = {"avx512", has_avx512, 16, gb_dots_avx512},
};

enum { PATHS = sizeof paths / sizeof *paths, NOT_SET = -1 };

static atomic_int in_force = NOT_SET;

const char *gb_cpu_path_name(enum gb_cpu_path path)
{
    return (unsigned)path < PATHS ? paths[path].name : NULL;
}

bool gb_cpu_path_available(enum gb_cpu_path path)
{
    return (unsigned)path < PATHS && paths[path].available();
}

enum gb_status gb_cpu_path_set(enum gb_cpu_path path, struct gb_error *error)
{
    if ((unsigned)path >= PATHS)
        return gb_fail(error, GB_EINVAL, "unknown CPU path %d", (int)path);
    if (!paths[path].available())
        return gb_fail(error, GB_EUNSUPPORTED, "this CPU lacks what the path %s needs", paths[path].name);
    atomic_store(&in_force, (int)path);
    return GB_OK;
}

enum gb_cpu_path gb_cpu_path_get(void)
{
    int path = atomic_load(&in_force);
    if (path == NOT_SET)
        for (path = PATHS - 1; !paths[path].available();)
            path--;
    return (enum gb_cpu_path)path;
}

static uint32_t chunk_elements(enum gb_format format)
{
    return format == GB_NVFP4 ? 32 : format == GB_MXFP8 ? 16 : 8;
}

/* One activation vector as reference/lanes.h says. x: [columns]; values: [teams, elements, team]. */
static void lay_out(const gb_bf16 *x, uint32_t columns, uint32_t elements, uint32_t team, float *values)
{
    for (size_t first = 0; first < columns; first += (size_t)team * elements, values += (size_t)team * elements)
        for (uint32_t position = 0; position < team; position++) {
            uint32_t chunk = position % 4 * (team / 4) + position / 4;
            for (uint32_t k = 0; k < elements; k++) {
                size_t i = first + (size_t)chunk * elements + k;
                values[k * team + position] = i < columns ? gb_bf16_decode(x[i]) : -0.0f;
            }
        }
}

/* x: [count, weights->columns]; values: [count, stride]. */
static void arrange(const struct gb_weights *weights, const gb_bf16 *x, size_t count, uint32_t team, size_t stride,
                    float *values)
{
    uint32_t columns = weights->columns;
#pragma omp parallel for schedule(static) if (count > 1)
    for (size_t n = 0; n < count; n++) {
        float *to = values + n * stride;
        if (team)
            lay_out(x + n * columns, columns, chunk_elements(weights->format), team, to);
        else
            for (uint32_t i = 0; i < columns; i++)
                to[i] = gb_bf16_decode(x[n * columns + i]);
    }
}

enum gb_status gb_activations_new(const struct gb_operand *operand, size_t count, const struct gb_groups *groups,
                                  uint32_t share, struct gb_activations *activations, struct gb_error *error)
{
    const struct gb_weights *weights = &operand->weights;
    bool lanes = weights->format == GB_NVFP4 || weights->format == GB_MXFP8 || weights->format == GB_BF16;
    activations->path = lanes ? gb_cpu_path_get() : GB_CPU_PLAIN; /* where no vector code reads the format: plain C */
    uint32_t team = paths[activations->path].team;
    size_t line = 64 / sizeof(float), unit = team ? (size_t)team * chunk_elements(weights->format) : line;
    size_t stride = (weights->columns + unit - 1) / unit * unit, bytes;
    size_t vectors = groups ? groups->start[groups->active] : count;
    bool fits = gb_bytes(count, stride, 1, sizeof(float), &bytes);
    activations->values = fits ? aligned_alloc(64, bytes) : NULL;
    activations->vector = malloc(sizeof(float *) * (vectors ? vectors : 1));
    activations->scales = operand->x_scales ? malloc(sizeof(float *) * (vectors ? vectors : 1)) : NULL;
    if (!activations->values || !activations->vector || (operand->x_scales && !activations->scales)) {
        gb_activations_free(activations);
        return gb_fail(error, GB_ENOMEM, "no memory for %zu x %u activations", count, weights->columns);
    }
    arrange(weights, operand->x, count, team, stride, activations->values);
    for (size_t n = 0; n < vectors; n++) {
        size_t from = groups ? groups->pair[n] / share : n;
        activations->vector[n] = activations->values + from * stride;
        if (activations->scales)
            activations->scales[n] = operand->x_scales + from * (weights->columns / gb_format_block(weights->format));
    }
    return GB_OK;
}

void gb_activations_free(struct gb_activations *activations)
{
    free(activations->values);
    free(activations->vector);
    free(activations->scales);
    *activations = (struct gb_activations){0};
}

uint32_t gb_rows_at_once(uint32_t rows, uint32_t experts, size_t dots)
{
    enum { FEWEST = 16, CACHE_BYTES = 1 << 17, SHARES = 4 /* of a thread, for balance */ };
    size_t fit = CACHE_BYTES / sizeof(float) / (dots + 1);
    size_t share = (size_t)rows * experts / (SHARES * (size_t)omp_get_max_threads());
    size_t at_once = fit < share ? fit : share;
    at_once = at_once > FEWEST ? at_once : FEWEST;
    return at_once < rows ? (uint32_t)at_once : rows;
}

static void plain_dots(const struct gb_product *product, struct gb_row *decoded, float *dots)
{
    for (uint32_t r = 0; r < product->rows; r++) {
        gb_row_decode(product->weights, product->expert, product->row + r, decoded);
        for (uint32_t i = 0; i < product->count; i++)
            dots[(size_t)r * product->count + i] =
                gb_one_nan(gb_row_dot(decoded, product->x[i], product->x_scales ? product->x_scales[i] : NULL));
    }
}

static void lane_dots(const struct gb_product *product, float *dots)
{
    const struct gb_weights *weights = product->weights;
    size_t row = (size_t)product->expert * weights->rows + product->row;
    struct gb_tile tile = {
        .format = weights->format,
        .rows = product->rows,
        .count = product->count,
        .code_bytes = gb_row_code_bytes(weights->format, weights->columns),
        .scale_bytes = gb_row_scale_bytes(weights->format, weights->columns),
        .x = product->x,
    };
    tile.codes = (const uint8_t *)weights->codes + row * tile.code_bytes;
    tile.scales = weights->scales ? (const uint8_t *)weights->scales + row * tile.scale_bytes : NULL;
    paths[product->path].dots(&tile, dots);
    float global = gb_weights_global(weights, product->expert, product->row);
    for (size_t i = 0; i < (size_t)product->rows * product->count; i++)
        dots[i] = gb_one_nan(dots[i] * global); /* step 5 */
}

void gb_dots(const struct gb_product *product, struct gb_row *decoded, float *dots)
{
    if (product->path == GB_CPU_PLAIN)
        plain_dots(product, decoded, dots);
    else
        lane_dots(product, dots);
}
