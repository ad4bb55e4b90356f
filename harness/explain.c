/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain.h"
#include "harness/window.h"
#include "quant/quant.h"

enum { MOST_TOKENS = 32, SHOWN = 5 };

/* So many products take about as long as a glance. */
#define MOST_PRODUCTS (1u << 28)

double window_value(const struct gb_layer_outputs *l, size_t i)
{
    return l->format == GB_FP32 ? (double)((const float *)l->output)[i]
                                : (double)gb_bf16_decode(((const gb_bf16 *)l->output)[i]);
}

/* NaN for NaN is no error. */
double window_difference(double value, double right)
{
    return isnan(value) && isnan(right) ? 0.0 : value - right;
}

/* Against the reference as the subject stores it. */
static double error_at(const struct gb_outputs *subject, const struct gb_outputs *reference, uint32_t layer, size_t i)
{
    double right = window_value(&reference->layer[layer], i);
    if (subject->layer[layer].format == GB_BF16)
        right = (double)gb_bf16_decode(gb_bf16_encode((float)right));
    return window_difference(window_value(&subject->layer[layer], i), right);
}

/* The layer and the token with the largest error, relative to the layer's largest value; false if there is none. */
static bool find_worst(const struct gb_outputs *subject, const struct gb_outputs *reference, uint32_t *layer,
                       uint32_t *token)
{
    size_t count = (size_t)subject->shape.tokens * subject->shape.hidden;
    double worst = 0.0;
    for (uint32_t l = 0; l < subject->layers; l++) {
        double scale = 0.0;
        for (size_t i = 0; i < count; i++)
            scale = fmax(scale, fabs(window_value(&reference->layer[l], i))); /* of two, the one that is no NaN */
        for (size_t i = 0; i < count; i++) {
            double e = fabs(error_at(subject, reference, l, i)), relative = isnan(e) ? INFINITY : e / scale;
            if (e != 0.0 && relative > worst) {
                worst = relative;
                *layer = l;
                *token = (uint32_t)(i / subject->shape.hidden);
            }
        }
    }
    return worst > 0.0;
}

/* Neighbouring tokens are looked at together, since faults reach from one to the next. */
static uint32_t tokens_of_window(const struct gb_shape *shape, uint32_t all)
{
    double products = 3.0 * shape->top_k * (double)shape->hidden * (double)shape->intermediate;
    double affordable = fmax(4.0, fmin(MOST_TOKENS, MOST_PRODUCTS / products));
    return all < affordable ? all : (uint32_t)affordable;
}

/* Which errors are more than rounding: 8 of its standard deviations; all of them if none is. */
static enum gb_status place_errors(const struct baseline *b, const struct gb_outputs *subject, struct window *w,
                                   struct gb_error *error)
{
    const struct gb_arguments *a = &w->trace.arguments;
    size_t count = (size_t)w->tokens * w->hidden, from = (size_t)w->first * w->hidden, seen = 0;
    const double *truth = b->bounds[w->layer].of.output_truth + from;
    const double *sigma = b->bounds[w->layer].of.output_sigma + from;
    double *visible = malloc(count * sizeof *visible); /* [tokens, hidden] */
    if (!visible)
        return gb_fail(error, GB_ENOMEM, "no memory to place %zu errors", count);
    for (size_t i = 0; i < count; i++) {
        double e = window_value(&subject->layer[w->layer], from + i) - truth[i];
        visible[i] = fabs(e) <= 8.0 * sigma[i] ? 0.0 : w->errors[i];
        seen += visible[i] != 0.0;
    }
    enum gb_status status =
        place_new(seen ? visible : w->errors, w->tokens, w->hidden, a->ids, a->shape.top_k, &w->place, error);
    free(visible);
    return status;
}

static enum gb_status window_new(const struct baseline *b, const struct gb_outputs *subject, uint32_t token,
                                 struct window *w, struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    struct gb_arguments a = baseline_arguments(b, w->layer);
    uint32_t all = subject->shape.tokens;
    w->hidden = f->shape.hidden;
    w->tokens = tokens_of_window(&f->shape, all);
    w->first = token < w->tokens / 2 ? 0 : token - w->tokens / 2;
    w->first = w->first + w->tokens > all ? all - w->tokens : w->first;
    a.shape.tokens = w->tokens;
    a.x += (size_t)w->first * w->hidden;
    a.ids += (size_t)w->first * a.shape.top_k;
    a.routing_weights += (size_t)w->first * a.shape.top_k;
    size_t count = (size_t)w->tokens * w->hidden, from = (size_t)w->first * w->hidden;
    w->errors = malloc(count * sizeof *w->errors);
    w->faulty = malloc(count * sizeof *w->faulty);
    if (!w->errors || !w->faulty)
        return gb_fail(error, GB_ENOMEM, "no memory to explain the errors of %u tokens", w->tokens);
    for (size_t i = 0; i < count; i++)
        w->errors[i] = error_at(subject, b->reference, w->layer, from + i);
    enum gb_status status = trace_new(&a, &w->trace, error);
    return status == GB_OK ? place_errors(b, subject, w, error) : status;
}

static void window_free(struct window *w)
{
    trace_free(&w->trace);
    place_free(&w->place);
    free(w->errors);
    free(w->faulty);
}

void window_enter(struct window *w, const char *name, const char *suffix, double explains)
{
    if (w->count == MOST_CANDIDATES || !(explains > 0.0))
        return;
    struct candidate *c = &w->candidates[w->count++];
    snprintf(c->name, sizeof c->name, "%s%s", name, suffix);
    c->explains = explains;
}

