/* SPDX-License-Identifier: Apache-2.0 */
/* The worker process: loads one kernel, runs it on every layer and batch, leaves outputs and a report. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/child.h"
#include "harness/record.h"
#include "harness/session.h"
#include "harness/stack.h"
#include "harness/subject.h"
#include "quant/quant.h"
#include "reference/reference.h"

/* Two bytes whose repetition is a NaN in FP32 and bf16 (0xFF...) and an ordinary number (0x5A...). */
static const uint8_t poisons[2] = {0xFF, 0x5A};

struct worker {
    struct gb_fixture *fixture;
    struct subject_library library;
    const struct gb_kernel *kernel;
    const struct gb_device *memory;
    uint32_t batches[MAX_BATCHES];
    uint32_t batch_count;
    struct gb_outputs *outputs[MAX_BATCHES];
    struct gb_outputs *second[MAX_BATCHES]; /* of the second run; only for GB_NONDETERMINISTIC kernels */
    struct worker_checks checks[MAX_BATCHES];
    double *state; /* [tokens, hidden], the residual stream; NULL: no drift */
};

enum gb_status parse_batches(const char *text, uint32_t tokens, uint32_t *batches, uint32_t *count,
                             struct gb_error *error)
{
    const char *at = text;
    for (*count = 0; *count < MAX_BATCHES; (*count)++) {
        char *end;
        errno = 0;
        unsigned long n = strtoul(at, &end, 10);
        if (end == at || errno || at[0] == '-' || n < 1 || n > tokens || (*count && n <= batches[*count - 1]) ||
            (*end != ',' && *end != '\0'))
            return gb_fail(error, GB_EINVAL, "--batch %s: give ascending numbers from 1 to %u, separated by commas",
                           text, tokens);
        batches[*count] = (uint32_t)n;
        if (*end == '\0') {
            (*count)++;
            return GB_OK;
        }
        at = end + 1;
    }
    return gb_fail(error, GB_EINVAL, "--batch %s: at most %d batches", text, (int)MAX_BATCHES);
}

static bool wants_stack(const struct worker *w)
{
    return w->kernel->operation == GB_LAYER && w->fixture->stack.residual;
}

/* Elements equal to both poisons were never written; any other difference is nondeterminism. */
static void compare_runs(const void *first, const void *second, size_t count, size_t element, const char *name,
                         uint32_t layer, struct worker_checks *checks)
{
    uint8_t poison[2][sizeof(float)];
    memset(poison[0], poisons[0], sizeof poison[0]);
    memset(poison[1], poisons[1], sizeof poison[1]);
    for (size_t i = 0; i < count; i++) {
        const char *a = (const char *)first + i * element, *b = (const char *)second + i * element;
        if (!memcmp(a, b, element))
            continue;
        if (!checks->unwritten && !checks->differing)
            snprintf(checks->where, sizeof checks->where, "element %zu of %s of layer %u", i, name, layer);
        if (!memcmp(a, poison[0], element) && !memcmp(b, poison[1], element))
            checks->unwritten++;
        else
            checks->differing++;
    }
}

/* Codes and scales of activations of two runs; those of the second are kept where they are wanted. */
static void compare_activations(struct worker *w, const struct session_io *io, uint32_t b, uint32_t layer)
{
    struct gb_layer_outputs *out = &w->outputs[b]->layer[layer];
    struct gb_layer_outputs *again = w->second[b] ? &w->second[b]->layer[layer] : NULL;
    for (int p = 0; p < GB_ACTIVATION_PARTS; p++) {
        if (!out->activations[p])
            continue;
        struct gb_activation_array a =
            gb_activation_array(w->outputs[b]->activation_rules, &w->fixture->shape, (enum gb_activation_part)p);
        size_t count = (size_t)io->tokens * a.slots * a.width;
        compare_runs(out->activations[p], io->activations[p], count, a.bytes, a.name, layer, &w->checks[b]);
        if (again)
            memcpy(again->activations[p], io->activations[p], count * a.bytes);
    }
}

/* Memory for the activations of a second run. */
static enum gb_status second_activations(const struct worker *w, uint32_t b, struct session_io *io,
                                         struct gb_error *error)
{
    for (int p = 0; p < GB_ACTIVATION_PARTS; p++) {
        if (!w->outputs[b]->layer[0].activations[p])
            continue;
        struct gb_activation_array a =
            gb_activation_array(w->outputs[b]->activation_rules, &w->fixture->shape, (enum gb_activation_part)p);
        io->activations[p] = malloc((size_t)io->tokens * a.slots * a.width * a.bytes);
        if (!io->activations[p])
            return gb_fail(error, GB_ENOMEM, "no memory for a second run of %u tokens", io->tokens);
    }
    return GB_OK;
}

