/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch and combine over the ranks of one process, right ones and ones with a mistake each. A receiver's rows are
 * found by asking every route in turn, which is no part of the library. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gaugeblock.h"

static uint32_t slots_of(const struct gb_exchange *x)
{
    return x->ranks * x->tokens * x->top_k;
}

/* The routes in the order of rows. routes: [rows] */
static void order_routes(const struct gb_arguments *a, int32_t *routes)
{
    const struct gb_exchange *x = a->exchange;
    uint32_t row = 0, of_rank = x->tokens * x->top_k;
    for (uint32_t receiver = 0; receiver < x->ranks; receiver++)
        for (uint32_t sender = 0; sender < x->ranks; sender++)
            for (uint32_t e = 0; e < x->experts; e++)
                for (uint32_t s = sender * of_rank; s < (sender + 1) * of_rank; s++)
                    if (a->ids[s] == (int32_t)e && a->placement[e] == (int32_t)receiver)
                        routes[row++] = (int32_t)s;
}

static gb_bf16 *row_at(const struct gb_arguments *a, uint32_t row)
{
    return (gb_bf16 *)a->codes + (size_t)row * a->exchange->hidden;
}

static void swap(int32_t *a, int32_t *b)
{
    int32_t kept = *a;
    *a = *b;
    *b = kept;
}

static uint32_t receiver_of(const struct gb_arguments *a, uint32_t row)
{
    return (uint32_t)a->placement[a->ids[a->routes[row]]];
}

/* What is wrong with routes, before rows are sent. */

static void lose(struct gb_arguments *a)
{
    a->routes[a->exchange->rows / 2] = a->routes[0];
}

static void misroute(struct gb_arguments *a)
{
    uint32_t other = a->exchange->rows - 1;
    if (receiver_of(a, other) != receiver_of(a, 0))
        swap(&a->routes[0], &a->routes[other]);
}

static void arrive(struct gb_arguments *a)
{
    for (uint32_t row = 0; row + 1 < a->exchange->rows; row += 2)
        if (receiver_of(a, row) == receiver_of(a, row + 1))
            swap(&a->routes[row], &a->routes[row + 1]);
}

/* What is wrong behind that. */

static void count_other(struct gb_arguments *a)
{
    a->counts[a->exchange->experts]++;
}

static void come_late(struct gb_arguments *a)
{
    memset(row_at(a, a->exchange->rows - 1), 0, sizeof(gb_bf16) * a->exchange->hidden);
}

/* The second row is what it was in the call before. */
static void keep_row(struct gb_arguments *a)
{
    static gb_bf16 kept[1 << 16];
    static bool filled;
    size_t bytes = sizeof *kept * a->exchange->hidden;
    gb_bf16 now[1 << 12];
    memcpy(now, row_at(a, 1), bytes);
    if (filled)
        memcpy(row_at(a, 1), kept, bytes);
    memcpy(kept, now, bytes);
    filled = true;
}

static void overflow(struct gb_arguments *a)
{
    row_at(a, a->exchange->rows)[0].bits = 1;
}

static void offset(struct gb_arguments *a)
{
    memmove(row_at(a, 0), row_at(a, 1), sizeof(gb_bf16) * a->exchange->hidden * (a->exchange->rows - 1));
}

static void forget_row(struct gb_arguments *a)
{
    (void)a;
}

static void hang(struct gb_arguments *a)
{
    (void)a;
    for (;;)
        pause();
}

static enum gb_status dispatch(const struct gb_arguments *arguments, void (*spoil)(struct gb_arguments *),
                               void (*spoil_after)(struct gb_arguments *))
{
    struct gb_arguments a = *arguments;
    const struct gb_exchange *x = a.exchange;
    order_routes(&a, a.routes);
    if (spoil)
        spoil(&a);
    memset(a.counts, 0, sizeof *a.counts * x->ranks * x->experts);
    for (uint32_t s = 0; s < slots_of(x); s++)
        if (a.ids[s] >= 0)
            a.counts[s / (x->tokens * x->top_k) * x->experts + (uint32_t)a.ids[s]]++;
    for (uint32_t row = 0; row < x->rows; row++)
        if (spoil_after != forget_row || row != x->rows / 2)
            memcpy(row_at(&a, row), a.x + (size_t)(a.routes[row] / (int32_t)x->top_k) * x->hidden,
                   sizeof(gb_bf16) * x->hidden);
    if (spoil_after)
        spoil_after(&a);
    return GB_OK;
}

