/* SPDX-License-Identifier: Apache-2.0 */
/* How the errors of a token's outputs hang together: docs/numerics.md#moments. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/dot.h"

/* What is spent: the covariances of all tiles cost tokens * hidden * tile * top_k * intermediate products, so tiles are
 * as wide as 2^34 products and 32 MiB allow; directions take at most 256 MiB. */
static const double tile_products = 0x1p34, tile_values = 0x1p22, direction_values = 0x1p26;
/* Pairs of one expert that are projected at once. */
enum { PAIRS_AT_ONCE = 64 };

struct work {
    struct gb_moments *m;
    const struct gb_shape *shape;
    const double *routing_weights; /* [tokens, top_k] */
    const double *intermediate;    /* [tokens, top_k, intermediate] */
    const struct gb_bounds *bounds;
    double *matrix;     /* [hidden, intermediate], an expert's down projection */
    double *scaled;     /* [hidden, intermediate], a column for each error of the intermediate */
    double *propagated; /* [tokens, hidden]: variance from the intermediate */
    double *gathered;   /* [PAIRS_AT_ONCE * directions, hidden] */
    double *projected;  /* [PAIRS_AT_ONCE * directions, intermediate] */
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

static double *tile_factor(const struct gb_moments *m, uint32_t token, uint32_t tile)
{
    return m->factor + ((size_t)token * m->tiles + tile) * m->tile * m->tile;
}

/* One pair's truth goes to its direction, its errors into the covariances of the token's tiles. */
static void add_pair(struct work *w, uint32_t pair)
{
    uint32_t hidden = w->shape->hidden, inner = w->shape->intermediate, token = pair / w->shape->top_k;
    const double *h = w->intermediate + (size_t)pair * inner,
                 *sigma = w->bounds->intermediate_sigma + (size_t)pair * inner;
    double weight = w->routing_weights[pair];
    float *own = w->m->direction + ((size_t)token * w->m->directions + pair % w->shape->top_k) * hidden;
#pragma omp parallel for schedule(static)
    for (uint32_t o = 0; o < hidden; o++) {
        const double *row = w->matrix + (size_t)o * inner;
        double *column = w->scaled + (size_t)o * inner, value = 0.0, variance = 0.0;
#pragma omp simd reduction(+ : value, variance)
        for (uint32_t i = 0; i < inner; i++) {
            value += row[i] * h[i];
            column[i] = weight * row[i] * sigma[i];
            variance += column[i] * column[i];
        }
        own[o] = (float)(weight * value);
        w->propagated[(size_t)token * hidden + o] += variance;
    }
    for (uint32_t k = 0; k < w->m->tiles; k++)
        cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, (int)tile_rows(w, k), (int)inner, 1.0,
                    w->scaled + (size_t)k * w->m->tile * inner, (int)inner, 1.0, tile_factor(w->m, token, k),
                    (int)w->m->tile);
}

/* The sum of the slots' directions is the last one. */
static void sum_directions(struct gb_moments *m, uint32_t hidden)
{
    for (uint32_t t = 0; t < m->tokens; t++) {
        float *first = m->direction + (size_t)t * m->directions * hidden;
        float *sum = first + (size_t)(m->directions - 1) * hidden;
        for (uint32_t d = 0; d + 1 < m->directions; d++)
            for (uint32_t o = 0; o < hidden; o++)
                sum[o] += first[(size_t)d * hidden + o];
    }
}

/* What the errors of these pairs of one expert add to the variance along every direction of their tokens. */
static void project_pairs(struct work *w, const uint32_t *pairs, uint32_t count)
{
    uint32_t hidden = w->shape->hidden, inner = w->shape->intermediate, D = w->m->directions;
    for (uint32_t n = 0; n < count; n++) {
        const float *from = w->m->direction + (size_t)(pairs[n] / w->shape->top_k) * D * hidden;
        for (size_t i = 0; i < (size_t)D * hidden; i++)
            w->gathered[(size_t)n * D * hidden + i] = (double)from[i];
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)(count * D), (int)inner, (int)hidden, 1.0, w->gathered,
                (int)hidden, w->matrix, (int)inner, 0.0, w->projected, (int)inner);
    for (uint32_t n = 0; n < count; n++) {
        const double *sigma = w->bounds->intermediate_sigma + (size_t)pairs[n] * inner;
        for (uint32_t d = 0; d < D; d++) {
            const double *along = w->projected + ((size_t)n * D + d) * inner;
            double sum = 0.0;
            for (uint32_t i = 0; i < inner; i++)
                sum += squared(along[i] * sigma[i]);
            w->m->variance[(size_t)(pairs[n] / w->shape->top_k) * D + d] += squared(w->routing_weights[pairs[n]]) * sum;
        }
    }
}

