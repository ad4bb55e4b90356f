/* SPDX-License-Identifier: Apache-2.0 */
/* Problems for the GPU tests: every buffer of a layer in one block of memory, with canaries between them. */
#ifndef GB_TESTS_GPU_PROBLEM_H
#define GB_TESTS_GPU_PROBLEM_H

#include <stdbool.h>

#include "gaugeblock.h"

#ifdef __cplusplus
extern "C" {
#endif

enum data_kind {
    DATA_ORDINARY,  /* gates around +-2 */
    DATA_SCALES,    /* every E4M3 scale from 0 over the subnormal ones to 448 */
    DATA_INTEGERS,  /* small integers and -0: exact sums, many of them zero */
    DATA_TINY,      /* subnormal x; some results underflow */
    DATA_HUGE,      /* x and intermediates on both sides of 2^122 */
    DATA_NONFINITE, /* ordinary, with Inf and NaN in some x and NaN scales in some experts */
    DATA_SPREAD,    /* x of one sign, some much smaller, and codes of 6: sums of a run at the edge of 24 bits, or past
                       it where sums of bf16 lose the most */
    DATA_KINDS
};

const char *data_kind_name(enum data_kind kind);

struct region {
    const char *name;
    size_t offset, bytes;
};

/* Offsets are into `image`; 256 canary bytes lie before, between and after the regions. */
struct problem {
    struct gb_shape shape;
    enum gb_format format;
    enum data_kind kind;
    uint64_t seed;
    size_t bytes;
    unsigned char *image; /* [bytes], inputs filled in, aligned to 256 */
    struct region region[11];
    unsigned regions;
    struct gb_arguments arguments; /* pointers into image */
    unsigned char *intermediate;   /* what the reference computes: [tokens, top_k, intermediate] bf16 */
    unsigned char *output;         /* and [tokens, hidden] FP32 */
};

/* Fills everything in, reference included. False, with a message on stderr, if that is impossible. */
bool problem_make(struct problem *problem, const struct gb_shape *shape, enum gb_format format, enum data_kind kind,
                  uint64_t seed);
void problem_free(struct problem *problem);

/* The arguments with every pointer moved from image to base. */
struct gb_arguments problem_arguments_at(const struct problem *problem, void *base);

/* What an operator finds: image with the buffers it writes filled with `poison`. */
void problem_before(const struct problem *problem, enum gb_operator operation, int poison, unsigned char *image);
/* What it should leave behind. */
void problem_after(const struct problem *problem, enum gb_operator operation, int poison, unsigned char *image);

struct tally {
    uint64_t compared, mismatched; /* words that the operator writes */
    uint64_t finite;               /* of the expected ones: finite and not zero */
};

/* Compares images and adds to *tally; a byte changed outside the operator's buffers counts as a mismatch. Prints the
 * first mismatch of the call, after `label`. */
void problem_compare(const struct problem *problem, enum gb_operator operation, const unsigned char *expected,
                     const unsigned char *actual, const char *label, struct tally *tally);

#ifdef __cplusplus
}
#endif
#endif
