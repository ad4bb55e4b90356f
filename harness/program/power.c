/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/report/to_json.h"
#include "harness/faults/faults.h"
#include "harness/run/operators.h"
#include "harness/run/probe.h"
#include "harness/judge/judge.h"
#include "harness/program/power.h"
#include "harness/run/progress.h"
#include "harness/report/power_report.h"
#include "harness/report/record.h"
#include "harness/run/output_guard.h"
#include "quant/quant.h"

/* Which checks of each policy saw it. */
static json_t *detections_to_json(const struct power *p, const struct detection *detections)
{
    json_t *object = json_object();
    for (uint32_t g = 0; g < p->policy_count; g++) {
        json_t *checks = json_array();
        if (detections[g].exact)
            json_array_append_new(checks, json_string("exact"));
        if (detections[g].bound)
            json_array_append_new(checks, json_string("bound"));
        if (detections[g].rms)
            json_array_append_new(checks, json_string("rms"));
        if (detections[g].scale)
            json_array_append_new(checks, json_string("scale"));
        if (detections[g].missed)
            json_array_append_new(checks, json_string(detections[g].missed));
        json_object_set_new(object, p->policies[g].name, checks);
    }
    return object;
}

/* How far the outputs are from the reference's. */
static void measure(const struct power *p, json_t *object)
{
    const struct gb_fixture *f = p->baseline->fixture;
    uint64_t changed = 0;
    double squares = 0.0, errors = 0.0;
    for (uint32_t l = 0; l < f->layers; l++) {
        const float *faulty = p->outputs->layer[l].output, *clean = p->baseline->reference->layer[l].output;
        for (size_t i = 0; i < (size_t)f->shape.tokens * f->shape.hidden; i++) {
            changed += memcmp(&faulty[i], &clean[i], sizeof *faulty) != 0;
            squares += (double)clean[i] * (double)clean[i];
            errors += ((double)faulty[i] - (double)clean[i]) * ((double)faulty[i] - (double)clean[i]);
        }
    }
    json_object_set_new(object, "changed", json_integer((json_int_t)changed));
    json_object_set_new(object, "relative_l2", number_to_json(sqrt(errors / squares)));
}

/* What each policy made of all faults. */
struct tally {
    uint32_t caught, missed;
    const char *must_catch; /* the first fault that must not pass and did */
};

static enum gb_status plant(struct power *p, const struct trace *traces, const struct fault *fault,
                            struct tally *tallies, json_t *list, struct gb_error *error)
{
    struct detection detections[MAX_POLICIES];
    enum gb_status status = GB_OK;
    for (uint32_t l = 0; status == GB_OK && l < p->baseline->fixture->layers; l++)
        status = fault_run_stages(fault, &traces[l], NULL, p->outputs->layer[l].output, p->codes[l], error);
    if (status != GB_OK)
        return status;
    json_t *object = json_pack("{s:s, s:s, s:s, s:b}", "name", fault->name, "stage", fault_stage_name(fault->stage),
                               "modelled_on", fault->modelled_on, "must_catch", fault->must_catch);
    json_array_append_new(list, object);
    measure(p, object);
    if (record_number(object, "changed", NULL) == 0)
        return GB_OK;
    status = power_look(p, detections, error);
    if (status != GB_OK)
        return status;
    json_object_set_new(object, "caught_by", detections_to_json(p, detections));
    status = power_look_staged(p, object, error);
    if (status != GB_OK)
        return status;
    for (uint32_t g = 0; g < p->policy_count; g++) {
        bool caught = detection_caught(&detections[g]);
        tallies[g].caught += caught;
        tallies[g].missed += !caught;
        if (!caught && fault->must_catch && !tallies[g].must_catch)
            tallies[g].must_catch = fault->name;
    }
    return GB_OK;
}

