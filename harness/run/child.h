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
/* What the child and all that it starts may use: processors for timeout_s seconds each, and files of at most
 * CHILD_FILE_BYTES + file_bytes. */
struct child_limits {
    unsigned timeout_s;
    uint64_t file_bytes;
};
#define CHILD_FILE_BYTES (UINT64_C(1) << 30)
/* The same, for code that is not ours: when the child ends, or this process does in whatever way, all that it started
 * ends too, what made itself a session of its own included. Where the kernel allows, it sees no processes but those
 * (a PID namespace), so that it can end no other. */
int child_start_guarded(char *const *argv, char *const *environment, int output, const int *shared, unsigned count,
                        const struct child_limits *limits, struct child *child);
/* The process in between: `gaugeblock guard worker|table ARGUMENT...`, its standard input the lifeline. What it guards
 * is a fork of it, which shows the same command line. */
int guard_main(int argc, char **argv);

/* Whether the child has ended, which still is to be waited for. */
bool child_has_ended(const struct child *child);
enum child_end { CHILD_ENDED, CHILD_TIMED_OUT };
/* Waits up to timeout_s seconds, then ends the child and everything it started. *status: as of waitpid. */
enum child_end child_wait(struct child *child, unsigned timeout_s, int *status);

/* "killed by signal 11 (Segmentation fault)" or "ended with exit code 3"; "" if it ended with exit code 0. */
const char *child_describe(int status, char *text, size_t bytes);

/* A file in memory of so many zero bytes, whose size nobody can change; negative, and errno: there is none. */
int child_memory(const char *name, size_t bytes);
/* Its content from byte `from` on, or that of another file, once the child has ended. GB_EIO. */
enum gb_status child_read(int file, size_t from, void *content, size_t bytes, struct gb_error *error);
/* What a child may print, into a file of child_memory: more is lost. */
enum { CHILD_LOG = 1 << 20, CHILD_SAID = 256 };
/* "; its last line: ...", printable, of what is in that file; "" if nothing is. text: [CHILD_SAID]. */
const char *child_said(int log, char *text, size_t bytes);

/* Where folders for a child's use lie: TMPDIR, or /tmp. */
const char *child_folder(void);
/* A new file in memory, for reading and writing, of whatever size: no child can take its folder away or fill it, and it
 * vanishes with its last descriptor. GB_EIO. */
enum gb_status child_file(int *descriptor, struct gb_error *error);

#endif
