/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/run_case.h"
#include "harness/program/command.h"
#include "harness/program/fixture_list.h"
#include "harness/judge/coverage.h"
#include "harness/run/probe.h"
#include "harness/explain/minimise.h"
#include "harness/run/clock.h"
#include "harness/run/progress.h"
#include "harness/report/record.h"
#include "harness/run/output_guard.h"
#include "harness/judge/truth_check.h"
#include "harness/run/worker_processes.h"
#include "quant/quant.h"

enum { MAX_REPORTS = 16, MAX_OUTPUTS = 64, DEFAULT_TIMEOUT_S = INPUT_TIMEOUT_S };

struct verify_options {
    const char **arguments; /* [argument_count] of argc: fixtures, and folders of them */
    struct fixture_list fixtures;
    const char *patterns[MAX_PATTERNS], *reports[MAX_REPORTS];
    const char *subjects[MAX_LIBRARIES - 2], *outputs[MAX_OUTPUTS];
    uint32_t argument_count, pattern_count, report_count, subject_count, outputs_count;
    const char *batches, *policy_name, *minimal, *limits;
    struct declared_precision declared;
    struct policy policy;
    struct coverage_demand demand;
    long long expect; /* negative: not given */
    bool verbose, undiagnosed;
    unsigned timeout_s;
};

enum {
    OPTION_KERNEL = 256,
    OPTION_SUBJECT,
    OPTION_OUTPUTS,
    OPTION_OPERATOR,
    OPTION_ORDER,
    OPTION_ACTIVATIONS,
    OPTION_ROUNDING,
    OPTION_BITS,
    OPTION_BATCH,
    OPTION_EXPECT,
    OPTION_TIMEOUT,
    OPTION_GATE,
    OPTION_MINIMISE,
    OPTION_COVERAGE,
    OPTION_SCALES,
    OPTION_OPEN_SILU,
    OPTION_LIMITS,
    OPTION_NO_DIAGNOSIS
};

static const struct argp_option options[] = {
    {"kernel", OPTION_KERNEL, "NAME", OPTION_REPEATABLE,
     "judge this kernel; a glob such as 'cuda/*' judges all that match (repeatable)", 0},
    {"subject", OPTION_SUBJECT, "LIB.so", OPTION_REPEATABLE,
     "load kernels from this library (docs/kernels.md; repeatable)", 0},
    {"outputs", OPTION_OUTPUTS, "FILE", OPTION_REPEATABLE,
     "judge outputs of anything: HDF5, .npy or .safetensors (repeatable)", 0},
    {"operator", OPTION_OPERATOR, "NAME", 0,
     "what wrote --outputs: layer, or down by itself, on the reference's intermediate", 0},
    {"order", OPTION_ORDER, "ORDER", 0, "the order --outputs claims, such as " GB_ORDER_FMA32 "; none by default", 0},
    {"activations", OPTION_ACTIVATIONS, "FORMAT", 0,
     "what wrote --outputs multiplies: bf16, or the fixture's format of activations (default)", 0},
    {"rounding", OPTION_ROUNDING, "STAGE=FORMAT,...", 0,
     "where what wrote --outputs rounds between stages: gate_up, silu, slot, routing_weight, weighted, each to bf16; "
     "nowhere by default",
     0},
    {"accumulator-bits", OPTION_BITS, "N", 0, "significand bits of the accumulators of what wrote --outputs; 24", 0},
    {"scales", OPTION_SCALES, "FILE", 0, "of a quantiser: the scales, where --outputs is a .npy file of codes", 0},
    {"open-silu", OPTION_OPEN_SILU, NULL, 0,
     "of silu_mul_quantise: what wrote --outputs computes silu in FP32 in a form of its own (docs/gates.md)", 0},
    {"batch", OPTION_BATCH, "N,...", 0,
     "run the first N tokens, for each N; all tokens by default. With --outputs: files that have so many tokens", 0},
    {"gate", OPTION_GATE, "FILE", 0,
     "which checks bind, and thresholds: a JSON file, or a preset (gaugeblock list gates)", 0},
    {"no-diagnosis", OPTION_NO_DIAGNOSIS, NULL, 0, "do not search what a wrong result looks like", 0},
    {"limits", OPTION_LIMITS, "FILE.h5", 0,
     "write truth and the limit of each element that --outputs are held to (docs/gates.md)", 0},
    {"minimise", OPTION_MINIMISE, "OUT.h5", 0,
     "write the smallest part of the problem that the first failing kernel fails on", 0},
    {"require-coverage", OPTION_COVERAGE, "NAME[=MINIMUM],...|all", 0,
     "VACUOUS unless the fixture exercises these (docs/gates.md, gaugeblock info FIXTURE --coverage)", 0},
    {"expect", OPTION_EXPECT, "N", 0,
     "exit non-zero unless exactly N cases were judged: of each kernel one a problem and batch, two if it routes", 0},
    {"timeout", OPTION_TIMEOUT, "S", 0, "seconds that a subject, or the reading of a file, may take; 600 by default",
     0},
    {"record", 'o', "FILE", OPTION_REPEATABLE,
     "also write the record: .json, .xml (JUnit) or .md, by extension (repeatable)", 0},
    {"verbose", 'v', NULL, 0, "print the residual stream, aggregate tests and detection limits too", 0},
    {0},
};