/* The variance of what arises at the output itself: its own less what comes from the intermediate. */
static double own_variance(const struct work *w, size_t output)
{
    double all = squared(w->bounds->output_sigma[output]);
    return fmax(all - w->propagated[output], all * 0x1p-40);
}

static void add_own_errors(struct work *w)
{
    uint32_t hidden = w->shape->hidden;
    for (size_t td = 0; td < (size_t)w->m->tokens * w->m->directions; td++)
        for (uint32_t o = 0; o < hidden; o++)
            w->m->variance[td] +=
                squared((double)w->m->direction[td * hidden + o]) * own_variance(w, td / w->m->directions * hidden + o);
}

static double dot(const double *a, const double *b, uint32_t count)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (uint32_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* C = L L^T in place, C the lower triangle of what comes from the intermediate, to which the outputs' own variance is
 * added. No pivot is smaller than that: it is independent of all else. */
static void factorise(struct work *w, uint32_t token, uint32_t tile)
{
    double *l = tile_factor(w->m, token, tile);
    uint32_t n = tile_rows(w, tile), stride = w->m->tile;
    size_t first = (size_t)token * w->shape->hidden + (size_t)tile * stride;
    for (uint32_t r = 0; r < n; r++) {
        double *row = l + (size_t)r * stride, own = own_variance(w, first + r);
        for (uint32_t c = 0; c < r; c++) {
            double pivot = l[(size_t)c * stride + c];
            row[c] = pivot > 0.0 ? (row[c] - dot(row, l + (size_t)c * stride, c)) / pivot : 0.0;
        }
        row[r] = sqrt(fmax(row[r] + own - dot(row, row, r), own));
    }
}

void gb_moments_whiten(const struct gb_moments *m, uint32_t token, uint32_t tile, uint32_t count, double *values)
{
    const double *l = m->factor + ((size_t)token * m->tiles + tile) * m->tile * m->tile;
    for (uint32_t r = 0; r < count; r++) {
        const double *row = l + (size_t)r * m->tile;
        values[r] = row[r] > 0.0 ? (values[r] - dot(row, values, r)) / row[r] : 0.0;
    }
}

/* values = L^-T values. */
static void unwhiten_transposed(const struct gb_moments *m, uint32_t token, uint32_t tile, uint32_t count,
                                double *values)
{
    const double *l = m->factor + ((size_t)token * m->tiles + tile) * m->tile * m->tile;
    for (uint32_t r = count; r-- > 0;) {
        const double *row = l + (size_t)r * m->tile;
        values[r] = row[r] > 0.0 ? values[r] / row[r] : 0.0;
        for (uint32_t c = 0; c < r; c++)
            values[c] -= row[c] * values[r];
    }
}

/* A share of the output becomes the direction C^-1 share, tile by tile, of largest component 1. values: scratch. */
static void weigh_direction(struct work *w, uint32_t token, uint32_t d, double *values)
{
    struct gb_moments *m = w->m;
    size_t at = (size_t)token * m->directions + d;
    uint32_t hidden = w->shape->hidden;
    float *u = m->direction + at * hidden;
    double largest = 0.0;
    for (uint32_t k = 0; k < m->tiles; k++) {
        double *part = values + (size_t)k * m->tile;
        for (uint32_t o = 0; o < tile_rows(w, k); o++)
            part[o] = (double)u[(size_t)k * m->tile + o];
        gb_moments_whiten(m, token, k, tile_rows(w, k), part);
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

static void work_free(struct work *w)
{
    free(w->matrix);
    free(w->scaled);
    free(w->propagated);
    free(w->gathered);
    free(w->projected);
}

static double *doubles(size_t count)
{
    return calloc(count, sizeof(double));
}

static enum gb_status allocate(struct work *w, struct gb_error *error)
{
    struct gb_moments *m = w->m;
    size_t hidden = w->shape->hidden, inner = w->shape->intermediate;
    size_t along = (size_t)PAIRS_AT_ONCE * m->directions;
    m->direction = calloc((size_t)m->tokens * m->directions * hidden, sizeof(float));
    m->variance = doubles((size_t)m->tokens * m->directions);
    m->signal = doubles((size_t)m->tokens * m->directions);
    m->factor = doubles((size_t)m->tokens * m->tiles * m->tile * m->tile);
    w->matrix = doubles(hidden * inner);
    w->scaled = doubles(hidden * inner);
    w->propagated = doubles(m->tokens * hidden);
    w->gathered = doubles(along * hidden);
    w->projected = doubles(along * inner);
    if (m->direction && m->variance && m->signal && m->factor && w->matrix && w->scaled && w->propagated &&
        w->gathered && w->projected)
        return GB_OK;
    return gb_fail(error, GB_ENOMEM, "no memory for the moments of %u tokens", m->tokens);
}

/* Calls `visit` for the pairs of every expert that are among the first tokens, with its matrix at hand. */
static enum gb_status each_expert(struct work *w, const struct gb_groups *groups, const struct gb_truth_source *source,
                                  void (*visit)(struct work *w, const uint32_t *pairs, uint32_t count),
                                  struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t g = 0; status == GB_OK && g < groups->active; g++) {
        uint32_t first = groups->start[g], end = first;
        while (end < groups->start[g + 1] && groups->pair[end] / w->shape->top_k < w->m->tokens)
            end++;
        if (end == first)
            continue;
        status = source->down(source->context, groups->expert[g], w->matrix, error);
        for (uint32_t n = first; status == GB_OK && n < end; n += PAIRS_AT_ONCE)
            visit(w, groups->pair + n, end - n < PAIRS_AT_ONCE ? end - n : PAIRS_AT_ONCE);
    }
    return status;
}

static void add_pairs(struct work *w, const uint32_t *pairs, uint32_t count)
{
    for (uint32_t n = 0; n < count; n++)
        add_pair(w, pairs[n]);
}

enum gb_status gb_moments_new(const struct gb_shape *shape, const int32_t *ids, const double *routing_weights,
                              const double *intermediate, const struct gb_truth_source *source,
                              const struct gb_bounds *bounds, struct gb_moments *m, struct gb_error *error)
{
    double hidden = shape->hidden, pairs = (double)shape->top_k * shape->intermediate;
    struct gb_groups groups;
    memset(m, 0, sizeof *m);
    m->directions = shape->top_k + 1;
    m->tokens = at_most(direction_values / (m->directions * hidden), shape->tokens);
    m->tile = at_most(fmin(tile_products / pairs, tile_values) / (m->tokens * hidden), shape->hidden);
    m->tiles = (shape->hidden + m->tile - 1) / m->tile;
    struct work w = {
        .m = m, .shape = shape, .routing_weights = routing_weights, .intermediate = intermediate, .bounds = bounds};
    enum gb_status status = gb_groups_new(shape, ids, &groups, error);
    if (status != GB_OK)
        return status;
    status = allocate(&w, error);
    if (status == GB_OK)
        status = each_expert(&w, &groups, source, add_pairs, error);
    if (status == GB_OK) {
        sum_directions(m, shape->hidden);
        status = weigh(&w, error);
    }
    if (status == GB_OK)
        status = each_expert(&w, &groups, source, project_pairs, error);
    if (status == GB_OK)
        add_own_errors(&w);
    else
        gb_moments_free(m);
    work_free(&w);
    gb_groups_free(&groups);
    return status;
}

void gb_moments_free(struct gb_moments *m)
{
    free(m->direction);
    free(m->variance);
    free(m->signal);
    free(m->factor);
    memset(m, 0, sizeof *m);
}
