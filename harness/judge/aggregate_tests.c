/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/judge/aggregate_tests.h"
#include "quant/quant.h"

static const struct {
    const char *name, *first, *second; /* what its numbers count */
} families[FAMILIES] = {
    [RMS_TOKEN] = {"rms of a token", "token", "tile"},
    [RMS_COLUMNS] = {"rms of columns", "tile", NULL},
    [RMS_INTERMEDIATE] = {"rms of an intermediate", "token", "slot"},
    [SCALE_LAYER] = {"scale of the layer", NULL, NULL},
    [SCALE_TOKEN] = {"scale of a token", "token", NULL},
    [SCALE_COLUMN] = {"scale of a column", "column", NULL},
    [SCALE_EXPERT] = {"scale of an expert", "expert", NULL},
    [SCALE_SLOT] = {"scale of a slot", "token", "slot"},
    [SCALE_INTERMEDIATE] = {"scale of an intermediate", "token", "slot"},
};

const char *family_name(enum family family)
{
    return families[family].name;
}

bool family_is_scale(enum family family)
{
    return family >= SCALE_LAYER;
}

uint64_t aggregate_zero_exceeding(const struct aggregate_tests *s, bool scale)
{
    uint64_t count = 0;
    for (int f = 0; f < FAMILIES; f++)
        count += family_is_scale((enum family)f) == scale ? s->family[f].zero_exceeding : 0;
    return count;
}

const char *family_place(enum family family, const struct family_result *r, char *text, size_t bytes)
{
    const char *first = families[family].first, *second = families[family].second;
    if (!first)
        snprintf(text, bytes, "all tokens");
    else if (!second)
        snprintf(text, bytes, "%s %u", first, r->first);
    else
        snprintf(text, bytes, "%s %u, %s %u", first, r->first, second, r->second);
    return text;
}

/* A sum of errors along a direction u. */
struct scale_error {
    double along;     /* u . error */
    double signal;    /* u . what is to be scaled */
    double variance;  /* of u . error */
    double bias;      /* u . the error of rounding toward zero */
    double underflow; /* |u| . what underflow may do */
};

/* A sum of squares of uncorrelated errors in units of their standard deviation. */
struct squares {
    double count;
    double errors, truth, bias,
        underflow; /* of errors, of truth, of the errors of rounding toward zero, of underflow */
};

static double squared(double v)
{
    return v * v;
}

/* Enters one statistic. floor: the relative error that reaches the limit. */
static void enter(struct aggregate_tests *s, enum family family, double statistic, double limit, double floor,
                  uint32_t layer, uint32_t first, uint32_t second)
{
    struct family_result *r = &s->family[family];
    double ratio = statistic == 0.0 ? 0.0 : statistic / limit;
    r->count++;
    r->exceeding += !(statistic <= limit);
    if (!(ratio <= r->limit_ratio) && !isnan(r->limit_ratio)) {
        r->limit_ratio = ratio;
        r->layer = layer;
        r->first = first;
        r->second = second;
    }
    if (isfinite(floor)) {
        r->detection_smallest =
            r->detection_smallest == 0.0 || floor < r->detection_smallest ? floor : r->detection_smallest;
        r->detection_worst = fmax(floor, r->detection_worst);
    }
}

double scale_limit(double variance, double x)
{
    return sqrt(2.0 * variance * x);
}

double rms_limit(double count, double x)
{
    return sqrt(count + 2.0 * sqrt(count * x) + 2.0 * x);
}

static void enter_scale(struct aggregate_tests *s, enum family family, const struct scale_error *g, uint32_t layer,
                        uint32_t first, uint32_t second)
{
    double limit =
        scale_limit(g->variance, log(2.0 * (double)s->scale / s->probability)) + fabs(g->bias) + g->underflow;
    s->family[family].zero_exceeding += g->signal > limit;
    enter(s, family, fabs(g->along), limit, limit / g->signal, layer, first, second);
}

static void enter_squares(struct aggregate_tests *s, enum family family, const struct squares *q, uint32_t layer,
                          uint32_t first, uint32_t second)
{
    double limit = rms_limit(q->count, log((double)s->rms / s->probability)) + sqrt(q->bias) + sqrt(q->underflow);
    double floor = sqrt((limit * limit - q->count) / q->truth);
    s->family[family].zero_exceeding += sqrt(q->truth) > limit;
    enter(s, family, sqrt(q->errors), limit, floor, layer, first, second);
}

