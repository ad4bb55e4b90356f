/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch and combine in one process a rank, which reach each other by files in the rendezvous: right ones, and ones
 * of which one rank makes a mistake. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gaugeblock.h"

enum { PATH = 4200, PAUSE_NS = 200 * 1000 };

/* The message `what` of call `call` from one rank to another. */
static void name_of(const struct gb_exchange *x, const char *what, unsigned call, uint32_t from, uint32_t to,
                    char path[PATH])
{
    snprintf(path, PATH, "%s/%s-%u-%u-%u", x->rendezvous, what, call, from, to);
}

/* It gets its name when it is whole. */
static void send_to(const struct gb_exchange *x, const char *what, unsigned call, uint32_t to, const void *bytes,
                    size_t count)
{
    char path[PATH], part[PATH + 8];
    name_of(x, what, call, x->rank, to, path);
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    if (!file || fwrite(bytes, 1, count, file) != count || fclose(file) || rename(part, path))
        abort();
}

static void receive(const struct gb_exchange *x, const char *what, unsigned call, uint32_t from, void *bytes,
                    size_t count)
{
    char path[PATH];
    FILE *file;
    name_of(x, what, call, from, x->rank, path);
    while (!(file = fopen(path, "rb")))
        nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    if (fread(bytes, 1, count, file) != count)
        abort();
    fclose(file);
}

static uint32_t slots_of(const struct gb_exchange *x)
{
    return x->tokens * x->top_k;
}

/* A sender's slots to one receiver, by expert, then number. slots: [tokens * top_k]. Returns how many. */
static uint32_t slots_to(const struct gb_arguments *a, uint32_t to, uint32_t *slots)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < a->exchange->experts; e++)
        for (uint32_t s = 0; s < slots_of(a->exchange) && a->placement[e] == (int32_t)to; s++)
            if (a->ids[s] == (int32_t)e)
                slots[count++] = s;
    return count;
}

enum mistake { RIGHT, LOST, COUNTS, DIES, HANGS, WRONG_OFFSET, BOTH, OVERFLOW };
static unsigned calls;

static void gather_counts(const struct gb_arguments *a, unsigned call)
{
    const struct gb_exchange *x = a->exchange;
    int32_t *own = a->counts + (size_t)x->rank * x->experts;
    memset(own, 0, sizeof *own * x->experts);
    for (uint32_t s = 0; s < slots_of(x); s++)
        if (a->ids[s] >= 0)
            own[a->ids[s]]++;
    for (uint32_t r = 0; r < x->ranks; r++)
        if (r != x->rank)
            send_to(x, "counts", call, r, own, sizeof *own * x->experts);
    for (uint32_t r = 0; r < x->ranks; r++)
        if (r != x->rank)
            receive(x, "counts", call, r, a->counts + (size_t)r * x->experts, sizeof *own * x->experts);
}

static uint32_t rows_from(const struct gb_arguments *a, uint32_t from)
{
    const struct gb_exchange *x = a->exchange;
    uint32_t rows = 0;
    for (uint32_t e = 0; e < x->experts; e++)
        rows += a->placement[e] == (int32_t)x->rank ? (uint32_t)a->counts[(size_t)from * x->experts + e] : 0;
    return rows;
}

/* A row as it travels: its route, then its values. */
static void send_rows(const struct gb_arguments *a, unsigned call, uint32_t to, enum mistake mistake)
{
    const struct gb_exchange *x = a->exchange;
    size_t width = sizeof(gb_bf16) * x->hidden, bytes = sizeof(int32_t) + width;
    uint32_t *slots = malloc(sizeof *slots * slots_of(x));
    char *message = malloc(bytes * slots_of(x));
    if (!slots || !message)
        abort();
    uint32_t count = slots_to(a, to, slots);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = mistake == LOST && x->rank == 1 && i == count - 1 ? slots[0] : slots[i];
        int32_t route = (int32_t)(x->rank * slots_of(x) + slot);
        memcpy(message + i * bytes, &route, sizeof route);
        memcpy(message + i * bytes + sizeof route, a->x + (size_t)(slot / x->top_k) * x->hidden, width);
    }
    send_to(x, "rows", call, to, message, bytes * count);
    free(slots);
    free(message);
}

static void take_rows(const struct gb_arguments *a, unsigned call, uint32_t from, uint32_t first)
{
    const struct gb_exchange *x = a->exchange;
    size_t width = sizeof(gb_bf16) * x->hidden, bytes = sizeof(int32_t) + width;
    uint32_t count = rows_from(a, from);
    char *message = malloc(bytes * count + 1);
    if (!message)
        abort();
    receive(x, "rows", call, from, message, bytes * count);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(&a->routes[first + i], message + i * bytes, sizeof(int32_t));
        memcpy((gb_bf16 *)a->codes + (size_t)(first + i) * x->hidden, message + i * bytes + sizeof(int32_t), width);
    }
    free(message);
}

static void misbehave(const struct gb_exchange *x, enum mistake mistake)
{
    if (mistake == DIES && x->rank == 2)
        abort();
    while (mistake == HANGS && x->rank == 1)
        pause();
}