/* Two runs of one batch with different poison; the first one's outputs are kept. */
static enum gb_status run_batch(struct worker *w, struct session *s, struct session_io io, uint32_t b,
                                struct gb_error *error)
{
    const struct gb_shape *shape = &w->fixture->shape;
    struct gb_layer_outputs *out = &w->outputs[b]->layer[s->layer];
    size_t outputs = (size_t)io.tokens * shape->hidden;
    size_t inner = (size_t)io.tokens * shape->top_k * shape->intermediate;
    size_t element = w->kernel->output == GB_FP32 ? sizeof(float) : sizeof(gb_bf16);
    io.output = out->output;
    io.intermediate = out->intermediate;
    memcpy(io.activations, out->activations, sizeof io.activations);
    enum gb_status status = session_run(s, &io, poisons[0], &w->checks[b], error);
    if (status != GB_OK)
        return status;
    io.output = malloc(outputs * element);
    io.intermediate = malloc(inner * sizeof(gb_bf16));
    memset(io.activations, 0, sizeof io.activations);
    if (!io.output || !io.intermediate)
        status = gb_fail(error, GB_ENOMEM, "no memory for a second run of %u tokens", io.tokens);
    if (status == GB_OK)
        status = second_activations(w, b, &io, error);
    if (status == GB_OK)
        status = session_run(s, &io, poisons[1], &w->checks[b], error);
    if (status == GB_OK)
        compare_activations(w, &io, b, s->layer);
    if (status == GB_OK && session_writes_output(w->kernel))
        compare_runs(out->output, io.output, outputs, element, "output", s->layer, &w->checks[b]);
    if (status == GB_OK && session_writes_intermediate(w->kernel))
        compare_runs(out->intermediate, io.intermediate, inner, sizeof(gb_bf16), "intermediate", s->layer,
                     &w->checks[b]);
    if (status == GB_OK && w->second[b]) {
        struct gb_layer_outputs *again = &w->second[b]->layer[s->layer];
        memcpy(again->output, io.output, outputs * element);
        if (again->intermediate)
            memcpy(again->intermediate, io.intermediate, inner * sizeof(gb_bf16));
    }
    free(io.output);
    free(io.intermediate);
    for (int p = 0; p < GB_ACTIVATION_PARTS; p++)
        free(io.activations[p]);
    return status;
}

/* The same for a router. */
static enum gb_status route_batch(struct worker *w, struct session *s, struct session_io io, uint32_t b,
                                  struct gb_error *error)
{
    struct gb_layer_outputs *out = &w->outputs[b]->layer[s->layer];
    struct gb_layer_outputs *again = w->second[b] ? &w->second[b]->layer[s->layer] : NULL;
    size_t pairs = (size_t)io.tokens * w->fixture->shape.top_k;
    io.routed_ids = out->ids;
    io.routed_weights = out->routing_weights;
    enum gb_status status = session_run(s, &io, poisons[0], &w->checks[b], error);
    if (status != GB_OK)
        return status;
    io.routed_ids = malloc(pairs * sizeof *io.routed_ids);
    io.routed_weights = malloc(pairs * sizeof *io.routed_weights);
    if (!io.routed_ids || !io.routed_weights)
        status = gb_fail(error, GB_ENOMEM, "no memory for a second run of %u tokens", io.tokens);
    if (status == GB_OK)
        status = session_run(s, &io, poisons[1], &w->checks[b], error);
    if (status == GB_OK) {
        compare_runs(out->ids, io.routed_ids, pairs, sizeof *out->ids, "routed ids", s->layer, &w->checks[b]);
        compare_runs(out->routing_weights, io.routed_weights, pairs, sizeof *out->routing_weights, "routed weights",
                     s->layer, &w->checks[b]);
    }
    if (status == GB_OK && again) {
        memcpy(again->ids, io.routed_ids, pairs * sizeof *again->ids);
        memcpy(again->routing_weights, io.routed_weights, pairs * sizeof *again->routing_weights);
    }
    free(io.routed_ids);
    free(io.routed_weights);
    return status;
}

