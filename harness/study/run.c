/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All paths and both truths through the layers, side by side. Ranks split seeds between groups; within a group they
 * split truth's shares, and tokens times paths. Every member then knows all of it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/clock.h"
#include "harness/run/progress.h"
#include "harness/run/residual_stream.h"
#include "harness/study/measure.h"
#include "harness/study/ranks.h"
#include "harness/study/study.h"
#include "harness/study/truth.h"

/* Streams are, in this sequence: both truths, the paths, and what the paths start from when truth forces them. A batch
 * of a path holds the tokens of its own stream, of the forced ones, and of a layer by itself. */
enum { FIRST_PATH = STUDY_TRUTHS, BY_ITSELF = 1 + STUDY_TRUTHS, SEGMENTS };

/* One layer of one seed. */
struct step {
    const struct study_case *c;
    struct study_case *one; /* what is found: a case of this layer and seed alone */
    struct study_source *source;
    const struct gb_fixture *f;
    const volatile sig_atomic_t *stop;
    bool stopped;
    uint32_t layer;
    size_t row, pairs;     /* tokens * hidden, tokens * top_k */
    double *state;         /* [paths + 2 * STUDY_TRUTHS][row] */
    double *normed;        /* [STUDY_TRUTHS][2][row]: a truth's own inputs, and those of the layer by itself */
    double *shares;        /* [STUDY_TRUTH_SHARES][2][row], of a truth */
    double *output;        /* [2][row], of a truth */
    gb_bf16 *x;            /* [paths + STUDY_TRUTHS + 1][row], the last one the layer's by itself */
    float *weights;        /* [paths + STUDY_TRUTHS + 1][pairs] */
    int32_t *ids;          /* the same */
    double *truth_weights; /* [STUDY_TRUTHS][2][pairs] */
    int32_t *truth_ids;    /* the same */
    gb_bf16 *batch_x;      /* [SEGMENTS][row], or of this rank's tokens */
    float *batch_weights;  /* [SEGMENTS][pairs] */
    int32_t *batch_ids;    /* the same */
    float *batch_output;   /* [SEGMENTS][row] */
    float *outputs;        /* [paths][SEGMENTS][row] */
    gb_bf16 *intermediate; /* [SEGMENTS][pairs * intermediate] */
    double *alone;         /* [STUDY_TRUTHS][row] truths of the layer by itself */
    bool *experts;         /* [experts] whose weights this rank needs */
    float largest[2];      /* of x and the intermediate of path 0, the layer by itself: what calibration sees */
};

