/* SPDX-License-Identifier: Apache-2.0 */
#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/program/command.h"
#include "harness/program/models.h"
#include "harness/program/study_sensitivity.h"
#include "harness/report/study_report.h"
#include "harness/run/clock.h"
#include "harness/run/match_kernels.h"
#include "harness/run/output_guard.h"
#include "harness/run/probe.h"
#include "harness/run/progress.h"
#include "harness/run/verdict.h"
#include "harness/study/ranks.h"
#include "harness/study/study.h"

enum { INPUTS = 32, FORMATS = 8, KERNELS = 16 };

/* A fixture, or a shape whose weights are generated. */
struct study_input {
    const char *path; /* NULL: generated */
    const char *name;
    struct gb_shape shape;
    const struct model *model; /* NULL: --shape */
};

struct study_options {
    const char *kind;
    struct study_input input[INPUTS];
    uint32_t inputs;
    enum gb_format format[FORMATS];
    uint32_t formats;
    uint32_t layers, tokens, seeds;
    bool generation; /* an option was given that goes with generated weights */
    uint64_t seed;
    const char *paths, *record, *csv, *table, *head;
    const char *kernel[KERNELS], *subject[KERNELS];
    uint32_t kernels, subjects;
    struct sensitivity_options sensitivity; /* what drift and closeness do not have */
    float outlier_factor, routing_skew;
    bool resume;
};

enum {
    OPTION_MODEL = 256,
    OPTION_SHAPE,
    OPTION_FORMAT,
    OPTION_LAYERS,
    OPTION_TOKENS,
    OPTION_SEEDS,
    OPTION_SEED,
    OPTION_PATHS,
    OPTION_OUTLIERS,
    OPTION_SKEW,
    OPTION_CSV,
    OPTION_TABLE,
    OPTION_RESUME,
    OPTION_HEAD,
    OPTION_KERNEL,
    OPTION_SUBJECT,
    OPTION_ORIGINAL,
    OPTION_INPUT_SCALES,
    OPTION_ACTIVATIONS,
    OPTION_REMEDY,
    OPTION_EXCLUDE
};

static const struct argp_option options[] = {
    {"model", OPTION_MODEL, "NAME", OPTION_REPEATABLE,
     "a published model's shape with generated weights (gaugeblock list models); may be repeated", 0},
    {"shape", OPTION_SHAPE, "E,K,H,I", OPTION_REPEATABLE,
     "experts, top-k, hidden and intermediate size, with generated weights; may be repeated", 0},
    {"format", OPTION_FORMAT, "FORMAT", OPTION_REPEATABLE,
     "format of generated weights, nvfp4 by default; may be repeated", 0},
    {"layers", OPTION_LAYERS, "L", 0, "generated layers, 2 by default", 0},
    {"tokens", OPTION_TOKENS, "T", 0, "generated tokens of a seed, 64 by default", 0},
    {"seeds", OPTION_SEEDS, "N", 0, "how many seeds of generated weights and tokens, 1 by default", 0},
    {"seed", OPTION_SEED, "N", 0, "the first seed of --seeds, 1 by default", 0},
    {"paths", OPTION_PATHS, "LIST", 0,
     "what is compared, ACTIVATIONS.ORDER[.SUFFIX...] with commas between; eight by default (docs/study.md)", 0},
    {"outliers", OPTION_OUTLIERS, "FACTOR", 0, "one channel of 128 of generated activations is so many times larger",
     0},
    {"routing-skew", OPTION_SKEW, "FACTOR", 0,
     "the router's first expert has logits so many times as wide as the last one's", 0},
    {"record", 'o', "FILE", 0, "write the results, HDF5 (docs/study.md)", 0},
    {"csv", OPTION_CSV, "FILE", 0, "write every figure as comma-separated values", 0},
    {"table", OPTION_TABLE, "FILE", 0, "write the tables as Markdown", 0},
    {"resume", OPTION_RESUME, NULL, 0, "go on with the --record that an interrupted run of the same command left", 0},
    {"kernel", OPTION_KERNEL, "NAME", OPTION_REPEATABLE,
     "compute paths of this kernel's contract by it, in place of the reference; a glob takes all that match", 0},
    {"subject", OPTION_SUBJECT, "LIB.so", OPTION_REPEATABLE, "look for kernels in this library too", 0},
    {"head", OPTION_HEAD, "DIR", 0,
     "drift of a fixture: the checkpoint whose final norm and head turn the last streams into logits", 0},
    {"original", OPTION_ORIGINAL, "DIR", 0, "sensitivity: the checkpoint that the fixture was quantised from", 0},
    {"input-scales", OPTION_INPUT_SCALES, "DIR", 0,
     "sensitivity: a checkpoint whose static scales of activations are used; calibrated by default", 0},
    {"activations", OPTION_ACTIVATIONS, "FORMAT", 0, "sensitivity: what activations are quantised to, nvfp4 by default",
     0},
    {"remedy", OPTION_REMEDY, "WHAT", 0,
     "sensitivity: what experts are left in, bf16 (default) or mxfp8; dynamic: they get a scale of activations for each "
     "token",
     0},
    {"exclude", OPTION_EXCLUDE, "FILE", 0,
     "sensitivity: write the experts to leave in bf16, as quantisers take them (JSON)", 0},
    {0},
};