static void append(struct argp_state *state, const char *what, const char **list, uint32_t *count, uint32_t most,
                   const char *value)
{
    if (*count == most)
        usage_error(state, "at most %u times %s", most, what);
    list[(*count)++] = value;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct verify_options *o = state->input;
    struct gb_error error;
    uint64_t value;
    switch (key) {
    case OPTION_KERNEL:
        append(state, "--kernel", o->patterns, &o->pattern_count, MAX_PATTERNS, argument);
        return 0;
    case OPTION_SUBJECT:
        append(state, "--subject", o->subjects, &o->subject_count, MAX_LIBRARIES - 2, argument);
        return 0;
    case OPTION_OUTPUTS:
        append(state, "--outputs", o->outputs, &o->outputs_count, MAX_OUTPUTS, argument);
        return 0;
    case OPTION_OPERATOR:
        if (strcmp(argument, operator_name(GB_LAYER)) && strcmp(argument, operator_name(GB_DOWN)))
            usage_error(state, "--operator %s: give layer or down", argument);
        o->declared.operation = operator_named(argument)->operation;
        return 0;
    case OPTION_NO_DIAGNOSIS:
        o->undiagnosed = true;
        return 0;
    case OPTION_LIMITS:
        o->limits = argument;
        return 0;
    case OPTION_ORDER:
        o->declared.order = argument;
        return 0;
    case OPTION_ACTIVATIONS:
        if (!gb_format_parse(argument, &o->declared.activations))
            usage_error(state, "--activations %s: give bf16, nvfp4, mxfp8 or fp8", argument);
        return 0;
    case OPTION_ROUNDING:
        if (declare_roundings(&o->declared, argument, &error) != GB_OK)
            usage_error(state, "%s", error.message);
        return 0;
    case OPTION_BITS:
        if (!parse_number(argument, 8, 53, &value))
            usage_error(state, "--accumulator-bits %s: give a whole number from 8 to 53", argument);
        o->declared.accumulator_bits = (uint32_t)value;
        return 0;
    case OPTION_SCALES:
        o->declared.scales = argument;
        return 0;
    case OPTION_OPEN_SILU:
        o->declared.open_silu = true;
        return 0;
    case OPTION_BATCH:
        o->batches = argument;
        return 0;
    case OPTION_GATE:
        o->policy_name = argument;
        return 0;
    case OPTION_MINIMISE:
        o->minimal = argument;
        return 0;
    case OPTION_COVERAGE:
        if (coverage_demand_parse(argument, &o->demand, &error) != GB_OK)
            usage_error(state, "%s", error.message);
        return 0;
    case OPTION_EXPECT:
        if (!parse_number(argument, 0, INT32_MAX, &value))
            usage_error(state, "--expect %s: give a whole number", argument);
        o->expect = (long long)value;
        return 0;
    case OPTION_TIMEOUT:
        if (!parse_number(argument, 1, 1 << 20, &value))
            usage_error(state, "--timeout %s: give a number of seconds from 1 to %d", argument, 1 << 20);
        o->timeout_s = (unsigned)value;
        return 0;
    case 'v':
        o->verbose = true;
        return 0;
    case 'o':
        if (!report_known(argument))
            usage_error(state, "-o %s: the extension must be .json, .xml or .md", argument);
        append(state, "-o", o->reports, &o->report_count, MAX_REPORTS, argument);
        return 0;
    case ARGP_KEY_ARG:
        o->arguments[o->argument_count++] = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->argument_count)
            usage_error(state, "name at least one fixture, or a folder of them");
        if (fixture_list_new(o->arguments, o->argument_count, &o->fixtures, &error) != GB_OK)
            usage_error(state, "%s", error.message);
        if (o->outputs_count && processes.count > 1)
            usage_error(state, "--outputs is for one process: start it without mpirun");
        if (o->outputs_count && (o->fixtures.count > 1 || o->pattern_count || o->subject_count))
            usage_error(state, "--outputs goes with one fixture, and without --kernel and --subject");
        if ((o->declared.order || o->declared.roundings_text || o->declared.accumulator_bits ||
             o->declared.activations) &&
            !o->outputs_count)
            usage_error(state, "--order, --activations, --rounding and --accumulator-bits go with --outputs");
        if ((o->declared.operation || o->limits) && o->outputs_count != 1)
            usage_error(state, "--operator and --limits go with one --outputs");
        if ((o->declared.scales || o->declared.open_silu) && o->outputs_count != 1)
            usage_error(state, "--scales and --open-silu go with one --outputs");
        if (o->minimal && o->outputs_count)
            usage_error(state, "--minimise goes without --outputs");
        if (o->declared.order && (o->declared.roundings_text || o->declared.accumulator_bits))
            usage_error(state, "--order claims every rounding of a contract: give it without --rounding and "
                               "--accumulator-bits");
        if (!o->declared.accumulator_bits)
            o->declared.accumulator_bits = FP32_SIGNIFICAND_BITS;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static enum gb_status evaluate_kernels(struct case_list *cases, const struct verify_options *o,
                                       const struct catalogue *catalogue, struct case_request *request,
                                       struct gb_error *error)
{
    const struct gb_fixture *f = request->fixture;
    struct gb_problem problem = gb_fixture_problem(f, f->shape.tokens);
    problem.router = gb_fixture_router(f);
    problem.quantise = gb_fixture_quantises(f) ? &f->quantisation : NULL;
    problem.exchange = gb_fixture_exchanges(f) ? &f->exchanged.asked : NULL;
    for (uint32_t l = 0; l < f->layers; l++)
        if (!f->layer[l].router.codes)
            problem.router = NULL;
    struct selected *selected = malloc(sizeof *selected * select_most(catalogue, o->pattern_count));
    if (!selected)
        return gb_fail(error, GB_ENOMEM, "no memory for the list of subjects");
    uint32_t count = select_subjects(catalogue, o->patterns, o->pattern_count, &problem, selected);
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && i < count; i++) {
        progress_enter((double)i / count, (i + 1.0) / count);
        status = case_kernel(cases, request, &selected[i], error);
        progress_leave();
    }
    free(selected);
    return status;
}

