/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/environment.h"
#include "harness/run/session.h"
#include "quant/quant.h"

bool session_routes(const struct gb_kernel *kernel)
{
    return kernel->operation == GB_ROUTE || kernel->flags & GB_ROUTES;
}

bool session_writes_intermediate(const struct gb_kernel *kernel)
{
    return kernel->operation == GB_GATE_UP || (kernel->operation == GB_LAYER && (kernel->flags & GB_STAGE_OUTPUTS));
}

bool session_writes_output(const struct gb_kernel *kernel)
{
    return kernel->operation == GB_LAYER || kernel->operation == GB_DOWN;
}

bool session_writes_activations(const struct gb_kernel *kernel, enum gb_activation_part part)
{
    bool of_x = part == GB_X_CODES || part == GB_X_SCALES;
    return kernel->activations != GB_BF16 && kernel->flags & GB_STAGE_OUTPUTS &&
           (kernel->operation == GB_LAYER || kernel->operation == (of_x ? GB_GATE_UP : GB_DOWN));
}

struct gb_problem session_problem(const struct gb_kernel *kernel, const struct gb_fixture *fixture, uint32_t tokens)
{
    struct gb_problem problem = gb_fixture_problem(fixture, tokens);
    if (kernel->activations == GB_BF16)
        problem.activation_rules = NULL;
    if (kernel->flags & GB_ROUTES)
        problem.router = gb_fixture_router(fixture);
    if (kernel->operation != GB_ROUTE)
        return problem;
    struct gb_problem route = {
        .size = sizeof route, .shape = problem.shape, .weights = GB_BF16, .router = gb_fixture_router(fixture)};
    return route;
}

/* One expert's part of an array of weights. */
static enum gb_status put_expert(struct session *s, int slot, uint32_t e, struct gb_error *error)
{
    size_t each = s->weights[slot].bytes / s->fixture->shape.experts;
    return guarded_put(&s->weights[slot], s->moved[e] * each, s->originals[slot] + e * each, each, error);
}

/* One array of weights, [experts, ...]. Of a generated fixture only the experts in use exist and are copied. */
static enum gb_status put(struct session *s, int slot, const void *content, size_t bytes, struct gb_error *error)
{
    s->originals[slot] = content;
    enum gb_status status = guarded_new(s->memory, bytes, &s->weights[slot], error);
    if (!s->fixture->generated)
        return status == GB_OK ? guarded_put(&s->weights[slot], 0, content, bytes, error) : status;
    for (uint32_t e = 0; status == GB_OK && e < s->fixture->shape.experts; e++)
        if (s->used[e])
            status = put_expert(s, slot, e, error);
    return status;
}

static enum gb_status put_weights(struct session *s, int first, struct gb_weights *weights, struct gb_error *error)
{
    size_t codes, scales, global_scales;
    enum gb_status status = gb_weights_bytes(weights, &codes, &scales, &global_scales, error);
    if (status == GB_OK)
        status = put(s, first, weights->codes, codes, error);
    if (status == GB_OK)
        status = put(s, first + 1, weights->scales, scales, error);
    if (status == GB_OK)
        status = put(s, first + 2, weights->global_scales, global_scales, error);
    weights->codes = s->weights[first].payload;
    weights->scales = s->weights[first + 1].payload;
    weights->global_scales = s->weights[first + 2].payload;
    return status;
}

static enum gb_status put_biases(struct session *s, struct gb_error *error)
{
    struct gb_arguments *a = &s->arguments;
    const struct gb_shape *shape = &s->fixture->shape;
    size_t row = sizeof(float) * shape->experts;
    enum gb_status status = GB_OK;
    if (s->kernel->operation == GB_DOWN)
        a->gate_up_bias = NULL;
    if (s->kernel->operation == GB_GATE_UP)
        a->down_bias = NULL;
    if (a->gate_up_bias)
        status = put(s, 6, a->gate_up_bias, 2 * shape->intermediate * row, error);
    if (status == GB_OK && a->down_bias)
        status = put(s, 7, a->down_bias, shape->hidden * row, error);
    a->gate_up_bias = s->weights[6].payload;
    a->down_bias = s->weights[7].payload;
    return status;
}

