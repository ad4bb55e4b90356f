/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/compute_truth.h"
#include "harness/run/layer_inputs.h"
#include "harness/run/progress.h"
#include "harness/run/residual_stream.h"
#include "quant/quant.h"
#include "reference/reference.h"

static enum gb_status fill_experts(struct gb_fixture *f, const struct weight_source *source, uint32_t layer,
                                   struct gb_error *error)
{
    enum gb_status status = GB_OK;
#pragma omp parallel for schedule(dynamic)
    for (uint32_t e = 0; e < f->shape.experts; e++) {
        struct gb_error own;
        bool wanted = !f->generated || gb_layer_touches(f, layer, e);
        enum gb_status got = wanted ? source->expert(source->context, layer, e, &own) : GB_OK;
        if (got != GB_OK)
#pragma omp critical
            status = gb_fail(error, got, "%s", own.message);
    }
    return status;
}

/* The weights before quantisation as a source of truth. */
struct original {
    const struct gb_fixture *fixture;
    const struct weight_source *source;
    uint32_t layer;
    float *values; /* [rows, columns] of one projection */
};

static enum gb_status widen(struct original *o, uint32_t expert, enum gb_projection projection, double *matrix,
                            struct gb_error *error)
{
    size_t count = (size_t)o->fixture->shape.hidden * o->fixture->shape.intermediate;
    enum gb_status status = o->source->matrix(o->source->context, o->layer, expert, projection, o->values, error);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        matrix[i] = (double)o->values[i];
    return status;
}

static enum gb_status original_gate_up(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    struct original *o = context;
    size_t count = (size_t)o->fixture->shape.hidden * o->fixture->shape.intermediate;
    enum gb_status status = widen(o, expert, GB_GATE_PROJ, matrix, error);
    return status == GB_OK ? widen(o, expert, GB_UP_PROJ, matrix + count, error) : status;
}

static enum gb_status original_down(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    return widen(context, expert, GB_DOWN_PROJ, matrix, error);
}

/* Codes as they were published: code * scale / encoding scale. With global 1 the weights are code * scale, exactly. */
static enum gb_status published(const struct gb_weights *w, const float *encode, uint32_t expert, double *matrix)
{
    struct gb_weights scaled = *w;
    if (encode)
        scaled.global_scales = NULL;
#pragma omp parallel for schedule(static)
    for (uint32_t r = 0; r < w->rows; r++) {
        double *row = matrix + (size_t)r * w->columns;
        gb_weights_row(&scaled, expert, r, row);
        for (uint32_t c = 0; encode && c < w->columns; c++)
            row[c] /= (double)encode[(size_t)expert * w->halves + gb_weights_part(w, r)];
    }
    return GB_OK;
}

static enum gb_status published_gate_up(void *layer, uint32_t expert, double *matrix, struct gb_error *error)
{
    (void)error;
    return published(&((struct gb_layer *)layer)->gate_up, ((struct gb_layer *)layer)->encode_scales[0], expert,
                     matrix);
}

static enum gb_status published_down(void *layer, uint32_t expert, double *matrix, struct gb_error *error)
{
    (void)error;
    return published(&((struct gb_layer *)layer)->down, ((struct gb_layer *)layer)->encode_scales[1], expert, matrix);
}

