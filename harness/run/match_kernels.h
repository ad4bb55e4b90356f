/* SPDX-License-Identifier: Apache-2.0 */
/* Which subjects a run of verify has: names and globs against every library's kernels. */
#ifndef GB_HARNESS_RUN_MATCH_KERNELS_H
#define GB_HARNESS_RUN_MATCH_KERNELS_H

#include <stdbool.h>

#include "harness/run/library.h"

enum { MAX_LIBRARIES = 18, MAX_PATTERNS = 64 };

struct catalogue {
    struct subject_library library[MAX_LIBRARIES]; /* [count], builtin, then CUDA's if asked for, then --subject's */
    uint32_t count;
    uint32_t own;           /* how many of them are ours */
    char cuda_missing[512]; /* why CUDA's is not there; "" if it is, or none asked */
};

/* One subject, or why there is none: kernel NULL. */
struct selected {
    const struct subject_library *library;
    const struct gb_kernel *kernel;
    char pattern[256];    /* the name or glob it comes from */
    char reason[640];     /* where it cannot run: why, and */
    enum verdict verdict; /* UNSUPPORTED: it exists, but not for this fixture's weight format or shape; NOT_RUN; of a
                             library that could not be read NOT_RUN, CRASH or BAD_INPUT */
};

/* CUDA's library is read only where a pattern can match one of its kernels. timeout_s: for each library. A library that
 * cannot be read is among them, without kernels. */
enum gb_status catalogue_open(const char *const *subjects, uint32_t count, const char *const *patterns,
                              uint32_t pattern_count, unsigned timeout_s, struct catalogue *catalogue,
                              struct gb_error *error);
void catalogue_close(struct catalogue *catalogue);

/* The most subjects that select_subjects can find. */
size_t select_most(const struct catalogue *catalogue, uint32_t pattern_count);

/*
 * The subjects for a fixture of this problem, and one without a kernel for every --subject library that could not be
 * read. Without patterns: every kernel of the --subject libraries, or the reference if there is none. A glob leaves out
 * kernels of other weight formats; a name does not. selected: [select_most]. Returns how many there are.
 */
uint32_t select_subjects(const struct catalogue *catalogue, const char *const *patterns, uint32_t pattern_count,
                         const struct gb_problem *problem, struct selected *selected);

#endif
