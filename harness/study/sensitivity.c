/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every expert by itself in float64, so that the error of quantisation alone is measured; an expert's errors add up to
 * the layer's, token by token.
 */
#include "harness/study/sensitivity.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/progress.h"

const char *study_part_name(enum study_part part)
{
    static const char *const names[] = {"gate weights", "up weights", "down weights", "x", "intermediate"};
    return names[part];
}

/* What a part is: as before quantisation, quantised, or remedied. */
enum level { EXACT, QUANTISED, REMEDIED, LEVELS };

/* One expert and the pairs of tokens and slots that are its own. */
struct expert {
    uint32_t count;
    uint32_t *pair;             /* [count] */
    gb_bf16 *x;                 /* [count, hidden] */
    double *inputs[LEVELS];     /* [count, hidden] x */
    double *weights[LEVELS][3]; /* gate, up [intermediate, hidden], down [hidden, intermediate] */
    double *up, *h;             /* [count, intermediate] */
    gb_bf16 *rounded;           /* [hidden * intermediate] or [count, intermediate] */
    double *output, *right;     /* [count, hidden] */
    double *all;                /* [count, hidden] what is wrong with all of it quantised */
    float *values;              /* [hidden * intermediate] */
    float global[2];
};

static void expert_free(struct expert *e)
{
    void *const all[] = {e->pair, e->x, e->up, e->h, e->rounded, e->output, e->right, e->all, e->values};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    for (int level = EXACT; level < LEVELS; level++) {
        free(e->inputs[level]);
        for (int p = 0; p < 3; p++)
            free(e->weights[level][p]);
    }
}

static enum gb_status expert_new(const struct gb_shape *s, bool remedied, struct expert *e, struct gb_error *error)
{
    size_t pairs = (size_t)s->tokens * s->top_k, outer = pairs * s->hidden, inner = pairs * s->intermediate;
    size_t matrix = (size_t)s->hidden * s->intermediate;
    bool good = true;
    *e = (struct expert){
        .pair = malloc(sizeof *e->pair * pairs),
        .x = malloc(sizeof *e->x * outer),
        .up = malloc(sizeof *e->up * inner),
        .h = malloc(sizeof *e->h * inner),
        .rounded = malloc(sizeof *e->rounded * (inner > matrix ? inner : matrix)),
        .output = malloc(sizeof *e->output * outer),
        .right = malloc(sizeof *e->right * outer),
        .all = malloc(sizeof *e->all * outer),
        .values = malloc(sizeof *e->values * matrix),
    };
    for (int level = EXACT; level < (remedied ? LEVELS : REMEDIED); level++) {
        good &= (e->inputs[level] = malloc(sizeof(double) * outer)) != NULL;
        for (int p = 0; p < 3; p++)
            good &= (e->weights[level][p] = malloc(sizeof(double) * matrix)) != NULL;
    }
    if (good && e->pair && e->x && e->up && e->h && e->rounded && e->output && e->right && e->all && e->values)
        return GB_OK;
    expert_free(e);
    return gb_fail(error, GB_ENOMEM, "no memory for an expert of %u tokens", s->tokens);
}

/* A projection of it, original and quantised, and as MXFP8 where that is the remedy. */
static enum gb_status load_projection(const struct study_sensitivity *s, uint32_t layer, uint32_t index, int p,
                                      struct expert *e, struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const struct gb_layer *l = &s->fixture->layer[layer];
    const bool down = p == GB_DOWN_PROJ;
    const uint32_t rows = down ? shape->hidden : shape->intermediate, first = p == GB_UP_PROJ ? rows : 0;
    const uint32_t columns = down ? shape->intermediate : shape->hidden;
    enum gb_status status = s->original(s->context, layer, index, (enum gb_projection)p, e->values, error);
    for (size_t i = 0; status == GB_OK && i < (size_t)rows * columns; i++) {
        e->weights[EXACT][p][i] = (double)e->values[i];
        e->rounded[i] = gb_bf16_encode(e->values[i]);
    }
    for (uint32_t r = 0; status == GB_OK && r < rows; r++)
        gb_weights_row(down ? &l->down : &l->gate_up, index, first + r, e->weights[QUANTISED][p] + (size_t)r * columns);
    if (status == GB_OK && s->remedy == STUDY_IN_MXFP8)
        return study_dequantise(&s->mxfp8->quantiser, e->rounded, rows, columns, 1.0f, e->weights[REMEDIED][p], error);
    return status;
}

