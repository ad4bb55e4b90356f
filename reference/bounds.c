/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far from truth a kernel with given rounding points may be, for any order of summation:
 * docs/numerics.md#bounds, which derives every line of error propagation here.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/dot.h"

/* |silu'(x)| <= 1.0998... for all x. */
static const double silu_slope = 1.1;
/* An FP32 evaluation of silu by any published form: exp (2 ulp, and where it is a fast one another 1.173 |x|), 1 + e,
 * division, product. In units of 2^-24. */
static const double silu_roundings = 8.0, silu_roundings_fast = 2.4;
/* Where FP32's exp overflows or underflows, silu(x) is below this. */
static const double silu_floor = 0x1p-120;
/* gpt-oss. f(g) = g * sigmoid(alpha g) = silu(alpha g) / alpha, so |f'| is below silu's slope. Rounding alpha and its
 * product moves f by at most 2^-23 max(z^2 sigmoid'(z)) / alpha, the maximum being 0.44. */
static const double swiglu_alpha = 1.702, swiglu_limit = 7.0, swiglu_floor = 0x1p-24;
/* Roundings on a term's way beside the additions: weight * scale, * global, * x, and the last. */
enum { EXTRA_ROUNDINGS = 4 };

/* A value with its worst error, the variance of its error, its error where every rounding is toward zero, and the
 * variance where partial sums are as large as terms of random signs make them. */
struct spread {
    double value, worst, variance, bias, typical;
};

/* n roundings of at most u relative each: (1 + u)^n - 1. */
static double gamma_n(double n, double u)
{
    return expm1(n * log1p(u));
}

/* Half an ulp of bf16 at magnitude v: 8 significand bits, exponents from -126. Zero is exact. */
static double half_ulp_bf16(double v)
{
    int exponent;
    if (v == 0.0)
        return 0.0;
    frexp(v, &exponent); /* v in [2^(exponent-1), 2^exponent) */
    return ldexp(1.0, (exponent - 1 > -126 ? exponent - 1 : -126) - 8);
}

static double squared(double v)
{
    return v * v;
}

/* One rounding to `format` of a value that may be off by v->worst. */
static void round_to(enum gb_format format, struct spread *v)
{
    if (format != GB_BF16)
        return;
    double half = half_ulp_bf16(fabs(v->value) + v->worst);
    v->worst += half;
    v->variance += squared(half) / 3.0;
    v->typical += squared(half) / 3.0;
}

static double sum_of_squared_terms(const double *a, const double *x, uint32_t count)
{
    double s = 0.0;
#pragma omp simd reduction(+ : s)
    for (uint32_t i = 0; i < count; i++)
        s += (a[i] * x[i]) * (a[i] * x[i]);
    return s;
}

/* sum of a[i] * x[i] and of |a[i] * x[i]|. */
static void dot_and_absolute(const double *a, const double *x, uint32_t count, double *dot, double *absolute)
{
    double d = 0.0, s = 0.0;
#pragma omp simd reduction(+ : d, s)
    for (uint32_t i = 0; i < count; i++) {
        double p = a[i] * x[i];
        d += p;
        s += fabs(p);
    }
    *dot = d;
    *absolute = s;
}

/* A dot product of `count` terms with exact inputs, and a bias (or NULL), accumulated with unit roundoff u in any
 * order, rounded to `format`: if there is a bias, before it and after it. typical: whether that is asked for. */
static struct spread projection(const double *row, const double *x, uint32_t count, const float *bias, double u,
                                enum gb_format format, bool typical)
{
    struct spread r = {0};
    double absolute;
    double n = count + (double)EXTRA_ROUNDINGS + (bias ? 1.0 : 0.0);
    dot_and_absolute(row, x, count, &r.value, &absolute);
    absolute += bias ? fabs((double)*bias) : 0.0;
    r.worst = gamma_n(n, u) * absolute;
    r.variance = n * squared(u * absolute) / 3.0;
    if (typical)
        r.typical = sum_of_squared_terms(row, x, count) + (bias ? squared((double)*bias) : 0.0);
    r.typical = n * squared(u) * (squared(r.value + (bias ? (double)*bias : 0.0)) + r.typical) / 3.0;
    if (bias) {
        round_to(format, &r);
        r.value += (double)*bias;
    }
    r.bias = n * u / 2.0 * r.value;
    round_to(format, &r);
    return r;
}

