/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/timed.h"

#include <stdlib.h>

#include "harness/run/clock.h"
#include "harness/run/environment.h"
#include "harness/run/host_timer.h"
#include "harness/run/subject.h"
#include "quant/quant.h"

/* Copies, and the read beside them, are so many times as large as the last cache. */
enum { CACHES = 4 };
/* Of a sample on a hot copy. */
enum { HOT_RUNS = 8 };
/* What a launch reads is a multiple of it. */
enum { READ_UNIT = 16 };

/* One more copy of the arrays of an operator without layers. */
static enum gb_status copy_new_arrays(struct timed *t, struct timed_copy *c, const struct operator_row *row,
                                      const struct gb_fixture *fixture, struct gb_error *error)
{
    static const struct run_way way = {0xFF, GUARDED_LARGE};
    struct gb_quantisation quantisation;
    struct gb_problem problem = row->ask(t->kernel, fixture, fixture->shape.tokens, &quantisation);
    size_t workspace = array_workspace(t->kernel, &problem, &c->session.environment);
    c->arrays = (struct array_run){.row = row, .kernel = t->kernel, .layer = -1, .inputs = fixture};
    c->arguments = (struct gb_arguments){
        .size = sizeof c->arguments, .shape = fixture->shape, .exchange = problem.exchange, .stream = t->stream};
    enum gb_status status =
        array_run_new(&c->arrays, t->memory, fixture, fixture->shape.tokens, workspace, way, &c->arguments, error);
    double began = clock_seconds();
    if (status == GB_OK && t->kernel->prepare)
        status = t->kernel->prepare(&c->arguments, &c->arguments.prepared, error);
    c->session.prepare_s = clock_seconds() - began;
    environment_reset();
    return status;
}

/* One more copy: its weights, and buffers of one run. */
static enum gb_status copy_new(struct timed *t, uint32_t n, const struct gb_fixture *fixture, uint32_t tokens,
                               const struct operator_inputs *inputs, const int32_t *ids, struct gb_error *error)
{
    static const struct run_way way = {0xFF, GUARDED_LARGE};
    struct timed_copy *c = &t->copy[n];
    const struct operator_row *row = operator_find(t->kernel->operation);
    if (!row->layers)
        return copy_new_arrays(t, c, row, fixture, error);
    enum gb_status status = session_open_chosen(t->kernel, t->memory, fixture, 0, ids,
                                                (size_t)tokens * fixture->shape.top_k, &c->session, error);
    if (status != GB_OK)
        return status;
    struct gb_problem problem = row->ask(t->kernel, fixture, tokens, &(struct gb_quantisation){0});
    size_t workspace = array_workspace(t->kernel, &problem, &c->session.environment);
    c->arrays = (struct array_run){.row = row, .kernel = t->kernel, .uses = c->session.uses, .inputs = inputs};
    c->arguments = c->session.arguments;
    c->arguments.shape.tokens = tokens;
    c->arguments.stream = t->stream;
    return array_run_new(&c->arrays, t->memory, fixture, tokens, workspace, way, &c->arguments, error);
}

/* The first copy says how many there must be. */
static enum gb_status copies_new(struct timed *t, const struct gb_fixture *fixture, uint32_t tokens,
                                 const struct operator_inputs *inputs, const int32_t *ids, struct gb_error *error)
{
    const struct operator_row *row = operator_find(t->kernel->operation);
    struct timing *timing = t->timing;
    size_t cache = t->cache;
    enum gb_status status = cache ? GB_OK : t->clock->cache_bytes(&cache, error);
    timing->cache_bytes = status == GB_OK ? cache : 0;
    timing->copies = 1;
    for (uint32_t n = 0; status == GB_OK && n < timing->copies; n++) {
        status = copy_new(t, n, fixture, tokens, inputs, ids, error);
        if (n || status != GB_OK)
            continue;
        if (row->layers)
            session_weights(&t->copy[0].session, &timing->weights, &timing->bytes);
        else
            timing->bytes = row->moved(fixture);
        timing->prepare_s = t->copy[0].session.prepare_s;
        uint64_t wanted = timing->bytes ? CACHES * timing->cache_bytes / timing->bytes + 1 : 1;
        timing->copies = t->hot ? 1 : wanted < MOST_COPIES ? (uint32_t)wanted : MOST_COPIES;
    }
    timing->runs = t->hot ? HOT_RUNS : timing->copies;
    return status;
}