static float factor(struct argp_state *state, const char *name, const char *text)
{
    char *end;
    float value = strtof(text, &end);
    if (*end || end == text || !(value >= 1.0f) || value > 65536.0f)
        usage_error(state, "--%s %s: give a number from 1 to 65536", name, text);
    return value;
}

static struct study_input *new_input(struct argp_state *state, struct study_options *o)
{
    if (o->inputs == INPUTS)
        usage_error(state, "more than %d inputs; split the study", (int)INPUTS);
    return &o->input[o->inputs++];
}

static void add_model(struct argp_state *state, struct study_options *o, const char *name)
{
    const struct model *model = model_find(name);
    if (!model)
        usage_error(state, "--model %s: unknown; see gaugeblock list models", name);
    *new_input(state, o) = (struct study_input){.name = name, .shape = model->shape, .model = model};
}

static void add_shape(struct argp_state *state, struct study_options *o, const char *text)
{
    struct gb_shape s = {0};
    option_shape(state, text, 4, &s);
    *new_input(state, o) = (struct study_input){.name = text, .shape = s};
}

static void add_format(struct argp_state *state, struct study_options *o, const char *name)
{
    if (o->formats == FORMATS || !gb_format_parse(name, &o->format[o->formats]))
        usage_error(state, "--format %s: gaugeblock list formats prints those known", name);
    o->formats++;
}

static void add_name(struct argp_state *state, const char *option, const char **names, uint32_t *count,
                     const char *name)
{
    if (*count == KERNELS)
        usage_error(state, "--%s: more than %d", option, (int)KERNELS);
    names[(*count)++] = name;
}

/* sensitivity has one fixture and options of its own, which the other two do not have. */
static void check_sensitivity(struct argp_state *state, struct study_options *o)
{
    const struct sensitivity_options *s = &o->sensitivity;
    if (strcmp(o->kind, "sensitivity")) {
        if (s->original || s->input_scales || s->activations || s->remedy || s->exclude)
            usage_error(state, "--original, --input-scales, --activations, --remedy and --exclude go with sensitivity");
        return;
    }
    if (o->inputs != 1 || !o->input[0].path || !s->original)
        usage_error(state, "sensitivity needs one fixture and --original, the checkpoint it was quantised from");
    if (o->paths || o->record || o->table || o->resume || o->kernels)
        usage_error(state, "-o, --paths, --table, --resume and --kernel go with drift and closeness");
    o->sensitivity.fixture = o->input[0].path;
    o->sensitivity.csv = o->csv;
}

