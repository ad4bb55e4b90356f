/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns of K that are left out, in gate and up, in down, or in both. Each place and size is tried on the worst token
 * and some of its outputs, from sums over the finest blocks; the best of them is then run on all tokens of the
 * diagnosis.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/hypothesis.h"
#include "quant/quant.h"

enum { MOST_SAMPLES = 64, MOST_COLUMNS = 512 };

/* Of which product columns are missing. */
enum missing { MISSING_GATE_UP, MISSING_DOWN, MISSING_BOTH, MISSINGS };

struct block {
    enum missing missing;
    uint32_t first, columns;
    double explains;
};

struct search {
    struct diagnosis *w;
    uint32_t token, finest, samples;
    double *errors;    /* [samples], of the worst token */
    double *predicted; /* [blocks, MISSINGS, samples] of the slots so far, and */
    double *alone;     /* [samples], of one slot */
    double *sums;      /* [2 * intermediate, hidden / finest + 1] of gate's and up's products, from column 0 on */
    double *down;      /* [samples, intermediate] of one expert; not for GB_GATE_UP */
    double *values;    /* [hidden or intermediate], one row of weights */
    double *missing;   /* [intermediate], the intermediate without a block */
    struct block *best;
};

static uint32_t finest_of(enum gb_format format)
{
    uint32_t block = gb_format_block(format);
    return block <= 16 ? 16 : 32; /* what one instruction of a tensor core takes */
}

/* The column of the result that sample s is of, and the sample's error. */
static uint32_t column_of(const struct search *s, uint32_t sample)
{
    return (uint32_t)((uint64_t)sample * s->w->width / s->samples);
}

static void worst_token(struct search *s)
{
    const struct diagnosis *w = s->w;
    double worst = 0.0;
    for (uint32_t t = 0; t < w->tokens; t++) {
        double sum = 0.0;
        for (uint32_t row = 0; row < w->rows_per_token; row++)
            sum += w->squares[t * w->rows_per_token + row];
        if (isfinite(sum) && sum > worst) {
            worst = sum;
            s->token = t;
        }
    }
}

/* Sums of products with x over columns 0 .. finest * b - 1, for each row of gate and up and each b. */
static void sum_blocks(struct search *s, uint32_t expert)
{
    const struct gb_arguments *a = &s->w->trace.arguments;
    const gb_bf16 *x = a->x + (size_t)s->token * a->shape.hidden;
    uint32_t blocks = a->shape.hidden / s->finest;
    for (uint32_t row = 0; row < 2 * a->shape.intermediate; row++) {
        double *sums = s->sums + (size_t)row * (blocks + 1), sum = 0.0;
        gb_weights_row(&a->gate_up, expert, row, s->values);
        for (uint32_t b = 0; b < blocks; b++) {
            sums[b] = sum;
            for (uint32_t i = b * s->finest; i < (b + 1) * s->finest; i++)
                sum += s->values[i] * (double)gb_bf16_decode(x[i]);
        }
        sums[blocks] = sum;
    }
}

/* s->missing: the change of one slot's intermediate. */
static void change_intermediate(struct search *s, size_t pair, const struct block *b)
{
    const struct trace *t = &s->w->trace;
    uint32_t I = t->arguments.shape.intermediate, stride = t->arguments.shape.hidden / s->finest + 1;
    uint32_t from = b->first / s->finest, to = (b->first + b->columns) / s->finest;
    for (uint32_t i = 0; i < I; i++) {
        const double *gate = s->sums + (size_t)i * stride, *up = s->sums + (size_t)(I + i) * stride;
        double h = (double)gb_bf16_decode(t->intermediate[pair * I + i]), changed = h;
        if (b->missing != MISSING_DOWN)
            changed = (double)gb_gated(t->arguments.activation,
                                       (float)((double)t->gate[pair * I + i] - (gate[to] - gate[from])),
                                       (float)((double)t->up[pair * I + i] - (up[to] - up[from])));
        if (b->missing != MISSING_GATE_UP && i >= b->first && i < b->first + b->columns)
            changed = 0.0;
        s->missing[i] = changed - h;
    }
}

