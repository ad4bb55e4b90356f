/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/report/html.h"
#include "harness/run/output_guard.h"
#include "harness/run/probe.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"

enum { RESULTS = 64 };

struct report_options {
    const char *result[RESULTS], *page, *title;
    uint32_t results;
};

enum { OPTION_TITLE = 256 };

static const struct argp_option options[] = {
    {"page", 'o', "FILE", 0, "the HTML page to write", 0},
    {"title", OPTION_TITLE, "TEXT", 0, "its title; 'gaugeblock report' by default", 0},
    {0},
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct report_options *o = state->input;
    switch (key) {
    case 'o':
        o->page = argument;
        return 0;
    case OPTION_TITLE:
        o->title = argument;
        return 0;
    case ARGP_KEY_ARG:
        if (o->results == RESULTS)
            usage_error(state, "more than %d results; make several pages", (int)RESULTS);
        o->result[o->results++] = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->results || !o->page)
            usage_error(state, "name results, of study (HDF5) or records (JSON), and the page: -o report.html");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "RESULT...",
    .doc = "Draw results as one HTML page that needs nothing else: studies (HDF5), and records of verify, power and "
           "benchmarks (JSON).\v"
           "Example:\n"
           "  gaugeblock report drift.h5 record.json -o report.html",
};

/* The last part of a path. */
static const char *base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static enum gb_status draw_json(FILE *page, const char *path, struct gb_error *error)
{
    json_error_t reason;
    json_t *record = json_load_file(path, 0, &reason);
    if (!json_is_object(record)) {
        json_decref(record);
        return gb_fail(error, GB_EFORMAT, "%s: %s; give a study's HDF5 file or a JSON record", path,
                       *reason.text ? reason.text : "is no JSON object");
    }
    const char *schema = json_string_value(json_object_get(record, "schema"));
    bool ours = schema && !strncmp(schema, "gaugeblock", strlen("gaugeblock"));
    if (ours)
        html_record(page, base(path), record);
    json_decref(record);
    return ours ? GB_OK : gb_fail(error, GB_EFORMAT, "%s: has no schema of gaugeblock's: it is no record", path);
}

static enum gb_status draw_study(FILE *page, const char *path, struct gb_error *error)
{
    struct study study;
    enum gb_status status = study_read(path, &study, error);
    if (status == GB_OK)
        status = html_study(page, base(path), &study, error);
    study_free(&study);
    return status;
}

/* By content: HDF5 files begin with \211HDF. */
static enum gb_status draw(FILE *page, const char *path, struct gb_error *error)
{
    char start[4] = {0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return gb_fail(error, GB_EIO, "%s: cannot open it", path);
    size_t got = fread(start, 1, sizeof start, file);
    fclose(file);
    return got == sizeof start && !memcmp(start, "\211HDF", 4) ? draw_study(page, path, error)
                                                               : draw_json(page, path, error);
}

static int run_report(int argc, char **argv)
{
    struct report_options o = {.title = "gaugeblock report"};
    struct gb_error error;
    char *text = NULL;
    size_t bytes = 0;
    command_parse(&argp, argc, argv, &o);
    enum gb_status status = output_guard(o.page, o.result, o.results, &error);
    FILE *page = status == GB_OK ? open_memstream(&text, &bytes) : NULL;
    if (status == GB_OK && !page)
        status = gb_fail(&error, GB_ENOMEM, "no memory for the page");
    if (page)
        html_begin(page, o.title);
    for (uint32_t i = 0; status == GB_OK && i < o.results; i++)
        status = draw(page, o.result[i], &error);
    if (page)
        html_end(page);
    if (page && fclose(page) && status == GB_OK)
        status = gb_fail(&error, GB_ENOMEM, "no memory for the page");
    if (status == GB_OK)
        status = gb_file_write(o.page, text, bytes, &error);
    if (status == GB_OK)
        printf("%s: %u results, %zu bytes\n", o.page, o.results, bytes);
    free(text);
    return status == GB_OK ? EXIT_PASS : command_error("report", "%s", error.message);
}

const struct command command_report = {"report", run_report, &argp, "draw results as one HTML page"};