static enum gb_status load(const struct study_sensitivity *s, uint32_t layer, uint32_t index, struct expert *e,
                           struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (int p = 0; status == GB_OK && p < 3; p++)
        status = load_projection(s, layer, index, p, e, error);
    return status;
}

static float largest_of(const double *values, size_t count)
{
    double largest = 0.0;
    for (size_t i = 0; i < count; i++)
        largest = fabs(values[i]) > largest ? fabs(values[i]) : largest;
    return (float)largest;
}

/* The decoding global scale by which a quantiser calibrates values whose largest one is this. */
static float calibrated(const struct gb_quantiser *rules, float largest)
{
    return rules->global == GB_GLOBAL_NONE || !(largest > 0.0f) ? 1.0f : largest / rules->global_largest;
}

/* Activations of a level: values [rows, columns] are those before quantisation, and their bf16. global: the static
 * scale. out may be values. */
static enum gb_status activations(const struct study_sensitivity *s, enum level level, const double *values,
                                  const gb_bf16 *bits, uint32_t rows, uint32_t columns, float global, double *out,
                                  struct gb_error *error)
{
    const struct gb_recipe *recipe = level == REMEDIED && s->remedy == STUDY_IN_MXFP8 ? s->mxfp8 : s->recipe;
    enum gb_status status = GB_OK;
    if (level == QUANTISED || s->remedy != STUDY_DYNAMIC)
        return study_dequantise(&recipe->quantiser, bits, rows, columns, global, out, error);
    for (uint32_t r = 0; status == GB_OK && r < rows; r++) {
        size_t at = (size_t)r * columns;
        float own = calibrated(&recipe->quantiser, largest_of(values + at, columns));
        status = study_dequantise(&recipe->quantiser, bits + at, 1, columns, own, out + at, error);
    }
    return status;
}

/* c [m, n] = a [m, k] . b [n, k]^T */
static void product(uint32_t m, uint32_t n, uint32_t k, const double *a, const double *b, double *c)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1.0, a, (int)k, b, (int)k, 0.0, c,
                (int)n);
}

/* The level that really stands for one: a remedy that is bf16 is what was before quantisation, and a dynamic one
 * leaves weights as they are. */
static enum level stands_for(const struct study_sensitivity *s, enum level level, bool weights)
{
    if (level == REMEDIED && s->remedy == STUDY_IN_BF16)
        return EXACT;
    return level == REMEDIED && s->remedy == STUDY_DYNAMIC && weights ? QUANTISED : level;
}

/* The expert's output for its pairs, each part being of its level. output: [count, hidden] */
static enum gb_status compute(const struct study_sensitivity *s, const struct expert *e, const enum level *level,
                              double *output, struct gb_error *error)
{
    const uint32_t hidden = s->fixture->shape.hidden, inner = s->fixture->shape.intermediate;
    const double *x = e->inputs[stands_for(s, level[STUDY_X], false)];
    const double *gate = e->weights[stands_for(s, level[STUDY_GATE_WEIGHTS], true)][GB_GATE_PROJ];
    const double *up = e->weights[stands_for(s, level[STUDY_UP_WEIGHTS], true)][GB_UP_PROJ];
    const double *down = e->weights[stands_for(s, level[STUDY_DOWN_WEIGHTS], true)][GB_DOWN_PROJ];
    enum level of_h = stands_for(s, level[STUDY_INTERMEDIATE], false);
    enum gb_status status = GB_OK;
    product(e->count, inner, hidden, x, gate, e->h);
    product(e->count, inner, hidden, x, up, e->up);
    for (size_t i = 0; i < (size_t)e->count * inner; i++)
        e->h[i] *= e->up[i] / (1.0 + exp(-e->h[i]));
    if (of_h != EXACT) {
        for (size_t i = 0; i < (size_t)e->count * inner; i++)
            e->rounded[i] = gb_bf16_encode((float)e->h[i]);
        status = activations(s, of_h, e->h, e->rounded, e->count, inner, e->global[1], e->h, error);
    }
    product(e->count, hidden, inner, e->h, down, output);
    return status;
}

