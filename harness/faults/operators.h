/* SPDX-License-Identifier: Apache-2.0 */
/* Injected bugs by operator, one row each. docs/gates.md#power. */
#ifndef GB_HARNESS_FAULTS_OPERATORS_H
#define GB_HARNESS_FAULTS_OPERATORS_H

#include <stdbool.h>

#include "fixtures/fixtures.h"
#include "reference/reference.h"

struct operator_fault {
    const char *name;
    const char *modelled_on; /* the public bug, or what makes it likely */
    bool must_catch;         /* no check may let it pass */
};

/* list NULL: its bugs are those of a layer's stages, harness/faults/faults.h, and all below is NULL. */
struct operator_faults {
    enum gb_operator operation;
    const char *list; /* of a record of power: "router_bugs" */
    /* Whether a fixture with layers has in it a problem of the operator; NULL: none has. */
    bool (*fits)(const struct gb_fixture *fixture);
    /* Bug `index`; false: there are no more. */
    bool (*at)(size_t index, struct operator_fault *fault);
    /* What the operator writes of the whole fixture with bug `index`, or with none where that is -1. contract: of the
     * fixture; NULL where it has none. *outputs: NULL where the problem cannot have the bug. GB_ENOMEM. */
    enum gb_status (*run)(int64_t index, const struct gb_contract *contract, const struct gb_fixture *fixture,
                          struct gb_outputs **outputs, struct gb_error *error);
    uint32_t lax;         /* of enum gb_kernel_flags one with which less is wrong, where the problem has it; and what */
    const char *lax_seen; /* is caught with it is, in the record: "caught_with_open_silu" */
    bool (*lax_fits)(const struct gb_fixture *fixture);
};

/* Row `index`; NULL behind the last. */
const struct operator_faults *operator_faults_at(size_t index);
/* The row of a known operator. */
const struct operator_faults *operator_faults_find(enum gb_operator operation);

#endif