/* Signs from the upper bit of a multiplicative sequence. */
static enum gb_status make_noise(struct power *p, uint32_t layer, const struct trace *t, struct gb_error *error)
{
    struct gb_arguments a = t->arguments;
    size_t count = (size_t)a.shape.tokens * a.shape.top_k * a.shape.intermediate;
    a.intermediate = malloc(count * sizeof *a.intermediate);
    a.output = p->noise->layer[layer].output;
    if (!a.intermediate)
        return gb_fail(error, GB_ENOMEM, "no memory for %zu values of the intermediate", count);
    for (size_t i = 0; i < count; i++)
        a.intermediate[i].bits = (uint16_t)(t->intermediate[i].bits ^ ((i * 0x9E3779B97F4A7C15) >> 48 & 0x8000));
    enum gb_status status = gb_reference_down(p->baseline->contract, &a, error);
    free(a.intermediate);
    return status;
}

static enum gb_status plant_all(struct power *p, struct tally *tallies, json_t *list, struct gb_error *error)
{
    const struct gb_fixture *f = p->baseline->fixture;
    struct trace *traces = calloc(f->layers, sizeof *traces);
    const size_t count = fault_count();
    enum gb_status status = traces ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %u layers", f->layers);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        struct gb_arguments a = baseline_arguments(p->baseline, l);
        progress_item("computing every stage", l, f->layers);
        status = trace_new(p->baseline->contract, &a, &traces[l], error);
        if (status == GB_OK)
            status = make_noise(p, l, &traces[l], error);
    }
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        progress_enter((double)i / (double)count, (double)(i + 1) / (double)count);
        progress("injecting bugs", 0.0);
        if (fault_applies(fault_at(i), &traces[0].arguments))
            status = plant(p, traces, fault_at(i), tallies, list, error);
        progress_leave();
    }
    for (uint32_t l = 0; traces && l < f->layers; l++)
        trace_free(&traces[l]);
    free(traces);
    return status;
}

/* Whether the reference's outputs are. */
static bool only_zeros(const struct power *p)
{
    const struct gb_fixture *f = p->baseline->fixture;
    for (uint32_t l = 0; l < f->layers; l++)
        for (size_t i = 0; i < (size_t)f->shape.tokens * f->shape.hidden; i++)
            if (((const float *)p->baseline->reference->layer[l].output)[i] != 0.0f)
                return false;
    return true;
}

/* One policy's object. A policy that rejects the reference catches everything and is of no use. */
static enum verdict check_policy(const struct power *p, uint32_t g, const struct detection *reference,
                                 const struct tally *tally, json_t *object)
{
    bool rejects = detection_caught(reference);
    bool zeros = only_zeros(p);
    enum verdict v = rejects ? VERDICT_FAIL : tally->must_catch || zeros ? VERDICT_VACUOUS : VERDICT_PASS;
    char reason[256] = "";
    if (rejects)
        snprintf(reason, sizeof reason, "the policy rejects the reference itself");
    else if (zeros)
        snprintf(reason, sizeof reason, "the reference's outputs are zeros, so a result of zeros is right");
    else if (tally->must_catch)
        snprintf(reason, sizeof reason, "the policy lets pass: %s", tally->must_catch);
    json_t *content =
        json_pack("{s:s, s:b, s:i, s:i, s:s, s:s}", "name", p->policies[g].name, "rejects_reference", rejects, "caught",
                  (int)tally->caught, "missed", (int)tally->missed, "verdict", verdict_name(v), "reason", reason);
    json_object_update(object, content);
    json_decref(content);
    return v;
}

static void copy_reference(struct power *p)
{
    const struct gb_fixture *f = p->baseline->fixture;
    for (uint32_t l = 0; l < f->layers; l++)
        memcpy(p->outputs->layer[l].output, p->baseline->reference->layer[l].output,
               sizeof(float) * f->shape.tokens * f->shape.hidden);
}

/* Bugs of operators that are parts of a layer, where the fixture has a problem of them. */
static enum gb_status inject_parts(struct power *p, json_t *record, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    struct power_operator found;
    const struct operator_faults *row;
    for (size_t i = 0; status == GB_OK && (row = operator_faults_at(i)); i++)
        if (row->list && operator_find(row->operation)->layers && row->fits(p->baseline->fixture))
            status = power_operator(row, p->baselines, p->baseline->contract, record, &found, error);
    return status;
}

