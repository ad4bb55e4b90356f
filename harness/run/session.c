/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "harness/run/altered.h"
#include "harness/run/clock.h"
#include "harness/run/environment.h"
#include "harness/run/session.h"
#include "harness/run/session_arrays.h"

/* Where an expert's weights lie in a file; one that was generated here lies in none. */
static const struct guarded_file *file_of(const struct session *s, uint32_t e)
{
    static const struct guarded_file none = {.descriptor = -1};
    return s->admitted[e] ? &none : &s->file;
}

/* One expert's part of an array of weights. */
static enum gb_status put_expert(struct session *s, int slot, uint32_t e, struct gb_error *error)
{
    size_t each = s->weights[slot].bytes / s->fixture->shape.experts;
    return guarded_show(&s->weights[slot], s->moved[e] * each, file_of(s, e), s->originals[slot] + e * each, each,
                        error);
}

/* One array of weights, [experts, ...]. Of a generated fixture only the experts in use exist and are copied; what a
 * device has in place of the others is always the same, since a kernel's prepare may look at it. */
static enum gb_status put(struct session *s, int slot, const void *content, size_t bytes, struct gb_error *error)
{
    s->originals[slot] = content;
    enum gb_status status = guarded_new(s->memory, bytes, s->place, 0, &s->weights[slot], error);
    if (!s->sparse)
        return status == GB_OK ? guarded_show(&s->weights[slot], 0, &s->file, content, bytes, error) : status;
    if (status == GB_OK && !s->weights[slot].region)
        status = guarded_poison(&s->weights[slot], GUARDED_FRESH, error);
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
    if (!(s->uses & READS_GATE_UP))
        a->gate_up_bias = NULL;
    if (!(s->uses & READS_DOWN))
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
        status = guarded_from(s->memory, l->router.codes, codes, GUARDED_END, 0, &s->router, error);
    if (status == GB_OK && l->router_bias)
        status = guarded_from(s->memory, l->router_bias, sizeof(float) * s->fixture->shape.experts, GUARDED_END, 0,
                              &s->router_bias, error);
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
    double began = clock_seconds();
    enum gb_status status = s->kernel->prepare ? s->kernel->prepare(&s->arguments, &s->prepared, error) : GB_OK;
    s->environment |= environment_reset();
    if (status == GB_OK && s->kernel->prepare)
        status = s->memory->synchronise(error);
    s->prepare_s = clock_seconds() - began;
    s->arguments.prepared = s->prepared;
    return status;
}

enum gb_status session_admit(struct session *s, uint32_t expert, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    s->used[expert] = s->admitted[expert] = true;
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

/* Every used expert goes to the place of the next one. */
static void shift(struct session *s)
{
    uint32_t experts = s->fixture->shape.experts, next = experts;
    for (uint32_t e = 0; e < experts && next == experts; e++)
        next = s->used[e] ? e : experts;
    for (uint32_t e = experts; e-- > 0;)
        if (s->used[e]) {
            s->moved[e] = next;
            next = e;
        }
}

/* The weights of used experts, where s->moved has them. */
static enum gb_status put_experts(struct session *s, int slot, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t e = 0; status == GB_OK && s->weights[slot].bytes && e < s->fixture->shape.experts; e++)
        if (s->used[e])
            status = put_expert(s, slot, e, error);
    return status;
}

enum gb_status session_move(struct session *s, bool away, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    if (s->uses & READS_ROUTER)
        return GB_OK;
    if (away)
        shift(s);
    else
        stay(s);
    for (int slot = 0; status == GB_OK && slot < SESSION_WEIGHTS; slot++)
        status = put_experts(s, slot, error);
    return status == GB_OK ? prepare(s, error) : status;
}

bool session_has(const struct session *s, uint32_t number)
{
    if (number < SESSION_WEIGHTS)
        return s->weights[number].bytes;
    if (s->sparse && s->uses & READS_EXPERTS) /* whose experts another router would not choose */
        return false;
    return number == SESSION_WEIGHTS ? s->router.bytes : s->router_bias.bytes;
}

/* The last parts of bytes of an array, in each other's places or in their own. */
static enum gb_status put_split(const struct guarded *to, size_t at, const struct guarded_file *file,
                                const void *original, size_t bytes, bool away, struct gb_error *error)
{
    const struct altered_split split = altered_split(bytes);
    const size_t last = split.kept + split.moved;
    const char *from = original;
    if (!away)
        return guarded_show(to, at + split.kept, file, from + split.kept, bytes - split.kept, error);
    enum gb_status status = guarded_show(to, at + split.kept, file, from + last, bytes - last, error);
    return status == GB_OK ? guarded_show(to, at + bytes - split.moved, file, from + split.kept, split.moved, error)
                           : status;
}

