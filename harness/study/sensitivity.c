/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every expert by itself in float64, so that the error of quantisation alone is measured; an expert's errors add up to
 * the layer's, token by token.
 */
#include "harness/study/sensitivity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/progress.h"

const char *study_part_name(enum study_part part)
{
    static const char *const names[] = {"gate weights", "up weights", "down weights", "x", "intermediate"};
    return names[part];
}

/* One expert and the pairs of tokens and slots that are its own. */
struct expert {
    uint32_t count;
    uint32_t *pair;         /* [count] */
    gb_bf16 *x;             /* [count, hidden] */
    double *exact, *coarse; /* [count, hidden] x, and quantised */
    double *weights[2][3];  /* gate, up [intermediate, hidden], down [hidden, intermediate]: original, quantised */
    double *h;              /* [count, intermediate] */
    gb_bf16 *rounded;       /* [count, intermediate] */
    double *output, *right; /* [count, hidden] */
    float *values;          /* [hidden * intermediate] */
    float global[2];
};

static void expert_free(struct expert *e)
{
    void *const all[] = {e->pair, e->x, e->exact, e->coarse, e->h, e->rounded, e->output, e->right, e->values};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int i = 0; i < 6; i++)
        free(e->weights[i / 3][i % 3]);
}

static enum gb_status expert_new(const struct gb_shape *s, struct expert *e, struct gb_error *error)
{
    size_t pairs = (size_t)s->tokens * s->top_k, outer = pairs * s->hidden, inner = pairs * s->intermediate;
    size_t matrix = (size_t)s->hidden * s->intermediate;
    bool good = true;
    *e = (struct expert){
        .pair = malloc(sizeof *e->pair * pairs),
        .x = malloc(sizeof *e->x * outer),
        .exact = malloc(sizeof *e->exact * outer),
        .coarse = malloc(sizeof *e->coarse * outer),
        .h = malloc(sizeof *e->h * inner),
        .rounded = malloc(sizeof *e->rounded * inner),
        .output = malloc(sizeof *e->output * outer),
        .right = malloc(sizeof *e->right * outer),
        .values = malloc(sizeof *e->values * matrix),
    };
    for (int i = 0; i < 6; i++)
        good &= (e->weights[i / 3][i % 3] = malloc(sizeof(double) * matrix)) != NULL;
    if (good && e->pair && e->x && e->exact && e->coarse && e->h && e->rounded && e->output && e->right && e->values)
        return GB_OK;
    expert_free(e);
    return gb_fail(error, GB_ENOMEM, "no memory for an expert of %u tokens", s->tokens);
}

/* Its weights before and after quantisation. */
static enum gb_status load(const struct study_sensitivity *s, uint32_t layer, uint32_t index, struct expert *e,
                           struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const struct gb_layer *l = &s->fixture->layer[layer];
    size_t matrix = (size_t)shape->hidden * shape->intermediate;
    enum gb_status status = GB_OK;
    for (int p = 0; status == GB_OK && p < 3; p++) {
        status = s->original(s->context, layer, index, (enum gb_projection)p, e->values, error);
        for (size_t i = 0; status == GB_OK && i < matrix; i++)
            e->weights[0][p][i] = (double)e->values[i];
    }
    for (uint32_t r = 0; status == GB_OK && r < shape->intermediate; r++) {
        gb_weights_row(&l->gate_up, index, r, e->weights[1][0] + (size_t)r * shape->hidden);
        gb_weights_row(&l->gate_up, index, shape->intermediate + r, e->weights[1][1] + (size_t)r * shape->hidden);
    }
    for (uint32_t r = 0; status == GB_OK && r < shape->hidden; r++)
        gb_weights_row(&l->down, index, r, e->weights[1][2] + (size_t)r * shape->intermediate);
    return status;
}