static enum gb_status dispatch(const struct gb_arguments *a, enum mistake mistake)
{
    const struct gb_exchange *x = a->exchange;
    unsigned call = calls++;
    uint32_t row = 0;
    misbehave(x, mistake);
    gather_counts(a, call);
    for (uint32_t r = 0; r < x->ranks; r++)
        send_rows(a, call, r, mistake);
    for (uint32_t r = 0; r < x->ranks; r++) {
        uint32_t count = rows_from(a, r);
        take_rows(a, call, r, mistake == WRONG_OFFSET && x->rank == 0 && r == 1 ? row - 1 : row);
        row += count;
    }
    if (mistake == COUNTS && x->rank == 2)
        a->counts[0]++;
    if (mistake == OVERFLOW && x->rank == 1)
        ((gb_bf16 *)a->codes)[(size_t)row * x->hidden].bits = 1;
    return GB_OK;
}

static float of_bf16(gb_bf16 code)
{
    uint32_t bits = (uint32_t)code.bits << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* At the receiver: every row goes back to its token's rank. */
static enum gb_status combine(const struct gb_arguments *a, enum mistake mistake)
{
    const struct gb_exchange *x = a->exchange;
    unsigned call = calls++;
    size_t width = sizeof(gb_bf16) * x->hidden;
    gb_bf16 *rows = malloc(width * slots_of(x)); /* of the own slots */
    float *output = a->output;
    misbehave(x, mistake);
    if (!rows)
        return GB_ENOMEM;
    for (uint32_t row = 0; row < x->rows; row++) {
        char what[32];
        snprintf(what, sizeof what, "slot%u", (uint32_t)a->routes[row] % slots_of(x));
        send_to(x, what, call, (uint32_t)a->routes[row] / slots_of(x), (const char *)a->values + row * width, width);
    }
    for (uint32_t s = 0; s < slots_of(x); s++)
        if (a->ids[s] >= 0) {
            char what[32];
            snprintf(what, sizeof what, "slot%u", s);
            receive(x, what, call, (uint32_t)a->placement[a->ids[s]], rows + (size_t)s * x->hidden, width);
        }
    for (uint32_t t = 0; t < x->tokens; t++)
        for (uint32_t h = 0; h < x->hidden; h++) {
            float y = 0.0f;
            for (uint32_t s = t * x->top_k; s < (t + 1) * x->top_k; s++) {
                float w = a->ids[s] < 0 ? 0.0f : a->routing_weights[s];
                if (a->ids[s] < 0 || (mistake == LOST && x->rank == 1 && s == 3))
                    continue;
                y = fmaf(mistake == BOTH ? w * w : w, of_bf16(rows[(size_t)s * x->hidden + h]), y);
            }
            output[(size_t)t * x->hidden + h] = y;
        }
    free(rows);
    return GB_OK;
}

/* operator, name, mistake */
#define KERNELS(ROW)                                                                                                   \
    ROW(dispatch, right, RIGHT)                                                                                        \
    ROW(dispatch, lost, LOST)                                                                                          \
    ROW(dispatch, counts, COUNTS)                                                                                      \
    ROW(dispatch, dies, DIES)                                                                                          \
    ROW(dispatch, hangs, HANGS)                                                                                        \
    ROW(dispatch, offset, WRONG_OFFSET)                                                                                \
    ROW(dispatch, overflow, OVERFLOW)                                                                                  \
    ROW(combine, right, RIGHT)                                                                                         \
    ROW(combine, lost, LOST)                                                                                           \
    ROW(combine, both, BOTH)                                                                                           \
    ROW(combine, dies, DIES)

#define RUN(OPERATOR, NAME, MISTAKE)                                                                                   \
    static enum gb_status OPERATOR##_##NAME(const struct gb_arguments *a, struct gb_error *error)                      \
    {                                                                                                                  \
        (void)error;                                                                                                   \
        return OPERATOR(a, MISTAKE);                                                                                   \
    }
KERNELS(RUN)

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    const struct gb_exchange *x = problem->exchange;
    (void)error;
    return !x || !x->one_rank || x->quantiser.element || x->accumulation > GB_AT_RECEIVER ? GB_EUNSUPPORTED : GB_OK;
}

#define KERNEL(NAME, OPERATION, ORDER, RUN_ONE)                                                                        \
    {                                                                                                                  \
        .name = NAME, .operation = OPERATION, .activations = GB_BF16, .output = GB_FP32, .order = ORDER,               \
        .accumulator_bits = 24, .flags = GB_ONE_RANK, .supports = supports, .run = RUN_ONE                             \
    }
#define OPERATION_dispatch GB_DISPATCH, NULL
#define OPERATION_combine GB_COMBINE, GB_ORDER_SLOTS
#define ENTRY(OPERATOR, NAME, MISTAKE) ENTRY_OF(#OPERATOR "-" #NAME, OPERATION_##OPERATOR, OPERATOR##_##NAME)
#define ENTRY_OF(...) KERNEL(__VA_ARGS__),

GB_API const struct gb_kernel_table *gb_kernels(void);
const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel kernels[] = {KERNELS(ENTRY)};
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof(struct gb_kernel),
                                                 sizeof kernels / sizeof *kernels, kernels};
    return &table;
}