/* Parts of every used expert change places, or return to their own; of short arrays the experts. */
static enum gb_status alter_experts(struct session *s, int slot, bool away, struct gb_error *error)
{
    const size_t each = s->weights[slot].bytes / s->fixture->shape.experts;
    enum gb_status status = GB_OK;
    if (!altered_split(each).moved) {
        if (away)
            shift(s);
        status = put_experts(s, slot, error);
        stay(s);
        return status;
    }
    for (uint32_t e = 0; status == GB_OK && e < s->fixture->shape.experts; e++)
        if (s->used[e])
            status =
                put_split(&s->weights[slot], e * each, file_of(s, e), s->originals[slot] + e * each, each, away, error);
    return status;
}

enum gb_status session_alter(struct session *s, uint32_t arrays, bool away, struct gb_error *error)
{
    const struct gb_layer *l = &s->fixture->layer[s->layer];
    enum gb_status status = GB_OK;
    s->altered = away;
    for (int slot = 0; status == GB_OK && slot < SESSION_WEIGHTS; slot++)
        if (arrays & 1u << slot)
            status = alter_experts(s, slot, away, error);
    if (status == GB_OK && arrays & 1u << SESSION_WEIGHTS)
        status = put_split(&s->router, 0, &s->file, l->router.codes, s->router.bytes, away, error);
    if (status == GB_OK && arrays & 1u << (SESSION_WEIGHTS + 1))
        status = put_split(&s->router_bias, 0, &s->file, l->router_bias, s->router_bias.bytes, away, error);
    return status == GB_OK ? prepare(s, error) : status;
}

/* Weights of s->used into the kernel's memory. */
static enum gb_status put_used(struct session *s, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    if (s->uses & READS_GATE_UP)
        status = put_weights(s, 0, &s->arguments.gate_up, error);
    else
        s->arguments.gate_up = (struct gb_weights){0};
    if (!(s->uses & READS_DOWN))
        s->arguments.down = (struct gb_weights){0};
    else if (status == GB_OK)
        status = put_weights(s, 3, &s->arguments.down, error);
    if (!(s->uses & READS_EXPERTS))
        s->arguments.activation = GB_SILU;
    if (status == GB_OK)
        status = put_biases(s, error);
    if (status == GB_OK && s->uses & READS_ROUTER)
        status = put_router(s, error);
    s->arguments.x = NULL;
    s->arguments.ids = NULL;
    s->arguments.routing_weights = NULL;
    return status == GB_OK ? prepare(s, error) : status;
}

/* All but the weights; none is used yet. */
static enum gb_status begin(const struct gb_kernel *kernel, const struct gb_device *memory,
                            const struct gb_fixture *fixture, uint32_t layer, struct session *s, struct gb_error *error)
{
    *s = (struct session){.kernel = kernel, .memory = memory, .fixture = fixture, .layer = layer, .place = GUARDED_END};
    s->file =
        (struct guarded_file){fixture->segment ? fixture->descriptor : -1, fixture->segment, fixture->segment_bytes};
    s->arguments = gb_layer_arguments(fixture, layer, fixture->shape.tokens);
    gb_layer_activations(fixture, layer, kernel->activations, &s->arguments);
    s->uses = operator_uses(kernel);
    if (s->uses & READS_ROUTING && s->arguments.apply_router_weight_on_input)
        s->uses |= READS_ROUTING_WEIGHTS;
    s->used = calloc(fixture->shape.experts, sizeof *s->used);
    s->admitted = calloc(fixture->shape.experts, sizeof *s->admitted);
    s->moved = calloc(fixture->shape.experts, sizeof *s->moved);
    if (!s->used || !s->admitted || !s->moved)
        return gb_fail(error, GB_ENOMEM, "no memory for %u experts", fixture->shape.experts);
    stay(s);
    return GB_OK;
}

enum gb_status session_open(const struct gb_kernel *kernel, const struct gb_device *memory,
                            const struct gb_fixture *fixture, uint32_t layer, struct session *s, struct gb_error *error)
{
    enum gb_status status = begin(kernel, memory, fixture, layer, s, error);
    if (status != GB_OK)
        return status;
    s->sparse = fixture->generated;
    if (s->sparse)
        gb_layer_mark_touched(fixture, layer, s->used);
    else
        memset(s->used, true, sizeof *s->used * fixture->shape.experts);
    return put_used(s, error);
}

enum gb_status session_open_chosen(const struct gb_kernel *kernel, const struct gb_device *memory,
                                   const struct gb_fixture *fixture, uint32_t layer, const int32_t *ids, size_t pairs,
                                   struct session *s, struct gb_error *error)
{
    enum gb_status status = begin(kernel, memory, fixture, layer, s, error);
    if (status != GB_OK)
        return status;
    s->sparse = true;
    s->place = GUARDED_LARGE;
    s->file.descriptor = -1; /* which has small pages */
    for (size_t p = 0; p < pairs; p++)
        if (ids[p] >= 0)
            s->used[ids[p]] = true;
    return put_used(s, error);
}

