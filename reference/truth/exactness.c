/* SPDX-License-Identifier: Apache-2.0 */
/* Whether every sum of a layer is exact in any order: docs/numerics.md#exact. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/operators.h"
#include "reference/truth/bounds.h"

/* Where silu(g) is g, and where it is zero, in every form. */
static const double silu_open = 32.0, silu_closed = -110.0;
/* What roundings, a scale rounded up among them, may make of a value, at most. */
static const double rounded_up = 4.0;
/* Sums and their units stay this far inside binary32's normal range. */
static const double largest_sum = 0x1p100, smallest_unit = 0x1p-100;
enum { FP32_BITS = 24, BF16_BITS = 8 };

double gb_unit(double v)
{
    const uint64_t fraction = (UINT64_C(1) << 52) - 1;
    uint64_t bits;
    double rest;
    if (v == 0.0 || !isfinite(v))
        return INFINITY;
    memcpy(&bits, &v, sizeof bits);
    bits = bits & fraction ? bits & (bits - 1) : 0; /* v without its lowest bit */
    memcpy(&rest, &bits, sizeof rest);
    return fabs(v - rest);
}

/* The common unit of a row. */
static double unit_of_all(const double *values, uint32_t count)
{
    double unit = INFINITY;
    for (uint32_t i = 0; i < count; i++)
        unit = fmin(unit, gb_unit(values[i]));
    return unit;
}

static bool has_bits(double v, int bits)
{
    return v == 0.0 || fabs(v) < gb_unit(v) * (double)(1u << bits);
}

static double bf16_of(double v)
{
    return (double)gb_bf16_decode(gb_bf16_encode((float)v));
}

/* What one layer is examined with. */
struct work {
    const struct gb_shape *shape;
    const struct gb_rounding_points *points;
    double *matrix;   /* [2 * intermediate, hidden], then [hidden, intermediate] */
    double *h;        /* [most pairs of an expert, intermediate]: what down reads */
    gb_bf16 *rounded; /* the same, before it is quantised; NULL where it is not, as are the next two */
    void *codes, *scales;
    double *sum, *unit; /* [tokens, hidden]: of the terms of each output */
    double *reach;      /* [tokens, hidden]: what an output is off if all of the intermediate is off by 1 */
    int accumulator;    /* significand bits, at most FP32's */
    struct gb_exactness *found;
    uint32_t row; /* of the matrix, that its reason is of */
};

/* The reason of the first token stands. */
static void refuse(struct gb_exactness *found, uint32_t token, const char *why)
{
    if (!found->why || token < found->token) {
        found->token = token;
        found->why = why;
    }
}

/* Of one token the reason of the first row stands, whichever thread comes first. */
static void merge(struct work *w, uint32_t row, const struct gb_exactness *found)
{
#pragma omp critical(gb_exact)
    {
        const struct gb_exactness *all = w->found;
        if (found->why && (!all->why || found->token < all->token || (found->token == all->token && row < w->row))) {
            w->found->token = found->token;
            w->found->why = found->why;
            w->row = row;
        }
        w->found->bits = fmax(w->found->bits, found->bits);
        w->found->closed_intermediate = fmax(w->found->closed_intermediate, found->closed_intermediate);
    }
}

/* Terms that are multiples of `unit` and whose magnitudes add up to `sum`: do all sums of some of them fit? global:
 * that of the activations, which all terms have as a factor; 0 for none. */
static void enter(const struct work *w, uint32_t token, double sum, double unit, float global, const char *why,
                  struct gb_exactness *found)
{
    if (sum == 0.0)
        return;
    double width = global > 0.0f ? (double)global / gb_unit((double)global) : 1.0;
    if (!(unit >= smallest_unit && sum <= largest_sum))
        refuse(found, token, "a sum leaves binary32's normal range");
    else if (!(sum <= ldexp(unit, w->accumulator)))
        refuse(found, token,
               sum / width <= ldexp(unit, w->accumulator)
                   ? "a global scale of activations has too many bits; powers of two have one"
                   : why);
    found->bits = fmax(found->bits, log2(sum / unit));
}

static double dot(const double *a, const double *b, uint32_t count, double *absolute)
{
    double value = 0.0, sum = 0.0;
#pragma omp simd reduction(+ : value, sum)
    for (uint32_t i = 0; i < count; i++) {
        double p = a[i] * b[i];
        value += p;
        sum += fabs(p);
    }
    *absolute = sum;
    return value;
}

