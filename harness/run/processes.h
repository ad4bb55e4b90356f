/* SPDX-License-Identifier: Apache-2.0 */
/* The processes that mpirun or srun started beside this one. One process alone needs no MPI. */
#ifndef GB_HARNESS_RUN_PROCESSES_H
#define GB_HARNESS_RUN_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>

#include "reference/reference.h"

struct processes {
    uint32_t process, count;
    /* What MPI is needed for; NULL where count is 1. */
    void (*divide)(uint32_t group, uint32_t member); /* into groups; this process's */
    /* Gives all, or those of the own group, what `from` (a process, or a member of the group) has. */
    void (*broadcast)(bool everyone, void *bytes, size_t count, uint32_t from);
    /* Sends each process its parcel, and fills one from each, of the size that is sent: [count]. until: of
     * clock_seconds, 0.0 for ever. False: it is past, and what *missing sent or takes has not arrived. */
    bool (*swap)(const struct gb_parcel *to, const struct gb_parcel *from, double until, uint32_t *missing);
    void (*abort)(int code) __attribute__((noreturn)); /* ends all of them */
};

/* This process alone until processes_join. */
extern struct processes processes;

/* Finds the others, where there are any. argv: the command and its arguments, NULL. */
enum gb_status processes_join(char **argv, struct gb_error *error);
/*
 * Its second half. The program of harness/mpi has MPI; any other becomes that one, which lies beside it, so that only
 * who asks for processes needs the libraries of MPI. GB_EUNSUPPORTED: that program is not there.
 */
enum gb_status processes_start(char **argv, struct gb_error *error);

/* What every process does with its part of a task. result: bytes allocated by malloc. */
typedef enum gb_status processes_part(const struct gb_processes *all, const struct gb_parcel *part,
                                      struct gb_parcel *result, struct gb_error *error);
/*
 * Makes process 0 the one that does what argv says, while the others do their parts of what it gives them by
 * processes_task. *leads: this is process 0, whose exit code will be that of all. Otherwise it returns once process 0
 * has ended, and *code is that exit code. GB_EINVAL: a process was started with other arguments. One process alone
 * leads.
 */
enum gb_status processes_lead(char *const *argv, processes_part *part, bool *leads, int *code, struct gb_error *error);

/* Gives all of them a task, called by process 0; its own part is done on return. parts: [count], a task each; status:
 * of any of them. *lost: one of them has not answered within timeout_s; the tasks behind it are GB_EUNSUPPORTED. */
enum gb_status processes_task(const struct gb_parcel *parts, unsigned timeout_s, struct gb_parcel *results, bool *lost,
                              struct gb_error *error);

#endif
