/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/layer_task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/task_pieces.h"
#include "quant/quant.h"

/* A part's head. Process q is rank q, and has as many tokens as any other. */
struct part {
    enum task_kind kind;
    struct gb_exchange asked;      /* as one process is asked: rows are its own */
    struct gb_arguments arguments; /* its sizes and scales; every array is a piece */
    struct gb_quantiser rules;     /* of quantised activations; element 0: there are none */
    char order[32];
    uint32_t experts; /* of its own */
};

enum {
    PLACEMENT,
    IDS,
    ROUTING_WEIGHTS,
    GATE_UP_GLOBALS,
    DOWN_GLOBALS,
    GATE_UP_BIAS,
    DOWN_BIAS,
    GATE_UP_SCALES,
    DOWN_SCALES,
    X,
    GATE_UP_CODES,
    DOWN_CODES,
    PIECES
};

/* A layer's inputs for all ranks: with empty slots where tokens do not divide. */
struct spread {
    gb_bf16 *x;         /* [ranks * tokens, hidden] */
    int32_t *ids;       /* [ranks * tokens, top_k] */
    float *weights;     /* [ranks * tokens, top_k] */
    int32_t *placement; /* [experts] */
};

static void spread_free(struct spread *s)
{
    free(s->x);
    free(s->ids);
    free(s->weights);
    free(s->placement);
}

static bool spread_new(const struct gb_arguments *a, const struct gb_exchange *x, struct spread *s)
{
    const size_t tokens = (size_t)x->ranks * x->tokens, slots = (size_t)a->shape.tokens * x->top_k;
    *s = (struct spread){calloc(tokens * x->hidden, sizeof *s->x), malloc(tokens * x->top_k * sizeof *s->ids),
                         calloc(tokens * x->top_k, sizeof *s->weights), malloc(x->experts * sizeof *s->placement)};
    if (!s->x || !s->ids || !s->weights || !s->placement)
        return false;
    memset(s->ids, 0xFF, tokens * x->top_k * sizeof *s->ids); /* -1 */
    memcpy(s->x, a->x, (size_t)a->shape.tokens * x->hidden * sizeof *s->x);
    memcpy(s->ids, a->ids, slots * sizeof *s->ids);
    memcpy(s->weights, a->routing_weights, slots * sizeof *s->weights);
    for (uint32_t e = 0; e < x->experts; e++)
        s->placement[e] = (int32_t)(((uint64_t)(e + 1) * x->ranks - 1) / x->experts); /* blocks */
    return true;
}

/* How many bytes an expert has of codes, scales and global scales. */
static enum gb_status expert_bytes(const struct gb_weights *w, size_t bytes[3], struct gb_error *error)
{
    struct gb_weights one = *w;
    one.experts = 1;
    return gb_weights_bytes(&one, &bytes[0], &bytes[1], &bytes[2], error);
}

/* How much of each array a part has. */
static enum gb_status size_pieces(const struct part *p, struct piece pieces[PIECES], struct gb_error *error)
{
    const struct gb_exchange *x = &p->asked;
    const struct gb_arguments *a = &p->arguments;
    size_t gate_up[3], down[3];
    enum gb_status status = expert_bytes(&a->gate_up, gate_up, error);
    if (status == GB_OK)
        status = expert_bytes(&a->down, down, error);
    if (status != GB_OK)
        return status;
    pieces[PLACEMENT].bytes = x->experts * sizeof(int32_t);
    pieces[IDS].bytes = (size_t)x->tokens * x->top_k * sizeof(int32_t);
    pieces[ROUTING_WEIGHTS].bytes = (size_t)x->tokens * x->top_k * sizeof(float);
    pieces[X].bytes = (size_t)x->tokens * x->hidden * sizeof(gb_bf16);
    pieces[GATE_UP_BIAS].bytes = a->gate_up_bias ? (size_t)p->experts * a->gate_up.rows * sizeof(float) : 0;
    pieces[DOWN_BIAS].bytes = a->down_bias ? (size_t)p->experts * a->down.rows * sizeof(float) : 0;
    pieces[GATE_UP_CODES].bytes = p->experts * gate_up[0];
    pieces[GATE_UP_SCALES].bytes = p->experts * gate_up[1];
    pieces[GATE_UP_GLOBALS].bytes = p->experts * gate_up[2];
    pieces[DOWN_CODES].bytes = p->experts * down[0];
    pieces[DOWN_SCALES].bytes = p->experts * down[1];
    pieces[DOWN_GLOBALS].bytes = p->experts * down[2];
    return GB_OK;
}