/* Of one layer. */
struct layer_error {
    double *error;  /* [tokens, hidden], of all experts */
    double *share;  /* [pairs, hidden], what remedying each pair's expert takes from it */
    double *stream; /* [tokens] |truth's stream|^2 */
};

/* [pairs, hidden] of the layer at hand: what remedying one part of each pair's expert takes from the layer's error. */
struct parts {
    double *of[STUDY_PARTS];
};

static void layer_free(struct layer_error *l)
{
    free(l->error);
    free(l->share);
    free(l->stream);
}

/* |a|^2. a: [hidden] */
static double squares(const struct gb_shape *shape, const double *a)
{
    return cblas_ddot((int)shape->hidden, a, 1, a, 1);
}

/* |a|^2 of a pair relative to its token's stream, in the mean over tokens. */
static double relative(const struct gb_shape *shape, const struct layer_error *l, uint32_t pair, const double *a)
{
    return squares(shape, a) / l->stream[pair / shape->top_k] / shape->tokens;
}

/* Every part at one level, but `other` at another one; activations that stay bf16 are exact in any case. */
static void set_levels(const struct study_sensitivity *s, enum level most, int part, enum level other,
                       enum level *level)
{
    for (int p = 0; p < STUDY_PARTS; p++)
        level[p] = p >= STUDY_X && !s->recipe ? EXACT : p == part || part == STUDY_PARTS ? other : most;
}

/* Quantises each part by itself, and all of an expert: fills the unit, e->all and the layer's error. */
static enum gb_status measure_added(const struct study_sensitivity *s, struct expert *e, struct study_unit *unit,
                                    struct layer_error *l, struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const float *routing = s->fixture->layer[unit->layer].routing_weights;
    const uint32_t hidden = shape->hidden;
    enum level level[STUDY_PARTS];
    set_levels(s, EXACT, STUDY_PARTS, EXACT, level);
    enum gb_status status = compute(s, e, level, e->right, error);
    for (int part = 0; status == GB_OK && part <= STUDY_PARTS; part++) {
        double sum = 0.0;
        set_levels(s, EXACT, part, QUANTISED, level);
        status = compute(s, e, level, e->all, error);
        for (uint32_t n = 0; status == GB_OK && n < e->count; n++) {
            double *own = e->all + (size_t)n * hidden;
            for (uint32_t i = 0; i < hidden; i++)
                own[i] = (double)routing[e->pair[n]] * (own[i] - e->right[(size_t)n * hidden + i]);
            sum += relative(shape, l, e->pair[n], own);
        }
        *(part < STUDY_PARTS ? &unit->part[part] : &unit->adds) = sum;
    }
    for (uint32_t n = 0; status == GB_OK && n < e->count; n++)
        for (uint32_t i = 0; i < hidden; i++)
            l->error[(size_t)(e->pair[n] / shape->top_k) * hidden + i] += e->all[(size_t)n * hidden + i];
    return status;
}

