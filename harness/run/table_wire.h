/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the process that reads a library's table of kernels says of it, in a memory file of fixed size: a head, then
 * one entry a kernel. No pointers; the reader trusts none of it.
 */
#ifndef GB_HARNESS_RUN_TABLE_WIRE_H
#define GB_HARNESS_RUN_TABLE_WIRE_H

#include "harness/run/declared_precision.h"

enum { MAX_KERNELS = 4096, NAME_BYTES = 128, ORDER_BYTES = 64 };

/* How far it came: what it was doing if it ended there. */
enum wire_state {
    WIRE_STARTED = 0,
    WIRE_LOADING = 1, /* in dlopen: constructors */
    WIRE_ASKING = 2,  /* in the table's function, or reading what that returned */
    WIRE_REFUSED = 3, /* `message` says why */
    WIRE_READ = 4     /* `count` kernels follow */
};

struct wire_head {
    uint32_t state, count;
    char message[sizeof((struct gb_error){0}.message)];
};

struct wire_kernel {
    char name[NAME_BYTES], order[ORDER_BYTES]; /* order "": none */
    uint32_t operation, weights, activations, output, accumulator_bits, flags;
    uint32_t roundings[ROUNDED_STAGES];
};

enum { WIRE_BYTES = sizeof(struct wire_head) + MAX_KERNELS * sizeof(struct wire_kernel) };

#endif