static enum gb_status evaluate_outputs(struct case_list *cases, const struct verify_options *o,
                                       struct case_request *request, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && i < o->outputs_count; i++) {
        progress_enter((double)i / o->outputs_count, (i + 1.0) / o->outputs_count);
        status = case_outputs(cases, request, o->outputs[i], &o->declared, error);
        progress_leave();
    }
    return status;
}

/* Adds what the cases exercised, and makes those VACUOUS that pass without what is asked for. */
static enum gb_status cover(json_t *record, struct case_list *cases, const struct verify_options *o,
                            const struct gb_fixture *f, const char *path, struct gb_error *error)
{
    uint32_t tokens = case_most_tokens(cases);
    struct coverage coverage;
    char missing[2048];
    if (!tokens)
        return GB_OK;
    progress("measuring coverage", 0.96);
    enum gb_status status = coverage_measure(f, tokens, &coverage, error);
    if (status != GB_OK)
        return status;
    record_coverage(record, path, f->sha256, tokens, &coverage);
    return coverage_short(&coverage, &o->demand, missing, sizeof missing)
               ? case_not_exercised(cases, missing, o->demand.text, error)
               : GB_OK;
}

/* What --outputs claims fits the fixture; activations that are not said are its own. */
static enum gb_status check_declared(const struct gb_fixture *f, struct declared_precision *declared,
                                     struct gb_error *error)
{
    declared->activations = declared->activations ? declared->activations : f->activations;
    if (declared->activations != GB_BF16 && declared->activations != f->activations)
        return gb_fail(error, GB_EINVAL, "--activations %s: the fixture has %s; give that or bf16",
                       gb_format_name(declared->activations), gb_format_name(f->activations));
    if (declared->order && !gb_contract_find(f->weights, declared->activations, declared->order))
        return gb_fail(error, GB_EINVAL, "--order %s: no contract for %s weights has it; see gaugeblock list contracts",
                       declared->order, gb_format_name(f->weights));
    return GB_OK;
}

