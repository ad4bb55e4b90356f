/* SPDX-License-Identifier: Apache-2.0 */
/* A layer whose experts are spread over ranks, in one process or several: docs/numerics.md#layer-over-ranks. */
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/operators.h"
#include "reference/processes.h"

/* What the ranks send each other, those of all ranks one after the other. */
struct traffic {
    int32_t *counts; /* [ranks, experts] */
    int32_t *routes; /* [rows] */
    void *codes;     /* [rows, hidden], as dispatch writes them */
    void *scales;
    int32_t *ids;          /* [rows], the expert of each row */
    float *ones;           /* [rows] */
    float *outputs;        /* [rows, hidden], of the experts */
    void *values;          /* the same as combine reads them */
    gb_bf16 *intermediate; /* [rows, intermediate] */
};

static void traffic_free(struct traffic *t)
{
    void *const all[] = {t->counts, t->routes,  t->codes,  t->scales,      t->ids,
                         t->ones,   t->outputs, t->values, t->intermediate};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static enum gb_status traffic_new(const struct gb_arguments *a, const struct gb_exchange *x, struct traffic *t,
                                  struct gb_error *error)
{
    size_t rows = x->rows, values = rows * x->hidden;
    *t = (struct traffic){.counts = malloc(sizeof *t->counts * x->ranks * x->experts),
                          .routes = malloc(sizeof *t->routes * rows),
                          .codes = malloc(sizeof(gb_bf16) * values), /* the widest, as are the scales */
                          .scales = malloc(sizeof(float) * values),
                          .ids = malloc(sizeof *t->ids * rows),
                          .ones = malloc(sizeof *t->ones * rows),
                          .outputs = malloc(sizeof *t->outputs * values),
                          .values = malloc(sizeof(float) * values),
                          .intermediate = malloc(sizeof *t->intermediate * rows * a->shape.intermediate)};
    if (t->counts && t->routes && t->codes && t->scales && t->ids && t->ones && t->outputs && t->values &&
        t->intermediate)
        return GB_OK;
    return gb_fail(error, GB_ENOMEM, "no memory for %zu rows of %u values", rows, x->hidden);
}

/* The experts of one rank on the rows that it received, first .. first + count - 1. */
static enum gb_status run_rank(const struct gb_contract *contract, const struct gb_arguments *layer, uint32_t first,
                               uint32_t count, const struct traffic *t, struct gb_error *error)
{
    struct gb_arguments a = *layer;
    const struct gb_quantiser *rules = a.activation_rules;
    size_t codes = sizeof(gb_bf16) * a.shape.hidden, scales = 0; /* bytes of a row */
    enum gb_status status = rules ? gb_quantiser_bytes(rules, 1, a.shape.hidden, &codes, &scales, error) : GB_OK;
    a.shape.tokens = count;
    a.shape.top_k = 1;
    a.x = (const gb_bf16 *)((char *)t->codes + first * codes); /* not read where it was quantised */
    a.x_codes = rules ? (char *)t->codes + first * codes : NULL;
    a.x_scales = rules ? (char *)t->scales + first * scales : NULL;
    a.intermediate_codes = a.intermediate_scales = NULL;
    a.ids = t->ids + first;
    a.routing_weights = t->ones + first;
    a.intermediate = t->intermediate + (size_t)first * a.shape.intermediate;
    a.output = t->outputs + (size_t)first * a.shape.hidden;
    if (status == GB_OK)
        status = (rules ? gb_reference_gate_up_codes : gb_reference_gate_up)(contract, &a, error);
    return status == GB_OK ? gb_reference_down(contract, &a, error) : status;
}

/* Every rank's experts; counts and routes say which rows are whose. */
static enum gb_status run_ranks(const struct gb_contract *contract, const struct gb_arguments *a, struct traffic *t,
                                struct gb_error *error)
{
    const struct gb_exchange *x = a->exchange;
    enum gb_status status = GB_OK;
    uint32_t first = 0;
    for (uint32_t row = 0; row < x->rows; row++) {
        t->ids[row] = a->ids[t->routes[row]];
        t->ones[row] = 1.0f;
    }
    for (uint32_t rank = 0; status == GB_OK && rank < x->ranks; rank++) {
        uint32_t end = first;
        while (end < x->rows && a->placement[t->ids[end]] == (int32_t)rank)
            end++;
        if (end > first)
            status = run_rank(contract, a, first, end - first, t, error);
        first = end;
    }
    return status;
}

/* The arguments of dispatch and combine. */
static struct gb_arguments sent_arguments(const struct gb_arguments *a, const struct gb_exchange *x,
                                          const struct traffic *t)
{
    struct gb_arguments sent = *a;
    sent.exchange = x;
    sent.counts = t->counts;
    sent.routes = t->routes;
    sent.codes = t->codes;
    sent.scales = t->scales;
    sent.values = t->values;
    return sent;
}

/* Outputs of experts as rows. */
static void return_rows(const struct gb_exchange *x, struct traffic *t)
{
    for (size_t i = 0; i < (size_t)x->rows * x->hidden; i++)
        if (x->input == GB_FP32)
            ((float *)t->values)[i] = t->outputs[i];
        else
            ((gb_bf16 *)t->values)[i] = gb_bf16_encode(t->outputs[i]);
}

static enum gb_status exchange(const struct gb_contract *contract, const struct gb_arguments *a,
                               const struct gb_exchange *x, struct traffic *t, struct gb_error *error)
{
    const struct gb_arguments sent = sent_arguments(a, x, t);
    enum gb_status status = gb_reference_dispatch(&sent, error);
    if (status == GB_OK)
        status = run_ranks(contract, a, t, error);
    if (status != GB_OK)
        return status;
    return_rows(x, t);
    return gb_reference_combine(&sent, error);
}

/* What dispatch sends of a layer. */
static void set_payload(const struct gb_arguments *a, struct gb_exchange *x)
{
    x->quantiser = a->activation_rules ? *a->activation_rules : (struct gb_quantiser){0};
    x->global_scale = x->quantiser.global == GB_GLOBAL_DECODE || !a->activation_rules ? a->x_scale : 1.0f / a->x_scale;
}

enum gb_status gb_reference_layer_over_ranks(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                             struct gb_error *error)
{
    struct gb_arguments a = gb_arguments_known(arguments);
    enum gb_status status =
        a.exchange && a.exchange->size >= sizeof *a.exchange
            ? GB_OK
            : gb_fail(error, GB_EINVAL, "no struct gb_exchange of at least %zu bytes", sizeof *a.exchange);
    if (status == GB_OK)
        status = gb_arguments_check(contract, arguments, GB_LAYER, error);
    if (status != GB_OK)
        return status;
    struct gb_exchange x = *a.exchange;
    if ((uint64_t)x.ranks * x.tokens != a.shape.tokens || x.hidden != a.shape.hidden || x.experts != a.shape.experts ||
        x.top_k != a.shape.top_k)
        return gb_fail(error, GB_EINVAL, "%u ranks of %u tokens, hidden %u, %u experts, top_k %u are not the shape's",
                       x.ranks, x.tokens, x.hidden, x.experts, x.top_k);
    if (a.apply_router_weight_on_input)
        return gb_fail(error, GB_EINVAL, "over ranks, the routing weight multiplies the output");
    set_payload(&a, &x);
    a.exchange = &x;
    struct traffic t;
    status = traffic_new(&a, &x, &t, error);
    if (status == GB_OK)
        status = exchange(contract, &a, &x, &t, error);
    traffic_free(&t);
    return status;
}

/* The experts of the rows that this process's ranks received, numbered among its own. */
static void find_experts(const struct gb_processes *p, const struct gb_arguments *a, struct traffic *t)
{
    const struct gb_exchange *x = a->exchange;
    const int32_t first = (int32_t)gb_processes_first(x->ranks, p->count, p->process),
                  end = (int32_t)gb_processes_first(x->ranks, p->count, p->process + 1);
    size_t row = 0;
    for (int32_t receiver = first; receiver < end; receiver++)
        for (uint32_t sender = 0; sender < x->ranks; sender++)
            for (uint32_t e = 0, own = 0; e < x->experts; own += a->placement[e] >= first && a->placement[e] < end, e++)
                for (int32_t n = 0; a->placement[e] == receiver && n < t->counts[(size_t)sender * x->experts + e];
                     n++) {
                    t->ids[row] = (int32_t)own;
                    t->ones[row++] = 1.0f;
                }
}

/* Its experts on its rows. */
static enum gb_status run_process(const struct gb_processes *p, const struct gb_contract *contract,
                                  const struct gb_arguments *a, struct traffic *t, struct gb_error *error)
{
    struct gb_arguments own = *a;
    own.shape.experts = a->gate_up.experts;
    find_experts(p, a, t);
    return a->exchange->rows ? run_rank(contract, &own, 0, a->exchange->rows, t, error) : GB_OK;
}

enum gb_status gb_reference_layer_over_processes(const struct gb_processes *p, const struct gb_contract *contract,
                                                 const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_arguments a = gb_arguments_known(arguments);
    if (!a.exchange || a.exchange->size < sizeof *a.exchange || a.apply_router_weight_on_input || !contract)
        return gb_fail(error, GB_EINVAL, "no exchange, no contract, or a routing weight that multiplies the input");
    struct gb_exchange x = *a.exchange;
    struct traffic t;
    set_payload(&a, &x);
    a.exchange = &x;
    enum gb_status status = gb_processes_agree(p, traffic_new(&a, &x, &t, error), error);
    const struct gb_arguments sent = sent_arguments(&a, &x, &t);
    if (status == GB_OK) {
        status = gb_reference_dispatch_over_processes(p, &sent, error);
        if (status == GB_OK)
            status = run_process(p, contract, &a, &t, error);
        status = gb_processes_agree(p, status, error);
    }
    if (status == GB_OK) {
        return_rows(&x, &t);
        status = gb_reference_combine_over_processes(p, &sent, error);
    }
    traffic_free(&t);
    return status;
}
