/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/faults/rows.h"
#include "quant/quant.h"

static size_t pairs_of(const struct gb_shape *s)
{
    return (size_t)s->tokens * s->top_k;
}

void trace_free(struct trace *t)
{
    free(t->used);
    free(t->gate);
    free(t->up);
    free(t->intermediate);
    free(t->slots);
    free(t->output);
    free(t->x);
    free(t->ones);
    memset(t, 0, sizeof *t);
}

/* The reference's values of gate_up, and its down with each slot as a token of its own. */
static enum gb_status take_apart(struct trace *t, struct gb_error *error)
{
    struct gb_arguments a = t->arguments;
    size_t pairs = pairs_of(&a.shape), inner = pairs * a.shape.intermediate;
    float *product = malloc(inner * sizeof *product); /* [pairs, intermediate] */
    float *ones = malloc(pairs * sizeof *ones);       /* [pairs] */
    enum gb_status status = GB_OK;
    if (!product || !ones)
        status = gb_fail(error, GB_ENOMEM, "no memory to take a layer of %u tokens apart", a.shape.tokens);
    for (size_t i = 0; status == GB_OK && i < pairs; i++)
        ones[i] = 1.0f;
    a.intermediate = t->intermediate;
    if (status == GB_OK)
        status =
            gb_reference_gate_up_values(t->contract, &a, &(struct gb_gate_up_values){t->gate, t->up, product}, error);
    a.shape.tokens = (uint32_t)pairs;
    a.shape.top_k = 1;
    a.routing_weights = ones;
    a.output = t->slots;
    if (status == GB_OK)
        status = gb_reference_down(t->contract, &a, error);
    free(product);
    free(ones);
    return status;
}

static void combine(const struct gb_shape *s, const int32_t *ids, const float *weights, const float *slots,
                    float *output)
{
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t row = 0; row < s->hidden; row++) {
            float y = 0.0f;
            for (size_t pair = (size_t)t * s->top_k; pair < (size_t)(t + 1) * s->top_k; pair++)
                if (ids[pair] >= 0)
                    y = fmaf(weights[pair], slots[pair * s->hidden + row], y);
            output[(size_t)t * s->hidden + row] = y;
        }
}

/* The layer of the weighed input, with routing weights 1. */
static enum gb_status weigh(struct trace *t, struct gb_error *error)
{
    struct gb_arguments *a = &t->arguments;
    size_t hidden = a->shape.hidden, count = a->shape.tokens * hidden;
    t->x = malloc(count * sizeof *t->x);
    t->ones = malloc(pairs_of(&a->shape) * sizeof *t->ones);
    if (!t->x || !t->ones)
        return gb_fail(error, GB_ENOMEM, "no memory for the weighed input of %u tokens", a->shape.tokens);
    for (size_t i = 0; i < count; i++)
        t->x[i] = gb_weigh(a->routing_weights[i / hidden], a->x[i]);
    for (size_t i = 0; i < pairs_of(&a->shape); i++)
        t->ones[i] = 1.0f;
    a->x = t->x;
    a->routing_weights = t->ones;
    a->apply_router_weight_on_input = 0;
    return GB_OK;
}

enum gb_status trace_new(const struct gb_contract *contract, const struct gb_arguments *arguments, struct trace *t,
                         struct gb_error *error)
{
    const struct gb_shape *s = &arguments->shape;
    size_t pairs = pairs_of(s);
    *t = (struct trace){
        .contract = contract,
        .arguments = *arguments,
        .given = *arguments,
        .used = calloc(s->experts, sizeof *t->used),
        .gate = calloc(pairs * s->intermediate, sizeof *t->gate),
        .up = calloc(pairs * s->intermediate, sizeof *t->up),
        .intermediate = calloc(pairs * s->intermediate, sizeof *t->intermediate),
        .slots = calloc(pairs * s->hidden, sizeof *t->slots),
        .output = calloc((size_t)s->tokens * s->hidden, sizeof *t->output),
    };
    if (!t->used || !t->gate || !t->up || !t->intermediate || !t->slots || !t->output)
        return gb_fail(error, GB_ENOMEM, "no memory for the stages of %u tokens", s->tokens);
    for (size_t i = 0; i < pairs; i++)
        if (arguments->ids[i] >= 0)
            t->used[arguments->ids[i]] = true;
    enum gb_status status = arguments->apply_router_weight_on_input ? weigh(t, error) : GB_OK;
    if (status != GB_OK)
        return status;
    status = take_apart(t, error);
    if (status == GB_OK)
        combine(s, arguments->ids, t->arguments.routing_weights, t->slots, t->output);
    return status;
}

uint8_t *editable_codes(const struct editable *w, uint32_t expert, uint32_t row)
{
    return w->codes + ((size_t)expert * w->weights.rows + row) * w->row_code_bytes;
}

uint8_t *editable_scales(const struct editable *w, uint32_t expert, uint32_t row)
{
    return w->scales + ((size_t)expert * w->weights.rows + row) * w->row_scale_bytes;
}