/* The router's weights and bias, which exist for every expert. */
static enum gb_status put_router(struct session *s, struct gb_error *error)
{
    const struct gb_layer *l = &s->fixture->layer[s->layer];
    struct gb_arguments from = gb_route_arguments(s->fixture, s->layer, s->fixture->shape.tokens);
    size_t codes, none;
    if (!l->router.codes)
        return gb_fail(error, GB_EUNSUPPORTED, "layer %u of the fixture has no router", s->layer);
    enum gb_status status = gb_weights_bytes(&l->router, &codes, &none, &none, error);
    if (status == GB_OK)
        status = guarded_from(s->memory, l->router.codes, codes, &s->router, error);
    if (status == GB_OK && l->router_bias)
        status =
            guarded_from(s->memory, l->router_bias, sizeof(float) * s->fixture->shape.experts, &s->router_bias, error);
    s->arguments.router = from.router;
    s->arguments.router_weights = from.router_weights;
    s->arguments.router_weights.codes = s->router.payload;
    s->arguments.router_bias = s->router_bias.payload;
    return status;
}

static void release(struct session *s)
{
    if (s->prepared && s->kernel->release)
        s->kernel->release(s->prepared);
    s->prepared = NULL;
    s->environment |= environment_reset();
}

static enum gb_status prepare(struct session *s, struct gb_error *error)
{
    release(s);
    enum gb_status status = s->kernel->prepare ? s->kernel->prepare(&s->arguments, &s->prepared, error) : GB_OK;
    s->environment |= environment_reset();
    s->arguments.prepared = s->prepared;
    return status;
}

enum gb_status session_admit(struct session *s, uint32_t expert, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    s->used[expert] = true;
    for (int slot = 0; status == GB_OK && slot < SESSION_WEIGHTS; slot++)
        if (s->weights[slot].bytes)
            status = put_expert(s, slot, expert, error);
    return status == GB_OK ? prepare(s, error) : status;
}

static void stay(struct session *s)
{
    for (uint32_t e = 0; e < s->fixture->shape.experts; e++)
        s->moved[e] = e;
}

enum gb_status session_move(struct session *s, bool away, struct gb_error *error)
{
    uint32_t experts = s->fixture->shape.experts, next = experts;
    enum gb_status status = GB_OK;
    if (session_routes(s->kernel))
        return GB_OK;
    for (uint32_t e = 0; e < experts && next == experts; e++)
        next = s->used[e] ? e : experts;
    for (uint32_t e = experts; away && e-- > 0;)
        if (s->used[e]) {
            s->moved[e] = next;
            next = e;
        }
    if (!away)
        stay(s);
    for (int slot = 0; slot < SESSION_WEIGHTS; slot++)
        for (uint32_t e = 0; status == GB_OK && s->weights[slot].bytes && e < experts; e++)
            if (s->used[e])
                status = put_expert(s, slot, e, error);
    return status == GB_OK ? prepare(s, error) : status;
}