/* The kernel's own residual stream through this layer, on the largest batch. */
static enum gb_status run_stack(struct worker *w, struct session *s, struct gb_error *error)
{
    const struct gb_shape *shape = &w->fixture->shape;
    uint32_t last = w->batch_count - 1, tokens = w->batches[last];
    size_t count = (size_t)tokens * shape->hidden, pairs = (size_t)tokens * shape->top_k;
    gb_bf16 *x = malloc(count * sizeof *x);
    int32_t *ids = malloc(pairs * sizeof *ids);
    float *routing_weights = malloc(pairs * sizeof *routing_weights);
    float *output = malloc(count * sizeof *output);
    gb_bf16 *inner = malloc(pairs * shape->intermediate * sizeof *inner);
    enum gb_status status = GB_OK;
    if (!x || !ids || !routing_weights || !output || !inner)
        status = gb_fail(error, GB_ENOMEM, "no memory for the stack of %u tokens", tokens);
    if (status == GB_OK)
        status = stack_input(w->fixture, s->layer, tokens, w->state, x, ids, routing_weights, error);
    struct session_io io = {tokens, x, ids, routing_weights, NULL, output, inner, NULL, NULL, {NULL}};
    if (status == GB_OK)
        status = session_run(s, &io, poisons[0], &w->checks[last], error);
    if (status == GB_OK) {
        stack_add(w->state, w->kernel->output, output, count);
        memcpy(w->outputs[last]->stack + s->layer * count, w->state, count * sizeof(double));
    }
    free(x);
    free(ids);
    free(routing_weights);
    free(output);
    free(inner);
    return status;
}

static enum gb_status run_layer(struct worker *w, uint32_t layer, struct gb_error *error)
{
    const struct gb_layer *l = &w->fixture->layer[layer];
    const struct gb_shape *shape = &w->fixture->shape;
    struct session s;
    gb_bf16 *inner = NULL;
    enum gb_status status = session_open(w->kernel, w->memory, w->fixture, layer, &s, error);
    if (status == GB_OK && w->kernel->operation == GB_DOWN) {
        struct gb_arguments a = gb_layer_arguments(w->fixture, layer, shape->tokens);
        inner = malloc(sizeof(gb_bf16) * shape->tokens * shape->top_k * shape->intermediate);
        a.intermediate = inner;
        gb_layer_activations(w->fixture, layer, w->kernel->activations, &a);
        status = inner ? gb_reference_gate_up(&a, error) : gb_fail(error, GB_ENOMEM, "no memory for the intermediate");
    }
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++) {
        struct session_io io = {w->batches[b], l->x, l->ids, l->routing_weights, inner, NULL, NULL, NULL, NULL, {NULL}};
        status = w->kernel->operation == GB_ROUTE ? route_batch(w, &s, io, b, error) : run_batch(w, &s, io, b, error);
    }
    if (status == GB_OK && w->state)
        status = run_stack(w, &s, error);
    struct gb_error ignored;
    enum gb_status closed = session_close(&s, &w->checks[w->batch_count - 1], status == GB_OK ? error : &ignored);
    free(inner);
    return status == GB_OK ? closed : status;
}

static enum gb_status new_outputs(const struct worker *w, const struct gb_shape *shape, bool with_stack,
                                  struct gb_outputs **outputs, struct gb_error *error)
{
    if (w->kernel->operation == GB_ROUTE)
        return gb_outputs_new_routing(shape, w->fixture->layers, outputs, error);
    enum gb_status status = gb_outputs_new(shape, w->fixture->layers, w->kernel->output,
                                           session_writes_intermediate(w->kernel), with_stack, outputs, error);
    for (int p = 0; status == GB_OK && p < GB_ACTIVATION_PARTS; p++)
        if (session_writes_activations(w->kernel, (enum gb_activation_part)p))
            status = gb_outputs_add_activations(*outputs, gb_fixture_activation_rules(w->fixture),
                                                (enum gb_activation_part)p, error);
    return status;
}

