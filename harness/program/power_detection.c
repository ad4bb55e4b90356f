/* SPDX-License-Identifier: Apache-2.0 */
/* How every policy takes one set of outputs. */
#include <stdlib.h>

#include "harness/program/power.h"

bool detection_caught(const struct detection *s)
{
    return s->exact || s->bound || s->rms || s->scale || s->codes || s->down || s->missed;
}

static enum gb_status look_by_thresholds(struct power *p, const struct policy *policy, struct detection *detection,
                                         struct gb_error *error)
{
    const struct gb_fixture *f = p->baseline->fixture;
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    double *values = malloc(sizeof(double) * count); /* [tokens, hidden] */
    struct closeness c;
    if (!values)
        return gb_fail(error, GB_ENOMEM, "no memory to compare %zu values", count);
    policy_start(policy, &c);
    for (uint32_t l = 0; l < f->layers; l++) {
        for (size_t i = 0; i < count; i++)
            values[i] = (double)((const float *)p->outputs->layer[l].output)[i];
        policy_compare(&c, values, f->layer[l].truth_quantised, f->shape.tokens, f->shape.hidden);
    }
    detection->missed = policy_missed(&c);
    free(values);
    return GB_OK;
}

enum gb_status power_look(struct power *p, struct detection *detections, struct gb_error *error)
{
    struct detection checks = {0};
    enum gb_status status = GB_OK;
    bool any = false;
    for (uint32_t g = 0; g < p->policy_count; g++)
        any |= p->policies[g].exact || p->policies[g].bound || p->policies[g].rms || p->policies[g].scale;
    if (any)
        status = power_checks(p, &checks, error);
    for (uint32_t g = 0; status == GB_OK && g < p->policy_count; g++) {
        const struct policy *policy = &p->policies[g];
        bool stages = policy->bound || policy->rms || policy->scale;
        detections[g] = (struct detection){.exact = checks.exact && policy->exact,
                                           .bound = checks.bound && policy->bound,
                                           .rms = checks.rms && policy->rms,
                                           .scale = checks.scale && policy->scale,
                                           .codes = checks.codes && stages,
                                           .down = checks.down && stages};
        status = look_by_thresholds(p, policy, &detections[g], error);
    }
    return status;
}