/* Sums independent scale errors, each with the weight that makes most of it. */
static void add_scale(struct scale_error *sum, const struct scale_error *g)
{
    double weight = g->variance > 0.0 ? g->signal / g->variance : 0.0;
    sum->along += weight * g->along;
    sum->signal += weight * g->signal;
    sum->variance += squared(weight) * g->variance;
    sum->bias += weight * g->bias;
    sum->underflow += fabs(weight) * g->underflow;
}

/* One layer's output under the judge. */
struct run_case {
    struct aggregate_tests *s;
    const struct gb_layer *of;
    const struct prediction *expected;
    const double *errors, *truth, *bias; /* [tokens, hidden], without what open codes may do */
    uint32_t layer, tokens, hidden, top_k, experts;
    bool *repeats; /* [tokens] */
};

void aggregate_repeats(const struct gb_layer *layer, uint32_t tokens, uint32_t hidden, bool *repeats)
{
    size_t bytes = sizeof(gb_bf16) * hidden;
    for (uint32_t t = 1; t < tokens; t++)
        for (uint32_t earlier = 0; earlier < t && !repeats[t]; earlier++)
            repeats[t] = !memcmp(layer->x + (size_t)t * hidden, layer->x + (size_t)earlier * hidden, bytes);
}

static bool left_out(const struct run_case *j, uint32_t token)
{
    const uint32_t *open = j->expected->covariance->open;
    return open && open[token] == GB_LEFT_OUT;
}

static struct scale_error along_direction(const struct run_case *j, uint32_t token, uint32_t direction)
{
    const struct gb_covariance *m = j->expected->covariance;
    size_t at = (size_t)token * m->directions + direction;
    const float *u = m->direction + at * j->hidden;
    struct scale_error g = {.signal = m->signal[at], .variance = m->variance[at]};
    for (uint32_t o = 0; o < j->hidden; o++) {
        size_t i = (size_t)token * j->hidden + o;
        g.along += (double)u[o] * j->errors[i];
        g.bias += (double)u[o] * j->bias[i];
        g.underflow += fabs((double)u[o]) * j->expected->of->output_underflow[i];
    }
    return g;
}

/* experts: scratch, [experts], zero. */
static void test_directions(const struct run_case *j, struct scale_error *experts)
{
    struct scale_error all = {0};
    for (uint32_t t = 0; t < j->tokens; t++) {
        for (uint32_t k = 0; k < j->top_k && !left_out(j, t); k++) {
            int32_t expert = j->of->ids[(size_t)t * j->top_k + k];
            if (expert < 0)
                continue;
            struct scale_error slot = along_direction(j, t, k);
            enter_scale(j->s, SCALE_SLOT, &slot, j->layer, t, k);
            if (!j->repeats[t])
                add_scale(&experts[expert], &slot);
        }
        if (left_out(j, t))
            continue;
        struct scale_error token = along_direction(j, t, j->top_k);
        enter_scale(j->s, SCALE_TOKEN, &token, j->layer, t, 0);
        if (!j->repeats[t])
            add_scale(&all, &token);
    }
    for (uint32_t e = 0; e < j->experts; e++)
        if (experts[e].signal > 0.0)
            enter_scale(j->s, SCALE_EXPERT, &experts[e], j->layer, e, 0);
    enter_scale(j->s, SCALE_LAYER, &all, j->layer, 0, 0);
}

/* Of an output's variance; below, what is left of it is the roundings of what was taken out. */
static const double least_kept = 0x1p-20;

/* What underflow may do to an output that is free of what open codes may do: other outputs' shares come in then. */
static double column_underflow(const struct run_case *j, uint32_t token, uint32_t o)
{
    const struct gb_covariance *m = j->expected->covariance;
    const size_t i = (size_t)token * j->hidden + o;
    if (!m->open || !m->open[token])
        return j->expected->of->output_underflow[i];
    return m->deviation[i] * sqrt(m->underflow[token]); /* there is one tile */
}

