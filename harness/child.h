/* SPDX-License-Identifier: Apache-2.0 */
/* This program in a process of its own, which may crash or hang; and the folder that such a process leaves files in. */
#ifndef GB_HARNESS_CHILD_H
#define GB_HARNESS_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

#include "gaugeblock.h"

/* Where a child finds what is shared with it. */
enum { CHILD_SHARED = 3 };
/* Starts this program with argv, standard output and errors both into `output`. environment: as of execve; shared: a
 * descriptor that the child has as CHILD_SHARED, or negative. Returns 0 or an errno. */
int child_start(char *const *argv, char *const *environment, int output, int shared, pid_t *child);

enum child_end { CHILD_ENDED, CHILD_TIMED_OUT };
/* Waits up to timeout_s seconds, then kills the child and everything it started. *status: as of waitpid. */
enum child_end child_wait(pid_t child, unsigned timeout_s, int *status);

/* "killed by signal 11 (Segmentation fault)" or "ended with exit code 3"; "" if it ended with exit code 0. */
const char *child_describe(int status, char *text, size_t bytes);

struct child_folder {
    char path[4096];
    int lock; /* an open descriptor of the folder, locked as long as it is in use */
};

/*
 * A new folder in TMPDIR (/tmp by default). From here to child_folder_close SIGINT, SIGTERM and SIGHUP end the child
 * that is waited for, and take effect once the folder is gone. Removes folders that killed runs left. GB_EIO.
 */
enum gb_status child_folder_open(struct child_folder *folder, struct gb_error *error);
void child_folder_close(struct child_folder *folder);

/* The signals' part of the two above. */
void child_hold_signals(void);
void child_release_signals(void);

/* In the child: it ends with its parent and writes no core file. */
void child_set_up(void);

#endif