/* Remedies each part of an expert by itself, and all of it, the rest being quantised. */
static enum gb_status measure_remedied(const struct study_sensitivity *s, struct expert *e,
                                       const struct study_unit *unit, struct layer_error *l, struct parts *parts,
                                       struct gb_error *error)
{
    const float *routing = s->fixture->layer[unit->layer].routing_weights;
    const uint32_t hidden = s->fixture->shape.hidden;
    enum level level[STUDY_PARTS];
    enum gb_status status = GB_OK;
    for (int part = 0; status == GB_OK && part <= STUDY_PARTS; part++) {
        double *taken = part < STUDY_PARTS ? parts->of[part] : l->share;
        set_levels(s, QUANTISED, part, REMEDIED, level);
        status = compute(s, e, level, e->output, error);
        for (size_t i = 0; status == GB_OK && i < (size_t)e->count * hidden; i++)
            taken[(size_t)e->pair[i / hidden] * hidden + i % hidden] =
                e->all[i] - (double)routing[e->pair[i / hidden]] * (e->output[i] - e->right[i]);
    }
    return status;
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
        e->inputs[EXACT][i] = (double)gb_bf16_decode(e->x[i]);
}

/* The layer with the original weights: its output is added to the residual stream [tokens, hidden]; and the largest x
 * and intermediate, which its static scales are to hold. */
static enum gb_status original(const struct study_sensitivity *s, uint32_t layer, struct expert *e, double *stream,
                               float largest[2], struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const enum level none[STUDY_PARTS] = {EXACT};
    enum gb_status status = GB_OK;
    largest[0] = largest[1] = 0.0f;
    for (uint32_t index = 0; status == GB_OK && index < shape->experts; index++) {
        gather(s, layer, index, e);
        status = e->count ? load(s, layer, index, e, error) : GB_OK;
        if (status == GB_OK && e->count)
            status = compute(s, e, none, e->output, error);
        largest[0] = fmaxf(largest[0], largest_of(e->inputs[EXACT], (size_t)e->count * shape->hidden));
        largest[1] = fmaxf(largest[1], largest_of(e->h, (size_t)e->count * shape->intermediate));
        for (uint32_t n = 0; status == GB_OK && n < e->count; n++)
            for (uint32_t i = 0; i < shape->hidden; i++)
                stream[(size_t)(e->pair[n] / shape->top_k) * shape->hidden + i] +=
                    (double)s->fixture->layer[layer].routing_weights[e->pair[n]] *
                    e->output[(size_t)n * shape->hidden + i];
    }
    return status;
}

/* Both global scales of an expert, and how its x lies in what the first one can hold. */
static void scales(const struct study_sensitivity *s, struct study_unit *unit, const float largest[2], struct expert *e)
{
    const struct gb_quantiser *rules = &s->recipe->quantiser;
    const float *given =
        s->input_scales ? s->input_scales + 2 * ((size_t)unit->layer * s->fixture->shape.experts + unit->expert) : NULL;
    bool own = rules->global != GB_GLOBAL_NONE && given && !isnan(given[0]);
    for (int i = 0; i < 2; i++)
        e->global[i] = own && !isnan(given[i]) ? given[i] : calibrated(rules, largest[i]);
    double most = (double)largest_of(e->inputs[EXACT], (size_t)e->count * s->fixture->shape.hidden);
    unit->range = own ? most / (double)(e->global[0] * rules->global_largest) : 0.0;
    unit->unset = own && (given[0] == 1.0f || given[1] == 1.0f);
}

/* x of the expert at every level. */
static enum gb_status quantise_inputs(const struct study_sensitivity *s, struct expert *e, struct gb_error *error)
{
    const uint32_t hidden = s->fixture->shape.hidden;
    enum gb_status status =
        activations(s, QUANTISED, e->inputs[EXACT], e->x, e->count, hidden, e->global[0], e->inputs[QUANTISED], error);
    if (status == GB_OK && e->inputs[REMEDIED])
        status = activations(s, REMEDIED, e->inputs[EXACT], e->x, e->count, hidden, e->global[0], e->inputs[REMEDIED],
                             error);
    return status;
}

