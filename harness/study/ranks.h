/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes that compute one study side by side. All of them make the same calls in the same sequence, and all know
 * every result; what is split is the work. One process alone needs no MPI.
 */
#ifndef GB_HARNESS_STUDY_RANKS_H
#define GB_HARNESS_STUDY_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gaugeblock.h"

struct study_ranks {
    uint32_t rank, count;     /* of all */
    uint32_t groups, group;   /* how they are divided; that of this rank, rank % groups */
    uint32_t member, members; /* its place among the ranks of its group, and how many these are */
};

/* This process alone until study_ranks_join. */
extern struct study_ranks study_ranks;

/* Finds the other ranks: processes_join. argv: "study", its arguments, NULL. */
enum gb_status study_ranks_join(char **argv, struct gb_error *error);

/* Divides the ranks into so many groups, at most as many as there are ranks: rank r goes to group r % groups. */
void study_ranks_divide(uint32_t groups);
/* Gives all, or those of the own group, what `from` (a rank, or a member of the group) has. */
void study_ranks_share(bool everyone, void *bytes, size_t count, uint32_t from);
/* The largest of all values. */
double study_ranks_largest(bool everyone, double value);
/* The status and message of the first rank that failed. */
enum gb_status study_ranks_agree(bool everyone, enum gb_status status, struct gb_error *error);

#endif
