/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's side of a worker: starts it, waits for it, reads what it left. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/run/child.h"
#include "harness/run/environment.h"
#include "harness/run/operators.h"
#include "harness/run/session_arrays.h"
#include "harness/run/text.h"
#include "harness/run/worker.h"
#include "harness/run/written.h"
#include "quant/quant.h"

extern char **environ;

static void fail(struct worker_result *r, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void fail(struct worker_result *r, enum verdict verdict, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    r->verdict = verdict;
    vsnprintf(r->reason, sizeof r->reason, format, list);
    va_end(list);
}

/* What parent and child share, in files that vanish with both. */
struct files {
    int log;                      /* what the child prints */
    int shared[MAX_WORKER_FILES]; /* the first of them is the request's or the fixture's */
    unsigned count;
};

static void close_files(struct files *f)
{
    for (unsigned i = WORKER_REPORT; i < f->count; i++)
        close(f->shared[i]);
    if (f->log >= 0)
        close(f->log);
}

static enum gb_status open_files(struct files *f, int fixture, uint32_t batches, struct gb_error *error)
{
    unsigned wanted = WORKER_OUTPUTS + 2 * batches;
    enum gb_status status = GB_OK;
    f->shared[WORKER_FIXTURE] = fixture;
    f->count = WORKER_REPORT;
    f->log = child_memory("said", CHILD_LOG);
    if (f->log >= 0 && (f->shared[WORKER_REPORT] = child_memory("report", WORKER_REPORT_BYTES)) >= 0)
        f->count++;
    else
        status = gb_fail(error, GB_EIO, "no memory file for the worker: %s", strerror(errno));
    while (status == GB_OK && f->count < wanted && (status = child_file(&f->shared[f->count], error)) == GB_OK)
        f->count++;
    if (status != GB_OK)
        close_files(f);
    return status;
}

/* What one file of outputs may come to, twice. */
static uint64_t output_bytes(const struct gb_fixture *f, uint32_t tokens)
{
    const struct gb_shape *s = &f->shape;
    uint64_t token =
        (uint64_t)s->hidden * (2 * sizeof(double)) + (uint64_t)s->top_k * (4 * (uint64_t)s->intermediate + 16);
    return 2 * f->layers * tokens * token;
}

/* The environment of code that is not ours: what malloc hands out is no zeros, but large as FP32 and as bf16. What
 * threads keep for themselves would be handed out as it was freed. OpenMP's threads do not spin between runs. Code that
 * is timed has malloc and threads as they are. */
static char **worker_environment(bool timed)
{
    static char *const fill[] = {"MALLOC_PERTURB_=129", /* 0x81, whose complement 0x7E malloc fills with */
                                 "GLIBC_TUNABLES=glibc.malloc.tcache_count=0"};
    enum { FILLS = sizeof fill / sizeof *fill, OTHERS = 1 };
    size_t count = 0;
    while (environ[count])
        count++;
    char **environment = malloc((count + FILLS + OTHERS + 1) * sizeof *environment);
    if (!environment)
        return NULL;
    memcpy(environment, environ, count * sizeof *environment);
    if (!timed && !getenv("MALLOC_PERTURB_") && !getenv("GLIBC_TUNABLES"))
        for (size_t i = 0; i < FILLS; i++)
            environment[count++] = fill[i];
    if (!timed && !getenv("OMP_WAIT_POLICY") && !getenv("GOMP_SPINCOUNT"))
        environment[count++] = "OMP_WAIT_POLICY=passive";
    environment[count] = NULL;
    return environment;
}

static int start(const struct worker_request *request, const struct gb_fixture *f, const struct files *files,
                 struct child *child)
{
    char batches[16 * MAX_BATCHES] = "", fixture[32] = "", samples[16], cache[24];
    uint32_t most = request->batches[request->batch_count - 1];
    struct child_limits limits = {request->timeout_s, output_bytes(f, most)};
    if (!f->segment)
        snprintf(fixture, sizeof fixture, "/proc/self/fd/%d", CHILD_SHARED + WORKER_FIXTURE);
    for (uint32_t b = 0; b < request->batch_count; b++)
        snprintf(batches + strlen(batches), sizeof batches - strlen(batches), "%s%u", b ? "," : "",
                 request->batches[b]);
    char *argv[] = {
        "gaugeblock", "worker", fixture, (char *)request->library, (char *)request->kernel->name, batches, NULL, NULL,
        NULL,         NULL,     NULL};
    if (request->timing.samples) {
        snprintf(samples, sizeof samples, "%u", request->timing.samples);
        argv[6] = "timed";
        argv[7] = samples;
        argv[8] = request->timing.hot ? "hot" : "cold";
        snprintf(cache, sizeof cache, "%llu", (unsigned long long)request->timing.cache);
        argv[9] = cache;
    } else if (request->rank) {
        argv[6] = "rank";
        argv[7] = (char *)request->rank;
        argv[8] = (char *)request->rendezvous;
    }
    char **environment = worker_environment(request->timing.samples > 0);
    if (!environment)
        return ENOMEM;
    int code = child_start_guarded(argv, environment, files->log, files->shared, files->count, &limits, child);
    free(environment);
    return code;
}

/* A number of the report that nothing below zero makes huge. */
static uint64_t count_of(const json_t *object, const char *name)
{
    json_int_t value = json_integer_value(json_object_get(object, name));
    return value > 0 ? (uint64_t)value : 0;
}

static void read_checks(const json_t *object, struct worker_checks *c)
{
    const char *where = json_string_value(json_object_get(object, "where"));
    c->canary_broken = json_is_true(json_object_get(object, "canary_broken"));
    c->input_changed = json_is_true(json_object_get(object, "input_changed"));
    c->unwritten = count_of(object, "unwritten");
    c->differing = count_of(object, "differing");
    printable(where ? where : "", c->where, sizeof c->where);
}

static enum verdict verdict_of_status(enum gb_status status)
{
    switch (status) {
    case GB_EUNSUPPORTED:
        return VERDICT_UNSUPPORTED;
    case GB_EIO:
    case GB_ENOMEM:
        return VERDICT_NOT_RUN;
    case GB_EDEVICE:
        return VERDICT_CRASH;
    default:
        return VERDICT_FAIL;
    }
}

/* Outputs of both runs of batch b. */
static enum gb_status read_outputs(const struct worker_request *request, const struct gb_fixture *fixture,
                                   const struct files *files, uint32_t b, struct worker_result *result,
                                   struct gb_error *error)
{
    const int *file = &files->shared[WORKER_OUTPUTS + 2 * b];
    const uint32_t tokens = request->batches[b];
    bool with_stack = b == request->batch_count - 1 && operator_has_stack(request->kernel, fixture);
    struct stat about;
    enum gb_status status =
        written_receive(file[0], request->kernel, fixture, tokens, with_stack, &result->outputs[b], error);
    if (status == GB_OK && (fstat(file[1], &about) || about.st_size > 0))
        status = written_receive(file[1], request->kernel, fixture, tokens, false, &result->second[b], error);
    return status;
}

static double seconds_of(const json_t *value)
{
    double seconds = json_number_value(value);
    return seconds >= 0 ? seconds : 0;
}

/* Seconds of one kind of every sample, which the report has in nanoseconds. */
static bool read_samples(const json_t *object, const char *name, struct timing *t, size_t place)
{
    const json_t *list = json_object_get(object, name);
    for (uint32_t i = 0; i < t->samples; i++) {
        double seconds = 1e-9 * (double)json_integer_value(json_array_get(list, i));
        if (!(seconds > 0))
            return false;
        memcpy((char *)&t->sample[i] + place, &seconds, sizeof seconds);
    }
    return true;
}

/* false: they are no times. */
static bool read_timing(const json_t *object, const struct timing_request *asked, struct timing *t)
{
    t->samples = asked->samples;
    t->copies = (uint32_t)count_of(object, "copies");
    t->runs = (uint32_t)count_of(object, "runs");
    t->launches = (uint32_t)count_of(object, "launches");
    t->weights = count_of(object, "weights");
    t->bytes = count_of(object, "bytes");
    t->cache_bytes = count_of(object, "cache_bytes");
    t->large_bytes = count_of(object, "large_bytes");
    t->prepare_s = 1e-9 * (double)count_of(object, "prepare_ns");
    return t->copies && t->runs && t->bytes &&
           read_samples(object, "run_ns", t, offsetof(struct timing_sample, run_s)) &&
           read_samples(object, "read_ns", t, offsetof(struct timing_sample, read_s)) &&
           read_samples(object, "large_ns", t, offsetof(struct timing_sample, large_s));
}

/* The report that the worker left; NULL, and result says why: none, or nothing that a worker writes. */
static json_t *load_report(int file, struct worker_result *result)
{
    struct gb_error ignored;
    char *text = malloc(WORKER_REPORT_BYTES);
    json_t *report = NULL;
    if (!text) {
        fail(result, VERDICT_NOT_RUN, "no memory for the worker's report");
        return NULL;
    }
    if (child_read(file, 0, text, WORKER_REPORT_BYTES, &ignored) == GB_OK)
        report = json_loadb(text, strnlen(text, WORKER_REPORT_BYTES), 0, NULL);
    free(text);
    if (!json_is_integer(json_object_get(report, "status")) || !json_is_string(json_object_get(report, "message"))) {
        json_decref(report);
        fail(result, VERDICT_CRASH, "the worker ended before the kernel was done, as if it had called exit()");
        return NULL;
    }
    return report;
}

static void read_results(const struct worker_request *request, const struct gb_fixture *fixture,
                         const struct files *files, struct worker_result *result)
{
    char message[sizeof((struct gb_error){0}.message)];
    json_t *report = load_report(files->shared[WORKER_REPORT], result);
    if (!report)
        return;
    environment_describe((unsigned)count_of(report, "loading_changed"), (unsigned)count_of(report, "calls_changed"),
                         result->note, sizeof result->note);
    enum gb_status status = (enum gb_status)json_integer_value(json_object_get(report, "status"));
    if (status == GB_ENOMEM && json_is_true(json_object_get(report, "less_room")))
        fail(result, VERDICT_CRASH, "the library or the kernel limited its own process's memory (RLIMIT_AS): %s",
             printable(json_string_value(json_object_get(report, "message")), message, sizeof message));
    else if (status != GB_OK)
        fail(result, verdict_of_status(status), "%s: %s", gb_status_name(status),
             printable(json_string_value(json_object_get(report, "message")), message, sizeof message));
    for (uint32_t b = 0; status == GB_OK && b < request->batch_count; b++) {
        struct gb_error error;
        read_checks(json_array_get(json_object_get(report, "batches"), b), &result->checks[b]);
        read_checks(json_array_get(json_object_get(report, "routing"), b), &result->routing[b]);
        result->seconds[b] = seconds_of(json_array_get(json_object_get(report, "seconds"), b));
        if (request->timing.samples &&
            !read_timing(json_array_get(json_object_get(report, "timing"), b), &request->timing, &result->timing[b])) {
            fail(result, VERDICT_CRASH, "the worker left no times for %u tokens", request->batches[b]);
            break;
        }
        status = read_outputs(request, fixture, files, b, result, &error);
        if (status != GB_OK)
            fail(result, status == GB_ENOMEM ? VERDICT_NOT_RUN : VERDICT_CRASH,
                 "the worker's outputs cannot be read: %s", error.message);
    }
    json_decref(report);
}

struct worker_process {
    struct files files;
    struct child child;
};

struct worker_process *worker_start(const struct worker_request *request, const struct gb_fixture *fixture,
                                    struct worker_result *result)
{
    struct gb_error error;
    struct worker_process *p = malloc(sizeof *p);
    memset(result, 0, sizeof *result);
    if (!p) {
        fail(result, VERDICT_NOT_RUN, "no memory for a worker");
        return NULL;
    }
    if (open_files(&p->files, fixture->segment ? fixture->descriptor : request->fixture, request->batch_count,
                   &error) != GB_OK) {
        fail(result, VERDICT_NOT_RUN, "%s", error.message);
        free(p);
        return NULL;
    }
    int code = start(request, fixture, &p->files, &p->child);
    if (!code)
        return p;
    fail(result, VERDICT_NOT_RUN, "cannot start the worker: %s", strerror(code));
    close_files(&p->files);
    free(p);
    return NULL;
}

bool worker_has_ended(const struct worker_process *p)
{
    return child_has_ended(&p->child);
}

bool worker_finish(struct worker_process *p, const struct worker_request *request, unsigned timeout_s,
                   const struct gb_fixture *fixture, struct worker_result *result)
{
    char said[CHILD_SAID], how[128];
    int status;
    bool ended = child_wait(&p->child, timeout_s, &status) == CHILD_ENDED;
    if (!ended)
        fail(result, VERDICT_CRASH, "no result after %u s; --timeout allows more", request->timeout_s);
    else if (child_describe(status, how, sizeof how)[0])
        fail(result, VERDICT_CRASH, "%s%s", how, child_said(p->files.log, said, sizeof said));
    else
        read_results(request, fixture, &p->files, result);
    close_files(&p->files);
    free(p);
    return ended;
}

void worker_result_free(struct worker_result *result)
{
    for (uint32_t b = 0; b < MAX_BATCHES; b++) {
        gb_outputs_free(result->outputs[b]);
        gb_outputs_free(result->second[b]);
    }
    memset(result, 0, sizeof *result);
}
