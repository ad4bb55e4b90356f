/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/adopted.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What /proc/PID/stat says; false: it is gone. */
static bool look_up(const char *number, long *parent, unsigned long long *begin)
{
    char path[300], line[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", number);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    const char *behind = strrchr(line, ')'); /* of the command's name, which may hold anything */
    return behind &&
           sscanf(behind, ") %*c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", parent,
                  begin) == 2;
}

unsigned long long adopted_begin(pid_t process)
{
    char number[24];
    long parent;
    unsigned long long begin;
    snprintf(number, sizeof number, "%ld", (long)process);
    return look_up(number, &parent, &begin) ? begin : 0;
}

static bool is_own(pid_t process, const pid_t *own, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (own[i] == process)
            return true;
    return false;
}

/* Returns whether there was one that could be killed, or had ended. */
static bool kill_adopted(const pid_t *own, unsigned count, unsigned long long since)
{
    bool any = false;
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes && (entry = readdir(processes));) {
        const char *name = entry->d_name;
        pid_t process = (pid_t)atol(name);
        long parent;
        unsigned long long begin;
        if (name[strspn(name, "0123456789")] || is_own(process, own, count) || !look_up(name, &parent, &begin) ||
            parent != getpid() || begin < since)
            continue;
        any |= kill(process, SIGKILL) == 0;
        waitpid(process, NULL, WNOHANG | __WALL);
    }
    if (processes)
        closedir(processes);
    return any;
}

void adopted_end(const pid_t *own, unsigned count, unsigned long long since)
{
    const struct timespec pause = {0, 1000 * 1000};
    siginfo_t ignored;
    /* Mostly there are no children at all, which is quickly asked. */
    while (waitid(P_ALL, 0, &ignored, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 && kill_adopted(own, count, since))
        nanosleep(&pause, NULL);
}
