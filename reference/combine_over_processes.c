/* SPDX-License-Identifier: Apache-2.0 */
/* combine by several processes: docs/numerics.md#over-processes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/exchange.h"
#include "reference/order.h"
#include "reference/processes.h"

/* One row on its way into a sum. */
struct term {
    uint32_t token; /* of all ranks' */
    uint32_t rank;  /* where the row is from: of its expert, then the first of the ranks that were added up */
    uint32_t place; /* in the sum */
    float weight;
};

/* Terms of equal rows. */
struct terms {
    size_t count;
    struct term *term;     /* [count] */
    void *values;          /* [count, hidden] */
    enum gb_format format; /* of the values */
};

static void terms_free(struct terms *t)
{
    free(t->term);
    free(t->values);
    memset(t, 0, sizeof *t);
}

static size_t row_bytes(enum gb_format format, uint32_t hidden)
{
    return hidden * (format == GB_FP32 ? sizeof(float) : sizeof(gb_bf16));
}

/* The rows of this process's experts as terms: the tokens' processes say which they are of, and with what weight. */
static enum gb_status terms_of_rows(const struct gb_processes *p, enum gb_status mine, const struct gb_arguments *a,
                                    struct gb_own *own, struct terms *t, struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    const size_t bytes = row_bytes(x->input, x->hidden);
    struct gb_sent *sent = malloc(own->routes * sizeof *sent + 1);
    uint32_t *to = malloc(own->routes * sizeof *to + 1);
    size_t received;
    if (mine == GB_OK && !(sent && to))
        mine = gb_fail(error, GB_ENOMEM, "no memory for %zu routes", own->routes);
    if (mine == GB_OK)
        gb_own_routes(p, a, own, sent, to);
    struct gb_column column = {.width = sizeof *sent, .sent = sent};
    enum gb_status status = gb_send_items(p, mine, to, own->routes, &column, 1, &received, error);
    free(sent);
    free(to);
    *t = (struct terms){received, malloc(received * sizeof *t->term + 1), malloc(received * bytes + 1), x->input};
    if (status == GB_OK && !(t->term && t->values))
        status = gb_fail(error, GB_ENOMEM, "no memory for %zu rows of %u values", received, x->hidden);
    const struct gb_sent *came = column.received;
    for (size_t i = 0; status == GB_OK && i < received; i++) {
        const int64_t row = (int64_t)came[i].row - own->row;
        if (row < 0 || row >= own->rows || came[i].route < 0)
            status =
                gb_fail(error, GB_EFORMAT, "row %d, of route %d, is for another process", came[i].row, came[i].route);
        else {
            t->term[i] = (struct term){(uint32_t)came[i].route / x->top_k, came[i].rank,
                                       (uint32_t)came[i].route % x->top_k, came[i].weight};
            memcpy((char *)t->values + i * bytes, (const char *)a->values + (size_t)row * bytes, bytes);
        }
    }
    free(column.received);
    return status;
}

/* Neighbouring ranks whose rows are added up; the last sums are those of all ranks, where the token is. */
struct level {
    uint32_t group;
    bool last;
};

/* Terms to the processes that add them up. */
static enum gb_status travel(const struct gb_processes *p, enum gb_status mine, const struct gb_exchange *x,
                             struct level level, struct terms *t, struct gb_error *error)
{
    const enum gb_format format = t->format;
    uint32_t *to = malloc(t->count * sizeof *to + 1);
    if (mine == GB_OK && !to)
        mine = gb_fail(error, GB_ENOMEM, "no memory for %zu terms", t->count);
    for (size_t i = 0; mine == GB_OK && i < t->count; i++) {
        struct term *one = &t->term[i];
        one->rank -= one->rank % level.group;
        if (one->rank >= x->ranks || one->token / x->tokens >= x->ranks)
            mine = gb_fail(error, GB_EFORMAT, "token %u of rank %u does not exist", one->token, one->rank);
        else
            to[i] = gb_process_of(p, x, level.last ? one->token / x->tokens : one->rank);
    }
    struct gb_column columns[] = {{.width = sizeof *t->term, .sent = t->term},
                                  {.width = row_bytes(format, x->hidden), .sent = t->values}};
    size_t received;
    enum gb_status status = gb_send_items(p, mine, to, t->count, columns, 2, &received, error);
    free(to);
    terms_free(t);
    *t = (struct terms){received, columns[0].received, columns[1].received, format};
    return status;
}

/* A term's sum, and its place in it. */
struct placed {
    const struct term *term;
    size_t index;
};