/* The reference by the fixture's contract, and with bf16 activations; their truth is the inputs'. */
static enum gb_status check_truth(struct baselines *baselines, const char *path, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (size_t i = 0; status == GB_OK && i < baselines->count; i++)
        status = truth_check(baselines->of[i], path, error);
    return status;
}

/* Every subject, of an operator without layers: it has no contract, truth or coverage. */
static enum gb_status check_arrays(struct case_list *cases, struct verify_options *o, const struct catalogue *catalogue,
                                   struct case_request *request, struct gb_error *error)
{
    const struct operator_row *row = operator_of(request->fixture);
    const char *unfit = o->declared.order && !row->order ? "order"
                        : o->declared.roundings_text     ? "rounding"
                        : o->declared.activations        ? "activations"
                        : o->declared.operation          ? "operator"
                        : o->limits                      ? "limits"
                        : o->minimal                     ? "minimise"
                        : o->demand.text                 ? "require-coverage"
                                                         : NULL;
    if (unfit)
        return gb_fail(error, GB_EINVAL, "%s: --%s goes with problems of layers; this is one of %s",
                       path_end(request->path), unfit, row->name);
    if (o->declared.open_silu && !(row->flags & GB_OPEN_SILU))
        return gb_fail(error, GB_EINVAL, "%s: --open-silu goes with silu_mul_quantise; this is a problem of %s",
                       path_end(request->path), row->name);
    if (o->declared.order && strcmp(o->declared.order, row->order))
        return gb_fail(error, GB_EINVAL, "%s: --order %s: %s has the order %s alone", path_end(request->path),
                       o->declared.order, row->name, row->order);
    if (row->over_ranks && (request->batch_count > 1 || request->batches[0] != request->fixture->shape.tokens))
        return gb_fail(error, GB_EINVAL, "%s: --batch: the tokens of all ranks, %u, are judged together",
                       path_end(request->path), request->fixture->shape.tokens);
    struct verify_options plain = *o;
    plain.declared.activations = GB_BF16;
    progress_enter(0.2, 0.96);
    enum gb_status status = o->outputs_count ? evaluate_outputs(cases, &plain, request, error)
                                             : evaluate_kernels(cases, &plain, catalogue, request, error);
    progress_leave();
    return status;
}

/* The reference, the fixture's truth, and then every subject. */
static enum gb_status evaluate_fixture(json_t *record, struct case_list *cases, struct verify_options *o,
                                       const struct catalogue *catalogue, struct case_request *request,
                                       struct gb_error *error)
{
    struct gb_fixture *f = request->fixture;
    struct baseline *reference;
    if (!operator_of(f)->layers)
        return check_arrays(cases, o, catalogue, request, error);
    if (o->declared.scales || o->declared.open_silu)
        return gb_fail(error, GB_EINVAL, "--scales and --open-silu go with problems of quantisers, not of layers");
    enum gb_status status = o->outputs_count ? check_declared(f, &o->declared, error) : GB_OK;
    progress_enter(0.2, 0.3);
    if (status == GB_OK)
        status = baselines_get(request->baselines, fixture_contract(f), &reference, error);
    progress_leave();
    if (status != GB_OK)
        return status;
    progress_enter(0.3, 0.5);
    enum gb_status truth = check_truth(request->baselines, request->path, error);
    progress_leave();
    if (truth != GB_OK)
        return case_refused(cases, request->path, NULL, o->timeout_s, EXIT_USAGE, error->message, error);
    progress_enter(0.5, 0.96);
    status = o->outputs_count ? evaluate_outputs(cases, o, request, error)
                              : evaluate_kernels(cases, o, catalogue, request, error);
    progress_leave();
    return status == GB_OK ? cover(record, cases, o, f, request->path, error) : status;
}

