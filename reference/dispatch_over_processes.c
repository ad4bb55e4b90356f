/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch by several processes: docs/numerics.md#over-processes. */
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/exchange.h"
#include "reference/processes.h"

/* What this process sends: its tokens' routes in the order of their slots, and of each the row. */
struct outgoing {
    struct gb_sent *sent;           /* [routes] */
    uint32_t *to;                   /* [routes] */
    int32_t *routes;                /* [routes], from its first token on */
    void *codes, *scales;           /* [routes, hidden] */
    size_t code_bytes, scale_bytes; /* of a row */
};

static void outgoing_free(struct outgoing *o)
{
    free(o->sent);
    free(o->to);
    free(o->routes);
    free(o->codes);
    free(o->scales);
}

static enum gb_status outgoing_new(const struct gb_processes *p, const struct gb_arguments *a, struct gb_own *own,
                                   struct outgoing *o, struct gb_error *error)
{
    struct gb_exchange x = *a->exchange;
    struct gb_arguments rows = *a;
    const size_t count = own->routes;
    enum gb_status status = GB_OK;
    o->code_bytes = sizeof(gb_bf16) * x.hidden;
    if (x.quantiser.element)
        status = gb_quantiser_bytes(&x.quantiser, 1, x.hidden, &o->code_bytes, &o->scale_bytes, error);
    o->sent = malloc(count * sizeof *o->sent + 1);
    o->to = malloc(count * sizeof *o->to + 1);
    o->routes = malloc(count * sizeof *o->routes + 1);
    o->codes = malloc(count * o->code_bytes + 1);
    o->scales = malloc(count * o->scale_bytes + 1);
    if (status == GB_OK && !(o->sent && o->to && o->routes && o->codes && o->scales))
        status = gb_fail(error, GB_ENOMEM, "no memory for %zu rows of %u values", count, x.hidden);
    if (status != GB_OK)
        return status;
    gb_own_routes(p, a, own, o->sent, o->to);
    for (size_t i = 0; i < count; i++)
        o->routes[i] = o->sent[i].route - (int32_t)(own->first * x.tokens * x.top_k);
    x.rows = (uint32_t)count;
    rows.exchange = &x;
    rows.codes = o->codes;
    rows.scales = o->scales;
    return gb_dispatch_rows(&rows, o->routes, error);
}

/* Each row into its place. columns: what was received, struct gb_sent, codes and scales. */
static enum gb_status place_rows(const struct gb_arguments *a, const struct gb_own *own,
                                 const struct gb_column *columns, size_t received, struct gb_error *error)
{
    const struct gb_sent *sent = columns[0].received;
    const char *const arrived[] = {columns[1].received, columns[2].received};
    char *const arrays[] = {a->codes, a->scales};
    for (uint32_t row = 0; row < own->rows; row++)
        a->routes[row] = -1; /* it has not arrived */
    for (size_t i = 0; i < received; i++) {
        const int64_t row = (int64_t)sent[i].row - own->row;
        if (row < 0 || row >= own->rows || a->routes[row] >= 0)
            return gb_fail(error, GB_EFORMAT, "row %d, of route %d, %s", sent[i].row, sent[i].route,
                           row < 0 || row >= own->rows ? "is for another process" : "has arrived twice");
        a->routes[row] = sent[i].route;
        for (int c = 0; c < 2; c++)
            if (columns[c + 1].width)
                memcpy(arrays[c] + (size_t)row * columns[c + 1].width, arrived[c] + i * columns[c + 1].width,
                       columns[c + 1].width);
    }
    return received == own->rows ? GB_OK
                                 : gb_fail(error, GB_EFORMAT, "%zu rows have arrived of %u", received, own->rows);
}

enum gb_status gb_reference_dispatch_over_processes(const struct gb_processes *p, const struct gb_arguments *a,
                                                    struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    struct gb_own own;
    struct outgoing o = {0};
    size_t received;
    enum gb_status status = gb_exchange_check(x, GB_DISPATCH, error);
    if (status != GB_OK) /* in all processes alike */
        return status;
    status = gb_own_new(p, a, GB_DISPATCH, &own, error);
    if (status == GB_OK && ((own.routes && !a->x) || !a->counts ||
                            (own.rows && (!a->routes || !a->codes || (x->quantiser.element && !a->scales)))))
        status = gb_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (status == GB_OK)
        status = outgoing_new(p, a, &own, &o, error);
    struct gb_column columns[] = {
        {.width = sizeof *o.sent, .sent = o.sent},
        {.width = o.code_bytes, .sent = o.codes},
        {.width = o.scale_bytes, .sent = o.scales},
    };
    status = gb_send_items(p, status, o.to, own.routes, columns, 3, &received, error);
    if (status == GB_OK) {
        memcpy(a->counts, own.counts, sizeof *own.counts * x->ranks * x->experts);
        status = place_rows(a, &own, columns, received, error);
    }
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
        free(columns[c].received);
    outgoing_free(&o);
    gb_own_free(&own);
    return status;
}
