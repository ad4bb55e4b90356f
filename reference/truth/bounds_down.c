/* SPDX-License-Identifier: Apache-2.0 */
/* down alone, on an intermediate that is given and therefore exact: docs/numerics.md#stages. */
#include <math.h>
#include <stdlib.h>

#include "reference/truth/bounds.h"
#include "reference/truth/covariance.h"
#include "reference/truth/sums.h"
#include "reference/truth/underflow.h"

struct work {
    const struct gb_shape *shape;
    const struct gb_groups *groups;
    const double *intermediate;    /* [tokens, top_k, intermediate] */
    const double *routing_weights; /* [tokens, top_k] */
    double *reach;                 /* [tokens, top_k]: what the intermediate may multiply an error by */
    const struct gb_truth_quantised *weights;
    const struct gb_rounding_points *points;
    struct outputs out;
    struct gb_covariance *covariance;
    struct gb_open_codes open;
};

/* Adds one slot's share to output r. row: [intermediate], its weights, and reach, what they may multiply an error by;
 * bias: NULL, or the output's. */
static void add_slot(struct work *w, uint32_t pair, uint32_t r, const double *row, double reach, const float *bias)
{
    const uint32_t top_k = w->shape->top_k, I = w->shape->intermediate, token = pair / top_k;
    double n = I + gb_extra_roundings(w->points) + (bias ? 1.0 : 0.0), weight = w->routing_weights[pair];
    double u = ldexp(1.0, -(int)w->points->accumulator_bits);
    size_t o = (size_t)token * w->shape->hidden + r;
    struct gb_product_sums sums;
    gb_sum_products(row, w->intermediate + (size_t)pair * I, I, &sums);
    struct spread d = {.value = sums.value};
    double absolute = sums.absolute;
    absolute += bias ? fabs((double)*bias) : 0.0;
    absolute += gb_open_codes_row(&w->open, w->covariance, top_k, I, pair, r, row, weight);
    double underflow = gb_underflow_slot(w->shape, w->points, bias, reach, w->reach[pair], weight);
    gb_bound_slot(&w->points->stages, d, gamma_n(n, u) * absolute + underflow, bias, fabs(weight), &w->out.worst[o],
                  &w->out.variance[o]);
    w->out.underflow[o] += underflow;
    d.value += bias ? (double)*bias : 0.0;
    if (gb_may_truncate(w->points->accumulator_bits)) {
        double squares = sums.squares + (bias ? gb_squared((double)*bias) : 0.0);
        w->out.order[o] += gb_squared(weight) * gb_order_variance(n, u, d.value, squares);
        w->out.squares[o] += gb_squared(weight * d.value);
    }
    w->out.value[o] += weight * d.value;
    w->out.absolute[o] += fabs(weight) * absolute;
    if (token < w->covariance->tokens)
        gb_covariance_slot(w->covariance, token, pair % top_k)[r] = (float)(weight * d.value);
}

static void add_row(struct work *w, uint32_t r, double *row)
{
    for (uint32_t g = 0; g < w->groups->active; g++) {
        const float *bias = gb_bias_of(w->weights->extension.down_bias, w->groups->expert[g], w->shape->hidden);
        double reach = gb_weights_reach(&w->weights->down, w->groups->expert[g], r);
        gb_weights_row(&w->weights->down, w->groups->expert[g], r, row);
        for (uint32_t n = w->groups->start[g]; n < w->groups->start[g + 1]; n++)
            add_slot(w, w->groups->pair[n], r, row, reach, bias ? bias + r : NULL);
    }
}

static enum gb_status add_rows(struct work *w, struct gb_error *error)
{
    bool failed = false;
#pragma omp parallel
    {
        double *row = malloc(sizeof *row * w->shape->intermediate); /* [intermediate] */
        if (!row)
#pragma omp atomic write
            failed = true;
#pragma omp for schedule(dynamic, 8)
        for (uint32_t r = 0; r < w->shape->hidden; r++)
            if (row)
                add_row(w, r, row);
        free(row);
    }
    return failed ? gb_fail(error, GB_ENOMEM, "no memory for a row of %u weights", w->shape->intermediate) : GB_OK;
}

static enum gb_status find_reach(struct work *w, const double *flips, struct gb_error *error)
{
    const struct gb_requantisation *r = w->points->requantisation;
    const size_t pairs = (size_t)w->shape->tokens * w->shape->top_k, I = w->shape->intermediate;
    w->reach = malloc(sizeof *w->reach * pairs);
    if (!w->reach)
        return gb_fail(error, GB_ENOMEM, "no memory for the bounds of %u tokens", w->shape->tokens);
    for (size_t pair = 0; pair < pairs; pair++)
        w->reach[pair] = gb_activations_reach(w->intermediate + pair * I, flips ? flips + pair * I : NULL, (uint32_t)I,
                                              r ? r->rules : NULL, r ? &r->global : NULL);
    return GB_OK;
}

enum gb_status gb_bound_down(const struct gb_shape *shape, const double *intermediate, const double *flips,
                             const int32_t *ids, const double *routing_weights,
                             const struct gb_truth_quantised *weights, const struct gb_rounding_points *points,
                             const struct gb_bounds *bounds, struct gb_covariance *covariance, struct gb_error *error)
{
    struct gb_groups groups;
    struct work w = {.shape = shape,
                     .groups = &groups,
                     .intermediate = intermediate,
                     .routing_weights = routing_weights,
                     .weights = weights,
                     .points = points,
                     .covariance = covariance};
    *covariance = (struct gb_covariance){0};
    enum gb_status status = gb_groups_new(shape, ids, &groups, error);
    if (status != GB_OK)
        return status;
    status = gb_covariance_start(shape, covariance, error);
    if (status == GB_OK)
        status = gb_open_codes_new(shape, flips, covariance, &w.open, error);
    if (!gb_outputs_sums_new(shape, &w.out) && status == GB_OK)
        status = gb_fail(error, GB_ENOMEM, "no memory for the bounds of %u tokens", shape->tokens);
    if (status == GB_OK)
        status = find_reach(&w, flips, error);
    if (status == GB_OK)
        status = add_rows(&w, error);
    if (status == GB_OK) {
        gb_bound_combine(shape, points, weights->extension.down_bias, &w.out, bounds);
        status = gb_covariance_independent(bounds, covariance, error);
    }
    if (status != GB_OK)
        gb_covariance_free(covariance);
    gb_open_codes_free(&w.open);
    gb_outputs_sums_free(&w.out);
    free(w.reach);
    gb_groups_free(&groups);
    return status;
}