/* One value of the intermediate from an exact gate and up. */
static double gated(const struct work *w, uint32_t token, double gate, double up, struct gb_exactness *found)
{
    const struct gb_rounding_points *p = w->points;
    double h = gate <= silu_closed ? 0.0 : gate * up;
    if (gate <= silu_closed)
        found->closed_intermediate = fmax(found->closed_intermediate, rounded_up * gb_silu_error(gate) * fabs(up));
    if (gate != 0.0 && gate < silu_open && gate > silu_closed)
        refuse(found, token, "a gate lies where forms of SiLU differ");
    if (!has_bits(h, w->accumulator))
        refuse(found, token, "silu(gate) * up has too many bits");
    if (p->stages.gate_up == GB_BF16 && !(has_bits(gate, BF16_BITS) && has_bits(up, BF16_BITS)))
        refuse(found, token, "a gate or up is not exact in bf16");
    if (p->stages.silu == GB_BF16 && h != 0.0 && !has_bits(gate, BF16_BITS))
        refuse(found, token, "silu(gate) is not exact in bf16");
    if (p->intermediate != GB_BF16 && !has_bits(h, BF16_BITS))
        refuse(found, token, "an intermediate value is not exact in bf16");
    return bf16_of(h);
}

static void gate_up(struct work *w, const uint32_t *pairs, uint32_t count, const double *x)
{
    const uint32_t H = w->shape->hidden, I = w->shape->intermediate;
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < I; i++) {
        const double *rows[] = {w->matrix + (size_t)i * H, w->matrix + (size_t)(I + i) * H};
        double units[] = {unit_of_all(rows[0], H), unit_of_all(rows[1], H)};
        struct gb_exactness found = {0};
        for (uint32_t n = 0; n < count; n++) {
            uint32_t token = pairs[n] / w->shape->top_k;
            double value[2], unit = unit_of_all(x + (size_t)token * H, H);
            for (int part = 0; part < 2; part++) {
                double sum;
                value[part] = dot(rows[part], x + (size_t)token * H, H, &sum);
                enter(w, token, sum, units[part] * unit,
                      w->points->requantisation ? w->points->requantisation->x_global : 0,
                      "a dot product of gate or up has too many bits", &found);
            }
            w->h[(size_t)n * I + i] = gated(w, token, value[0], value[1], &found);
        }
        merge(w, i, &found);
    }
}

/* The values of the codes that the recipe makes of h [count, intermediate] take its place. */
static enum gb_status requantise(struct work *w, uint32_t count, struct gb_error *error)
{
    const struct gb_requantisation *r = w->points->requantisation;
    struct gb_arguments a = {.size = sizeof a, .activation_rules = r->rules, .intermediate_scale = r->global};
    a.shape = *w->shape;
    a.shape.tokens = count;
    a.shape.top_k = 1;
    for (size_t i = 0; i < (size_t)count * w->shape->intermediate; i++)
        w->rounded[i] = gb_bf16_encode((float)w->h[i]);
    enum gb_status status = gb_reference_quantise_activations(&a, GB_DOWN, w->rounded, w->codes, w->scales, error);
    return status == GB_OK ? gb_reference_activation_values(&a, GB_DOWN, w->codes, w->scales, w->h, error) : status;
}

/* Adds the terms of one expert to its tokens' outputs. */
static void down(struct work *w, const uint32_t *pairs, uint32_t count, const double *routing_weights)
{
    const uint32_t H = w->shape->hidden, I = w->shape->intermediate;
#pragma omp parallel for schedule(static)
    for (uint32_t r = 0; r < H; r++) {
        const double *row = w->matrix + (size_t)r * I;
        double unit = unit_of_all(row, I), magnitudes = 0.0;
        struct gb_exactness found = {0};
        for (uint32_t i = 0; i < I; i++)
            magnitudes += fabs(row[i]);
        for (uint32_t n = 0; n < count; n++) {
            uint32_t token = pairs[n] / w->shape->top_k;
            const double *h = w->h + (size_t)n * I;
            double absolute, weight = routing_weights[pairs[n]], value = dot(row, h, I, &absolute);
            size_t o = (size_t)token * H + r;
            if ((w->points->stages.slot == GB_BF16 || w->points->stages.weighted == GB_BF16) &&
                !(has_bits(value, BF16_BITS) && has_bits(weight * value, BF16_BITS)))
                refuse(&found, token, "a slot's dot product is not exact in bf16");
            if (w->points->stages.routing_weight == GB_BF16 && !has_bits(weight, BF16_BITS))
                refuse(&found, token, "a routing weight is not exact in bf16");
            w->sum[o] += fabs(weight) * absolute;
            w->reach[o] += fabs(weight) * magnitudes;
            if (absolute != 0.0 && weight != 0.0)
                w->unit[o] = fmin(w->unit[o], unit * gb_unit(weight) * unit_of_all(h, I));
        }
        merge(w, r, &found);
    }
}

