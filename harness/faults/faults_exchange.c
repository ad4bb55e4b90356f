/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes of kernels that send tokens to other ranks, and of those that bring rows back. */
#include "harness/faults/faults_exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/operators.h"
#include "quant/quant.h"

enum gb_status exchange_as(const struct gb_arguments *arguments, bool dispatch, enum gb_format format,
                           struct gb_outputs **outputs, struct gb_error *error)
{
    struct gb_arguments a = *arguments;
    enum gb_status status = dispatch ? gb_outputs_new_dispatch(a.exchange, outputs, error)
                                     : gb_outputs_new_combine(a.exchange, format, outputs, error);
    if (status != GB_OK)
        return status;
    a.counts = (*outputs)->counts;
    a.routes = (*outputs)->routes;
    a.codes = (*outputs)->codes;
    a.scales = (*outputs)->scales;
    a.output = (*outputs)->combined;
    status = dispatch ? gb_reference_dispatch(&a, error) : gb_reference_combine(&a, error);
    if (status != GB_OK) {
        gb_outputs_free(*outputs);
        *outputs = NULL;
    }
    return status;
}

enum gb_status exchange_reference(const struct gb_fixture *f, uint32_t tokens, struct gb_outputs **outputs,
                                  struct gb_error *error)
{
    struct gb_arguments a = gb_fixture_exchange_arguments(f);
    (void)tokens;
    return exchange_as(&a, a.x != NULL, GB_FP32, outputs, error);
}

/* Dispatch: what it wrote is spoiled. */

struct dispatched {
    const struct gb_fixture *fixture;
    const struct gb_exchange *asked;
    struct gb_outputs *outputs;
    size_t code_bytes, scale_bytes; /* of a row */
    char *row;                      /* room for one */
};

static struct dispatched dispatched_of(const struct gb_fixture *f, struct gb_outputs *o)
{
    const struct gb_exchange *x = &f->exchanged.asked;
    return (struct dispatched){f,
                               x,
                               o,
                               gb_exchange_array(x, GB_FP32, GB_EXCHANGE_CODES).bytes / x->rows,
                               gb_exchange_array(x, GB_FP32, GB_EXCHANGE_SCALES).bytes / x->rows,
                               NULL};
}

static int32_t receiver_of(const struct dispatched *d, uint32_t row)
{
    const struct gb_exchanged *e = &d->fixture->exchanged;
    return e->placement[e->ids[d->outputs->routes[row]]];
}

static uint32_t sender_of(const struct dispatched *d, uint32_t row)
{
    return (uint32_t)d->outputs->routes[row] / (d->asked->tokens * d->asked->top_k);
}

/* Row `to` becomes what row `from` is: its payload alone, or its route as well. */
static void copy_row(struct dispatched *d, uint32_t from, uint32_t to, bool route)
{
    char *codes = d->outputs->codes, *scales = d->outputs->scales;
    memmove(codes + to * d->code_bytes, codes + from * d->code_bytes, d->code_bytes);
    if (scales)
        memmove(scales + to * d->scale_bytes, scales + from * d->scale_bytes, d->scale_bytes);
    if (route)
        d->outputs->routes[to] = d->outputs->routes[from];
}

static void clear_row(struct dispatched *d, uint32_t row)
{
    memset((char *)d->outputs->codes + row * d->code_bytes, 0, d->code_bytes);
    if (d->outputs->scales)
        memset((char *)d->outputs->scales + row * d->scale_bytes, 0, d->scale_bytes);
}

static void swap_rows(struct dispatched *d, uint32_t a, uint32_t b)
{
    char *codes = d->outputs->codes, *scales = d->outputs->scales;
    int32_t route = d->outputs->routes[a];
    memcpy(d->row, codes + a * d->code_bytes, d->code_bytes);
    if (scales)
        memcpy(d->row + d->code_bytes, scales + a * d->scale_bytes, d->scale_bytes);
    copy_row(d, b, a, true);
    memcpy(codes + b * d->code_bytes, d->row, d->code_bytes);
    if (scales)
        memcpy(scales + b * d->scale_bytes, d->row + d->code_bytes, d->scale_bytes);
    d->outputs->routes[b] = route;
}

