/* SPDX-License-Identifier: Apache-2.0 */
/* What open codes of a re-quantised intermediate may do to sums of errors: docs/numerics.md#error-covariance. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/truth/covariance.h"
#include "reference/truth/sums.h"

/* What is spent on all tokens: 256 MiB, and 2^34 products. */
static const double most_values = 0x1p25, most_products = 0x1p34;
/* A flip beyond this is no number (bounds_requantise.c): the block may be anything. */
static const double any_code = 0x1p400;
/* Of a column that lies in the span of others, this much at most is left by roundings. */
static const double dependent = 0x1p-40;

/* How many codes of a token are open, or GB_LEFT_OUT. */
static uint32_t count_open(const double *flips, size_t count)
{
    uint32_t open = 0;
    for (size_t i = 0; i < count; i++) {
        if (flips[i] > any_code)
            return GB_LEFT_OUT;
        open += flips[i] > 0.0;
    }
    return open;
}

/* covariance->open, and room in the basis. Returns how many columns there are, or -1: no memory. */
static int64_t choose(const struct gb_shape *shape, const double *flips, struct gb_covariance *m)
{
    size_t per_token = (size_t)shape->top_k * shape->intermediate;
    double hidden = shape->hidden, values = 0.0, products = 0.0;
    int64_t sum = 0;
    for (uint32_t t = 0; t < m->tokens; t++) {
        uint32_t open = count_open(flips + t * per_token, per_token);
        if (open >= shape->hidden || values + open * hidden > most_values ||
            products + (double)open * open * hidden > most_products)
            open = GB_LEFT_OUT;
        m->open[t] = open;
        if (open == GB_LEFT_OUT || open == 0)
            continue;
        m->basis[t] = calloc((size_t)open * shape->hidden, sizeof *m->basis[t]);
        if (!m->basis[t])
            return -1;
        values += open * hidden;
        products += (double)open * open * hidden;
        sum += open;
    }
    return sum;
}

enum gb_status gb_open_codes_new(const struct gb_shape *shape, const double *flips, struct gb_covariance *m,
                                 struct gb_open_codes *o, struct gb_error *error)
{
    size_t pairs = (size_t)shape->tokens * shape->top_k, at = 0;
    *o = (struct gb_open_codes){.flips = flips};
    if (!flips)
        return GB_OK;
    m->open = calloc(m->tokens, sizeof *m->open);
    m->basis = calloc(m->tokens, sizeof *m->basis);
    m->kept = malloc(sizeof *m->kept * m->tokens * shape->hidden);
    o->start = calloc(pairs + 1, sizeof *o->start);
    int64_t sum = m->open && m->basis && m->kept && o->start ? choose(shape, flips, m) : -1;
    if (sum >= 0)
        o->column = malloc(sizeof *o->column * ((size_t)sum + 1));
    if (!o->column)
        return gb_fail(error, GB_ENOMEM, "no memory for the open codes of %u tokens", shape->tokens);
    for (size_t pair = 0; pair < pairs; pair++) {
        const double *own = flips + pair * shape->intermediate;
        bool judged = pair / shape->top_k < m->tokens && m->basis[pair / shape->top_k];
        o->start[pair] = (uint32_t)at;
        for (uint32_t i = 0; judged && i < shape->intermediate; i++)
            if (own[i] > 0.0)
                o->column[at++] = i;
    }
    o->start[pairs] = (uint32_t)at;
    return GB_OK;
}

void gb_open_codes_free(struct gb_open_codes *o)
{
    free(o->start);
    free(o->column);
}

double gb_open_codes_row(const struct gb_open_codes *o, struct gb_covariance *m, uint32_t top_k, uint32_t intermediate,
                         uint32_t pair, uint32_t r, const double *row, double weight)
{
    uint32_t token = pair / top_k;
    double sum = 0.0;
    if (!o->flips)
        return sum;
    for (uint32_t n = o->start[pair]; n < o->start[pair + 1]; n++) {
        uint32_t i = o->column[n];
        m->basis[token][(size_t)(n - o->start[token * top_k]) * m->tile + r] = weight * row[i];
        sum += fabs(row[i]) * o->flips[(size_t)pair * intermediate + i];
    }
    return sum;
}

/* values -= what of them lies along the first `count` vectors, one after the other. */
static void take_out(const double *basis, uint32_t count, uint32_t hidden, double *values)
{
    for (uint32_t q = 0; q < count; q++) {
        double along = gb_sum_inner_product(basis + (size_t)q * hidden, values, hidden);
        gb_add_multiple(basis + (size_t)q * hidden, -along, hidden, values);
    }
}

static double length(const double *values, uint32_t count)
{
    return sqrt(gb_sum_inner_product(values, values, count));
}

/* Modified Gram-Schmidt, once more where most of a column was lost. Columns that others span become zero. */
static void orthonormalise(double *basis, uint32_t count, uint32_t hidden)
{
    for (uint32_t q = 0; q < count; q++) {
        double *own = basis + (size_t)q * hidden, whole = length(own, hidden), left = whole;
        take_out(basis, q, hidden, own);
        for (double before = left; (left = length(own, hidden)) < 0.5 * before && left > dependent * whole;
             before = left)
            take_out(basis, q, hidden, own);
        for (uint32_t o = 0; o < hidden; o++)
            own[o] = left > dependent * whole ? own[o] / left : 0.0;
    }
}

/* One token's columns, in units of deviation. */
static void close(struct gb_covariance *m, uint32_t token)
{
    const double *sigma = m->deviation + (size_t)token * m->tile;
    double *kept = m->kept + (size_t)token * m->tile, *basis = m->basis[token];
    uint32_t count = basis ? m->open[token] : 0;
    for (size_t i = 0; i < (size_t)count * m->tile; i++)
        basis[i] = sigma[i % m->tile] > 0.0 ? basis[i] / sigma[i % m->tile] : 0.0;
    orthonormalise(basis, count, m->tile);
    for (uint32_t o = 0; o < m->tile; o++) {
        double taken = 0.0;
        for (uint32_t q = 0; q < count; q++)
            taken += basis[(size_t)q * m->tile + o] * basis[(size_t)q * m->tile + o];
        kept[o] = fmax(0.0, 1.0 - taken);
    }
}

void gb_open_codes_close(struct gb_covariance *m)
{
#pragma omp parallel for schedule(dynamic)
    for (uint32_t t = 0; t < m->tokens; t++)
        if (m->open)
            close(m, t);
}

void gb_covariance_project(const struct gb_covariance *m, uint32_t token, double *values)
{
    if (!m->open || !m->basis[token])
        return;
    const double *sigma = m->deviation + (size_t)token * m->tile;
    for (uint32_t o = 0; o < m->tile; o++)
        values[o] = sigma[o] > 0.0 ? values[o] / sigma[o] : 0.0;
    for (int again = 0; again < 2; again++) /* what the first leaves of a large flip by its roundings */
        take_out(m->basis[token], m->open[token], m->tile, values);
    for (uint32_t o = 0; o < m->tile; o++)
        values[o] *= sigma[o];
}