/* What up is multiplied by, f(gate) = g * sigmoid(z): z = g = gate in SiLU, alpha * g with a clamped g in gpt-oss. */
static struct spread gate_of(enum gb_activation activation, struct spread gate)
{
    bool oai = activation == GB_SWIGLU_OAI, clamped = oai && gate.value > swiglu_limit;
    double g = clamped ? swiglu_limit : gate.value, z = oai ? swiglu_alpha * g : g;
    double sigmoid = 1.0 / (1.0 + exp(-z)), slope = clamped ? 0.0 : sigmoid * (1.0 + z * (1.0 - sigmoid));
    struct spread f = {.value = g * sigmoid};
    double own = (silu_roundings + silu_roundings_fast * fabs(z)) * 0x1p-24 * fabs(f.value) + silu_floor;
    own += oai ? swiglu_floor : 0.0;
    f.worst = silu_slope * gate.worst + own;
    f.variance = squared(silu_slope) * gate.variance + squared(own) / 3.0;
    f.typical = squared(silu_slope) * gate.typical + squared(own) / 3.0;
    f.bias = slope * gate.bias + copysign(own, f.value);
    return f;
}

/* What it is multiplied with: up, or gpt-oss's clamped up and 1. */
static struct spread up_of(enum gb_activation activation, struct spread up, double u)
{
    if (activation != GB_SWIGLU_OAI)
        return up;
    bool clamped = fabs(up.value) > swiglu_limit;
    up.value = 1.0 + (clamped ? copysign(swiglu_limit, up.value) : up.value);
    double rounding = u * (fabs(up.value) + up.worst);
    up.worst += rounding;
    up.variance += squared(rounding) / 3.0;
    up.typical += squared(rounding) / 3.0;
    up.bias = (clamped ? 0.0 : up.bias) + u * up.value;
    return up;
}

/* Their product, before it is rounded to the intermediate's format. */
static struct spread gated(enum gb_activation activation, struct spread gate, struct spread plain_up, double u,
                           const struct gb_rounding_points *points)
{
    struct spread f = gate_of(activation, gate), up = up_of(activation, plain_up, u);
    round_to(points->stages.silu, &f);
    struct spread h = {.value = f.value * up.value};
    double product = u * (fabs(f.value) + f.worst) * (fabs(up.value) + up.worst);
    h.worst = fabs(up.value) * f.worst + fabs(f.value) * up.worst + f.worst * up.worst + product;
    h.variance = squared(up.value) * f.variance + squared(f.value) * up.variance + squared(product) / 3.0;
    h.typical = squared(up.value) * f.typical + squared(f.value) * up.typical + squared(product) / 3.0;
    h.bias = up.value * f.bias + f.value * up.bias + u * h.value;
    return h;
}

/* The intermediate of one pair, split into arrays so that sums over it vectorise. */
struct hidden_row {
    double *value, *worst, *variance, *bias; /* [intermediate] each */
};

/* row . h, where h carries errors; the roundings of this dot product itself are counted in finish().
 * The absolute sum over |h| + worst is also returned. */
static struct spread projection_of_spread(const double *row, const struct hidden_row *h, uint32_t count,
                                          double *absolute)
{
    double value = 0.0, s = 0.0, worst = 0.0, variance = 0.0, bias = 0.0;
#pragma omp simd reduction(+ : value, s, worst, variance, bias)
    for (uint32_t i = 0; i < count; i++) {
        double w = fabs(row[i]);
        value += row[i] * h->value[i];
        s += w * (fabs(h->value[i]) + h->worst[i]);
        worst += w * h->worst[i];
        variance += w * w * h->variance[i];
        bias += row[i] * h->bias[i];
    }
    *absolute = s;
    return (struct spread){.value = value, .worst = worst, .variance = variance, .bias = bias};
}

/* What is summed over the slots of a token for one output element. */
struct outputs {
    double *value, *worst, *variance, *bias, *absolute; /* [tokens, hidden] each */
};

struct work {
    double *matrix;           /* [2 * intermediate, hidden], then [hidden, intermediate] */
    struct hidden_row *pairs; /* [most pairs of an expert] */
    double *storage;          /* behind pairs: [most, 4, intermediate] */
    struct outputs out;
};