/* The experts in use of an array [experts, ...]; NULL for an empty one. */
static void *copy_experts(const struct trace *t, const void *from, size_t bytes)
{
    size_t each = bytes / t->arguments.shape.experts;
    uint8_t *to = bytes ? malloc(bytes) : NULL;
    for (uint32_t e = 0; to && e < t->arguments.shape.experts; e++)
        if (t->used[e])
            memcpy(to + e * each, (const uint8_t *)from + e * each, each);
    return to;
}

static enum gb_status editable_new(const struct trace *t, const struct gb_weights *weights, struct editable *w,
                                   struct gb_error *error)
{
    size_t codes, scales, globals;
    enum gb_status status = gb_weights_bytes(weights, &codes, &scales, &globals, error);
    if (status != GB_OK)
        return status;
    w->weights = *weights;
    w->weights.codes = w->codes = copy_experts(t, weights->codes, codes);
    w->weights.scales = w->scales = copy_experts(t, weights->scales, scales);
    w->weights.global_scales = w->global_scales = copy_experts(t, weights->global_scales, globals);
    w->row_code_bytes = gb_row_code_bytes(weights->format, weights->columns);
    w->row_scale_bytes = weights->format == GB_FP8_BLOCK ? 0 : gb_row_scale_bytes(weights->format, weights->columns);
    if (!w->codes || (scales && !w->scales) || (globals && !w->global_scales))
        return gb_fail(error, GB_ENOMEM, "no memory for a copy of the weights of %u experts", weights->experts);
    return GB_OK;
}

static void editable_free(struct editable *w)
{
    free(w->codes);
    free(w->scales);
    free(w->global_scales);
}

static void *duplicate(const void *from, size_t bytes)
{
    void *copy = malloc(bytes);
    if (copy)
        memcpy(copy, from, bytes);
    return copy;
}

static const struct gb_quantiser *rules_of(const struct injected *p)
{
    return p->clean->arguments.activation_rules;
}

/* What the stage under the fault quantises. */
static enum gb_status coded_new(struct injected *p, struct gb_error *error)
{
    bool requant = p->fault->stage == STAGE_REQUANT;
    struct gb_arguments a = p->clean->arguments;
    struct coded *c = &p->coded;
    size_t codes, scales;
    *c = (struct coded){.rows = requant ? (uint32_t)pairs_of(&p->shape) : p->shape.tokens,
                        .columns = requant ? p->shape.intermediate : p->shape.hidden,
                        .d = requant ? a.intermediate_scale : a.x_scale};
    enum gb_status status = gb_quantiser_bytes(rules_of(p), c->rows, c->columns, &codes, &scales, error);
    if (status != GB_OK)
        return status;
    c->codes = malloc(codes);
    c->scales = malloc(scales);
    if (!c->codes || !c->scales)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu codes", codes);
    return gb_reference_quantise_activations(&a, requant ? GB_DOWN : GB_GATE_UP, requant ? p->intermediate : p->x,
                                             c->codes, c->scales, error);
}

static enum gb_status injected_new(const struct fault *fault, const struct trace *t, const bool *affected,
                                   struct injected *p, struct gb_error *error)
{
    const struct gb_arguments *a = &t->arguments;
    const struct gb_shape *s = &a->shape;
    size_t pairs = pairs_of(s), inner = pairs * s->intermediate, outer = (size_t)s->tokens * s->hidden;
    *p = (struct injected){
        .clean = t,
        .fault = fault,
        .affected = affected ? affected : t->used,
        .shape = *s,
        .ids = duplicate(a->ids, pairs * sizeof *p->ids),
        .routing_weights = duplicate(a->routing_weights, pairs * sizeof *p->routing_weights),
        .x = duplicate(a->x, outer * sizeof *p->x),
        .gate = duplicate(t->gate, inner * sizeof *p->gate),
        .up = duplicate(t->up, inner * sizeof *p->up),
        .intermediate = duplicate(t->intermediate, inner * sizeof *p->intermediate),
        .slots = duplicate(t->slots, pairs * s->hidden * sizeof *p->slots),
        .output = duplicate(t->output, outer * sizeof *p->output),
    };
    if (!p->ids || !p->routing_weights || !p->x || !p->gate || !p->up || !p->intermediate || !p->slots || !p->output)
        return gb_fail(error, GB_ENOMEM, "no memory to inject a bug into %u tokens", s->tokens);
    enum gb_status status = GB_OK;
    if (fault->stage == STAGE_GATE_UP || fault->stage == STAGE_WEIGHTS)
        status = editable_new(t, &a->gate_up, &p->gate_up, error);
    if (status == GB_OK && (fault->stage == STAGE_DOWN || fault->stage == STAGE_WEIGHTS))
        status = editable_new(t, &a->down, &p->down, error);
    if (status == GB_OK && (fault->stage == STAGE_ACT_QUANT || fault->stage == STAGE_REQUANT))
        status = coded_new(p, error);
    return status;
}

static void injected_free(struct injected *p)
{
    editable_free(&p->gate_up);
    editable_free(&p->down);
    free(p->coded.codes);
    free(p->coded.scales);
    free(p->ids);
    free(p->routing_weights);
    free(p->x);
    free(p->gate);
    free(p->up);
    free(p->intermediate);
    free(p->slots);
    free(p->output);
}