enum gb_status session_open(const struct gb_kernel *kernel, const struct gb_device *memory,
                            const struct gb_fixture *fixture, uint32_t layer, struct session *s, struct gb_error *error)
{
    *s = (struct session){.kernel = kernel, .memory = memory, .fixture = fixture, .layer = layer};
    s->arguments = gb_layer_arguments(fixture, layer, fixture->shape.tokens);
    gb_layer_activations(fixture, layer, kernel->activations, &s->arguments);
    s->used = calloc(fixture->shape.experts, sizeof *s->used);
    s->moved = calloc(fixture->shape.experts, sizeof *s->moved);
    if (!s->used || !s->moved)
        return gb_fail(error, GB_ENOMEM, "no memory for %u experts", fixture->shape.experts);
    stay(s);
    if (fixture->generated)
        gb_layer_mark_touched(fixture, layer, s->used);
    else
        memset(s->used, true, sizeof *s->used * fixture->shape.experts);
    enum gb_status status = GB_OK;
    if (kernel->operation == GB_DOWN || kernel->operation == GB_ROUTE)
        s->arguments.gate_up = (struct gb_weights){0};
    else
        status = put_weights(s, 0, &s->arguments.gate_up, error);
    if (kernel->operation == GB_GATE_UP || kernel->operation == GB_ROUTE)
        s->arguments.down = (struct gb_weights){0};
    else if (status == GB_OK)
        status = put_weights(s, 3, &s->arguments.down, error);
    if (kernel->operation == GB_ROUTE) {
        s->arguments.gate_up_bias = s->arguments.down_bias = NULL;
        s->arguments.activation = GB_SILU;
    } else if (status == GB_OK) {
        status = put_biases(s, error);
    }
    if (status == GB_OK && session_routes(kernel))
        status = put_router(s, error);
    s->arguments.x = NULL;
    s->arguments.ids = NULL;
    s->arguments.routing_weights = NULL;
    return status == GB_OK ? prepare(s, error) : status;
}

/* Remembers what was seen first. */
static void note(struct worker_checks *checks, bool *what, const char *where, const char *name, uint32_t layer)
{
    if (!checks->canary_broken && !checks->input_changed)
        snprintf(checks->where, sizeof checks->where, "%s%s of layer %u", where, name, layer);
    *what = true;
}

/* Looks for a broken canary and, where `content` is given, a changed input. */
static enum gb_status inspect(const struct guarded *buffer, const void *content, const char *name, uint32_t layer,
                              struct worker_checks *checks, struct gb_error *error)
{
    bool good;
    enum gb_status status = guarded_intact(buffer, &good, error);
    if (status == GB_OK && !good)
        note(checks, &checks->canary_broken, "beside ", name, layer);
    if (status == GB_OK && content) {
        status = guarded_equals(buffer, 0, content, buffer->bytes, &good, error);
        if (status == GB_OK && !good)
            note(checks, &checks->input_changed, "", name, layer);
    }
    return status;
}

/* The same for an array of weights, [experts, ...]. */
static enum gb_status inspect_weights(const struct session *s, int slot, const char *name, struct worker_checks *checks,
                                      struct gb_error *error)
{
    size_t each = s->weights[slot].bytes / s->fixture->shape.experts;
    enum gb_status status = inspect(&s->weights[slot], NULL, name, s->layer, checks, error);
    for (uint32_t e = 0; status == GB_OK && each && e < s->fixture->shape.experts; e++) {
        bool equal = true;
        if (s->used[e])
            status = guarded_equals(&s->weights[slot], e * each, s->originals[slot] + e * each, each, &equal, error);
        if (status == GB_OK && !equal)
            note(checks, &checks->input_changed, "", name, s->layer);
    }
    return status;
}

enum gb_status session_close(struct session *s, struct worker_checks *checks, struct worker_checks *routing,
                             struct gb_error *error)
{
    static const char *const names[SESSION_WEIGHTS] = {"gate_up codes", "gate_up scales", "gate_up global scales",
                                                       "down codes",    "down scales",    "down global scales",
                                                       "gate_up bias",  "down bias"};
    enum gb_status status = GB_OK;
    release(s);
    for (int i = 0; i < SESSION_WEIGHTS; i++) {
        if (status == GB_OK)
            status = inspect_weights(s, i, names[i], checks, error);
        guarded_free(&s->weights[i]);
    }
    if (status == GB_OK && s->router.bytes)
        status =
            inspect(&s->router, s->fixture->layer[s->layer].router.codes, "router weights", s->layer, routing, error);
    if (status == GB_OK && s->router_bias.bytes)
        status =
            inspect(&s->router_bias, s->fixture->layer[s->layer].router_bias, "router bias", s->layer, routing, error);
    guarded_free(&s->router);
    guarded_free(&s->router_bias);
    free(s->used);
    free(s->moved);
    return status;
}