/* stream: truth's, [tokens, hidden], of which this layer makes the next one's. */
static enum gb_status one_layer(struct study_sensitivity *s, uint32_t layer, struct expert *e, double *stream,
                                struct layer_error *l, struct parts *parts, struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    const double *attention = s->fixture->stack.attention_delta;
    float largest[2];
    for (size_t i = 0; attention && i < (size_t)shape->tokens * shape->hidden; i++)
        stream[i] += attention[(size_t)layer * shape->tokens * shape->hidden + i];
    enum gb_status status = original(s, layer, e, stream, largest, error);
    for (uint32_t t = 0; t < shape->tokens; t++)
        l->stream[t] = squares(shape, stream + (size_t)t * shape->hidden);
    for (uint32_t index = 0; status == GB_OK && index < shape->experts; index++) {
        gather(s, layer, index, e);
        if (!e->count)
            continue;
        struct study_unit *unit = &s->unit[s->units++];
        *unit = (struct study_unit){.layer = layer, .expert = index, .tokens = e->count};
        status = load(s, layer, index, e, error);
        if (status == GB_OK && s->recipe) {
            scales(s, unit, largest, e);
            status = quantise_inputs(s, e, error);
        }
        if (status == GB_OK)
            status = measure_added(s, e, unit, l, error);
        if (status == GB_OK)
            status = measure_remedied(s, e, unit, l, parts, error);
    }
    return status;
}