static void activate(struct injected *p)
{
    for (size_t i = 0; i < pairs_of(&p->shape) * p->shape.intermediate; i++)
        p->intermediate[i] = gb_bf16_encode(gb_gated(p->clean->arguments.activation, p->gate[i], p->up[i]));
}

double *injected_operand(struct injected *p, bool of_down)
{
    const enum gb_operator operation = of_down ? GB_DOWN : GB_GATE_UP;
    const struct gb_arguments *a = &p->clean->arguments;
    const gb_bf16 *from = of_down ? p->intermediate : p->x;
    size_t count = of_down ? pairs_of(&p->shape) * p->shape.intermediate : (size_t)p->shape.tokens * p->shape.hidden;
    double *values = malloc(count * sizeof *values);
    uint8_t *codes = malloc(count);
    float *scales = malloc(count * sizeof *scales);
    bool good = values && codes && scales;
    for (size_t i = 0; good && i < count; i++)
        values[i] = (double)gb_bf16_decode(from[i]);
    if (good && a->activation_rules)
        good = gb_reference_quantise_activations(a, operation, from, codes, scales, NULL) == GB_OK &&
               gb_reference_activation_values(a, operation, codes, scales, values, NULL) == GB_OK;
    free(codes);
    free(scales);
    if (!good) {
        p->no_memory = true;
        free(values);
        return NULL;
    }
    return values;
}

/* gate_up or down on what the fault left of the codes. */
static enum gb_status on_codes(const struct injected *p, struct gb_arguments a, struct gb_error *error)
{
    bool requant = p->fault->stage == STAGE_REQUANT;
    if (p->coded.plain)
        a.activation_rules = NULL;
    const struct gb_contract *contract =
        gb_contract_of(&a, requant ? GB_DOWN : GB_GATE_UP, gb_order_name(p->clean->contract->order));
    if (requant) {
        a.intermediate_codes = p->coded.codes;
        a.intermediate_scales = p->coded.scales;
        a.intermediate_scale = p->coded.d;
        return p->coded.plain ? gb_reference_down(contract, &a, error) : gb_reference_down_codes(contract, &a, error);
    }
    a.x_codes = p->coded.codes;
    a.x_scales = p->coded.scales;
    a.x_scale = p->coded.d;
    return p->coded.plain ? gb_reference_gate_up(contract, &a, error) : gb_reference_gate_up_codes(contract, &a, error);
}

/* What follows the stage that the fault entered at. */
static enum gb_status complete(struct injected *p, struct gb_error *error)
{
    const struct gb_contract *contract = p->clean->contract;
    struct gb_arguments a = p->clean->arguments;
    enum fault_stage stage = p->fault->stage;
    a.ids = p->ids;
    a.routing_weights = p->routing_weights;
    a.x = p->x;
    a.intermediate = p->intermediate;
    a.output = p->output;
    if (p->gate_up.codes)
        a.gate_up = p->gate_up.weights;
    if (p->down.codes)
        a.down = p->down.weights;
    if (p->clean->down_alone && stage == STAGE_INPUT)
        return gb_reference_down(contract, &a, error);
    if (stage == STAGE_INPUT || stage == STAGE_GATE_UP || stage == STAGE_WEIGHTS)
        return gb_reference_layer(contract, &a, error);
    if (stage == STAGE_ACT_QUANT || stage == STAGE_REQUANT) {
        enum gb_status status = on_codes(p, a, error);
        return status == GB_OK && stage == STAGE_ACT_QUANT ? gb_reference_down(contract, &a, error) : status;
    }
    if (stage == STAGE_PROJECTION)
        activate(p);
    if (stage <= STAGE_ACTIVATION)
        return gb_reference_down(contract, &a, error);
    if (stage == STAGE_SLOT)
        combine(&p->shape, p->ids, p->routing_weights, p->slots, p->output);
    return GB_OK;
}

enum gb_status fault_run(const struct fault *fault, const struct trace *clean, const bool *affected, float *output,
                         struct gb_error *error)
{
    return fault_run_stages(fault, clean, affected, output, NULL, error);
}

enum gb_status fault_run_stages(const struct fault *fault, const struct trace *clean, const bool *affected,
                                float *output, gb_bf16 *intermediate, struct gb_error *error)
{
    struct injected p;
    enum gb_status status = injected_new(fault, clean, affected, &p, error);
    if (status == GB_OK) {
        if (fault->plant)
            fault->plant(&p);
        if (p.gate_up.codes)
            fault->edit(&p, &p.gate_up);
        if (p.down.codes)
            fault->edit(&p, &p.down);
        status = p.no_memory ? gb_fail(error, GB_ENOMEM, "no memory for an injected bug") : complete(&p, error);
    }
    if (status == GB_OK)
        memcpy(output, p.output, sizeof *output * clean->arguments.shape.tokens * clean->arguments.shape.hidden);
    if (status == GB_OK && intermediate)
        memcpy(intermediate, p.intermediate, sizeof *intermediate * pairs_of(&p.shape) * p.shape.intermediate);
    injected_free(&p);
    return status;
}
