/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/run_case.h"
#include "harness/program/command.h"
#include "harness/run/probe.h"
#include "harness/judge/evaluate_case.h"
#include "harness/explain/minimise.h"
#include "harness/run/progress.h"
#include "harness/report/record.h"
#include "harness/program/repro.h"
#include "harness/run/session.h"
#include "harness/run/worker.h"
#include "quant/quant.h"

_Static_assert(sizeof((struct case_request){0}.batches) / sizeof(uint32_t) == MAX_BATCHES,
               "a request holds as many batches as a worker takes");

static void not_run(json_t *record, const struct case_request *r, const struct selected *s, enum verdict verdict,
                    const char *reason)
{
    char repro[REPRO_BYTES] = "";
    uint32_t batch = r->batches[r->batch_count - 1];
    if (s->kernel)
        repro_kernel(repro, r, r->path, s, batch, false);
    record_case(record, record_fixture(r->path, r->fixture),
                record_subject(s->kernel ? s->kernel->name : s->pattern, s->library ? s->library->path : "", s->kernel),
                s->kernel ? judged_contract(s->kernel) : "", batch, verdict, reason, repro, NULL, NULL);
}

/* Looks for the smallest part that fails, once, if asked to. A part has no router. */
static enum gb_status minimise_case(json_t *record, struct case_request *r, const struct selected *s,
                                    const struct gb_outputs *outputs, struct gb_error *error)
{
    json_t *cases = json_object_get(record, "cases"), *description;
    json_t *one = json_array_get(cases, json_array_size(cases) - 1);
    const char *path = r->minimal;
    char repro[REPRO_BYTES];
    if (!path || s->kernel->flags & GB_ROUTES || strcmp(record_text(one, "verdict", NULL), "FAIL"))
        return GB_OK;
    enum gb_status status =
        minimise(r, s, outputs, record_text(one, "explanation", "kind", NULL), path, &description, error);
    if (status != GB_OK || !description)
        return status;
    r->minimal = NULL;
    repro_kernel(repro, r, path, s, (uint32_t)record_number(description, "tokens", NULL), true);
    json_object_set_new(description, "repro", record_string(repro));
    json_object_set_new(one, "minimal", description);
    return GB_OK;
}

enum gb_status case_kernel(json_t *record, struct case_request *r, const struct selected *s, struct gb_error *error)
{
    if (s->reason[0]) {
        not_run(record, r, s, s->unsupported ? VERDICT_UNSUPPORTED : VERDICT_NOT_RUN, s->reason);
        return GB_OK;
    }
    struct worker_request request = {.fixture = -1, /* received */
                                     .library = s->library->path,
                                     .kernel = s->kernel->name,
                                     .batch_count = r->batch_count,
                                     .timeout_s = r->timeout_s};
    struct worker_result result;
    memcpy(request.batches, r->batches, sizeof request.batches);
    char running[300];
    double began = record_clock(), unspent = 0.0;
    snprintf(running, sizeof running, "running %s", s->kernel->name);
    progress(running, 0.0);
    worker_run(&request, r->fixture, &result);
    unspent = record_clock() - began;
    for (uint32_t b = 0; b < r->batch_count; b++)
        unspent -= result.seconds[b];
    if (result.verdict != VERDICT_PASS) {
        not_run(record, r, s, result.verdict, result.reason);
        record_seconds(record, record_clock() - began);
        worker_result_free(&result);
        return GB_OK;
    }
    enum gb_status status = GB_OK;
    for (uint32_t b = 0; status == GB_OK && b < r->batch_count; b++) {
        char repro[REPRO_BYTES];
        repro_kernel(repro, r, r->path, s, r->batches[b], false);
        struct judged subject = {.kernel = *s->kernel,
                                 .library = s->library->path,
                                 .repro = repro,
                                 .outputs = result.outputs[b],
                                 .second = result.second[b],
                                 .largest = result.outputs[r->batch_count - 1],
                                 .checks = &result.checks[b],
                                 .routing = &result.routing[b],
                                 .seconds = result.seconds[b] + (b ? 0.0 : unspent)}; /* which starting it took */
        progress_enter((b + 1.0) / (r->batch_count + 1), (b + 2.0) / (r->batch_count + 1));
        status = judged_cases(record, r, &subject, error);
        progress_leave();
        if (status == GB_OK)
            status = minimise_case(record, r, s, result.outputs[b], error);
    }
    worker_result_free(&result);
    return status;
}

