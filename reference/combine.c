/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of experts' outputs back to the tokens: docs/numerics.md#combine. */
#include <math.h>
#include <stdlib.h>

#include "quant/quant.h"
#include "reference/exchange.h"
#include "reference/order.h"

/* The slots of one token that have an expert. */
struct token {
    uint32_t slots;
    const void **row; /* [slots] in slot order, each [hidden] of exchange->input */
    float *weight;    /* [slots] */
    uint32_t *rank;   /* [slots], of the expert */
    uint32_t senders;
    uint32_t *sender; /* [senders], these ranks in ascending order */
};

static inline float value(const struct gb_exchange *x, const void *row, uint32_t h)
{
    return x->input == GB_FP32 ? ((const float *)row)[h] : gb_bf16_decode(((const gb_bf16 *)row)[h]);
}

static inline float rounded(float value)
{
    return gb_bf16_decode(gb_bf16_encode(value));
}

/* y = fma(weight, row, y) over all slots. */
static inline float at_receiver(const struct gb_exchange *x, const struct token *t, uint32_t h)
{
    float y = 0.0f;
    for (uint32_t s = 0; s < t->slots; s++)
        y = fmaf(t->weight[s], value(x, t->row[s], h), y);
    return y;
}

/* The same over the slots whose experts are on this rank, in bf16. */
static inline float partial(const struct gb_exchange *x, const struct token *t, uint32_t rank, uint32_t h)
{
    float y = 0.0f;
    for (uint32_t s = 0; s < t->slots; s++)
        if (t->rank[s] == rank)
            y = fmaf(t->weight[s], value(x, t->row[s], h), y);
    return rounded(y);
}

static inline float at_sender(const struct gb_exchange *x, const struct token *t, uint32_t h)
{
    float y = 0.0f;
    for (uint32_t i = 0; i < t->senders; i++)
        y += partial(x, t, t->sender[i], h);
    return y;
}

/* Of each node a sum in bf16, in node order. */
static inline float at_node(const struct gb_exchange *x, const struct token *t, uint32_t h)
{
    float y = 0.0f;
    for (uint32_t i = 0; i < t->senders;) {
        uint32_t node = t->sender[i] / x->ranks_per_node;
        float sum = 0.0f;
        for (; i < t->senders && t->sender[i] / x->ranks_per_node == node; i++)
            sum += partial(x, t, t->sender[i], h);
        y += rounded(sum);
    }
    return y;
}

/* output: [hidden] */
GB_FMA_CLONES
static void sum_token(const struct gb_exchange *x, const struct token *t, float *output)
{
    for (uint32_t h = 0; h < x->hidden; h++)
        output[h] = gb_one_nan(x->accumulation == GB_AT_RECEIVER ? at_receiver(x, t, h)
                               : x->accumulation == GB_AT_SENDER ? at_sender(x, t, h)
                                                                 : at_node(x, t, h));
}

/* In its place of the senders, unless it is there. */
static void add_sender(struct token *t, uint32_t rank)
{
    uint32_t at = t->senders;
    for (uint32_t i = 0; i < t->senders; i++)
        if (t->sender[i] == rank)
            return;
    for (; at > 0 && t->sender[at - 1] > rank; at--)
        t->sender[at] = t->sender[at - 1];
    t->sender[at] = rank;
    t->senders++;
}

/* row: [ranks * tokens * top_k] */
static void find_slots(const struct gb_arguments *a, const int32_t *row, size_t token, struct token *t)
{
    const struct gb_exchange *x = a->exchange;
    size_t width = x->hidden * (x->input == GB_FP32 ? sizeof(float) : sizeof(gb_bf16));
    t->slots = t->senders = 0;
    for (size_t route = token * x->top_k; route < (token + 1) * x->top_k; route++) {
        if (row[route] < 0)
            continue;
        t->row[t->slots] = (const char *)a->values + (size_t)row[route] * width;
        t->weight[t->slots] = a->routing_weights[route];
        t->rank[t->slots] = (uint32_t)a->placement[a->ids[route]];
        add_sender(t, t->rank[t->slots++]);
    }
}

static enum gb_status sum_tokens(const struct gb_arguments *a, const int32_t *row, struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    float *output = a->output; /* [ranks * tokens, hidden] */
    enum gb_status status = GB_OK;
#pragma omp parallel
    {
        struct token t = {.row = malloc(sizeof *t.row * x->top_k),
                          .weight = malloc(sizeof *t.weight * x->top_k),
                          .rank = malloc(sizeof *t.rank * x->top_k),
                          .sender = malloc(sizeof *t.sender * x->top_k)};
        bool ready = t.row && t.weight && t.rank && t.sender;
#pragma omp for schedule(static)
        for (uint32_t token = 0; token < x->ranks * x->tokens; token++)
            if (ready) {
                find_slots(a, row, token, &t);
                sum_token(x, &t, output + (size_t)token * x->hidden);
            }
        if (!ready)
#pragma omp critical
            status = gb_fail(error, GB_ENOMEM, "no memory for %u slots", x->top_k);
        free(t.row);
        free(t.weight);
        free(t.rank);
        free(t.sender);
    }
    return status;
}

enum gb_status gb_reference_combine(const struct gb_arguments *a, struct gb_error *error)
{
    struct gb_rows rows;
    enum gb_status status = gb_exchange_check_routes(a, GB_COMBINE, error);
    if (status == GB_OK && (!a->values || !a->routing_weights || !a->output))
        status = gb_fail(error, GB_EINVAL, "a buffer that the operator needs is NULL");
    if (status == GB_OK)
        status = gb_rows_new(a, &rows, error);
    if (status != GB_OK)
        return status;
    status = sum_tokens(a, rows.row, error);
    gb_rows_free(&rows);
    return status;
}
