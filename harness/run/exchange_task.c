/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/exchange_task.h"

#include <stdlib.h>
#include <string.h>

#include "harness/run/task_pieces.h"
#include "quant/quant.h"

/* A part's head. */
struct part {
    enum task_kind kind;
    struct gb_exchange asked; /* as one process is asked: rows are its own */
    uint32_t first, ranks;    /* its ranks */
    uint32_t row;             /* the first row that these receive */
};

enum { PLACEMENT, IDS, WEIGHTS, ROWS, X, PIECES };

/* How much of each array the part's ranks have. */
static void size_pieces(const struct part *p, struct piece pieces[PIECES])
{
    const struct gb_exchange *x = &p->asked;
    const size_t tokens = (size_t)p->ranks * x->tokens;
    memset(pieces, 0, sizeof *pieces * PIECES);
    pieces[PLACEMENT].bytes = x->experts * sizeof(int32_t);
    pieces[IDS].bytes = tokens * x->top_k * sizeof(int32_t);
    if (x->accumulation) {
        pieces[WEIGHTS].bytes = tokens * x->top_k * sizeof(float);
        pieces[ROWS].bytes = (size_t)x->rows * x->hidden * sizeof(gb_bf16);
    } else {
        pieces[X].bytes = tokens * x->hidden * sizeof(gb_bf16);
    }
}

/* Where they are in those of all ranks. */
static void find_pieces(const struct part *p, const struct gb_exchanged *whole, struct piece pieces[PIECES])
{
    const struct gb_exchange *x = &p->asked;
    const size_t token = (size_t)p->first * x->tokens;
    size_pieces(p, pieces);
    pieces[PLACEMENT].values = whole->placement;
    pieces[IDS].values = whole->ids + token * x->top_k;
    if (x->accumulation) {
        pieces[WEIGHTS].values = whole->routing_weights + token * x->top_k;
        pieces[ROWS].values = whole->rows + (size_t)p->row * x->hidden;
    } else {
        pieces[X].values = whole->x + token * x->hidden;
    }
}

/* The parts of all processes. parts: [processes.count] */
static void divide(const struct gb_fixture *f, struct part *parts)
{
    const struct gb_exchanged *e = &f->exchanged;
    const uint32_t count = processes.count, ranks = e->asked.ranks;
    uint32_t row = 0;
    for (uint32_t q = 0; q < count; q++) {
        struct part *p = &parts[q];
        *p = (struct part){
            .kind = TASK_EXCHANGE, .asked = e->asked, .first = gb_processes_first(ranks, count, q), .row = row};
        p->ranks = gb_processes_first(ranks, count, q + 1) - p->first;
        p->asked.rows = 0;
        for (size_t s = 0; s < (size_t)f->shape.tokens * f->shape.top_k; s++)
            if (e->ids[s] >= 0)
                p->asked.rows += (uint32_t)e->placement[e->ids[s]] - p->first < p->ranks;
        row += p->asked.rows;
    }
}

/* What a part's ranks hand out. */
static enum gb_status outputs_of(const struct part *p, struct gb_outputs **outputs, struct gb_error *error)
{
    struct gb_exchange as_one = p->asked;
    as_one.one_rank = 1;
    as_one.tokens *= p->ranks;
    return as_one.accumulation ? gb_outputs_new_combine(&as_one, GB_FP32, outputs, error)
                               : gb_outputs_new_dispatch(&as_one, outputs, error);
}

static size_t bytes_of(const struct gb_outputs *o, enum gb_exchange_part part)
{
    return gb_outputs_exchanged(o, part) ? gb_exchange_array(&o->exchange, GB_FP32, part).bytes : 0;
}

static enum gb_status pack_outputs(const struct gb_outputs *o, struct gb_parcel *parcel, struct gb_error *error)
{
    size_t size = 0;
    for (enum gb_exchange_part i = 0; i < GB_EXCHANGE_PARTS; i++)
        size += bytes_of(o, i);
    *parcel = (struct gb_parcel){malloc(size + 1), size};
    if (!parcel->bytes)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu bytes of outputs", size);
    char *at = parcel->bytes;
    for (enum gb_exchange_part i = 0; i < GB_EXCHANGE_PARTS; at += bytes_of(o, i++))
        if (bytes_of(o, i))
            memcpy(at, gb_outputs_exchanged(o, i), bytes_of(o, i));
    return GB_OK;
}

