/* SPDX-License-Identifier: Apache-2.0 */
/* What the checks see of the outputs under a fault, with the intermediate handed out or without. */
#include <stdlib.h>
#include <string.h>

#include "harness/judge/judge.h"
#include "harness/program/power.h"
#include "quant/quant.h"

static size_t codes_of(const struct gb_shape *s)
{
    return (size_t)s->tokens * s->top_k * s->intermediate;
}

enum gb_status power_stages_new(struct power *p, struct gb_error *error)
{
    const struct gb_fixture *f = p->baseline->fixture;
    const struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    p->codes = calloc(f->layers, sizeof *p->codes);
    for (uint32_t l = 0; p->codes && l < f->layers; l++) {
        p->codes[l] = malloc(sizeof **p->codes * codes_of(&f->shape));
        if (!p->codes[l])
            return gb_fail(error, GB_ENOMEM, "no memory for an intermediate of %u tokens", f->shape.tokens);
    }
    if (!p->codes)
        return gb_fail(error, GB_ENOMEM, "no memory for %u layers", f->layers);
    power_stages_reset(p);
    return baseline_bounds(p->baseline, &points, true, error);
}

void power_stages_free(struct power *p)
{
    for (uint32_t l = 0; p->codes && l < p->baseline->fixture->layers; l++)
        free(p->codes[l]);
    free(p->codes);
}

void power_stages_reset(struct power *p)
{
    const struct gb_fixture *f = p->baseline->fixture;
    for (uint32_t l = 0; l < f->layers; l++)
        memcpy(p->codes[l], p->baseline->reference->layer[l].intermediate, sizeof **p->codes * codes_of(&f->shape));
}

enum gb_status power_checks(struct power *p, struct detection *checks, struct gb_error *error)
{
    const struct gb_kernel kernel = {.name = "injected_bug",
                                     .operation = GB_LAYER,
                                     .weights = p->baseline->fixture->weights,
                                     .activations = p->baseline->contract->activations,
                                     .output = GB_FP32,
                                     .accumulator_bits = 24};
    struct policy all;
    struct case_result j;
    policy_preset(0, &all);
    for (uint32_t l = 0; l < p->outputs->layers; l++)
        p->outputs->layer[l].intermediate = p->staged ? p->codes[l] : NULL;
    enum gb_status status = judge(p->baseline, &kernel, p->outputs, NULL, &all, &j, error);
    for (uint32_t l = 0; l < p->outputs->layers; l++)
        p->outputs->layer[l].intermediate = NULL; /* which the outputs do not own */
    if (status == GB_OK)
        *checks = (struct detection){.exact = exact_violated(&j.exact),
                                     .bound = j.bound.exceeding,
                                     .rms = !j.without_sums && sums_violated(&j.aggregate, false),
                                     .scale = !j.without_sums && sums_violated(&j.aggregate, true),
                                     .codes = codes_violated(&j.codes),
                                     .down = !check_vacuous(&j.down.bound) && down_violated(&j.down)};
    case_result_free(&j);
    return status;
}

enum gb_status power_look_staged(struct power *p, json_t *object, struct gb_error *error)
{
    const struct policy *policy = &p->policies[0];
    struct detection found;
    if (!policy->bound && !policy->rms && !policy->scale)
        return GB_OK;
    p->staged = true;
    enum gb_status status = power_checks(p, &found, error);
    p->staged = false;
    if (status != GB_OK)
        return status;
    json_t *checks = json_array();
    if (found.codes)
        json_array_append_new(checks, json_string("codes"));
    if (found.down)
        json_array_append_new(checks, json_string("down"));
    json_object_set_new(object, "caught_by_stages", checks);
    return GB_OK;
}
