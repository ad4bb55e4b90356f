/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/reroute.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/layer_inputs.h"
#include "harness/judge/metrics.h"
#include "quant/quant.h"

/* No router gives more: a scaling factor of any published one is below 2^4. */
static const float largest_weight = 0x1p16f;

static bool same_routing(const struct gb_layer *l, const struct gb_layer_outputs *out, size_t at, size_t pairs)
{
    return !memcmp(l->ids + at, out->ids + at, pairs * sizeof *l->ids) &&
           !memcmp(l->routing_weights + at, out->routing_weights + at, pairs * sizeof *l->routing_weights);
}

static uint32_t filled(const int32_t *ids, uint32_t top_k)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < top_k; s++)
        count += ids[s] >= 0;
    return count;
}

/* The largest difference of the two weights of an expert, in ulp; -1: the experts are others. A token has an expert
 * once. */
static int64_t weights_apart(const struct gb_layer *l, const struct gb_layer_outputs *out, size_t at, uint32_t top_k)
{
    int64_t largest = 0;
    if (filled(l->ids + at, top_k) != filled(out->ids + at, top_k))
        return -1;
    for (size_t a = at; a < at + top_k; a++) {
        struct difference d;
        size_t b = at;
        while (b < at + top_k && l->ids[a] != out->ids[b])
            b++;
        if (b == at + top_k)
            return -1;
        if (l->ids[a] < 0)
            continue;
        difference_of(GB_FP32, &out->routing_weights[b], &l->routing_weights[a], 1, &d);
        int64_t ulp = d.nan_mismatching ? UINT32_MAX : (int64_t)d.max_ulp;
        largest = ulp > largest ? ulp : largest;
    }
    return largest;
}

uint32_t routing_difference(const struct gb_fixture *f, const struct gb_outputs *outputs, struct routing_difference *d)
{
    uint32_t top_k = f->shape.top_k;
    *d = (struct routing_difference){0};
    for (uint32_t l = 0; l < f->layers; l++)
        for (uint32_t t = 0; t < outputs->shape.tokens; t++) {
            size_t at = (size_t)t * top_k;
            if (same_routing(&f->layer[l], &outputs->layer[l], at, top_k))
                continue;
            int64_t apart = weights_apart(&f->layer[l], &outputs->layer[l], at, top_k);
            d->sets += apart < 0;
            d->weights += apart > 0;
            d->order += apart == 0;
            d->max_ulp = apart > 0 && (uint64_t)apart > d->max_ulp ? (uint64_t)apart : d->max_ulp;
        }
    return d->sets + d->weights + d->order;
}

bool rerouted_covers(const struct rerouted *r, const struct gb_outputs *outputs)
{
    size_t pairs = (size_t)outputs->shape.tokens * outputs->shape.top_k;
    bool same = r->fixture.layer && r->fixture.shape.tokens >= outputs->shape.tokens;
    for (uint32_t l = 0; same && l < r->fixture.layers; l++)
        same = same_routing(&r->fixture.layer[l], &outputs->layer[l], 0, pairs);
    return same;
}

static bool has_before(const int32_t *ids, uint32_t slot)
{
    for (uint32_t s = 0; s < slot; s++)
        if (ids[s] == ids[slot])
            return true;
    return false;
}

bool can_be_rerouted(const struct gb_fixture *f, const struct gb_outputs *outputs)
{
    uint32_t top_k = f->shape.top_k;
    for (uint32_t l = 0; l < f->layers; l++)
        for (size_t p = 0; p < (size_t)outputs->shape.tokens * top_k; p++) {
            int32_t id = outputs->layer[l].ids[p];
            float weight = outputs->layer[l].routing_weights[p];
            if (id < -1 || id >= (int32_t)f->shape.experts ||
                (id >= 0 && has_before(outputs->layer[l].ids + p / top_k * top_k, (uint32_t)(p % top_k))) ||
                !(fabsf(weight) <= largest_weight || (f->nonfinite && isnan(weight))))
                return false;
        }
    return true;
}

static enum gb_status generate_experts(struct gb_fixture *f, uint32_t layer, const int32_t *ids, size_t pairs,
                                       struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t e = 0; status == GB_OK && f->generated && e < f->shape.experts; e++) {
        bool used = false;
        for (size_t p = 0; p < pairs && !used; p++)
            used = ids[p] == (int32_t)e;
        if (used && !gb_layer_touches(f, layer, e))
            status = gb_generate_expert(f, layer, e, error);
    }
    return status;
}

