/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the worker: the copies of a layer's weights and inputs, or of rows, that a kernel is timed on. */
#ifndef GB_HARNESS_RUN_TIMED_H
#define GB_HARNESS_RUN_TIMED_H

#include "harness/run/session.h"
#include "harness/run/session_arrays.h"
#include "harness/run/timing.h"

/* Of small weights: more would take more mappings than a process may have. */
enum { MOST_COPIES = 64 };

/* One copy. */
struct timed_copy {
    struct session session; /* of an operator on layers */
    struct array_run arrays;
    struct gb_arguments arguments;
};

struct timed {
    const struct gb_kernel *kernel;
    const struct gb_device *memory;
    const struct gb_timer *clock;
    void *timer, *stream;
    void *run_graph, *read_graph; /* NULL: runs are launched one by one */
    struct timed_copy *copy;      /* [MOST_COPIES], allocated */
    struct guarded arena;         /* what is read or copied */
    struct guarded target;        /* where to */
    struct timing *timing;
    uint64_t cache;   /* as asked for */
    bool hot, copied; /* copied: beside a copy instead of a read */
};

/* Copies for the first `tokens`, and graphs of runs on them. inputs, ids [tokens, top_k]: as the kernel was run, or
 * itself routed; NULL of an operator without layers, which has its inputs from the fixture. timing: becomes what does
 * not depend on the sample. timed_close in any case. */
enum gb_status timed_open(const struct gb_kernel *kernel, const struct gb_device *memory,
                          const struct gb_fixture *fixture, uint32_t tokens, const struct operator_inputs *inputs,
                          const int32_t *ids, const struct timing_request *request, struct timed *timed,
                          struct timing *timing, struct gb_error *error);
/* Reads and runs; what the runs write was poisoned before. */
enum gb_status timed_sample(struct timed *timed, struct timing_sample *sample, struct gb_error *error);
/* What the last sample's run on this copy wrote, as array_run_read has it. */
enum gb_status timed_read(const struct timed *timed, uint32_t copy, const void *outputs, struct gb_error *error);
/* Adds broken canaries and changed inputs to checks and routing. */
enum gb_status timed_close(struct timed *timed, struct worker_checks *checks, struct worker_checks *routing,
                           struct gb_error *error);

#endif