/* The first row behind `row` of which this holds; rows: there is none. */
static uint32_t next_row(const struct dispatched *d, uint32_t row, bool other_receiver, bool other_sender)
{
    uint32_t at = row + 1;
    while (at < d->asked->rows && ((receiver_of(d, at) != receiver_of(d, row)) != other_receiver ||
                                   (sender_of(d, at) != sender_of(d, row)) < other_sender))
        at++;
    return at;
}

static bool row_lost(struct dispatched *d)
{
    uint32_t last = d->asked->rows - 1, lost = d->asked->rows / 2;
    for (uint32_t row = lost; row < last && receiver_of(d, row + 1) == receiver_of(d, lost); row++)
        copy_row(d, row + 1, row, true);
    while (last > lost && receiver_of(d, last) != receiver_of(d, lost))
        last--;
    d->outputs->routes[last] = -1;
    clear_row(d, last);
    return true;
}

static bool row_twice(struct dispatched *d)
{
    uint32_t next = next_row(d, 0, false, false);
    if (next == d->asked->rows)
        return false;
    copy_row(d, 0, next, true);
    return true;
}

static bool misrouted(struct dispatched *d)
{
    uint32_t other = next_row(d, 0, true, false);
    bool possible = other < d->asked->rows;
    if (possible)
        swap_rows(d, 0, other);
    return possible;
}

/* A receiver's rows begin with those of the second sender. */
static bool senders_exchanged(struct dispatched *d)
{
    for (uint32_t row = 0; row < d->asked->rows; row++) {
        uint32_t other = next_row(d, row, false, true);
        if (other == d->asked->rows)
            continue;
        swap_rows(d, row, other);
        return true;
    }
    return false;
}

/* Every sender's rows at every receiver, last one first. */
static bool by_arrival(struct dispatched *d)
{
    bool changed = false;
    for (uint32_t first = 0, end; first < d->asked->rows; first = end) {
        for (end = first + 1; end < d->asked->rows && receiver_of(d, end) == receiver_of(d, first) &&
                              sender_of(d, end) == sender_of(d, first);)
            end++;
        for (uint32_t a = first, b = end - 1; a < b; a++, b--) {
            swap_rows(d, a, b);
            changed = true;
        }
    }
    return changed;
}

/* Whether the payloads of two rows are the same. */
static bool same_payload(const struct dispatched *d, uint32_t a, uint32_t b)
{
    const char *codes = d->outputs->codes, *scales = d->outputs->scales;
    return !memcmp(codes + a * d->code_bytes, codes + b * d->code_bytes, d->code_bytes) &&
           (!scales || !memcmp(scales + a * d->scale_bytes, scales + b * d->scale_bytes, d->scale_bytes));
}

static bool stale(struct dispatched *d)
{
    for (uint32_t row = 1; row < d->asked->rows; row++)
        if (!same_payload(d, row - 1, row)) {
            copy_row(d, row - 1, row, false);
            return true;
        }
    return false;
}

static bool late(struct dispatched *d)
{
    clear_row(d, d->asked->rows - 1);
    return true;
}

static bool own_not_counted(struct dispatched *d)
{
    bool changed = false;
    for (uint32_t rank = 0; rank < d->asked->ranks; rank++)
        for (uint32_t e = 0; e < d->asked->experts; e++)
            if (d->fixture->exchanged.placement[e] == (int32_t)rank) {
                int32_t *count = &d->outputs->counts[(size_t)rank * d->asked->experts + e];
                changed |= *count;
                *count = 0;
            }
    return changed;
}

static bool count_high(struct dispatched *d)
{
    d->outputs->counts[(size_t)d->asked->ranks * d->asked->experts - 1]++;
    return true;
}

static bool scales_of_next(struct dispatched *d)
{
    char *scales = d->outputs->scales;
    bool changed = false;
    for (uint32_t row = 0; scales && row + 1 < d->asked->rows; row++) {
        changed |= memcmp(scales + row * d->scale_bytes, scales + (row + 1) * d->scale_bytes, d->scale_bytes) != 0;
        memcpy(scales + row * d->scale_bytes, scales + (row + 1) * d->scale_bytes, d->scale_bytes);
    }
    return changed;
}