static double dot(const double *a, const double *b, uint32_t count)
{
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
    uint32_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (int k = 0; k < 4; k++)
            sum[k] += a[i + k] * b[i + k];
    for (; i < count; i++)
        sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The expert's output for its pairs; quantised[part]: whether that part is. output: [count, hidden] */
static enum gb_status compute(const struct study_sensitivity *s, const struct expert *e, const bool *quantised,
                              double *output, struct gb_error *error)
{
    const uint32_t hidden = s->fixture->shape.hidden, inner = s->fixture->shape.intermediate;
    const double *x = quantised[STUDY_X] ? e->coarse : e->exact;
    const double *gate = e->weights[quantised[STUDY_GATE_WEIGHTS]][0], *up = e->weights[quantised[STUDY_UP_WEIGHTS]][1];
    const double *down = e->weights[quantised[STUDY_DOWN_WEIGHTS]][2];
    enum gb_status status = GB_OK;
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < inner; i++)
        for (uint32_t n = 0; n < e->count; n++) {
            double g = dot(x + (size_t)n * hidden, gate + (size_t)i * hidden, hidden);
            double u = dot(x + (size_t)n * hidden, up + (size_t)i * hidden, hidden);
            e->h[(size_t)n * inner + i] = g / (1.0 + exp(-g)) * u;
        }
    if (quantised[STUDY_INTERMEDIATE]) {
        for (size_t i = 0; i < (size_t)e->count * inner; i++)
            e->rounded[i] = gb_bf16_encode((float)e->h[i]);
        status = study_dequantise(&s->recipe->quantiser, e->rounded, e->count, inner, e->global[1], e->h, error);
    }
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < hidden; i++)
        for (uint32_t n = 0; n < e->count; n++)
            output[(size_t)n * hidden + i] = dot(e->h + (size_t)n * inner, down + (size_t)i * inner, inner);
    return status;
}

/* Of one layer. */
struct layer_error {
    double *error;  /* [tokens, hidden], of all experts */
    double *share;  /* [pairs, hidden], of each pair's expert */
    double *stream; /* [tokens] |truth's stream|^2 */
};

static void layer_free(struct layer_error *l)
{
    free(l->error);
    free(l->share);
    free(l->stream);
}

/* |a|^2 of a pair relative to its token's stream, in the mean over tokens. */
static double relative(const struct gb_shape *shape, const struct layer_error *l, uint32_t pair, const double *a)
{
    return dot(a, a, shape->hidden) / l->stream[pair / shape->top_k] / shape->tokens;
}

/* Quantises nothing, each part by itself, and all of an expert: fills the unit and the layer's errors. */
static enum gb_status measure(const struct study_sensitivity *s, struct expert *e, struct study_unit *unit,
                              struct layer_error *l, struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const float *routing = s->fixture->layer[unit->layer].routing_weights;
    const uint32_t hidden = shape->hidden;
    const bool none[STUDY_PARTS] = {false};
    enum gb_status status = compute(s, e, none, e->right, error);
    for (int part = 0; status == GB_OK && part <= STUDY_PARTS; part++) {
        bool quantised[STUDY_PARTS];
        for (int p = 0; p < STUDY_PARTS; p++)
            quantised[p] = (part == p || part == STUDY_PARTS) && (p < STUDY_X || s->recipe);
        double sum = 0.0;
        status = compute(s, e, quantised, e->output, error);
        for (uint32_t n = 0; status == GB_OK && n < e->count; n++) {
            double *own = e->output + (size_t)n * hidden;
            for (uint32_t i = 0; i < hidden; i++)
                own[i] = (double)routing[e->pair[n]] * (own[i] - e->right[(size_t)n * hidden + i]);
            sum += relative(shape, l, e->pair[n], own);
            if (part == STUDY_PARTS)
                memcpy(l->share + (size_t)e->pair[n] * hidden, own, sizeof *own * hidden);
        }
        *(part < STUDY_PARTS ? &unit->part[part] : &unit->adds) = sum;
    }
    for (uint32_t n = 0; status == GB_OK && n < e->count; n++)
        for (uint32_t i = 0; i < hidden; i++)
            l->error[(size_t)(e->pair[n] / shape->top_k) * hidden + i] += l->share[(size_t)e->pair[n] * hidden + i];
    return status;
}

static float largest_of(const double *values, size_t count)
{
    double largest = 0.0;
    for (size_t i = 0; i < count; i++)
        largest = fabs(values[i]) > largest ? fabs(values[i]) : largest;
    return (float)largest;
}

/* The tokens of an expert, and their x. */
static void gather(const struct study_sensitivity *s, uint32_t layer, uint32_t index, struct expert *e)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const struct gb_layer *l = &s->fixture->layer[layer];
    e->count = 0;
    for (uint32_t p = 0; p < shape->tokens * shape->top_k; p++)
        if (l->ids[p] == (int32_t)index) {
            memcpy(e->x + (size_t)e->count * shape->hidden, l->x + (size_t)(p / shape->top_k) * shape->hidden,
                   sizeof *e->x * shape->hidden);
            e->pair[e->count++] = p;
        }
    for (size_t i = 0; i < (size_t)e->count * shape->hidden; i++)
        e->exact[i] = (double)gb_bf16_decode(e->x[i]);
}

