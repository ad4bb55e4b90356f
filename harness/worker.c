/* SPDX-License-Identifier: Apache-2.0 */
/* The parent's side of a worker: starts it, waits for it, reads what it left. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

static void remove_folder(const char *folder)
{
    DIR *directory = opendir(folder);
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char path[4400];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2)
            unlink(path);
    }
    closedir(directory);
    rmdir(folder);
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

static int start(const struct worker_request *request, const char *folder, pid_t *child)
{
    char batches[16 * MAX_BATCHES] = "", log[4200];
    for (uint32_t b = 0; b < request->batch_count; b++)
        snprintf(batches + strlen(batches), sizeof batches - strlen(batches), "%s%u", b ? "," : "",
                 request->batches[b]);
    snprintf(log, sizeof log, "%s/stderr", folder);
    char *argv[] = {
        "gaugeblock",   "worker", (char *)request->fixture, (char *)request->library, (char *)request->kernel, batches,
        (char *)folder, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    int code = posix_spawn(child, "/proc/self/exe", &actions, &attributes, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return code;
}

/* Waits up to timeout_s seconds, then kills the worker and everything it started. False on time-out. */
static bool wait_for(pid_t child, unsigned timeout_s, int *status)
{
    struct timespec begin, now, pause = {0, 5 * 1000 * 1000};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        pid_t got = waitpid(child, status, WNOHANG);
        if (got == child) {
            kill(-child, SIGKILL);
            return true;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec - begin.tv_sec >= (time_t)timeout_s) {
            kill(-child, SIGKILL);
            waitpid(child, status, 0);
            return false;
        }
        nanosleep(&pause, NULL);
    }
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
        status = gb_outputs_read(path, fixture, &result->outputs[b], &error);
        snprintf(path, sizeof path, "%s/batch-%u-again.h5", folder, request->batches[b]);
        if (status == GB_OK && access(path, R_OK) == 0)
            status = gb_outputs_read(path, fixture, &result->second[b], &error);
        if (status != GB_OK)
            fail(result, VERDICT_CRASH, "the worker's outputs cannot be read: %s", error.message);
    }
    json_decref(report);
}

void worker_run(const struct worker_request *request, const struct gb_fixture *fixture, struct worker_result *result)
{
    const char *temporary = getenv("TMPDIR");
    char folder[4096], line[300];
    pid_t child;
    int status;
    memset(result, 0, sizeof *result);
    snprintf(folder, sizeof folder, "%s/gaugeblock-XXXXXX", temporary && temporary[0] ? temporary : "/tmp");
    if (!mkdtemp(folder)) {
        fail(result, VERDICT_NOT_RUN, "%s: %s; set TMPDIR to a writable folder", folder, strerror(errno));
        return;
    }
    int code = start(request, folder, &child);
    if (code) {
        fail(result, VERDICT_NOT_RUN, "cannot start the worker: %s", strerror(code));
    } else if (!wait_for(child, request->timeout_s, &status)) {
        fail(result, VERDICT_CRASH, "no result after %u s; --timeout allows more", request->timeout_s);
    } else if (WIFSIGNALED(status)) {
        last_line(folder, line, sizeof line);
        fail(result, VERDICT_CRASH, "killed by signal %d (%s)%s", WTERMSIG(status), strsignal(WTERMSIG(status)), line);
    } else if (WEXITSTATUS(status) != 0) {
        last_line(folder, line, sizeof line);
        fail(result, VERDICT_CRASH, "the worker ended with exit code %d%s", WEXITSTATUS(status), line);
    } else {
        read_results(request, fixture, folder, result);
    }
    remove_folder(folder);
}

void worker_result_free(struct worker_result *result)
{
    for (uint32_t b = 0; b < MAX_BATCHES; b++) {
        gb_outputs_free(result->outputs[b]);
        gb_outputs_free(result->second[b]);
    }
    memset(result, 0, sizeof *result);
}