/* Errors of one column in different tokens are independent. */
static void test_columns(const struct run_case *j)
{
    for (uint32_t o = 0; o < j->hidden; o++) {
        struct scale_error column = {0};
        for (uint32_t t = 0; t < j->tokens; t++) {
            size_t i = (size_t)t * j->hidden + o;
            double kept = j->expected->covariance->kept ? j->expected->covariance->kept[i] : 1.0;
            double deviation = hypot(j->expected->of->output_sigma[i], j->expected->of->output_underflow[i]);
            struct scale_error g = {j->errors[i], kept * j->expected->truth[i], kept * squared(deviation), j->bias[i],
                                    column_underflow(j, t, o)};
            if (!j->repeats[t] && !left_out(j, t) && kept > least_kept)
                add_scale(&column, &g);
        }
        enter_scale(j->s, SCALE_COLUMN, &column, j->layer, o, 0);
    }
}

static double whitened_squares(const struct run_case *j, uint32_t token, uint32_t tile, uint32_t count, double *values)
{
    double sum = 0.0;
    gb_covariance_whiten(j->expected->covariance, token, tile, count, values);
    for (uint32_t i = 0; i < count; i++)
        sum += squared(values[i]);
    return sum;
}

/* values: scratch, [hidden]. */
static struct squares squares_of(const struct run_case *j, uint32_t token, uint32_t tile, double *values)
{
    uint32_t width = j->expected->covariance->tile, first = tile * width;
    uint32_t count = j->hidden - first < width ? j->hidden - first : width;
    size_t at = (size_t)token * j->hidden + first;
    struct squares q = {.count = count,
                        .underflow =
                            j->expected->covariance->underflow[(size_t)token * j->expected->covariance->tiles + tile]};
    q.count -= j->expected->covariance->open ? j->expected->covariance->open[token] : 0;
    memcpy(values, j->errors + at, sizeof(double) * count);
    q.errors = whitened_squares(j, token, tile, count, values);
    memcpy(values, j->truth + at, sizeof(double) * count);
    q.truth = whitened_squares(j, token, tile, count, values);
    memcpy(values, j->bias + at, sizeof(double) * count);
    q.bias = whitened_squares(j, token, tile, count, values);
    return q;
}

static void add_squares(struct squares *sum, const struct squares *q)
{
    sum->count += q->count;
    sum->errors += q->errors;
    sum->truth += q->truth;
    sum->bias += q->bias;
    sum->underflow += q->underflow;
}

/* Errors of different tokens are independent. values: scratch, [hidden]. */
static void test_tiles(const struct run_case *j, double *values)
{
    for (uint32_t k = 0; k < j->expected->covariance->tiles; k++) {
        struct squares all = {0};
        for (uint32_t t = 0; t < j->tokens; t++) {
            if (left_out(j, t))
                continue;
            struct squares q = squares_of(j, t, k, values);
            enter_squares(j->s, RMS_TOKEN, &q, j->layer, t, k);
            if (!j->repeats[t])
                add_squares(&all, &q);
        }
        enter_squares(j->s, RMS_COLUMNS, &all, j->layer, k, 0);
    }
}

/* Each layer has the same sizes, hence the same number of aggregate; experts that are not in use count too. */
static void start(struct aggregate_tests *s, const struct baseline *b, const struct gb_covariance *m, uint32_t tokens,
                  bool output, bool inner, double probability)
{
    const struct gb_shape *shape = &b->fixture->shape;
    uint64_t judged = tokens < m->tokens ? tokens : m->tokens, pairs = (uint64_t)tokens * shape->top_k;
    memset(s, 0, sizeof *s);
    s->probability = probability;
    s->tokens_judged = (uint32_t)judged;
    if (output) {
        s->rms += m->tiles * (judged + 1);
        s->scale += 1 + judged * (1 + shape->top_k) + shape->hidden + shape->experts;
    }
    s->rms += inner ? pairs : 0;
    s->scale += inner ? pairs : 0;
    s->rms *= b->fixture->layers;
    s->scale *= b->fixture->layers;
}

void aggregate_start(struct aggregate_tests *s, const struct baseline *b, uint32_t tokens, bool output, bool inner,
                     double probability)
{
    start(s, b, &b->bounds[0].covariance, tokens, output, inner, probability);
}

void aggregate_start_down(struct aggregate_tests *s, const struct baseline *b, const struct gb_covariance *covariance,
                          double probability)
{
    start(s, b, covariance, covariance->tokens, true, false, probability);
}

