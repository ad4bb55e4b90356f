/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far from truth a kernel with given rounding points may be, for any order of summation:
 * docs/numerics.md#bounds, which derives every line of error propagation here.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/truth/bounds.h"
#include "reference/truth/bounds_requantise.h"
#include "reference/truth/sums.h"
#include "reference/truth/underflow.h"

bool gb_may_truncate(uint32_t accumulator_bits)
{
    return accumulator_bits < 24;
}

/* |silu'(x)| <= 1.0998... for all x. */
static const double silu_slope = 1.1;
/* An FP32 evaluation of silu by any published form: exp (2 ulp, and where it is a fast one another 1.173 |x|), 1 + e,
 * division, product. In units of 2^-24. */
static const double silu_roundings = 8.0, silu_roundings_fast = 2.4;
/* Where FP32's exp overflows or underflows, silu(x) is below this, and below the second times |x| where exp's argument
 * is clamped at 88.376, below the logarithm of the largest number. */
static const double silu_floor = 0x1p-120, silu_clamped = 0x1p-127;
/* gpt-oss. f(g) = g * sigmoid(alpha g) = silu(alpha g) / alpha, so |f'| is below silu's slope. Rounding alpha and its
 * product moves f by at most 2^-23 max(z^2 sigmoid'(z)) / alpha, the maximum being 0.44. */
static const double sigmoid_floor = 0x1p-24;
/* No error is larger in standard deviations: P(|e| > 10 sigma) <= 2 e^-50. */
static const double likely_deviations = 10.0;
/* Flips of codes count in full: in as many standard deviations as any judge allows, sqrt(2 ln(2 / 1e-9)) = 6.5. */
enum { FEWEST_SIGMAS = 6 };

/* Half an ulp of bf16 at magnitude v: 8 significand bits, exponents from -126. Zero is exact. */
static double half_ulp_bf16(double v)
{
    int exponent;
    if (v == 0.0)
        return 0.0;
    frexp(v, &exponent); /* v in [2^(exponent-1), 2^exponent) */
    return ldexp(1.0, (exponent - 1 > -126 ? exponent - 1 : -126) - 8);
}

/* One rounding to `format` of a value that may be off by v->worst. */
static void round_to(enum gb_format format, struct spread *v)
{
    if (format != GB_BF16)
        return;
    double half = half_ulp_bf16(fabs(v->value) + v->worst);
    v->worst += half;
    v->variance += gb_squared(half) / 3.0;
    v->typical += gb_squared(half) / 3.0;
}

/* A dot product of `count` terms with exact inputs, and a bias (or NULL), accumulated in any order, rounded as
 * gate_up's are: if there is a bias, before it and after it. reach: what its factors may multiply an error by. */
static struct spread projection(const double *row, const double *x, uint32_t count, const float *bias,
                                const struct gb_rounding_points *points, double reach)
{
    struct gb_product_sums sums;
    enum gb_format format = points->stages.gate_up;
    double order = 0.0, u = ldexp(1.0, -(int)points->accumulator_bits);
    double n = count + gb_extra_roundings(points) + (bias ? 1.0 : 0.0), added = bias ? (double)*bias : 0.0;
    bool truncates = gb_may_truncate(points->accumulator_bits);
    gb_sum_products(row, x, count, &sums);
    struct spread r = {.value = sums.value};
    double absolute = sums.absolute, squares = sums.squares + gb_squared(added);
    absolute += fabs(added);
    r.underflow = gb_underflow(points, count, gb_extra_roundings(points) + 2.0, n, reach);
    r.worst = gamma_n(n, u) * absolute + r.underflow;
    if (truncates)
        order = gb_order_variance(n, u, r.value + added, squares);
    r.variance = gb_sum_variance(n, u, gb_squared(absolute), order);
    r.typical = n * gb_squared(u) * (gb_squared(r.value + added) + squares) / 3.0;
    if (bias) {
        round_to(format, &r);
        r.value += (double)*bias;
    }
    r.bias = n * u / 2.0 * r.value;
    round_to(format, &r);
    return r;
}