static void step_free(struct step *s)
{
    void *const all[] = {s->state,        s->normed,        s->shares,       s->output,  s->x,         s->weights,
                         s->ids,          s->truth_weights, s->truth_ids,    s->batch_x, s->batch_ids, s->batch_weights,
                         s->batch_output, s->outputs,       s->intermediate, s->experts, s->alone};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static enum gb_status step_new(struct step *s, struct gb_error *error)
{
    const struct study_case *c = s->c;
    size_t row = (size_t)c->shape.tokens * c->shape.hidden, pairs = (size_t)c->shape.tokens * c->shape.top_k;
    size_t streams = c->paths + STUDY_TRUTHS, inputs = streams + 1;
    s->row = row;
    s->pairs = pairs;
    s->state = malloc(sizeof(double) * row * (streams + STUDY_TRUTHS));
    s->normed = malloc(sizeof(double) * row * 2 * STUDY_TRUTHS);
    s->shares = malloc(sizeof(double) * row * 2 * STUDY_TRUTH_SHARES);
    s->output = malloc(sizeof(double) * row * 2);
    s->alone = malloc(sizeof(double) * row * STUDY_TRUTHS);
    s->x = malloc(sizeof(gb_bf16) * row * inputs);
    s->weights = malloc(sizeof(float) * pairs * inputs);
    s->ids = malloc(sizeof(int32_t) * pairs * inputs);
    s->truth_weights = malloc(sizeof(double) * pairs * 2 * STUDY_TRUTHS);
    s->truth_ids = malloc(sizeof(int32_t) * pairs * 2 * STUDY_TRUTHS);
    s->batch_x = malloc(sizeof(gb_bf16) * row * SEGMENTS);
    s->batch_weights = malloc(sizeof(float) * pairs * SEGMENTS);
    s->batch_ids = malloc(sizeof(int32_t) * pairs * SEGMENTS);
    s->batch_output = malloc(sizeof(float) * row * SEGMENTS);
    s->outputs = malloc(sizeof(float) * row * SEGMENTS * c->paths);
    s->intermediate = malloc(sizeof(gb_bf16) * pairs * c->shape.intermediate * SEGMENTS);
    s->experts = calloc(c->shape.experts, sizeof(bool));
    if (s->state && s->normed && s->shares && s->output && s->alone && s->x && s->weights && s->ids &&
        s->truth_weights && s->truth_ids && s->batch_x && s->batch_weights && s->batch_ids && s->batch_output &&
        s->outputs && s->intermediate && s->experts)
        return GB_OK;
    return gb_fail(error, GB_ENOMEM, "no memory for %u paths of %u tokens", c->paths, c->shape.tokens);
}

/* What every member of the group found, and whether one was told to stop. */
static enum gb_status settle(struct step *s, enum gb_status status, struct gb_error *error)
{
    s->stopped = study_ranks_largest(false, *s->stop || s->stopped) > 0.0;
    return study_ranks_agree(false, status, error);
}

/* Whether all go on; right behind settle. */
static bool agreed(const struct step *s, enum gb_status status)
{
    return status == GB_OK && !s->stopped;
}

/* Whether to go on with this rank's own work. */
static bool going(struct step *s, enum gb_status status)
{
    s->stopped |= *s->stop != 0;
    return status == GB_OK && !s->stopped;
}

/* Tokens from .. to - 1 of all segments, and the paths that leave `group` when divided by `groups`. */
struct part {
    uint32_t from, to, group, groups;
};

/* How paths and tokens are split among so many members: tokens first, as these share the experts' weights. */
static struct part part_of(const struct step *s, uint32_t member, uint32_t members)
{
    uint32_t tokens = s->c->shape.tokens, blocks = members < tokens ? members : tokens, groups = members / blocks;
    uint32_t block = member % blocks;
    return (struct part){(uint32_t)((uint64_t)tokens * block / blocks),
                         (uint32_t)((uint64_t)tokens * (block + 1) / blocks), member / blocks, groups};
}

static bool has_path(const struct part *part, uint32_t path)
{
    return path % part->groups == part->group;
}

static bool has_share(uint32_t share, int truth)
{
    return (truth * STUDY_TRUTH_SHARES + share) % study_ranks.members == study_ranks.member;
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
    const size_t forced = s->c->paths, last = forced + STUDY_TRUTHS;
    gb_bf16 *x = s->x + last * s->row;
    int32_t *ids = s->ids + last * s->pairs;
    float *weights = s->weights + last * s->pairs;
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

/* Which of the streams' inputs a segment of a path's batch has. */
static size_t input_of(const struct step *s, uint32_t p, uint32_t segment)
{
    return segment ? s->c->paths + segment - 1 : p;
}

/* The experts of this rank's tokens and paths, and of its shares of truth. */
static void find_experts(struct step *s)
{
    const struct part own = part_of(s, study_ranks.member, study_ranks.members);
    size_t top_k = s->c->shape.top_k;
    for (uint32_t p = 0; p < s->c->paths; p++)
        for (uint32_t segment = 0; has_path(&own, p) && segment < SEGMENTS; segment++)
            for (size_t i = own.from * top_k; i < own.to * top_k; i++) {
                int32_t id = s->ids[input_of(s, p, segment) * s->pairs + i];
                if (id >= 0)
                    s->experts[id] = true;
            }
    for (size_t i = 0; s->source->generated && i < 2 * s->pairs; i++) {
        int32_t id = s->truth_ids[2 * STUDY_QUANTISED * s->pairs + i];
        if (id >= 0 && has_share((uint32_t)id % STUDY_TRUTH_SHARES, STUDY_QUANTISED))
            s->experts[id] = true;
    }
}

/* Every stream up to the experts' inputs. */
static enum gb_status route(struct step *s, const double *before, struct gb_error *error)
{
    uint32_t paths = s->c->paths;
    enum gb_status status = GB_OK;
    memcpy(s->state, before, sizeof(double) * s->row * (paths + STUDY_TRUTHS));
    memcpy(s->state + s->row * (paths + STUDY_TRUTHS), before, sizeof(double) * s->row * STUDY_TRUTHS);
    for (int t = 0; status == GB_OK && t < STUDY_TRUTHS; t++)
        status = route_truth(s, t, error);
    for (uint32_t p = 0; status == GB_OK && p < paths + STUDY_TRUTHS; p++)
        status = stack_input(s->c->path[0].contract, s->f, s->layer, s->f->shape.tokens,
                             s->state + (FIRST_PATH + p) * s->row, s->x + p * s->row, s->ids + p * s->pairs,
                             s->weights + p * s->pairs, error);
    return status == GB_OK ? inputs_alone(s, error) : status;
}

static double norm2(const double *values, uint32_t count)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        sum += values[i] * values[i];
    return sum;
}

/* Truth's outputs, of its own stream and of the layer by itself, from the shares of all members. */
static enum gb_status compute_truth(struct step *s, int t, struct gb_error *error)
{
    struct study_truth_inputs in = {2 * s->f->shape.tokens, s->normed + 2 * t * s->row, s->truth_ids + 2 * t * s->pairs,
                                    s->truth_weights + 2 * t * s->pairs};
    bool mine[STUDY_TRUTH_SHARES];
    for (uint32_t i = 0; i < STUDY_TRUTH_SHARES; i++)
        mine[i] = has_share(i, t);
    enum gb_status status = GB_OK;
    if (going(s, status))
        status = study_truth_shares(s->f, s->layer, (enum study_truth)t, &in, mine, s->shares, error);
    status = settle(s, status, error);
    for (uint32_t i = 0; agreed(s, status) && i < STUDY_TRUTH_SHARES; i++)
        study_ranks_share(false, s->shares + i * 2 * s->row, sizeof(double) * 2 * s->row,
                          (t * STUDY_TRUTH_SHARES + i) % study_ranks.members);
    if (agreed(s, status))
        study_truth_sum(s->shares, 2 * s->row, s->output);
    return status;
}

/* Truth's layer, added to its stream, and of the layer by itself. A fixture has both, and may not have the original
 * weights. */
static enum gb_status advance_truth(struct step *s, int t, struct gb_error *error)
{
    const struct gb_fixture *f = s->f;
    double *state = s->state + t * s->row, *alone = s->alone + t * s->row;
    uint32_t hidden = f->shape.hidden;
    enum gb_status status = GB_OK;
    if (s->source->generated) {
        status = compute_truth(s, t, error);
        for (size_t i = 0; agreed(s, status) && i < s->row; i++)
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
        s->one->stream2[t][n] = norm2(state + (size_t)n * hidden, hidden);
        s->one->layer2[t][n] = norm2(alone + (size_t)n * hidden, hidden);
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
    return s->outputs + p * SEGMENTS * s->row;
}

/* The tokens of a part, of all segments, as one batch. */
static struct study_batch gather(struct step *s, uint32_t p, const struct part *part)
{
    uint32_t tokens = part->to - part->from, hidden = s->c->shape.hidden, top_k = s->c->shape.top_k;
    for (uint32_t segment = 0; segment < SEGMENTS; segment++) {
        size_t from = input_of(s, p, segment), x = from * s->row + (size_t)part->from * hidden,
               pair = from * s->pairs + (size_t)part->from * top_k;
        size_t to = (size_t)segment * tokens;
        memcpy(s->batch_x + to * hidden, s->x + x, sizeof(gb_bf16) * tokens * hidden);
        memcpy(s->batch_ids + to * top_k, s->ids + pair, sizeof(int32_t) * tokens * top_k);
        memcpy(s->batch_weights + to * top_k, s->weights + pair, sizeof(float) * tokens * top_k);
    }
    return (struct study_batch){tokens * SEGMENTS, s->batch_x, s->batch_ids, s->batch_weights};
}

/* One path's outputs of this rank's tokens: their bits do not depend on the others. */
static enum gb_status run_path(struct step *s, uint32_t p, const struct part *part, struct gb_error *error)
{
    const struct study_path *path = &s->c->path[p];
    struct study_batch batch = gather(s, p, part);
    uint32_t tokens = part->to - part->from, hidden = s->c->shape.hidden;
    float global[2] = {1.0f, 1.0f};
    for (int i = 0; path->recipe && path->recipe->quantiser.global != GB_GLOBAL_NONE && i < 2; i++)
        global[i] = s->largest[i] > 0.0f ? s->largest[i] / path->recipe->quantiser.global_largest : 1.0f;
    enum gb_status status =
        study_path_run(path, s->f, s->layer, &batch, global, s->batch_output, p ? NULL : s->intermediate, error);
    for (uint32_t segment = 0; status == GB_OK && segment < SEGMENTS; segment++)
        memcpy(outputs_of(s, p) + segment * s->row + (size_t)part->from * hidden,
               s->batch_output + (size_t)segment * tokens * hidden, sizeof(float) * tokens * hidden);
    if (status == GB_OK && p == 0) {
        size_t inner = (size_t)tokens * s->c->shape.top_k * s->c->shape.intermediate;
        s->largest[1] = largest_of(s->intermediate + BY_ITSELF * inner, inner);
    }
    return status;
}

/* Every rank's outputs to all. */
static void share_outputs(struct step *s)
{
    size_t hidden = s->c->shape.hidden;
    for (uint32_t p = 0; p < s->c->paths; p++)
        for (uint32_t member = 0; member < study_ranks.members; member++) {
            struct part part = part_of(s, member, study_ranks.members);
            for (uint32_t segment = 0; has_path(&part, p) && segment < SEGMENTS; segment++)
                study_ranks_share(false, outputs_of(s, p) + segment * s->row + part.from * hidden,
                                  sizeof(float) * (part.to - part.from) * hidden, member);
        }
}

/* All paths. What the first one finds, others are calibrated with. */
static enum gb_status run_paths(struct step *s, struct gb_error *error)
{
    const struct part own = part_of(s, study_ranks.member, study_ranks.members);
    enum gb_status status = GB_OK;
    s->largest[0] = largest_of(s->x + (s->c->paths + STUDY_TRUTHS) * s->row, s->row);
    if (has_path(&own, 0) && going(s, status))
        status = run_path(s, 0, &own, error);
    s->largest[1] = (float)study_ranks_largest(false, (double)s->largest[1]);
    for (uint32_t p = 1; p < s->c->paths; p++)
        if (has_path(&own, p) && going(s, status))
            status = run_path(s, p, &own, error);
    status = settle(s, status, error);
    if (agreed(s, status))
        share_outputs(s);
    return status;
}

/* max_abs, max_ulp and ulps are counted from 0. */
static void start_row(struct step *s, uint32_t p)
{
    for (int m = 0; m < STUDY_MODES; m++)
        for (int t = 0; t < STUDY_TRUTHS; t++) {
            struct study_measure *of = &s->one->measure[m][t];
            of->max_abs[p] = of->max_ulp[p] = 0.0;
            for (int b = 0; b < STUDY_BINS; b++)
                of->ulps[p * STUDY_BINS + b] = 0.0;
        }
}

/* Adds the outputs to their streams and measures them. */
static void measure(struct step *s, uint32_t p)
{
    struct study_case *one = s->one;
    uint32_t tokens = one->shape.tokens, hidden = one->shape.hidden;
    double *open = s->state + (FIRST_PATH + p) * s->row;
    stack_add(open, GB_FP32, outputs_of(s, p), s->row);
    for (int t = 0; t < STUDY_TRUTHS; t++) {
        const double *right = s->state + t * s->row;
        double *forced = s->output; /* then the layer by itself */
        memcpy(forced, s->state + (FIRST_PATH + one->paths + (size_t)t) * s->row, sizeof(double) * s->row);
        stack_add(forced, GB_FP32, outputs_of(s, p) + (1 + (size_t)t) * s->row, s->row);
        for (uint32_t n = 0; n < tokens; n++) {
            size_t at = (size_t)n * hidden, place = (size_t)p * tokens + n, pair = (size_t)n * one->shape.top_k;
            study_measure_token(one, STUDY_OPEN_LOOP, (enum study_truth)t, p, n, open + at, right + at);
            study_measure_token(one, STUDY_TEACHER_FORCED, (enum study_truth)t, p, n, forced + at, right + at);
            one->measure[STUDY_OPEN_LOOP][t].carried2[place] = study_distance2(open + at, forced + at, hidden);
            one->measure[STUDY_OPEN_LOOP][t].changed[place] = !study_same_experts(
                s->ids + p * s->pairs + pair, s->truth_ids + 2 * (size_t)t * s->pairs + pair, one->shape.top_k);
        }
        for (size_t i = 0; i < s->row; i++)
            forced[i] = (double)outputs_of(s, p)[BY_ITSELF * s->row + i];
        for (uint32_t n = 0; n < tokens; n++)
            study_measure_token(one, STUDY_LAYER, (enum study_truth)t, p, n, forced + (size_t)n * hidden,
                                s->alone + t * s->row + (size_t)n * hidden);
    }
}

/* The layer, all or none of it; *stopped: none. before, after: [paths + STUDY_TRUTHS, tokens, hidden] the streams. */
static enum gb_status run_layer(struct step *s, const double *before, double *after, struct gb_error *error)
{
    enum gb_status status = step_new(s, error);
    if (status == GB_OK)
        status = route(s, before, error);
    if (status == GB_OK) {
        find_experts(s);
        status = study_source_load(s->source, s->layer, s->experts, error);
    }
    status = settle(s, status, error);
    for (int t = 0; agreed(s, status) && t < STUDY_TRUTHS; t++)
        status = advance_truth(s, t, error);
    if (agreed(s, status))
        status = run_paths(s, error);
    for (uint32_t p = 0; agreed(s, status) && p < s->c->paths; p++) {
        start_row(s, p);
        measure(s, p);
    }
    if (agreed(s, status))
        memcpy(after, s->state, sizeof(double) * s->row * (s->c->paths + STUDY_TRUTHS));
    if (agreed(s, status))
        s->one->model_layer[0] = s->f->layer[s->layer].index;
    study_source_unload(s->source, s->layer);
    step_free(s);
    return status;
}

/* The streams ahead of the first layer. */
static void start_streams(const struct study_case *c, const struct gb_fixture *f, double *state)
{
    size_t row = (size_t)c->shape.tokens * c->shape.hidden;
    for (uint32_t p = 0; p < c->paths + STUDY_TRUTHS; p++)
        memcpy(state + p * row, f->stack.residual, sizeof(double) * row);
}

static void say(const struct study_case *c, const struct study_run *run)
{
    char text[128];
    double spent = clock_seconds() - run->began, since = run->done - run->resumed;
    double left = since > 0.0 ? spent / since * (run->all - run->done) : NAN;
    uint32_t layer = c->done % c->layers;
    if (study_ranks.rank)
        return;
    if (isnan(left))
        snprintf(text, sizeof text, "%.40s %s: layer %u of %u", c->name, c->weights, layer + 1, c->layers);
    else
        snprintf(text, sizeof text, "%.40s %s: layer %u of %u, %.0f %s left", c->name, c->weights, layer + 1, c->layers,
                 left < 120.0 ? left : left / 60.0, left < 120.0 ? "s" : "min");
    progress(text, run->done / run->all);
}

/* The next layer of one seed: what is found into one, the streams behind it into state. */
static enum gb_status seed_layer(const struct study_case *c, uint32_t seed, struct study_run *run,
                                 struct study_source *source, struct study_case *one, double *state, bool *stopped,
                                 struct gb_error *error)
{
    struct step s = {
        .c = c, .one = one, .source = source, .f = source->fixture, .stop = run->stop, .layer = c->layers_done[seed]};
    if (s.layer == 0)
        start_streams(c, source->fixture, state);
    else
        memcpy(state, c->state[seed], sizeof(double) * study_case_streams(c));
    enum gb_status status = run_layer(&s, state, state, error);
    *stopped = s.stopped;
    return status;
}

/* The groups' layers into the case, each from its group's first rank. mine: this group's. */
static enum gb_status take_over(struct study_case *c, const uint32_t *seeds, uint32_t groups, struct study_case *mine,
                                double *state, struct study_run *run, struct gb_error *error)
{
    struct study_case heard = study_case_part(c);
    double *streams = malloc(sizeof *streams * study_case_streams(c));
    enum gb_status status = study_case_new(&heard, error);
    if (status == GB_OK && !streams)
        status = gb_fail(error, GB_ENOMEM, "no memory for the streams of %u tokens", c->shape.tokens);
    status = study_ranks_agree(true, status, error);
    const bool ready = status == GB_OK;
    for (uint32_t g = 0; ready && g < groups; g++) {
        const bool own = g == study_ranks.group;
        struct study_array arrays[STUDY_ARRAYS];
        uint32_t count = study_case_arrays(own ? mine : &heard, arrays);
        for (uint32_t i = 0; i < count; i++)
            study_ranks_share(true, *arrays[i].values, sizeof(double) * study_array_elements(&arrays[i]), g);
        study_ranks_share(true, own ? state : streams, sizeof(double) * study_case_streams(c), g);
        const bool last = c->layers_done[seeds[g]] + 1 == c->layers;
        if (status == GB_OK && last && run->end && !study_ranks.rank) /* which writes the file */
            status = study_head(c, run->end, seeds[g], own ? state : streams, error);
        if (status == GB_OK)
            status = study_case_add(c, seeds[g], own ? mine : &heard, own ? state : streams, error);
        run->done++;
    }
    study_case_free(&heard);
    free(streams);
    return status;
}

/* Seeds that are not finished; the first of them. seeds: [ranks] */
static uint32_t unfinished(const struct study_case *c, uint32_t *seeds)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < c->seeds && count < study_ranks.count; s++)
        if (c->layers_done[s] < c->layers)
            seeds[count++] = s;
    return count;
}