/* What the declared roundings of a slot add to an output. d: its dot product, which lies within d.worst + own of the
 * kernel's; bias: what is added to it, rounded before that and after it, or NULL. */
static void round_slot(const struct gb_stage_roundings *stages, struct spread d, double own, const float *bias,
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
        *variance += squared(halves[i]) / 3.0;
    }
}

/* bias: [hidden], this expert's, or NULL. */
static void add_expert(const struct gb_shape *shape, const uint32_t *pairs, uint32_t count,
                       const double *routing_weights, const float *bias, const struct gb_rounding_points *points,
                       struct work *w)
{
    double u = ldexp(1.0, -(int)points->accumulator_bits);
    double n_slot = shape->intermediate + (double)EXTRA_ROUNDINGS + (bias ? 1.0 : 0.0);
    uint32_t H = shape->hidden, I = shape->intermediate;
#pragma omp parallel for schedule(static)
    for (uint32_t r = 0; r < H; r++)
        for (uint32_t n = 0; n < count; n++) {
            double absolute, weight = fabs(routing_weights[pairs[n]]);
            struct spread d = projection_of_spread(w->matrix + (size_t)r * I, &w->pairs[n], I, &absolute);
            size_t o = (size_t)(pairs[n] / shape->top_k) * H + r;
            double *worst = &w->out.worst[o], *variance = &w->out.variance[o];
            absolute += bias ? fabs((double)bias[r]) : 0.0;
            round_slot(&points->stages, d, gamma_n(n_slot, u) * absolute, bias ? bias + r : NULL, weight, worst,
                       variance);
            d.value += bias ? (double)bias[r] : 0.0;
            w->out.value[o] += routing_weights[pairs[n]] * d.value;
            *worst += weight * d.worst;
            *variance += squared(weight) * d.variance;
            w->out.bias[o] += routing_weights[pairs[n]] * d.bias;
            w->out.absolute[o] += weight * absolute;
        }
}

static void put(double *array, size_t i, double value)
{
    if (array)
        array[i] = value;
}

static enum gb_status one_expert(const struct gb_shape *shape, uint32_t expert, const uint32_t *pairs, uint32_t count,
                                 const double *x, const double *routing_weights, const struct gb_truth_source *source,
                                 const struct gb_rounding_points *points, struct work *w,
                                 const struct gb_bounds *bounds, struct gb_error *error)
{
    uint32_t H = shape->hidden, I = shape->intermediate;
    double u = ldexp(1.0, -(int)points->accumulator_bits);
    const float *bias = gb_bias_of(source->extension.gate_up_bias, expert, 2 * I);
    const enum gb_format stored = points->stages.gate_up;
    const bool typical = bounds->unrounded_typical;
    enum gb_status status = source->gate_up(source->context, expert, w->matrix, error);
    if (status != GB_OK)
        return status;
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < I; i++)
        for (uint32_t n = 0; n < count; n++) {
            const double *token = x + (size_t)(pairs[n] / shape->top_k) * H;
            struct spread gate =
                projection(w->matrix + (size_t)i * H, token, H, bias ? bias + i : NULL, u, stored, typical);
            struct spread up =
                projection(w->matrix + (size_t)(I + i) * H, token, H, bias ? bias + I + i : NULL, u, stored, typical);
            struct spread h = gated(source->extension.activation, gate, up, u, points);
            put(bounds->unrounded_worst, (size_t)pairs[n] * I + i, h.worst);
            put(bounds->unrounded_sigma, (size_t)pairs[n] * I + i, sqrt(h.variance));
            put(bounds->unrounded_typical, (size_t)pairs[n] * I + i, sqrt(h.typical));
            round_to(points->intermediate, &h);
            w->pairs[n].value[i] = h.value;
            w->pairs[n].worst[i] = h.worst;
            w->pairs[n].variance[i] = h.variance;
            w->pairs[n].bias[i] = h.bias;
            put(bounds->intermediate_worst, (size_t)pairs[n] * I + i, h.worst);
            put(bounds->intermediate_sigma, (size_t)pairs[n] * I + i, sqrt(h.variance));
            put(bounds->intermediate_bias, (size_t)pairs[n] * I + i, h.bias);
        }
    status = source->down(source->context, expert, w->matrix, error);
    if (status == GB_OK)
        add_expert(shape, pairs, count, routing_weights, gb_bias_of(source->extension.down_bias, expert, H), points, w);
    return status;
}

