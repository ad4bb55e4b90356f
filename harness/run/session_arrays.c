/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/environment.h"
#include "harness/run/session_arrays.h"

#include <stdio.h>
#include <string.h>

#include "harness/run/guarded.h"

enum { MOST_ARRAYS = 8 };

struct run {
    const struct operator_row *row;
    const struct gb_kernel *kernel;
    struct guarded array[MOST_ARRAYS], workspace;
    struct gb_quantisation quantisation;
    struct gb_problem problem;
    struct gb_arguments arguments;
};

/* The pointer at this place of a struct. */
static void *pointer_at(const void *structure, size_t place)
{
    void *pointer;
    memcpy(&pointer, (const char *)structure + place, sizeof pointer);
    return pointer;
}

static enum gb_status run_new(struct run *r, const struct gb_device *memory, const struct gb_fixture *fixture,
                              uint32_t tokens, uint8_t poison, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    r->row->ask(fixture, tokens, &r->quantisation, &r->problem, &r->arguments);
    for (uint32_t i = 0; status == GB_OK && i < r->row->array_count; i++) {
        const struct operator_array *a = &r->row->arrays[i];
        size_t element, bytes = a->bytes(fixture, tokens, &element);
        if (a->written)
            status = guarded_new(memory, bytes, &r->array[i], error);
        else
            status = guarded_from(memory, pointer_at(fixture, a->place), bytes, &r->array[i], error);
        if (status == GB_OK && a->written)
            status = guarded_poison(&r->array[i], poison, error);
        memcpy((char *)&r->arguments + a->argument, &r->array[i].payload, sizeof r->array[i].payload);
    }
    if (status == GB_OK && r->kernel->workspace) {
        size_t bytes = r->kernel->workspace(&r->problem);
        environment_reset();
        status = guarded_new(memory, bytes, &r->workspace, error);
    }
    r->arguments.workspace = r->workspace.payload;
    return status == GB_OK ? guarded_poison(&r->workspace, poison, error) : status;
}

static enum gb_status compute(struct run *r, const struct gb_device *memory, struct gb_error *error)
{
    const struct gb_kernel *k = r->kernel;
    enum gb_status status = k->prepare ? k->prepare(&r->arguments, &r->arguments.prepared, error) : GB_OK;
    environment_reset();
    if (status == GB_OK)
        status = k->run(&r->arguments, error);
    environment_reset();
    if (status == GB_OK)
        status = memory->synchronise(error);
    if (r->arguments.prepared && k->release)
        k->release(r->arguments.prepared);
    environment_reset();
    return status;
}

/* Remembers what was seen first. */
static void note(struct worker_checks *checks, bool *what, const char *where, const char *name)
{
    if (!checks->canary_broken && !checks->input_changed)
        snprintf(checks->where, sizeof checks->where, "%s%s", where, name);
    *what = true;
}

/* content: of an array that is read; otherwise NULL. */
static enum gb_status inspect(const struct guarded *buffer, const void *content, const char *name,
                              struct worker_checks *checks, struct gb_error *error)
{
    bool good;
    enum gb_status status = guarded_intact(buffer, &good, error);
    if (status == GB_OK && !good)
        note(checks, &checks->canary_broken, "beside ", name);
    if (status == GB_OK && content) {
        status = guarded_equals(buffer, 0, content, buffer->bytes, &good, error);
        if (status == GB_OK && !good)
            note(checks, &checks->input_changed, "", name);
    }
    return status;
}

enum gb_status session_run_arrays(const struct gb_kernel *kernel, const struct gb_device *memory,
                                  const struct gb_fixture *fixture, uint32_t tokens, uint8_t poison,
                                  struct gb_outputs *outputs, struct worker_checks *checks, struct gb_error *error)
{
    struct run r = {.row = operator_find(kernel->operation), .kernel = kernel};
    enum gb_status status = run_new(&r, memory, fixture, tokens, poison, error);
    if (status == GB_OK)
        status = compute(&r, memory, error);
    for (uint32_t i = 0; status == GB_OK && i < r.row->array_count; i++) {
        const struct operator_array *a = &r.row->arrays[i];
        status = inspect(&r.array[i], a->written ? NULL : pointer_at(fixture, a->place), a->name, checks, error);
        if (status == GB_OK && a->written)
            status = guarded_read(&r.array[i], pointer_at(outputs, a->place), error);
    }
    if (status == GB_OK)
        status = inspect(&r.workspace, NULL, "workspace", checks, error);
    for (uint32_t i = 0; i < r.row->array_count; i++)
        guarded_free(&r.array[i]);
    guarded_free(&r.workspace);
    return status;
}