static enum gb_status examine(struct power *p, json_t *record, enum verdict *verdict, struct gb_error *error)
{
    struct detection reference[MAX_POLICIES];
    struct tally tallies[MAX_POLICIES] = {{0}};
    json_t *list = json_array(), *policies = json_array();
    json_object_set_new(record, "injected_bugs", list);
    json_object_set_new(record, "policies", policies);
    copy_reference(p);
    progress_enter(0.08, 0.1);
    enum gb_status status = power_look(p, reference, error);
    progress_leave();
    progress_enter(0.1, 0.5);
    if (status == GB_OK)
        status = plant_all(p, tallies, list, error);
    progress_leave();
    if (status == GB_OK)
        status = inject_parts(p, record, error);
    for (uint32_t g = 0; status == GB_OK && g < p->policy_count; g++) {
        json_t *object = json_object();
        json_array_append_new(policies, object);
        enum verdict v = check_policy(p, g, &reference[g], &tallies[g], object);
        if (g == 0)
            *verdict = v;
        progress_enter(0.5 + 0.5 * g / p->policy_count, 0.5 + 0.5 * (g + 1.0) / p->policy_count);
        progress("searching the smallest errors that a policy rejects", 0.0);
        if (!detection_caught(&reference[g]))
            status = power_detection_limits(p, g, object, error);
        progress_leave();
    }
    progress_done();
    return status;
}

struct power_options {
    const char *fixture, *policy, *report;
    enum gb_format activations; /* 0: the fixture's */
};

enum { OPTION_ACTIVATIONS = 256 };

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct power_options *o = state->input;
    size_t length;
    switch (key) {
    case 'g':
        o->policy = argument;
        return 0;
    case 'o':
        length = strlen(argument);
        if ((length < 5 || strcmp(argument + length - 5, ".json")) &&
            (length < 3 || strcmp(argument + length - 3, ".md")))
            usage_error(state, "-o %s: the extension must be .json or .md", argument);
        o->report = argument;
        return 0;
    case OPTION_ACTIVATIONS:
        if (!gb_format_parse(argument, &o->activations))
            usage_error(state, "--activations %s: give bf16, nvfp4, mxfp8 or fp8", argument);
        return 0;
    case ARGP_KEY_ARG:
        if (o->fixture)
            usage_error(state, "one fixture at a time");
        o->fixture = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->fixture)
            usage_error(state, "name a fixture");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The policy in question first. */
static enum gb_status read_policies(const char *name, struct power *p, struct gb_error *error)
{
    struct policy preset;
    enum gb_status status = policy_read(name, &p->policies[p->policy_count++], error);
    for (unsigned i = 0; status == GB_OK && p->policy_count < MAX_POLICIES && policy_preset(i, &preset); i++)
        if (strcmp(preset.name, p->policies[0].name))
            p->policies[p->policy_count++] = preset;
    return status;
}

static bool write_report(FILE *stream, const char *path, const json_t *record)
{
    if (!strcmp(path + strlen(path) - 3, ".md"))
        power_markdown(stream, record);
    else if (json_dumpf(record, stream, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) || fputc('\n', stream) == EOF)
        return false;
    return !ferror(stream);
}

/* The contract that faults are injected in: the fixture's, or with bf16 activations. */
static enum gb_status choose(const struct power_options *o, struct baselines *baselines, struct power *p,
                             struct gb_error *error)
{
    const struct gb_fixture *fixture = baselines->fixture;
    enum gb_format activations = o->activations ? o->activations : fixture->activations;
    if (activations != GB_BF16 && activations != fixture->activations)
        return gb_fail(error, GB_EINVAL, "--activations %s: the fixture has %s; give that or bf16",
                       gb_format_name(activations), gb_format_name(fixture->activations));
    progress_enter(0.03, 0.05);
    enum gb_status status =
        baselines_get(baselines, gb_contract_find(fixture->weights, activations, GB_ORDER_FMA32), &p->baseline, error);
    progress_leave();
    return status;
}