/* The layer with the original weights: its output is added to the residual stream [tokens, hidden]; and the largest x
 * and intermediate, which its static scales are to hold. */
static enum gb_status original(const struct study_sensitivity *s, uint32_t layer, struct expert *e, double *stream,
                               float largest[2], struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const bool none[STUDY_PARTS] = {false};
    enum gb_status status = GB_OK;
    largest[0] = largest[1] = 0.0f;
    for (uint32_t index = 0; status == GB_OK && index < shape->experts; index++) {
        gather(s, layer, index, e);
        status = e->count ? load(s, layer, index, e, error) : GB_OK;
        if (status == GB_OK && e->count)
            status = compute(s, e, none, e->output, error);
        largest[0] = fmaxf(largest[0], largest_of(e->exact, (size_t)e->count * shape->hidden));
        largest[1] = fmaxf(largest[1], largest_of(e->h, (size_t)e->count * shape->intermediate));
        for (uint32_t n = 0; status == GB_OK && n < e->count; n++)
            for (uint32_t i = 0; i < shape->hidden; i++)
                stream[(size_t)(e->pair[n] / shape->top_k) * shape->hidden + i] +=
                    (double)s->fixture->layer[layer].routing_weights[e->pair[n]] *
                    e->output[(size_t)n * shape->hidden + i];
    }
    return status;
}

/* Both global scales of an expert, and how far its x is beyond the first one. */
static void scales(const struct study_sensitivity *s, struct study_unit *unit, const float largest[2], struct expert *e)
{
    const struct gb_quantiser *rules = &s->recipe->quantiser;
    const float *given =
        s->input_scales ? s->input_scales + 2 * ((size_t)unit->layer * s->fixture->shape.experts + unit->expert) : NULL;
    e->global[0] = e->global[1] = 1.0f;
    for (int i = 0; rules->global != GB_GLOBAL_NONE && i < 2; i++)
        e->global[i] = given && !isnan(given[i]) ? given[i]
                       : largest[i] > 0.0f       ? largest[i] / rules->global_largest
                                                 : 1;
    double holds = (double)(e->global[0] * rules->global_largest);
    double most = (double)largest_of(e->exact, (size_t)e->count * s->fixture->shape.hidden);
    unit->clipped = rules->global != GB_GLOBAL_NONE && most > 1.01 * holds ? most / holds : 0.0;
}

/* stream: truth's, [tokens, hidden], of which this layer makes the next one's. */
static enum gb_status one_layer(struct study_sensitivity *s, uint32_t layer, struct expert *e, double *stream,
                                struct layer_error *l, struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const double *attention = s->fixture->stack.attention_delta;
    float largest[2];
    for (size_t i = 0; attention && i < (size_t)shape->tokens * shape->hidden; i++)
        stream[i] += attention[(size_t)layer * shape->tokens * shape->hidden + i];
    enum gb_status status = original(s, layer, e, stream, largest, error);
    for (uint32_t t = 0; t < shape->tokens; t++)
        l->stream[t] = dot(stream + (size_t)t * shape->hidden, stream + (size_t)t * shape->hidden, shape->hidden);
    for (uint32_t index = 0; status == GB_OK && index < shape->experts; index++) {
        gather(s, layer, index, e);
        if (!e->count)
            continue;
        struct study_unit *unit = &s->unit[s->units++];
        *unit = (struct study_unit){.layer = layer, .expert = index, .tokens = e->count};
        status = load(s, layer, index, e, error);
        if (status == GB_OK && s->recipe) {
            scales(s, unit, largest, e);
            status =
                study_dequantise(&s->recipe->quantiser, e->x, e->count, shape->hidden, e->global[0], e->coarse, error);
        }
        if (status == GB_OK)
            status = measure(s, e, unit, l, error);
    }
    return status;
}