static enum gb_status one_expert(struct work *w, uint32_t expert, const uint32_t *pairs, uint32_t count,
                                 const double *x, const double *routing_weights, const struct gb_truth_source *source,
                                 struct gb_error *error)
{
    enum gb_status status = source->gate_up(source->context, expert, w->matrix, error);
    if (status == GB_OK)
        gate_up(w, pairs, count, x);
    if (status == GB_OK && !w->found->why && w->points->requantisation)
        status = requantise(w, count, error);
    if (status == GB_OK && !w->found->why)
        status = source->down(source->context, expert, w->matrix, error);
    if (status == GB_OK && !w->found->why)
        down(w, pairs, count, routing_weights);
    return status;
}

static enum gb_status examine(struct work *w, const struct gb_groups *groups, const double *x,
                              const double *routing_weights, const struct gb_truth_source *source,
                              struct gb_error *error)
{
    const size_t outputs = (size_t)w->shape->tokens * w->shape->hidden;
    enum gb_status status = GB_OK;
    for (size_t o = 0; o < outputs; o++)
        w->unit[o] = INFINITY;
    for (uint32_t g = 0; status == GB_OK && g < groups->active && !w->found->why; g++)
        status = one_expert(w, groups->expert[g], groups->pair + groups->start[g],
                            groups->start[g + 1] - groups->start[g], x, routing_weights, source, error);
    for (size_t o = 0; status == GB_OK && o < outputs && !w->found->why; o++)
        enter(w, (uint32_t)(o / w->shape->hidden), w->sum[o], w->unit[o],
              w->points->requantisation ? w->points->requantisation->global : 0,
              "the terms of an output have too many bits", w->found);
    double reach = 0.0;
    for (size_t o = 0; o < outputs; o++)
        reach = fmax(reach, w->reach[o]);
    w->found->closed_output = rounded_up * reach * w->found->closed_intermediate;
    return status;
}

static enum gb_status allocate(struct work *w, const struct gb_groups *groups, struct gb_error *error)
{
    const struct gb_shape *shape = w->shape;
    const size_t outputs = (size_t)shape->tokens * shape->hidden;
    const size_t inner = ((size_t)groups->most + 1) * shape->intermediate;
    w->matrix = malloc(sizeof(double) * 2 * shape->intermediate * shape->hidden);
    w->h = malloc(sizeof(double) * inner);
    w->sum = calloc(outputs, sizeof(double));
    w->unit = malloc(sizeof(double) * outputs);
    w->reach = calloc(outputs, sizeof(double));
    bool all = w->matrix && w->h && w->sum && w->unit && w->reach;
    if (w->points->requantisation) {
        w->rounded = malloc(sizeof(gb_bf16) * inner);
        w->codes = malloc(inner);
        w->scales = malloc(sizeof(float) * inner);
        all &= w->rounded && w->codes && w->scales;
    }
    return all ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory to examine %u tokens", shape->tokens);
}

enum gb_status gb_exact_layer(const struct gb_shape *shape, const double *x, const int32_t *ids,
                              const double *routing_weights, const struct gb_truth_source *source,
                              const struct gb_rounding_points *points, struct gb_exactness *found,
                              struct gb_error *error)
{
    const struct gb_extension *e = &source->extension;
    struct gb_groups groups;
    *found = (struct gb_exactness){0};
    if (e->activation != GB_SILU || e->gate_up_bias || e->down_bias) {
        found->why = "biases and other activations than SiLU are not examined";
        return GB_OK;
    }
    enum gb_status status = gb_groups_new(shape, ids, &groups, error);
    if (status != GB_OK)
        return status;
    struct work w = {
        .shape = shape,
        .points = points,
        .accumulator = points->accumulator_bits < FP32_BITS ? (int)points->accumulator_bits : FP32_BITS,
        .found = found,
    };
    status = allocate(&w, &groups, error);
    if (status == GB_OK)
        status = examine(&w, &groups, x, routing_weights, source, error);
    free(w.matrix);
    free(w.h);
    free(w.sum);
    free(w.unit);
    free(w.reach);
    free(w.rounded);
    free(w.codes);
    free(w.scales);
    gb_groups_free(&groups);
    return status;
}