static enum verdict verdict_of(int code)
{
    return code == EXIT_CRASH ? VERDICT_CRASH : VERDICT_BAD_INPUT;
}

void case_refused(json_t *record, const char *path, const char *batches, unsigned timeout_s, int code,
                  const char *reason)
{
    char repro[REPRO_BYTES];
    repro_refused(repro, path, batches, timeout_s);
    record_case(record, record_refused(path), record_subject("", "", NULL), "", 0, verdict_of(code), reason, repro,
                NULL, NULL);
    command_error("verify", "%s", reason);
}

void case_report_bad_truth(const json_t *record, size_t first)
{
    const json_t *cases = json_object_get(record, "cases");
    for (size_t i = first; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        if (json_object_get(one, "lanes") && !strcmp(record_text(one, "verdict", NULL), "BAD_INPUT")) {
            command_error("verify", "%s", record_text(one, "reason", NULL));
            return;
        }
    }
}

/* What a file of outputs claims to be: a layer, with its routing or not, or a router alone. */
static struct gb_kernel kernel_of(const struct gb_fixture *f, const char *path, const struct claim *claim,
                                  const struct gb_outputs *outputs)
{
    struct gb_kernel kernel = {
        .name = path,
        .operation = outputs->layer[0].output ? GB_LAYER : GB_ROUTE,
        .weights = f->weights,
        .activations = claim->activations,
        .output = outputs->layer[0].format,
        .order = claim->order,
        .accumulator_bits = claim->accumulator_bits,
        .roundings = claim->roundings,
    };
    return kernel;
}

enum gb_status case_outputs(json_t *record, const struct case_request *r, const char *outputs_path,
                            const struct claim *claim, struct gb_error *error)
{
    const struct gb_fixture *f = r->fixture;
    struct gb_outputs *outputs;
    char repro[REPRO_BYTES];
    repro_outputs(repro, r, outputs_path, claim);
    double began = record_clock();
    int code = input_outputs(outputs_path, f, r->timeout_s, &outputs, error);
    double seconds = record_clock() - began;
    if (code != EXIT_PASS) {
        record_case(record, record_fixture(r->path, f), record_subject(outputs_path, "", NULL), "", 0, verdict_of(code),
                    error->message, repro, NULL, NULL);
        record_seconds(record, seconds);
        command_error("verify", "%s", error->message);
        return GB_OK;
    }
    struct judged subject = {.kernel = kernel_of(f, outputs_path, claim, outputs),
                             .library = "",
                             .repro = repro,
                             .outputs = outputs,
                             .seconds = seconds};
    enum gb_status status = judged_cases(record, r, &subject, error);
    gb_outputs_free(outputs);
    return status;
}

uint32_t case_most_tokens(const json_t *record, size_t first)
{
    const json_t *cases = json_object_get(record, "cases");
    uint32_t most = 0;
    for (size_t i = first; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        if (json_object_get(one, "lanes") && record_number(one, "batch", NULL) > most)
            most = (uint32_t)record_number(one, "batch", NULL);
    }
    return most;
}

void case_not_exercised(json_t *record, size_t first, const char *missing, const char *demand)
{
    json_t *cases = json_object_get(record, "cases");
    for (size_t i = first; i < json_array_size(cases); i++) {
        json_t *one = json_array_get(cases, i);
        if (strcmp(record_text(one, "verdict", NULL), verdict_name(VERDICT_PASS)))
            continue;
        json_object_set_new(one, "verdict", json_string(verdict_name(VERDICT_VACUOUS)));
        json_object_set_new(one, "reason", json_sprintf("the fixture does not exercise %s", missing));
        json_object_set_new(one, "exit_code", json_integer(verdict_exit_code(VERDICT_VACUOUS)));
        json_object_set_new(one, "repro",
                            json_sprintf("%s --require-coverage %s", record_text(one, "repro", NULL), demand));
    }
}
