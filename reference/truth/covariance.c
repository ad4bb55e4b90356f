/* SPDX-License-Identifier: Apache-2.0 */
/* How the errors of a token's outputs hang together: docs/numerics.md#error-covariance. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/operators.h"
#include "reference/truth/sums.h"

/* What is spent: the covariances of all tiles cost tokens * hidden * tile * top_k * intermediate products, so tiles are
 * as wide as 2^34 products and 32 MiB allow; directions take at most 256 MiB. */
static const double tile_products = 0x1p34, tile_values = 0x1p22, direction_values = 0x1p26;
enum {
    STRIP = 64,         /* rows of a tile's covariance that one thread computes */
    PAIRS_AT_ONCE = 16, /* of one expert, projected together */
    ROWS_AT_ONCE = 32   /* of its matrix meanwhile in the cache */
};

struct work {
    struct gb_covariance *m;
    const struct gb_shape *shape;
    const struct gb_groups *groups; /* the pairs of the first m->tokens tokens */
    const double *routing_weights;  /* [tokens, top_k] */
    const double *intermediate;     /* [tokens, top_k, intermediate] */
    const struct gb_weights *down;
    const struct gb_bounds *bounds;
    double *propagated; /* [tokens, hidden]: variance from the intermediate */
    double *projected;  /* [tokens, top_k, directions]: variance from one slot's intermediate along each direction */
};

static double squared(double v)
{
    return v * v;
}

static uint32_t at_most(double number, uint32_t limit)
{
    return number < 1.0 ? 1 : number < (double)limit ? (uint32_t)number : limit;
}

static uint32_t tile_rows(const struct work *w, uint32_t tile)
{
    uint32_t first = tile * w->m->tile;
    return w->shape->hidden - first < w->m->tile ? w->shape->hidden - first : w->m->tile;
}

static double *tile_factor(const struct gb_covariance *m, uint32_t token, uint32_t tile)
{
    return m->factor + ((size_t)token * m->tiles + tile) * gb_triangle(m->tile);
}

/* A pair's truth on output o goes to its direction, and a column for each error of its intermediate to `column`. */
static void add_output(struct work *w, uint32_t pair, uint32_t o, const double *row, bool own, double *column)
{
    const uint32_t hidden = w->shape->hidden, inner = w->shape->intermediate, token = pair / w->shape->top_k;
    const double *h = w->intermediate + (size_t)pair * inner,
                 *sigma = w->bounds->intermediate_sigma + (size_t)pair * inner;
    double weight = w->routing_weights[pair], variance,
           value = gb_sum_scaled(row, h, sigma, weight, inner, column, &variance);
    if (!own)
        return;
    w->m->direction[((size_t)token * w->m->directions + pair % w->shape->top_k) * hidden + o] = (float)(weight * value);
    w->propagated[(size_t)token * hidden + o] += variance;
}

/* Rows first .. end - 1 of the covariances of one tile, of all tokens. rows, scaled: scratch, [tile, intermediate]. */
static void add_strip(struct work *w, uint32_t tile, uint32_t first, uint32_t end, double *rows, double *scaled)
{
    const uint32_t inner = w->shape->intermediate, start = tile * w->m->tile;
    for (uint32_t g = 0; g < w->groups->active; g++) {
        for (uint32_t r = 0; r < end; r++)
            gb_weights_row(w->down, w->groups->expert[g], start + r, rows + (size_t)r * inner);
        for (uint32_t n = w->groups->start[g]; n < w->groups->start[g + 1]; n++) {
            uint32_t pair = w->groups->pair[n];
            for (uint32_t r = 0; r < end; r++)
                add_output(w, pair, start + r, rows + (size_t)r * inner, r >= first, scaled + (size_t)r * inner);
            gb_add_gram(scaled, first, end - first, inner, tile_factor(w->m, pair / w->shape->top_k, tile));
        }
    }
}