double gb_silu_error(double x)
{
    double silu = x / (1.0 + exp(-x));
    return (silu_roundings + silu_roundings_fast * fabs(x)) * 0x1p-24 * fabs(silu) + silu_floor +
           silu_clamped * fabs(x);
}

/* What up is multiplied by, f(gate) = g * sigmoid(z), z = alpha * g, g = gate up to the limit. */
static struct spread gate_of(const struct gb_activation_row *row, struct spread gate)
{
    bool clamped = gate.value > row->limit;
    double g = clamped ? row->limit : gate.value, z = row->alpha * g;
    double sigmoid = 1.0 / (1.0 + exp(-z)), slope = clamped ? 0.0 : sigmoid * (1.0 + z * (1.0 - sigmoid));
    struct spread f = {.value = g * sigmoid};
    double own = (silu_roundings + silu_roundings_fast * fabs(z)) * 0x1p-24 * fabs(f.value) + silu_floor +
                 silu_clamped * fabs(g);
    own += row->gate == GB_GATE_SIGMOID ? sigmoid_floor : 0.0;
    f.worst = silu_slope * gate.worst + own;
    f.variance = gb_squared(silu_slope) * gate.variance + gb_squared(own) / 3.0;
    f.typical = gb_squared(silu_slope) * gate.typical + gb_squared(own) / 3.0;
    f.bias = slope * gate.bias + copysign(own, f.value);
    f.underflow = silu_slope * gate.underflow;
    return f;
}

/* What it is multiplied with: up, or clamped up and the offset. */
static struct spread up_of(const struct gb_activation_row *row, struct spread up, double u)
{
    bool clamped = fabs(up.value) > row->limit;
    up.value = clamped ? copysign(row->limit, up.value) : up.value;
    up.bias = clamped ? 0.0 : up.bias;
    if (row->offset == 0.0)
        return up;
    up.value += row->offset;
    double rounding = u * (fabs(up.value) + up.worst);
    up.worst += rounding;
    up.variance += gb_squared(rounding) / 3.0;
    up.typical += gb_squared(rounding) / 3.0;
    up.bias += u * up.value;
    return up;
}

/* Their product, before it is rounded to the intermediate's format. */
static struct spread gated(const struct gb_activation_row *row, struct spread gate, struct spread plain_up, double u,
                           const struct gb_rounding_points *points)
{
    struct spread f = gate_of(row, gate), up = up_of(row, plain_up, u);
    round_to(points->stages.silu, &f);
    struct spread h = {.value = f.value * up.value};
    double product = u * (fabs(f.value) + f.worst) * (fabs(up.value) + up.worst);
    double flushed = gb_underflow_unit(points);
    h.worst = fabs(up.value) * f.worst + fabs(f.value) * up.worst + f.worst * up.worst + product + flushed;
    h.variance = gb_squared(up.value) * f.variance + gb_squared(f.value) * up.variance + gb_squared(product) / 3.0 +
                 gb_squared(likely_deviations) * f.variance * up.variance;
    h.typical = gb_squared(up.value) * f.typical + gb_squared(f.value) * up.typical + gb_squared(product) / 3.0 +
                f.typical * up.typical;
    h.bias = up.value * f.bias + f.value * up.bias + u * h.value;
    h.underflow = (fabs(up.value) + up.worst) * f.underflow + (fabs(f.value) + f.worst) * up.underflow + flushed;
    return h;
}

struct work {
    const struct gb_shape *shape;
    const struct gb_groups *groups;
    const double *x;               /* [tokens, hidden] */
    const double *routing_weights; /* [tokens, top_k] */
    const struct gb_truth_quantised *weights;
    const struct gb_rounding_points *points;
    const struct gb_bounds *bounds;
    double u;  /* unit roundoff of the accumulators */
    double *h; /* [pairs of the groups, SPREADS, intermediate]: of the intermediate the value, worst, variance, bias
                  and underflow */
    double *reach_x; /* [tokens]: what x may multiply an error by */
    double *reach_h; /* [pairs of the groups]: the same of the intermediate */
    struct outputs out;
};

