/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An MPI that goes wrong, for LD_PRELOAD: the first long message of the process GB_FAULT_MPI_PROCESS is spoilt as
 * GB_FAULT_MPI says: "flip" changes its last byte, "address" its first, "drop" sends nothing; or the process has an end
 * there: "die", "hang".
 */
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG = 1000 }; /* bytes: what processes say to each other is shorter, arrays are longer */

static int spoil(unsigned char *bytes, int count, const char *fault, MPI_Request *request)
{
    if (!strcmp(fault, "die"))
        raise(SIGKILL);
    while (!strcmp(fault, "hang"))
        pause();
    if (!strcmp(fault, "drop")) {
        *request = MPI_REQUEST_NULL;
        return 0;
    }
    bytes[strcmp(fault, "address") ? count - 1 : 0] ^= 1;
    return 1;
}

int MPI_Isend(const void *bytes, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    static int done;
    const char *fault = getenv("GB_FAULT_MPI"), *process = getenv("GB_FAULT_MPI_PROCESS");
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!fault || !process || rank != atoi(process) || count < LONG || done++)
        return PMPI_Isend(bytes, count, type, to, tag, comm, request);
    unsigned char *copy = malloc((size_t)count); /* until the process ends */
    memcpy(copy, bytes, (size_t)count);
    return spoil(copy, count, fault, request) ? PMPI_Isend(copy, count, type, to, tag, comm, request) : MPI_SUCCESS;
}