static enum gb_status run(const struct power_options *o, struct gb_fixture *fixture, json_t *record,
                          enum verdict *verdict, struct gb_error *error)
{
    struct baselines baselines = {.fixture = fixture};
    if (!operator_of(fixture)->layers) {
        json_object_set_new(record, "fixture", record_fixture(o->fixture, fixture));
        if (o->policy || o->activations)
            return gb_fail(error, GB_EINVAL, "%s: --gate and --activations go with problems of layers", o->fixture);
        enum gb_status status =
            power_alone(operator_faults_find(fixture->operation), &baselines, record, verdict, error);
        baselines_free(&baselines);
        return status;
    }
    struct power *p = calloc(1, sizeof *p);
    if (p)
        p->baselines = &baselines;
    enum gb_status status = p ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory");
    if (status == GB_OK)
        status = read_policies(o->policy ? o->policy : "default", p, error);
    if (status == GB_OK)
        status = choose(o, &baselines, p, error);
    if (status == GB_OK)
        status = gb_outputs_new(&fixture->shape, fixture->layers, GB_FP32, false, false, &p->outputs, error);
    if (status == GB_OK)
        status = gb_outputs_new(&fixture->shape, fixture->layers, GB_FP32, false, false, &p->noise, error);
    progress_enter(0.05, 0.08);
    if (status == GB_OK)
        status = power_stages_new(p, error);
    progress_leave();
    if (status == GB_OK) {
        json_object_set_new(record, "contract", json_string(p->baseline->contract->name));
        json_object_set_new(record, "fixture", record_fixture(o->fixture, fixture));
        json_object_set_new(record, "policy", policy_json(&p->policies[0]));
        status = examine(p, record, verdict, error);
    }
    if (p) {
        gb_outputs_free(p->outputs);
        gb_outputs_free(p->noise);
        power_stages_free(p);
    }
    baselines_free(&baselines);
    free(p);
    return status;
}

static const struct argp_option options[] = {
    {"gate", 'g', "FILE", 0, "a policy: a file or a preset; every check by default (docs/gates.md)", 0},
    {"activations", OPTION_ACTIVATIONS, "FORMAT", 0,
     "of the contract that bugs are injected in: bf16, or the fixture's format (default)", 0},
    {"record", 'o', "FILE", 0, "also write the record, .json, or a table, .md", 0},
    {0},
};

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "FIXTURE",
    .doc = "Show what a policy sees on a fixture: injected bugs, and the smallest errors.\v"
           "Exit code 4: zeros, a dropped expert or a wrong row would pass. 1: the reference would not.\n\n"
           "Examples:\n"
           "  gaugeblock power layer.h5\n"
           "  gaugeblock power layer.h5 --gate policy.json -o power.json",
};

static int run_power(int argc, char **argv)
{
    struct power_options o = {0};
    struct gb_fixture *fixture = NULL;
    struct gb_error error;
    enum verdict verdict = VERDICT_NOT_RUN;
    json_t *record = record_new(argc, argv);
    command_parse(&argp, argc, argv, &o);
    json_object_set_new(record, "schema", json_string("gaugeblock-power/2"));
    json_object_del(record, "cases");
    enum gb_status status =
        o.report ? output_guard(o.report, (const char *const[]){o.fixture, o.policy}, 2, &error) : GB_OK;
    if (status == GB_OK)
        status = output_guard_writable(o.report, &error);
    progress_enter(0.0, 0.03);
    int code = status == GB_OK ? input_fixture(o.fixture, INPUT_TIMEOUT_S, &fixture, &error) : EXIT_USAGE;
    progress_leave();
    if (code == EXIT_PASS && run(&o, fixture, record, &verdict, &error) != GB_OK)
        code = EXIT_USAGE;
    if (code == EXIT_PASS) {
        code = verdict_exit_code(verdict);
        json_object_set_new(record, "verdict", json_string(verdict_name(verdict)));
        json_object_set_new(record, "exit_code", json_integer(code));
        power_table(stdout, record);
        if (o.report && report_write_by(write_report, o.report, record, &error) != GB_OK)
            code = command_error("power", "%s", error.message);
    } else {
        command_error("power", "%s", error.message);
    }
    gb_fixture_free(fixture);
    json_decref(record);
    return code;
}

const struct command command_power = {"power", run_power, &argp,
                                      "what a policy sees on a problem: injected bugs, smallest errors"};