static const struct {
    const char *name;
    bool (*spoil)(struct dispatched *results);
    const char *modelled_on;
} dispatch_rows[] = {
    {"a token's row is lost", row_lost, "pplx-kernels: a sender reads its counts before they are written"},
    {"a row is sent twice, over its neighbour", row_twice, "a slot counter that is not advanced"},
    {"two rows go to each other's rank", misrouted, "the placement of another layer"},
    {"a row lies at another sender's offset", senders_exchanged, "prefix sum over the wrong axis of the counts"},
    {"rows lie in the order of their arrival", by_arrival, "pplx-kernels, intranode_dispatch.cu: slots by atomicAdd"},
    {"a row is that of the call before", stale, "DeepEP: a buffer of two is not switched"},
    {"the last row has not arrived", late, "a flag that is set before its data"},
    {"rows to the own rank are not counted", own_not_counted, "counts of remote rows alone"},
    {"a count is too high by one", count_high, "the empty slot -1 counts as an expert"},
    {"scales are those of the next row", scales_of_next, "scales and codes with slots of their own"},
};

static bool dispatch_fault(size_t index, struct operator_fault *fault)
{
    if (index >= sizeof dispatch_rows / sizeof *dispatch_rows)
        return false;
    *fault = (struct operator_fault){dispatch_rows[index].name, dispatch_rows[index].modelled_on, true};
    return true;
}

static enum gb_status run_dispatch(int64_t index, const struct gb_contract *contract, const struct gb_fixture *f,
                                   struct gb_outputs **outputs, struct gb_error *error)
{
    (void)contract;
    enum gb_status status = exchange_reference(f, f->shape.tokens, outputs, error);
    if (status != GB_OK || index < 0)
        return status;
    struct dispatched d = dispatched_of(f, *outputs);
    d.row = malloc(d.code_bytes + d.scale_bytes);
    if (!d.row)
        status = gb_fail(error, GB_ENOMEM, "no memory for an injected bug");
    if (!d.row || !dispatch_rows[index].spoil(&d)) {
        gb_outputs_free(*outputs);
        *outputs = NULL;
    }
    free(d.row);
    return status;
}

const struct operator_faults operator_faults_dispatch = {
    .operation = GB_DISPATCH,
    .list = "injected_bugs",
    .at = dispatch_fault,
    .run = run_dispatch,
};

/* Combine: its inputs are changed, or what it does with them. */

static size_t slot_of(const struct combining *c)
{
    return (size_t)c->token * c->asked.top_k + c->slot;
}

/* The row of the slot. */
static gb_bf16 *row_of(const struct combining *c)
{
    uint32_t row = 0;
    while (c->routes[row] != (int32_t)slot_of(c))
        row++;
    return c->rows + (size_t)row * c->asked.hidden;
}

static bool slot_lost(struct combining *c)
{
    c->routing_weights[slot_of(c)] = 0.0f;
    return true;
}

static bool slot_twice(struct combining *c)
{
    c->routing_weights[slot_of(c)] *= 2.0f;
    return true;
}

static bool slot_weighed_twice(struct combining *c)
{
    c->routing_weights[slot_of(c)] *= c->routing_weights[slot_of(c)];
    return true;
}

static bool slot_late(struct combining *c)
{
    memset(row_of(c), 0, sizeof(gb_bf16) * c->asked.hidden);
    return true;
}

/* The row beside it in the buffer: of a wrong offset, of a token misrouted, of the call before. */
static bool slot_of_other(struct combining *c, int32_t step)
{
    int64_t row = (row_of(c) - c->rows) / c->asked.hidden, other = row + step;
    if (other < 0 || other >= (int64_t)c->asked.rows)
        return false;
    memcpy(row_of(c), c->rows + (size_t)other * c->asked.hidden, sizeof(gb_bf16) * c->asked.hidden);
    return true;
}

