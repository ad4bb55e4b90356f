/* SPDX-License-Identifier: Apache-2.0 */
/* Injected bugs of dispatch and combine. docs/gates.md#power. */
#ifndef GB_HARNESS_FAULTS_FAULTS_EXCHANGE_H
#define GB_HARNESS_FAULTS_FAULTS_EXCHANGE_H

#include "fixtures/fixtures.h"
#include "reference/reference.h"

/* What the operator makes of such arguments; `format` is that of combine's output. dispatch: whether it is that. */
enum gb_status exchange_as(const struct gb_arguments *arguments, bool dispatch, enum gb_format format,
                           struct gb_outputs **outputs, struct gb_error *error);
/* The reference's outputs of the fixture; tokens are always all of them. */
enum gb_status exchange_reference(const struct gb_fixture *fixture, uint32_t tokens, struct gb_outputs **outputs,
                                  struct gb_error *error);

/* A combine with a mistake to be made in its inputs: copies. */
struct combining {
    const struct gb_exchange *given; /* what the subject was asked for */
    struct gb_exchange asked;        /* what it does */
    int32_t *ids;                    /* [ranks * tokens, top_k] */
    float *routing_weights;          /* [ranks * tokens, top_k] */
    int32_t *placement;              /* [experts] */
    gb_bf16 *rows;                   /* [rows, hidden] */
    const int32_t *routes;           /* [rows], of what was given */
    uint32_t token, slot;            /* where bugs of one slot are: a token of all ranks that has it */
};

struct combine_fault {
    const char *name;                    /* what the kernel does */
    bool (*plant)(struct combining *of); /* false: the problem cannot have it */
    enum {
        OF_ALL,   /* tokens */
        OF_SLOT,  /* one of one token */
        OF_BUFFER /* the same, and of which rows lie beside that slot's */
    } kind;
    const char *modelled_on; /* the public bug, or what makes it likely */
};
const struct combine_fault *combine_faults(size_t *count);

/* The combine with the bug, of one slot at this one; NULL where the problem cannot have it. GB_ENOMEM. */
enum gb_status combine_fault_run(const struct combine_fault *fault, const struct gb_arguments *arguments,
                                 uint32_t token, uint32_t slot, struct gb_outputs **outputs, struct gb_error *error);

#endif
