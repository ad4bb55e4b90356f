/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/judge/drift.h"
#include "harness/run/residual_stream.h"
#include "quant/quant.h"
#include "reference/reference.h"

/* Buffers for the routing of one stream into one layer. */
struct routing {
    double *state;         /* [tokens, hidden] */
    double *normed;        /* [tokens, hidden] */
    gb_bf16 *x;            /* [tokens, hidden] */
    float *weights;        /* [tokens, top_k] */
    double *truth_weights; /* [tokens, top_k] */
    int32_t *ids;          /* [tokens, top_k] */
    int32_t *truth_ids;    /* [tokens, top_k] */
};

static void routing_free(struct routing *r)
{
    free(r->state);
    free(r->normed);
    free(r->x);
    free(r->weights);
    free(r->truth_weights);
    free(r->ids);
    free(r->truth_ids);
}

static enum gb_status routing_new(const struct gb_shape *shape, struct routing *r, struct gb_error *error)
{
    size_t count = (size_t)shape->tokens * shape->hidden, pairs = (size_t)shape->tokens * shape->top_k;
    *r = (struct routing){malloc(sizeof(double) * count),  malloc(sizeof(double) * count),
                          malloc(sizeof(gb_bf16) * count), malloc(sizeof(float) * pairs),
                          malloc(sizeof(double) * pairs),  malloc(sizeof(int32_t) * pairs),
                          malloc(sizeof(int32_t) * pairs)};
    if (r->state && r->normed && r->x && r->weights && r->truth_weights && r->ids && r->truth_ids)
        return GB_OK;
    routing_free(r);
    return gb_fail(error, GB_ENOMEM, "no memory for the drift of %u tokens", shape->tokens);
}

/* The residual stream before `layer`, of a stack of `tokens` tokens. */
static const double *before(const struct gb_fixture *f, const double *stack, uint32_t tokens, uint32_t layer)
{
    return layer ? stack + (size_t)(layer - 1) * tokens * f->shape.hidden : f->stack.residual;
}

/* Truth's experts in `layer`, on its own stream: nothing rounded. */
static enum gb_status route_truth(const struct gb_fixture *f, const struct gb_shape *shape, uint32_t layer,
                                  struct routing *r, struct gb_error *error)
{
    size_t all = (size_t)f->shape.tokens * f->shape.hidden;
    const double *state = before(f, f->stack.truth_quantised, f->shape.tokens, layer);
    for (size_t i = 0; i < (size_t)shape->tokens * shape->hidden; i++)
        r->state[i] = state[i] + (f->stack.attention_delta ? f->stack.attention_delta[layer * all + i] : 0.0);
    for (uint32_t t = 0; t < shape->tokens; t++)
        gb_rms_norm(r->state + (size_t)t * shape->hidden, f->layer[layer].norm, shape->hidden, f->rms_norm_epsilon,
                    r->normed + (size_t)t * shape->hidden);
    struct gb_arguments router = gb_route_arguments(f, layer, shape->tokens);
    return gb_truth_router(&router, r->normed, r->truth_ids, r->truth_weights, error);
}

static bool same_experts(const int32_t *a, const int32_t *b, uint32_t top_k)
{
    for (uint32_t i = 0; i < top_k; i++) {
        bool found = false;
        for (uint32_t j = 0; j < top_k; j++)
            found |= a[i] == b[j];
        if (!found)
            return false;
    }
    return true;
}

/* Tokens that a stream routes to other experts than truth does. */
static enum gb_status flips(const struct baseline *b, const struct gb_shape *shape, const struct gb_outputs *outputs,
                            uint32_t layer, struct routing *r, uint32_t *count, struct gb_error *error)
{
    memcpy(r->state, before(b->fixture, outputs->stack, outputs->shape.tokens, layer),
           sizeof(double) * shape->tokens * shape->hidden);
    *count = 0;
    enum gb_status status =
        stack_input(b->contract, b->fixture, layer, shape->tokens, r->state, r->x, r->ids, r->weights, error);
    for (uint32_t t = 0; status == GB_OK && t < shape->tokens; t++)
        *count +=
            !same_experts(r->ids + (size_t)t * shape->top_k, r->truth_ids + (size_t)t * shape->top_k, shape->top_k);
    return status;
}

void drift_evaluate(const struct baseline *b, const struct gb_outputs *outputs, bool ordered, struct case_result *j)
{
    const struct gb_fixture *f = b->fixture;
    const struct gb_outputs *reference = b->reference;
    size_t ours = (size_t)outputs->shape.tokens * f->shape.hidden, all = (size_t)f->shape.tokens * f->shape.hidden;
    for (uint32_t l = 0; l < f->layers; l++)
        for (size_t i = 0; i < ours; i++) {
            const double *subject = outputs->stack + l * ours + i, *right = reference->stack + l * all + i;
            bool wrong = ordered ? memcmp(subject, right, sizeof *subject) != 0 : !isfinite(*subject);
            if (!wrong || (isnan(*subject) && isnan(*right)))
                continue;
            case_worsen(j, VERDICT_FAIL,
                        "residual stream after layer %u: token %zu, element %zu is %.17g, reference %.17g", l,
                        i / f->shape.hidden, i % f->shape.hidden, *subject, *right);
            return;
        }
}

static struct metrics distance(const double *state, const double *truth, const struct gb_shape *shape)
{
    struct metrics m;
    metrics_start(&m);
    metrics_add(&m, state, truth, shape->tokens, shape->hidden);
    return m;
}

static enum gb_status one_layer(const struct baseline *b, const struct gb_shape *shape, uint32_t layer,
                                const struct gb_outputs *outputs, struct routing *r, struct drift_result *d,
                                struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    const struct {
        const struct gb_outputs *outputs;
        struct metrics *quantised, *original;
        uint32_t *flips;
    } paths[] = {{outputs, &d->subject_quantised, &d->subject_original, &d->subject_changed},
                 {b->reference, &d->reference_quantised, &d->reference_original, &d->reference_changed}};
    size_t all = (size_t)layer * f->shape.tokens * f->shape.hidden;
    enum gb_status status = route_truth(f, shape, layer, r, error);
    for (int p = 0; status == GB_OK && p < 2; p++) {
        const double *state = paths[p].outputs->stack + (size_t)layer * paths[p].outputs->shape.tokens * shape->hidden;
        *paths[p].quantised = distance(state, f->stack.truth_quantised + all, shape);
        *paths[p].original = distance(state, f->stack.truth_original + all, shape);
        status = flips(b, shape, paths[p].outputs, layer, r, paths[p].flips, error);
    }
    return status;
}

enum gb_status drift_measure(const struct baseline *b, const struct gb_outputs *outputs, struct drift_result **drift,
                             struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    struct gb_shape shape = f->shape;
    struct routing r;
    shape.tokens = outputs->shape.tokens;
    *drift = calloc(f->layers, sizeof **drift);
    if (!*drift)
        return gb_fail(error, GB_ENOMEM, "no memory for the drift of %u layers", f->layers);
    enum gb_status status = routing_new(&shape, &r, error);
    if (status != GB_OK)
        return status;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        (*drift)[l].layer = l;
        (*drift)[l].model_layer = f->layer[l].index;
        status = one_layer(b, &shape, l, outputs, &r, &(*drift)[l], error);
    }
    routing_free(&r);
    return status;
}
