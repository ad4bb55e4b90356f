/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of a kernel beside a read of as many bytes. A sample is several runs on copies of the weights, which together
 * are larger than the last cache: each run finds its weights in memory. Where the device has graphs and the kernel can
 * be captured, a sample is the replay of one graph, and so is the read beside it, in as many launches.
 */
#ifndef GB_HARNESS_RUN_TIMING_H
#define GB_HARNESS_RUN_TIMING_H

#include <stdbool.h>
#include <stdint.h>

#include "gaugeblock.h"

enum { MOST_TIMES = 31 };
#define MOST_CACHE_BYTES (UINT64_C(1) << 40)

struct timing_request {
    uint32_t samples; /* 0: nothing is timed; at most MOST_TIMES */
    bool hot;         /* on one copy of the weights, which the cache may keep */
    uint64_t cache;   /* bytes that the last cache is taken to hold; 0: as many as the device says */
};

/* What a sample took. */
struct timing_sample {
    double run_s, read_s; /* all runs, and the reads of as many bytes */
    double large_s;       /* one read of large_bytes */
};

/* Of one batch of the first layer. */
struct timing {
    uint32_t samples;        /* 0: it was not timed */
    uint32_t copies;         /* of the weights */
    uint32_t runs;           /* of a sample */
    uint32_t launches;       /* of a run in the graph that is replayed; 0: without a graph */
    uint64_t weights, bytes; /* that a run needs: weights, and their bytes with scales and biases */
    uint64_t cache_bytes, large_bytes;
    double prepare_s; /* prepare(), once for all runs on these weights */
    struct timing_sample sample[MOST_TIMES];
};

#endif
