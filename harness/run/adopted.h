/* SPDX-License-Identifier: Apache-2.0 */
/* Processes that this one did not start and is the parent of all the same: those whose own parents left them, where it
 * is their subreaper. */
#ifndef GB_HARNESS_RUN_ADOPTED_H
#define GB_HARNESS_RUN_ADOPTED_H

#include <sys/types.h>

/* When a process began, in ticks since the machine did, which orders processes; 0: it is gone. */
unsigned long long adopted_begin(pid_t process);
/* Kills every child of this process and waits for it, until there is none, but for those of own, [count], and those
 * that began before `since`. The children of one that is killed become this process's. */
void adopted_end(const pid_t *own, unsigned count, unsigned long long since);

#endif
