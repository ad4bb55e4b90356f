/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/causes.h"
#include "harness/explain/explain.h"
#include "harness/explain/finding_text.h"
#include "harness/explain/hypothesis.h"
#include "harness/run/operators.h"
#include "quant/quant.h"

enum { MOST_TOKENS = 32, NAMED_ALIKE = 3 };

/* With how many products the list of known bugs is tried: about ten seconds. */
#define LIST_PRODUCTS 0x1p35

/* Errors below this share of the largest one are not counted as wrong elements. */
#define COUNTED 0.05

/* So many products take about as long as a glance, and so few are too few to share among threads. */
#define MOST_PRODUCTS (1u << 26)
#define ALONE_PRODUCTS (1u << 24)

/* [tokens, ...] of what the operation writes: elements of one token. */
static size_t per_token(const struct diagnosis *w)
{
    return (size_t)w->rows_per_token * w->width;
}

/* The layer and the token with the largest error, relative to the layer's largest value; false if there is none. */
static bool find_worst(struct diagnosis *w, const struct gb_outputs *subject, const struct gb_outputs *reference,
                       uint32_t *token)
{
    size_t count = subject->shape.tokens * per_token(w);
    double worst = 0.0;
    for (uint32_t l = 0; l < subject->layers; l++) {
        double scale = 0.0;
        for (size_t i = 0; i < count; i++) /* of two, the one that is no NaN */
            scale = fmax(scale, fabs(diagnosis_value(w, &reference->layer[l], i)));
        for (size_t i = 0; i < count; i++) {
            double e = fabs(diagnosis_error(w, &subject->layer[l], &reference->layer[l], i));
            double relative = isnan(e) ? INFINITY : e / scale;
            if (e != 0.0 && relative > worst) {
                worst = relative;
                w->layer = l;
                *token = (uint32_t)(i / per_token(w));
            }
        }
    }
    return worst > 0.0;
}

static double products_of_token(const struct gb_shape *shape)
{
    return 3.0 * shape->top_k * (double)shape->hidden * (double)shape->intermediate;
}

/* Neighbouring tokens are looked at together, since faults reach from one to the next. */
static uint32_t tokens_of_window(const struct gb_shape *shape, uint32_t all)
{
    double affordable = fmax(4.0, fmin(MOST_TOKENS, MOST_PRODUCTS / products_of_token(shape)));
    return all < affordable ? all : (uint32_t)affordable;
}

/* Which errors are more than rounding: 8 of its standard deviations; all of them if none is. */
static enum gb_status place_errors(const struct baseline *b, struct diagnosis *w, struct gb_error *error)
{
    const struct gb_bounds *of = &b->bounds[w->layer].of;
    size_t count = (size_t)w->rows * w->width, from = w->first * per_token(w), seen = 0;
    const double *truth = (w->inner ? of->intermediate_truth : of->output_truth) + from;
    const double *sigma = (w->inner ? of->intermediate_sigma : of->output_sigma) + from;
    double *visible = malloc(count * sizeof *visible); /* [rows, width] */
    if (!visible)
        return gb_fail(error, GB_ENOMEM, "no memory to locate %zu errors", count);
    for (size_t i = 0; i < count; i++) {
        double e = w->values[i] - truth[i];
        visible[i] = fabs(e) <= 8.0 * sigma[i] ? 0.0 : w->errors[i];
        seen += visible[i] != 0.0;
    }
    double largest = 0.0, squares = 0.0;
    for (size_t i = 0; i < count; i++)
        squares += seen && visible[i] == 0.0 && isfinite(w->errors[i]) ? w->errors[i] * w->errors[i] : 0.0;
    w->noise = seen < count ? squares / (double)(count - seen) * (double)count : 0.0;
    for (size_t i = 0; i < count; i++)
        largest = isfinite(w->errors[i]) ? fmax(largest, fabs(w->errors[i])) : largest;
    for (size_t i = 0; i < count; i++)
        w->wrong += !isfinite(w->errors[i]) || fabs(w->errors[i]) > COUNTED * largest;
    enum gb_status status =
        error_location_new(seen ? visible : w->errors, w->rows, w->width, w->ids, w->slots_of_row, &w->location, error);
    w->location.rows_per_token = w->rows_per_token;
    free(visible);
    return status;
}

