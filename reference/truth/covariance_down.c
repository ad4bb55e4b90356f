/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/truth/covariance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"

/* As in covariance.c: directions take at most 256 MiB. */
static const double direction_values = 0x1p26;

enum gb_status gb_covariance_start(const struct gb_shape *shape, struct gb_covariance *m, struct gb_error *error)
{
    size_t hidden = shape->hidden, directions = (size_t)shape->top_k + 1;
    double most = fmax(1.0, direction_values / (double)(directions * hidden));
    *m = (struct gb_covariance){.tokens = most < shape->tokens ? (uint32_t)most : shape->tokens,
                                .directions = (uint32_t)directions,
                                .tile = shape->hidden,
                                .tiles = 1};
    m->direction = calloc(m->tokens * directions * hidden, sizeof *m->direction);
    m->variance = calloc(m->tokens * directions, sizeof *m->variance);
    m->signal = calloc(m->tokens * directions, sizeof *m->signal);
    m->deviation = calloc(m->tokens * hidden, sizeof *m->deviation);
    m->underflow = calloc(m->tokens, sizeof *m->underflow);
    return m->direction && m->variance && m->signal && m->deviation && m->underflow
               ? GB_OK
               : gb_fail(error, GB_ENOMEM, "no memory for the covariance of %u tokens", m->tokens);
}

float *gb_covariance_slot(const struct gb_covariance *m, uint32_t token, uint32_t slot)
{
    return m->direction + ((size_t)token * m->directions + slot) * m->tile;
}

/* A share becomes the direction share / sigma^2, of largest component 1. values: scratch, [hidden]. */
static void weigh(struct gb_covariance *m, uint32_t token, uint32_t d, double *values)
{
    size_t at = (size_t)token * m->directions + d;
    const double *sigma = m->deviation + (size_t)token * m->tile;
    float *u = gb_covariance_slot(m, token, d);
    double largest = 0.0;
    for (uint32_t o = 0; o < m->tile; o++)
        values[o] = (double)u[o];
    gb_covariance_project(m, token, values);
    for (uint32_t o = 0; o < m->tile; o++)
        largest = fmax(largest, sigma[o] > 0.0 ? fabs(values[o]) / (sigma[o] * sigma[o]) : 0.0);
    for (uint32_t o = 0; o < m->tile; o++) {
        double along;
        u[o] = largest > 0.0 && sigma[o] > 0.0 ? (float)(values[o] / (sigma[o] * sigma[o]) / largest) : 0.0f;
        along = (double)u[o] * sigma[o];
        m->signal[at] += (double)u[o] * values[o];
        m->variance[at] += along * along;
    }
}

enum gb_status gb_covariance_independent(const struct gb_bounds *of, struct gb_covariance *m, struct gb_error *error)
{
    double *values = malloc(sizeof *values * m->tokens * m->tile); /* [tokens, hidden] */
    if (!values)
        return gb_fail(error, GB_ENOMEM, "no memory for the covariance of %u tokens", m->tokens);
    for (size_t i = 0; i < (size_t)m->tokens * m->tile; i++) {
        double underflow = of->output_underflow ? of->output_underflow[i] : 0.0;
        m->deviation[i] = hypot(of->output_sigma[i], underflow);
        if (underflow > 0.0)
            m->underflow[i / m->tile] += underflow / m->deviation[i] * (underflow / m->deviation[i]);
    }
    gb_open_codes_close(m);
#pragma omp parallel for schedule(static)
    for (uint32_t t = 0; t < m->tokens; t++) {
        float *all = gb_covariance_slot(m, t, m->directions - 1);
        for (uint32_t d = 0; d + 1 < m->directions; d++)
            for (uint32_t o = 0; o < m->tile; o++)
                all[o] += gb_covariance_slot(m, t, d)[o];
        for (uint32_t d = 0; d < m->directions; d++)
            weigh(m, t, d, values + (size_t)t * m->tile);
    }
    free(values);
    return GB_OK;
}
