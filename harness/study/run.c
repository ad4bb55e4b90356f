/* SPDX-License-Identifier: Apache-2.0 */
/* All paths and both truths through the layers, side by side. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/clock.h"
#include "harness/run/progress.h"
#include "harness/run/residual_stream.h"
#include "harness/study/measure.h"
#include "harness/study/study.h"
#include "harness/study/truth.h"

/* Streams are, in this sequence: both truths, the paths, and what the paths start from when truth forces them. A batch
 * of a path holds the tokens of its own stream, of the forced ones, and of a layer by itself. */
enum { FIRST_PATH = STUDY_TRUTHS, BY_ITSELF = 1 + STUDY_TRUTHS, SEGMENTS };

struct step {
    struct study_case *c;
    struct study_source *source;
    const struct gb_fixture *f;
    uint32_t layer, seed;
    size_t row, pairs;     /* tokens * hidden, tokens * top_k */
    double *state;         /* [paths + 2 * STUDY_TRUTHS][row] */
    double *normed;        /* [STUDY_TRUTHS][2][row]: a truth's own inputs, and those of the layer by itself */
    double *output;        /* [2][row], of a truth */
    gb_bf16 *x;            /* [paths + STUDY_TRUTHS][row] */
    float *weights;        /* [paths + STUDY_TRUTHS][pairs] */
    int32_t *ids;          /* the same */
    double *truth_weights; /* [STUDY_TRUTHS][2][pairs] */
    int32_t *truth_ids;    /* the same */
    gb_bf16 *batch_x;      /* [SEGMENTS][row] */
    float *batch_weights;  /* [SEGMENTS][pairs] */
    int32_t *batch_ids;    /* the same */
    float *batch_output;   /* [paths][SEGMENTS][row] */
    gb_bf16 *intermediate; /* [SEGMENTS][pairs * intermediate] */
    double *alone;         /* [STUDY_TRUTHS][row] truths of the layer by itself */
    bool *experts;         /* [experts] in use */
    float largest[2];      /* of x and the intermediate of path 0, the layer by itself: what calibration sees */
};