static enum gb_status diagnosis_fill(const struct baseline *b, const struct gb_outputs *subject, struct diagnosis *w,
                                     struct gb_error *error)
{
    size_t count = (size_t)w->rows * w->width, from = w->first * per_token(w);
    size_t parts = (size_t)w->tokens * b->fixture->shape.top_k * w->width;
    w->errors = malloc(count * sizeof *w->errors);
    w->values = malloc(count * sizeof *w->values);
    w->squares = calloc(w->rows, sizeof *w->squares);
    w->clean = malloc(count * sizeof *w->clean);
    w->faulty = malloc(count * sizeof *w->faulty);
    w->share = malloc(parts * sizeof *w->share);
    w->change = malloc(parts * sizeof *w->change);
    if (!w->errors || !w->values || !w->squares || !w->clean || !w->faulty || !w->share || !w->change)
        return gb_fail(error, GB_ENOMEM, "no memory to explain the errors of %u tokens", w->tokens);
    for (size_t i = 0; i < count; i++) {
        w->values[i] = diagnosis_value(w, &subject->layer[w->layer], from + i);
        w->clean[i] = (float)diagnosis_value(w, &b->reference->layer[w->layer], from + i);
        w->errors[i] = diagnosis_error(w, &subject->layer[w->layer], &b->reference->layer[w->layer], from + i);
        w->squares[i / w->width] += w->errors[i] * w->errors[i];
    }
    return GB_OK;
}

/* The trace with every slot a token of its own: what one slot gives to its token's output. */
static enum gb_status pairs_new(struct diagnosis *w, struct gb_error *error)
{
    const struct gb_arguments *a = &w->trace.arguments;
    uint32_t pairs = w->tokens * a->shape.top_k;
    size_t hidden = a->shape.hidden;
    w->pairs = w->trace;
    w->pairs.x = malloc(pairs * hidden * sizeof *w->pairs.x);
    w->pairs.output = malloc(pairs * hidden * sizeof *w->pairs.output);
    if (!w->pairs.x || !w->pairs.output)
        return gb_fail(error, GB_ENOMEM, "no memory to take %u slots apart", pairs);
    for (size_t pair = 0; pair < pairs; pair++) {
        memcpy(w->pairs.x + pair * hidden, a->x + pair / a->shape.top_k * hidden, hidden * sizeof *w->pairs.x);
        for (size_t i = 0; i < hidden; i++)
            w->pairs.output[pair * hidden + i] =
                a->ids[pair] < 0 ? 0.0f : a->routing_weights[pair] * w->trace.slots[pair * hidden + i];
    }
    w->pairs.arguments.x = w->pairs.x;
    w->pairs.arguments.shape.tokens = pairs;
    w->pairs.arguments.shape.top_k = 1;
    w->pairs.given = w->pairs.arguments;
    for (size_t i = 0; i < (size_t)pairs * w->width; i++)
        w->share[i] = w->inner ? gb_bf16_decode(w->trace.intermediate[i]) : w->pairs.output[i];
    return GB_OK;
}

/* ids: [all tokens, top_k] */
static enum gb_status list_pairs(struct diagnosis *w, const struct gb_shape *shape, const int32_t *ids, uint32_t all,
                                 struct gb_error *error)
{
    size_t from = (size_t)w->first * shape->top_k, pairs = (size_t)w->tokens * shape->top_k;
    w->list = calloc(pairs, sizeof *w->list);
    w->listed = calloc(shape->experts, sizeof *w->listed);
    if (!w->list || !w->listed)
        return gb_fail(error, GB_ENOMEM, "no memory for the lists of %u experts", shape->experts);
    for (size_t p = 0; p < (size_t)all * shape->top_k; p++) {
        if (ids[p] < 0)
            continue;
        if (p >= from && p - from < pairs)
            w->list[p - from] = w->listed[ids[p]];
        w->listed[ids[p]]++;
    }
    return GB_OK;
}

static enum gb_status diagnosis_new(const struct baseline *b, const struct gb_outputs *subject, uint32_t token,
                                    struct diagnosis *w, struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    struct gb_arguments a = baseline_arguments(b, w->layer);
    uint32_t all = subject->shape.tokens;
    w->tokens = tokens_of_window(&f->shape, all);
    w->first = token < w->tokens / 2 ? 0 : token - w->tokens / 2;
    w->first = w->first + w->tokens > all ? all - w->tokens : w->first;
    w->rows = w->tokens * w->rows_per_token;
    a.shape.tokens = w->tokens;
    a.x += (size_t)w->first * f->shape.hidden;
    a.ids += (size_t)w->first * a.shape.top_k;
    a.routing_weights += (size_t)w->first * a.shape.top_k;
    w->ids = a.ids;
    enum gb_status status = list_pairs(w, &f->shape, baseline_arguments(b, w->layer).ids, all, error);
    if (status == GB_OK)
        status = diagnosis_fill(b, subject, w, error);
    if (status == GB_OK)
        status = trace_new(b->contract, &a, &w->trace, error);
    w->trace.down_alone = w->given;
    if (status == GB_OK)
        status = pairs_new(w, error);
    return status == GB_OK ? place_errors(b, w, error) : status;
}

