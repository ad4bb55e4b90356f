/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel in its worker or, where it runs in one process a rank, in all of them at once; what those wrote is put
 * together. */
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness/run/child.h"
#include "harness/run/clock.h"
#include "harness/run/rank_part.h"
#include "harness/run/worker.h"
#include "harness/run/worker_processes.h"
#include "quant/quant.h"

/* One of them. */
struct one {
    struct rank_part part;
    struct worker_request request;
    char rank[16];
    struct worker_process *process; /* NULL: it did not start, or has ended */
    struct worker_result result;
    bool timed_out; /* it may have waited for another */
};

static int delete_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    remove(path); /* what cannot be deleted stays */
    return 0;
}

static void delete_folder(const char *path)
{
    enum { DESCRIPTORS = 16 };
    nftw(path, delete_one, DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
}

/* A part of one array into its place of the whole. */
static void take(const struct gb_outputs *from, const struct gb_outputs *to, enum gb_exchange_part part, size_t first)
{
    struct gb_exchange_array a = gb_exchange_array(&from->exchange, from->combined_format, part);
    const void *values = gb_outputs_exchanged(from, part);
    if (values)
        memcpy((char *)gb_outputs_exchanged(to, part) + first * (a.columns ? a.columns : 1) * a.element, values,
               a.bytes);
}

/* False: ranks have different counts, which a receiver's places depend on. */
static bool put_together(const struct one *ranks, const struct gb_fixture *f, const struct gb_outputs *whole,
                         uint32_t *other)
{
    const struct gb_exchange *x = &f->exchanged.asked;
    const struct gb_outputs *first = ranks[0].result.outputs[0];
    for (uint32_t r = 0; r < x->ranks; r++) {
        const struct gb_outputs *part = ranks[r].result.outputs[0];
        *other = r;
        if (part->counts && memcmp(part->counts, first->counts, sizeof *part->counts * x->ranks * x->experts))
            return false;
        take(part, whole, GB_EXCHANGE_COUNTS, 0);
        take(part, whole, GB_EXCHANGE_ROUTES, ranks[r].part.first);
        take(part, whole, GB_EXCHANGE_CODES, ranks[r].part.first);
        take(part, whole, GB_EXCHANGE_SCALES, ranks[r].part.first);
        take(part, whole, GB_EXCHANGE_OUTPUT, (size_t)r * x->tokens);
    }
    return true;
}

/* What watching the processes showed, with the rank that showed it first. */
static void add_checks(struct worker_checks *sum, const struct worker_checks *one, uint32_t rank)
{
    if (one->where[0] && !sum->where[0])
        snprintf(sum->where, sizeof sum->where, "rank %u: %.100s", rank, one->where);
    sum->canary_broken |= one->canary_broken;
    sum->input_changed |= one->input_changed;
    sum->unwritten += one->unwritten;
    sum->differing += one->differing;
}

/* The result of all. Of ranks that failed the one is named that did not just wait for the others. */
static void judge_all(const struct one *ranks, const struct gb_fixture *f, const struct gb_kernel *kernel,
                      struct worker_result *result)
{
    const uint32_t count = f->exchanged.asked.ranks;
    const struct one *bad = NULL;
    struct gb_error error;
    uint32_t other = 0;
    for (uint32_t r = 0; r < count; r++) {
        const struct one *o = &ranks[r];
        if (o->result.verdict != VERDICT_PASS && (!bad || (bad->timed_out && !o->timed_out)))
            bad = o;
        add_checks(&result->checks[0], &o->result.checks[0], r);
        if (o->result.note[0] && !result->note[0])
            snprintf(result->note, sizeof result->note, "rank %u: %.200s", r, o->result.note);
    }
    if (bad) {
        result->verdict = bad->result.verdict;
        snprintf(result->reason, sizeof result->reason, "rank %s: %.700s", bad->rank, bad->result.reason);
        return;
    }
    enum gb_status status =
        f->exchanged.rows ? gb_outputs_new_combine(&f->exchanged.asked, kernel->output, &result->outputs[0], &error)
                          : gb_outputs_new_dispatch(&f->exchanged.asked, &result->outputs[0], &error);
    if (status != GB_OK) {
        result->verdict = VERDICT_NOT_RUN;
        snprintf(result->reason, sizeof result->reason, "%s", error.message);
    } else if (!put_together(ranks, f, result->outputs[0], &other)) {
        result->verdict = VERDICT_FAIL;
        snprintf(result->reason, sizeof result->reason, "counts: rank %u has others than rank 0", other);
    }
}

/* Finishes each as it ends by itself, or when the time is over, which is soon once one has failed: the others may wait
 * for it. */
static void finish_all(struct one *ranks, uint32_t count, double until)
{
    enum { PAUSE_NS = 1000 * 1000, AFTER_A_FAILURE_S = 2 };
    for (uint32_t left = count; left;) {
        left = 0;
        bool over = clock_seconds() >= until;
        for (uint32_t r = 0; r < count; r++) {
            struct one *o = &ranks[r];
            if (!o->process)
                continue;
            if (!over && !worker_has_ended(o->process)) {
                left++;
                continue;
            }
            o->timed_out = !worker_finish(o->process, &o->request, 0, &o->part.fixture, &o->result);
            o->process = NULL;
            if (o->result.verdict != VERDICT_PASS)
                until = fmin(until, clock_seconds() + AFTER_A_FAILURE_S);
        }
        if (left)
            nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
    }
}

/* Starts them, and waits for all. */
static void run_all(struct one *ranks, const struct worker_request *request, const struct gb_fixture *f,
                    const char *folder)
{
    const uint32_t count = f->exchanged.asked.ranks;
    struct gb_error error;
    double began = clock_seconds();
    bool all = true;
    for (uint32_t r = 0; all && r < count; r++) {
        struct one *o = &ranks[r];
        snprintf(o->rank, sizeof o->rank, "%u", r);
        o->request = *request;
        o->request.batches[0] = f->exchanged.asked.tokens;
        o->request.rank = o->rank;
        o->request.rendezvous = folder;
        o->result.verdict = VERDICT_NOT_RUN;
        if (rank_part_new(f, r, NULL, &o->part, &error) == GB_OK)
            o->process = worker_start(&o->request, f, &o->result);
        else
            snprintf(o->result.reason, sizeof o->result.reason, "%s", error.message);
        all = o->process;
    }
    finish_all(ranks, count, all ? began + request->timeout_s : began);
}

/* A folder in which the processes of a kernel find each other: in TMPDIR, or where that is gone in /tmp. */
static bool make_folder(char *folder, size_t bytes)
{
    const char *const places[] = {child_folder(), "/tmp"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(folder, bytes, "%s/gaugeblock-ranks-XXXXXX", places[i]);
        if (mkdtemp(folder))
            return true;
    }
    return false;
}

static void run_ranks(const struct worker_request *request, const struct gb_fixture *f, struct worker_result *result)
{
    enum { MOST_PROCESSES = 64 };
    const uint32_t count = f->exchanged.asked.ranks;
    char folder[4096];
    memset(result, 0, sizeof *result);
    if (count > MOST_PROCESSES || request->timing.samples) {
        result->verdict = VERDICT_NOT_RUN;
        if (request->timing.samples)
            snprintf(result->reason, sizeof result->reason, "kernels in one process a rank are not timed");
        else
            snprintf(result->reason, sizeof result->reason, "%u ranks, and a process for each; at most %d are started",
                     count, MOST_PROCESSES);
        return;
    }
    struct one *ranks = calloc(count, sizeof *ranks);
    if (!ranks || !make_folder(folder, sizeof folder)) {
        result->verdict = VERDICT_NOT_RUN;
        snprintf(result->reason, sizeof result->reason, "no folder %.400s for %u ranks: %s", folder, count,
                 ranks ? strerror(errno) : "no memory");
        free(ranks);
        return;
    }
    run_all(ranks, request, f, folder);
    judge_all(ranks, f, request->kernel, result);
    for (uint32_t r = 0; r < count; r++) {
        worker_result_free(&ranks[r].result);
        rank_part_free(&ranks[r].part);
    }
    free(ranks);
    delete_folder(folder);
}

void worker_run(const struct worker_request *request, const struct gb_fixture *fixture, struct worker_result *result)
{
    if (processes.count > 1) {
        worker_run_processes(request, fixture, result);
        return;
    }
    if (request->kernel->flags & GB_ONE_RANK && gb_fixture_exchanges(fixture)) {
        run_ranks(request, fixture, result);
        return;
    }
    struct worker_process *process = worker_start(request, fixture, result);
    if (process)
        worker_finish(process, request, request->timeout_s, fixture, result);
}