static enum gb_status add_pairs(struct work *w, struct gb_error *error)
{
    const size_t scratch = (size_t)w->m->tile * w->shape->intermediate;
    const uint32_t strips = (w->m->tile + STRIP - 1) / STRIP;
    bool failed = false;
#pragma omp parallel
    {
        double *rows = gb_doubles_new(2 * scratch);
        if (!rows)
#pragma omp atomic write
            failed = true;
#pragma omp for schedule(dynamic)
        for (uint32_t job = 0; job < w->m->tiles * strips; job++) {
            uint32_t tile = job / strips, first = job % strips * STRIP, last = tile_rows(w, tile);
            if (rows && first < last)
                add_strip(w, tile, first, last - first < STRIP ? last : first + STRIP, rows, rows + scratch);
        }
        free(rows);
    }
    return failed ? gb_fail(error, GB_ENOMEM, "no memory for tiles of %u outputs", w->m->tile) : GB_OK;
}

/* The sum of the slots' directions is the last one. */
static void sum_directions(struct gb_covariance *m, uint32_t hidden)
{
    for (uint32_t t = 0; t < m->tokens; t++) {
        float *first = m->direction + (size_t)t * m->directions * hidden;
        float *sum = first + (size_t)(m->directions - 1) * hidden;
        for (uint32_t d = 0; d + 1 < m->directions; d++)
            for (uint32_t o = 0; o < hidden; o++)
                sum[o] += first[(size_t)d * hidden + o];
    }
}

/* What the errors of pairs first .. end - 1 of one expert add to the variance along every direction of their tokens.
 * matrix: scratch, [ROWS_AT_ONCE, intermediate]; along: scratch, [PAIRS_AT_ONCE, directions, intermediate]. */
static void project_pairs(struct work *w, uint32_t g, uint32_t first, uint32_t end, double *matrix, double *along)
{
    const uint32_t hidden = w->shape->hidden, inner = w->shape->intermediate, D = w->m->directions;
    memset(along, 0, sizeof(double) * (end - first) * D * inner);
    for (uint32_t o = 0; o < hidden; o += ROWS_AT_ONCE) {
        uint32_t rows = hidden - o < ROWS_AT_ONCE ? hidden - o : ROWS_AT_ONCE;
        for (uint32_t r = 0; r < rows; r++)
            gb_weights_row(w->down, w->groups->expert[g], o + r, matrix + (size_t)r * inner);
        for (uint32_t n = first; n < end; n++) {
            const float *u = w->m->direction + (size_t)(w->groups->pair[n] / w->shape->top_k) * D * hidden + o;
            gb_add_product(u, hidden, D, rows, matrix, inner, along + (size_t)(n - first) * D * inner);
        }
    }
    for (uint32_t n = first; n < end; n++) {
        uint32_t pair = w->groups->pair[n];
        for (uint32_t d = 0; d < D; d++)
            w->projected[(size_t)pair * D + d] =
                squared(w->routing_weights[pair]) *
                gb_sum_squared_products(along + ((size_t)(n - first) * D + d) * inner,
                                        w->bounds->intermediate_sigma + (size_t)pair * inner, inner);
    }
}

static enum gb_status project(struct work *w, struct gb_error *error)
{
    const uint32_t D = w->m->directions, top_k = w->shape->top_k;
    const size_t matrix = (size_t)ROWS_AT_ONCE * w->shape->intermediate;
    const uint32_t chunks = (w->groups->most + PAIRS_AT_ONCE - 1) / PAIRS_AT_ONCE;
    bool failed = false;
#pragma omp parallel
    {
        double *room = gb_doubles_new(matrix + (size_t)PAIRS_AT_ONCE * D * w->shape->intermediate);
        if (!room)
#pragma omp atomic write
            failed = true;
#pragma omp for collapse(2) schedule(dynamic)
        for (uint32_t g = 0; g < w->groups->active; g++)
            for (uint32_t c = 0; c < chunks; c++) {
                uint32_t first = w->groups->start[g] + c * PAIRS_AT_ONCE, end = w->groups->start[g + 1];
                if (room && first < end)
                    project_pairs(w, g, first, end - first < PAIRS_AT_ONCE ? end : first + PAIRS_AT_ONCE, room,
                                  room + matrix);
            }
        free(room);
    }
    for (size_t pair = 0; !failed && pair < (size_t)w->m->tokens * top_k; pair++)
        for (uint32_t d = 0; d < D; d++)
            w->m->variance[pair / top_k * D + d] += w->projected[pair * D + d];
    return failed ? gb_fail(error, GB_ENOMEM, "no memory to project %d pairs", (int)PAIRS_AT_ONCE) : GB_OK;
}

