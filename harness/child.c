/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/child.h"

/* The signal that came while a folder was in use; 0 if none did. */
static volatile sig_atomic_t interruption;

int child_start(char *const *argv, char *const *environment, int output, int shared, pid_t *child)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output, STDERR_FILENO);
    if (shared >= 0)
        posix_spawn_file_actions_adddup2(&actions, shared, CHILD_SHARED);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    int code = posix_spawn(child, "/proc/self/exe", &actions, &attributes, argv, environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return code;
}

enum child_end child_wait(pid_t child, unsigned timeout_s, int *status)
{
    enum { SHORTEST_PAUSE_NS = 100 * 1000, LONGEST_PAUSE_NS = 5 * 1000 * 1000 };
    struct timespec begin, now, pause = {0, SHORTEST_PAUSE_NS};
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        pid_t got = waitpid(child, status, WNOHANG);
        clock_gettime(CLOCK_MONOTONIC, &now);
        bool late = now.tv_sec - begin.tv_sec >= (time_t)timeout_s;
        if (got == child || late || interruption)
            kill(-child, SIGKILL);
        if (got == child)
            return CHILD_ENDED;
        if (late || interruption) {
            waitpid(child, status, 0);
            return CHILD_TIMED_OUT;
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LONGEST_PAUSE_NS)
            pause.tv_nsec *= 2;
    }
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

void child_set_up(void)
{
    struct rlimit no_core = {0, 0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CORE, &no_core);
}

/* Signals that end a program which cannot ignore them. */

static const int endings[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDINGS = sizeof endings / sizeof *endings };
static struct sigaction previous[ENDINGS];
static unsigned held; /* folders in use */

static void note(int signal)
{
    interruption = signal;
}

void child_hold_signals(void)
{
    struct sigaction action = {.sa_handler = note};
    sigemptyset(&action.sa_mask);
    if (held++)
        return;
    interruption = 0;
    for (int i = 0; i < ENDINGS; i++) {
        sigaction(endings[i], NULL, &previous[i]);
        if (previous[i].sa_handler != SIG_IGN)
            sigaction(endings[i], &action, NULL);
    }
}

void child_release_signals(void)
{
    if (--held)
        return;
    for (int i = 0; i < ENDINGS; i++)
        sigaction(endings[i], &previous[i], NULL);
    if (interruption)
        raise(interruption);
}