enum { SPREADS = 5 };

static double *intermediate_of(const struct work *w, uint32_t n)
{
    return w->h + (size_t)n * SPREADS * w->shape->intermediate;
}

void gb_bound_slot(const struct gb_stage_roundings *stages, struct spread d, double own, const float *bias,
                   double weight, double *worst, double *variance)
{
    double off = d.worst + own, halves[3] = {0.0, 0.0, 0.0};
    if (bias && stages->slot == GB_BF16) {
        double half = half_ulp_bf16(fabs(d.value) + off);
        halves[0] = weight * half;
        off += half;
    }
    double magnitude = fabs(d.value + (bias ? (double)*bias : 0.0)) + off;
    if (stages->slot == GB_BF16) { /* before or after the routing weight */
        double half = half_ulp_bf16(magnitude);
        halves[1] = fmax(weight * half, half_ulp_bf16(weight * magnitude));
        magnitude += half;
    }
    if (stages->weighted == GB_BF16)
        halves[2] = half_ulp_bf16(weight * magnitude);
    for (int i = 0; i < 3; i++) {
        *worst += halves[i];
        *variance += gb_squared(halves[i]) / 3.0;
    }
}

double gb_underflow_slot(const struct gb_shape *shape, const struct gb_rounding_points *points, bool biased,
                         double weights, double values, double routing_weight)
{
    double terms = shape->intermediate, n = (double)shape->top_k * (terms + (biased ? 2.0 : 1.0));
    return gb_underflow(points, terms, gb_extra_roundings(points) + 4.0, n + gb_extra_roundings(points) + 2.0,
                        weights * values * fmax(1.0, fabs(routing_weight)));
}

/* Adds one slot's share to one output element. squares: the sum of its squared terms, if sums may truncate; bias: NULL,
 * or the element's; underflow: of its own. */
static void add_slot(struct work *w, uint32_t pair, uint32_t r, struct gb_spread_sums s, double squares,
                     const float *bias, double underflow)
{
    double n = w->shape->intermediate + gb_extra_roundings(w->points) + (bias ? 1.0 : 0.0);
    double routing_weight = w->routing_weights[pair], weight = fabs(routing_weight);
    double added = bias ? (double)*bias : 0.0;
    struct spread d = {.value = s.value, .worst = s.worst, .variance = s.variance, .bias = s.bias};
    size_t o = (size_t)(pair / w->shape->top_k) * w->shape->hidden + r;
    double *worst = &w->out.worst[o], *variance = &w->out.variance[o];
    s.absolute += fabs(added);
    gb_bound_slot(&w->points->stages, d, gamma_n(n, w->u) * s.absolute + underflow, bias, weight, worst, variance);
    w->out.underflow[o] += weight * s.underflow + underflow;
    d.value += added;
    if (gb_may_truncate(w->points->accumulator_bits)) {
        w->out.order[o] += gb_squared(weight) * gb_order_variance(n, w->u, d.value, squares + gb_squared(added));
        w->out.squares[o] += gb_squared(weight * d.value);
    }
    w->out.value[o] += routing_weight * d.value;
    *worst += weight * d.worst;
    *variance += gb_squared(weight) * d.variance;
    w->out.bias[o] += routing_weight * d.bias;
    w->out.absolute[o] += weight * s.absolute;
}

