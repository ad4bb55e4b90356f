/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's side of a worker: starts it, waits for it, reads what it left. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/child.h"
#include "harness/input.h"
#include "harness/worker.h"
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
static void last_line(const char *folder, char *line, size_t bytes)
{
    char path[4200], text[256];
    line[0] = '\0';
    snprintf(path, sizeof path, "%s/stderr", folder);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    while (fgets(text, sizeof text, file))
        if (text[0] != '\n') {
            text[strcspn(text, "\n")] = '\0';
            snprintf(line, bytes, ": %s", text);
        }
    fclose(file);
}

/* An empty report with room for what the child will say in it. Returns 0 or an errno. */
static int reserve_report(const char *folder)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/report.json", folder);
    int report = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (report < 0)
        return errno;
    int code = posix_fallocate(report, 0, WORKER_REPORT_BYTES);
    close(report);
    return code;
}

/* shared: the fixture's segment; negative: the child reads the file. */
static int start(const struct worker_request *request, int shared, const char *folder, pid_t *child)
{
    const char *fixture = shared < 0 ? request->fixture : "";
    char batches[16 * MAX_BATCHES] = "", log[4200];
    for (uint32_t b = 0; b < request->batch_count; b++)
        snprintf(batches + strlen(batches), sizeof batches - strlen(batches), "%s%u", b ? "," : "",
                 request->batches[b]);
    char *argv[] = {
        "gaugeblock",   "worker", (char *)fixture, (char *)request->library, (char *)request->kernel, batches,
        (char *)folder, NULL};
    snprintf(log, sizeof log, "%s/stderr", folder);
    int output = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (output < 0)
        return errno;
    int code = child_start(argv, environ, output, shared, child);
    close(output);
    return code;
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

static void read_results(const struct worker_request *request, const struct gb_fixture *fixture, const char *folder,
                         struct worker_result *result)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/report.json", folder);
    json_t *report = json_load_file(path, 0, NULL);
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
        snprintf(path, sizeof path, "%s/batch-%u.h5", folder, request->batches[b]);
        read_checks(json_array_get(json_object_get(report, "batches"), b), &result->checks[b]);
        read_checks(json_array_get(json_object_get(report, "routing"), b), &result->routing[b]);
        result->seconds[b] = json_number_value(json_array_get(json_object_get(report, "seconds"), b));
        int code = input_outputs(path, fixture, request->timeout_s, &result->outputs[b], &error);
        snprintf(path, sizeof path, "%s/batch-%u-again.h5", folder, request->batches[b]);
        if (code == EXIT_PASS && access(path, R_OK) == 0)
            code = input_outputs(path, fixture, request->timeout_s, &result->second[b], &error);
        if (code != EXIT_PASS) {
            fail(result, VERDICT_CRASH, "the worker's outputs cannot be read: %s", error.message);
            break;
        }
    }
    json_decref(report);
}

void worker_run(const struct worker_request *request, const struct gb_fixture *fixture, struct worker_result *result)
{
    struct child_folder folder;
    struct gb_error error;
    char line[300], how[128];
    pid_t child;
    int status;
    memset(result, 0, sizeof *result);
    if (child_folder_open(&folder, &error) != GB_OK) {
        fail(result, VERDICT_NOT_RUN, "%s", error.message);
        return;
    }
    int code = reserve_report(folder.path);
    if (code) {
        fail(result, VERDICT_NOT_RUN, "%s: %s; set TMPDIR to a folder with room", folder.path, strerror(code));
        child_folder_close(&folder);
        return;
    }
    code = start(request, fixture->segment ? fixture->descriptor : -1, folder.path, &child);
    if (code) {
        fail(result, VERDICT_NOT_RUN, "cannot start the worker: %s", strerror(code));
    } else if (child_wait(child, request->timeout_s, &status) != CHILD_ENDED) {
        fail(result, VERDICT_CRASH, "no result after %u s; --timeout allows more", request->timeout_s);
    } else if (child_describe(status, how, sizeof how)[0]) {
        last_line(folder.path, line, sizeof line);
        fail(result, VERDICT_CRASH, "%s%s", how, line);
    } else {
        read_results(request, fixture, folder.path, result);
    }
    child_folder_close(&folder);
}

void worker_result_free(struct worker_result *result)
{
    for (uint32_t b = 0; b < MAX_BATCHES; b++) {
        gb_outputs_free(result->outputs[b]);
        gb_outputs_free(result->second[b]);
    }
    memset(result, 0, sizeof *result);
}
