/* SPDX-License-Identifier: Apache-2.0 */
/* Injected bugs of quantisers. docs/gates.md#power. */
#ifndef GB_HARNESS_FAULTS_FAULTS_QUANTISE_H
#define GB_HARNESS_FAULTS_FAULTS_QUANTISE_H

#include <stdbool.h>

#include "fixtures/fixtures.h"

/* A quantiser's results, with a mistake to be made in them. */
struct quantised {
    const struct gb_quantisation *asked;
    const float *values;  /* [rows, columns], what is quantised */
    void *codes, *scales; /* the reference's */
};

/* Of these three at least one is not NULL, and they are made in this sequence. */
struct quantise_fault {
    const char *name;                          /* what the kernel does */
    bool (*change)(struct gb_quantisation *q); /* what is asked; false: it has nothing to be mistaken about */
    /* [rows, input_columns] what is read in place of what is right */
    bool (*input)(const uint16_t *right, uint16_t *values, const struct gb_quantisation *q);
    bool (*spoil)(struct quantised *results); /* or the results */
    bool must_catch;                          /* no check may let it pass */
    const char *modelled_on;                  /* the public bug, or what makes it likely */
};

const struct quantise_fault *quantise_faults(size_t *count);

/* The codes and scales of the first `rows` rows under the bug; NULL where the problem cannot have it. GB_ENOMEM. */
enum gb_status quantise_fault_run(const struct quantise_fault *fault, const struct gb_fixture *fixture, uint32_t rows,
                                  struct gb_outputs **outputs, struct gb_error *error);

#endif