/* 1 - |error - what the fault makes|^2 / |error|^2, over finite errors of the tokens asked for. */
double window_explained(const struct window *w, const bool *tokens)
{
    double left = 0.0, all = 0.0;
    for (size_t i = 0; i < (size_t)w->tokens * w->hidden; i++) {
        double e = w->errors[i], f = window_difference((double)w->faulty[i], (double)w->trace.output[i]);
        if ((tokens && !tokens[i / w->hidden]) || (!isfinite(e) && !isfinite(f)))
            continue;
        if (!isfinite(e) || !isfinite(f))
            return 0.0;
        left += (e - f) * (e - f);
        all += e * e;
    }
    return all > 0.0 ? 1.0 - left / all : 0.0;
}

/* Faults of the whole layer; of the wrong tokens alone; of one expert's weights. */
static enum gb_status try_faults(struct window *w, int32_t expert, struct gb_error *error)
{
    size_t count;
    const struct fault *all = faults(&count);
    bool partial = w->place.wrong_tokens < w->tokens;
    bool *one = calloc(w->trace.arguments.shape.experts, sizeof *one);
    enum gb_status status = one ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for a list of experts");
    if (one && expert >= 0)
        one[expert] = true;
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        if (!fault_applies(&all[i], w->trace.arguments.gate_up.format))
            continue;
        status = fault_run(&all[i], &w->trace, NULL, w->faulty, error);
        if (status == GB_OK)
            window_enter(w, all[i].name, "", window_explained(w, NULL));
        if (status == GB_OK && partial)
            window_enter(w, all[i].name, ", in some tokens", window_explained(w, w->place.token));
        if (status != GB_OK || !all[i].edit || expert < 0)
            continue;
        status = fault_run(&all[i], &w->trace, one, w->faulty, error);
        if (status == GB_OK)
            window_enter(w, all[i].name, ", of one expert", window_explained(w, NULL));
    }
    free(one);
    return status;
}

/* The best first; among those that fit equally well, those entered first. */
static void sort(struct window *w)
{
    for (uint32_t i = 1; i < w->count; i++)
        for (uint32_t j = i; j > 0 && w->candidates[j].explains > w->candidates[j - 1].explains + SAME; j--) {
            struct candidate c = w->candidates[j];
            w->candidates[j] = w->candidates[j - 1];
            w->candidates[j - 1] = c;
        }
}

/* ", tokens 3, 7, expert 5, columns 16 to 31" */
static void append_place(const json_t *where, char *text, size_t bytes)
{
    static const char *const keys[] = {"tokens", "columns"};
    size_t used = strlen(text);
    if (json_object_get(where, "expert") && used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, "; tokens of expert %d alone",
                                 (int)json_integer_value(json_object_get(where, "expert")));
    for (size_t i = json_object_get(where, "expert") ? 1 : 0; i < 2 && used < bytes; i++)
        if (json_object_get(where, keys[i]))
            used += (size_t)snprintf(text + used, bytes - used, "; %s %s alone", keys[i],
                                     json_string_value(json_object_get(where, keys[i])));
}

static json_t *describe(const struct window *w, char *text, size_t bytes)
{
    bool named = w->count && w->candidates[0].explains >= EXPLAINED;
    json_t *candidates = json_array(), *where = place_describe(&w->place, w->first);
    for (uint32_t i = 0; i < w->count && i < SHOWN; i++)
        json_array_append_new(
            candidates, json_pack("{s:s, s:f}", "name", w->candidates[i].name, "explains", w->candidates[i].explains));
    if (named)
        snprintf(text, bytes, "looks like: %s (%.4g %% of the squared error)", w->candidates[0].name,
                 100.0 * w->candidates[0].explains);
    else if (w->count && w->candidates[0].explains >= CLOSE)
        snprintf(text, bytes, "looks like no fault known here; closest: %s (%.4g %% of the squared error)",
                 w->candidates[0].name, 100.0 * w->candidates[0].explains);
    else
        snprintf(text, bytes, "looks like no fault known here");
    append_place(where, text, bytes);
    return json_pack("{s:i, s:s, s:f, s:o, s:o}", "layer", (int)w->layer, "name", named ? w->candidates[0].name : "",
                     "explains", named ? w->candidates[0].explains : 0.0, "where", where, "candidates", candidates);
}

enum gb_status explain(const struct baseline *baseline, const struct gb_outputs *subject, json_t **explanation,
                       char *text, size_t bytes, struct gb_error *error)
{
    struct window *w = calloc(1, sizeof *w);
    uint32_t token = 0;
    *explanation = NULL;
    text[0] = '\0';
    if (!w)
        return gb_fail(error, GB_ENOMEM, "no memory to explain an error");
    enum gb_status status = GB_OK;
    if (find_worst(subject, baseline->reference, &w->layer, &token)) {
        status = window_new(baseline, subject, token, w, error);
        int32_t expert = status != GB_OK || w->place.expert >= 0 ? w->place.expert : window_suspect(w);
        if (status == GB_OK) /* what is more specific first */
            status = try_rows(w, &subject->layer[w->layer], &baseline->reference->layer[w->layer],
                              subject->shape.tokens, error);
        if (status == GB_OK)
            status = try_offsets(w, baseline->fixture, error);
        if (status == GB_OK)
            status = try_faults(w, expert, error);
        if (status == GB_OK) {
            try_gains(w, expert);
            sort(w);
            *explanation = describe(w, text, bytes);
        }
    }
    window_free(w);
    free(w);
    return status;
}