static void diagnosis_free(struct diagnosis *w)
{
    trace_free(&w->trace);
    free(w->list);
    free(w->listed);
    free(w->pairs.x);
    free(w->pairs.output);
    error_location_free(&w->location);
    free(w->errors);
    free(w->values);
    free(w->squares);
    free(w->clean);
    free(w->faulty);
    free(w->share);
    free(w->change);
}

static bool fits(const struct candidate *c, double best)
{
    return 1.0 - c->explains <= TIMES_LEFT * (1.0 - best) + LEFT;
}

/* Whether a comes before b, `best` being what the best one explains. */
static bool before(const struct candidate *a, const struct candidate *b, double best)
{
    bool a_fits = fits(a, best), b_fits = fits(b, best);
    if (a_fits && b_fits)
        return a->rank < b->rank;
    return a_fits != b_fits ? a_fits : a->explains > b->explains;
}

/* The simplest of those that explain best first, then by what they explain; those alike in the order of entry. */
static void sort(struct diagnosis *w)
{
    double best = diagnosis_best(w);
    for (uint32_t i = 1; i < w->count; i++)
        for (uint32_t j = i; j > 0 && before(&w->candidates[j], &w->candidates[j - 1], best); j--) {
            struct candidate c = w->candidates[j];
            w->candidates[j] = w->candidates[j - 1];
            w->candidates[j - 1] = c;
        }
}

/* Of a list of numbers. */
static const char *plural(const char *list)
{
    return list[strspn(list, "0123456789")] ? "s" : "";
}

/* "; in tokens 3, 7 only; in columns 16 to 31 only" */
static void append_place(struct explanation *e)
{
    size_t used = strlen(e->text), bytes = sizeof e->text;
    if (e->expert >= 0 && used < bytes)
        used += (size_t)snprintf(e->text + used, bytes - used, "; in tokens of expert %d only", e->expert);
    else if (e->tokens[0] && used < bytes)
        used += (size_t)snprintf(e->text + used, bytes - used, "; in token%s %s only", plural(e->tokens), e->tokens);
    if (e->columns[0] && used < bytes)
        snprintf(e->text + used, bytes - used, "; in column%s %s only", plural(e->columns), e->columns);
}

/* A larger problem's list of known bugs ends where it would take too long. */
static void append_untried(const struct diagnosis *w, struct explanation *e)
{
    size_t used = strlen(e->text);
    const uint32_t untried = w->searched.untried_bugs;
    if (untried && used < sizeof e->text)
        snprintf(e->text + used, sizeof e->text - used,
                 "; %u of %u known bugs were not tried, which would take long: --minimise makes the problem small",
                 untried, w->searched.known_bugs + untried);
}

/* How many candidates explain as well as the first, which counts. */
static uint32_t alike(const struct diagnosis *w)
{
    uint32_t count = 0;
    while (count < w->count && fits(&w->candidates[count], diagnosis_best(w)))
        count++;
    return count;
}

/* Whether the first candidate explains the error: all of it; or, where it has no number that was fitted and no place
 * that was chosen, and none that has one fits as well, nearly all. */
static bool is_named(const struct diagnosis *w)
{
    const struct candidate *first = &w->candidates[0];
    if (!w->count || first->explains < EXPLAINED)
        return false;
    for (uint32_t i = 0; i < alike(w); i++)
        if (w->candidates[i].rank >= RANK_COORDINATE)
            return diagnosis_is_enough(w, first->explains);
    return true;
}

/* The name, the share, what else fits, and what to do about it. */
static void write_name(const struct diagnosis *w, char *text, size_t bytes)
{
    const struct candidate *first = &w->candidates[0];
    uint32_t count = alike(w);
    size_t used = (size_t)snprintf(text, bytes, "looks like: %s (explains %.4g %% of the squared error)", first->name,
                                   100.0 * first->explains);
    for (uint32_t i = 1; i < count && i < NAMED_ALIKE && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, ", or: %s", w->candidates[i].name);
    if (count > NAMED_ALIKE && used < bytes)
        used += (size_t)snprintf(text + used, bytes - used, ", or %u more", count - NAMED_ALIKE);
    if (!strcmp(first->kind, w->contract) && used < bytes)
        snprintf(text + used, bytes - used, "; if that is meant: --activations %s, or so in the kernel's table",
                 gb_format_name(w->activations));
}

static struct explained explained_of(const struct candidate *c)
{
    struct explained e = {.explains = c->explains};
    memcpy(e.name, c->name, sizeof e.name);
    return e;
}