enum gb_status study_case_run(struct study_case *c, struct study_run *run, bool *stopped, struct gb_error *error)
{
    struct study_source source = {.fixture = NULL};
    struct study_case mine = study_case_part(c);
    double *state = malloc(sizeof *state * study_case_streams(c)); /* [paths + STUDY_TRUTHS, tokens, hidden] */
    uint32_t *seeds = malloc(sizeof *seeds * study_ranks.count), groups, open = UINT32_MAX;
    enum gb_status status = study_case_new(&mine, error);
    *stopped = false;
    if (status == GB_OK && (!state || !seeds))
        status = gb_fail(error, GB_ENOMEM, "no memory for the streams of %u tokens", c->shape.tokens);
    status = study_ranks_agree(true, status, error);
    gb_truth_threads(1);
    while (status == GB_OK && !*stopped && (groups = unfinished(c, seeds))) {
        study_ranks_divide(groups);
        uint32_t seed = seeds[study_ranks.group];
        say(c, run);
        if (open != seed) {
            study_source_free(&source);
            status = run->open(run->context, c, seed, &source, error);
            open = seed;
        }
        status = study_ranks_agree(true, status, error);
        if (status == GB_OK)
            status = seed_layer(c, seed, run, &source, &mine, state, stopped, error);
        status = study_ranks_agree(true, status, error);
        *stopped = study_ranks_largest(true, *stopped) > 0.0;
        if (status == GB_OK && !*stopped)
            status = take_over(c, seeds, groups, &mine, state, run, error);
        if (status == GB_OK && !*stopped)
            status = run->save(run->context, error);
        status = study_ranks_agree(true, status, error);
    }
    study_source_free(&source);
    study_case_free(&mine);
    free(state);
    free(seeds);
    return status;
}