/* s->alone: what the change of one slot's intermediate makes of the samples. */
static void change_samples(struct search *s, size_t pair)
{
    const struct gb_arguments *a = &s->w->trace.arguments;
    uint32_t I = a->shape.intermediate, per_slot = s->samples / s->w->rows_per_token;
    for (uint32_t j = 0; j < s->samples; j++) {
        double sum = 0.0;
        if (s->w->inner) {
            sum = j / per_slot == pair % a->shape.top_k ? s->missing[j % per_slot] : 0.0;
        } else {
            for (uint32_t i = 0; i < I; i++)
                sum += s->down[(size_t)j * I + i] * s->missing[i];
            sum *= (double)a->routing_weights[pair];
        }
        s->alone[j] = sum;
    }
}

static double explained(const struct search *s, const double *predicted)
{
    double left = 0.0, all = 0.0;
    for (uint32_t j = 0; j < s->samples; j++) {
        left += (s->errors[j] - predicted[j]) * (s->errors[j] - predicted[j]);
        all += s->errors[j] * s->errors[j];
    }
    return all > 0.0 ? 1.0 - left / all : 0.0;
}

static void keep_better(struct search *s, const struct block *b, const double *predicted)
{
    double explains = explained(s, predicted);
    if (explains > s->best->explains + SAME) {
        *s->best = *b;
        s->best->explains = explains;
    }
}

/* Calls `try` for each place and size, numbered. */
static void each_block(struct search *s, size_t pair, bool last,
                       void (*try)(struct search *, size_t, size_t, bool, const struct block *))
{
    const struct gb_shape *shape = &s->w->trace.arguments.shape;
    size_t number = 0;
    for (int m = 0; m < MISSINGS; m++) {
        uint32_t all = m == MISSING_GATE_UP                  ? shape->hidden
                       : m == MISSING_DOWN                   ? shape->intermediate
                       : shape->hidden < shape->intermediate ? shape->hidden
                                                             : shape->intermediate;
        if ((m != MISSING_GATE_UP && s->w->inner) || (m != MISSING_DOWN && s->w->given))
            continue;
        for (uint32_t size = s->finest; size < all && size <= MOST_COLUMNS; size *= 2)
            for (uint32_t first = 0; first + size <= all / s->finest * s->finest; first += size)
                try(s, pair, number++, last, &(struct block){(enum missing)m, first, size, 0.0});
    }
}

static void try_slot(struct search *s, size_t pair, size_t number, bool last, const struct block *b)
{
    double *predicted = s->predicted + number * s->samples;
    if (s->w->ids[pair] >= 0) {
        change_intermediate(s, pair, b);
        change_samples(s, pair);
        keep_better(s, b, s->alone);
        for (uint32_t j = 0; j < s->samples; j++)
            predicted[j] += s->alone[j];
    }
    if (last)
        keep_better(s, b, predicted);
}

static void search_blocks(struct search *s)
{
    const struct gb_arguments *a = &s->w->trace.arguments;
    for (uint32_t k = 0; k < a->shape.top_k; k++) {
        size_t pair = (size_t)s->token * a->shape.top_k + k;
        if (a->ids[pair] >= 0 && !s->w->given)
            sum_blocks(s, (uint32_t)a->ids[pair]);
        for (uint32_t j = 0; a->ids[pair] >= 0 && !s->w->inner && j < s->samples; j++)
            gb_weights_row(&a->down, (uint32_t)a->ids[pair], column_of(s, j),
                           s->down + (size_t)j * a->shape.intermediate);
        each_block(s, pair, k + 1 == a->shape.top_k, try_slot);
    }
}

static enum gb_status search_new(struct diagnosis *w, struct search *s, struct block *best, struct gb_error *error)
{
    const struct gb_shape *shape = &w->trace.arguments.shape;
    size_t I = shape->intermediate, H = shape->hidden;
    uint32_t results = w->rows_per_token * w->width;
    *s = (struct search){.w = w, .finest = finest_of(w->trace.arguments.gate_up.format), .best = best};
    s->samples = w->inner || results < MOST_SAMPLES ? results : MOST_SAMPLES;
    size_t places = 2 * (H + 2 * I) / s->finest + MISSINGS; /* of all sizes, each half as many as the one before */
    s->errors = malloc(s->samples * sizeof *s->errors);
    s->predicted = calloc(places * s->samples, sizeof *s->predicted);
    s->alone = malloc(s->samples * sizeof *s->alone);
    s->sums = malloc(2 * I * (H / s->finest + 1) * sizeof *s->sums);
    s->down = malloc(s->samples * I * sizeof *s->down);
    s->values = malloc((H > I ? H : I) * sizeof *s->values);
    s->missing = malloc(I * sizeof *s->missing);
    if (!s->errors || !s->predicted || !s->alone || !s->sums || !s->down || !s->values || !s->missing)
        return gb_fail(error, GB_ENOMEM, "no memory to look for a missing block");
    worst_token(s);
    for (uint32_t j = 0; j < s->samples; j++)
        s->errors[j] = w->errors[(size_t)s->token * results + (w->inner ? j : column_of(s, j))];
    return GB_OK;
}