/* Buffers of one run. */
struct run {
    struct guarded x, ids, routing_weights, intermediate, output, routed_ids, routed_weights, workspace;
    struct guarded activations[GB_ACTIVATION_PARTS];
};

/* Bytes of codes or scales of activations; 0 if the kernel does not write them. */
static size_t activation_bytes(const struct session *s, uint32_t tokens, enum gb_activation_part part)
{
    if (!session_writes_activations(s->kernel, part))
        return 0;
    struct gb_activation_array a = gb_activation_array(s->arguments.activation_rules, &s->fixture->shape, part);
    return (size_t)tokens * a.slots * a.width * a.bytes;
}

static size_t workspace_bytes(struct session *s, const struct gb_problem *problem)
{
    size_t bytes = s->kernel->workspace(problem);
    s->environment |= environment_reset();
    return bytes;
}

static enum gb_status run_new(struct session *s, const struct session_io *io, uint8_t poison, struct run *r,
                              struct gb_error *error)
{
    const struct gb_kernel *k = s->kernel;
    const struct gb_shape *shape = &s->fixture->shape;
    struct gb_problem problem = session_problem(k, s->fixture, io->tokens);
    bool routes = session_routes(k);
    size_t tokens = io->tokens, pairs = tokens * shape->top_k;
    size_t inner = pairs * shape->intermediate * sizeof(gb_bf16);
    size_t output = tokens * shape->hidden * (k->output == GB_FP32 ? sizeof(float) : sizeof(gb_bf16));
    memset(r, 0, sizeof *r);
    enum gb_status status = GB_OK;
    if (!routes)
        status = guarded_from(s->memory, io->ids, pairs * sizeof(int32_t), &r->ids, error);
    if (status == GB_OK && k->operation != GB_DOWN)
        status = guarded_from(s->memory, io->x, tokens * shape->hidden * sizeof(gb_bf16), &r->x, error);
    if (status == GB_OK && !routes && (session_writes_output(k) || s->arguments.apply_router_weight_on_input))
        status = guarded_from(s->memory, io->routing_weights, pairs * sizeof(float), &r->routing_weights, error);
    if (status == GB_OK && k->operation == GB_DOWN)
        status = guarded_from(s->memory, io->intermediate_in, inner, &r->intermediate, error);
    if (status == GB_OK && session_writes_intermediate(k))
        status = guarded_new(s->memory, inner, &r->intermediate, error);
    if (status == GB_OK && session_writes_output(k))
        status = guarded_new(s->memory, output, &r->output, error);
    if (status == GB_OK && routes)
        status = guarded_new(s->memory, pairs * sizeof(int32_t), &r->routed_ids, error);
    if (status == GB_OK && routes)
        status = guarded_new(s->memory, pairs * sizeof(float), &r->routed_weights, error);
    if (status == GB_OK && k->workspace)
        status = guarded_new(s->memory, workspace_bytes(s, &problem), &r->workspace, error);
    if (status == GB_OK && session_writes_intermediate(k))
        status = guarded_poison(&r->intermediate, poison, error);
    if (status == GB_OK)
        status = guarded_poison(&r->output, poison, error);
    if (status == GB_OK)
        status = guarded_poison(&r->routed_ids, poison, error);
    if (status == GB_OK)
        status = guarded_poison(&r->routed_weights, poison, error);
    if (status == GB_OK)
        status = guarded_poison(&r->workspace, poison, error);
    for (int p = 0; status == GB_OK && p < GB_ACTIVATION_PARTS; p++) {
        size_t bytes = activation_bytes(s, io->tokens, (enum gb_activation_part)p);
        if (bytes)
            status = guarded_new(s->memory, bytes, &r->activations[p], error);
        if (status == GB_OK)
            status = guarded_poison(&r->activations[p], poison, error);
    }
    return status;
}