/* What one seed goes on from. */
static enum gb_status share_streams(struct study_case *c, uint32_t seed, struct gb_error *error)
{
    const size_t bytes = sizeof(double) * study_case_streams(c);
    bool begun = c->state[seed] != NULL;
    enum gb_status status = GB_OK;
    study_ranks_share(true, &begun, sizeof begun, 0);
    if (begun && !c->state[seed])
        c->state[seed] = malloc(bytes);
    if (begun && !c->state[seed])
        status = gb_fail(error, GB_ENOMEM, "no memory for the streams of %u tokens", c->shape.tokens);
    status = study_ranks_agree(true, status, error);
    if (status == GB_OK && begun)
        study_ranks_share(true, c->state[seed], bytes, 0);
    return status;
}

enum gb_status study_share(struct study *study, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && i < study->cases; i++) {
        struct study_case *c = &study->of[i];
        struct study_array arrays[STUDY_ARRAYS];
        uint32_t count = study_case_arrays(c, arrays);
        for (uint32_t a = 0; a < count; a++)
            study_ranks_share(true, *arrays[a].values, sizeof(double) * study_array_elements(&arrays[a]), 0);
        study_ranks_share(true, &c->done, sizeof c->done, 0);
        study_ranks_share(true, c->layers_done, sizeof *c->layers_done * c->seeds, 0);
        for (uint32_t s = 0; status == GB_OK && s < c->seeds; s++)
            status = share_streams(c, s, error);
    }
    return status;
}
