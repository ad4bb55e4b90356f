/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/study/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "quant/quant.h"

struct study_ranks study_ranks = {.count = 1, .groups = 1, .members = 1};

/* What launchers of MPI leave in the environment of every rank: Open MPI; MPICH and Slurm's PMI; PMIx. */
static const char *const launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};

/* The program of harness/mpi has its own in place of this. */
__attribute__((weak)) enum gb_status study_ranks_join(char **argv, struct gb_error *error)
{
    static const char name[] = "gaugeblock-mpi";
    char path[4096];
    size_t count = 0;
    bool launched = false;
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        launched |= getenv(launchers[i]) != NULL;
    if (!launched)
        return GB_OK;
    ssize_t bytes = readlink("/proc/self/exe", path, sizeof path - sizeof name);
    char *end = bytes > 0 ? memrchr(path, '/', (size_t)bytes) : NULL;
    while (argv[count])
        count++;
    char **words = calloc(count + 2, sizeof *words);
    if (end && words) {
        memcpy(end + 1, name, sizeof name);
        words[0] = path;
        memcpy(words + 1, argv, sizeof *argv * count);
        execv(path, words);
    }
    free(words);
    return gb_fail(error, GB_EUNSUPPORTED,
                   "was started by MPI, but %s is not beside it: build where CMake finds MPI (Debian: libopenmpi-dev), "
                   "or start it without mpirun",
                   name);
}

void study_ranks_divide(uint32_t groups)
{
    struct study_ranks *r = &study_ranks;
    if (groups == r->groups)
        return;
    r->groups = groups;
    r->group = r->rank % groups;
    r->member = r->rank / groups;
    r->members = (r->count - r->group + groups - 1) / groups;
    r->divide(groups);
}

void study_ranks_share(bool everyone, void *bytes, size_t count, uint32_t from)
{
    if ((everyone ? study_ranks.count : study_ranks.members) > 1)
        study_ranks.broadcast(everyone, bytes, count, from);
}

double study_ranks_largest(bool everyone, double value)
{
    uint32_t count = everyone ? study_ranks.count : study_ranks.members;
    double largest = value;
    for (uint32_t r = 0; r < count; r++) {
        double other = value;
        study_ranks_share(everyone, &other, sizeof other, r);
        largest = other > largest ? other : largest;
    }
    return largest;
}

enum gb_status study_ranks_agree(bool everyone, enum gb_status status, struct gb_error *error)
{
    uint32_t count = everyone ? study_ranks.count : study_ranks.members;
    for (uint32_t r = 0; r < count; r++) {
        enum gb_status other = status;
        study_ranks_share(everyone, &other, sizeof other, r);
        if (other == GB_OK)
            continue;
        study_ranks_share(everyone, error, sizeof *error, r);
        return other;
    }
    return GB_OK;
}
