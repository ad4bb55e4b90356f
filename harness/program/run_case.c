/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/run_case.h"
#include "harness/program/command.h"
#include "harness/run/probe.h"
#include "harness/program/evaluate_case.h"
#include "harness/judge/limits.h"
#include "harness/explain/minimise.h"
#include "harness/run/progress.h"
#include "harness/run/clock.h"
#include "harness/program/repro.h"
#include "harness/run/text.h"
#include "harness/run/worker.h"
#include "quant/quant.h"

_Static_assert(sizeof((struct case_request){0}.batches) / sizeof(uint32_t) == MAX_BATCHES,
               "a request holds as many batches as a worker takes");

static enum gb_status no_memory(struct gb_error *error)
{
    return gb_fail(error, GB_ENOMEM, "no memory for the cases");
}

/* A case without a result. */
static struct case_entry *add_verdict(struct case_list *cases, const char *subject, const char *library,
                                      const struct gb_kernel *kernel, uint32_t batch, const char *repro,
                                      enum verdict verdict, const char *reason)
{
    struct case_entry *e = case_list_add(cases, subject, library, kernel, batch, repro);
    if (e) {
        e->result.verdict = verdict;
        snprintf(e->reason, sizeof e->reason, "%s", reason);
    }
    return e;
}

static enum gb_status not_run(struct case_list *cases, const struct case_request *r, const struct selected *s,
                              enum verdict verdict, const char *reason, const char *note, double seconds,
                              struct gb_error *error)
{
    char repro[REPRO_BYTES] = "";
    uint32_t batch = r->batches[r->batch_count - 1];
    if (s->kernel || s->library)
        repro_kernel(repro, r, r->path, s, batch, false);
    struct case_entry *e = add_verdict(cases, s->kernel ? s->kernel->name : s->pattern,
                                       s->library ? s->library->path : "", s->kernel, batch, repro, verdict, reason);
    if (!e)
        return no_memory(error);
    e->contract = s->kernel ? contract_name(s->kernel) : "";
    e->seconds = seconds;
    snprintf(e->note, sizeof e->note, "%s", note);
    return GB_OK;
}

/* Looks for the smallest part that fails, once, if asked to. A part has no router. */
static enum gb_status minimise_case(struct case_entry *one, struct case_request *r, const struct selected *s,
                                    const struct gb_outputs *outputs, struct gb_error *error)
{
    const char *path = r->minimal;
    char repro[REPRO_BYTES];
    if (!path || s->kernel->flags & GB_ROUTES || !operator_of(r->fixture)->layers ||
        one->result.verdict != VERDICT_FAIL)
        return GB_OK;
    enum gb_status status =
        minimise(r, s, outputs, one->explanation ? one->explanation->kind : "", path, &one->minimal, error);
    if (status != GB_OK || !one->minimal)
        return status;
    r->minimal = NULL;
    repro_kernel(repro, r, path, s, one->minimal->tokens, true);
    one->minimal->repro = strdup(repro);
    if (one->minimal->repro)
        return GB_OK;
    free(one->minimal);
    one->minimal = NULL;
    return no_memory(error);
}

enum gb_status case_kernel(struct case_list *cases, struct case_request *r, const struct selected *s,
                           struct gb_error *error)
{
    if (s->reason[0])
        return not_run(cases, r, s, s->verdict, s->reason, "", 0.0, error);
    struct worker_request request = {.fixture = -1, /* received */
                                     .library = s->library->path,
                                     .kernel = s->kernel,
                                     .batch_count = r->batch_count,
                                     .timeout_s = r->timeout_s,
                                     .timing = r->timing};
    struct worker_result result;
    memcpy(request.batches, r->batches, sizeof request.batches);
    char running[300];
    double began = clock_seconds(), unspent = 0.0;
    snprintf(running, sizeof running, "running %s", s->kernel->name);
    progress(running, 0.0);
    worker_run(&request, r->fixture, &result);
    unspent = clock_seconds() - began;
    for (uint32_t b = 0; b < r->batch_count; b++)
        unspent -= result.seconds[b];
    if (result.verdict != VERDICT_PASS) {
        enum gb_status added =
            not_run(cases, r, s, result.verdict, result.reason, result.note, clock_seconds() - began, error);
        worker_result_free(&result);
        return added;
    }
    enum gb_status status = GB_OK;
    for (uint32_t b = 0; status == GB_OK && b < r->batch_count; b++) {
        char repro[REPRO_BYTES];
        repro_kernel(repro, r, r->path, s, r->batches[b], false);
        struct run_case subject = {.kernel = *s->kernel,
                                   .library = s->library->path,
                                   .repro = repro,
                                   .note = result.note,
                                   .outputs = result.outputs[b],
                                   .second = result.second[b],
                                   .largest = result.outputs[r->batch_count - 1],
                                   .checks = &result.checks[b],
                                   .routing = &result.routing[b],
                                   .timing = &result.timing[b],
                                   .seconds = result.seconds[b] + (b ? 0.0 : unspent)}; /* which starting it took */
        progress_enter((b + 1.0) / (r->batch_count + 1), (b + 2.0) / (r->batch_count + 1));
        status = evaluate_cases(cases, r, &subject, error);
        progress_leave();
        if (status == GB_OK)
            status = minimise_case(&cases->of[cases->count - 1], r, s, result.outputs[b], error);
    }
    worker_result_free(&result);
    return status;
}

static enum verdict verdict_of(int code)
{
    return code == EXIT_CRASH ? VERDICT_CRASH : VERDICT_BAD_INPUT;
}

