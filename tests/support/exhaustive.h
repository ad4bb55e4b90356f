/* SPDX-License-Identifier: Apache-2.0 */
/* All 2^32 floats, in 256 parts, on all threads. */
#ifndef GB_TESTS_SUPPORT_EXHAUSTIVE_H
#define GB_TESTS_SUPPORT_EXHAUSTIVE_H

#include <stdint.h>
#include <stdio.h>

#include "tests/oracle/oracle.h"
#include "tests/support/check.h"
#include "tests/support/provenance.h"

/* What a check of one float did. */
struct tally {
    uint64_t floats;      /* looked at */
    uint64_t differences; /* found */
    uint64_t undecided;   /* passed on to MPFR */
};

typedef void check_function(uint32_t bits, struct tally *tally);

/* Prints the sums as one JSON document; on stderr every difference up to ten, and progress. command: the program's
 * name; what: what was compared with what. Returns the exit status. */
static inline int exhaustive(const char *command, const char *what, check_function *check)
{
    enum { PARTS = 256, PART = 1 << 24 };
    struct tally total = {0, 0, 0};
    int done = 0;

#pragma omp parallel for schedule(dynamic)
    for (int part = 0; part < PARTS; part++) {
        struct tally tally = {0, 0, 0};
        for (uint32_t i = 0; i < PART; i++)
            check((uint32_t)part * PART + i, &tally);
#pragma omp critical
        {
            total.floats += tally.floats;
            total.differences += tally.differences;
            total.undecided += tally.undecided;
            if (++done % 16 == 0)
                fprintf(stderr, "%s: %d of %d parts\n", command, done, PARTS);
        }
    }
    printf("{");
    print_provenance(stdout, "gaugeblock.exhaustive/1", command);
    printf(",\n  \"what\": \"%s\", \"floats\": %llu, \"differences\": %llu, \"decided_by_mpfr\": %llu, "
           "\"mpfr\": \"%s\"}\n",
           what, (unsigned long long)total.floats, (unsigned long long)total.differences,
           (unsigned long long)total.undecided, oracle_mpfr_version());
    return total.floats == (uint64_t)1 << 32 && total.differences == 0 ? 0 : 1;
}

/* One difference: counted, and printed as long as they are few. */
static inline void differ(struct tally *tally, const char *what, uint32_t bits, uint32_t expected, uint32_t actual)
{
    if (tally->differences++ < 10)
        fprintf(stderr, "%s(%08X): expected %08X, got %08X\n", what, bits, expected, actual);
}

#endif