static void run_free(struct run *r)
{
    guarded_free(&r->x);
    guarded_free(&r->ids);
    guarded_free(&r->routing_weights);
    guarded_free(&r->intermediate);
    guarded_free(&r->output);
    guarded_free(&r->routed_ids);
    guarded_free(&r->routed_weights);
    guarded_free(&r->workspace);
    for (int p = 0; p < GB_ACTIVATION_PARTS; p++)
        guarded_free(&r->activations[p]);
}

static enum gb_status run_inspect(const struct session *s, const struct session_io *io, const struct run *r,
                                  struct worker_checks *checks, struct worker_checks *routing, struct gb_error *error)
{
    const void *intermediate = s->kernel->operation == GB_DOWN ? io->intermediate_in : NULL;
    enum gb_status status = inspect(&r->x, io->x, "x", s->layer, checks, error);
    if (status == GB_OK)
        status = inspect(&r->ids, io->ids, "ids", s->layer, checks, error);
    if (status == GB_OK)
        status = inspect(&r->routing_weights, io->routing_weights, "routing weights", s->layer, checks, error);
    if (status == GB_OK)
        status = inspect(&r->intermediate, intermediate, "intermediate", s->layer, checks, error);
    if (status == GB_OK)
        status = inspect(&r->output, NULL, "output", s->layer, checks, error);
    if (status == GB_OK)
        status = inspect(&r->routed_ids, NULL, "routed ids", s->layer, routing, error);
    if (status == GB_OK)
        status = inspect(&r->routed_weights, NULL, "routed weights", s->layer, routing, error);
    if (status == GB_OK)
        status = inspect(&r->workspace, NULL, "workspace", s->layer, checks, error);
    for (int p = 0; status == GB_OK && p < GB_ACTIVATION_PARTS; p++)
        status = inspect(&r->activations[p], NULL, "codes or scales of activations", s->layer, checks, error);
    return status;
}

enum gb_status session_run(struct session *s, const struct session_io *io, uint8_t poison, struct worker_checks *checks,
                           struct worker_checks *routing, struct gb_error *error)
{
    struct run r;
    enum gb_status status = run_new(s, io, poison, &r, error);
    if (status == GB_OK) {
        struct gb_arguments a = s->arguments;
        a.shape.tokens = io->tokens;
        a.x = r.x.payload;
        a.ids = r.ids.payload;
        a.routing_weights = r.routing_weights.payload;
        a.intermediate = r.intermediate.payload;
        a.output = r.output.payload;
        a.routed_ids = r.routed_ids.payload;
        a.routed_weights = r.routed_weights.payload;
        a.workspace = r.workspace.payload;
        a.x_codes = r.activations[GB_X_CODES].payload;
        a.x_scales = r.activations[GB_X_SCALES].payload;
        a.intermediate_codes = r.activations[GB_INTERMEDIATE_CODES].payload;
        a.intermediate_scales = r.activations[GB_INTERMEDIATE_SCALES].payload;
        status = s->kernel->run(&a, error);
        s->environment |= environment_reset();
    }
    if (status == GB_OK)
        status = s->memory->synchronise(error);
    if (status == GB_OK)
        status = run_inspect(s, io, &r, checks, routing, error);
    if (status == GB_OK && session_writes_intermediate(s->kernel))
        status = guarded_read(&r.intermediate, io->out.intermediate, error);
    if (status == GB_OK)
        status = guarded_read(&r.output, io->out.output, error);
    if (status == GB_OK)
        status = guarded_read(&r.routed_ids, io->out.ids, error);
    if (status == GB_OK)
        status = guarded_read(&r.routed_weights, io->out.routing_weights, error);
    for (int p = 0; status == GB_OK && p < GB_ACTIVATION_PARTS; p++)
        status = guarded_read(&r.activations[p], io->out.activations[p], error);
    run_free(&r);
    return status;
}