#define DISPATCHES(ROW)                                                                                                \
    ROW(right, NULL, NULL)                                                                                             \
    ROW(lost, lose, NULL)                                                                                              \
    ROW(misrouted, misroute, NULL)                                                                                     \
    ROW(arrival, arrive, NULL)                                                                                         \
    ROW(count, NULL, count_other)                                                                                      \
    ROW(late, NULL, come_late)                                                                                         \
    ROW(stale, NULL, keep_row)                                                                                         \
    ROW(overflow, NULL, overflow)                                                                                      \
    ROW(offset, NULL, offset)                                                                                          \
    ROW(unwritten, NULL, forget_row)                                                                                   \
    ROW(hang, NULL, hang)

#define RUN_DISPATCH(NAME, BEFORE, AFTER)                                                                              \
    static enum gb_status dispatch_##NAME(const struct gb_arguments *a, struct gb_error *error)                        \
    {                                                                                                                  \
        (void)error;                                                                                                   \
        return dispatch(a, BEFORE, AFTER);                                                                             \
    }
DISPATCHES(RUN_DISPATCH)

/* Combine. */

static float of_bf16(gb_bf16 code)
{
    uint32_t bits = (uint32_t)code.bits << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To nearest even; no NaN occurs here. */
static float to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits += 0x7FFF + (bits >> 16 & 1);
    return of_bf16((gb_bf16){(uint16_t)(bits >> 16)});
}

enum mistake {
    RIGHT,
    LOST_SLOT,
    TWICE,
    BOTH_SIDES,
    NO_WEIGHTS,
    OTHER_ROW,
    KEPT_ROW,
    BACKWARDS,
    NARROW,
    SENDER,
    PAST_END
};

struct combining {
    const struct gb_arguments *a;
    uint32_t *row; /* [slots] */
    enum mistake mistake;
};

static const gb_bf16 *row_of(const struct combining *c, uint32_t slot)
{
    uint32_t row = c->row[slot];
    if (c->mistake == OTHER_ROW && slot == 5)
        row = c->row[slot + 4 * c->a->exchange->top_k];
    return (const gb_bf16 *)c->a->values + (size_t)row * c->a->exchange->hidden;
}

/* The sum of one token's slots, of those on this rank if rank >= 0. */
static float sum_of(const struct combining *c, uint32_t token, int32_t rank, uint32_t h, bool *any)
{
    const struct gb_exchange *x = c->a->exchange;
    float y = 0.0f;
    for (uint32_t i = 0; i < x->top_k; i++) {
        uint32_t j = c->mistake == BACKWARDS ? x->top_k - 1 - i : i, slot = token * x->top_k + j;
        if (c->a->ids[slot] < 0 || (rank >= 0 && c->a->placement[c->a->ids[slot]] != rank) ||
            (c->mistake == LOST_SLOT && slot == 5))
            continue;
        float w = c->mistake == NO_WEIGHTS ? 1.0f : c->a->routing_weights[slot], v = of_bf16(row_of(c, slot)[h]);
        if (c->mistake == BOTH_SIDES)
            w *= w;
        y = fmaf(w, v, y);
        if (c->mistake == TWICE && slot == 5)
            y = fmaf(w, v, y);
        if (c->mistake == NARROW)
            y = to_bf16(y);
        *any = true;
    }
    return y;
}

static float output_of(const struct combining *c, uint32_t token, uint32_t h)
{
    const struct gb_exchange *x = c->a->exchange;
    bool any = false;
    float y = 0.0f;
    if (c->mistake != SENDER)
        return sum_of(c, token, -1, h, &any);
    for (uint32_t rank = 0; rank < x->ranks; rank++) {
        any = false;
        float p = sum_of(c, token, (int32_t)rank, h, &any);
        y = any ? y + to_bf16(p) : y;
    }
    return y;
}

