/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch and combine of docs/numerics.md: routes are sorted, and every sum is taken rank by rank from the text. */
#include "tests/oracle/oracle.h"

#include <stdlib.h>

struct route {
    int32_t receiver, sender, expert, number;
};

/* A route's number grows with its token and slot. */
static int compare(const void *left, const void *right)
{
    const struct route *a = left, *b = right;

    if (a->receiver != b->receiver)
        return a->receiver < b->receiver ? -1 : 1;
    if (a->sender != b->sender)
        return a->sender < b->sender ? -1 : 1;
    if (a->expert != b->expert)
        return a->expert < b->expert ? -1 : 1;
    return a->number < b->number ? -1 : 1;
}

uint32_t oracle_routes(const struct gb_exchange *x, const int32_t *placement, const int32_t *ids, int32_t *routes)
{
    uint32_t slots = x->ranks * x->tokens * x->top_k, count = 0;
    struct route *all = malloc(slots * sizeof *all);

    for (uint32_t n = 0; n < slots; n++)
        if (ids[n] != -1) {
            struct route route = {placement[ids[n]], (int32_t)(n / (x->tokens * x->top_k)), ids[n], (int32_t)n};
            all[count++] = route;
        }
    qsort(all, count, sizeof *all, compare);
    for (uint32_t row = 0; row < count; row++)
        routes[row] = all[row].number;
    free(all);
    return count;
}

static float bf16(float value)
{
    return (float)oracle_decode(ORACLE_BF16, oracle_encode(ORACLE_BF16, value));
}

static float element(const struct gb_arguments *a, const int32_t *routes, uint32_t route, uint32_t h)
{
    const struct gb_exchange *x = a->exchange;
    uint32_t row = 0;

    while (routes[row] != (int32_t)route)
        row++;
    if (x->input == GB_FP32)
        return ((const float *)a->values)[(size_t)row * x->hidden + h];
    return (float)oracle_decode(ORACLE_BF16, ((const gb_bf16 *)a->values)[(size_t)row * x->hidden + h].bits);
}

/* The slots of this token with experts on ranks first .. end-1. *any: there is one. */
static float slots(const struct gb_arguments *a, const int32_t *routes, uint32_t token, uint32_t h, uint32_t first,
                   uint32_t end, bool *any)
{
    float y = 0;

    for (uint32_t j = 0; j < a->exchange->top_k; j++) {
        uint32_t route = token * a->exchange->top_k + j;
        if (a->ids[route] == -1)
            continue;
        uint32_t rank = (uint32_t)a->placement[a->ids[route]];
        if (rank < first || rank >= end)
            continue;
        y = oracle_fma(a->routing_weights[route], element(a, routes, route, h), y);
        *any = true;
    }
    return y;
}

static float ranks(const struct gb_arguments *a, const int32_t *routes, uint32_t token, uint32_t h, uint32_t first,
                   uint32_t end, bool *any)
{
    float y = 0;

    for (uint32_t d = first; d < end && d < a->exchange->ranks; d++) {
        bool sends = false;
        float p = slots(a, routes, token, h, d, d + 1, &sends);
        if (sends)
            y = oracle_add(y, bf16(p));
        *any |= sends;
    }
    return y;
}

static float nodes(const struct gb_arguments *a, const int32_t *routes, uint32_t token, uint32_t h)
{
    const uint32_t size = a->exchange->ranks_per_node;
    float y = 0;

    for (uint32_t m = 0; m * size < a->exchange->ranks; m++) {
        bool sends = false;
        float n = ranks(a, routes, token, h, m * size, (m + 1) * size, &sends);
        if (sends)
            y = oracle_add(y, bf16(n));
    }
    return y;
}

void oracle_combine(const struct gb_arguments *a, float *output)
{
    const struct gb_exchange *x = a->exchange;
    int32_t *routes = malloc(sizeof *routes * x->ranks * x->tokens * x->top_k);
    bool any = false;

    oracle_routes(x, a->placement, a->ids, routes);
    for (uint32_t token = 0; token < x->ranks * x->tokens; token++)
        for (uint32_t h = 0; h < x->hidden; h++) {
            float *y = &output[(size_t)token * x->hidden + h];
            if (x->accumulation == GB_AT_RECEIVER)
                *y = slots(a, routes, token, h, 0, x->ranks, &any);
            else if (x->accumulation == GB_AT_SENDER)
                *y = ranks(a, routes, token, h, 0, x->ranks, &any);
            else
                *y = nodes(a, routes, token, h);
        }
    free(routes);
}