static enum gb_status prepare(struct worker *w, char **argv, struct gb_error *error)
{
    enum gb_status status =
        argv[1][0] ? gb_fixture_read(argv[1], &w->fixture, error) : gb_fixture_attach(CHILD_SHARED, &w->fixture, error);
    if (!argv[1][0])
        close(CHILD_SHARED);
    if (status == GB_OK)
        status = subject_library_open(argv[2], &w->library, error);
    if (status != GB_OK)
        return status;
    w->kernel = subject_find(&w->library, argv[3]);
    if (!w->kernel)
        return gb_fail(error, GB_EINVAL, "%s: no kernel named %s", argv[2], argv[3]);
    status = subject_memory(w->kernel, &w->memory, error);
    if (status == GB_OK)
        status = parse_batches(argv[4], w->fixture->shape.tokens, w->batches, &w->batch_count, error);
    struct gb_shape shape = w->fixture->shape;
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++) {
        bool with_stack = wants_stack(w) && b == w->batch_count - 1;
        shape.tokens = w->batches[b];
        status = new_outputs(w, &shape, with_stack, &w->outputs[b], error);
        if (status == GB_OK && w->kernel->flags & GB_NONDETERMINISTIC)
            status = new_outputs(w, &shape, false, &w->second[b], error);
    }
    if (status == GB_OK && wants_stack(w)) {
        size_t bytes = sizeof(double) * shape.tokens * shape.hidden;
        w->state = malloc(bytes);
        if (!w->state)
            return gb_fail(error, GB_ENOMEM, "no memory for the residual stream");
        memcpy(w->state, w->fixture->stack.residual, bytes);
    }
    return status;
}

/* Writes outputs of one run to FOLDER/NAME.h5. */
static enum gb_status leave(const char *folder, const char *name, const struct gb_outputs *outputs,
                            struct gb_error *error)
{
    char path[4200];
    struct gb_error reason;
    snprintf(path, sizeof path, "%s/%s.h5", folder, name);
    enum gb_status status = gb_outputs_write(path, outputs, &reason);
    const char *mend = status == GB_EIO ? "; set TMPDIR to a folder with room" : "";
    return status == GB_OK ? GB_OK : gb_fail(error, status, "%.400s%s", reason.message, mend);
}

static enum gb_status work(struct worker *w, char **argv, struct gb_error *error)
{
    enum gb_status status = prepare(w, argv, error);
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++) {
        struct gb_problem problem = session_problem(w->kernel, w->fixture, w->batches[b]);
        status = w->kernel->supports(&problem, error);
    }
    for (uint32_t l = 0; status == GB_OK && l < w->fixture->layers; l++)
        status = run_layer(w, l, error);
    for (uint32_t b = 0; status == GB_OK && b < w->batch_count; b++) {
        char name[32];
        snprintf(name, sizeof name, "batch-%u", w->batches[b]);
        status = leave(argv[5], name, w->outputs[b], error);
        snprintf(name, sizeof name, "batch-%u-again", w->batches[b]);
        if (status == GB_OK && w->second[b])
            status = leave(argv[5], name, w->second[b], error);
    }
    return status;
}

/* Into the room that the parent reserved. */
static bool write_report(const char *folder, const json_t *report)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/report.json", folder);
    FILE *stream = fopen(path, "r+");
    bool good = stream && json_dumpf(report, stream, JSON_INDENT(1)) == 0 && fflush(stream) == 0 &&
                ftruncate(fileno(stream), ftell(stream)) == 0;
    if (stream && fclose(stream))
        good = false;
    return good;
}

static json_t *checks_json(const struct worker_checks *c)
{
    return json_pack("{s:b, s:b, s:I, s:I, s:s}", "canary_broken", c->canary_broken, "input_changed", c->input_changed,
                     "unwritten", (json_int_t)c->unwritten, "differing", (json_int_t)c->differing, "where", c->where);
}

int worker_main(int argc, char **argv)
{
    struct worker w = {0};
    struct gb_error error = {""};
    if (argc != 6) {
        fprintf(stderr, "gaugeblock worker: is run by gaugeblock verify\n");
        return EXIT_USAGE;
    }
    child_set_up();
    enum gb_status status = work(&w, argv, &error);
    json_t *batches = json_array();
    for (uint32_t b = 0; b < w.batch_count; b++)
        json_array_append_new(batches, checks_json(&w.checks[b]));
    json_t *report = json_pack("{s:i, s:o, s:o}", "status", (int)status, "message", record_string(error.message),
                               "batches", batches);
    bool failed = !report || !write_report(argv[5], report);
    json_decref(report);
    for (uint32_t b = 0; b < w.batch_count; b++) {
        gb_outputs_free(w.outputs[b]);
        gb_outputs_free(w.second[b]);
    }
    gb_fixture_free(w.fixture);
    free(w.state);
    return failed ? EXIT_CRASH : EXIT_PASS;
}
