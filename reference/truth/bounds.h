/* SPDX-License-Identifier: Apache-2.0 */
/* Private: what the bounds of a whole layer and of down alone have in common. docs/numerics.md#bounds. */
#ifndef GB_REFERENCE_TRUTH_BOUNDS_H
#define GB_REFERENCE_TRUTH_BOUNDS_H

#include <math.h>

#include "reference/operators.h"

/* Roundings on a term's way beside the additions: weight * scale, * global, * x, and the last. */
enum { EXTRA_ROUNDINGS = 4 };
/* And of quantised activations: by their block scale, and of both global scales' product. */
enum { QUANTISED_ROUNDINGS = 2 };

static inline double gb_extra_roundings(const struct gb_rounding_points *points)
{
    return points->requantisation ? EXTRA_ROUNDINGS + QUANTISED_ROUNDINGS : EXTRA_ROUNDINGS;
}

/* n roundings of at most u relative each: (1 + u)^n - 1. */
static inline double gamma_n(double n, double u)
{
    return expm1(n * log1p(u));
}

static inline double gb_squared(double v)
{
    return v * v;
}

/* T: what truncating sums of n roundings lose depends on the order, with this variance. sum: of the terms; squares: of
 * their squares. */
static inline double gb_order_variance(double n, double u, double sum, double squares)
{
    return gb_squared((n + 1.0) * u) * (squares + gb_squared(sum) / 16.0) / 16.0;
}

/* What the order of a token's slots adds to that if one sum is over them all. squares: of the slots' shares of an
 * output, whose sum is `sum`. */
static inline double gb_slots_variance(const struct gb_shape *shape, double u, double sum, double squares)
{
    double n = (shape->top_k + 1.0) * (shape->intermediate + 1.0);
    return gb_squared(n * u) * fmax(squares - gb_squared(sum) / shape->top_k, 0.0) / 16.0;
}

/* V: of the roundings of a sum. square: (sum of magnitudes)^2; order: T, 0 where sums round to nearest. */
static inline double gb_sum_variance(double n, double u, double square, double order)
{
    double nearest = n * gb_squared(u) * square / 3.0;
    return fmax(nearest, nearest / 4.0 + order);
}

/* The largest power of two that v is a multiple of; infinite for 0 (exactness.c). */
double gb_unit(double v);

/* A value with its worst error, the variance of its error, its error where every rounding is toward zero, the
 * variance where partial sums are as large as terms of random signs make them, and what underflow may do to it, which
 * worst counts, too. */
struct spread {
    double value, worst, variance, bias, typical, underflow;
};

/* What is summed over the slots of a token for one output element. */
struct outputs {
    double *value, *worst, *variance, *bias, *absolute, *underflow; /* [tokens, hidden] each */
    double *order, *squares; /* the same, if sums may truncate; of T, and of shares */
};

/* False: no memory. Zeroed. */
bool gb_outputs_sums_new(const struct gb_shape *shape, struct outputs *out);
void gb_outputs_sums_free(struct outputs *out);

/* What the declared roundings of a slot add to an output. d: its dot product, which lies within d.worst + own of the
 * kernel's; bias: what is added to it, rounded before that and after it, or NULL. */
void gb_bound_slot(const struct gb_stage_roundings *stages, struct spread d, double own, const float *bias,
                   double weight, double *worst, double *variance);
/* What underflow does to a slot's share of an output. weights, values: what weights and the intermediate may multiply
 * an error by (reference/truth/underflow.h). */
double gb_underflow_slot(const struct gb_shape *shape, const struct gb_rounding_points *points, bool biased,
                         double weights, double values, double routing_weight);
/* What the down dot products' own roundings and the combine add: fills output_* of bounds. */
void gb_bound_combine(const struct gb_shape *shape, const struct gb_rounding_points *points, bool biased,
                      const struct outputs *out, const struct gb_bounds *bounds);

#endif