static int by_sum(const void *first, const void *second)
{
    const struct term *a = ((const struct placed *)first)->term, *b = ((const struct placed *)second)->term;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    if (a->token != b->token)
        return a->token < b->token ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* y = fma(weight, row, y) over `count` terms. y: [hidden] */
GB_FMA_CLONES
static void add_up(const struct terms *t, const struct placed *placed, size_t count, uint32_t hidden, float *y)
{
    for (uint32_t h = 0; h < hidden; h++)
        y[h] = 0.0f;
    for (size_t i = 0; i < count; i++) {
        const float weight = placed[i].term->weight;
        const float *wide = (const float *)t->values + placed[i].index * hidden;
        const gb_bf16 *narrow = (const gb_bf16 *)t->values + placed[i].index * hidden;
        for (uint32_t h = 0; h < hidden; h++)
            y[h] = fmaf(weight, t->format == GB_FP32 ? wide[h] : gb_bf16_decode(narrow[h]), y[h]);
    }
}

/* One sum, y, as the output of its token. */
static enum gb_status put_output(const struct gb_arguments *a, const struct gb_own *own, uint32_t token, const float *y,
                                 struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    const int64_t mine = (int64_t)token - (int64_t)own->first * x->tokens;
    if (mine < 0 || mine >= (int64_t)own->ranks * x->tokens)
        return gb_fail(error, GB_EFORMAT, "token %u is another process's", token);
    for (uint32_t h = 0; h < x->hidden; h++)
        ((float *)a->output)[(size_t)mine * x->hidden + h] = gb_one_nan(y[h]);
    return GB_OK;
}

/* The same as a term of the next level. */
static void put_term(struct terms *sums, struct term of, uint32_t hidden, const float *y)
{
    gb_bf16 *row = (gb_bf16 *)sums->values + sums->count * hidden;
    for (uint32_t h = 0; h < hidden; h++)
        row[h] = gb_bf16_encode(y[h]);
    sums->term[sums->count++] = (struct term){of.token, of.rank, of.rank, 1.0f};
}

/* Terms, of which placed has the sequence, into one term a sum or, at the last level, the output. y: scratch, [hidden]
 */
static enum gb_status add_placed(const struct gb_arguments *a, const struct gb_own *own, struct level level,
                                 const struct terms *t, const struct placed *placed, float *y, struct terms *sums,
                                 struct gb_error *error)
{
    const uint32_t hidden = a->exchange->hidden;
    enum gb_status status = GB_OK;
    for (size_t i = 0, end; status == GB_OK && i < t->count; i = end) {
        const struct term one = *placed[i].term;
        for (end = i + 1; end < t->count && placed[end].term->rank == one.rank && placed[end].term->token == one.token;)
            end++;
        add_up(t, placed + i, end - i, hidden, y);
        if (level.last)
            status = put_output(a, own, one.token, y, error);
        else
            put_term(sums, one, hidden, y);
    }
    return status;
}

static enum gb_status add_terms(const struct gb_arguments *a, const struct gb_own *own, struct level level,
                                struct terms *t, struct gb_error *error)
{
    const uint32_t hidden = a->exchange->hidden;
    struct placed *placed = malloc(t->count * sizeof *placed + 1);
    float *y = malloc(sizeof *y * hidden);
    struct terms sums = {0, malloc(t->count * sizeof *sums.term + 1), malloc(t->count * row_bytes(GB_BF16, hidden) + 1),
                         GB_BF16};
    enum gb_status status = GB_OK;
    if (placed && y && sums.term && sums.values) {
        for (size_t i = 0; i < t->count; i++)
            placed[i] = (struct placed){&t->term[i], i};
        qsort(placed, t->count, sizeof *placed, by_sum);
        status = add_placed(a, own, level, t, placed, y, &sums, error);
    } else {
        status = gb_fail(error, GB_ENOMEM, "no memory for the sums of %zu terms", t->count);
    }
    free(placed);
    free(y);
    terms_free(t);
    *t = sums;
    return status;
}

/* What is added up one after the other; returns how many levels. */
static int levels_of(const struct gb_exchange *x, struct level levels[3])
{
    int count = 0;
    if (x->accumulation != GB_AT_RECEIVER)
        levels[count++] = (struct level){1, false};
    if (x->accumulation == GB_AT_SENDER_NODE)
        levels[count++] = (struct level){x->ranks_per_node, false};
    levels[count++] = (struct level){x->ranks, true};
    return count;
}

enum gb_status gb_reference_combine_over_processes(const struct gb_processes *p, const struct gb_arguments *a,
                                                   struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    struct gb_own own;
    struct terms t = {0};
    struct level levels[3];
    enum gb_status status = gb_exchange_check(x, GB_COMBINE, error);
    if (status != GB_OK) /* in all processes alike */
        return status;
    status = gb_own_new(p, a, GB_COMBINE, &own, error);
    if (status == GB_OK && ((own.rows && !a->values) || (own.ranks && (!a->routing_weights || !a->output))))
        status = gb_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (status == GB_OK)
        for (size_t i = 0; i < (size_t)own.ranks * x->tokens * x->hidden; i++)
            ((float *)a->output)[i] = 0.0f; /* of tokens without routes */
    status = terms_of_rows(p, status, a, &own, &t, error);
    for (int l = 0, count = levels_of(x, levels); l < count; l++) {
        status = travel(p, status, x, levels[l], &t, error);
        if (status == GB_OK)
            status = add_terms(a, &own, levels[l], &t, error);
    }
    terms_free(&t);
    gb_own_free(&own);
    return status;
}