static void step_free(struct step *s)
{
    void *const all[] = {s->state,     s->normed,        s->output,       s->x,       s->weights,
                         s->ids,       s->truth_weights, s->truth_ids,    s->batch_x, s->batch_weights,
                         s->batch_ids, s->batch_output,  s->intermediate, s->experts, s->alone};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static enum gb_status step_new(struct study_case *c, struct study_source *source, struct step *s,
                               struct gb_error *error)
{
    size_t row = (size_t)c->shape.tokens * c->shape.hidden, pairs = (size_t)c->shape.tokens * c->shape.top_k;
    size_t streams = c->paths + STUDY_TRUTHS, batch = SEGMENTS;
    *s = (struct step){
        .c = c,
        .source = source,
        .f = source->fixture,
        .row = row,
        .pairs = pairs,
        .state = malloc(sizeof(double) * row * (streams + STUDY_TRUTHS)),
        .normed = malloc(sizeof(double) * row * 2 * STUDY_TRUTHS),
        .output = malloc(sizeof(double) * row * 2),
        .alone = malloc(sizeof(double) * row * STUDY_TRUTHS),
        .x = malloc(sizeof(gb_bf16) * row * streams),
        .weights = malloc(sizeof(float) * pairs * streams),
        .ids = malloc(sizeof(int32_t) * pairs * streams),
        .truth_weights = malloc(sizeof(double) * pairs * 2 * STUDY_TRUTHS),
        .truth_ids = malloc(sizeof(int32_t) * pairs * 2 * STUDY_TRUTHS),
        .batch_x = malloc(sizeof(gb_bf16) * row * batch),
        .batch_weights = malloc(sizeof(float) * pairs * batch),
        .batch_ids = malloc(sizeof(int32_t) * pairs * batch),
        .batch_output = malloc(sizeof(float) * row * batch * c->paths),
        .intermediate = malloc(sizeof(gb_bf16) * pairs * c->shape.intermediate * batch),
        .experts = malloc(sizeof(bool) * c->shape.experts),
    };
    if (s->state && s->normed && s->output && s->x && s->weights && s->ids && s->truth_weights && s->truth_ids &&
        s->batch_x && s->batch_weights && s->batch_ids && s->batch_output && s->intermediate && s->experts && s->alone)
        return GB_OK;
    step_free(s);
    return gb_fail(error, GB_ENOMEM, "no memory for %u paths of %u tokens", c->paths, c->shape.tokens);
}

/* Truth's share of the residual stream before the experts, and its routing. */
static enum gb_status route_truth(struct step *s, int t, struct gb_error *error)
{
    const struct gb_fixture *f = s->f;
    const double *attention = f->stack.attention_delta ? f->stack.attention_delta + s->layer * s->row : NULL;
    double *state = s->state + t * s->row, *normed = s->normed + 2 * t * s->row;
    for (size_t i = 0; attention && i < s->row; i++)
        state[i] += attention[i];
    for (uint32_t n = 0; n < f->shape.tokens; n++)
        gb_rms_norm(state + (size_t)n * f->shape.hidden, f->layer[s->layer].norm, f->shape.hidden, f->rms_norm_epsilon,
                    normed + (size_t)n * f->shape.hidden);
    struct gb_arguments router = gb_route_arguments(f, s->layer, f->shape.tokens);
    return gb_truth_router(&router, normed, s->truth_ids + 2 * t * s->pairs, s->truth_weights + 2 * t * s->pairs,
                           error);
}

/* What a layer by itself is given: the fixture's inputs, or those of truth with the quantised weights, rounded. */
static enum gb_status inputs_alone(struct step *s, struct gb_error *error)
{
    const struct gb_layer *l = &s->f->layer[s->layer];
    const size_t forced = s->c->paths;
    gb_bf16 *x = s->batch_x + BY_ITSELF * s->row;
    int32_t *ids = s->batch_ids + BY_ITSELF * s->pairs;
    float *weights = s->batch_weights + BY_ITSELF * s->pairs;
    const bool own = !s->source->generated;
    memcpy(x, own ? l->x : s->x + forced * s->row, sizeof *x * s->row);
    memcpy(ids, own ? l->ids : s->ids + forced * s->pairs, sizeof *ids * s->pairs);
    memcpy(weights, own ? l->routing_weights : s->weights + forced * s->pairs, sizeof *weights * s->pairs);
    enum gb_status status = GB_OK;
    for (int t = 0; status == GB_OK && !own && t < STUDY_TRUTHS; t++) {
        double *normed = s->normed + (2 * t + 1) * s->row;
        for (size_t i = 0; i < s->row; i++)
            normed[i] = (double)gb_bf16_decode(x[i]);
        struct gb_arguments router = gb_route_arguments(s->f, s->layer, s->f->shape.tokens);
        memcpy(s->truth_ids + (2 * t + 1) * s->pairs, ids, sizeof *ids * s->pairs);
        status = gb_truth_routing_weights(&router, normed, s->truth_ids + (2 * t + 1) * s->pairs,
                                          s->truth_weights + (2 * t + 1) * s->pairs, error);
    }
    return status;
}

/* Every stream up to the experts' inputs, and the experts in use. */
static enum gb_status route(struct step *s, struct gb_error *error)
{
    uint32_t paths = s->c->paths;
    enum gb_status status = GB_OK;
    memcpy(s->state, s->c->state, sizeof(double) * s->row * (paths + STUDY_TRUTHS));
    memcpy(s->state + s->row * (paths + STUDY_TRUTHS), s->c->state, sizeof(double) * s->row * STUDY_TRUTHS);
    for (int t = 0; status == GB_OK && t < STUDY_TRUTHS; t++)
        status = route_truth(s, t, error);
    for (uint32_t p = 0; status == GB_OK && p < paths + STUDY_TRUTHS; p++)
        status = stack_input(s->c->path[0].contract, s->f, s->layer, s->f->shape.tokens,
                             s->state + (FIRST_PATH + p) * s->row, s->x + p * s->row, s->ids + p * s->pairs,
                             s->weights + p * s->pairs, error);
    memset(s->experts, 0, sizeof *s->experts * s->f->shape.experts);
    for (size_t i = 0; status == GB_OK && i < s->pairs * (paths + STUDY_TRUTHS); i++)
        if (s->ids[i] >= 0)
            s->experts[s->ids[i]] = true;
    for (int t = 0; t < STUDY_TRUTHS; t++)
        for (size_t i = 0; status == GB_OK && i < s->pairs; i++)
            s->experts[s->truth_ids[2 * t * s->pairs + i]] = true;
    return status == GB_OK ? inputs_alone(s, error) : status;
}

static double norm2(const double *values, uint32_t count)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += values[i] * values[i];
    return sum;
}

/* Truth's layer, added to its stream, and of the layer by itself. A fixture has both, and may not have the original
 * weights. */