/* What is read or copied: as many bytes as all copies have, or as is beyond the cache. */
static enum gb_status arena_new(struct timed *t, struct gb_error *error)
{
    enum { PIECE = 1 << 20 };
    struct timing *timing = t->timing;
    uint64_t copies = timing->copies * timing->bytes, least = CACHES * timing->cache_bytes;
    timing->large_bytes = (copies > least ? copies : least) / READ_UNIT * READ_UNIT;
    uint32_t *piece = malloc(PIECE), state = 1;
    enum gb_status status = piece ? guarded_new(t->memory, timing->large_bytes, GUARDED_LARGE, 0, &t->arena, error)
                                  : gb_fail(error, GB_ENOMEM, "no memory for what is read");
    for (size_t i = 0; piece && i < PIECE / sizeof *piece; i++)
        piece[i] = state = state * 1664525 + 1013904223; /* any bits: Numerical Recipes' quick generator */
    for (uint64_t at = 0; status == GB_OK && at < timing->large_bytes; at += PIECE) {
        uint64_t left = timing->large_bytes - at;
        status = guarded_put(&t->arena, at, piece, left < PIECE ? left : PIECE, error);
    }
    free(piece);
    if (status == GB_OK && t->copied)
        status = guarded_new(t->memory, timing->large_bytes, GUARDED_LARGE, 1, &t->target, error);
    return status == GB_OK && t->copied ? guarded_poison(&t->target, 0xFF, error)
                                        : status; /* no page is new to a copy */
}

static enum gb_status launch_runs(struct timed *t, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t n = 0; status == GB_OK && n < t->timing->runs; n++)
        status = t->kernel->run(&t->copy[n % t->timing->copies].arguments, error);
    return status;
}

/* Reads so many bytes at this place of the arena, or copies them. */
static enum gb_status pass(struct timed *t, size_t place, size_t bytes, struct gb_error *error)
{
    const char *from = (const char *)t->arena.payload + place;
    if (!t->copied)
        return t->clock->read(t->timer, from, bytes, error);
    host_timer_copy((char *)t->target.payload + place, from, bytes);
    return GB_OK;
}

/* As many bytes for as many runs, each in as many launches. */
static enum gb_status launch_reads(struct timed *t, struct gb_error *error)
{
    const struct timing *timing = t->timing;
    const uint64_t launches = timing->launches ? timing->launches : 1;
    const uint64_t bytes = timing->bytes / READ_UNIT * READ_UNIT;
    enum gb_status status = GB_OK;
    for (uint32_t n = 0; n < timing->runs; n++) {
        const size_t place = n % timing->copies * bytes;
        for (uint64_t l = 0; status == GB_OK && l < launches; l++) {
            uint64_t first = bytes * l / launches / READ_UNIT * READ_UNIT;
            uint64_t end = bytes * (l + 1) / launches / READ_UNIT * READ_UNIT;
            status = pass(t, place + first, end - first, error);
        }
    }
    return status;
}

typedef enum gb_status work_function(struct timed *timed, struct gb_error *error);

/* A capture that has begun is ended even where what it captures fails. */
static enum gb_status capture(struct timed *t, work_function *launch, void **graph, size_t *launches,
                              struct gb_error *error)
{
    struct gb_error ignored;
    enum gb_status status = t->clock->capture(t->timer, error);
    if (status != GB_OK)
        return status;
    status = launch(t, error);
    enum gb_status ended = t->clock->captured(t->timer, graph, launches, status == GB_OK ? error : &ignored);
    return status == GB_OK ? ended : status;
}

static enum gb_status graphs_new(struct timed *t, struct gb_error *error)
{
    size_t launches;
    if (!t->clock->capture || !(t->kernel->flags & GB_GRAPH_CAPTURABLE))
        return GB_OK;
    enum gb_status status = capture(t, launch_runs, &t->run_graph, &launches, error);
    if (status == GB_OK) {
        t->timing->launches = (uint32_t)((launches + t->timing->runs - 1) / t->timing->runs);
        status = capture(t, launch_reads, &t->read_graph, &launches, error);
    }
    return status;
}

