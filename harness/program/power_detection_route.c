/* SPDX-License-Identifier: Apache-2.0 */
/* Injected faults of the fixture's router. A router is judged alike by every policy. */
#include <string.h>

#include "harness/faults/faults_route.h"
#include "harness/judge/judge.h"
#include "harness/program/power.h"

static const struct gb_kernel router = {.name = "injected_bug",
                                        .operation = GB_ROUTE,
                                        .weights = GB_BF16,
                                        .activations = GB_BF16,
                                        .output = GB_FP32,
                                        .accumulator_bits = 24};

/* Tokens, of all layers, whose ids or weights the fault changes. */
static uint32_t changed_tokens(const struct gb_outputs *faulty, const struct gb_outputs *clean)
{
    uint32_t top_k = clean->shape.top_k, count = 0;
    for (uint32_t l = 0; l < clean->layers; l++)
        for (size_t t = 0; t < clean->shape.tokens; t++) {
            const struct gb_layer_outputs *a = &faulty->layer[l], *b = &clean->layer[l];
            count += memcmp(a->ids + t * top_k, b->ids + t * top_k, sizeof *a->ids * top_k) ||
                     memcmp(a->routing_weights + t * top_k, b->routing_weights + t * top_k,
                            sizeof *a->routing_weights * top_k);
        }
    return count;
}

/* What saw it: "ids", "weights", or "range" for ids that are no experts, or are there twice. */
static json_t *seen_by(const struct case_result *j)
{
    json_t *checks = json_array();
    bool range = false, ids = false;
    for (uint32_t l = 0; l < j->layers; l++) {
        range |= !j->layer[l].routed;
        ids |= j->layer[l].tokens.wrong > 0;
    }
    if (range)
        json_array_append_new(checks, json_string("range"));
    if (ids)
        json_array_append_new(checks, json_string("ids"));
    if (j->bound.exceeding)
        json_array_append_new(checks, json_string("weights"));
    return checks;
}

static enum gb_status run(const struct gb_contract *contract, const struct gb_fixture *f,
                          const struct route_fault *fault, struct gb_outputs *outputs, bool *applies,
                          struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        struct gb_arguments a = gb_route_arguments(f, l, f->shape.tokens);
        a.routed_ids = outputs->layer[l].ids;
        a.routed_weights = outputs->layer[l].routing_weights;
        *applies = true;
        status =
            fault ? route_fault_run(fault, contract, &a, applies, error) : gb_reference_router(contract, &a, error);
    }
    return status;
}

static enum gb_status plant(struct power *p, const struct route_fault *fault, struct gb_outputs *faulty,
                            const struct gb_outputs *clean, json_t *list, struct gb_error *error)
{
    struct case_result j;
    bool applies;
    enum gb_status status =
        run(gb_contract_router(p->baseline->contract), p->baseline->fixture, fault, faulty, &applies, error);
    if (status != GB_OK || !applies)
        return status;
    uint32_t changed = changed_tokens(faulty, clean);
    json_t *object = json_pack("{s:s, s:s, s:i}", "name", fault->name, "modelled_on", fault->modelled_on,
                               "changed_tokens", (int)changed);
    json_array_append_new(list, object);
    if (!changed)
        return GB_OK;
    status = judge(p->baseline, &router, faulty, NULL, &p->policies[0], &j, error);
    if (status == GB_OK)
        json_object_set_new(object, "caught_by", seen_by(&j));
    case_result_free(&j);
    return status;
}

enum gb_status power_route(struct power *p, json_t *record, struct gb_error *error)
{
    const struct gb_fixture *f = p->baseline->fixture;
    struct gb_outputs *clean = NULL, *faulty = NULL;
    bool applies;
    size_t count;
    const struct route_fault *all = route_faults(&count);
    for (uint32_t l = 0; l < f->layers; l++)
        if (!f->layer[l].router.codes || !gb_fixture_router(f))
            return GB_OK;
    json_t *list = json_array();
    json_object_set_new(record, "router_bugs", list);
    enum gb_status status = gb_outputs_new_routing(&f->shape, f->layers, &clean, error);
    if (status == GB_OK)
        status = gb_outputs_new_routing(&f->shape, f->layers, &faulty, error);
    if (status == GB_OK)
        status = run(gb_contract_router(p->baseline->contract), f, NULL, clean, &applies, error);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        status = plant(p, &all[i], faulty, clean, list, error);
    gb_outputs_free(clean);
    gb_outputs_free(faulty);
    return status;
}