/* fixture: of gb_fixture_free, NULL where it was refused. */
static enum gb_status verify_cases(json_t *record, struct case_list *cases, struct verify_options *o,
                                   const struct catalogue *catalogue, const char *path, struct gb_fixture **fixture,
                                   struct gb_error *error)
{
    struct rerouted own = {0};
    double began = clock_seconds();
    progress_enter(0.0, 0.2);
    int code = input_fixture(path, o->timeout_s, fixture, error);
    progress_leave();
    if (code != EXIT_PASS) {
        enum gb_status status = case_refused(cases, path, NULL, o->timeout_s, code, error->message, error);
        if (status == GB_OK)
            cases->of[0].seconds = clock_seconds() - began;
        return status;
    }
    struct baselines baselines = {.fixture = *fixture};
    struct case_request request = {.path = path,
                                   .fixture = *fixture,
                                   .baselines = &baselines,
                                   .own = &own,
                                   .policy = &o->policy,
                                   .policy_name = o->policy_name,
                                   .timeout_s = o->timeout_s,
                                   .minimal = o->minimal,
                                   .limits = o->limits,
                                   .undiagnosed = o->undiagnosed,
                                   .batches_text = o->batches,
                                   .batches = {(*fixture)->shape.tokens},
                                   .batch_count = 1};
    if (o->batches && parse_batches("--batch", o->batches, request.batches[0], request.batches, &request.batch_count,
                                    error) != GB_OK) {
        char reason[sizeof error->message];
        snprintf(reason, sizeof reason, "%s: %.300s", path_end(path), error->message);
        gb_fixture_free(*fixture);
        *fixture = NULL;
        return case_refused(cases, path, o->batches, o->timeout_s, EXIT_USAGE, reason, error);
    }
    enum gb_status status = evaluate_fixture(record, cases, o, catalogue, &request, error);
    if (status == GB_ENOMEM)
        input_name(path, error);
    progress_done();
    case_report_bad_truth(cases);
    rerouted_free(&own);
    baselines_free(&baselines);
    return status;
}

static enum gb_status verify_fixture(json_t *record, struct run_totals *totals, struct verify_options *o,
                                     const struct catalogue *catalogue, uint32_t number, struct gb_error *error)
{
    const char *path = o->fixtures.path[number], *refused = o->fixtures.refused[number];
    struct case_list cases = {0};
    struct gb_fixture *fixture = NULL;
    if (totals->minimised)
        o->minimal = NULL;
    enum gb_status status = refused ? case_refused(&cases, path, NULL, o->timeout_s, EXIT_USAGE, refused, error)
                                    : verify_cases(record, &cases, o, catalogue, path, &fixture, error);
    record_cases(record, path, fixture, &cases, totals);
    case_list_free(&cases);
    gb_fixture_free(fixture);
    return status;
}

/* Nothing that is read is written over. */
static enum gb_status check_target(const struct verify_options *o, const char *path, struct gb_error *error)
{
    enum gb_status status = output_guard(path, (const char *const *)o->fixtures.path, o->fixtures.count, error);
    if (status == GB_OK)
        status = output_guard(path, o->outputs, o->outputs_count, error);
    if (status == GB_OK)
        status = output_guard(path, o->subjects, o->subject_count, error);
    return status == GB_OK ? output_guard(path, &o->policy_name, 1, error) : status;
}