static bool slot_of_next(struct combining *c)
{
    return slot_of_other(c, 1);
}

static bool slot_of_previous(struct combining *c)
{
    return slot_of_other(c, -1);
}

/* Rows as if every receiver's began one further on. */
static bool offset_wrong(struct combining *c)
{
    const size_t row = c->asked.hidden, last = row * (c->asked.rows - 1);
    for (size_t column = 0; column < row; column++) {
        const gb_bf16 first = c->rows[column];
        for (size_t at = column; at < last; at += row)
            c->rows[at] = c->rows[at + row];
        c->rows[last + column] = first;
    }
    return c->asked.rows > 1;
}

static size_t slots(const struct combining *c)
{
    return (size_t)c->asked.ranks * c->asked.tokens * c->asked.top_k;
}

static bool both_sides(struct combining *c)
{
    for (size_t s = 0; s < slots(c); s++)
        c->routing_weights[s] *= c->routing_weights[s];
    return true;
}

static bool no_side(struct combining *c)
{
    for (size_t s = 0; s < slots(c); s++)
        c->routing_weights[s] = 1.0f;
    return true;
}

static bool accumulated(struct combining *c, enum gb_accumulation accumulation, uint32_t ranks_per_node)
{
    bool same = c->given->accumulation == accumulation &&
                (accumulation != GB_AT_SENDER_NODE || c->given->ranks_per_node == ranks_per_node);
    c->asked.accumulation = accumulation;
    c->asked.ranks_per_node = ranks_per_node;
    return !same;
}

static bool at_receiver(struct combining *c)
{
    return accumulated(c, GB_AT_RECEIVER, 1);
}

static bool at_sender(struct combining *c)
{
    return accumulated(c, GB_AT_SENDER, 1);
}

static bool at_nodes_of_two(struct combining *c)
{
    return c->asked.ranks > 2 && accumulated(c, GB_AT_SENDER_NODE, 2);
}

static bool at_nodes_of_four(struct combining *c)
{
    return c->asked.ranks > 4 && accumulated(c, GB_AT_SENDER_NODE, 4);
}

static bool at_nodes_of_eight(struct combining *c)
{
    return c->asked.ranks > 8 && accumulated(c, GB_AT_SENDER_NODE, 8);
}

static bool weights_in_bf16(struct combining *c)
{
    bool changed = false;
    for (size_t s = 0; s < slots(c); s++) {
        float rounded = gb_bf16_decode(gb_bf16_encode(c->routing_weights[s]));
        changed |= rounded != c->routing_weights[s];
        c->routing_weights[s] = rounded;
    }
    return changed;
}

static const struct combine_fault combine_rows[] = {
    {"the row is lost", slot_lost, OF_SLOT, "pplx-kernels: a count of the receiver is one short"},
    {"the row is added twice", slot_twice, OF_SLOT, "a barrier that lets one warp in twice"},
    {"the weight is applied on both sides", slot_weighed_twice, OF_SLOT, "a fused epilogue that has the weight"},
    {"the row has not arrived", slot_late, OF_SLOT, "a flag that is set before its data"},
    {"the row is the next one of the buffer", slot_of_next, OF_BUFFER, "an offset of another rank, a row misrouted"},
    {"the row is the one before it in the buffer", slot_of_previous, OF_BUFFER,
     "DeepEP: a buffer that is not switched"},
    {"rows of all ranks lie one further on", offset_wrong, OF_ALL, "an exclusive prefix sum for an inclusive one"},
    {"weights are applied on both sides", both_sides, OF_ALL,
     "DeepEP normal combine: its rows are to be weighted before, low-latency rows are not"},
    {"weights are applied on neither side", no_side, OF_ALL, "the same, the other way round"},
    {"weights are rounded to bf16", weights_in_bf16, OF_ALL, "weights travel in the rows' format"},
    {"rows are added up at the receiver", at_receiver, OF_ALL, "DeepEP low-latency for normal"},
    {"rows are added up at the sender", at_sender, OF_ALL, "DeepEP normal for low-latency"},
    {"rows are added up at nodes of two ranks", at_nodes_of_two, OF_ALL, "DeepEP normal between nodes"},
    {"rows are added up at nodes of four ranks", at_nodes_of_four, OF_ALL, "DeepEP normal between nodes"},
    {"rows are added up at nodes of eight ranks", at_nodes_of_eight, OF_ALL, "DeepEP normal between nodes"},
};