/* What leaving the unit in bf16 takes from the squared error; apply: it is done. */
static double gain(const struct study_sensitivity *s, const struct study_unit *unit, struct layer_error *l, bool apply)
{
    const struct gb_shape *shape = &s->fixture->shape;
    double sum = 0.0;
    for (uint32_t p = 0; p < shape->tokens * shape->top_k; p++) {
        if (s->fixture->layer[unit->layer].ids[p] != (int32_t)unit->expert)
            continue;
        uint32_t token = p / shape->top_k;
        double *all = l->error + (size_t)token * shape->hidden, *own = l->share + (size_t)p * shape->hidden;
        sum += (2.0 * dot(all, own, shape->hidden) - dot(own, own, shape->hidden)) / l->stream[token] / shape->tokens;
        for (uint32_t i = 0; apply && i < shape->hidden; i++)
            all[i] -= own[i];
    }
    return sum;
}

static int by_rank(const void *a, const void *b)
{
    const struct study_unit *one = a, *other = b;
    if (one->rank != other->rank)
        return !one->rank ? 1 : !other->rank ? -1 : one->rank < other->rank ? -1 : 1;
    return one->adds > other->adds ? -1 : one->adds < other->adds;
}

/* Leaves one expert after the other in bf16, each time the one that takes most away. */
static void greedy(struct study_sensitivity *s, struct layer_error *layers)
{
    double left = s->error;
    for (uint32_t rank = 1; left > s->enough * s->error && rank <= s->units; rank++) {
        struct study_unit *best = NULL;
        double most = 0.0;
        for (uint32_t u = 0; u < s->units; u++) {
            double one = s->unit[u].rank ? 0.0 : gain(s, &s->unit[u], &layers[s->unit[u].layer], false);
            if (one > most) {
                most = one;
                best = &s->unit[u];
            }
        }
        if (!best)
            break;
        left -= gain(s, best, &layers[best->layer], true);
        best->rank = rank;
        best->left = left / s->error;
    }
    qsort(s->unit, s->units, sizeof *s->unit, by_rank);
}

static enum gb_status layer_new(const struct study_sensitivity *s, struct layer_error *l, struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    size_t row = (size_t)shape->tokens * shape->hidden;
    *l = (struct layer_error){calloc(row, sizeof(double)), calloc(row * shape->top_k, sizeof(double)),
                              malloc(sizeof(double) * shape->tokens)};
    if (!l->error || !l->share || !l->stream)
        return gb_fail(error, GB_ENOMEM, "no memory for the errors of %u tokens", shape->tokens);
    return GB_OK;
}

static double total(const struct gb_shape *shape, const struct layer_error *l)
{
    double sum = 0.0;
    for (uint32_t t = 0; t < shape->tokens; t++)
        sum += relative(shape, l, t * shape->top_k, l->error + (size_t)t * shape->hidden);
    return sum;
}

static enum gb_status run(struct study_sensitivity *s, struct layer_error *layers, double *stream,
                          struct gb_error *error)
{
    const struct gb_fixture *f = s->fixture;
    struct expert e;
    enum gb_status status = expert_new(&f->shape, &e, error);
    if (status != GB_OK)
        return status;
    memcpy(stream, f->stack.residual, sizeof *stream * f->shape.tokens * f->shape.hidden);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        progress_item("sensitivity of layer", l, f->layers);
        status = layer_new(s, &layers[l], error);
        if (status == GB_OK)
            status = one_layer(s, l, &e, stream, &layers[l], error);
        if (status == GB_OK)
            s->error += s->by_layer[l] = total(&f->shape, &layers[l]);
    }
    progress_done();
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++)
        s->by_layer[l] /= s->error;
    if (status == GB_OK)
        greedy(s, layers);
    expert_free(&e);
    return status;
}

enum gb_status study_sensitivity_run(struct study_sensitivity *s, struct gb_error *error)
{
    const struct gb_fixture *f = s->fixture;
    struct layer_error *layers = calloc(f->layers, sizeof *layers);
    double *stream = malloc(sizeof *stream * f->shape.tokens * f->shape.hidden); /* [tokens, hidden] */
    s->by_layer = calloc(f->layers, sizeof *s->by_layer);
    s->unit = calloc((size_t)f->layers * f->shape.experts, sizeof *s->unit);
    s->units = 0;
    s->error = 0.0;
    enum gb_status status = layers && stream && s->by_layer && s->unit
                                ? run(s, layers, stream, error)
                                : gb_fail(error, GB_ENOMEM, "no memory for %u layers", f->layers);
    for (uint32_t l = 0; layers && l < f->layers; l++)
        layer_free(&layers[l]);
    free(layers);
    free(stream);
    return status;
}

void study_sensitivity_free(struct study_sensitivity *s)
{
    free(s->by_layer);
    free(s->unit);
}
