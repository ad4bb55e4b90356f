/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks by MPI: the only code that calls it. Linked into gaugeblock-mpi, which is otherwise gaugeblock. */
#include <mpi.h>
#include <stdlib.h>

#include "harness/study/ranks.h"

static MPI_Comm own = MPI_COMM_NULL; /* the ranks of this one's group */

static void divide(uint32_t groups)
{
    (void)groups;
    if (own != MPI_COMM_NULL)
        MPI_Comm_free(&own);
    MPI_Comm_split(MPI_COMM_WORLD, (int)study_ranks.group, (int)study_ranks.rank, &own);
}

/* Errors of MPI end all ranks: its default. */
static void broadcast(bool everyone, void *bytes, size_t count, uint32_t from)
{
    const size_t most = 1 << 30; /* counts are int */
    char *at = bytes;
    for (; count; at += count < most ? count : most, count -= count < most ? count : most)
        MPI_Bcast(at, (int)(count < most ? count : most), MPI_BYTE, (int)from, everyone ? MPI_COMM_WORLD : own);
}

static void leave(void)
{
    MPI_Finalize();
}

enum gb_status study_ranks_join(char **argv, struct gb_error *error)
{
    int rank, count;
    (void)argv;
    (void)error;
    MPI_Init(NULL, NULL);
    atexit(leave);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    study_ranks = (struct study_ranks){
        .rank = (uint32_t)rank, .count = (uint32_t)count, .divide = divide, .broadcast = broadcast};
    study_ranks_divide(1);
    return GB_OK;
}
