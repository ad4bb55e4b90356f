/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's side of a worker: starts it, waits for it, reads what it left. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/run/child.h"
#include "harness/run/probe.h"
#include "harness/run/worker.h"
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

/* The last line the worker printed, for the reason. */
static void last_line(int log, char *line, size_t bytes)
{
    char text[256];
    line[0] = '\0';
    FILE *file = fdopen(dup(log), "r");
    if (!file)
        return;
    rewind(file);
    while (fgets(text, sizeof text, file))
        if (text[0] != '\n') {
            text[strcspn(text, "\n")] = '\0';
            snprintf(line, bytes, ": %s", text);
        }
    fclose(file);
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
    f->shared[WORKER_FIXTURE] = fixture;
    f->count = WORKER_REPORT;
    enum gb_status status = child_file(&f->log, error);
    while (status == GB_OK && f->count < wanted && (status = child_file(&f->shared[f->count], error)) == GB_OK)
        f->count++;
    int code = status == GB_OK ? posix_fallocate(f->shared[WORKER_REPORT], 0, WORKER_REPORT_BYTES) : 0;
    if (code)
        status = gb_fail(error, GB_EIO, "%s: %s; set TMPDIR to a folder with room", child_folder(), strerror(code));
    if (status != GB_OK)
        close_files(f);
    return status;
}

static int start(const struct worker_request *request, bool received, const struct files *files, struct child *child)
{
    char batches[16 * MAX_BATCHES] = "", fixture[32] = "";
    if (!received)
        snprintf(fixture, sizeof fixture, "/proc/self/fd/%d", CHILD_SHARED + WORKER_FIXTURE);
    for (uint32_t b = 0; b < request->batch_count; b++)
        snprintf(batches + strlen(batches), sizeof batches - strlen(batches), "%s%u", b ? "," : "",
                 request->batches[b]);
    char *argv[] = {"gaugeblock", "worker", fixture, (char *)request->library, (char *)request->kernel, batches, NULL};
    return child_start_guarded(argv, environ, files->log, files->shared, files->count, child);
}

static void read_checks(const json_t *object, struct worker_checks *c)
{
    const char *where = json_string_value(json_object_get(object, "where"));
    c->canary_broken = json_is_true(json_object_get(object, "canary_broken"));
    c->input_changed = json_is_true(json_object_get(object, "input_changed"));
    c->unwritten = (uint64_t)json_integer_value(json_object_get(object, "unwritten"));
    c->differing = (uint64_t)json_integer_value(json_object_get(object, "differing"));
    snprintf(c->where, sizeof c->where, "%s", where ? where : "");
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

/* Outputs that the worker left, if it did. */
static int read_outputs(const struct worker_request *request, const struct gb_fixture *fixture, int file,
                        struct gb_outputs **outputs, struct gb_error *error)
{
    struct stat about;
    if (fstat(file, &about) == 0 && about.st_size == 0)
        return EXIT_PASS;
    return input_shared_outputs(file, fixture, request->timeout_s, outputs, error);
}

static void read_results(const struct worker_request *request, const struct gb_fixture *fixture,
                         const struct files *files, struct worker_result *result)
{
    lseek(files->shared[WORKER_REPORT], 0, SEEK_SET);
    json_t *report = json_loadfd(files->shared[WORKER_REPORT], 0, NULL);
    if (!report) {
        fail(result, VERDICT_CRASH, "the worker ended before the kernel was done, as if it had called exit()");
        return;
    }
    enum gb_status status = (enum gb_status)json_integer_value(json_object_get(report, "status"));
    if (status != GB_OK)
        fail(result, verdict_of_status(status), "%s: %s", gb_status_name(status),
             json_string_value(json_object_get(report, "message")));
    for (uint32_t b = 0; status == GB_OK && b < request->batch_count; b++) {
        struct gb_error error;
        const int *file = &files->shared[WORKER_OUTPUTS + 2 * b];
        read_checks(json_array_get(json_object_get(report, "batches"), b), &result->checks[b]);
        read_checks(json_array_get(json_object_get(report, "routing"), b), &result->routing[b]);
        result->seconds[b] = json_number_value(json_array_get(json_object_get(report, "seconds"), b));
        int code = input_shared_outputs(file[0], fixture, request->timeout_s, &result->outputs[b], &error);
        if (code == EXIT_PASS)
            code = read_outputs(request, fixture, file[1], &result->second[b], &error);
        if (code != EXIT_PASS) {
            fail(result, VERDICT_CRASH, "the worker's outputs cannot be read: %s", error.message);
            break;
        }
    }
    json_decref(report);
}

void worker_run(const struct worker_request *request, const struct gb_fixture *fixture, struct worker_result *result)
{
    struct files files;
    struct gb_error error;
    struct child child;
    char line[300], how[128];
    int status;
    memset(result, 0, sizeof *result);
    if (open_files(&files, fixture->segment ? fixture->descriptor : request->fixture, request->batch_count, &error) !=
        GB_OK) {
        fail(result, VERDICT_NOT_RUN, "%s", error.message);
        return;
    }
    int code = start(request, fixture->segment, &files, &child);
    if (code) {
        fail(result, VERDICT_NOT_RUN, "cannot start the worker: %s", strerror(code));
    } else if (child_wait(&child, request->timeout_s, &status) != CHILD_ENDED) {
        fail(result, VERDICT_CRASH, "no result after %u s; --timeout allows more", request->timeout_s);
    } else if (child_describe(status, how, sizeof how)[0]) {
        last_line(files.log, line, sizeof line);
        fail(result, VERDICT_CRASH, "%s%s", how, line);
    } else {
        read_results(request, fixture, &files, result);
    }
    close_files(&files);
}

void worker_result_free(struct worker_result *result)
{
    for (uint32_t b = 0; b < MAX_BATCHES; b++) {
        gb_outputs_free(result->outputs[b]);
        gb_outputs_free(result->second[b]);
    }
    memset(result, 0, sizeof *result);
}