/* NULL: no memory. */
static struct explanation *conclude(const struct diagnosis *w, const struct causes *causes)
{
    bool named = is_named(w);
    struct explanation *e = calloc(1, sizeof *e);
    uint32_t count = named ? alike(w) - 1 : 0;
    if (!e)
        return NULL;
    e->also = count ? calloc(count, sizeof *e->also) : NULL;
    if (count && !e->also) {
        free(e);
        return NULL;
    }
    e->layer = w->layer;
    e->searched = w->searched;
    for (; e->found_count < causes->count; e->found_count++) {
        const struct finding *found = &causes->of[e->found_count];
        struct finding_frame frame = causes_frame(w, found);
        e->found[e->found_count] = *found;
        finding_words(found, &frame, &e->words[e->found_count]);
    }
    error_location_name(&w->location, w->first, e);
    for (; e->shown_count < w->count && e->shown_count < MOST_SHOWN; e->shown_count++)
        e->shown[e->shown_count] = explained_of(&w->candidates[e->shown_count]);
    for (; e->also_count < count; e->also_count++)
        e->also[e->also_count] = explained_of(&w->candidates[e->also_count + 1]);
    if (named) {
        e->best = explained_of(&w->candidates[0]);
        memcpy(e->kind, w->candidates[0].kind, sizeof e->kind);
        write_name(w, e->text, sizeof e->text);
    } else if (w->count && w->candidates[0].explains >= CLOSE) {
        snprintf(e->text, sizeof e->text,
                 "no structure found, no known bug fits it; closest: %s (explains %.4g %% of the squared error)",
                 w->candidates[0].name, 100.0 * w->candidates[0].explains);
    } else {
        snprintf(e->text, sizeof e->text, "no structure found, no known bug fits it");
    }
    if (!named || w->candidates[0].rank != RANK_STRUCTURE)
        append_place(e);
    append_untried(w, e);
    return e;
}

static enum gb_status try_all(struct diagnosis *w, const struct baseline *b, const struct gb_outputs *subject,
                              struct causes *causes, struct gb_error *error)
{
    bool few = w->wrong < FEW_ELEMENTS;
    try_nothing(w);
    enum gb_status status = causes_find(w, causes, error);
    if (status == GB_OK)
        causes_add(w, causes);
    if (status == GB_OK && !few)
        status = try_contract(w, b, error);
    if (status == GB_OK && !few)
        status = try_offsets(w, b->fixture, error);
    if (status == GB_OK && !few)
        status = try_faults(w, error);
    if (status == GB_OK)
        status = try_rows(w, &subject->layer[w->layer], &b->reference->layer[w->layer], subject->shape.tokens, error);
    if (few)
        return status;
    try_columns(w);
    try_gains(w);
    return status == GB_OK ? try_blocks(w, error) : status;
}

enum gb_status explain(const struct baseline *baseline, enum gb_operator operation, const struct gb_outputs *subject,
                       struct explanation **explanation, struct gb_error *error)
{
    const struct gb_shape *shape = &baseline->fixture->shape;
    const struct operator_row *row = operator_find(operation);
    struct diagnosis *w = calloc(1, sizeof *w);
    uint32_t token = 0;
    *explanation = NULL;
    if (!w)
        return gb_fail(error, GB_ENOMEM, "no memory to explain an error");
    w->inner = !(row->uses & WRITES_OUTPUT);
    w->given = row->uses & READS_INTERMEDIATE;
    w->rows_per_token = w->inner ? shape->top_k : 1;
    w->slots_of_row = w->inner ? 1 : shape->top_k;
    w->width = w->inner ? shape->intermediate : shape->hidden;
    w->affordable = LIST_PRODUCTS;
    enum gb_status status = GB_OK;
    const int threads = openblas_get_num_threads(), others = omp_get_max_threads();
    openblas_set_num_threads(1); /* products too small to share: waiting threads cost more than they take off */
    if (products_of_token(shape) * tokens_of_window(shape, subject->shape.tokens) < ALONE_PRODUCTS)
        omp_set_num_threads(1);
    if (find_worst(w, subject, baseline->reference, &token)) {
        status = diagnosis_new(baseline, subject, token, w, error);
        struct causes causes = {.count = 0};
        if (status == GB_OK)
            status = try_all(w, baseline, subject, &causes, error);
        if (status == GB_OK) {
            sort(w);
            *explanation = conclude(w, &causes);
            if (!*explanation)
                status = gb_fail(error, GB_ENOMEM, "no memory to explain an error");
        }
    }
    openblas_set_num_threads(threads);
    omp_set_num_threads(others);
    diagnosis_free(w);
    free(w);
    return status;
}