/* Errors, truth and bias without what open codes may do: room has [3, tokens, hidden]. */
static void project(struct run_case *j, const double *subject, double *room)
{
    const struct gb_covariance *m = j->expected->covariance;
    size_t count = (size_t)j->tokens * j->hidden;
    double *errors = room, *truth = room + count, *bias = room + 2 * count;
    j->errors = errors;
    j->truth = truth;
    j->bias = bias;
    for (size_t i = 0; i < count; i++)
        errors[i] = subject[i] - j->expected->truth[i];
    memcpy(truth, j->expected->truth, sizeof *truth * count);
    memcpy(bias, j->expected->of->output_bias, sizeof *bias * count);
    for (uint32_t t = 0; t < j->tokens && m->open; t++) {
        j->s->tokens_left_out += left_out(j, t);
        j->s->ambiguous_codes += left_out(j, t) ? 0 : m->open[t];
        for (int of = 0; of < 3; of++)
            gb_covariance_project(m, t, room + of * count + (size_t)t * j->hidden);
    }
}

static enum gb_status evaluate_layer(struct aggregate_tests *s, const struct baseline *b, uint32_t layer,
                                     const struct prediction *expected, const double *subject, struct gb_error *error)
{
    const struct gb_shape *shape = &b->fixture->shape;
    const uint32_t judged = s->tokens_judged;
    struct run_case j = {.s = s,
                         .of = &b->fixture->layer[layer],
                         .expected = expected,
                         .layer = layer,
                         .tokens = judged,
                         .hidden = shape->hidden,
                         .top_k = shape->top_k,
                         .experts = shape->experts,
                         .repeats = calloc(judged, sizeof(bool))};
    struct scale_error *experts = calloc(shape->experts, sizeof *experts);      /* [experts] */
    double *values = malloc(sizeof(double) * shape->hidden);                    /* [hidden] */
    double *room = malloc(sizeof(double) * 3 * (size_t)judged * shape->hidden); /* [3, tokens, hidden] */
    bool good = experts && values && room && j.repeats;
    if (good) {
        project(&j, subject, room);
        aggregate_repeats(j.of, judged, shape->hidden, j.repeats);
        test_directions(&j, experts);
        test_columns(&j);
        test_tiles(&j, values);
    }
    free(j.repeats);
    free(experts);
    free(values);
    free(room);
    return good ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory to judge %u experts", shape->experts);
}

enum gb_status aggregate_output(struct aggregate_tests *s, const struct baseline *b, uint32_t layer,
                                const double *subject, struct gb_error *error)
{
    const struct layer_bounds *bounds = &b->bounds[layer];
    const struct gb_bounds *of = b->contract->activations == GB_BF16 ? &bounds->of : &bounds->down;
    struct prediction expected = {of->output_truth, of, &bounds->covariance};
    return evaluate_layer(s, b, layer, &expected, subject, error);
}

enum gb_status aggregate_down(struct aggregate_tests *s, const struct baseline *b, uint32_t layer,
                              const struct prediction *down, const double *subject, struct gb_error *error)
{
    return evaluate_layer(s, b, layer, down, subject, error);
}

/* Errors of the intermediate are independent. */
void aggregate_intermediate(struct aggregate_tests *s, const struct baseline *b, uint32_t layer, uint32_t tokens,
                            const double *subject)
{
    const struct gb_shape *shape = &b->fixture->shape;
    const struct layer_bounds *bounds = &b->bounds[layer];
    for (uint32_t pair = 0; pair < tokens * shape->top_k; pair++) {
        struct scale_error sum = {0};
        struct squares q = {0};
        for (size_t i = (size_t)pair * shape->intermediate; i < (size_t)(pair + 1) * shape->intermediate; i++) {
            double h = bounds->of.intermediate_truth[i], underflow = bounds->of.intermediate_underflow[i];
            double variance = squared(bounds->of.intermediate_sigma[i]) + squared(underflow);
            struct scale_error g = {subject[i] - h, h, variance, bounds->of.intermediate_bias[i], underflow};
            if (variance == 0.0)
                continue;
            add_scale(&sum, &g);
            add_squares(&q, &(struct squares){1.0, squared(g.along) / variance, squared(h) / variance,
                                              squared(g.bias) / variance, squared(underflow) / variance});
        }
        enter_scale(s, SCALE_INTERMEDIATE, &sum, layer, pair / shape->top_k, pair % shape->top_k);
        enter_squares(s, RMS_INTERMEDIATE, &q, layer, pair / shape->top_k, pair % shape->top_k);
    }
}