/* Outputs first .. end - 1 of all tokens. row: scratch, [intermediate]. */
static void outputs_of(struct work *w, uint32_t first, uint32_t end, double *row)
{
    const uint32_t I = w->shape->intermediate;
    const bool truncates = gb_may_truncate(w->points->accumulator_bits);
    for (uint32_t g = 0; g < w->groups->active; g++) {
        uint32_t expert = w->groups->expert[g];
        const float *bias = gb_bias_of(w->weights->extension.down_bias, expert, w->shape->hidden);
        for (uint32_t r = first; r < end; r++) {
            double reach = gb_weights_reach(&w->weights->down, expert, r);
            gb_weights_row(&w->weights->down, expert, r, row);
            for (uint32_t n = w->groups->start[g]; n < w->groups->start[g + 1]; n++) {
                const uint32_t pair = w->groups->pair[n];
                const double *h = intermediate_of(w, n);
                struct gb_spread_sums sums;
                gb_sum_spreads(row,
                               &(struct gb_spreads){h, h + I, h + 2 * (size_t)I, h + 3 * (size_t)I, h + 4 * (size_t)I},
                               I, &sums);
                add_slot(w, pair, r, sums, truncates ? gb_sum_squared_products(row, h, I) : 0.0, bias ? bias + r : NULL,
                         gb_underflow_slot(w->shape, w->points, bias, reach, w->reach_h[n], w->routing_weights[pair]));
            }
        }
    }
}

static void keep(const struct work *w, uint32_t n, uint32_t i, struct spread h)
{
    const size_t I = w->shape->intermediate;
    double *own = intermediate_of(w, n) + i;
    own[0] = h.value;
    own[I] = h.worst;
    own[2 * I] = h.variance;
    own[3 * I] = h.bias;
    own[4 * I] = h.underflow;
}

/* What is quantised. What is left of it then, a flip of a code, is no rounding noise: it counts in the worst case
 * alone.
 */
static struct spread unrounded_interval(const struct gb_requantisation *r, struct spread h)
{
    double limit = r ? fmin(h.worst, r->deviations * sqrt(h.variance) + fabs(h.bias) + h.underflow) : h.worst;
    return (struct spread){.value = h.value, .worst = limit};
}

static void put(double *array, size_t i, double value)
{
    if (array)
        array[i] = value;
}

/* Element i of the intermediate of all pairs of one expert. rows: scratch, [2, hidden]: of gate and of up. */
static void neuron(const struct work *w, uint32_t g, uint32_t i, double *rows)
{
    const uint32_t H = w->shape->hidden, I = w->shape->intermediate, expert = w->groups->expert[g];
    const struct gb_bounds *b = w->bounds;
    const float *bias = gb_bias_of(w->weights->extension.gate_up_bias, expert, 2 * I);
    gb_weights_row(&w->weights->gate_up, expert, i, rows);
    gb_weights_row(&w->weights->gate_up, expert, I + i, rows + H);
    double reach[2] = {gb_weights_reach(&w->weights->gate_up, expert, i),
                       gb_weights_reach(&w->weights->gate_up, expert, I + i)};
    for (uint32_t n = w->groups->start[g]; n < w->groups->start[g + 1]; n++) {
        size_t pair = w->groups->pair[n], at = pair * I + i;
        const size_t token = pair / w->shape->top_k;
        const double *x = w->x + token * H, own = w->reach_x[token];
        struct spread gate = projection(rows, x, H, bias ? bias + i : NULL, w->points, reach[0] * own);
        struct spread up = projection(rows + H, x, H, bias ? bias + I + i : NULL, w->points, reach[1] * own);
        struct spread h = gated(gb_activation_find(w->weights->extension.activation), gate, up, w->u, w->points);
        put(b->unrounded_worst, at, h.worst);
        put(b->unrounded_sigma, at, sqrt(h.variance));
        put(b->unrounded_typical, at, sqrt(h.typical));
        struct spread interval = unrounded_interval(w->points->requantisation, h);
        round_to(w->points->intermediate, &h);
        keep(w, n, i, w->points->requantisation ? interval : h);
        put(b->intermediate_truth, at, h.value);
        put(b->intermediate_worst, at, h.worst);
        put(b->intermediate_sigma, at, sqrt(h.variance));
        put(b->intermediate_bias, at, h.bias);
        put(b->intermediate_underflow, at, h.underflow);
    }
}

