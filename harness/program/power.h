/* SPDX-License-Identifier: Apache-2.0 */
/* What policies see on one fixture: injected bugs, and the smallest errors. docs/gates.md#power. */
#ifndef GB_HARNESS_PROGRAM_POWER_H
#define GB_HARNESS_PROGRAM_POWER_H

#include <jansson.h>
#include <stdio.h>

#include "harness/faults/operators.h"
#include "harness/judge/baseline.h"
#include "harness/judge/case_result.h"
#include "harness/judge/policy.h"
#include "harness/run/verdict.h"

enum { MAX_POLICIES = 16 };

struct power {
    struct baselines *baselines;
    struct baseline *baseline;            /* of these, that of the contract in question */
    gb_bf16 **codes;                      /* [layers]: [tokens, top_k, intermediate], of the layer under a fault */
    bool staged;                          /* they are handed out */
    struct policy policies[MAX_POLICIES]; /* the one in question, then the presets */
    uint32_t policy_count;
    struct gb_outputs *outputs; /* of the layer under a fault: FP32, all tokens */
    struct gb_outputs *noise;   /* what errors of the intermediate, each as large as its value and of a sign of its own,
                                   make of the output */
};

/* How one policy took one set of outputs. */
struct detection {
    bool exact, bound, rms, scale; /* checks that bind and were violated */
    bool codes, down;              /* where the intermediate is handed out */
    const char *missed;            /* the first threshold that was missed; NULL if none was */
};
bool detection_caught(const struct detection *detection);

/* Judges power->outputs, without an order, by every policy. detections: [policy_count]. */
enum gb_status power_look(struct power *power, struct detection *detections, struct gb_error *error);

/* The checks' results on power->outputs, whatever binds. */
enum gb_status power_checks(struct power *power, struct detection *checks, struct gb_error *error);
/* Room for power->codes; the reference's to begin with. power_stages_free in any case. */
enum gb_status power_stages_new(struct power *power, struct gb_error *error);
void power_stages_free(struct power *power);
void power_stages_reset(struct power *power);
/* What the stages' checks see where the codes are handed out: "caught_by_stages" of a fault's object. Nothing if the
 * policy in question has no checks. */
enum gb_status power_look_staged(struct power *power, json_t *object, struct gb_error *error);

/* The smallest errors that a policy sees, as "detection_limits" of its object. */
enum gb_status power_detection_limits(struct power *power, uint32_t policy, json_t *object, struct gb_error *error);

/* What became of an operator's own injected bugs. */
struct power_operator {
    uint32_t caught;
    const char *missed;  /* the first that no check may let pass and that none saw; NULL */
    enum verdict itself; /* of the operator's results without a bug, and why */
    char reason[sizeof((struct case_result){0}.reason)];
};
/* Injects them, as row->list of the record. contract: of the fixture; NULL where it has none. */
enum gb_status power_operator(const struct operator_faults *row, struct baselines *baselines,
                              const struct gb_contract *contract, json_t *record, struct power_operator *found,
                              struct gb_error *error);
/* The same of a fixture that is a problem of this operator alone, with "caught" and "reason". */
enum gb_status power_alone(const struct operator_faults *row, struct baselines *baselines, json_t *record,
                           enum verdict *verdict, struct gb_error *error);

#endif