/* What is less of the squared error without `taken` [pairs, hidden] of the unit's pairs; apply: it is done. */
static double gain(const struct study_sensitivity *s, const struct study_unit *unit, struct layer_error *l,
                   const double *taken, bool apply)
{
    const struct gb_shape *shape = &s->fixture->shape;
    double sum = 0.0;
    for (uint32_t p = 0; p < shape->tokens * shape->top_k; p++) {
        if (s->fixture->layer[unit->layer].ids[p] != (int32_t)unit->expert)
            continue;
        uint32_t token = p / shape->top_k;
        double *all = l->error + (size_t)token * shape->hidden;
        const double *own = taken + (size_t)p * shape->hidden;
        sum += (2.0 * cblas_ddot((int)shape->hidden, all, 1, own, 1) - squares(shape, own)) / l->stream[token] /
               shape->tokens;
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

/* Remedies one expert after the other, each time the one that takes most away. takes: [units] scratch. */
static void greedy(struct study_sensitivity *s, struct layer_error *layers, double *takes)
{
    double left = s->error;
    for (uint32_t u = 0; u < s->units; u++)
        takes[u] = s->unit[u].takes[STUDY_PARTS];
    for (uint32_t rank = 1; left > s->enough * s->error && rank <= s->units; rank++) {
        uint32_t best = 0;
        for (uint32_t u = 1; u < s->units; u++)
            best = takes[u] > takes[best] ? u : best;
        if (!(takes[best] > 0.0))
            break;
        struct study_unit *unit = &s->unit[best];
        struct layer_error *layer = &layers[unit->layer];
        left -= gain(s, unit, layer, layer->share, true);
        unit->rank = rank;
        unit->left = left / s->error;
        for (uint32_t u = 0; u < s->units; u++) /* the others of its layer share its tokens */
            if (s->unit[u].layer == unit->layer)
                takes[u] = s->unit[u].rank ? 0.0 : gain(s, &s->unit[u], layer, layer->share, false);
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

/* The layer's errors, which all its experts have filled: its own, with every expert remedied, and what each takes. */
static enum gb_status sum_up(struct study_sensitivity *s, uint32_t layer, uint32_t first, struct layer_error *l,
                             const struct parts *parts, struct gb_error *error)
{
    const struct gb_shape *shape = &s->fixture->shape;
    size_t row = (size_t)shape->tokens * shape->hidden;
    double *kept = malloc(sizeof *kept * row); /* [tokens, hidden] */
    if (!kept)
        return gb_fail(error, GB_ENOMEM, "no memory for the errors of %u tokens", shape->tokens);
    memcpy(kept, l->error, sizeof *kept * row);
    s->by_layer[layer] = total(shape, l);
    for (uint32_t u = first; u < s->units; u++)
        for (int part = 0; part <= STUDY_PARTS; part++)
            s->unit[u].takes[part] = gain(s, &s->unit[u], l, part < STUDY_PARTS ? parts->of[part] : l->share, false);
    for (uint32_t u = first; u < s->units; u++)
        gain(s, &s->unit[u], l, l->share, true);
    double left = total(shape, l);
    s->layer_takes[layer] = s->by_layer[layer] - left;
    s->error += s->by_layer[layer];
    s->remedied += left;
    memcpy(l->error, kept, sizeof *kept * row);
    free(kept);
    return GB_OK;
}

static enum gb_status run(struct study_sensitivity *s, struct layer_error *layers, double *stream, struct parts *parts,
                          struct gb_error *error)
{
    const struct gb_fixture *f = s->fixture;
    struct expert e;
    enum gb_status status = expert_new(&f->shape, s->remedy != STUDY_IN_BF16, &e, error);
    if (status != GB_OK)
        return status;
    memcpy(stream, f->stack.residual, sizeof *stream * f->shape.tokens * f->shape.hidden);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        const uint32_t first = s->units;
        progress_item("sensitivity of layer", l, f->layers);
        status = layer_new(s, &layers[l], error);
        if (status == GB_OK)
            status = one_layer(s, l, &e, stream, &layers[l], parts, error);
        if (status == GB_OK)
            status = sum_up(s, l, first, &layers[l], parts, error);
    }
    progress_done();
    expert_free(&e);
    return status;
}

static enum gb_status parts_new(const struct gb_shape *s, struct parts *parts, struct gb_error *error)
{
    size_t size = (size_t)s->tokens * s->top_k * s->hidden;
    for (int p = 0; p < STUDY_PARTS; p++)
        if (!(parts->of[p] = calloc(size, sizeof(double))))
            return gb_fail(error, GB_ENOMEM, "no memory for the errors of %u tokens", s->tokens);
    return GB_OK;
}

enum gb_status study_sensitivity_run(struct study_sensitivity *s, struct gb_error *error)
{
    const struct gb_fixture *f = s->fixture;
    const size_t most = (size_t)f->layers * f->shape.experts;
    struct parts parts = {{NULL}};
    struct layer_error *layers = calloc(f->layers, sizeof *layers);
    double *stream = malloc(sizeof *stream * f->shape.tokens * f->shape.hidden); /* [tokens, hidden] */
    double *takes = malloc(sizeof *takes * most);                                /* [units] */
    s->by_layer = calloc(f->layers, sizeof *s->by_layer);
    s->layer_takes = calloc(f->layers, sizeof *s->layer_takes);
    s->unit = calloc(most, sizeof *s->unit);
    s->units = 0;
    s->error = s->remedied = 0.0;
    enum gb_status status = parts_new(&f->shape, &parts, error);
    if (status == GB_OK && !(layers && stream && takes && s->by_layer && s->layer_takes && s->unit))
        status = gb_fail(error, GB_ENOMEM, "no memory for %u layers", f->layers);
    if (status == GB_OK)
        status = run(s, layers, stream, &parts, error);
    for (uint32_t l = 0; status == GB_OK && s->error > 0.0 && l < f->layers; l++) {
        s->by_layer[l] /= s->error;
        s->layer_takes[l] /= s->error;
    }
    if (status == GB_OK)
        greedy(s, layers, takes);
    for (uint32_t l = 0; layers && l < f->layers; l++)
        layer_free(&layers[l]);
    for (int p = 0; p < STUDY_PARTS; p++)
        free(parts.of[p]);
    free(layers);
    free(stream);
    free(takes);
    return status;
}

void study_sensitivity_free(struct study_sensitivity *s)
{
    free(s->by_layer);
    free(s->layer_takes);
    free(s->unit);
}
