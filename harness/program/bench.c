/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/judge/judge.h"
#include "harness/program/command.h"
#include "harness/program/fixture_list.h"
#include "harness/program/make.h"
#include "harness/program/models.h"
#include "harness/program/run_case.h"
#include "harness/report/bench_report.h"
#include "harness/report/html.h"
#include "harness/report/record.h"
#include "harness/run/child.h"
#include "harness/run/clock.h"
#include "harness/run/output_guard.h"
#include "harness/run/probe.h"
#include "harness/run/progress.h"
#include "harness/run/worker.h"
#include "quant/quant.h"

enum { MOST_OF_A_KIND = 32, DEFAULT_SAMPLES = 15, LEAST_CACHE_BYTES = 1024 };
#define DEFAULT_BATCHES "1,2,4,8,16,32"

/* A list that an option, given again, makes longer. */
struct words {
    const char *of[MOST_OF_A_KIND];
    uint32_t count;
};

struct bench_options {
    const char **arguments; /* [argument_count] of argc: fixtures, and folders of them */
    uint32_t argument_count;
    struct fixture_list fixtures;
    struct words patterns, subjects, shapes, models, formats, records;
    const char *batches, *plot, *routing, *seed;
    struct timing_request timing;
    unsigned timeout_s;
};

enum {
    OPTION_KERNEL = 256,
    OPTION_SUBJECT,
    OPTION_SHAPE,
    OPTION_MODEL,
    OPTION_FORMAT,
    OPTION_BATCHES,
    OPTION_ROUTING,
    OPTION_SEED,
    OPTION_HOT,
    OPTION_CACHE,
    OPTION_SAMPLES,
    OPTION_PLOT,
    OPTION_TIMEOUT
};

static const struct argp_option options[] = {
    {"model", OPTION_MODEL, "NAME", OPTION_REPEATABLE,
     "instead of a FIXTURE: a generated layer of a published model's shape (gaugeblock list models; repeatable)", 0},
    {"shape", OPTION_SHAPE, "E,K,H,I", OPTION_REPEATABLE,
     "instead of a FIXTURE: a generated layer of these experts, top-k, hidden and intermediate size (repeatable)", 0},
    {"format", OPTION_FORMAT, "FORMAT", OPTION_REPEATABLE,
     "with --model, --shape: weight format (gaugeblock list formats; repeatable); nvfp4 by default", 0},
    {"routing", OPTION_ROUTING, "KIND", 0, "with --model, --shape: routing, as of gaugeblock make; router by default",
     0},
    {"seed", OPTION_SEED, "N", 0, "with --model, --shape: seed, 1 by default", 0},
    {"batches", OPTION_BATCHES, "N,...", 0,
     "tokens of a run; of a fixture all by default, of a shape or model " DEFAULT_BATCHES, 0},
    {"kernel", OPTION_KERNEL, "NAME", OPTION_REPEATABLE,
     "time this kernel; a glob such as 'cuda/*' times all that match (repeatable); all that run here by default", 0},
    {"subject", OPTION_SUBJECT, "LIB.so", OPTION_REPEATABLE,
     "load kernels from this library (docs/kernels.md; repeatable)", 0},
    {"hot", OPTION_HOT, NULL, 0, "run on one copy of the weights, which the last cache may keep", 0},
    {"cache", OPTION_CACHE, "BYTES", 0,
     "what the last cache is taken to hold; by default what the system says, which in a virtual machine may be of the "
     "whole host",
     0},
    {"samples", OPTION_SAMPLES, "N", 0, "samples of each time, 1 to 31; 15 by default", 0},
    {"plot", OPTION_PLOT, "FILE.svg", 0, "draw the times beside those of the bare read", 0},
    {"timeout", OPTION_TIMEOUT, "S", 0, "seconds that a subject, or the reading of a file, may take; 600 by default",
     0},
    {"record", 'o', "FILE", OPTION_REPEATABLE,
     "also write the record: .json, .xml (JUnit) or .md, by extension (repeatable)", 0},
    {0},
};

static void append(struct argp_state *state, const char *what, struct words *words, const char *value)
{
    if (words->count == MOST_OF_A_KIND)
        usage_error(state, "at most %d times %s", (int)MOST_OF_A_KIND, what);
    words->of[words->count++] = value;
}