/* Reports, which are written once the subjects had their time, have their paths from then on. */
static enum gb_status check_targets(struct verify_options *o, struct gb_error *error)
{
    enum gb_status status = o->minimal ? check_target(o, o->minimal, error) : GB_OK;
    if (status == GB_OK && o->limits)
        status = check_target(o, o->limits, error);
    for (uint32_t i = 0; status == GB_OK && i < o->report_count; i++) {
        status = check_target(o, o->reports[i], error);
        if (status == GB_OK)
            status = output_begin(o->reports[i], &o->reports[i], error);
    }
    return status == GB_OK && o->minimal ? minimise_check(o->minimal, error) : status;
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "FIXTURE...",
    .doc = "Judge kernels, or a file of outputs, against the reference and against truth.\v"
           "A FIXTURE may be a folder: every fixture in it is judged. Without --kernel,\n"
           "--subject and --outputs the reference itself is judged.\n\n"
           "Examples:\n"
           "  gaugeblock verify tiny.h5 --kernel 'cuda/*' --batch 1,8,32 \\\n"
           "      -o record.json -o junit.xml\n"
           "  gaugeblock verify tiny.h5 --subject ./libmine.so\n"
           "  gaugeblock verify tiny.h5 --outputs mine.npy --gate policy.json\n"
           "  gaugeblock verify suite --subject ./libmine.so --expect 14 -o record.json\n"
           "  gaugeblock verify tiny.h5 --require-coverage gate_proj.codes,experts.idle=2\n"
           "  mpirun -n 4 gaugeblock verify ranks.h5",
};

static int run_verify(int argc, char **argv)
{
    static struct verify_options o = {.expect = -1, .timeout_s = DEFAULT_TIMEOUT_S};
    static struct catalogue catalogue;
    struct gb_error error;
    struct run_totals totals = {0};
    double began = clock_seconds();
    bool leads;
    int code;
    if (processes_join(argv, &error) != GB_OK || processes_lead(argv, worker_part, &leads, &code, &error) != GB_OK)
        return command_error("verify", "%s", error.message);
    if (!leads)
        return code;
    json_t *record = record_new(argc, argv);
    if (processes.count > 1)
        json_object_set_new(record, "processes", json_integer(processes.count));
    o.arguments = calloc((size_t)argc, sizeof *o.arguments);
    if (!o.arguments)
        return command_error("verify", "no memory for %d arguments", argc);
    command_parse(&argp, argc, argv, &o);
    enum gb_status status = check_targets(&o, &error);
    if (status == GB_OK)
        status = policy_read(o.policy_name ? o.policy_name : "default", &o.policy, &error);
    if (status == GB_OK) {
        json_object_set_new(record, "policy", policy_json(&o.policy));
        status =
            catalogue_open(o.subjects, o.subject_count, o.patterns, o.pattern_count, o.timeout_s, &catalogue, &error);
    }
    for (uint32_t l = 0; status == GB_OK && l < catalogue.count; l++)
        if (catalogue.library[l].verdict == VERDICT_BAD_INPUT)
            command_error("verify", "%s", catalogue.library[l].reason);
    for (uint32_t i = 0; status == GB_OK && i < o.fixtures.count; i++) {
        progress_enter((double)i / o.fixtures.count, (i + 1.0) / o.fixtures.count);
        status = verify_fixture(record, &totals, &o, &catalogue, i, &error);
        progress_leave();
    }
    fixture_list_free(&o.fixtures);
    free(o.arguments);
    catalogue_close(&catalogue);
    if (status != GB_OK) {
        json_decref(record);
        return command_error("verify", "%s", error.message);
    }
    enum verdict verdict = record_finish(record, &totals, o.expect, clock_seconds() - began);
    report_table(stdout, record, o.verbose);
    if (!o.pattern_count && !o.subject_count && !o.outputs_count && totals.judged > 0)
        printf("No --kernel, --subject or --outputs: the reference itself was judged. See gaugeblock list kernels.\n");
    if (processes.count > 1 && totals.judged > 0)
        printf("Computed by %u processes of MPI.\n", processes.count);
    if (o.minimal && totals.failed && !totals.minimised)
        fprintf(stderr,
                "gaugeblock verify: --minimise %s: not written; what failed has no part that fails alone "
                "(routers, and layers that route, have none)\n",
                o.minimal);
    code = verdict_exit_code(verdict);
    for (uint32_t i = 0; i < o.report_count; i++) {
        output_make_room(o.reports[i]);
        if (report_write(o.reports[i], record, &error) != GB_OK)
            code = command_error("verify", "%s", error.message);
    }
    json_decref(record);
    return code;
}

const struct command command_verify = {"verify", run_verify, &argp, "judge kernels, or outputs, on problems"};