static void search_free(struct search *s)
{
    free(s->errors);
    free(s->predicted);
    free(s->alone);
    free(s->sums);
    free(s->down);
    free(s->values);
    free(s->missing);
}

/* "K block 5 of down dropped", "columns 64 to 127 of K of gate and up dropped" */
static void name_block(const struct diagnosis *w, const struct block *b, char *name, size_t bytes)
{
    static const char *const products[] = {" of gate and up", " of down", ""};
    if (b->columns == gb_format_block(w->trace.arguments.gate_up.format))
        snprintf(name, bytes, "K block %u%s dropped", b->first / b->columns, products[b->missing]);
    else
        snprintf(name, bytes, "columns %u to %u of K%s dropped", b->first, b->first + b->columns - 1,
                 products[b->missing]);
}

/* rows: [count, width]. */
static void clear_columns(gb_bf16 *rows, size_t count, uint32_t width, const struct block *b)
{
    for (size_t row = 0; row < count; row++)
        memset(rows + row * width + b->first, 0, b->columns * sizeof *rows);
}

/* The block left out of all tokens of the diagnosis. x: [pairs, hidden], intermediate: [pairs, intermediate], for
 * writing. */
static enum gb_status run_without(struct diagnosis *w, const struct block *b, gb_bf16 *x, gb_bf16 *intermediate,
                                  struct gb_error *error)
{
    struct gb_arguments a = w->pairs.arguments;
    size_t pairs = a.shape.tokens, inner = pairs * a.shape.intermediate;
    enum gb_status status = GB_OK;
    char name[160];
    memcpy(x, a.x, pairs * a.shape.hidden * sizeof *x);
    memcpy(intermediate, w->trace.intermediate, inner * sizeof *intermediate);
    a.x = x;
    a.intermediate = intermediate;
    if (b->missing != MISSING_DOWN) {
        clear_columns(x, pairs, a.shape.hidden, b);
        status = gb_reference_gate_up(w->trace.contract, &a, error);
    }
    if (b->missing != MISSING_GATE_UP)
        clear_columns(intermediate, pairs, a.shape.intermediate, b);
    for (size_t i = 0; status == GB_OK && w->inner && i < inner; i++)
        w->change[i] = gb_bf16_decode(intermediate[i]);
    if (status == GB_OK && !w->inner)
        status = diagnosis_run(w, &a, intermediate, w->change, error);
    if (status != GB_OK)
        return status;
    for (size_t i = 0; i < pairs * w->width; i++)
        w->change[i] = (float)diagnosis_difference((double)w->change[i], (double)w->share[i]);
    name_block(w, b, name, sizeof name);
    diagnosis_add_change(w, RANK_COORDINATE, name);
    return GB_OK;
}

enum gb_status try_blocks(struct diagnosis *w, struct gb_error *error)
{
    const struct gb_shape *pairs = &w->pairs.arguments.shape;
    struct search s;
    struct block best = {0};
    for (uint32_t i = 0; i < w->count; i++)
        if (w->candidates[i].rank != RANK_STRUCTURE && w->candidates[i].explains >= 1.0 - SAME)
            return GB_OK;
    enum gb_status status = search_new(w, &s, &best, error);
    if (status == GB_OK)
        search_blocks(&s);
    search_free(&s);
    if (status != GB_OK || best.explains < CLOSE)
        return status;
    gb_bf16 *x = malloc((size_t)pairs->tokens * pairs->hidden * sizeof *x);
    gb_bf16 *intermediate = malloc((size_t)pairs->tokens * pairs->intermediate * sizeof *intermediate);
    status = x && intermediate ? run_without(w, &best, x, intermediate, error)
                               : gb_fail(error, GB_ENOMEM, "no memory to leave a block out");
    free(x);
    free(intermediate);
    return status;
}
