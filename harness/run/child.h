/* SPDX-License-Identifier: Apache-2.0 */
/* This program in a process of its own, which may crash or hang and never outlives the one that started it; and the
 * files that such a process leaves, which have no names. */
#ifndef GB_HARNESS_RUN_CHILD_H
#define GB_HARNESS_RUN_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "gaugeblock.h"

/* Where a child finds what is shared with it: the first descriptor at CHILD_SHARED, the others behind it. */
enum { CHILD_SHARED = 3, MAX_SHARED = 80 };

struct child {
    pid_t process;
    int lifeline; /* of a guarded child: closed, it ends the child and all it started; else negative */
};

/* Starts this program with argv, standard output and errors both into `output`. environment: as of execve; shared:
 * [count] descriptors, count at most MAX_SHARED. The child is killed when the calling thread ends. Returns 0 or an
 * errno. */
int child_start(char *const *argv, char *const *environment, int output, const int *shared, unsigned count,
                struct child *child);
/* The same, for code that is not ours: when the child ends, or this process does in whatever way, all that it started
 * ends too, what made itself a session of its own included. */
int child_start_guarded(char *const *argv, char *const *environment, int output, const int *shared, unsigned count,
                        struct child *child);
/* The process in between: `gaugeblock guard COMMAND ARGUMENT...`, its standard input the lifeline. */
int guard_main(int argc, char **argv);

enum child_end { CHILD_ENDED, CHILD_TIMED_OUT };
/* Waits up to timeout_s seconds, then ends the child and everything it started. *status: as of waitpid. */
enum child_end child_wait(struct child *child, unsigned timeout_s, int *status);

/* "killed by signal 11 (Segmentation fault)" or "ended with exit code 3"; "" if it ended with exit code 0. */
const char *child_describe(int status, char *text, size_t bytes);

/* Where files for a child's use lie: TMPDIR, or /tmp. */
const char *child_folder(void);
/* A new file there, for reading and writing, that has no name and vanishes with its last descriptor. GB_EIO. */
enum gb_status child_file(int *descriptor, struct gb_error *error);

#endif
