/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/run/adopted.h"
#include "harness/run/child.h"
#include "harness/run/text.h"
#include "quant/quant.h"

enum { MAX_CHILDREN = 128 }; /* more than ever run at a time */

struct start {
    char *const *argv, *const *environment;
    int input, output; /* input: negative for /dev/null */
    const int *shared; /* [count] */
    unsigned count;
    const struct child_limits *limits; /* NULL: none */
    long processors;
    pid_t parent;
    sigset_t mask;
    volatile int failure; /* errno of what failed */
};

/* Descriptors as the child is to have them: out of each other's way first, then each to its place. */
static bool place_descriptors(const struct start *s)
{
    int aside[MAX_SHARED];
    int input = s->input < 0 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : s->input;
    bool good = input >= 0 && dup2(input, STDIN_FILENO) >= 0 && dup2(s->output, STDOUT_FILENO) >= 0 &&
                dup2(STDOUT_FILENO, STDERR_FILENO) >= 0;
    for (unsigned i = 0; good && i < s->count; i++)
        good = (aside[i] = fcntl(s->shared[i], F_DUPFD_CLOEXEC, CHILD_SHARED + (int)s->count)) >= 0;
    for (unsigned i = 0; good && i < s->count; i++)
        good = dup2(aside[i], CHILD_SHARED + (int)i) >= 0;
    (void)close_range((unsigned)CHILD_SHARED + s->count, ~0u, 0); /* what this process's caller left open, too */
    return good;
}

/* What a runaway may use: every processor for as long as it has, and no file that fills the disk. */
static void limit(const struct start *s)
{
    enum { CPU_SPARE_S = 10 };
    static const struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    if (!s->limits)
        return;
    rlim_t seconds = (rlim_t)s->limits->timeout_s * (rlim_t)s->processors + CPU_SPARE_S;
    setrlimit(RLIMIT_CPU, &(struct rlimit){seconds, seconds});
    rlim_t bytes = CHILD_FILE_BYTES + s->limits->file_bytes;
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, bytes});
}

/* The child's part, in memory that it shares with its parent, which waits. A parent that ended before the first line
 * could take effect is not the parent any more. */
static _Noreturn void become(struct start *s)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != s->parent)
        _exit(EXIT_FAILURE);
    setsid(); /* a group of its own, and no terminal to write to */
    limit(s);
    if (place_descriptors(s)) {
        sigprocmask(SIG_SETMASK, &s->mask, NULL);
        execve("/proc/self/exe", s->argv, s->environment);
    }
    s->failure = errno;
    _exit(EXIT_FAILURE);
}

/* The children of this process that it started and has not waited for, and when the first that is guarded began: what
 * is its child besides, and began later, is what a guard left that was killed. */
static struct {
    pid_t process[MAX_CHILDREN];
    unsigned count;
    unsigned long long since;
} running;

static void forget(pid_t process)
{
    for (unsigned i = 0; i < running.count; i++)
        if (running.process[i] == process)
            running.process[i--] = running.process[--running.count];
}

/* Not fork: this process may hold gigabytes, and threads. Signals wait, since handlers would run in the shared memory.
 */
static int start(struct start *s, struct child *child)
{
    sigset_t all;
    int status;
    if (running.count == MAX_CHILDREN)
        return EAGAIN;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &s->mask);
    s->parent = getpid();
    s->processors = sysconf(_SC_NPROCESSORS_CONF);
    child->process = vfork();
    if (child->process == 0)
        become(s);
    int code = child->process < 0 ? errno : s->failure;
    pthread_sigmask(SIG_SETMASK, &s->mask, NULL);
    if (code && child->process > 0)
        waitpid(child->process, &status, 0);
    else if (!code)
        running.process[running.count++] = child->process;
    return code;
}

int child_start(char *const *argv, char *const *environment, int output, const int *shared, unsigned count,
                struct child *child)
{
    struct start s = {
        .argv = argv, .environment = environment, .input = -1, .output = output, .shared = shared, .count = count};
    child->lifeline = -1;
    return start(&s, child);
}