void session_weights(const struct session *s, uint64_t *weights, uint64_t *bytes)
{
    const struct gb_weights *of[] = {&s->arguments.gate_up, &s->arguments.down};
    const uint32_t experts = s->fixture->shape.experts;
    uint64_t used = 0;
    for (uint32_t e = 0; e < experts; e++)
        used += s->used[e];
    *weights = s->router.bytes ? (uint64_t)experts * s->fixture->shape.hidden : 0;
    *bytes = s->router.bytes + s->router_bias.bytes;
    for (int i = 0; i < 2; i++)
        *weights += used * of[i]->rows * of[i]->columns;
    for (int i = 0; i < SESSION_WEIGHTS; i++)
        *bytes += used * (s->weights[i].bytes / experts);
}

/* Broken canaries and changed inputs of an array of weights, [experts, ...]. */
static enum gb_status inspect_weights(const struct session *s, int slot, const char *name, struct worker_checks *checks,
                                      struct gb_error *error)
{
    size_t each = s->weights[slot].bytes / s->fixture->shape.experts;
    enum gb_status status = array_inspect(&s->weights[slot], NULL, name, s->layer, checks, error);
    for (uint32_t e = 0; status == GB_OK && each && e < s->fixture->shape.experts; e++) {
        const char *original = s->originals[slot] + e * each;
        bool equal = true;
        if (s->used[e])
            status = guarded_equals(&s->weights[slot], s->moved[e] * each, original, each, &equal, error);
        guarded_file_forget(file_of(s, e), original, each);
        if (status == GB_OK && !equal)
            array_note(checks, &checks->input_changed, "", name, s->layer);
    }
    return status;
}

static const char *const names[SESSION_WEIGHTS] = {"gate_up codes", "gate_up scales", "gate_up global scales",
                                                   "down codes",    "down scales",    "down global scales",
                                                   "gate_up bias",  "down bias"};

bool session_is_small(const struct session *s)
{
    enum { SMALL = 1 << 26 };
    size_t bytes = 0;
    for (int i = 0; i < SESSION_WEIGHTS; i++)
        bytes += s->weights[i].bytes;
    return bytes <= SMALL;
}

/* After one run, if that is little work: what a second run changes back shows here alone. */
static enum gb_status inspect_small(const struct session *s, struct worker_checks *checks, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    if (s->altered || !session_is_small(s))
        return GB_OK;
    for (int i = 0; status == GB_OK && i < SESSION_WEIGHTS; i++)
        status = inspect_weights(s, i, names[i], checks, error);
    return status;
}

enum gb_status session_close(struct session *s, struct worker_checks *checks, struct worker_checks *routing,
                             struct gb_error *error)
{
    enum gb_status status = GB_OK;
    release(s);
    for (int i = 0; i < SESSION_WEIGHTS; i++) {
        if (status == GB_OK)
            status = inspect_weights(s, i, names[i], checks, error);
        guarded_free(&s->weights[i]);
    }
    if (status == GB_OK && s->router.bytes)
        status = array_inspect(&s->router, s->fixture->layer[s->layer].router.codes, "router weights", s->layer,
                               routing, error);
    if (status == GB_OK && s->router_bias.bytes)
        status = array_inspect(&s->router_bias, s->fixture->layer[s->layer].router_bias, "router bias", s->layer,
                               routing, error);
    guarded_free(&s->router);
    guarded_free(&s->router_bias);
    free(s->used);
    free(s->admitted);
    free(s->moved);
    return status;
}

enum gb_status session_run(struct session *s, uint32_t tokens, const struct operator_inputs *inputs,
                           const struct gb_layer_outputs *out, struct run_way way, struct worker_checks *checks,
                           struct worker_checks *routing, struct gb_error *error)
{
    struct array_run r = {.row = operator_find(s->kernel->operation),
                          .kernel = s->kernel,
                          .uses = s->uses,
                          .layer = s->layer,
                          .inputs = inputs};
    struct gb_arguments a = s->arguments;
    struct gb_problem problem = r.row->ask(s->kernel, s->fixture, tokens, &(struct gb_quantisation){0});
    size_t workspace = array_workspace(s->kernel, &problem, &s->environment);
    a.shape.tokens = tokens;
    if (checks->canary_broken || routing->canary_broken) /* it is known, and need not crash */
        way.place = GUARDED_CANARIES;
    enum gb_status status = array_run_new(&r, s->memory, s->fixture, tokens, workspace, way, &a, error);
    if (status == GB_OK) {
        status = s->kernel->run(&a, error);
        s->environment |= environment_reset();
    }
    if (status == GB_OK)
        status = s->memory->synchronise(error);
    if (status == GB_OK)
        status = array_run_inspect(&r, checks, routing, error);
    if (status == GB_OK)
        status = inspect_small(s, checks, error);
    if (status == GB_OK)
        status = array_run_read(&r, out, error);
    array_run_free(&r);
    return status;
}
