/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock inspect: what is wrong with a checkpoint of quantised experts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/fixtures.h"
#include "harness/program/command.h"
#include "harness/report/record.h"
#include "harness/run/output_guard.h"
#include "harness/run/progress.h"
#include "harness/run/verdict.h"

#define INSPECTION_SCHEMA "gaugeblock-inspection/1"

static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};

struct options {
    const char *directory, *record;
    struct gb_inspect_options inspect;
};

enum { OPTION_ORIGINAL = 256, OPTION_LAYERS };

static void parse_layers(struct argp_state *state, const char *text, struct gb_inspect_options *o)
{
    int end = 0, count = sscanf(text, "%5u-%5u%n", &o->first, &o->last, &end);
    if (count == 1) {
        o->last = o->first;
        sscanf(text, "%*5u%n", &end);
    }
    if (count < 1 || text[end] || o->first > o->last)
        usage_error(state, "--layers %s: give a range such as 0-3, or one number", text);
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *o = state->input;
    size_t length = argument ? strlen(argument) : 0;
    if (key == OPTION_ORIGINAL)
        o->inspect.original = argument;
    else if (key == OPTION_LAYERS)
        parse_layers(state, argument, &o->inspect);
    else if (key == 'o' && (length < 5 || strcmp(argument + length - 5, ".json")))
        usage_error(state, "-o %s: the extension must be .json", argument);
    else if (key == 'o')
        o->record = argument;
    else if (key == ARGP_KEY_ARG && !o->directory)
        o->directory = argument;
    else if (key == ARGP_KEY_ARG)
        usage_error(state, "one checkpoint at a time");
    else if (key == ARGP_KEY_END && !o->directory)
        usage_error(state, "name a checkpoint's folder");
    else if (key != ARGP_KEY_END)
        return ARGP_ERR_UNKNOWN;
    return 0;
}

/* The record. */

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *index_or_null(int32_t value)
{
    return value < 0 ? json_null() : json_integer(value);
}

static json_t *finding(const struct gb_finding *f)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:s}", "defect", gb_defect_name(f->defect), "layer", index_or_null(f->layer),
                     "expert", index_or_null(f->expert), "projection",
                     f->projection < 0 ? json_null() : json_string(projections[f->projection]), "text", f->text);
}

static json_t *matrix(const struct gb_inspected_matrix *m, bool compared)
{
    json_t *one = json_pack("{s:i, s:i, s:s, s:o, s:o, s:o}", "layer", (int)m->layer, "expert", (int)m->expert,
                            "projection", projections[m->projection], "rms", number(m->rms), "global_scale",
                            number(m->global), "input_scale", number(m->input));
    if (compared) {
        json_object_set_new(one, "relative_l2", number(m->error));
        json_object_set_new(one, "sqnr_db", number(m->sqnr));
        json_object_set_new(one, "gain", number(m->gain));
    }
    return one;
}

static void fill(json_t *record, const struct options *o, const struct gb_inspection *found)
{
    json_t *findings = json_array(), *matrices = json_array();
    for (size_t i = 0; i < found->findings; i++)
        json_array_append_new(findings, finding(&found->finding[i]));
    for (size_t i = 0; i < found->matrices; i++)
        json_array_append_new(matrices, matrix(&found->matrix[i], o->inspect.original));
    json_object_set_new(record, "checkpoint", json_string(o->directory));
    json_object_set_new(record, "original", o->inspect.original ? json_string(o->inspect.original) : json_null());
    json_object_set_new(record, "layout", json_string(found->layout));
    json_object_set_new(record, "activations", json_string(found->activations));
    json_object_set_new(record, "layers", json_integer(found->layers));
    json_object_set_new(record, "experts", json_integer(found->experts));
    json_object_set_new(record, "bytes", json_integer((json_int_t)found->bytes));
    json_object_set_new(record, "findings", findings);
    json_object_set_new(record, "matrices", matrices);
    json_object_set_new(record, "exit_code", json_integer(found->findings ? EXIT_FAIL : EXIT_PASS));
}

/* The table: one line for each defect and layer. */

struct line {
    const struct gb_finding *worst;
    size_t count;
    uint32_t projections; /* bits */
    int32_t first, last;  /* experts */
    bool several;         /* experts */
};

static struct line *find_line(struct line *lines, size_t count, const struct gb_finding *f)
{
    for (size_t i = count; i-- > 0 && lines[i].worst->defect == f->defect;)
        if (lines[i].worst->layer == f->layer)
            return &lines[i];
    return NULL;
}

static size_t make_lines(const struct gb_inspection *found, struct line *lines)
{
    size_t count = 0;
    for (size_t i = 0; i < found->findings; i++) {
        const struct gb_finding *f = &found->finding[i];
        struct line *line = find_line(lines, count, f);
        if (!line) {
            line = &lines[count++];
            *line = (struct line){.worst = f, .first = f->expert, .last = f->expert};
        }
        line->count++;
        line->projections |= f->projection < 0 ? 0 : 1u << f->projection;
        line->several = line->several || f->expert != line->first;
        line->first = f->expert < line->first ? f->expert : line->first;
        line->last = f->expert > line->last ? f->expert : line->last;
    }
    return count;
}