static const void *behind(const void *array, size_t bytes)
{
    return array ? (const char *)array + bytes : NULL;
}

/* Where they are in those of the layer, from this rank's tokens and this expert on. */
static void find_pieces(const struct part *p, const struct spread *s, uint32_t rank, uint32_t expert,
                        struct piece pieces[PIECES])
{
    const struct gb_exchange *x = &p->asked;
    const struct gb_arguments *a = &p->arguments;
    const size_t token = (size_t)rank * x->tokens;
    const struct {
        int piece;
        const void *array;
    } of_experts[] = {{GATE_UP_CODES, a->gate_up.codes},
                      {GATE_UP_SCALES, a->gate_up.scales},
                      {GATE_UP_GLOBALS, a->gate_up.global_scales},
                      {DOWN_CODES, a->down.codes},
                      {DOWN_SCALES, a->down.scales},
                      {DOWN_GLOBALS, a->down.global_scales},
                      {GATE_UP_BIAS, a->gate_up_bias},
                      {DOWN_BIAS, a->down_bias}};
    pieces[PLACEMENT].values = s->placement;
    pieces[IDS].values = s->ids + token * x->top_k;
    pieces[ROUTING_WEIGHTS].values = s->weights + token * x->top_k;
    pieces[X].values = s->x + token * x->hidden;
    for (size_t i = 0; p->experts && i < sizeof of_experts / sizeof *of_experts; i++)
        pieces[of_experts[i].piece].values =
            behind(of_experts[i].array, pieces[of_experts[i].piece].bytes / p->experts * expert);
}

/* The parts of all processes. parts: [ranks] */
static enum gb_status pack_parts(const struct part *whole, const struct spread *s, struct gb_parcel *parts,
                                 struct gb_error *error)
{
    const struct gb_exchange *x = &whole->asked;
    enum gb_status status = GB_OK;
    uint32_t expert = 0;
    for (uint32_t rank = 0; status == GB_OK && rank < x->ranks; rank++) {
        struct part p = *whole;
        struct piece pieces[PIECES];
        p.asked.rows = p.experts = 0;
        for (uint32_t e = 0; e < x->experts; e++)
            p.experts += s->placement[e] == (int32_t)rank;
        for (size_t slot = 0; slot < (size_t)x->ranks * x->tokens * x->top_k; slot++)
            p.asked.rows += s->ids[slot] >= 0 && s->placement[s->ids[slot]] == (int32_t)rank;
        status = size_pieces(&p, pieces, error);
        if (status != GB_OK)
            break;
        find_pieces(&p, s, rank, expert, pieces);
        if (!task_pack(&p, sizeof p, pieces, PIECES, &parts[rank]))
            status = gb_fail(error, GB_ENOMEM, "no memory for the part of process %u", rank);
        expert += p.experts;
    }
    return status;
}

/* One layer by all processes. output: [tokens, hidden] */
static enum gb_status run_layer(const struct part *whole, unsigned timeout_s, float *output, bool *lost,
                                struct gb_error *error)
{
    const struct gb_exchange *x = &whole->asked;
    const uint32_t tokens = whole->arguments.shape.tokens;
    const size_t each = (size_t)x->tokens * x->hidden, all = (size_t)tokens * x->hidden;
    struct spread s;
    struct gb_parcel *parts = calloc(x->ranks, sizeof *parts), *results = calloc(x->ranks, sizeof *results);
    enum gb_status status = spread_new(&whole->arguments, x, &s) && parts && results
                                ? pack_parts(whole, &s, parts, error)
                                : gb_fail(error, GB_ENOMEM, "no memory for %u tokens on %u ranks", tokens, x->ranks);
    if (status == GB_OK)
        status = processes_task(parts, timeout_s, results, lost, error);
    for (uint32_t rank = 0; status == GB_OK && rank < x->ranks; rank++)
        if (rank * each < all)
            memcpy(output + rank * each, results[rank].bytes,
                   (all - rank * each < each ? all - rank * each : each) * sizeof *output);
    for (uint32_t rank = 0; parts && results && rank < x->ranks; rank++) {
        free(parts[rank].bytes);
        free(results[rank].bytes);
    }
    free(parts);
    free(results);
    spread_free(&s);
    return status;
}

