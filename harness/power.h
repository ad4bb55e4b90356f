/* SPDX-License-Identifier: Apache-2.0 */
/* What gates see on one fixture: planted faults, and the smallest errors. docs/gates.md#power. */
#ifndef GB_HARNESS_POWER_H
#define GB_HARNESS_POWER_H

#include <jansson.h>
#include <stdio.h>

#include "harness/baseline.h"
#include "harness/gate.h"

enum { MAX_GATES = 16 };

struct power {
    struct baseline *baseline;
    struct gate gates[MAX_GATES]; /* the one in question, then the presets */
    uint32_t gate_count;
    struct gb_outputs *outputs; /* of the layer under a fault: FP32, all tokens */
    struct gb_outputs *noise;   /* what errors of the intermediate, each as large as its value and of a sign of its own,
                                   make of the output */
};

/* How one gate took one set of outputs. */
struct sight {
    bool exact, bound, rms, gain; /* lanes that bind and were violated */
    const char *missed;           /* the first threshold that was missed; NULL if none was */
};
bool sight_caught(const struct sight *sight);

/* Judges power->outputs, without an order, by every gate. sights: [gate_count]. */
enum gb_status power_look(struct power *power, struct sight *sights, struct gb_error *error);

/* The smallest errors that a gate sees, as "floors" of its object. */
enum gb_status power_floors(struct power *power, uint32_t gate, json_t *object, struct gb_error *error);

/* The fixture's router under its own planted faults, as "routing_faults" of the record; none if it has no router. */
enum gb_status power_route(struct power *power, json_t *record, struct gb_error *error);

/* For people: a table on a terminal; Markdown. */
void power_table(FILE *stream, const json_t *record);
void power_markdown(FILE *stream, const json_t *record);

#endif