static void print_line(const struct line *line)
{
    static const char *const sets[] = {"", "gate", "up", "gate, up", "down", "gate, down", "up, down", "all"};
    const struct gb_finding *f = line->worst;
    char layer[16] = "", experts[32] = "";
    if (f->layer >= 0)
        snprintf(layer, sizeof layer, "%d", f->layer);
    if (line->several)
        snprintf(experts, sizeof experts, "%d..%d", line->first, line->last);
    else if (f->expert >= 0)
        snprintf(experts, sizeof experts, "%d", f->expert);
    printf("%-24s %5s  %-10s  %9s  %5zu  %s\n", gb_defect_name(f->defect), layer, sets[line->projections], experts,
           line->count, f->text);
}

static void print_errors(const struct gb_inspection *found)
{
    for (int p = 0; p < 3; p++) {
        const struct gb_inspected_matrix *worst = NULL;
        double sum = 0.0;
        size_t count = 0;
        for (size_t i = 0; i < found->matrices; i++) {
            const struct gb_inspected_matrix *m = &found->matrix[i];
            if ((int)m->projection != p || isnan(m->error))
                continue;
            worst = !worst || m->error > worst->error ? m : worst;
            sum += m->error * m->error;
            count++;
        }
        if (worst)
            printf("%-10s vs original: relative L2 %.4f (RMS of %zu matrices), at most %.4f, SQNR %.1f dB "
                   "(layer %u, expert %u)\n",
                   projections[p], sqrt(sum / (double)count), count, worst->error, worst->sqnr, worst->layer,
                   worst->expert);
    }
}

static int print(const struct options *o, const struct gb_inspection *found)
{
    enum { SHOWN = 40 };
    struct line *lines = calloc(found->findings + 1, sizeof *lines);
    if (!lines)
        return command_error("inspect", "no memory for the table");
    size_t count = make_lines(found, lines);
    printf("%s  %s  %s: %u layers with %u experts, activations with %s\n", found->findings ? "DEFECTS" : "SOUND",
           o->directory, found->layout, found->layers, found->experts, found->activations);
    if (count)
        printf("\n%-24s %5s  %-10s  %9s  %5s  %s\n", "defect", "layer", "projection", "experts", "count", "the worst");
    for (size_t i = 0; i < count && i < SHOWN; i++)
        print_line(&lines[i]);
    if (count > SHOWN)
        printf("%zu more lines: -o FILE.json has all\n", count - SHOWN);
    if (o->inspect.original) {
        printf("\n");
        print_errors(found);
    }
    free(lines);
    return found->findings ? EXIT_FAIL : EXIT_PASS;
}

static void show_progress(uint64_t done, uint64_t all, void *context)
{
    (void)context;
    progress("reading experts", all ? (double)done / (double)all : 1.0);
}

static const struct argp_option options[] = {
    {"original", OPTION_ORIGINAL, "DIR", 0, "the checkpoint before quantisation: the error of each matrix", 0},
    {"layers", OPTION_LAYERS, "A-B", 0, "layers of the model, all by default", 0},
    {"record", 'o', "FILE", 0, "also write all findings and figures as .json", 0},
    {0},
};

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "CHECKPOINT_DIR",
    .doc = "Find what is wrong with a checkpoint whose experts are quantised, as it is published: ModelOpt, "
           "compressed-tensors, MXFP4, FP8. Every file is read once.\v"
           "Exit codes: 0 sound, 1 defects found, 2 bad usage or input. docs/inspect.md describes the defects.\n\n"
           "Example:\n  gaugeblock inspect Qwen3-30B-A3B-NVFP4 -o findings.json",
};

static int run_inspect(int argc, char **argv)
{
    struct options o = {.inspect = {.last = UINT32_MAX, .progress = show_progress}};
    struct gb_inspection *found;
    struct gb_error error;
    command_parse(&argp, argc, argv, &o);
    if (o.record && (output_guard_checkpoint(o.record, o.directory, &error) != GB_OK ||
                     (o.inspect.original && output_guard_checkpoint(o.record, o.inspect.original, &error) != GB_OK)))
        return command_error("inspect", "%s", error.message);
    enum gb_status status = output_guard_writable(o.record, &error);
    if (status == GB_OK)
        status = gb_inspect(o.directory, &o.inspect, &found, &error);
    progress_done();
    if (status != GB_OK)
        return command_error("inspect", "%s", error.message);
    if (o.record) {
        json_t *record = record_begin(INSPECTION_SCHEMA, argc, argv);
        fill(record, &o, found);
        status = report_write(o.record, record, &error);
        json_decref(record);
    }
    int code = status == GB_OK ? print(&o, found) : command_error("inspect", "%s", error.message);
    gb_inspection_free(found);
    return code;
}

const struct command command_inspect = {"inspect", run_inspect, &argp,
                                        "find what is wrong with a quantised checkpoint"};