/* The roundings of the down dot products and of the combine, whether each slot is summed alone or one sum runs over
 * all slots: at most top_k * (intermediate + 1) additions, EXTRA_ROUNDINGS, the routing weight's to FP32 and its
 * product's; then the output's. */
static void finish(const struct gb_shape *shape, const struct gb_rounding_points *points, bool biased,
                   const struct outputs *out, const struct gb_bounds *bounds)
{
    double u = ldexp(1.0, -(int)points->accumulator_bits);
    double terms = shape->intermediate + (biased ? 1.0 : 0.0);
    double n = (double)shape->top_k * (terms + 1.0) + EXTRA_ROUNDINGS + 2.0;
    for (size_t o = 0; o < (size_t)shape->tokens * shape->hidden; o++) {
        struct spread y = {.value = out->value[o],
                           .worst = out->worst[o] + gamma_n(n, u) * out->absolute[o],
                           .variance = out->variance[o] + n * squared(u * out->absolute[o]) / 3.0};
        round_to(points->output, &y);
        put(bounds->output_worst, o, y.worst);
        put(bounds->output_sigma, o, sqrt(y.variance));
        put(bounds->output_bias, o, out->bias[o] + n * u / 2.0 * out->value[o]);
    }
}

static void work_free(struct work *w)
{
    free(w->matrix);
    free(w->pairs);
    free(w->storage);
    free(w->out.value);
    free(w->out.worst);
    free(w->out.variance);
    free(w->out.bias);
    free(w->out.absolute);
    memset(w, 0, sizeof *w);
}

static enum gb_status work_new(const struct gb_shape *shape, uint32_t most, struct work *w, struct gb_error *error)
{
    size_t outputs = (size_t)shape->tokens * shape->hidden, I = shape->intermediate;
    *w = (struct work){
        .matrix = malloc(sizeof(double) * 2 * I * shape->hidden),
        .pairs = malloc(sizeof(struct hidden_row) * (most + 1)),
        .storage = malloc(sizeof(double) * (most + 1) * 4 * I),
        .out = {calloc(outputs, sizeof(double)), calloc(outputs, sizeof(double)), calloc(outputs, sizeof(double)),
                calloc(outputs, sizeof(double)), calloc(outputs, sizeof(double))},
    };
    if (!w->matrix || !w->pairs || !w->storage || !w->out.value || !w->out.worst || !w->out.variance || !w->out.bias ||
        !w->out.absolute) {
        work_free(w);
        return gb_fail(error, GB_ENOMEM, "no memory for the bounds of %u tokens", shape->tokens);
    }
    for (size_t n = 0; n < most; n++)
        w->pairs[n] = (struct hidden_row){w->storage + 4 * n * I, w->storage + (4 * n + 1) * I,
                                          w->storage + (4 * n + 2) * I, w->storage + (4 * n + 3) * I};
    return GB_OK;
}

enum gb_status gb_bound_layer(const struct gb_shape *shape, const double *x, const int32_t *ids,
                              const double *routing_weights, const struct gb_truth_source *source,
                              const struct gb_rounding_points *points, const struct gb_bounds *bounds,
                              struct gb_error *error)
{
    double *const inner[] = {bounds->intermediate_worst, bounds->intermediate_sigma, bounds->intermediate_bias,
                             bounds->unrounded_worst,    bounds->unrounded_sigma,    bounds->unrounded_typical};
    struct gb_groups groups;
    struct work w;
    enum gb_status status = gb_groups_new(shape, ids, &groups, error);
    if (status != GB_OK)
        return status;
    status = work_new(shape, groups.most, &w, error);
    for (size_t i = 0; status == GB_OK && i < sizeof inner / sizeof *inner; i++)
        if (inner[i])
            memset(inner[i], 0, sizeof(double) * shape->tokens * shape->top_k * shape->intermediate);
    for (uint32_t g = 0; status == GB_OK && g < groups.active; g++)
        status =
            one_expert(shape, groups.expert[g], groups.pair + groups.start[g], groups.start[g + 1] - groups.start[g], x,
                       routing_weights, source, points, &w, bounds, error);
    if (status == GB_OK)
        finish(shape, points, source->extension.down_bias, &w.out, bounds);
    work_free(&w);
    gb_groups_free(&groups);
    return status;
}
