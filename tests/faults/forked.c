/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several processes without MPI, in the place of harness/mpi/join.c: this one begins the others, as many as
 * OMPI_COMM_WORLD_SIZE says, and all of them talk over sockets. The first long message of the process
 * GB_FAULT_MPI_PROCESS is spoilt as GB_FAULT_MPI says: "flip" changes its last byte, "address" its first; "hang" ends
 * the process's answers there. By "argument" it has another last one.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/run/clock.h"
#include "harness/run/processes.h"
#include "quant/quant.h"

enum { MOST = 8, LONG = 1000 };

static int sockets[MOST][MOST]; /* [process][peer] */
static pid_t begun[MOST];
static uint32_t groups[MOST], members[MOST]; /* of all processes */

static uint8_t *spoil(const struct gb_parcel *parcel)
{
    static bool done;
    const char *fault = getenv("GB_FAULT_MPI"), *process = getenv("GB_FAULT_MPI_PROCESS");
    if (done || !fault || !process || !strcmp(fault, "argument") || (uint32_t)atoi(process) != processes.process ||
        parcel->size < LONG)
        return parcel->bytes;
    done = true;
    while (!strcmp(fault, "hang"))
        pause();
    uint8_t *copy = memcpy(malloc(parcel->size), parcel->bytes, parcel->size); /* until the process ends */
    copy[strcmp(fault, "address") ? parcel->size - 1 : 0] ^= 1;
    return copy;
}

/* Moves what the sockets take and have. Returns whether there is anything left with the peer. */
static bool move(uint32_t peer, const uint8_t *out, size_t to, size_t *sent, uint8_t *in, size_t from, size_t *got)
{
    int socket = sockets[processes.process][peer];
    ssize_t some = *sent < to ? send(socket, out + *sent, to - *sent, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    *sent += some > 0 ? (size_t)some : 0;
    some = *got < from ? recv(socket, in + *got, from - *got, MSG_DONTWAIT) : 0;
    *got += some > 0 ? (size_t)some : 0;
    return *sent < to || *got < from;
}

static bool swap(const struct gb_parcel *to, const struct gb_parcel *from, double until, uint32_t *missing)
{
    const uint32_t own = processes.process, count = processes.count;
    size_t sent[MOST] = {0}, got[MOST] = {0};
    uint8_t *out[MOST];
    for (uint32_t q = 0; q < count; q++)
        out[q] = q == own ? to[q].bytes : spoil(&to[q]);
    if (from[own].size)
        memcpy(from[own].bytes, to[own].bytes, from[own].size);
    for (bool left = true; left;) {
        struct pollfd events[MOST];
        nfds_t waiting = 0;
        for (uint32_t q = count; q-- > 0;)
            if (q != own && move(q, out[q], to[q].size, &sent[q], from[q].bytes, from[q].size, &got[q])) {
                short what = (short)((sent[q] < to[q].size ? POLLOUT : 0) | (got[q] < from[q].size ? POLLIN : 0));
                events[waiting++] = (struct pollfd){sockets[own][q], what, 0};
                *missing = q;
            }
        left = waiting > 0;
        if (left && until > 0.0 && clock_seconds() > until)
            return false;
        poll(events, waiting, 10);
    }
    return true;
}

static void divide(uint32_t group, uint32_t member)
{
    uint32_t own[2] = {group, member}, all[MOST][2], missing;
    struct gb_parcel to[MOST], from[MOST];
    for (uint32_t q = 0; q < processes.count; q++) {
        to[q] = (struct gb_parcel){own, sizeof own};
        from[q] = (struct gb_parcel){all[q], sizeof all[q]};
    }
    swap(to, from, 0.0, &missing);
    for (uint32_t q = 0; q < processes.count; q++) {
        groups[q] = all[q][0];
        members[q] = 0;
        for (uint32_t other = 0; other < processes.count; other++)
            members[q] += all[other][0] == all[q][0] && all[other][1] < all[q][1];
    }
}

/* Who sends is in the group, too. */
static void broadcast(bool everyone, void *bytes, size_t count, uint32_t from)
{
    const uint32_t own = processes.process;
    struct gb_parcel out[MOST] = {{0}}, in[MOST] = {{0}};
    uint32_t missing;
    for (uint32_t q = 0; q < processes.count; q++) {
        bool with = everyone || groups[q] == groups[own];
        if (with && (everyone ? own : members[own]) == from && q != own)
            out[q] = (struct gb_parcel){bytes, count};
        if (with && (everyone ? q : members[q]) == from && q != own)
            in[q] = (struct gb_parcel){bytes, count};
    }
    swap(out, in, 0.0, &missing);
}

static _Noreturn void end_all(int code)
{
    for (uint32_t q = 1; q < processes.count; q++)
        if (begun[q])
            kill(begun[q], SIGKILL);
    _exit(code);
}

/* The others have their end from process 0. */
static void wait_for_all(void)
{
    for (uint32_t q = 1; q < processes.count && !processes.process; q++)
        waitpid(begun[q], NULL, 0);
}

enum gb_status processes_start(char **argv, struct gb_error *error)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    const uint32_t count = size ? (uint32_t)atoi(size) : 0;
    const char *fault = getenv("GB_FAULT_MPI"), *process = getenv("GB_FAULT_MPI_PROCESS");
    if (count < 1 || count > MOST)
        return gb_fail(error, GB_EINVAL, "%u processes", count);
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = 0; b < a; b++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
                return gb_fail(error, GB_EIO, "no sockets: %s", strerror(errno));
            sockets[a][b] = pair[0];
            sockets[b][a] = pair[1];
        }
    processes =
        (struct processes){.count = count, .divide = divide, .broadcast = broadcast, .swap = swap, .abort = end_all};
    for (uint32_t q = 1; q < count && !processes.process; q++)
        if ((begun[q] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            processes.process = q;
            memset(begun, 0, sizeof begun);
        }
    if (fault && process && !strcmp(fault, "argument") && processes.process == (uint32_t)atoi(process))
        for (; *argv; argv++)
            *argv = argv[1] ? *argv : (char *)"other";
    atexit(wait_for_all);
    return GB_OK;
}