const struct combine_fault *combine_faults(size_t *count)
{
    *count = sizeof combine_rows / sizeof *combine_rows;
    return combine_rows;
}

/* Copies of all that a bug may change, for given arguments. False: no memory. */
static bool combining_new(const struct gb_arguments *a, struct combining *c)
{
    const struct gb_exchange *x = a->exchange;
    c->given = x;
    c->asked = *x;
    c->ids = malloc(slots(c) * sizeof *c->ids);
    c->routing_weights = malloc(slots(c) * sizeof *c->routing_weights);
    c->placement = malloc(sizeof *c->placement * x->experts);
    c->rows = malloc(sizeof *c->rows * x->rows * x->hidden);
    if (!c->ids || !c->routing_weights || !c->placement || !c->rows)
        return false;
    memcpy(c->ids, a->ids, slots(c) * sizeof *c->ids);
    memcpy(c->routing_weights, a->routing_weights, slots(c) * sizeof *c->routing_weights);
    memcpy(c->placement, a->placement, sizeof *c->placement * x->experts);
    memcpy(c->rows, a->values, sizeof *c->rows * x->rows * x->hidden);
    return true;
}

static void combining_free(struct combining *c)
{
    free(c->ids);
    free(c->routing_weights);
    free(c->placement);
    free(c->rows);
}

enum gb_status combine_fault_run(const struct combine_fault *fault, const struct gb_arguments *arguments,
                                 uint32_t token, uint32_t slot, struct gb_outputs **outputs, struct gb_error *error)
{
    struct combining c = {.token = token, .slot = slot};
    struct gb_arguments a = *arguments;
    int32_t *routes = malloc(sizeof *routes * a.exchange->rows);
    enum gb_status status =
        combining_new(&a, &c) && routes ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for an injected bug");
    *outputs = NULL;
    if (status == GB_OK)
        status = gb_reference_routes(&a, routes, error);
    c.routes = routes;
    if (status == GB_OK && fault->plant(&c)) {
        a.exchange = &c.asked;
        a.ids = c.ids;
        a.routing_weights = c.routing_weights;
        a.placement = c.placement;
        a.values = c.rows;
        status = exchange_as(&a, false, GB_FP32, outputs, error);
    }
    if (*outputs)
        (*outputs)->exchange = *arguments->exchange; /* as they are taken for */
    free(routes);
    combining_free(&c);
    return status;
}

static bool combine_fault_at(size_t index, struct operator_fault *fault)
{
    if (index >= sizeof combine_rows / sizeof *combine_rows)
        return false;
    *fault = (struct operator_fault){combine_rows[index].name, combine_rows[index].modelled_on, true};
    return true;
}

/* The last slot that has an expert. */
static size_t last_slot(const struct gb_fixture *f)
{
    size_t s = (size_t)f->shape.tokens * f->shape.top_k - 1;
    while (f->exchanged.ids[s] < 0)
        s--;
    return s;
}

static enum gb_status run_combine(int64_t index, const struct gb_contract *contract, const struct gb_fixture *f,
                                  struct gb_outputs **outputs, struct gb_error *error)
{
    struct gb_arguments a = gb_fixture_exchange_arguments(f);
    size_t slot = last_slot(f);
    (void)contract;
    return index < 0 ? exchange_reference(f, f->shape.tokens, outputs, error)
                     : combine_fault_run(&combine_rows[index], &a, (uint32_t)(slot / f->shape.top_k),
                                         (uint32_t)(slot % f->shape.top_k), outputs, error);
}

const struct operator_faults operator_faults_combine = {
    .operation = GB_COMBINE,
    .list = "injected_bugs",
    .at = combine_fault_at,
    .run = run_combine,
};
