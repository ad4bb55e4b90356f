/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process between the program and code that is not ours. It adopts whatever that code starts and leaves, and ends
 * all of it with the code itself, or when the lifeline closes: the program gave up, or is gone, however it went.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/run/child.h"
#include "harness/run/verdict.h"

extern char **environ;

/* Whether the process of that number is a child of this one. */
static bool is_ours(const char *number)
{
    char path[300], line[512];
    snprintf(path, sizeof path, "/proc/%s/stat", number);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    const char *behind = strrchr(line, ')'); /* of the command's name, which may hold anything */
    long parent;
    return behind && sscanf(behind, ") %*c %ld", &parent) == 1 && parent == getpid();
}

/* Kills every child. Returns whether there was one that could be. */
static bool kill_children(void)
{
    bool any = false;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));)
        if (entry->d_name[strspn(entry->d_name, "0123456789")] == '\0' && is_ours(entry->d_name) &&
            kill((pid_t)atol(entry->d_name), SIGKILL) == 0)
            any = true;
    if (processes)
        closedir(processes);
    return any;
}

/* The children of one that is killed become ours, until there are none. */
static void end_all(void)
{
    const struct timespec pause = {0, 1000 * 1000};
    for (;;) {
        pid_t ended;
        while ((ended = waitpid(-1, NULL, WNOHANG | __WALL)) > 0)
            ;
        if (ended < 0 || !kill_children())
            return;
        nanosleep(&pause, NULL);
    }
}

/* A pipe that SIGCHLD writes to, in whichever thread it arrives: libraries have started some. */
static int endings[2];

static void note_ending(int signal)
{
    (void)signal;
    int reason = errno;
    if (write(endings[1], "", 1) < 0)
        errno = reason; /* full: there is enough to read */
}

static bool listen_for_endings(void)
{
    struct sigaction action = {.sa_handler = note_ending, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    return pipe2(endings, O_CLOEXEC | O_NONBLOCK) == 0 && sigaction(SIGCHLD, &action, NULL) == 0;
}

/* Waits for the child and for those that it left to us. Returns whether it ended before the lifeline did. */
static bool watch(pid_t child, int *status)
{
    struct pollfd events[] = {{STDIN_FILENO, 0, 0}, {endings[0], POLLIN, 0}};
    for (;;) {
        char noted[64];
        if (poll(events, 2, -1) < 0 && errno != EINTR)
            return false;
        if (read(endings[0], noted, sizeof noted) > 0)
            for (pid_t ended; (ended = waitpid(-1, status, WNOHANG | __WALL)) > 0;)
                if (ended == child)
                    return true;
        if (events[0].revents)
            return false;
    }
}

int guard_main(int argc, char **argv)
{
    struct child child;
    int status;
    if (argc < 2) {
        fprintf(stderr, "gaugeblock guard: is run by gaugeblock verify\n");
        return EXIT_USAGE;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, 0); /* from here on the lifeline tells */
    int code = listen_for_endings() ? child_start(argv, environ, STDERR_FILENO, NULL, 0, &child) : errno;
    if (code) {
        fprintf(stderr, "gaugeblock guard: cannot start a process: %s\n", strerror(code));
        return EXIT_CRASH;
    }
    bool ended = watch(child.process, &status);
    end_all();
    if (!ended)
        return EXIT_CRASH;
    if (WIFSIGNALED(status)) { /* ends as the child did */
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_CRASH;
}