static void check_options(struct bench_options *o, struct argp_state *state)
{
    uint32_t batches[MAX_BATCHES], count;
    struct gb_error error;
    bool made = o->shapes.count || o->models.count;
    if (made == (o->argument_count > 0))
        usage_error(state, "name fixtures, or give --shape or --model");
    if (!made && (o->formats.count || o->routing || o->seed))
        usage_error(state, "--format, --routing and --seed go with --shape and --model: a fixture has its own");
    for (uint32_t i = 0; i < o->models.count; i++)
        if (!model_find(o->models.of[i]))
            usage_error(state, "--model %s: unknown; see gaugeblock list models", o->models.of[i]);
    if (made && !o->batches)
        o->batches = DEFAULT_BATCHES;
    if (o->batches && parse_batches("--batches", o->batches, 1 << 16, batches, &count, &error) != GB_OK)
        usage_error(state, "%s", error.message);
    if (o->argument_count && fixture_list_new(o->arguments, o->argument_count, &o->fixtures, &error) != GB_OK)
        usage_error(state, "%s", error.message);
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct bench_options *o = state->input;
    switch (key) {
    case OPTION_MODEL:
        append(state, "--model", &o->models, argument);
        return 0;
    case OPTION_SHAPE:
        append(state, "--shape", &o->shapes, argument);
        return 0;
    case OPTION_FORMAT:
        append(state, "--format", &o->formats, argument);
        return 0;
    case OPTION_KERNEL:
        append(state, "--kernel", &o->patterns, argument);
        return 0;
    case OPTION_SUBJECT:
        if (o->subjects.count == MAX_LIBRARIES - 2)
            usage_error(state, "at most %d times --subject", MAX_LIBRARIES - 2);
        append(state, "--subject", &o->subjects, argument);
        return 0;
    case OPTION_ROUTING:
        o->routing = argument;
        return 0;
    case OPTION_SEED:
        o->seed = argument;
        return 0;
    case OPTION_BATCHES:
        o->batches = argument;
        return 0;
    case OPTION_HOT:
        o->timing.hot = true;
        return 0;
    case OPTION_CACHE:
        o->timing.cache = option_number(state, "cache", argument, LEAST_CACHE_BYTES, MOST_CACHE_BYTES);
        return 0;
    case OPTION_SAMPLES:
        o->timing.samples = (uint32_t)option_number(state, "samples", argument, 1, MOST_TIMES);
        return 0;
    case OPTION_TIMEOUT:
        o->timeout_s = (unsigned)option_number(state, "timeout", argument, 1, 1 << 20);
        return 0;
    case OPTION_PLOT:
        o->plot = argument;
        return 0;
    case 'o':
        if (!report_known(argument))
            usage_error(state, "-o %s: the extension must be .json, .xml or .md", argument);
        append(state, "-o", &o->records, argument);
        return 0;
    case ARGP_KEY_ARG:
        o->arguments[o->argument_count++] = argument;
        return 0;
    case ARGP_KEY_END:
        check_options(o, state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* What moves rows between devices is timed on the links alone, without what brings arrays of all ranks there. */
static void leave_links(struct selected *s)
{
    if (s->reason[0] || !s->kernel || !(s->kernel->flags & GB_DEVICE_POINTERS))
        return;
    s->verdict = VERDICT_NOT_RUN;
    snprintf(s->reason, sizeof s->reason,
             "%s needs two GPUs to be timed, beside NCCL: tests/gpu/bench_ranks does it (docs/gpu.md)",
             s->kernel->name);
}

/* Every kernel that can run the problem or, where some are named, these, with why one cannot. selected:
 * [select_most]. */
static uint32_t choose(const struct bench_options *o, const struct catalogue *catalogue, const struct gb_fixture *f,
                       struct selected *selected)
{
    static const char *const all[] = {"*"};
    bool named = o->patterns.count || o->subjects.count;
    struct gb_problem problem = gb_fixture_problem(f, f->shape.tokens);
    problem.router = f->layers && f->layer[0].router.codes ? gb_fixture_router(f) : NULL;
    problem.exchange = gb_fixture_exchanges(f) ? &f->exchanged.asked : NULL;
    uint32_t kept = 0, count = select_subjects(catalogue, named ? o->patterns.of : all, named ? o->patterns.count : 1,
                                               &problem, selected);
    for (uint32_t i = 0; i < count; i++) {
        if (gb_fixture_exchanges(f))
            leave_links(&selected[i]);
        if (named || !selected[i].reason[0])
            selected[kept++] = selected[i];
    }
    return kept;
}

static enum gb_status time_kernels(const struct bench_options *o, const struct catalogue *catalogue,
                                   struct case_request *request, struct case_list *cases, struct gb_error *error)
{
    struct selected *selected = malloc(sizeof *selected * select_most(catalogue, o->patterns.count + 1));
    if (!selected)
        return gb_fail(error, GB_ENOMEM, "no memory for the list of subjects");
    uint32_t count = choose(o, catalogue, request->fixture, selected);
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && i < count; i++) {
        progress_enter((double)i / count, (i + 1.0) / count);
        status = case_kernel(cases, request, &selected[i], error);
        progress_leave();
    }
    free(selected);
    return status;
}

static enum gb_status time_fixture(const struct bench_options *o, const struct catalogue *catalogue, const char *path,
                                   const struct policy *policy, json_t *record, struct run_totals *totals,
                                   struct gb_error *error)
{
    struct gb_fixture *f = NULL;
    struct rerouted own = {0};
    struct case_list cases = {0};
    if (input_fixture(path, o->timeout_s, &f, error) != EXIT_PASS)
        return GB_EIO;
    struct baselines baselines = {.fixture = f};
    struct case_request request = {.path = path,
                                   .fixture = f,
                                   .baselines = &baselines,
                                   .own = &own,
                                   .policy = policy,
                                   .batches_text = o->batches,
                                   .batches = {f->shape.tokens},
                                   .batch_count = 1,
                                   .timeout_s = o->timeout_s,
                                   .timing = o->timing};
    enum gb_status status = GB_OK;
    if (gb_fixture_quantises(f))
        status =
            gb_fail(error, GB_EINVAL, "%s: is a problem of %s; bench times kernels of layers, dispatch and combine",
                    path_end(path), operator_of(f)->name);
    else if (operator_of(f)->over_ranks && o->batches)
        status = gb_fail(error, GB_EINVAL, "%s: --batches: the tokens of all ranks are timed together", path_end(path));
    else if (o->batches)
        status = parse_batches("--batches", o->batches, f->shape.tokens, request.batches, &request.batch_count, error);
    if (status == GB_OK)
        status = time_kernels(o, catalogue, &request, &cases, error);
    if (status == GB_OK)
        record_cases(record, path, f, &cases, totals);
    progress_done();
    case_list_free(&cases);
    rerouted_free(&own);
    baselines_free(&baselines);
    gb_fixture_free(f);
    return status;
}

/* A folder with a generated problem of every shape and format: gone when all cases pass. */
struct made {
    char folder[PATH_MAX];
    char *path[MOST_OF_A_KIND * MOST_OF_A_KIND]; /* [count], allocated */
    uint32_t count;
};

static int make_problem(const struct bench_options *o, struct made *m, const char *kind, const char *name,
                        const char *format)
{
    char *path, tokens[16];
    const char *last = strrchr(o->batches, ',');
    snprintf(tokens, sizeof tokens, "%s", last ? last + 1 : o->batches);
    if (asprintf(&path, "%s/%s-%s.h5", m->folder, name, format) < 0)
        return command_error("bench", "no memory for a path");
    m->path[m->count++] = path;
    const char *argv[] = {"bench",       path,
                          kind,          name,
                          "--format",    format,
                          "--tokens",    tokens,
                          "--routing",   o->routing ? o->routing : "router",
                          "--seed",      o->seed ? o->seed : "1",
                          "--generated", NULL};
    return make_quietly((int)(sizeof argv / sizeof *argv) - 1, (char **)argv);
}

static int make_problems(const struct bench_options *o, struct made *m)
{
    static const struct words default_format = {{"nvfp4"}, 1};
    const struct words *formats = o->formats.count ? &o->formats : &default_format;
    snprintf(m->folder, sizeof m->folder, "%s/gaugeblock-bench-XXXXXX", child_folder());
    if (!mkdtemp(m->folder)) {
        m->folder[0] = '\0';
        return command_error("bench", "%s: no folder can be made there; set TMPDIR to a writable one", child_folder());
    }
    int code = EXIT_PASS;
    for (uint32_t f = 0; f < formats->count; f++) {
        for (uint32_t i = 0; code == EXIT_PASS && i < o->models.count; i++)
            code = make_problem(o, m, "--model", o->models.of[i], formats->of[f]);
        for (uint32_t i = 0; code == EXIT_PASS && i < o->shapes.count; i++)
            code = make_problem(o, m, "--shape", o->shapes.of[i], formats->of[f]);
    }
    return code;
}

static void remove_problems(struct made *m, bool passed)
{
    for (uint32_t i = 0; i < m->count; i++) {
        if (passed)
            unlink(m->path[i]);
        free(m->path[i]);
    }
    if (m->folder[0] && passed)
        rmdir(m->folder);
    else if (m->folder[0])
        fprintf(stderr, "gaugeblock bench: the problems stay in %s\n", m->folder);
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "[FIXTURE...]",
    .doc = "Time kernels on problems beside a bare read of as many bytes, or of dispatch and combine a copy; what a "
           "kernel wrote while it was timed is judged, and a wrong one has no time (docs/bench.md).\v"
           "Examples:\n"
           "  gaugeblock bench --model qwen3-next-80b-a3b --format mxfp8 \\\n"
           "      --batches 1,8,32 --kernel 'cuda/*' -o bench.json --plot bench.svg\n"
           "  gaugeblock bench layer.h5 --subject ./libmine.so",
};

static bool plot(FILE *stream, const char *path, const json_t *record)
{
    (void)path;
    return svg_bench(stream, record);
}

/* Reports of the run; code: what it comes to. */
static int write_reports(const struct bench_options *o, const json_t *record, int code)
{
    struct gb_error error;
    bench_table(stdout, record);
    for (uint32_t i = 0; i < o->records.count; i++) {
        output_make_room(o->records.of[i]);
        if (report_write(o->records.of[i], record, &error) != GB_OK)
            code = command_error("bench", "%s", error.message);
    }
    if (o->plot)
        output_make_room(o->plot);
    if (o->plot && record_number(record, "bench", "timed", NULL) > 0 &&
        report_write_by(plot, o->plot, record, &error) != GB_OK)
        code = command_error("bench", "%s", error.message);
    else if (o->plot && !(record_number(record, "bench", "timed", NULL) > 0))
        fprintf(stderr, "gaugeblock bench: --plot %s: not written; there is no time to draw\n", o->plot);
    return code;
}

static enum gb_status check_targets(struct bench_options *o, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; status == GB_OK && i <= o->records.count; i++) {
        const char **place = i < o->records.count ? &o->records.of[i] : &o->plot, *path = *place;
        if (!path)
            continue;
        status = output_guard(path, (const char *const *)o->fixtures.path, o->fixtures.count, error);
        if (status == GB_OK)
            status = output_guard(path, o->subjects.of, o->subjects.count, error);
        if (status == GB_OK)
            status = output_begin(path, place, error);
    }
    return status;
}

/* What all cases have in common. */
static void add_bench(json_t *record, const struct bench_options *o)
{
    const json_t *cases = json_object_get(record, "cases");
    int timed = 0;
    for (size_t i = 0; i < json_array_size(cases); i++)
        timed += json_object_get(json_array_get(cases, i), "timing") != NULL;
    json_t *bench = json_pack("{s:b, s:i, s:i, s:i}", "hot", o->timing.hot, "samples", (int)o->timing.samples,
                              "threads", omp_get_max_threads(), "timed", timed);
    if (o->timing.cache)
        json_object_set_new(bench, "cache_bytes", json_integer((json_int_t)o->timing.cache));
    json_object_set_new(record, "bench", bench);
    bench_growth(record);
}

static enum gb_status time_all(const struct bench_options *o, struct made *made, json_t *record,
                               struct run_totals *totals, struct gb_error *error)
{
    static struct catalogue catalogue;
    const char *const every[] = {"*"};
    struct policy policy;
    uint32_t count = made->count ? made->count : o->fixtures.count;
    enum gb_status status = policy_read("default", &policy, error);
    if (status == GB_OK)
        status = catalogue_open(o->subjects.of, o->subjects.count, o->patterns.count ? o->patterns.of : every,
                                o->patterns.count ? o->patterns.count : 1, o->timeout_s, &catalogue, error);
    for (uint32_t i = 0; status == GB_OK && i < count; i++) {
        const char *refused = made->count ? NULL : o->fixtures.refused[i];
        progress_enter((double)i / count, (i + 1.0) / count);
        status = refused ? gb_fail(error, GB_EINVAL, "%s", refused)
                         : time_fixture(o, &catalogue, made->count ? made->path[i] : o->fixtures.path[i], &policy,
                                        record, totals, error);
        progress_leave();
    }
    catalogue_close(&catalogue);
    return status;
}

static int run_bench(int argc, char **argv)
{
    static struct bench_options o = {.timeout_s = INPUT_TIMEOUT_S, .timing = {.samples = DEFAULT_SAMPLES}};
    static struct made made;
    struct run_totals totals = {0};
    struct gb_error error;
    double began = clock_seconds();
    json_t *record = record_new(argc, argv);
    o.arguments = calloc((size_t)argc, sizeof *o.arguments);
    if (!o.arguments)
        return command_error("bench", "no memory for %d arguments", argc);
    command_parse(&argp, argc, argv, &o);
    int code = check_targets(&o, &error) == GB_OK ? EXIT_PASS : command_error("bench", "%s", error.message);
    if (code == EXIT_PASS && !o.argument_count)
        code = make_problems(&o, &made);
    if (code == EXIT_PASS && time_all(&o, &made, record, &totals, &error) != GB_OK)
        code = command_error("bench", "%s", error.message);
    if (code == EXIT_PASS) {
        enum verdict verdict = record_finish(record, &totals, -1, clock_seconds() - began);
        add_bench(record, &o);
        code = write_reports(&o, record, verdict_exit_code(verdict));
    }
    remove_problems(&made, code == EXIT_PASS || !json_array_size(json_object_get(record, "cases")));
    fixture_list_free(&o.fixtures);
    free(o.arguments);
    json_decref(record);
    return code;
}

const struct command command_bench = {"bench", run_bench, &argp, "time kernels beside a bare read, and judge them"};
