/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of one process, and what processes send each other: docs/numerics.md#over-processes. */
#include "reference/processes.h"

#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/exchange.h"

uint32_t gb_processes_first(uint32_t ranks, uint32_t processes, uint32_t process)
{
    return (uint32_t)((uint64_t)ranks * process / processes);
}

uint32_t gb_process_of(const struct gb_processes *p, const struct gb_exchange *x, uint32_t rank)
{
    return (uint32_t)((((uint64_t)rank + 1) * p->count - 1) / x->ranks);
}

/* Parcels. */

struct parcels {
    struct gb_parcel *to, *from; /* [count] */
    uint32_t count;
};

static bool parcels_new(const struct gb_processes *p, struct parcels *parcels)
{
    *parcels =
        (struct parcels){calloc(p->count, sizeof *parcels->to), calloc(p->count, sizeof *parcels->from), p->count};
    return parcels->to && parcels->from;
}

/* bytes: of those that are sent, too. */
static void parcels_free(struct parcels *parcels, bool bytes)
{
    for (uint32_t i = 0; parcels->to && parcels->from && i < parcels->count; i++) {
        free(parcels->from[i].bytes);
        if (bytes)
            free(parcels->to[i].bytes);
    }
    free(parcels->to);
    free(parcels->from);
}

enum gb_status gb_processes_agree(const struct gb_processes *p, enum gb_status mine, struct gb_error *error)
{
    struct parcels parcels;
    if (!parcels_new(p, &parcels) && mine == GB_OK)
        mine = gb_fail(error, GB_ENOMEM, "no memory for the parcels of %u processes", p->count);
    enum gb_status status = p->exchange(p, mine, parcels.to, parcels.from, error);
    parcels_free(&parcels, false);
    return status;
}

/* Columns of a parcel lie one behind the other. */
static size_t bytes_of_item(const struct gb_column *columns, uint32_t count)
{
    size_t bytes = 0;
    for (uint32_t c = 0; c < count; c++)
        bytes += columns[c].width;
    return bytes;
}

/* to: [count] */
static bool pack(const uint32_t *to, size_t count, const struct gb_column *columns, uint32_t column_count,
                 struct parcels *parcels)
{
    const size_t item = bytes_of_item(columns, column_count);
    size_t *before = calloc(parcels->count, sizeof *before); /* items that are in a parcel already */
    bool good = before;
    for (size_t i = 0; i < count; i++)
        parcels->to[to[i]].size += item;
    for (uint32_t q = 0; good && q < parcels->count; q++)
        good = !parcels->to[q].size || (parcels->to[q].bytes = malloc(parcels->to[q].size));
    for (size_t i = 0; good && i < count; i++) {
        struct gb_parcel *parcel = &parcels->to[to[i]];
        const size_t items = parcel->size / item;
        char *at = parcel->bytes;
        for (uint32_t c = 0; c < column_count; at += items * columns[c++].width)
            memcpy(at + before[to[i]] * columns[c].width, (const char *)columns[c].sent + i * columns[c].width,
                   columns[c].width);
        before[to[i]]++;
    }
    free(before);
    return good;
}

static enum gb_status unpack(const struct parcels *parcels, struct gb_column *columns, uint32_t column_count,
                             size_t *received, struct gb_error *error)
{
    const size_t item = bytes_of_item(columns, column_count);
    size_t before = 0;
    *received = 0;
    for (uint32_t q = 0; q < parcels->count; q++) {
        if (parcels->from[q].size % item)
            return gb_fail(error, GB_EFORMAT, "process %u sent %zu bytes, no whole number of items of %zu", q,
                           parcels->from[q].size, item);
        *received += parcels->from[q].size / item;
    }
    for (uint32_t c = 0; c < column_count; c++)
        if (!(columns[c].received = malloc(*received * columns[c].width + 1)))
            return gb_fail(error, GB_ENOMEM, "no memory for %zu items", *received);
    for (uint32_t q = 0; q < parcels->count; q++) {
        const size_t items = parcels->from[q].size / item;
        const char *at = parcels->from[q].bytes;
        for (uint32_t c = 0; items && c < column_count; at += items * columns[c++].width)
            memcpy((char *)columns[c].received + before * columns[c].width, at, items * columns[c].width);
        before += items;
    }
    return GB_OK;
}

enum gb_status gb_send_items(const struct gb_processes *p, enum gb_status mine, const uint32_t *to, size_t count,
                             struct gb_column *columns, uint32_t column_count, size_t *received, struct gb_error *error)
{
    struct parcels parcels;
    bool ready = parcels_new(p, &parcels);
    *received = 0;
    if (mine == GB_OK && !(ready && pack(to, count, columns, column_count, &parcels)))
        mine = gb_fail(error, GB_ENOMEM, "no memory for %zu items", count);
    enum gb_status status = p->exchange(p, mine, parcels.to, parcels.from, error);
    if (status == GB_OK)
        status = unpack(&parcels, columns, column_count, received, error);
    parcels_free(&parcels, true);
    return status;
}

/* The ranks of one process. */