/* The intermediate of pair n of the groups becomes codes. */
static void requantise(const struct work *w, uint32_t n)
{
    const size_t I = w->shape->intermediate, at = w->groups->pair[n] * I;
    double *h = intermediate_of(w, n);
    gb_requantise_intervals(w->points->requantisation, w->shape->intermediate, h, h + I);
    if (w->bounds->requantised)
        memcpy(w->bounds->requantised + at, h, sizeof *h * I);
    if (w->bounds->flips)
        memcpy(w->bounds->flips + at, h + I, sizeof *h * I);
}

/* What the intermediate of pair n of the groups may multiply an error by. */
static double intermediate_reach(const struct work *w, uint32_t n)
{
    const struct gb_requantisation *r = w->points->requantisation;
    const double *h = intermediate_of(w, n);
    return gb_activations_reach(h, h + w->shape->intermediate, w->shape->intermediate, r ? r->rules : NULL,
                                r ? &r->global : NULL);
}

static double x_reach(const struct work *w, uint32_t token)
{
    const struct gb_requantisation *r = w->points->requantisation;
    const double *x = w->x + (size_t)token * w->shape->hidden;
    return gb_activations_reach(x, NULL, w->shape->hidden, r ? r->rules : NULL, r ? &r->x_global : NULL);
}

static enum gb_status all_rows(struct work *w, struct gb_error *error)
{
    enum { OUTPUTS = 16 }; /* of an expert at once: its pairs' intermediate stays in the cache meanwhile */
    const uint32_t H = w->shape->hidden, I = w->shape->intermediate;
    bool failed = false;
#pragma omp parallel
    {
        double *rows = gb_doubles_new(2 * (size_t)H > I ? 2 * (size_t)H : I);
        if (!rows)
#pragma omp atomic write
            failed = true;
#pragma omp for schedule(static)
        for (uint32_t t = 0; t < w->shape->tokens; t++)
            w->reach_x[t] = x_reach(w, t);
#pragma omp for collapse(2) schedule(dynamic, 16)
        for (uint32_t g = 0; g < w->groups->active; g++)
            for (uint32_t i = 0; i < I; i++)
                if (rows)
                    neuron(w, g, i, rows);
#pragma omp for schedule(dynamic)
        for (uint32_t n = 0; n < w->groups->start[w->groups->active]; n++) {
            if (w->points->requantisation)
                requantise(w, n);
            w->reach_h[n] = intermediate_reach(w, n);
        }
#pragma omp for schedule(dynamic)
        for (uint32_t r = 0; r < H; r += OUTPUTS)
            if (rows)
                outputs_of(w, r, H - r < OUTPUTS ? H : r + OUTPUTS, rows);
        free(rows);
    }
    return failed ? gb_fail(error, GB_ENOMEM, "no memory for rows of %u weights", H) : GB_OK;
}

/* The roundings of the down dot products and of the combine, whether each slot is summed alone or one sum runs over
 * all slots: at most top_k * (intermediate + 1) additions, EXTRA_ROUNDINGS, the routing weight's to FP32 and its
 * product's; then the output's. */
void gb_bound_combine(const struct gb_shape *shape, const struct gb_rounding_points *points, bool biased,
                      const struct outputs *out, const struct gb_bounds *bounds)
{
    double u = ldexp(1.0, -(int)points->accumulator_bits);
    double terms = shape->intermediate + (biased ? 1.0 : 0.0);
    double n = (double)shape->top_k * (terms + 1.0) + gb_extra_roundings(points) + 2.0;
    bool truncates = gb_may_truncate(points->accumulator_bits);
    for (size_t o = 0; o < (size_t)shape->tokens * shape->hidden; o++) {
        double order = truncates ? out->order[o] + gb_slots_variance(shape, u, out->value[o], out->squares[o]) : 0.0;
        struct spread y = {.value = out->value[o],
                           .worst = out->worst[o] + gamma_n(n, u) * out->absolute[o] + out->underflow[o],
                           .variance = out->variance[o] + gb_sum_variance(n, u, gb_squared(out->absolute[o]), order)};
        round_to(points->output, &y);
        put(bounds->output_worst, o, y.worst);
        put(bounds->output_sigma, o, sqrt(y.variance) + (points->requantisation ? out->worst[o] / FEWEST_SIGMAS : 0.0));
        put(bounds->output_truth, o, y.value);
        put(bounds->output_bias, o, out->bias[o] + n * u / 2.0 * out->value[o]);
        put(bounds->output_underflow, o, out->underflow[o]);
    }
}