static double underflow_of(const struct work *w, size_t output)
{
    return w->bounds->output_underflow ? w->bounds->output_underflow[output] : 0.0;
}

/* The variance of what arises at the output itself: its own less what comes from the intermediate, and what underflow
 * may do. */
static double own_variance(const struct work *w, size_t output)
{
    double all = squared(w->bounds->output_sigma[output]);
    return fmax(all - w->propagated[output], all * 0x1p-40) + squared(underflow_of(w, output));
}

static void add_own_errors(struct work *w)
{
    uint32_t hidden = w->shape->hidden;
#pragma omp parallel for schedule(static)
    for (size_t td = 0; td < (size_t)w->m->tokens * w->m->directions; td++)
        for (uint32_t o = 0; o < hidden; o++)
            w->m->variance[td] +=
                squared((double)w->m->direction[td * hidden + o]) * own_variance(w, td / w->m->directions * hidden + o);
}

/* C = L L^T in place, C the lower triangle of what comes from the intermediate, to which the outputs' own variance is
 * added. No pivot is smaller than that: it is independent of all else. */
static void factorise(struct work *w, uint32_t token, uint32_t tile)
{
    double *l = tile_factor(w->m, token, tile);
    uint32_t n = tile_rows(w, tile);
    size_t first = (size_t)token * w->shape->hidden + (size_t)tile * w->m->tile;
    for (uint32_t r = 0; r < n; r++) {
        double *row = l + gb_triangle(r), own = own_variance(w, first + r), underflow = underflow_of(w, first + r);
        if (underflow > 0.0) /* C is no smaller than its diagonal part */
            w->m->underflow[(size_t)token * w->m->tiles + tile] += squared(underflow) / own;
        gb_solve_lower(l, r, row);
        row[r] = sqrt(fmax(row[r] + own - gb_sum_inner_product(row, row, r), own));
    }
}

void gb_covariance_whiten(const struct gb_covariance *m, uint32_t token, uint32_t tile, uint32_t count, double *values)
{
    if (m->factor)
        gb_solve_lower(tile_factor(m, token, tile), count, values);
    for (uint32_t r = 0; r < count && !m->factor; r++) {
        double sigma = m->deviation[(size_t)token * m->tile + r];
        values[r] = sigma > 0.0 ? values[r] / sigma : 0.0;
    }
}

/* values = L^-T values. */
static void unwhiten_transposed(const struct gb_covariance *m, uint32_t token, uint32_t tile, uint32_t count,
                                double *values)
{
    const double *l = tile_factor(m, token, tile);
    for (uint32_t r = count; r-- > 0;) {
        const double *row = l + gb_triangle(r);
        values[r] = row[r] > 0.0 ? values[r] / row[r] : 0.0;
        gb_add_multiple(row, -values[r], r, values);
    }
}

/* A share of the output becomes the direction C^-1 share, tile by tile, of largest component 1. values: scratch. */
static void weigh_direction(struct work *w, uint32_t token, uint32_t d, double *values)
{
    struct gb_covariance *m = w->m;
    size_t at = (size_t)token * m->directions + d;
    uint32_t hidden = w->shape->hidden;
    float *u = m->direction + at * hidden;
    double largest = 0.0;
    for (uint32_t k = 0; k < m->tiles; k++) {
        double *part = values + (size_t)k * m->tile;
        for (uint32_t o = 0; o < tile_rows(w, k); o++)
            part[o] = (double)u[(size_t)k * m->tile + o];
        gb_covariance_whiten(m, token, k, tile_rows(w, k), part);
        unwhiten_transposed(m, token, k, tile_rows(w, k), part);
    }
    for (uint32_t o = 0; o < hidden; o++)
        largest = fmax(largest, fabs(values[o]));
    for (uint32_t o = 0; o < hidden; o++) {
        double share = (double)u[o];
        u[o] = largest > 0.0 ? (float)(values[o] / largest) : 0.0f;
        m->signal[at] += (double)u[o] * share;
    }
}

