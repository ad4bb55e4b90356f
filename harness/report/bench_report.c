/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/report/bench_report.h"

#include <gsl/gsl_fit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/record.h"
#include "harness/report/to_json.h"

/* Times of one subject on one format of weights, over the bytes that a run needs. */
struct line {
    const char *subject, *weights;
    double *bytes, *us, *weight;
    size_t count, amounts;
};

static void collect(const json_t *cases, struct line *l)
{
    l->count = l->amounts = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        double us = record_number(one, "timing", "us", "median", NULL);
        double bytes = record_number(one, "timing", "bytes", NULL);
        bool seen = false;
        if (isnan(us) || strcmp(record_text(one, "subject", "name", NULL), l->subject) ||
            strcmp(record_text(one, "fixture", "weights", NULL), l->weights))
            continue;
        for (size_t n = 0; n < l->count; n++)
            seen |= l->bytes[n] == bytes;
        l->amounts += !seen;
        l->bytes[l->count] = bytes;
        l->us[l->count] = us;
        l->weight[l->count++] = 1.0 / (us * us); /* deviations count as shares of the time */
    }
}

/* NULL: fewer than three amounts of bytes. */
static json_t *line_to_json(const struct line *l)
{
    double fixed, slope, c00, c01, c11, chisq, largest = 0.0;
    if (l->amounts < 3 ||
        gsl_fit_wlinear(l->bytes, 1, l->weight, 1, l->us, 1, l->count, &fixed, &slope, &c00, &c01, &c11, &chisq))
        return NULL;
    for (size_t n = 0; n < l->count; n++)
        largest = fmax(largest, fabs((fixed + slope * l->bytes[n]) / l->us[n] - 1.0));
    return json_pack("{s:s, s:s, s:i, s:o, s:o, s:o}", "subject", l->subject, "weights", l->weights, "times",
                     (int)l->count, "fixed_us", number_to_json(fixed), "gb_per_s", number_to_json(1e-3 / slope),
                     "largest_deviation", number_to_json(largest));
}

static bool described(const json_t *growth, const struct line *l)
{
    for (size_t i = 0; i < json_array_size(growth); i++) {
        const json_t *one = json_array_get(growth, i);
        if (!strcmp(record_text(one, "subject", NULL), l->subject) &&
            !strcmp(record_text(one, "weights", NULL), l->weights))
            return true;
    }
    return false;
}

void bench_growth(json_t *record)
{
    const json_t *cases = json_object_get(record, "cases");
    size_t most = json_array_size(cases) + 1;
    double *room = malloc(sizeof *room * 3 * most);
    json_t *growth = json_array();
    for (size_t i = 0; room && i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        struct line l = {.subject = record_text(one, "subject", "name", NULL),
                         .weights = record_text(one, "fixture", "weights", NULL),
                         .bytes = room,
                         .us = room + most,
                         .weight = room + 2 * most};
        if (described(growth, &l))
            continue;
        collect(cases, &l);
        json_t *line = line_to_json(&l);
        if (line)
            json_array_append_new(growth, line);
    }
    json_object_set_new(record, "growth", growth);
    free(room);
}

static void put_problem(FILE *stream, const json_t *fixture)
{
    bool ranks = json_object_get(fixture, "ranks");
    if (ranks)
        fprintf(stream, "\n%s: %s, rows in %s, %.0f ranks, %.0f tokens on each, %.0f experts, top-%.0f, hidden %.0f\n",
                record_text(fixture, "path", NULL), record_text(fixture, "operator", NULL),
                record_text(fixture, "recipe", NULL), record_number(fixture, "ranks", NULL),
                record_number(fixture, "tokens", NULL), record_number(fixture, "experts", NULL),
                record_number(fixture, "top_k", NULL), record_number(fixture, "hidden", NULL));
    else
        fprintf(stream, "\n%s: %s weights, %.0f experts, top-%.0f, hidden %.0f, intermediate %.0f\n",
                record_text(fixture, "path", NULL), record_text(fixture, "weights", NULL),
                record_number(fixture, "experts", NULL), record_number(fixture, "top_k", NULL),
                record_number(fixture, "hidden", NULL), record_number(fixture, "intermediate", NULL));
    fprintf(stream, "%-34s %5s %11s %21s %8s %9s %8s %10s %5s\n", "kernel", "batch", "us", "quartiles", "MB",
            ranks ? "copy, us" : "read, us", "GB/s", "Gweights/s", "share");
}

