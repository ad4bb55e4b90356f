/* SPDX-License-Identifier: Apache-2.0 */
/* Injected bugs of quantisers, on one fixture. Their codes and scales are compared bit by bit, so that every bug that
 * has an effect is caught; what a fixture is asked for is that bugs have one. */
#include "harness/faults/faults_quantise.h"
#include "harness/judge/check_quantise.h"
#include "harness/program/power.h"
#include "harness/run/progress.h"
#include "harness/faults/quantise_as.h"
#include "quant/quant.h"

static json_t *checks_json(uint64_t codes, uint64_t scales)
{
    json_t *checks = json_array();
    if (codes)
        json_array_append_new(checks, json_string("codes"));
    if (scales)
        json_array_append_new(checks, json_string("scales"));
    return checks;
}

static enum gb_status plant(const struct gb_fixture *f, const struct gb_outputs *reference,
                            const struct quantise_fault *fault, json_t *list, uint32_t *caught, const char **must_catch,
                            struct gb_error *error)
{
    struct gb_outputs *made;
    struct quantise_check k;
    enum gb_status status = quantise_fault_run(fault, f, f->quantisation.rows, &made, error);
    if (status != GB_OK || !made)
        return status;
    status = check_quantise(f, reference, made, true, &k, error);
    gb_outputs_free(made);
    if (status != GB_OK)
        return status;
    uint64_t codes = k.codes.mismatching, scales = k.scales.mismatching;
    json_t *object = json_pack("{s:s, s:s, s:b, s:I, s:I, s:o}", "name", fault->name, "modelled_on", fault->modelled_on,
                               "must_catch", fault->must_catch, "codes", (json_int_t)codes, "scales",
                               (json_int_t)scales, "caught_by", checks_json(codes, scales));
    if (f->operation == GB_SILU_MUL_QUANTISE)
        json_object_set_new(object, "caught_with_open_silu",
                            checks_json(array_wrong(&k, &k.codes), array_wrong(&k, &k.scales)));
    json_array_append_new(list, object);
    *caught += codes + scales > 0;
    if (codes + scales == 0 && fault->must_catch && !*must_catch)
        *must_catch = fault->name;
    return GB_OK;
}

enum gb_status power_quantise(const struct gb_fixture *f, json_t *record, enum verdict *verdict, struct gb_error *error)
{
    size_t count;
    const struct quantise_fault *all = quantise_faults(&count);
    struct gb_outputs *reference;
    struct quantise_check itself = {0};
    const char *must_catch = NULL;
    uint32_t caught = 0;
    json_t *list = json_array();
    json_object_set_new(record, "injected_bugs", list);
    enum gb_status status = quantise_reference(f, f->quantisation.rows, &reference, error);
    if (status == GB_OK)
        status = check_quantise(f, reference, reference, false, &itself, error);
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        progress("injecting bugs", (double)i / (double)count);
        status = plant(f, reference, &all[i], list, &caught, &must_catch, error);
    }
    progress_done();
    gb_outputs_free(reference);
    *verdict = itself.only_zeros || must_catch ? VERDICT_VACUOUS : VERDICT_PASS;
    json_object_set_new(record, "caught", json_integer(caught));
    json_object_set_new(record, "reason",
                        itself.only_zeros ? json_string("every code of the reference is zero")
                        : must_catch      ? json_sprintf("the fixture does not show: %s", must_catch)
                                          : json_string(""));
    return status;
}
