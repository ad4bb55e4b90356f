/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the worker: the buffers of one run, guarded, poisoned, inspected and read back, by the operator's row; and
 * checked runs of a kernel whose operator has no layers. */
#ifndef GB_HARNESS_RUN_SESSION_ARRAYS_H
#define GB_HARNESS_RUN_SESSION_ARRAYS_H

#include "harness/run/guarded.h"
#include "harness/run/operators.h"
#include "harness/run/worker.h"

enum { MOST_ARRAYS = 16 };

/* What one run is made of. */
struct array_run {
    const struct operator_row *row;
    const struct gb_kernel *kernel;
    uint32_t uses;      /* enum operator_use of this run */
    int64_t layer;      /* that is named where something is seen; -1: there are none */
    const void *inputs; /* struct operator_inputs, or struct gb_fixture */
    struct guarded array[MOST_ARRAYS], workspace;
};

/* Whether a run with these uses has the array. */
bool array_used(const struct operator_array *array, uint32_t uses);
/* How much workspace the kernel asks for. *environment: enum environment_change, with what asking changed. */
size_t array_workspace(const struct gb_kernel *kernel, const struct gb_problem *problem, unsigned *environment);
/* Buffers for so many tokens, with the inputs in them and the rest poisoned; arguments: points to them from then on.
 * array_run_free in any case. */
enum gb_status array_run_new(struct array_run *run, const struct gb_device *memory, const struct gb_fixture *fixture,
                             uint32_t tokens, size_t workspace, struct run_way way, struct gb_arguments *arguments,
                             struct gb_error *error);
/* Adds broken canaries and changed inputs to checks and, of arrays of the routing, to routing. */
enum gb_status array_run_inspect(const struct array_run *run, struct worker_checks *checks,
                                 struct worker_checks *routing, struct gb_error *error);
/* outputs: struct gb_layer_outputs, or struct gb_outputs, with room for what is written. */
enum gb_status array_run_read(const struct array_run *run, const void *outputs, struct gb_error *error);
void array_run_free(struct array_run *run);

/* The same for one buffer. content: of what is read; NULL: it is written. layer: -1: there are none. */
enum gb_status array_inspect(const struct guarded *buffer, const void *content, const char *name, int64_t layer,
                             struct worker_checks *checks, struct gb_error *error);
/* Remembers what was seen first. what: of the checks; where: "beside ", or "". */
void array_note(struct worker_checks *checks, bool *what, const char *where, const char *name, int64_t layer);

/* One run of an operator without layers on the first `tokens` of the fixture, what is written and the workspace
 * poisoned as `way` says. outputs: where it goes. Adds what it saw to checks. */
enum gb_status session_run_arrays(const struct gb_kernel *kernel, const struct gb_device *memory,
                                  const struct gb_fixture *fixture, uint32_t tokens, struct run_way way,
                                  struct gb_outputs *outputs, struct worker_checks *checks, struct gb_error *error);

#endif