bool gb_outputs_sums_new(const struct gb_shape *shape, struct outputs *out)
{
    size_t outputs = (size_t)shape->tokens * shape->hidden;
    *out = (struct outputs){calloc(outputs, sizeof(double)), calloc(outputs, sizeof(double)),
                            calloc(outputs, sizeof(double)), calloc(outputs, sizeof(double)),
                            calloc(outputs, sizeof(double)), calloc(outputs, sizeof(double)),
                            calloc(outputs, sizeof(double)), calloc(outputs, sizeof(double))};
    return out->value && out->worst && out->variance && out->bias && out->absolute && out->underflow && out->order &&
           out->squares;
}

void gb_outputs_sums_free(struct outputs *out)
{
    free(out->value);
    free(out->worst);
    free(out->variance);
    free(out->bias);
    free(out->absolute);
    free(out->underflow);
    free(out->order);
    free(out->squares);
}

static void work_free(struct work *w)
{
    free(w->h);
    free(w->reach_x);
    free(w->reach_h);
    gb_outputs_sums_free(&w->out);
}

static enum gb_status work_new(struct work *w, struct gb_error *error)
{
    size_t pairs = w->groups->start[w->groups->active];
    w->h = gb_doubles_new(SPREADS * (pairs + 1) * w->shape->intermediate);
    w->reach_x = malloc(sizeof(double) * w->shape->tokens);
    w->reach_h = malloc(sizeof(double) * (pairs + 1));
    if (gb_outputs_sums_new(w->shape, &w->out) && w->h && w->reach_x && w->reach_h)
        return GB_OK;
    return gb_fail(error, GB_ENOMEM, "no memory for the bounds of %u tokens", w->shape->tokens);
}

enum gb_status gb_bound_layer(const struct gb_shape *shape, const double *x, const int32_t *ids,
                              const double *routing_weights, const struct gb_truth_quantised *weights,
                              const struct gb_rounding_points *points, const struct gb_bounds *bounds,
                              struct gb_error *error)
{
    double *const inner[] = {bounds->intermediate_worst,    bounds->intermediate_sigma, bounds->intermediate_bias,
                             bounds->unrounded_worst,       bounds->unrounded_sigma,    bounds->unrounded_typical,
                             bounds->intermediate_truth,    bounds->requantised,        bounds->flips,
                             bounds->intermediate_underflow};
    struct gb_groups groups;
    enum gb_status status = gb_groups_new(shape, ids, &groups, error);
    if (status != GB_OK)
        return status;
    struct work w = {.shape = shape,
                     .groups = &groups,
                     .x = x,
                     .routing_weights = routing_weights,
                     .weights = weights,
                     .points = points,
                     .bounds = bounds,
                     .u = ldexp(1.0, -(int)points->accumulator_bits)};
    status = work_new(&w, error);
    for (size_t i = 0; status == GB_OK && i < sizeof inner / sizeof *inner; i++)
        if (inner[i])
            memset(inner[i], 0, sizeof(double) * shape->tokens * shape->top_k * shape->intermediate);
    if (status == GB_OK)
        status = all_rows(&w, error);
    if (status == GB_OK)
        gb_bound_combine(shape, points, weights->extension.down_bias, &w.out, bounds);
    work_free(&w);
    gb_groups_free(&groups);
    return status;
}
