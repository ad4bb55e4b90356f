/* SPDX-License-Identifier: Apache-2.0 */
/* The rows that ranks send each other, in the order in which they are received: docs/numerics.md#dispatch. */
#include "reference/exchange.h"

#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"

static enum gb_status check_payload(const struct gb_exchange *x, struct gb_error *error)
{
    const struct gb_quantiser *rules = &x->quantiser;
    uint32_t block = rules->block_columns;
    if (!rules->element) /* bf16 */
        return GB_OK;
    if (rules->block_rows != 1 || (block != 16 && block != 32 && block != 64 && block != 128))
        return gb_fail(error, GB_EINVAL, "blocks of %u x %u: they must be of 1 row, and 16, 32, 64 or 128 columns",
                       rules->block_rows, block);
    if (x->hidden % block)
        return gb_fail(error, GB_EINVAL, "hidden %u is no multiple of the block of %u", x->hidden, block);
    return GB_OK;
}

static enum gb_status check_sums(const struct gb_exchange *x, struct gb_error *error)
{
    if (x->input != GB_BF16 && x->input != GB_FP32)
        return gb_fail(error, GB_EINVAL, "rows of format %d: they must be bf16 (%d) or FP32 (%d)", (int)x->input,
                       GB_BF16, GB_FP32);
    if (x->accumulation < GB_AT_RECEIVER || x->accumulation > GB_AT_SENDER_NODE)
        return gb_fail(error, GB_EINVAL, "accumulation %d does not exist", (int)x->accumulation);
    if (x->accumulation == GB_AT_SENDER_NODE && !x->ranks_per_node)
        return gb_fail(error, GB_EINVAL, "a node has at least one rank");
    return GB_OK;
}

enum gb_status gb_exchange_check(const struct gb_exchange *x, enum gb_operator operation, struct gb_error *error)
{
    size_t bytes;
    if (!x || x->size < sizeof *x)
        return gb_fail(error, GB_EINVAL, "no struct gb_exchange of at least %zu bytes", sizeof *x);
    if (!x->ranks || !x->tokens || !x->hidden || !x->experts || !x->top_k || x->top_k > x->experts)
        return gb_fail(error, GB_EINVAL, "every size must be at least 1, and top_k at most the number of experts");
    if (!gb_bytes(x->ranks, x->tokens, x->top_k, 1, &bytes) || bytes > INT32_MAX ||
        !gb_bytes(bytes, x->hidden, 1, sizeof(float), &bytes) ||
        !gb_bytes(x->ranks, x->experts, 1, sizeof(int32_t), &bytes))
        return gb_fail(error, GB_EINVAL, "%u tokens on each of %u ranks do not fit in memory", x->tokens, x->ranks);
    if (x->one_rank)
        return gb_fail(error, GB_EINVAL, "the arrays of rank %u alone; those of all ranks are needed", x->rank);
    return operation == GB_DISPATCH ? check_payload(x, error) : check_sums(x, error);
}

static size_t slots_of(const struct gb_exchange *x)
{
    return (size_t)x->ranks * x->tokens * x->top_k;
}

enum gb_status gb_exchange_check_slots(const struct gb_arguments *a, enum gb_operator operation, uint32_t first,
                                       uint32_t count, size_t *routes, struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    enum gb_status status = gb_exchange_check(x, operation, error);
    *routes = 0;
    if (status != GB_OK)
        return status;
    if ((count && !a->ids) || !a->placement)
        return gb_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    for (uint32_t e = 0; e < x->experts; e++)
        if (a->placement[e] < 0 || a->placement[e] >= (int64_t)x->ranks)
            return gb_fail(error, GB_EINVAL, "expert %u is on rank %d, out of 0..%u", e, a->placement[e], x->ranks - 1);
    for (size_t s = 0; s < (size_t)count * x->tokens * x->top_k; s++) {
        if (a->ids[s] < -1 || a->ids[s] >= (int64_t)x->experts)
            return gb_fail(error, GB_EINVAL, "expert id %d of rank %zu, token %zu, slot %zu is out of range -1..%u",
                           a->ids[s], first + s / x->top_k / x->tokens, s / x->top_k % x->tokens, s % x->top_k,
                           x->experts - 1);
        *routes += a->ids[s] >= 0;
    }
    return GB_OK;
}

enum gb_status gb_exchange_check_routes(const struct gb_arguments *a, enum gb_operator operation,
                                        struct gb_error *error)
{
    size_t routes;
    enum gb_status status =
        gb_exchange_check_slots(a, operation, 0, a->exchange ? a->exchange->ranks : 0, &routes, error);
    if (status == GB_OK && routes != a->exchange->rows)
        return gb_fail(error, GB_EINVAL, "%zu slots have an expert, but there are %u rows", routes, a->exchange->rows);
    return status;
}

void gb_rows_begin(const struct gb_exchange *x, const int32_t *placement, const int32_t *counts, int32_t *start)
{
    int32_t row = 0;
    for (uint32_t receiver = 0; receiver < x->ranks; receiver++)
        for (uint32_t sender = 0; sender < x->ranks; sender++)
            for (uint32_t e = 0; e < x->experts; e++)
                if (placement[e] == (int32_t)receiver) {
                    start[(size_t)sender * x->experts + e] = row;
                    row += counts[(size_t)sender * x->experts + e];
                }
}

enum gb_status gb_rows_new(const struct gb_arguments *a, struct gb_rows *rows, struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    size_t slots = slots_of(x), of_rank = (size_t)x->tokens * x->top_k, pairs = (size_t)x->ranks * x->experts;
    int32_t *next = malloc(pairs * sizeof *next); /* [ranks, experts], the row of the next such route */
    *rows = (struct gb_rows){calloc(pairs, sizeof(int32_t)), malloc((x->rows + (size_t)1) * sizeof(int32_t)),
                             malloc(slots * sizeof(int32_t))};
    if (!next || !rows->counts || !rows->routes || !rows->row) {
        free(next);
        gb_rows_free(rows);
        return gb_fail(error, GB_ENOMEM, "no memory for the rows of %zu slots", slots);
    }
    for (size_t s = 0; s < slots; s++)
        if (a->ids[s] >= 0)
            rows->counts[s / of_rank * x->experts + (size_t)a->ids[s]]++;
    gb_rows_begin(x, a->placement, rows->counts, next);
    for (size_t s = 0; s < slots; s++) { /* a rank's tokens in order, and their slots */
        rows->row[s] = a->ids[s] < 0 ? -1 : next[s / of_rank * x->experts + (size_t)a->ids[s]]++;
        if (rows->row[s] >= 0)
            rows->routes[rows->row[s]] = (int32_t)s;
    }
    free(next);
    return GB_OK;
}

void gb_rows_free(struct gb_rows *rows)
{
    free(rows->counts);
    free(rows->routes);
    free(rows->row);
    memset(rows, 0, sizeof *rows);
}

enum gb_status gb_reference_routes(const struct gb_arguments *a, int32_t *routes, struct gb_error *error)
{
    struct gb_rows rows;
    bool sums = a->exchange && a->exchange->accumulation;
    enum gb_status status = gb_exchange_check_routes(a, sums ? GB_COMBINE : GB_DISPATCH, error);
    if (status == GB_OK)
        status = gb_rows_new(a, &rows, error);
    if (status != GB_OK)
        return status;
    memcpy(routes, rows.routes, sizeof *routes * a->exchange->rows);
    gb_rows_free(&rows);
    return GB_OK;
}
