/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One kernel on one fixture in a process of its own, so that a crash, a hang or a lost CUDA context costs
 * one verdict and not the run.
 */
#ifndef GB_HARNESS_RUN_WORKER_H
#define GB_HARNESS_RUN_WORKER_H

#include "fixtures/fixtures.h"
#include "harness/run/timing.h"
#include "harness/run/verdict.h"

enum { MAX_BATCHES = 32 };

struct worker_request {
    int fixture;         /* descriptor of a file with the fixture, where it was not received (gb_fixture_receive) */
    const char *library; /* path, or BUILTIN_LIBRARY */
    const struct gb_kernel *kernel; /* as its library described it */
    uint32_t batches[MAX_BATCHES];  /* tokens of each, ascending */
    uint32_t batch_count;
    unsigned timeout_s;
    struct timing_request timing;
    const char *rank, *rendezvous; /* of one process of a kernel with GB_ONE_RANK, as text; otherwise NULL */
};

/* What watching the kernel showed for one batch. */
struct worker_checks {
    bool canary_broken;
    bool input_changed;
    uint64_t unwritten; /* elements that kept the poison of both runs */
    uint64_t differing; /* elements whose bits differed between two runs */
    char where[128];    /* the first of these */
};

struct worker_result {
    enum verdict verdict; /* VERDICT_PASS: it ran, and outputs and checks are there */
    char reason[768];
    struct gb_outputs *outputs[MAX_BATCHES];
    struct gb_outputs *second[MAX_BATCHES]; /* of the run with tokens and experts in other places, put back to where
                                               the first has them, where the two differ in any bit; else NULL */
    struct worker_checks checks[MAX_BATCHES];
    double seconds[MAX_BATCHES]; /* that running it took */
    struct timing timing[MAX_BATCHES];
    struct worker_checks routing[MAX_BATCHES]; /* the same of the routing, where the kernel is a layer that routes */
    char note[256]; /* what the library or the kernel did to the floating-point environment; "": nothing */
};

/* Parent: runs the kernel, with GB_ONE_RANK in a worker for each rank, and reads what it left. Never fails: what went
 * wrong is the verdict and the reason. */
void worker_run(const struct worker_request *request, const struct gb_fixture *fixture, struct worker_result *result);
void worker_result_free(struct worker_result *result);

/* The two halves of running one worker; finish waits up to timeout_s, and returns whether it ended by itself. fixture:
 * whose outputs it leaves. has_ended: finish will not wait. */
struct worker_process;
struct worker_process *worker_start(const struct worker_request *request, const struct gb_fixture *fixture,
                                    struct worker_result *result);
bool worker_has_ended(const struct worker_process *process);
bool worker_finish(struct worker_process *process, const struct worker_request *request, unsigned timeout_s,
                   const struct gb_fixture *fixture, struct worker_result *result);

/*
 * Child: `gaugeblock guard worker FIXTURE LIBRARY KERNEL BATCH,... [timed SAMPLES cold|hot]`, or with `rank RANK
 * RENDEZVOUS` at its end. FIXTURE: path, or "" for what is shared with it. Its descriptors: what is shared; the report,
 * JSON; and for each batch the outputs of the first run, and those of the moved run where they differ (written.h).
 */
int worker_main(int argc, char **argv);
enum { WORKER_FIXTURE, WORKER_REPORT, WORKER_OUTPUTS, MAX_WORKER_FILES = WORKER_OUTPUTS + 2 * MAX_BATCHES };

/* The report lies in memory and has this room: per batch it is one line and three numbers a sample, and one
 * message. Zeros follow it. */
enum { WORKER_REPORT_BYTES = 256 << 10 };

/* Comma-separated batch sizes, the value of this option: ascending and each 1 .. tokens. */
enum gb_status parse_batches(const char *option, const char *text, uint32_t tokens, uint32_t *batches, uint32_t *count,
                             struct gb_error *error);

#endif