static enum gb_status advance_truth(struct step *s, int t, struct gb_error *error)
{
    const struct gb_fixture *f = s->f;
    double *state = s->state + t * s->row, *alone = s->alone + t * s->row;
    uint32_t hidden = f->shape.hidden;
    size_t first = (size_t)s->layer * s->c->samples + (size_t)s->seed * f->shape.tokens;
    enum gb_status status = GB_OK;
    if (s->source->generated) {
        struct study_truth_inputs in = {2 * f->shape.tokens, s->normed + 2 * t * s->row,
                                        s->truth_ids + 2 * t * s->pairs, s->truth_weights + 2 * t * s->pairs};
        status = study_truth_layer(f, s->layer, (enum study_truth)t, &in, s->output, error);
        for (size_t i = 0; status == GB_OK && i < s->row; i++)
            state[i] += s->output[i];
        memcpy(alone, s->output + s->row, sizeof *alone * s->row);
    } else {
        const struct gb_layer *l = &f->layer[s->layer];
        const bool quantised = t == STUDY_QUANTISED;
        memcpy(state, (quantised ? f->stack.truth_quantised : f->stack.truth_original) + s->layer * s->row,
               sizeof *state * s->row);
        memcpy(alone, quantised ? l->truth_quantised : l->truth_original, sizeof *alone * s->row);
    }
    for (uint32_t n = 0; status == GB_OK && n < f->shape.tokens; n++) {
        s->c->stream2[t][first + n] = norm2(state + (size_t)n * hidden, hidden);
        s->c->layer2[t][first + n] = norm2(alone + (size_t)n * hidden, hidden);
    }
    return status;
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

/* [SEGMENTS][row] */
static float *outputs_of(const struct step *s, uint32_t p)
{
    return s->batch_output + p * SEGMENTS * s->row;
}

/* One path's outputs of all segments: a token's bits do not depend on the others. */
static enum gb_status run_path(struct step *s, uint32_t p, struct gb_error *error)
{
    const struct study_path *path = &s->c->path[p];
    const size_t forced = s->c->paths;
    memcpy(s->batch_x, s->x + p * s->row, sizeof(gb_bf16) * s->row);
    memcpy(s->batch_x + s->row, s->x + forced * s->row, sizeof(gb_bf16) * s->row * STUDY_TRUTHS);
    memcpy(s->batch_ids, s->ids + p * s->pairs, sizeof(int32_t) * s->pairs);
    memcpy(s->batch_ids + s->pairs, s->ids + forced * s->pairs, sizeof(int32_t) * s->pairs * STUDY_TRUTHS);
    memcpy(s->batch_weights, s->weights + p * s->pairs, sizeof(float) * s->pairs);
    memcpy(s->batch_weights + s->pairs, s->weights + forced * s->pairs, sizeof(float) * s->pairs * STUDY_TRUTHS);
    struct study_batch batch = {s->f->shape.tokens * SEGMENTS, s->batch_x, s->batch_ids, s->batch_weights};
    float global[2] = {1.0f, 1.0f};
    for (int i = 0; path->recipe && path->recipe->quantiser.global != GB_GLOBAL_NONE && i < 2; i++)
        global[i] = s->largest[i] > 0.0f ? s->largest[i] / path->recipe->quantiser.global_largest : 1.0f;
    enum gb_status status =
        study_path_run(path, s->f, s->layer, &batch, global, outputs_of(s, p), p ? NULL : s->intermediate, error);
    size_t inner = s->pairs * s->f->shape.intermediate;
    if (status == GB_OK && p == 0) {
        s->largest[0] = largest_of(s->batch_x + BY_ITSELF * s->row, s->row);
        s->largest[1] = largest_of(s->intermediate + BY_ITSELF * inner, inner);
    }
    return status;
}

/* max_abs, max_ulp and ulps begin at 0 with the first seed. */
static void start_row(struct step *s, uint32_t p)
{
    size_t row = (size_t)s->layer * s->c->paths + p;
    for (int m = 0; s->seed == 0 && m < STUDY_MODES; m++)
        for (int t = 0; t < STUDY_TRUTHS; t++) {
            struct study_measure *of = &s->c->measure[m][t];
            of->max_abs[row] = of->max_ulp[row] = 0.0;
            for (int b = 0; b < STUDY_BINS; b++)
                of->ulps[row * STUDY_BINS + b] = 0.0;
        }
}

/* Adds the outputs to their streams and measures them. */
static void measure(struct step *s, uint32_t p)
{
    struct study_case *c = s->c;
    uint32_t tokens = c->shape.tokens, hidden = c->shape.hidden;
    double *open = s->state + (FIRST_PATH + p) * s->row;
    stack_add(open, GB_FP32, outputs_of(s, p), s->row);
    for (int t = 0; t < STUDY_TRUTHS; t++) {
        const double *right = s->state + t * s->row;
        double *forced = s->output; /* then the layer by itself */
        memcpy(forced, s->state + (FIRST_PATH + c->paths + (size_t)t) * s->row, sizeof(double) * s->row);
        stack_add(forced, GB_FP32, outputs_of(s, p) + (1 + (size_t)t) * s->row, s->row);
        for (uint32_t n = 0; n < tokens; n++) {
            size_t at = (size_t)n * hidden;
            uint32_t sample = s->seed * tokens + n;
            size_t place = ((size_t)s->layer * c->paths + p) * c->samples + sample;
            study_measure_token(c, STUDY_OPEN_LOOP, (enum study_truth)t, s->layer, p, sample, open + at, right + at);
            study_measure_token(c, STUDY_TEACHER_FORCED, (enum study_truth)t, s->layer, p, sample, forced + at,
                                right + at);
            c->measure[STUDY_OPEN_LOOP][t].carried2[place] = study_distance2(open + at, forced + at, hidden);
            size_t pair = (size_t)n * c->shape.top_k;
            c->measure[STUDY_OPEN_LOOP][t].changed[place] = !study_same_experts(
                s->ids + p * s->pairs + pair, s->truth_ids + 2 * (size_t)t * s->pairs + pair, c->shape.top_k);
        }
        for (size_t i = 0; i < s->row; i++)
            forced[i] = (double)outputs_of(s, p)[BY_ITSELF * s->row + i];
        for (uint32_t n = 0; n < tokens; n++)
            study_measure_token(c, STUDY_LAYER, (enum study_truth)t, s->layer, p, s->seed * tokens + n,
                                forced + (size_t)n * hidden, s->alone + t * s->row + (size_t)n * hidden);
    }
}

static enum gb_status one_layer(struct step *s, const volatile sig_atomic_t *stop, bool *stopped,
                                struct gb_error *error)
{
    enum gb_status status = route(s, error);
    if (status == GB_OK)
        status = study_source_load(s->source, s->layer, s->experts, error);
    for (int t = 0; status == GB_OK && !(*stopped = *stop) && t < STUDY_TRUTHS; t++)
        status = advance_truth(s, t, error);
    for (uint32_t p = 0; status == GB_OK && !(*stopped = *stop) && p < s->c->paths; p++)
        status = run_path(s, p, error);
    /* All or none of the layer's figures: an interrupted run can be gone on with. */
    for (uint32_t p = 0; status == GB_OK && !*stopped && p < s->c->paths; p++) {
        start_row(s, p);
        measure(s, p);
    }
    study_source_unload(s->source, s->layer);
    return status;
}

/* The streams ahead of the first layer. */
static void start_streams(struct study_case *c, const struct gb_fixture *f)
{
    size_t row = (size_t)c->shape.tokens * c->shape.hidden;
    for (uint32_t p = 0; p < c->paths + STUDY_TRUTHS; p++)
        memcpy(c->state + p * row, f->stack.residual, sizeof(double) * row);
}

static void say(const struct study_case *c, const struct study_run *run)
{
    char text[128];
    double spent = clock_seconds() - run->began, since = run->done - run->resumed;
    double left = since > 0.0 ? spent / since * (run->all - run->done) : NAN;
    uint32_t layer = c->done % c->layers;
    if (isnan(left))
        snprintf(text, sizeof text, "%.40s %s: layer %u of %u", c->name, c->weights, layer + 1, c->layers);
    else
        snprintf(text, sizeof text, "%.40s %s: layer %u of %u, %.0f %s left", c->name, c->weights, layer + 1, c->layers,
                 left < 120.0 ? left : left / 60.0, left < 120.0 ? "s" : "min");
    progress(text, run->done / run->all);
}

enum gb_status study_case_run(struct study_case *c, struct study_source *source, struct study_run *run, bool *stopped,
                              struct gb_error *error)
{
    struct step s;
    uint32_t seed = c->done / c->layers;
    enum gb_status status = step_new(c, source, &s, error);
    *stopped = false;
    if (status != GB_OK)
        return status;
    gb_truth_threads(1);
    while (status == GB_OK && c->done < (seed + 1) * c->layers) {
        s.layer = c->done % c->layers;
        s.seed = seed;
        if (s.layer == 0)
            start_streams(c, source->fixture);
        say(c, run);
        status = one_layer(&s, run->stop, stopped, error);
        if (status != GB_OK || *stopped)
            break;
        memcpy(c->state, s.state, sizeof(double) * s.row * (c->paths + STUDY_TRUTHS));
        c->model_layer[s.layer] = source->fixture->layer[s.layer].index;
        c->done++;
        run->done++;
        status = run->save(run->context, error);
    }
    step_free(&s);
    return status;
}