/* Of its own tokens, in their place among those of all ranks. */
static void count_routes(const struct gb_arguments *a, struct gb_own *own)
{
    const struct gb_exchange *x = a->exchange;
    const size_t of_rank = (size_t)x->tokens * x->top_k;
    for (size_t s = 0; s < own->ranks * of_rank; s++)
        if (a->ids[s] >= 0)
            own->counts[(own->first + s / of_rank) * x->experts + (size_t)a->ids[s]]++;
}

/* Every process gets the counts of every other. */
static enum gb_status gather_counts(const struct gb_processes *p, enum gb_status mine, const struct gb_exchange *x,
                                    struct gb_own *own, struct gb_error *error)
{
    struct parcels parcels;
    bool ready = parcels_new(p, &parcels);
    if (mine == GB_OK && !ready)
        mine = gb_fail(error, GB_ENOMEM, "no memory for the parcels of %u processes", p->count);
    for (uint32_t q = 0; mine == GB_OK && q < p->count; q++)
        parcels.to[q] = (struct gb_parcel){own->counts + (size_t)own->first * x->experts,
                                           sizeof *own->counts * own->ranks * x->experts};
    enum gb_status status = p->exchange(p, mine, parcels.to, parcels.from, error);
    for (uint32_t q = 0; status == GB_OK && q < p->count; q++) {
        const size_t first = gb_processes_first(x->ranks, p->count, q),
                     end = gb_processes_first(x->ranks, p->count, q + 1);
        const size_t bytes = sizeof *own->counts * (end - first) * x->experts;
        if (parcels.from[q].size != bytes)
            status = gb_fail(error, GB_EFORMAT, "process %u sent %zu bytes of counts, and not %zu", q,
                             parcels.from[q].size, bytes);
        else if (bytes)
            memcpy(own->counts + first * x->experts, parcels.from[q].bytes, bytes);
    }
    parcels_free(&parcels, false);
    return status;
}

/* Which rows its ranks receive. */
static enum gb_status find_rows(const struct gb_arguments *a, struct gb_own *own, struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    uint64_t row = 0, rows = 0;
    for (size_t i = 0; i < (size_t)x->ranks * x->experts; i++) {
        const uint32_t receiver = (uint32_t)a->placement[i % x->experts];
        if (own->counts[i] < 0 || own->counts[i] > (int64_t)x->tokens * x->top_k)
            return gb_fail(error, GB_EFORMAT, "counts: rank %zu has %d routes to expert %zu", i / x->experts,
                           own->counts[i], i % x->experts);
        row += receiver < own->first ? (uint64_t)own->counts[i] : 0;
        rows += receiver >= own->first && receiver < own->first + own->ranks ? (uint64_t)own->counts[i] : 0;
    }
    if (rows != x->rows)
        return gb_fail(error, GB_EINVAL, "ranks %u to %u receive %llu rows, but there are %u", own->first,
                       own->first + own->ranks, (unsigned long long)rows, x->rows);
    own->row = (uint32_t)row;
    own->rows = (uint32_t)rows;
    gb_rows_begin(x, a->placement, own->counts, own->next);
    return GB_OK;
}

enum gb_status gb_own_new(const struct gb_processes *p, const struct gb_arguments *a, enum gb_operator operation,
                          struct gb_own *own, struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    memset(own, 0, sizeof *own);
    own->first = gb_processes_first(x->ranks, p->count, p->process);
    own->ranks = gb_processes_first(x->ranks, p->count, p->process + 1) - own->first;
    const size_t pairs = (size_t)x->ranks * x->experts;
    own->counts = calloc(pairs, sizeof *own->counts);
    own->next = malloc(pairs * sizeof *own->next);
    enum gb_status status = own->counts && own->next
                                ? gb_exchange_check_slots(a, operation, own->first, own->ranks, &own->routes, error)
                                : gb_fail(error, GB_ENOMEM, "no memory for the counts of %u ranks", x->ranks);
    if (status == GB_OK)
        count_routes(a, own);
    status = gather_counts(p, status, x, own, error);
    return status == GB_OK ? find_rows(a, own, error) : status;
}

void gb_own_free(struct gb_own *own)
{
    free(own->counts);
    free(own->next);
    memset(own, 0, sizeof *own);
}

void gb_own_routes(const struct gb_processes *p, const struct gb_arguments *a, struct gb_own *own, struct gb_sent *sent,
                   uint32_t *to)
{
    const struct gb_exchange *x = a->exchange;
    const size_t of_rank = (size_t)x->tokens * x->top_k;
    for (size_t s = 0, i = 0; s < own->ranks * of_rank; s++) {
        if (a->ids[s] < 0)
            continue;
        const size_t sender = own->first + s / of_rank, expert = (size_t)a->ids[s];
        sent[i] = (struct gb_sent){.row = own->next[sender * x->experts + expert]++,
                                   .route = (int32_t)(own->first * of_rank + s),
                                   .rank = (uint32_t)a->placement[expert],
                                   .weight = a->routing_weights ? a->routing_weights[s] : 1.0f};
        to[i++] = gb_process_of(p, x, (uint32_t)a->placement[expert]);
    }
}
