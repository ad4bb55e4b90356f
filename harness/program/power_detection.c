/* SPDX-License-Identifier: Apache-2.0 */
/* How every gate takes one set of outputs. */
#include <stdlib.h>

#include "harness/program/power.h"

bool sight_caught(const struct sight *s)
{
    return s->exact || s->bound || s->rms || s->gain || s->codes || s->down || s->missed;
}

static enum gb_status look_by_thresholds(struct power *p, const struct gate *gate, struct sight *sight,
                                         struct gb_error *error)
{
    const struct gb_fixture *f = p->baseline->fixture;
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    double *values = malloc(sizeof(double) * count); /* [tokens, hidden] */
    struct closeness c;
    if (!values)
        return gb_fail(error, GB_ENOMEM, "no memory to compare %zu values", count);
    gate_start(gate, &c);
    for (uint32_t l = 0; l < f->layers; l++) {
        for (size_t i = 0; i < count; i++)
            values[i] = (double)((const float *)p->outputs->layer[l].output)[i];
        gate_compare(&c, values, f->layer[l].truth_quantised, f->shape.tokens, f->shape.hidden);
    }
    sight->missed = gate_missed(&c);
    free(values);
    return GB_OK;
}

enum gb_status power_look(struct power *p, struct sight *sights, struct gb_error *error)
{
    struct sight lanes = {0};
    enum gb_status status = GB_OK;
    bool any = false;
    for (uint32_t g = 0; g < p->gate_count; g++)
        any |= p->gates[g].exact || p->gates[g].bound || p->gates[g].rms || p->gates[g].gain;
    if (any)
        status = power_lanes(p, &lanes, error);
    for (uint32_t g = 0; status == GB_OK && g < p->gate_count; g++) {
        const struct gate *gate = &p->gates[g];
        bool stages = gate->bound || gate->rms || gate->gain;
        sights[g] = (struct sight){.exact = lanes.exact && gate->exact,
                                   .bound = lanes.bound && gate->bound,
                                   .rms = lanes.rms && gate->rms,
                                   .gain = lanes.gain && gate->gain,
                                   .codes = lanes.codes && stages,
                                   .down = lanes.down && stages};
        status = look_by_thresholds(p, gate, &sights[g], error);
    }
    return status;
}