static void check(struct argp_state *state, struct study_options *o)
{
    bool generated = false;
    if (!o->kind || !o->inputs)
        usage_error(state, "name drift, closeness or sensitivity, and a fixture, --model or --shape");
    for (uint32_t i = 0; i < o->inputs; i++)
        generated |= !o->input[i].path;
    if (o->generation && !generated)
        usage_error(state, "--format, --layers, --tokens, --seeds, --seed, --outliers and --routing-skew go with "
                           "generated weights, --model or --shape");
    if (o->subjects && !o->kernels)
        usage_error(state, "--subject goes with --kernel, a name or glob of its kernels");
    if (o->resume && !o->record)
        usage_error(state, "--resume goes with --record, the file to go on with");
    if (o->head && (strcmp(o->kind, "drift") || o->inputs != 1 || !o->input[0].path))
        usage_error(state, "--head goes with drift and one fixture");
    check_sensitivity(state, o);
    if (!o->formats)
        o->format[o->formats++] = GB_NVFP4;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct study_options *o = state->input;
    o->generation |= key == OPTION_FORMAT || key == OPTION_LAYERS || key == OPTION_TOKENS || key == OPTION_SEEDS ||
                     key == OPTION_SEED || key == OPTION_OUTLIERS || key == OPTION_SKEW;
    switch (key) {
    case OPTION_MODEL:
        add_model(state, o, argument);
        return 0;
    case OPTION_SHAPE:
        add_shape(state, o, argument);
        return 0;
    case OPTION_FORMAT:
        add_format(state, o, argument);
        return 0;
    case OPTION_LAYERS:
        o->layers = (uint32_t)option_number(state, "layers", argument, 1, 1024);
        return 0;
    case OPTION_TOKENS:
        o->tokens = (uint32_t)option_number(state, "tokens", argument, 1, 4096);
        return 0;
    case OPTION_SEEDS:
        o->seeds = (uint32_t)option_number(state, "seeds", argument, 1, 256);
        return 0;
    case OPTION_SEED:
        o->seed = option_number(state, "seed", argument, 0, UINT64_MAX - 256);
        return 0;
    case OPTION_PATHS:
        o->paths = argument;
        return 0;
    case OPTION_OUTLIERS:
        o->outlier_factor = factor(state, "outliers", argument);
        return 0;
    case OPTION_SKEW:
        o->routing_skew = factor(state, "routing-skew", argument);
        return 0;
    case 'o':
        o->record = argument;
        return 0;
    case OPTION_CSV:
        o->csv = argument;
        return 0;
    case OPTION_TABLE:
        o->table = argument;
        return 0;
    case OPTION_RESUME:
        o->resume = true;
        return 0;
    case OPTION_KERNEL:
        add_name(state, "kernel", o->kernel, &o->kernels, argument);
        return 0;
    case OPTION_SUBJECT:
        add_name(state, "subject", o->subject, &o->subjects, argument);
        return 0;
    case OPTION_HEAD:
        o->head = argument;
        return 0;
    case OPTION_ORIGINAL:
        o->sensitivity.original = argument;
        return 0;
    case OPTION_INPUT_SCALES:
        o->sensitivity.input_scales = argument;
        return 0;
    case OPTION_ACTIVATIONS:
        o->sensitivity.activations = argument;
        return 0;
    case OPTION_REMEDY:
        o->sensitivity.remedy = argument;
        return 0;
    case OPTION_EXCLUDE:
        o->sensitivity.exclude = argument;
        return 0;
    case ARGP_KEY_ARG:
        if (o->kind) {
            *new_input(state, o) = (struct study_input){.path = argument};
            return 0;
        }
        if (strcmp(argument, "drift") && strcmp(argument, "closeness") && strcmp(argument, "sensitivity"))
            usage_error(state, "'%s' is no study; there are drift, closeness and sensitivity", argument);
        o->kind = argument;
        return 0;
    case ARGP_KEY_END:
        check(state, o);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* What a case is made of. */
struct planned {
    const struct study_input *input;
    enum gb_format format;
    struct gb_fixture *fixture; /* of a file */
};

struct plan {
    const struct study_options *options;
    struct study study;
    struct planned of[INPUTS * FORMATS];
    struct study_run run;
    struct catalogue catalogue;       /* of --kernel */
    uint32_t by_kernel[KERNELS];      /* paths that each pattern took */
    struct gb_checkpoint *checkpoint; /* of --head; NULL without */
    struct gb_head head;
    struct study_end end;
    double saved; /* clock_seconds() of the last save */
};

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* Final norm and head of the checkpoint, which must be those of the model whose layers the fixture ends with. */
static enum gb_status plan_head(struct plan *plan, const struct gb_fixture *f, struct study_case *c,
                                struct gb_error *error)
{
    const char *directory = plan->options->head;
    const uint32_t last = f->layer[f->layers - 1].index;
    char name[128];
    enum gb_status status = gb_checkpoint_open(directory, &plan->checkpoint, error);
    const struct gb_checkpoint *from = plan->checkpoint;
    if (status != GB_OK)
        return status;
    if (from->shape.hidden != f->shape.hidden || from->layers != last + 1)
        return gb_fail(error, GB_EINVAL,
                       "--head %s: has %u layers of hidden %u, but the fixture ends with layer %u of hidden %u; import "
                       "its last layer too",
                       directory, from->layers, from->shape.hidden, last, f->shape.hidden);
    if (gb_checkpoint_shared(from, last, name))
        return gb_fail(error, GB_EUNSUPPORTED,
                       "--head %s: its last layer adds the output of shared experts (%s), which the streams lack",
                       directory, name);
    status = gb_checkpoint_head(from, &plan->head, error);
    plan->end = (struct study_end){&plan->head, from->rms_norm_epsilon};
    c->vocabulary = plan->head.vocabulary;
    snprintf(c->end, sizeof c->end, "%s", from->sha256);
    return status;
}

/* Paths that a kernel of the pattern computes have it from here on. */
static enum gb_status plan_kernels(struct plan *plan, struct study_case *c, uint32_t pattern, struct gb_error *error)
{
    char device[256];
    for (uint32_t l = 0; l < plan->catalogue.count; l++)
        for (uint32_t k = 0; k < plan->catalogue.library[l].count; k++) {
            const struct gb_kernel *kernel = &plan->catalogue.library[l].kernels[k];
            if (fnmatch(plan->options->kernel[pattern], kernel->name, 0))
                continue;
            for (uint32_t p = 0; p < c->paths; p++) {
                if (!study_path_takes(&c->path[p], kernel))
                    continue;
                if (kernel->flags & GB_DEVICE_POINTERS && library_device(device, sizeof device, error) != GB_OK)
                    return GB_EUNSUPPORTED;
                c->path[p].kernel = (struct study_kernel){plan->catalogue.library[l].path, kernel};
                plan->by_kernel[pattern]++;
            }
        }
    return GB_OK;
}

static enum gb_status plan_case(struct plan *plan, const struct study_input *input, enum gb_format format,
                                struct gb_fixture *fixture, struct gb_error *error)
{
    const struct study_options *o = plan->options;
    struct study_case *c = &plan->study.of[plan->study.cases];
    plan->of[plan->study.cases] = (struct planned){input, format, fixture};
    *c = (struct study_case){.shape = fixture ? fixture->shape : input->shape,
                             .layers = fixture ? fixture->layers : o->layers,
                             .seeds = fixture ? 1 : o->seeds,
                             .first_seed = fixture ? 0 : o->seed,
                             .outlier_factor = fixture ? 1.0 : (double)o->outlier_factor,
                             .routing_skew = fixture ? 1.0 : (double)o->routing_skew};
    if (!fixture)
        c->shape.tokens = o->tokens;
    c->samples = c->seeds * c->shape.tokens;
    snprintf(c->name, sizeof c->name, "%.127s", fixture ? fixture->source : input->name);
    snprintf(c->weights, sizeof c->weights, "%s", gb_format_name(format));
    snprintf(c->recipe, sizeof c->recipe, "%s", fixture ? fixture->recipe : gb_recipe_default(format)->name);
    snprintf(c->inputs, sizeof c->inputs, "%s", fixture ? fixture->sha256 : "");
    plan->study.cases++; /* from here on it is freed with the study */
    enum gb_status status = study_paths(o->paths, format, &c->shape, c->path, &c->paths, error);
    if (status == GB_OK && c->paths < 2)
        status = gb_fail(error, GB_EINVAL, "--paths: one path alone, bf16.fma32, leaves nothing to compare");
    for (uint32_t k = 0; status == GB_OK && k < o->kernels; k++)
        status = plan_kernels(plan, c, k, error);
    if (status == GB_OK && o->head)
        status = plan_head(plan, fixture, c, error);
    return status == GB_OK ? study_case_new(c, error) : status;
}

/* Reads a fixture and plans its case. */
static enum gb_status plan_fixture(struct plan *plan, const struct study_input *input, struct gb_error *error)
{
    struct gb_fixture *fixture = NULL;
    struct study_source source;
    if (input_fixture(input->path, INPUT_TIMEOUT_S, &fixture, error) != EXIT_PASS)
        return GB_EFORMAT;
    enum gb_status status = study_source_fixture(fixture, &source, error);
    if (status == GB_OK)
        return plan_case(plan, input, fixture->weights, fixture, error);
    input_name(input->path, error);
    gb_fixture_free(fixture);
    return status;
}

static enum gb_status make_plan(struct plan *plan, struct gb_error *error)
{
    const struct study_options *o = plan->options;
    enum gb_status status = GB_OK;
    plan->study.of = calloc(INPUTS * FORMATS, sizeof *plan->study.of);
    if (!plan->study.of)
        return gb_fail(error, GB_ENOMEM, "no memory for %u studies", o->inputs);
    if (o->kernels)
        status =
            catalogue_open(o->subject, o->subjects, o->kernel, o->kernels, INPUT_TIMEOUT_S, &plan->catalogue, error);
    for (uint32_t i = 0; status == GB_OK && i < o->inputs; i++) {
        if (o->input[i].path)
            status = plan_fixture(plan, &o->input[i], error);
        for (uint32_t f = 0; status == GB_OK && !o->input[i].path && f < o->formats; f++)
            status = plan_case(plan, &o->input[i], o->format[f], NULL, error);
    }
    for (uint32_t k = 0; status == GB_OK && k < o->kernels; k++)
        if (!plan->by_kernel[k])
            status = gb_fail(error, GB_EINVAL,
                             "--kernel %s: computes none of the paths; it takes a layer of the same formats and order, "
                             "with FP32 output (gaugeblock list kernels)%s%s",
                             o->kernel[k], plan->catalogue.cuda_missing[0] ? "; CUDA kernels: " : "",
                             plan->catalogue.cuda_missing);
    return status;
}

/* Whether both are the same question. */
static bool same_case(const struct study_case *a, const struct study_case *b)
{
    bool same = !strcmp(a->name, b->name) && !strcmp(a->weights, b->weights) && !strcmp(a->recipe, b->recipe) &&
                !strcmp(a->inputs, b->inputs) && !strcmp(a->end, b->end) &&
                !memcmp(&a->shape, &b->shape, sizeof a->shape) && a->layers == b->layers && a->seeds == b->seeds &&
                a->paths == b->paths && a->first_seed == b->first_seed && a->outlier_factor == b->outlier_factor &&
                a->routing_skew == b->routing_skew;
    for (uint32_t p = 0; same && p < a->paths; p++)
        same = !strcmp(a->path[p].name, b->path[p].name);
    return same;
}

/* Takes over what an interrupted run left. */
static enum gb_status resume(struct plan *plan, struct gb_error *error)
{
    const char *path = plan->options->record;
    struct study left;
    if (!plan->options->resume || study_ranks.rank || access(path, F_OK))
        return GB_OK;
    enum gb_status status = study_read(path, &left, error);
    if (status != GB_OK)
        return status;
    bool same = left.cases == plan->study.cases && !strcmp(left.kind, plan->study.kind);
    for (uint32_t i = 0; same && i < left.cases; i++)
        same = same_case(&left.of[i], &plan->study.of[i]);
    for (uint32_t i = 0; same && i < left.cases; i++) {
        memcpy(left.of[i].path, plan->study.of[i].path, sizeof left.of[i].path); /* contracts and recipes */
        struct study_case own = plan->study.of[i];
        plan->study.of[i] = left.of[i];
        left.of[i] = own;
    }
    study_free(&left);
    return same ? GB_OK
                : gb_fail(error, GB_EINVAL, "%s: holds another study; repeat its command, or leave --resume out", path);
}

/* By the first rank, if it was asked for. */
static enum gb_status write_record(struct plan *plan, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    if (plan->options->record && !study_ranks.rank)
        status = study_write(plan->options->record, &plan->study, error);
    plan->saved = clock_seconds();
    return study_ranks_agree(true, status, error);
}

static enum gb_status save(void *context, struct gb_error *error)
{
    struct plan *plan = context;
    double due = clock_seconds() - plan->saved > 1.0 || study_finished(&plan->study);
    study_ranks_share(true, &due, sizeof due, 0);
    return due > 0.0 ? write_record(plan, error) : GB_OK;
}

/* The layers of one seed of a case. */
static enum gb_status open_source(void *context, const struct study_case *c, uint32_t seed, struct study_source *source,
                                  struct gb_error *error)
{
    struct plan *plan = context;
    const struct planned *planned = &plan->of[c - plan->study.of];
    const struct study_options *o = plan->options;
    if (planned->fixture)
        return study_source_fixture(planned->fixture, source, error);
    const struct model *model = planned->input->model;
    struct study_generation g = {.name = c->name,
                                 .router = model ? model->router : "",
                                 .shape = c->shape,
                                 .layers = c->layers,
                                 .weights = planned->format,
                                 .seed = c->first_seed + seed,
                                 .outlier_factor = o->outlier_factor,
                                 .routing_skew = o->routing_skew};
    return study_source_generate(&g, source, error);
}

static enum gb_status run_all(struct plan *plan, bool *stopped, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    plan->run = (struct study_run){.stop = &interrupted,
                                   .open = open_source,
                                   .end = plan->checkpoint ? &plan->end : NULL,
                                   .save = save,
                                   .context = plan,
                                   .began = clock_seconds()};
    for (uint32_t i = 0; i < plan->study.cases; i++) {
        plan->run.all += plan->study.of[i].seeds * plan->study.of[i].layers;
        plan->run.done += plan->study.of[i].done;
    }
    plan->run.resumed = plan->run.done;
    status = write_record(plan, error); /* so that a first interruption leaves a file, and one that cannot be written
                                           costs nothing */
    for (uint32_t i = 0; status == GB_OK && !*stopped && i < plan->study.cases; i++)
        status = study_case_run(&plan->study.of[i], &plan->run, stopped, error);
    progress_done();
    return status == GB_OK && *stopped ? write_record(plan, error) : status;
}

/* Text into a file, whole or not at all. */
static enum gb_status write_text(const char *path, const struct study *study, bool csv, struct gb_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    enum gb_status status = stream ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %s", path);
    if (status == GB_OK)
        status = csv ? study_csv(stream, study, error) : study_print(stream, study, true, error);
    if (stream && fclose(stream) && status == GB_OK)
        status = gb_fail(error, GB_ENOMEM, "no memory for %s", path);
    if (status == GB_OK)
        status = gb_file_write(path, text, bytes, error);
    free(text);
    return status;
}

static enum gb_status results(const struct plan *plan, struct gb_error *error)
{
    const struct study_options *o = plan->options;
    enum gb_status status = study_print(stdout, &plan->study, false, error);
    if (status == GB_OK && o->csv)
        status = write_text(o->csv, &plan->study, true, error);
    if (status == GB_OK && o->table)
        status = write_text(o->table, &plan->study, false, error);
    return status;
}

/* No file that is written is one that is read, or another one that is written. */
static enum gb_status check_files(const struct study_options *o, struct gb_error *error)
{
    const char *const written[] = {o->record, o->csv, o->table};
    const char *inputs[INPUTS];
    uint32_t count = 0;
    enum gb_status status = GB_OK;
    for (uint32_t i = 0; i < o->inputs; i++)
        if (o->input[i].path)
            inputs[count++] = o->input[i].path;
    for (int i = 0; status == GB_OK && i < 3; i++)
        if (written[i])
            status = output_guard(written[i], inputs, count, error);
    if (status == GB_OK)
        status = output_guard_each(written, 3, error);
    if (status == GB_OK)
        status = output_guard_writable(o->csv, error);
    return status == GB_OK ? output_guard_writable(o->table, error) : status;
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "drift|closeness|sensitivity [FIXTURE...]",
    .doc =
        "Measure what formats of activations, orders and places of rounding cost, layer after layer.\v"
        "drift: the residual stream of every path against float64.\n"
        "closeness: how many times farther from float64 than bf16 activations.\n"
        "sensitivity: which experts lose most, and what bf16 for them takes away.\n"
        "Ctrl-C leaves the --record of drift and closeness so far, which --resume goes on with; the exit code is then "
        "3.\n\n"
        "Examples:\n"
        "  gaugeblock study drift tiny.h5 -o drift.h5\n"
        "  gaugeblock study closeness --model qwen3-30b-a3b --format nvfp4 \\\n"
        "      --format mxfp8 --table closeness.md\n"
        "  gaugeblock study sensitivity quantised.h5 --original CHECKPOINT_DIR \\\n"
        "      --exclude exclude.json",
};

static void command_line(int argc, char **argv, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "gaugeblock");
    for (int i = 0; i < argc && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, " %s", argv[i]);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
            *c = '?';
}

/* The plan, which must be the same in all ranks, and what there is of it. */
static enum gb_status prepare(struct plan *plan, struct gb_error *error)
{
    char hash[65], first[65];
    enum gb_status status = check_files(plan->options, error);
    if (status == GB_OK)
        status = make_plan(plan, error);
    status = study_ranks_agree(true, status, error);
    if (status != GB_OK)
        return status;
    study_hash(&plan->study, hash);
    memcpy(first, hash, sizeof first);
    study_ranks_share(true, first, sizeof first, 0);
    if (strcmp(hash, first))
        status = gb_fail(error, GB_EINVAL, "rank %u has read other fixtures than rank 0; do both see the same files?",
                         study_ranks.rank);
    if (status == GB_OK)
        status = resume(plan, error);
    status = study_ranks_agree(true, status, error);
    return status == GB_OK ? study_share(&plan->study, error) : status;
}

/* Says how it ended, once. */
static int finish(const struct plan *plan, enum gb_status status, bool stopped, const struct gb_error *error)
{
    const char *record = plan->options->record;
    if (study_ranks.rank)
        return status != GB_OK ? EXIT_USAGE : stopped ? EXIT_NOT_RUN : EXIT_PASS;
    if (status != GB_OK)
        return command_error("study", "%s", error->message);
    if (stopped && record)
        fprintf(stderr, "gaugeblock study: interrupted after %.0f of %.0f layers; --resume goes on with %s\n",
                plan->run.done, plan->run.all, record);
    else if (stopped)
        fprintf(stderr, "gaugeblock study: interrupted; nothing is kept without --record\n");
    return stopped ? EXIT_NOT_RUN : EXIT_PASS;
}

static int run_sensitivity(const struct sensitivity_options *o)
{
    if (study_ranks.count == 1)
        return study_sensitivity(o);
    return study_ranks.rank
               ? EXIT_USAGE
               : command_error("study", "sensitivity is not split; start it without mpirun, or with one rank");
}

static int run_study(int argc, char **argv)
{
    struct study_options o = {
        .layers = 2, .tokens = 64, .seeds = 1, .seed = 1, .outlier_factor = 1.0f, .routing_skew = 1.0f};
    struct gb_error error;
    bool stopped = false;
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return command_error("study", "no memory");
    command_line(argc, argv, plan->study.command, sizeof plan->study.command);
    command_parse(&argp, argc, argv, &o);
    if (study_ranks_join(argv, &error) != GB_OK) {
        free(plan);
        return command_error("study", "%s", error.message);
    }
    if (!strcmp(o.kind, "sensitivity")) {
        free(plan);
        return run_sensitivity(&o.sensitivity);
    }
    plan->options = &o;
    snprintf(plan->study.kind, sizeof plan->study.kind, "%s", o.kind);
    enum gb_status status = prepare(plan, &error);
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    if (status == GB_OK)
        status = run_all(plan, &stopped, &error);
    if (status == GB_OK && !stopped && !study_ranks.rank)
        status = results(plan, &error);
    int code = finish(plan, status, stopped, &error);
    for (uint32_t i = 0; i < plan->study.cases; i++)
        gb_fixture_free(plan->of[i].fixture);
    study_free(&plan->study);
    gb_head_free(&plan->head);
    catalogue_close(&plan->catalogue);
    gb_checkpoint_close(plan->checkpoint);
    free(plan);
    return code;
}

const struct command command_study = {"study", run_study, &argp, "what low precision costs, layer after layer"};