/* Truth of the same experts and weights. */
static enum gb_status find_truth(const struct gb_fixture *view, struct gb_layer *l, struct gb_error *error)
{
    const struct gb_shape *shape = &view->shape;
    size_t inputs = (size_t)shape->tokens * shape->hidden, pairs = (size_t)shape->tokens * shape->top_k;
    struct gb_truth_quantised weights = {l->gate_up, l->down, {view->activation, l->gate_up_bias, l->down_bias}};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    double *x = malloc(sizeof *x * inputs); /* [tokens, hidden] */
    l->truth_original = NULL;
    l->truth_quantised = malloc(sizeof *l->truth_quantised * inputs);
    l->truth_routing_weights = malloc(sizeof *l->truth_routing_weights * pairs);
    enum gb_status status = GB_OK;
    if (!x || !l->truth_quantised || !l->truth_routing_weights)
        status = gb_fail(error, GB_ENOMEM, "no memory for the truth of %u tokens", shape->tokens);
    double *routing_weights = malloc(sizeof *routing_weights * pairs); /* [tokens, top_k] */
    if (status == GB_OK && !routing_weights)
        status = gb_fail(error, GB_ENOMEM, "no memory for the truth of %u tokens", shape->tokens);
    for (size_t i = 0; status == GB_OK && i < pairs; i++)
        l->truth_routing_weights[i] = (double)l->routing_weights[i];
    if (status == GB_OK) {
        layer_inputs(view, (uint32_t)(l - view->layer), GB_FP32, x, routing_weights);
        status = gb_truth_layer(shape, x, l->ids, routing_weights, &source, l->truth_quantised, NULL, error);
    }
    free(x);
    free(routing_weights);
    return status;
}

/* The layer with ids and weights of its own. */
static enum gb_status set_routing(struct gb_layer *l, const struct gb_layer_outputs *out, size_t pairs,
                                  struct gb_error *error)
{
    l->truth_quantised = l->truth_routing_weights = NULL;
    l->ids = malloc(pairs * sizeof *l->ids);
    l->routing_weights = malloc(pairs * sizeof *l->routing_weights);
    if (!l->ids || !l->routing_weights)
        return gb_fail(error, GB_ENOMEM, "no memory for the routing of %zu slots", pairs);
    memcpy(l->ids, out->ids, pairs * sizeof *l->ids);
    memcpy(l->routing_weights, out->routing_weights, pairs * sizeof *l->routing_weights);
    return GB_OK;
}

enum gb_status reroute(struct gb_fixture *f, const struct gb_outputs *outputs, struct rerouted *r,
                       struct gb_error *error)
{
    size_t pairs = (size_t)outputs->shape.tokens * f->shape.top_k;
    *r = (struct rerouted){.fixture = *f};
    r->fixture.shape.tokens = outputs->shape.tokens;
    r->fixture.stack = (struct gb_stack){0};
    r->fixture.generator[0] = '\0'; /* which promises nothing of other routing weights */
    r->fixture.layers = 0;
    r->fixture.layer = calloc(f->layers, sizeof *r->fixture.layer);
    enum gb_status status = r->fixture.layer ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %u layers", f->layers);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        r->fixture.layer[l] = f->layer[l];
        status = set_routing(&r->fixture.layer[l], &outputs->layer[l], pairs, error);
        r->fixture.layers = l + 1; /* so many have arrays of their own */
        if (status == GB_OK)
            status = generate_experts(f, l, outputs->layer[l].ids, pairs, error);
        if (status == GB_OK)
            status = find_truth(&r->fixture, &r->fixture.layer[l], error);
    }
    r->baselines.fixture = &r->fixture;
    return status;
}

void rerouted_free(struct rerouted *r)
{
    baselines_free(&r->baselines);
    for (uint32_t l = 0; r->fixture.layer && l < r->fixture.layers; l++) {
        free(r->fixture.layer[l].ids);
        free(r->fixture.layer[l].routing_weights);
        free(r->fixture.layer[l].truth_quantised);
        free(r->fixture.layer[l].truth_routing_weights);
    }
    free(r->fixture.layer);
    *r = (struct rerouted){0};
}