enum gb_status layer_task(const struct gb_fixture *f, const struct gb_kernel *kernel, uint32_t tokens,
                          unsigned timeout_s, struct gb_outputs **outputs, bool *lost, struct gb_error *error)
{
    struct gb_shape shape = f->shape;
    shape.tokens = tokens;
    enum gb_status status = gb_outputs_new(&shape, f->layers, GB_FP32, false, false, outputs, error);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        struct part whole = {.kind = TASK_LAYER,
                             .asked = {.size = sizeof whole.asked,
                                       .ranks = processes.count,
                                       .tokens = (tokens + processes.count - 1) / processes.count,
                                       .hidden = shape.hidden,
                                       .experts = shape.experts,
                                       .top_k = shape.top_k,
                                       .input = GB_FP32, /* with which the result is the layer's in every bit */
                                       .accumulation = GB_AT_RECEIVER,
                                       .ranks_per_node = 1},
                             .arguments = gb_layer_arguments(f, l, tokens)};
        snprintf(whole.order, sizeof whole.order, "%s", kernel->order);
        gb_layer_activations(f, l, kernel->activations, &whole.arguments);
        if (whole.arguments.activation_rules)
            whole.rules = *whole.arguments.activation_rules;
        status = run_layer(&whole, timeout_s, (*outputs)->layer[l].output, lost, error);
    }
    return status;
}

/* A process's weights, where they are. */
static void put_weights(struct gb_weights *w, uint32_t experts, const struct piece *codes, const struct piece *scales,
                        const struct piece *globals)
{
    w->experts = experts;
    w->codes = codes->values;
    w->scales = scales->values;
    w->global_scales = globals->values;
}

enum gb_status layer_task_run(const struct gb_processes *all, const struct gb_parcel *parcel, struct gb_parcel *result,
                              struct gb_error *error)
{
    struct part p;
    struct piece pieces[PIECES];
    memcpy(&p, parcel->bytes, sizeof p);
    struct gb_arguments *a = &p.arguments;
    enum gb_status status = size_pieces(&p, pieces, error);
    if (status != GB_OK)
        return status;
    task_unpack(parcel, sizeof p, pieces, PIECES);
    put_weights(&a->gate_up, p.experts, &pieces[GATE_UP_CODES], &pieces[GATE_UP_SCALES], &pieces[GATE_UP_GLOBALS]);
    put_weights(&a->down, p.experts, &pieces[DOWN_CODES], &pieces[DOWN_SCALES], &pieces[DOWN_GLOBALS]);
    a->gate_up_bias = pieces[GATE_UP_BIAS].values;
    a->down_bias = pieces[DOWN_BIAS].values;
    a->x = pieces[X].values;
    a->ids = pieces[IDS].values;
    a->routing_weights = pieces[ROUTING_WEIGHTS].values;
    a->placement = pieces[PLACEMENT].values;
    a->exchange = &p.asked;
    a->activation_rules = p.rules.element ? &p.rules : NULL;
    a->shape.tokens = p.asked.tokens;
    *result = (struct gb_parcel){calloc((size_t)p.asked.tokens * p.asked.hidden, sizeof(float)),
                                 (size_t)p.asked.tokens * p.asked.hidden * sizeof(float)};
    if (!result->bytes)
        return gb_fail(error, GB_ENOMEM, "no memory for the outputs of %u tokens", p.asked.tokens);
    a->output = result->bytes;
    return gb_reference_layer_over_processes(all, gb_contract_of(a, GB_LAYER, p.order), a, error);
}
