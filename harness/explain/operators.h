/* SPDX-License-Identifier: Apache-2.0 */
/* How wrong outputs of an operator are explained, one row each. */
#ifndef GB_HARNESS_EXPLAIN_OPERATORS_H
#define GB_HARNESS_EXPLAIN_OPERATORS_H

#include "harness/judge/baseline.h"
#include "harness/judge/case_result.h"

struct operator_explainer {
    enum gb_operator operation;
    /* *explanation: NULL where nothing is found. GB_ENOMEM. */
    enum gb_status (*explain)(const struct baseline *baseline, enum gb_operator operation,
                              const struct gb_outputs *outputs, struct explanation **explanation,
                              struct gb_error *error);
    /* What to do about it, of a case that fails by its outputs; minimising: --minimise is given. NULL: nothing more. */
    const char *(*next)(const struct case_entry *one, const struct gb_outputs *outputs, bool minimising);
};

/* NULL: there is nothing that the operator's errors are known to look like. */
const struct operator_explainer *operator_explainer_find(enum gb_operator operation);

/* Names the recipe, the injected bug or the one changed rule whose outputs these are. */
enum gb_status explain_quantise(const struct gb_fixture *fixture, const struct gb_outputs *outputs,
                                struct explanation **explanation, struct gb_error *error);

/* Names the slot of the token that is worst and what became of its row, or the mistake made with all. */
enum gb_status explain_combine(const struct baseline *baseline, enum gb_operator operation,
                               const struct gb_outputs *outputs, struct explanation **explanation,
                               struct gb_error *error);

#endif
