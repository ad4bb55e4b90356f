/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/host_timer.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/run/clock.h"
#include "quant/quant.h"

/* Of the last cache that the first processor shares; 64 MiB where the system does not tell. */
static enum gb_status cache_bytes(size_t *bytes, struct gb_error *error)
{
    unsigned long kib = 65536;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    (void)error;
    if (file) {
        if (fscanf(file, "%luK", &kib) != 1)
            kib = 65536;
        fclose(file);
    }
    *bytes = (size_t)kib * 1024;
    return GB_OK;
}

static enum gb_status open_timer(void **timer, void **stream, struct gb_error *error)
{
    *stream = NULL;
    *timer = malloc(sizeof(double));
    return *timer ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for a timer");
}

static enum gb_status start(void *timer, struct gb_error *error)
{
    (void)error;
    *(double *)timer = clock_seconds();
    return GB_OK;
}

static enum gb_status stop(void *timer, double *seconds, struct gb_error *error)
{
    (void)error;
    *seconds = clock_seconds() - *(double *)timer;
    return GB_OK;
}

/* The sum of STREAMS runs of words that lie `apart`: each is a stream that the processor fetches ahead, and several are
 * faster than one. */
enum { STREAMS = 8, WORDS = 8 };
typedef uint64_t line __attribute__((vector_size(WORDS * sizeof(uint64_t)), aligned(16)));

static uint64_t sum_streams(const line *from, size_t apart)
{
    line sum[STREAMS] = {0};
    uint64_t all = 0;
    for (size_t i = 0; i < apart; i++)
        for (size_t s = 0; s < STREAMS; s++)
            sum[s] += from[s * apart + i];
    for (size_t s = 0; s < STREAMS; s++)
        for (size_t w = 0; w < WORDS; w++)
            all += sum[s][w];
    return all;
}

uint64_t host_timer_sum(const void *from, size_t bytes)
{
    const line *lines = from;
    const size_t count = bytes / sizeof *lines, rest = bytes % sizeof *lines / sizeof(uint64_t);
    const uint64_t *tail = (const uint64_t *)(lines + count);
    uint64_t sum = 0;
#pragma omp parallel reduction(+ : sum)
    {
        const size_t threads = (size_t)omp_get_num_threads(), me = (size_t)omp_get_thread_num();
        const size_t first = count * me / threads, end = count * (me + 1) / threads, apart = (end - first) / STREAMS;
        sum += sum_streams(lines + first, apart);
        for (size_t i = first + STREAMS * apart; i < end; i++)
            for (size_t w = 0; w < WORDS; w++)
                sum += lines[i][w];
    }
    for (size_t i = 0; i < rest; i++)
        sum += tail[i];
    return sum;
}

static enum gb_status read_bytes(void *timer, const void *from, size_t bytes, struct gb_error *error)
{
    static volatile uint64_t sink;
    (void)timer;
    (void)error;
    sink = host_timer_sum(from, bytes);
    (void)sink;
    return GB_OK;
}

void host_timer_copy(void *to, const void *from, size_t bytes)
{
#pragma omp parallel
    {
        const size_t threads = (size_t)omp_get_num_threads(), me = (size_t)omp_get_thread_num();
        const size_t first = bytes * me / threads, end = bytes * (me + 1) / threads;
        memcpy((char *)to + first, (const char *)from + first, end - first);
    }
}

const struct gb_timer *host_timer(void)
{
    static const struct gb_timer timer = {
        .size = sizeof timer,
        .cache_bytes = cache_bytes,
        .open = open_timer,
        .close = free,
        .start = start,
        .stop = stop,
        .read = read_bytes,
    };
    return &timer;
}