/* The output is that of the call before. */
static void keep_output(float *output)
{
    static float kept;
    static bool filled;
    float now = *output;
    *output = filled ? kept : now;
    kept = now;
    filled = true;
}

static enum gb_status combine(const struct gb_arguments *a, enum mistake mistake)
{
    const struct gb_exchange *x = a->exchange;
    float *output = a->output; /* [ranks * tokens, hidden] */
    int32_t *routes = malloc(sizeof *routes * x->rows);
    struct combining c = {a, calloc(slots_of(x), sizeof *c.row), mistake};
    if (!routes || !c.row) {
        free(routes);
        free(c.row);
        return GB_ENOMEM;
    }
    order_routes(a, routes);
    for (uint32_t row = 0; row < x->rows; row++)
        c.row[routes[row]] = row;
    for (uint32_t token = 0; token < x->ranks * x->tokens; token++)
        for (uint32_t h = 0; h < x->hidden; h++)
            output[(size_t)token * x->hidden + h] = output_of(&c, token, h);
    if (mistake == KEPT_ROW)
        keep_output(output + (size_t)x->ranks * x->tokens * x->hidden - 1);
    if (mistake == PAST_END)
        output[(size_t)x->ranks * x->tokens * x->hidden] = 0.0f;
    free(routes);
    free(c.row);
    return GB_OK;
}

/* name, what it does, the order it claims */
#define COMBINES(ROW)                                                                                                  \
    ROW(right, RIGHT, GB_ORDER_SLOTS)                                                                                  \
    ROW(unclaimed, BACKWARDS, NULL)                                                                                    \
    ROW(backwards, BACKWARDS, GB_ORDER_SLOTS)                                                                          \
    ROW(lost, LOST_SLOT, GB_ORDER_SLOTS)                                                                               \
    ROW(twice, TWICE, NULL)                                                                                            \
    ROW(both, BOTH_SIDES, GB_ORDER_SLOTS)                                                                              \
    ROW(neither, NO_WEIGHTS, NULL)                                                                                     \
    ROW(other, OTHER_ROW, GB_ORDER_SLOTS)                                                                              \
    ROW(stale, KEPT_ROW, GB_ORDER_SLOTS)                                                                               \
    ROW(narrow, NARROW, NULL)                                                                                          \
    ROW(sender, SENDER, GB_ORDER_SLOTS)                                                                                \
    ROW(overflow, PAST_END, GB_ORDER_SLOTS)

#define RUN_COMBINE(NAME, MISTAKE, ORDER)                                                                              \
    static enum gb_status combine_##NAME(const struct gb_arguments *a, struct gb_error *error)                         \
    {                                                                                                                  \
        (void)error;                                                                                                   \
        return combine(a, MISTAKE);                                                                                    \
    }
COMBINES(RUN_COMBINE)

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    (void)error;
    return !problem->exchange || problem->exchange->quantiser.element ? GB_EUNSUPPORTED : GB_OK;
}

#define KERNEL(NAME, OPERATION, ORDER, RUN)                                                                            \
    {                                                                                                                  \
        .name = NAME, .operation = OPERATION, .activations = GB_BF16, .output = GB_FP32, .order = ORDER,               \
        .accumulator_bits = 24, .supports = supports, .run = RUN                                                       \
    }
#define KERNEL_DISPATCH(NAME, BEFORE, AFTER) KERNEL("dispatch-" #NAME, GB_DISPATCH, NULL, dispatch_##NAME),
#define KERNEL_COMBINE(NAME, MISTAKE, ORDER) KERNEL("combine-" #NAME, GB_COMBINE, ORDER, combine_##NAME),

GB_API const struct gb_kernel_table *gb_kernels(void);
const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel kernels[] = {DISPATCHES(KERNEL_DISPATCH) COMBINES(KERNEL_COMBINE)};
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof(struct gb_kernel),
                                                 sizeof kernels / sizeof *kernels, kernels};
    return &table;
}