static enum gb_status weigh(struct work *w, struct gb_error *error)
{
    bool failed = false;
#pragma omp parallel
    {
        double *values = malloc(sizeof(double) * w->shape->hidden); /* [hidden] */
        if (!values)
#pragma omp atomic write
            failed = true;
#pragma omp for schedule(dynamic)
        for (uint32_t t = 0; t < w->m->tokens; t++) {
            for (uint32_t k = 0; values && k < w->m->tiles; k++)
                factorise(w, t, k);
            for (uint32_t d = 0; values && d < w->m->directions; d++)
                weigh_direction(w, t, d, values);
        }
        free(values);
    }
    return failed ? gb_fail(error, GB_ENOMEM, "no memory for %u outputs", w->shape->hidden) : GB_OK;
}

static double *doubles(size_t count)
{
    return calloc(count, sizeof(double));
}

static enum gb_status allocate(struct work *w, struct gb_error *error)
{
    struct gb_covariance *m = w->m;
    size_t hidden = w->shape->hidden, factor = (size_t)m->tokens * m->tiles * gb_triangle(m->tile);
    m->direction = calloc((size_t)m->tokens * m->directions * hidden, sizeof(float));
    m->variance = doubles((size_t)m->tokens * m->directions);
    m->signal = doubles((size_t)m->tokens * m->directions);
    m->factor = gb_doubles_new(factor);
    m->underflow = doubles((size_t)m->tokens * m->tiles);
    w->propagated = doubles(m->tokens * hidden);
    w->projected = doubles((size_t)m->tokens * w->shape->top_k * m->directions);
    if (m->factor) /* pages of calloc that are read before they are written fault twice */
        memset(m->factor, 0, factor * sizeof *m->factor);
    if (m->direction && m->variance && m->signal && m->factor && m->underflow && w->propagated && w->projected)
        return GB_OK;
    return gb_fail(error, GB_ENOMEM, "no memory for the covariance of %u tokens", m->tokens);
}

enum gb_status gb_covariance_new(const struct gb_shape *shape, const int32_t *ids, const double *routing_weights,
                                 const double *intermediate, const struct gb_truth_quantised *weights,
                                 const struct gb_bounds *bounds, struct gb_covariance *m, struct gb_error *error)
{
    double hidden = shape->hidden, pairs = (double)shape->top_k * shape->intermediate;
    struct gb_groups groups;
    memset(m, 0, sizeof *m);
    m->directions = shape->top_k + 1;
    m->tokens = at_most(direction_values / (m->directions * hidden), shape->tokens);
    m->tile = at_most(fmin(tile_products / pairs, tile_values) / (m->tokens * hidden), shape->hidden);
    m->tiles = (shape->hidden + m->tile - 1) / m->tile;
    struct gb_shape first = *shape;
    first.tokens = m->tokens;
    struct work w = {.m = m,
                     .shape = shape,
                     .groups = &groups,
                     .routing_weights = routing_weights,
                     .intermediate = intermediate,
                     .down = &weights->down,
                     .bounds = bounds};
    enum gb_status status = gb_groups_new(&first, ids, &groups, error);
    if (status != GB_OK)
        return status;
    status = allocate(&w, error);
    if (status == GB_OK)
        status = add_pairs(&w, error);
    if (status == GB_OK) {
        sum_directions(m, shape->hidden);
        status = weigh(&w, error);
    }
    if (status == GB_OK)
        status = project(&w, error);
    if (status == GB_OK)
        add_own_errors(&w);
    else
        gb_covariance_free(m);
    free(w.propagated);
    free(w.projected);
    gb_groups_free(&groups);
    return status;
}

void gb_covariance_free(struct gb_covariance *m)
{
    free(m->direction);
    free(m->variance);
    free(m->signal);
    free(m->factor);
    free(m->deviation);
    free(m->underflow);
    for (uint32_t t = 0; m->basis && t < m->tokens; t++)
        free(m->basis[t]);
    free(m->basis);
    free(m->open);
    free(m->kept);
    memset(m, 0, sizeof *m);
}