enum gb_status timed_open(const struct gb_kernel *kernel, const struct gb_device *memory,
                          const struct gb_fixture *fixture, uint32_t tokens, const struct operator_inputs *inputs,
                          const int32_t *ids, const struct timing_request *request, struct timed *t,
                          struct timing *timing, struct gb_error *error)
{
    *t = (struct timed){.kernel = kernel,
                        .memory = memory,
                        .timing = timing,
                        .copied = !operator_find(kernel->operation)->layers,
                        .cache = request->cache,
                        .hot = request->hot};
    *timing = (struct timing){.samples = 0};
    t->copy = calloc(MOST_COPIES, sizeof *t->copy);
    if (!t->copy)
        return gb_fail(error, GB_ENOMEM, "no memory for copies of the weights");
    enum gb_status status = subject_timer(kernel, &t->clock, error);
    if (status == GB_OK)
        status = t->clock->open(&t->timer, &t->stream, error);
    if (status == GB_OK)
        status = copies_new(t, fixture, tokens, inputs, ids, error);
    if (status == GB_OK)
        status = arena_new(t, error);
    if (status == GB_OK)
        status = memory->synchronise(error);
    return status == GB_OK ? graphs_new(t, error) : status;
}

static enum gb_status perform(struct timed *t, work_function *launch, void *graph, struct gb_error *error)
{
    return graph ? t->clock->replay(t->timer, graph, error) : launch(t, error);
}

/* hot: it is done once before. */
static enum gb_status time_work(struct timed *t, bool hot, work_function *launch, void *graph, double *seconds,
                                struct gb_error *error)
{
    enum gb_status status = hot ? perform(t, launch, graph, error) : GB_OK;
    if (status == GB_OK)
        status = t->clock->start(t->timer, error);
    if (status == GB_OK)
        status = perform(t, launch, graph, error);
    return status == GB_OK ? t->clock->stop(t->timer, seconds, error) : status;
}

static enum gb_status read_large(struct timed *t, struct gb_error *error)
{
    return pass(t, 0, t->timing->large_bytes, error);
}

static enum gb_status poison(struct timed *t, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t n = 0; n < t->timing->copies; n++) {
        const struct array_run *r = &t->copy[n].arrays;
        for (uint32_t i = 0; status == GB_OK && i < r->row->array_count; i++)
            if (r->row->arrays[i].written && r->array[i].bytes)
                status = guarded_poison(&r->array[i], 0xFF, error);
    }
    return status == GB_OK ? t->memory->synchronise(error) : status;
}

enum gb_status timed_sample(struct timed *t, struct timing_sample *sample, struct gb_error *error)
{
    enum gb_status status = poison(t, error);
    if (status == GB_OK)
        status = time_work(t, false, read_large, NULL, &sample->large_s, error);
    if (status == GB_OK)
        status = time_work(t, t->hot, launch_reads, t->read_graph, &sample->read_s, error);
    if (status == GB_OK)
        status = time_work(t, t->hot, launch_runs, t->run_graph, &sample->run_s, error);
    environment_reset();
    return status == GB_OK ? t->memory->synchronise(error) : status;
}

enum gb_status timed_read(const struct timed *t, uint32_t copy, const void *outputs, struct gb_error *error)
{
    return array_run_read(&t->copy[copy].arrays, outputs, error);
}

/* prepare's memory, which a session gives back with the weights. */
static enum gb_status copy_close(struct timed_copy *c, struct worker_checks *checks, struct worker_checks *routing,
                                 struct gb_error *error)
{
    if (c->session.kernel)
        return session_close(&c->session, checks, routing, error);
    if (c->arguments.prepared && c->arrays.kernel->release)
        c->arrays.kernel->release(c->arguments.prepared);
    return GB_OK;
}

enum gb_status timed_close(struct timed *t, struct worker_checks *checks, struct worker_checks *routing,
                           struct gb_error *error)
{
    enum gb_status status = GB_OK;
    if (t->run_graph)
        t->clock->discard(t->run_graph);
    if (t->read_graph)
        t->clock->discard(t->read_graph);
    for (uint32_t n = 0; t->copy && n < t->timing->copies; n++) {
        struct timed_copy *c = &t->copy[n];
        if (status == GB_OK && c->arrays.row)
            status = array_run_inspect(&c->arrays, checks, routing, error);
        if (c->arrays.row)
            array_run_free(&c->arrays);
        enum gb_status closed = copy_close(c, checks, routing, error);
        status = status == GB_OK ? closed : status;
    }
    free(t->copy);
    guarded_free(&t->arena);
    guarded_free(&t->target);
    if (t->timer)
        t->clock->close(t->timer);
    return status;
}
