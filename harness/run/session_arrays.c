/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/session_arrays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/run/environment.h"

bool array_used(const struct operator_array *array, uint32_t uses)
{
    return !array->use || array->use & uses;
}

size_t array_workspace(const struct gb_kernel *kernel, const struct gb_problem *problem, unsigned *environment)
{
    size_t bytes = kernel->workspace ? kernel->workspace(problem) : 0;
    *environment |= environment_reset();
    return bytes;
}

/* What the machine cannot hold is refused before any of it is filled. */
static enum gb_status new_workspace(struct array_run *r, const struct gb_device *memory, size_t bytes,
                                    enum guarded_place place, struct gb_error *error)
{
    const size_t most = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    if (memory->release == free && bytes > most)
        return gb_fail(error, GB_ENOMEM, "no memory for the workspace of %zu bytes: this machine has %zu", bytes, most);
    return guarded_new(memory, bytes, place, MOST_ARRAYS, &r->workspace, error);
}

enum gb_status array_run_new(struct array_run *r, const struct gb_device *memory, const struct gb_fixture *fixture,
                             uint32_t tokens, size_t workspace, struct run_way way, struct gb_arguments *arguments,
                             struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && i < r->row->array_count; i++) {
        const struct operator_array *a = &r->row->arrays[i];
        size_t element;
        if (!array_used(a, r->uses))
            continue;
        size_t bytes = a->bytes(r->kernel, fixture, tokens, &element);
        if (a->written)
            status = guarded_new(memory, bytes, way.place, i, &r->array[i], error);
        else
            status =
                guarded_from(memory, operator_pointer(r->inputs, a->place), bytes, way.place, i, &r->array[i], error);
        if (status == GB_OK && a->written)
            status = guarded_poison(&r->array[i], way.poison, error);
        memcpy((char *)arguments + a->argument, &r->array[i].payload, sizeof r->array[i].payload);
    }
    if (status == GB_OK && workspace)
        status = new_workspace(r, memory, workspace, way.place, error);
    arguments->workspace = r->workspace.payload;
    return status == GB_OK ? guarded_poison(&r->workspace, way.poison, error) : status;
}

void array_note(struct worker_checks *checks, bool *what, const char *where, const char *name, int64_t layer)
{
    char of_layer[32] = "";
    if (layer >= 0)
        snprintf(of_layer, sizeof of_layer, " of layer %lld", (long long)layer);
    if (!checks->canary_broken && !checks->input_changed)
        snprintf(checks->where, sizeof checks->where, "%s%s%s", where, name, of_layer);
    *what = true;
}

enum gb_status array_inspect(const struct guarded *buffer, const void *content, const char *name, int64_t layer,
                             struct worker_checks *checks, struct gb_error *error)
{
    bool good;
    enum gb_status status = guarded_intact(buffer, &good, error);
    if (status == GB_OK && !good)
        array_note(checks, &checks->canary_broken, "beside ", name, layer);
    if (status == GB_OK && content) {
        status = guarded_equals(buffer, 0, content, buffer->bytes, &good, error);
        if (status == GB_OK && !good)
            array_note(checks, &checks->input_changed, "", name, layer);
    }
    return status;
}

enum gb_status array_run_inspect(const struct array_run *r, struct worker_checks *checks, struct worker_checks *routing,
                                 struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && i < r->row->array_count; i++) {
        const struct operator_array *a = &r->row->arrays[i];
        if (array_used(a, r->uses))
            status = array_inspect(&r->array[i], a->written ? NULL : operator_pointer(r->inputs, a->place), a->name,
                                   r->layer, a->routing ? routing : checks, error);
    }
    return status == GB_OK ? array_inspect(&r->workspace, NULL, "workspace", r->layer, checks, error) : status;
}

enum gb_status array_run_read(const struct array_run *r, const void *outputs, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && i < r->row->array_count; i++) {
        const struct operator_array *a = &r->row->arrays[i];
        if (a->written && array_used(a, r->uses))
            status = guarded_read(&r->array[i], operator_pointer(outputs, a->place), error);
    }
    return status;
}

void array_run_free(struct array_run *r)
{
    for (uint32_t i = 0; i < r->row->array_count; i++)
        guarded_free(&r->array[i]);
    guarded_free(&r->workspace);
}

static enum gb_status compute(const struct gb_kernel *k, const struct gb_device *memory, struct gb_arguments *arguments,
                              struct gb_error *error)
{
    enum gb_status status = k->prepare ? k->prepare(arguments, &arguments->prepared, error) : GB_OK;
    environment_reset();
    if (status == GB_OK)
        status = k->run(arguments, error);
    environment_reset();
    if (status == GB_OK)
        status = memory->synchronise(error);
    if (arguments->prepared && k->release)
        k->release(arguments->prepared);
    environment_reset();
    return status;
}

enum gb_status session_run_arrays(const struct gb_kernel *kernel, const struct gb_device *memory,
                                  const struct gb_fixture *fixture, uint32_t tokens, struct run_way way,
                                  struct gb_outputs *outputs, struct worker_checks *checks, struct gb_error *error)
{
    struct array_run r = {.row = operator_find(kernel->operation), .kernel = kernel, .layer = -1, .inputs = fixture};
    struct gb_quantisation quantisation;
    struct gb_problem problem = r.row->ask(kernel, fixture, tokens, &quantisation);
    struct gb_arguments arguments = {
        .size = sizeof arguments, .quantise = problem.quantise, .exchange = problem.exchange};
    if (problem.exchange)
        arguments.shape = fixture->shape;
    size_t workspace = array_workspace(kernel, &problem, &(unsigned){0});
    enum gb_status status = array_run_new(&r, memory, fixture, tokens, workspace, way, &arguments, error);
    if (status == GB_OK)
        status = compute(kernel, memory, &arguments, error);
    if (status == GB_OK)
        status = array_run_inspect(&r, checks, checks, error);
    if (status == GB_OK)
        status = array_run_read(&r, outputs, error);
    array_run_free(&r);
    return status;
}