static void put_case(FILE *stream, const json_t *one)
{
    const json_t *t = json_object_get(one, "timing");
    char quartiles[64];
    if (!t && !strcmp(record_text(one, "verdict", NULL), "PASS")) /* the router in a layer that routes */
        return;
    fprintf(stream, "%-34s %5.0f", record_text(one, "subject", "name", NULL), record_number(one, "batch", NULL));
    if (!t) {
        fprintf(stream, "  %s  %s\n", record_text(one, "verdict", NULL), record_text(one, "reason", NULL));
        return;
    }
    snprintf(quartiles, sizeof quartiles, "%.1f to %.1f", record_number(t, "us", "quartile_1", NULL),
             record_number(t, "us", "quartile_3", NULL));
    bool copied = json_object_get(t, "copy_us");
    fprintf(stream, " %11.1f %21s %8.2f %9.1f %8.1f", record_number(t, "us", "median", NULL), quartiles,
            1e-6 * record_number(t, "bytes", NULL), record_number(t, copied ? "copy_us" : "read_us", "median", NULL),
            record_number(t, "gb_per_s", NULL));
    if (copied)
        fprintf(stream, " %10s", "-");
    else
        fprintf(stream, " %10.2f", record_number(t, "gweights_per_s", NULL));
    fprintf(stream, " %5.2f%s\n", record_number(t, "ceiling_share", NULL),
            json_is_true(json_object_get(t, "beyond_cache")) ? "" : "  in the cache");
}

static void put_growth(FILE *stream, const json_t *growth)
{
    if (json_array_size(growth))
        fprintf(stream, "\nTime over bytes, as a line: fixed cost, rate, largest deviation of a time from the line\n");
    for (size_t i = 0; i < json_array_size(growth); i++) {
        const json_t *one = json_array_get(growth, i);
        fprintf(stream, "%-34s %-6s %8.1f us %8.1f GB/s %5.0f %%\n", record_text(one, "subject", NULL),
                record_text(one, "weights", NULL), record_number(one, "fixed_us", NULL),
                record_number(one, "gb_per_s", NULL), 100.0 * record_number(one, "largest_deviation", NULL));
    }
}

void bench_table(FILE *stream, const json_t *record)
{
    const json_t *cases = json_object_get(record, "cases"), *bench = json_object_get(record, "bench");
    const char *path = "";
    char cache[48] = ""; /* where it is not as the system says */
    size_t timed = 0, copied = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *t = json_object_get(json_array_get(cases, i), "timing");
        timed += t != NULL;
        copied += json_object_get(t, "copy_us") != NULL;
    }
    if (json_object_get(bench, "cache_bytes"))
        snprintf(cache, sizeof cache, "; --cache %.0f", record_number(bench, "cache_bytes", NULL));
    fprintf(stream, "%s  %zu cases, %zu timed: medians of %.0f samples, weights %s%s; share: of the %s's rate\n",
            record_text(record, "verdict", NULL), json_array_size(cases), timed, record_number(bench, "samples", NULL),
            json_is_true(json_object_get(bench, "hot")) ? "hot" : "rotated past the last cache", cache,
            !copied           ? "read"
            : copied == timed ? "copy"
                              : "read or copy");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        if (strcmp(record_text(one, "fixture", "path", NULL), path))
            put_problem(stream, json_object_get(one, "fixture"));
        path = record_text(one, "fixture", "path", NULL);
        put_case(stream, one);
    }
    put_growth(stream, json_object_get(record, "growth"));
}
