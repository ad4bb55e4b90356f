/* SPDX-License-Identifier: Apache-2.0 */
/* An operator's own injected bugs, one at a time: what they change, and which of its checks see it. Policies take no
 * part: such operators are judged alike by all. */
#include "harness/judge/operators.h"
#include "harness/program/power.h"
#include "harness/run/progress.h"

struct bench {
    const struct operator_faults *row;
    const struct operator_check *check;
    struct gb_kernel kernel;
    struct baseline *baseline;
    const struct gb_fixture *fixture;
    const struct gb_contract *contract;
    struct gb_outputs *clean;
};

/* The outputs under a bug, judged as a kernel's with these flags. */
static enum gb_status look(const struct bench *b, const struct gb_outputs *made, uint32_t flags,
                           struct injected_result *seen, struct gb_error *error)
{
    struct case_result j;
    struct gb_kernel kernel = b->kernel;
    struct policy policy;
    kernel.flags = flags;
    policy_preset(0, &policy);
    *seen = (struct injected_result){0};
    enum gb_status status = judge(b->baseline, &kernel, made, NULL, &policy, &j, error);
    if (status == GB_OK)
        b->check->injected(made, b->clean, &j, seen);
    case_result_free(&j);
    return status;
}

static json_t *checks_json(const struct injected_result *seen)
{
    json_t *checks = json_array();
    for (uint32_t i = 0; i < seen->seen; i++)
        json_array_append_new(checks, json_string(seen->seen_by[i]));
    return checks;
}

static enum gb_status plant(const struct bench *b, size_t index, const struct operator_fault *fault, json_t *list,
                            struct power_operator *found, struct gb_error *error)
{
    struct gb_outputs *made = NULL;
    struct injected_result seen, lax = {0};
    bool has_lax = b->row->lax && b->row->lax_fits(b->fixture);
    uint64_t changed = 0;
    enum gb_status status = b->row->run((int64_t)index, b->contract, b->fixture, &made, error);
    if (status != GB_OK || !made)
        return status;
    status = look(b, made, 0, &seen, error);
    if (status == GB_OK && has_lax)
        status = look(b, made, b->row->lax, &lax, error);
    gb_outputs_free(made);
    if (status != GB_OK)
        return status;
    json_t *object = json_pack("{s:s, s:s, s:b}", "name", fault->name, "modelled_on", fault->modelled_on, "must_catch",
                               fault->must_catch);
    json_array_append_new(list, object);
    for (uint32_t i = 0; i < seen.figures; i++) {
        json_object_set_new(object, seen.figure[i].name, json_integer((json_int_t)seen.figure[i].count));
        changed += seen.figure[i].count;
    }
    json_object_set_new(object, "caught_by", changed ? checks_json(&seen) : json_array());
    if (has_lax)
        json_object_set_new(object, b->row->lax_seen, checks_json(&lax));
    found->caught += changed && seen.seen;
    if (!(changed && seen.seen) && fault->must_catch && !found->missed)
        found->missed = fault->name;
    return GB_OK;
}

enum gb_status power_operator(const struct operator_faults *row, struct baselines *baselines,
                              const struct gb_contract *contract, json_t *record, struct power_operator *found,
                              struct gb_error *error)
{
    struct bench b = {.row = row,
                      .check = operator_check_find(row->operation),
                      .kernel = {.name = "injected_bug",
                                 .operation = row->operation,
                                 .weights = GB_BF16,
                                 .activations = GB_BF16,
                                 .output = GB_FP32,
                                 .order = operator_find(row->operation)->order,
                                 .accumulator_bits = 24},
                      .fixture = baselines->fixture,
                      .contract = contract};
    struct operator_fault fault;
    struct case_result j = {0};
    struct policy policy;
    size_t count = 0;
    json_t *list = json_array();
    json_object_set_new(record, row->list, list);
    *found = (struct power_operator){0};
    policy_preset(0, &policy);
    while (row->at(count, &fault))
        count++;
    enum gb_status status = row->run(-1, contract, b.fixture, &b.clean, error);
    if (status == GB_OK)
        status = b.check->baseline(baselines, &b.kernel, b.clean->shape.tokens, &b.baseline, error);
    if (status == GB_OK)
        status = judge(b.baseline, &b.kernel, b.clean, NULL, &policy, &j, error);
    found->itself = j.verdict;
    snprintf(found->reason, sizeof found->reason, "%s", j.reason);
    case_result_free(&j);
    for (size_t i = 0; status == GB_OK && row->at(i, &fault); i++) {
        progress("injecting bugs", (double)i / (double)count);
        status = plant(&b, i, &fault, list, found, error);
    }
    gb_outputs_free(b.clean);
    return status;
}

enum gb_status power_alone(const struct operator_faults *row, struct baselines *baselines, json_t *record,
                           enum verdict *verdict, struct gb_error *error)
{
    struct power_operator found;
    enum gb_status status = power_operator(row, baselines, NULL, record, &found, error);
    progress_done();
    *verdict = found.itself != VERDICT_PASS || found.missed ? VERDICT_VACUOUS : VERDICT_PASS;
    json_object_set_new(record, "caught", json_integer(found.caught));
    json_object_set_new(record, "reason",
                        found.itself != VERDICT_PASS ? json_string(found.reason)
                        : found.missed               ? json_sprintf("the fixture does not show: %s", found.missed)
                                                     : json_string(""));
    return status;
}
