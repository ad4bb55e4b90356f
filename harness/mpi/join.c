/* SPDX-License-Identifier: Apache-2.0 */
/* Processes by MPI: the only code that calls it. Linked into gaugeblock-mpi, which is otherwise gaugeblock. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness/run/clock.h"
#include "harness/run/processes.h"
#include "harness/run/verdict.h"

enum { MOST = 1 << 30 }; /* bytes of one message: counts are int */

static MPI_Comm own = MPI_COMM_NULL; /* the processes of this one's group */

static void divide(uint32_t group, uint32_t member)
{
    if (own != MPI_COMM_NULL)
        MPI_Comm_free(&own);
    MPI_Comm_split(MPI_COMM_WORLD, (int)group, (int)member, &own);
}

static size_t next_of(size_t bytes)
{
    return bytes < MOST ? bytes : MOST;
}

/* Errors of MPI end all processes: its default. */
static void broadcast(bool everyone, void *bytes, size_t count, uint32_t from)
{
    char *at = bytes;
    for (size_t next; count; at += next, count -= next) {
        next = next_of(count);
        MPI_Bcast(at, (int)next, MPI_BYTE, (int)from, everyone ? MPI_COMM_WORLD : own);
    }
}

/* Messages on their way. */
struct messages {
    MPI_Request *request; /* [count] */
    int *peer;            /* [count] */
    int count;
};

static int messages_of(size_t bytes)
{
    return (int)((bytes + MOST - 1) / MOST);
}

static void start(struct messages *m, const struct gb_parcel *parcel, int peer, bool send)
{
    char *at = parcel->bytes;
    int part = 0;
    for (size_t left = parcel->size, next; left; at += next, left -= next, part++) {
        MPI_Request *request = &m->request[m->count];
        next = next_of(left);
        m->peer[m->count++] = peer;
        if (send)
            MPI_Isend(at, (int)next, MPI_BYTE, peer, part, MPI_COMM_WORLD, request);
        else
            MPI_Irecv(at, (int)next, MPI_BYTE, peer, part, MPI_COMM_WORLD, request);
    }
}

/* Waits for all, at first without rest. False: *missing is the peer of one that is not done. */
static bool finish(struct messages *m, double until, uint32_t *missing)
{
    enum { EAGER = 1000, REST_NS = 100000 };
    int done = 0;
    for (int tries = 0; MPI_Testall(m->count, m->request, &done, MPI_STATUSES_IGNORE), !done; tries++) {
        if (until > 0.0 && clock_seconds() > until)
            break;
        if (tries >= EAGER)
            nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
    }
    for (int i = m->count; !done && i-- > 0;) {
        int one;
        MPI_Test(&m->request[i], &one, MPI_STATUS_IGNORE);
        if (!one)
            *missing = (uint32_t)m->peer[i];
    }
    return done;
}

/* Receives come first: of those that are not done, one of them is named. */
static bool swap(const struct gb_parcel *to, const struct gb_parcel *from, double until, uint32_t *missing)
{
    const int process = (int)processes.process, peers = (int)processes.count;
    int most = 0;
    for (int q = 0; q < peers; q++)
        most += messages_of(to[q].size) + messages_of(from[q].size);
    struct messages m = {calloc((size_t)most + 1, sizeof(MPI_Request)), calloc((size_t)most + 1, sizeof(int)), 0};
    if (!m.request || !m.peer) {
        fprintf(stderr, "gaugeblock: process %d of %d: no memory for %d messages\n", process, peers, most);
        MPI_Abort(MPI_COMM_WORLD, EXIT_CRASH);
    }
    for (int q = 0; q < peers; q++)
        if (q != process)
            start(&m, &from[q], q, false);
    for (int q = 0; q < peers; q++)
        if (q != process)
            start(&m, &to[q], q, true);
    if (from[process].size)
        memcpy(from[process].bytes, to[process].bytes, from[process].size);
    bool good = finish(&m, until, missing);
    free(m.request);
    free(m.peer);
    return good;
}

static _Noreturn void end_all(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
    abort(); /* it does not return */
}

static void leave(void)
{
    MPI_Finalize();
}

enum gb_status processes_start(char **argv, struct gb_error *error)
{
    int process, count;
    (void)argv;
    (void)error;
    MPI_Init(NULL, NULL);
    atexit(leave);
    MPI_Comm_rank(MPI_COMM_WORLD, &process);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    processes = (struct processes){.process = (uint32_t)process,
                                   .count = (uint32_t)count,
                                   .divide = divide,
                                   .broadcast = broadcast,
                                   .swap = swap,
                                   .abort = end_all};
    return GB_OK;
}