enum gb_status exchange_task_run(const struct gb_processes *all, const struct gb_parcel *parcel,
                                 struct gb_parcel *result, struct gb_error *error)
{
    struct part p;
    struct piece pieces[PIECES];
    struct gb_outputs *o;
    memcpy(&p, parcel->bytes, sizeof p);
    size_pieces(&p, pieces);
    task_unpack(parcel, sizeof p, pieces, PIECES);
    enum gb_status status = outputs_of(&p, &o, error);
    struct gb_arguments a = {.size = sizeof a,
                             .exchange = &p.asked,
                             .placement = pieces[PLACEMENT].values,
                             .ids = pieces[IDS].values,
                             .routing_weights = pieces[WEIGHTS].values,
                             .values = pieces[ROWS].values,
                             .x = pieces[X].values};
    if (status == GB_OK) {
        a.counts = o->counts;
        a.routes = o->routes;
        a.codes = o->codes;
        a.scales = o->scales;
        a.output = o->combined;
        status = p.asked.accumulation ? gb_reference_combine_over_processes(all, &a, error)
                                      : gb_reference_dispatch_over_processes(all, &a, error);
    }
    if (status == GB_OK)
        status = pack_outputs(o, result, error);
    gb_outputs_free(o);
    return status;
}

/* One array of a part into its place behind those of the parts before; counts are all processes' alike. */
static bool put(const struct gb_outputs *part, enum gb_exchange_part i, const char *values, uint32_t process,
                size_t *filled, struct gb_outputs *whole)
{
    const size_t bytes = bytes_of(part, i);
    char *to = gb_outputs_exchanged(whole, i);
    if (!bytes)
        return true;
    if (i == GB_EXCHANGE_COUNTS && process > 0)
        return !memcmp(to, values, bytes);
    memcpy(to + filled[i], values, bytes);
    filled[i] += bytes;
    return true;
}

/* results: [processes.count] */
static enum gb_status put_together(const struct part *parts, const struct gb_parcel *results, struct gb_outputs *whole,
                                   struct gb_error *error)
{
    size_t filled[GB_EXCHANGE_PARTS] = {0};
    enum gb_status status = GB_OK;
    for (uint32_t q = 0; status == GB_OK && q < processes.count; q++) {
        struct gb_outputs *part;
        const char *at = results[q].bytes;
        status = outputs_of(&parts[q], &part, error);
        for (enum gb_exchange_part i = 0; status == GB_OK && i < GB_EXCHANGE_PARTS; at += bytes_of(part, i++))
            if (!put(part, i, at, q, filled, whole))
                status = gb_fail(error, GB_EFORMAT, "counts: process %u has others than process 0", q);
        gb_outputs_free(part);
    }
    return status;
}

enum gb_status exchange_task(const struct gb_fixture *f, unsigned timeout_s, struct gb_outputs **outputs, bool *lost,
                             struct gb_error *error)
{
    const uint32_t count = processes.count;
    struct part *parts = calloc(count, sizeof *parts);
    struct gb_parcel *tasks = calloc(count, sizeof *tasks), *results = calloc(count, sizeof *results);
    bool ready = parts && tasks && results;
    if (ready)
        divide(f, parts);
    for (uint32_t q = 0; ready && q < count; q++) {
        struct piece pieces[PIECES];
        find_pieces(&parts[q], &f->exchanged, pieces);
        ready = task_pack(&parts[q], sizeof parts[q], pieces, PIECES, &tasks[q]);
    }
    enum gb_status status = ready ? processes_task(tasks, timeout_s, results, lost, error)
                                  : gb_fail(error, GB_ENOMEM, "no memory for the parts of %u processes", count);
    if (status == GB_OK)
        status = f->exchanged.rows ? gb_outputs_new_combine(&f->exchanged.asked, GB_FP32, outputs, error)
                                   : gb_outputs_new_dispatch(&f->exchanged.asked, outputs, error);
    if (status == GB_OK)
        status = put_together(parts, results, *outputs, error);
    for (uint32_t q = 0; tasks && results && q < count; q++) {
        free(tasks[q].bytes);
        free(results[q].bytes);
    }
    free(parts);
    free(tasks);
    free(results);
    return status;
}
