/* SPDX-License-Identifier: Apache-2.0 */
/* The operators, one row each: what a kernel of one reads and writes, and how it is asked. */
#ifndef GB_HARNESS_RUN_OPERATORS_H
#define GB_HARNESS_RUN_OPERATORS_H

#include "fixtures/fixtures.h"

/* An array of an operator without layers. */
struct operator_array {
    const char *name;
    size_t argument; /* where struct gb_arguments points to it */
    bool written;
    size_t place; /* where its pointer is, in struct gb_fixture, or of what is written in struct gb_outputs */
    /* Of so many tokens: bytes of the array, and of one element. */
    size_t (*bytes)(const struct gb_fixture *fixture, uint32_t tokens, size_t *element);
};

struct operator_row {
    enum gb_operator operation;
    const char *name;      /* "layer" */
    const char *tokens;    /* what the first axis counts: "tokens", "rows" */
    const char *reference; /* the reference's kernel; NULL: it depends on the formats */
    /* NULL: it is run layer by layer (harness/run/session.h), and all below is NULL. */
    const struct operator_array *arrays;
    uint32_t array_count;
    /* What is asked of a kernel for the first `tokens` of the fixture; its arrays are filled in by the caller.
     * quantisation: what both then point to. */
    void (*ask)(const struct gb_fixture *fixture, uint32_t tokens, struct gb_quantisation *quantisation,
                struct gb_problem *problem, struct gb_arguments *arguments);
    enum gb_status (*new_outputs)(const struct gb_fixture *fixture, uint32_t tokens, struct gb_outputs **outputs,
                                  struct gb_error *error);
};

/* NULL for an unknown one. */
const struct operator_row *operator_find(enum gb_operator operation);
/* The row of what the fixture is a problem of, GB_LAYER for layers. */
const struct operator_row *operator_of(const struct gb_fixture *fixture);
/* Its name; "unknown" for any other. */
const char *operator_name(enum gb_operator operation);

#endif