int child_start_guarded(char *const *argv, char *const *environment, int output, const int *shared, unsigned count,
                        const struct child_limits *limits, struct child *child)
{
    enum { MAX_ARGUMENTS = 16 };
    char *guarded[MAX_ARGUMENTS + 1] = {argv[0], "guard"};
    int lifeline[2];
    for (unsigned i = 1; argv[i]; i++) {
        if (i + 1 == MAX_ARGUMENTS)
            return E2BIG;
        guarded[i + 1] = argv[i];
    }
    if (pipe2(lifeline, O_CLOEXEC))
        return errno;
    prctl(PR_SET_DUMPABLE, 0); /* what runs there, as the same user, cannot trace this process or see its memory */
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* where it can kill its guard, what that watched becomes this process's */
    struct start s = {.argv = guarded,
                      .environment = environment,
                      .input = lifeline[0],
                      .output = output,
                      .shared = shared,
                      .count = count,
                      .limits = limits};
    int code = start(&s, child);
    close(lifeline[0]);
    child->lifeline = lifeline[1];
    if (code)
        close(lifeline[1]);
    else if (!running.since)
        running.since = adopted_begin(child->process);
    return code;
}

/* Ends the child and what it started: a guarded one by its guard, unless that does not answer. */
static void end(struct child *child, bool answers)
{
    if (child->lifeline >= 0)
        close(child->lifeline);
    else if (!answers)
        kill(-child->process, SIGKILL);
    child->lifeline = -1;
}

/* Whether the child has ended. *stopped: whether a signal has stopped it, which it did not send itself. */
static bool has_ended(const struct child *child, int *status, bool *stopped)
{
    if (waitpid(child->process, status, WNOHANG | WUNTRACED | WCONTINUED) != child->process)
        return false;
    *stopped = WIFSTOPPED(*status);
    return WIFEXITED(*status) || WIFSIGNALED(*status);
}

bool child_has_ended(const struct child *child)
{
    siginfo_t about = {0};
    return waitid(P_PID, (id_t)child->process, &about, WEXITED | WNOHANG | WNOWAIT) != 0 || about.si_pid != 0;
}

enum child_end child_wait(struct child *child, unsigned timeout_s, int *status)
{
    enum { SHORTEST_PAUSE_NS = 100 * 1000, LONGEST_PAUSE_NS = 5 * 1000 * 1000, GUARD_S = 10 };
    struct timespec begin, now, pause = {0, SHORTEST_PAUSE_NS};
    bool guarded = child->lifeline >= 0, stopped = false;
    enum child_end how = CHILD_ENDED;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (!has_ended(child, status, &stopped)) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        double seconds = (double)(now.tv_sec - begin.tv_sec) + 1e-9 * (double)(now.tv_nsec - begin.tv_nsec);
        if (seconds >= (double)timeout_s) {
            how = CHILD_TIMED_OUT;
            end(child, guarded && !stopped && seconds < (double)timeout_s + GUARD_S);
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LONGEST_PAUSE_NS)
            pause.tv_nsec *= 2;
    }
    end(child, true);
    forget(child->process);
    if (guarded)
        adopted_end(running.process, running.count, running.since);
    return how;
}

const char *child_describe(int status, char *text, size_t bytes)
{
    text[0] = '\0';
    if (WIFSIGNALED(status))
        snprintf(text, bytes, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status))
        snprintf(text, bytes, "ended with exit code %d", WEXITSTATUS(status));
    return text;
}

const char *child_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder && folder[0] ? folder : "/tmp";
}

enum gb_status child_file(int *descriptor, struct gb_error *error)
{
    *descriptor = memfd_create("file", MFD_CLOEXEC);
    return *descriptor >= 0 ? GB_OK : gb_fail(error, GB_EIO, "no file in memory: %s", strerror(errno));
}

int child_memory(const char *name, size_t bytes)
{
    int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file >= 0 && (ftruncate(file, (off_t)bytes) || fcntl(file, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK))) {
        int code = errno;
        close(file);
        errno = code;
        return -1;
    }
    return file;
}

enum gb_status child_read(int file, size_t from, void *content, size_t bytes, struct gb_error *error)
{
    for (size_t at = 0; at < bytes;) {
        ssize_t got = pread(file, (char *)content + at, bytes - at, (off_t)(from + at));
        if (got <= 0 && errno != EINTR)
            return gb_fail(error, GB_EIO, "what a process left cannot be read");
        at += got > 0 ? (size_t)got : 0;
    }
    return GB_OK;
}

const char *child_said(int log, char *text, size_t bytes)
{
    struct gb_error ignored;
    char *said = malloc(CHILD_LOG + 1), *last = NULL, line[200];
    text[0] = '\0';
    if (said && child_read(log, 0, said, CHILD_LOG, &ignored) == GB_OK) {
        said[CHILD_LOG] = '\0';
        for (char *at = strtok(said, "\n"); at; at = strtok(NULL, "\n"))
            last = at;
    }
    if (last)
        snprintf(text, bytes, "; its last line: %s", printable(last, line, sizeof line));
    free(said);
    return text;
}
