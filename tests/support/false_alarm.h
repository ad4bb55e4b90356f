/* SPDX-License-Identifier: Apache-2.0 */
/* How often the default gate rejects valid kernels on a fixture, and its sums at loosened levels. */
#ifndef GB_TESTS_SUPPORT_FALSE_ALARM_H
#define GB_TESTS_SUPPORT_FALSE_ALARM_H

#include <stdio.h>

#include "harness/judge/baseline.h"
#include "harness/judge/aggregate_tests.h"
#include "tests/support/valid_kernels.h"

enum { ALARM_LEVELS = 3 };
extern const double alarm_levels[ALARM_LEVELS]; /* probabilities */

struct alarms {
    uint64_t runs, alarms, vacuous;
    uint64_t sums;                                   /* runs whose output's sums were judged */
    uint64_t ambiguous_codes, tokens_left_out;       /* of these */
    uint64_t rms[ALARM_LEVELS], scale[ALARM_LEVELS]; /* runs with an alarm at the level */
    double largest[FAMILIES];                        /* limit_ratio at the gate's own level */
    char first[1024];                                /* the first alarm */
};

/* A subject on one layer of one fixture. */
struct alarm_subject {
    const struct problem *problem; /* the fixture's inputs */
    struct baseline *baseline;     /* it is judged by */
    struct gb_outputs *outputs;    /* what it writes */
    double *output, *intermediate; /* the same in float64 */
};

/* Out of memory aborts. outputs in the claim's format. */
void alarm_subject_new(struct alarm_subject *subject, const struct problem *problem, struct baseline *baseline,
                       const struct gb_kernel *claim);
void alarm_subject_free(struct alarm_subject *subject);

/* A valid kernel with sums of `bits` bits, judged as what it claims. inner: it hands out its intermediate. name: of the
 * fixture, for an alarm. */
void alarms_run(struct alarm_subject *subject, const struct gb_kernel *claim, const struct valid_kernel *valid,
                uint32_t bits, bool inner, const char *name, struct alarms *alarms);

void alarms_add(struct alarms *sum, const struct alarms *alarms);
/* Alarms, runs in which zeros would pass, more alarms at a loosened level than it says; or a family whose largest sum
 * is another part of its limit than `seen`: less than 1/1.1 of that, since the limit is too large, or more than 1.1
 * times, since it is too small (seen NULL: not asked). whole: of more runs than `seen` is of, which may come nearer to
 * their limits. */
bool alarms_bad(const struct alarms *alarms, const double seen[FAMILIES], bool whole);
/* A record of one object. */
void alarms_print(FILE *stream, const struct alarms *alarms, const char *command, uint32_t fixtures);

#endif