enum gb_status case_refused(struct case_list *cases, const char *path, const char *batches, unsigned timeout_s,
                            int code, const char *reason, struct gb_error *error)
{
    char repro[REPRO_BYTES], text[sizeof error->message];
    snprintf(text, sizeof text, "%s", reason);
    repro_refused(repro, path, batches, timeout_s);
    if (!add_verdict(cases, "", "", NULL, 0, repro, verdict_of(code), text))
        return no_memory(error);
    command_error("verify", "%s", text);
    return GB_OK;
}

void case_report_bad_truth(const struct case_list *cases)
{
    for (size_t i = 0; i < cases->count; i++)
        if (cases->of[i].result.judged && cases->of[i].result.verdict == VERDICT_BAD_INPUT) {
            command_error("verify", "%s", cases->of[i].reason);
            return;
        }
}

/* What a file of outputs claims to be: a layer, with its routing or not, or a router alone. */
static struct gb_kernel kernel_of(const struct gb_fixture *f, const char *path,
                                  const struct declared_precision *declared, const struct gb_outputs *outputs)
{
    struct gb_kernel kernel = {
        .name = path,
        .operation = declared->operation ? declared->operation : operator_of_outputs(f, outputs)->operation,
        .weights = f->weights,
        .activations = declared->activations,
        .output = gb_fixture_exchanges(f)   ? outputs->combined_format
                  : gb_fixture_quantises(f) ? GB_FP32
                                            : outputs->layer[0].format,
        .flags = declared->open_silu ? GB_OPEN_SILU : 0,
        .order = declared->order,
        .accumulator_bits = declared->accumulator_bits,
        .roundings = declared->roundings,
    };
    return kernel;
}

/* Whether the file has as many tokens as were asked for: what is missing would not be judged. */
static enum gb_status check_tokens(const struct case_request *r, const char *path, const struct gb_outputs *outputs,
                                   struct gb_error *error)
{
    uint32_t tokens = outputs->shape.tokens, all = r->fixture->shape.tokens;
    for (uint32_t b = 0; b < r->batch_count; b++)
        if (r->batches[b] == tokens)
            return GB_OK;
    return gb_fail(error, GB_EINVAL, "%s: has outputs of %u of %u tokens; write %s", path_end(path), tokens, all,
                   r->batches_text ? "as many as --batch says"
                                   : "all of them, or say with --batch how many are judged");
}

/* The limits that a layer's outputs were held to. */
static enum gb_status write_limits(const struct case_request *r, const struct run_case *s, struct gb_error *error)
{
    struct baseline *b;
    if (!operator_is_whole(&s->kernel) || s->outputs->layer[0].ids)
        return gb_fail(error, GB_EINVAL, "--limits: %s has no outputs of layers under the fixture's routing",
                       path_end(s->kernel.name));
    enum gb_status status = baselines_of_kernel(r->baselines, &s->kernel, s->outputs->shape.tokens, &b, error);
    return status == GB_OK ? limits_write(r->limits, b, s->outputs->shape.tokens, error) : status;
}

enum gb_status case_outputs(struct case_list *cases, const struct case_request *r, const char *outputs_path,
                            const struct declared_precision *declared, struct gb_error *error)
{
    const struct gb_fixture *f = r->fixture;
    struct gb_outputs *outputs;
    char repro[REPRO_BYTES];
    repro_outputs(repro, r, outputs_path, declared);
    double began = clock_seconds();
    int code = gb_fixture_quantises(f) ? input_codes(outputs_path, declared->scales, f, r->timeout_s, &outputs, error)
                                       : input_outputs(outputs_path, f, r->timeout_s, &outputs, error);
    double seconds = clock_seconds() - began;
    if (code == EXIT_PASS && check_tokens(r, outputs_path, outputs, error) != GB_OK) {
        gb_outputs_free(outputs);
        code = EXIT_USAGE;
    }
    if (code != EXIT_PASS) {
        struct case_entry *e = add_verdict(cases, outputs_path, "", NULL, 0, repro, verdict_of(code), error->message);
        command_error("verify", "%s", error->message);
        if (!e)
            return no_memory(error);
        e->seconds = seconds;
        return GB_OK;
    }
    struct run_case subject = {.kernel = kernel_of(f, outputs_path, declared, outputs),
                               .library = "",
                               .repro = repro,
                               .outputs = outputs,
                               .seconds = seconds};
    enum gb_status status = evaluate_cases(cases, r, &subject, error);
    if (status == GB_OK && r->limits)
        status = write_limits(r, &subject, error);
    gb_outputs_free(outputs);
    return status;
}

uint32_t case_most_tokens(const struct case_list *cases)
{
    uint32_t most = 0;
    for (size_t i = 0; i < cases->count; i++)
        if (cases->of[i].result.judged && cases->of[i].batch > most)
            most = cases->of[i].batch;
    return most;
}

enum gb_status case_not_exercised(struct case_list *cases, const char *missing, const char *demand,
                                  struct gb_error *error)
{
    for (size_t i = 0; i < cases->count; i++) {
        struct case_entry *one = &cases->of[i];
        char *repro;
        if (one->result.verdict != VERDICT_PASS)
            continue;
        if (asprintf(&repro, "%s --require-coverage %s", one->repro, demand) < 0)
            return no_memory(error);
        free(one->repro);
        one->repro = repro;
        one->result.verdict = VERDICT_VACUOUS;
        snprintf(one->reason, sizeof one->reason, "the fixture does not exercise %s", missing);
    }
    return GB_OK;
}
