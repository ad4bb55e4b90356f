/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/session_replay.h"

#include "harness/run/environment.h"
#include "harness/run/session_arrays.h"

/* A stream of its own, its graph, and the buffers whose addresses are in it. */
struct replay {
    struct session *session;
    const struct gb_timer *clock;
    void *timer, *stream, *graph;
    struct array_run run;
};

/* A capture that has begun is ended even where what it captures fails. */
static enum gb_status capture(struct replay *r, const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_error ignored;
    size_t launches;
    enum gb_status status = r->clock->capture(r->timer, error);
    if (status != GB_OK)
        return status;
    status = r->session->kernel->run(arguments, error);
    r->session->environment |= environment_reset();
    enum gb_status ended = r->clock->captured(r->timer, &r->graph, &launches, status == GB_OK ? error : &ignored);
    return status == GB_OK ? ended : status;
}

static enum gb_status replay_new(struct replay *r, struct session *s, const struct gb_timer *clock, uint32_t tokens,
                                 const struct operator_inputs *inputs, struct gb_error *error)
{
    static const struct run_way way = {0xFF, GUARDED_CANARIES};
    const struct operator_row *row = operator_find(s->kernel->operation);
    struct gb_arguments a = s->arguments;
    struct gb_problem problem = row->ask(s->kernel, s->fixture, tokens, &(struct gb_quantisation){0});
    size_t workspace = array_workspace(s->kernel, &problem, &s->environment);
    *r =
        (struct replay){.session = s,
                        .clock = clock,
                        .run = {.row = row, .kernel = s->kernel, .uses = s->uses, .layer = s->layer, .inputs = inputs}};
    a.shape.tokens = tokens;
    enum gb_status status = clock->open(&r->timer, &r->stream, error);
    if (status == GB_OK)
        status = array_run_new(&r->run, s->memory, s->fixture, tokens, workspace, way, &a, error);
    a.stream = r->stream;
    return status == GB_OK ? capture(r, &a, error) : status;
}

static void replay_free(struct replay *r)
{
    if (r->graph)
        r->clock->discard(r->graph);
    array_run_free(&r->run);
    if (r->timer)
        r->clock->close(r->timer);
}

/* Other inputs at the same addresses, and nothing left of what was written. */
static enum gb_status put_inputs(struct replay *r, const struct operator_inputs *inputs, uint8_t poison,
                                 struct gb_error *error)
{
    enum gb_status status = guarded_poison(&r->run.workspace, poison, error);
    r->run.inputs = inputs;
    for (uint32_t i = 0; status == GB_OK && i < r->run.row->array_count; i++) {
        const struct operator_array *a = &r->run.row->arrays[i];
        const struct guarded *array = &r->run.array[i];
        if (!array->bytes)
            continue;
        status = a->written ? guarded_poison(array, poison, error)
                            : guarded_put(array, 0, operator_pointer(inputs, a->place), array->bytes, error);
    }
    return status;
}

enum gb_status session_replay(struct session *s, const struct gb_timer *clock, uint32_t tokens,
                              const struct operator_inputs *const *inputs, const struct gb_layer_outputs *const *out,
                              uint32_t count, struct worker_checks *checks, struct worker_checks *routing,
                              struct gb_error *error)
{
    struct replay r;
    enum gb_status status = replay_new(&r, s, clock, tokens, inputs[0], error);
    for (uint32_t n = 0; status == GB_OK && n < count; n++) {
        status = put_inputs(&r, inputs[n], n % 2 ? 0x5A : 0xFF, error);
        if (status == GB_OK)
            status = s->memory->synchronise(error);
        if (status == GB_OK)
            status = r.clock->replay(r.timer, r.graph, error);
        if (status == GB_OK)
            status = s->memory->synchronise(error);
        if (status == GB_OK)
            status = array_run_inspect(&r.run, checks, routing, error);
        if (status == GB_OK)
            status = array_run_read(&r.run, out[n], error);
    }
    replay_free(&r);
    return status;
}