static float largest_of(const gb_bf16 *values, size_t count)
{
    float largest = 0.0f;
    for (size_t i = 0; i < count; i++) {
        float magnitude = fabsf(gb_bf16_decode(values[i]));
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* The static global scales of activations, as ModelOpt calibrates them: amax / 2688, here of the fixture's own tokens
 * with bf16 activations, docs/numerics.md#quantised-activations; of data of kind `exact` powers of two. */
static enum gb_status calibrate(struct gb_fixture *f, uint32_t layer, struct gb_error *error)
{
    struct gb_layer *l = &f->layer[layer];
    size_t inner = (size_t)f->shape.tokens * f->shape.top_k * f->shape.intermediate;
    struct gb_arguments a = gb_layer_arguments(f, layer, f->shape.tokens);
    a.intermediate = malloc(sizeof(gb_bf16) * inner);
    enum gb_status status = a.intermediate
                                ? gb_reference_gate_up(gb_contract_of(&a, GB_GATE_UP, GB_ORDER_FMA32), &a, error)
                                : gb_fail(error, GB_ENOMEM, "no memory for the intermediate");
    if (status == GB_OK) {
        float largest[2] = {largest_of(l->x, (size_t)f->shape.tokens * f->shape.hidden),
                            largest_of(a.intermediate, inner)};
        for (int i = 0; i < 2; i++)
            l->activation_scales[i] = !(largest[i] > 0.0f) ? 1.0f
                                      : gb_generates_exact(f)
                                          ? gb_generate_exact_global(f, i == 1, largest[i])
                                          : largest[i] / gb_fixture_activation_rules(f)->global_largest;
    }
    free(a.intermediate);
    return status;
}

/* The static global scales of activations, where the recipe has some. */
static enum gb_status fill_scales(struct gb_fixture *f, const struct weight_source *source, uint32_t layer,
                                  struct gb_error *error)
{
    bool found = false;
    enum gb_status status = GB_OK;
    if (!f->layer[layer].activation_scales)
        return GB_OK;
    if (source->scales)
        status = source->scales(source->context, layer, f->layer[layer].activation_scales, &found, error);
    return status == GB_OK && !found ? calibrate(f, layer, error) : status;
}

/* Buffers for truth. */
struct truth_work {
    double *x;               /* [tokens, hidden] */
    double *routing_weights; /* [tokens, top_k] */
};

static enum gb_status route(struct gb_fixture *f, uint32_t layer, struct truth_work *w, struct gb_error *error)
{
    struct gb_layer *l = &f->layer[layer];
    for (size_t i = 0; i < (size_t)f->shape.tokens * f->shape.hidden; i++)
        w->x[i] = (double)gb_bf16_decode(l->x[i]);
    struct gb_arguments router = gb_route_arguments(f, layer, f->shape.tokens);
    enum gb_status status = gb_truth_router(&router, w->x, l->ids, l->truth_routing_weights, error);
    for (size_t i = 0; status == GB_OK && i < (size_t)f->shape.tokens * f->shape.top_k; i++)
        l->routing_weights[i] = (float)l->truth_routing_weights[i];
    return status;
}

/* original: NULL where it is the quantised one. */
static enum gb_status layer_truth(struct gb_fixture *f, uint32_t layer, const struct gb_truth_source *quantised,
                                  const struct gb_truth_source *original, struct truth_work *w, struct gb_error *error)
{
    struct gb_layer *l = &f->layer[layer];
    layer_inputs(f, layer, GB_FP32, w->x, w->routing_weights);
    progress("computing truth of the quantised weights", 0.4);
    enum gb_status status =
        gb_truth_layer(&f->shape, w->x, l->ids, w->routing_weights, quantised, l->truth_quantised, NULL, error);
    progress("computing truth of the original weights", 0.6);
    if (status == GB_OK && !original)
        memcpy(l->truth_original, l->truth_quantised, sizeof(double) * f->shape.tokens * f->shape.hidden);
    else if (status == GB_OK)
        status = gb_truth_layer(&f->shape, w->x, l->ids, w->routing_weights, original, l->truth_original, NULL, error);
    return status;
}

static enum gb_status all_truth(struct gb_fixture *f, struct original *o, uint32_t layer, struct truth_work *w,
                                struct gb_error *error)
{
    struct gb_layer *l = &f->layer[layer];
    struct gb_truth_quantised weights = {l->gate_up, l->down, {f->activation, l->gate_up_bias, l->down_bias}};
    struct gb_truth_source quantised = gb_truth_from_quantised(&weights);
    struct gb_truth_source original = {o, original_gate_up, original_down, weights.extension};
    bool same = !o->source->matrix && !l->encode_scales[0];
    if (!o->source->matrix)
        original = (struct gb_truth_source){l, published_gate_up, published_down, weights.extension};
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    o->layer = layer;
    enum gb_status status = layer_truth(f, layer, &quantised, same ? NULL : &original, w, error);
    if (status != GB_OK || !f->stack.residual)
        return status;
    const double *q = layer ? f->stack.truth_quantised + (layer - 1) * count : f->stack.residual;
    const double *r = layer ? f->stack.truth_original + (layer - 1) * count : f->stack.residual;
    progress("computing truth of the residual stream", 0.8);
    status = stack_truth(f, layer, &quantised, q, f->stack.truth_quantised + layer * count, error);
    if (status == GB_OK)
        status = stack_truth(f, layer, &original, r, f->stack.truth_original + layer * count, error);
    return status;
}

enum gb_status activations_choose(struct gb_fixture *f, enum gb_format activations, const char *recipe,
                                  struct gb_error *error)
{
    if (!gb_contract_find(f->weights, activations, GB_ORDER_FMA32))
        return gb_fail(error, GB_EUNSUPPORTED,
                       "--activations %s: no contract has them with %s weights; see gaugeblock list contracts",
                       gb_format_name(activations), gb_format_name(f->weights));
    return gb_fixture_quantise_activations(f, activations, recipe, error);
}

enum gb_status build_fixture(struct gb_fixture *f, const struct weight_source *source, bool routed,
                             struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden, pairs = (size_t)f->shape.tokens * f->shape.top_k;
    struct original o = {f, source, 0, malloc(sizeof(float) * f->shape.hidden * f->shape.intermediate)};
    struct truth_work w = {malloc(sizeof(double) * count), malloc(sizeof(double) * pairs)};
    enum gb_status status = GB_OK;
    if (!o.values || !w.x || !w.routing_weights)
        status = gb_fail(error, GB_ENOMEM, "no memory for the truth of %u tokens", f->shape.tokens);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        progress_enter((double)l / f->layers, (l + 1.0) / f->layers);
        progress("quantising the experts", 0.0);
        if (!routed)
            status = route(f, l, &w, error);
        if (status == GB_OK)
            status = fill_experts(f, source, l, error);
        if (status == GB_OK)
            status = fill_scales(f, source, l, error);
        if (status == GB_OK)
            status = all_truth(f, &o, l, &w, error);
        progress_leave();
    }
    progress_done();
    free(o.values);
    free(w.x);
    free(w.routing_weights);
    return status;
}

enum gb_status compute_truth(struct gb_fixture *f, struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden, pairs = (size_t)f->shape.tokens * f->shape.top_k;
    struct original o = {.fixture = f, .source = &(struct weight_source){0}};
    struct truth_work w = {malloc(sizeof(double) * count), malloc(sizeof(double) * pairs)};
    enum gb_status status = w.x && w.routing_weights
                                ? GB_OK
                                : gb_fail(error, GB_ENOMEM, "no memory for the truth of %u tokens", f->shape.tokens);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++)
        status = all_truth(f, &o, l, &w, error);
    free(w.x);
    free(w.routing_weights);
    return status;
}
