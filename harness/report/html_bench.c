/* SPDX-License-Identifier: Apache-2.0 */
/* Times of a record of bench as charts: by batch for one problem, by bytes for several, each beside the bare read. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/html.h"
#include "harness/report/record.h"

enum { MOST_LINES = HTML_SERIES - 1 }; /* series 0 is the read */

/* What a chart shows: cases of one operator, and of one fixture or of all. */
struct bench_chart {
    const json_t *cases;
    const char *operator, * fixture; /* fixture NULL: all, by bytes */
    const char *names[MOST_LINES + 1];
    int lines;
    double *x, *y; /* room for all cases */
};

static bool shown(const struct bench_chart *b, const json_t *one)
{
    return json_object_get(one, "timing") && !strcmp(record_text(one, "subject", "operator", NULL), b->operator) &&
           (!b->fixture || !strcmp(record_text(one, "fixture", "path", NULL), b->fixture));
}

static double x_of(const struct bench_chart *b, const json_t *one)
{
    return b->fixture ? record_number(one, "batch", NULL) : 1e-6 * record_number(one, "timing", "bytes", NULL);
}

/* Whether it is of rows, beside copies. */
static bool copied(const struct bench_chart *b)
{
    for (size_t i = 0; i < json_array_size(b->cases); i++)
        if (shown(b, json_array_get(b->cases, i)))
            return json_object_get(json_object_get(json_array_get(b->cases, i), "timing"), "copy_us");
    return false;
}

/* The subjects of the chart, the read or copy first. */
static void find_lines(struct bench_chart *b)
{
    b->names[0] = copied(b) ? "copy of as many bytes" : "read of as many bytes";
    b->lines = 0;
    for (size_t i = 0; i < json_array_size(b->cases) && b->lines < MOST_LINES; i++) {
        const json_t *one = json_array_get(b->cases, i);
        const char *name = record_text(one, "subject", "name", NULL);
        bool known = false;
        for (int n = 1; n <= b->lines; n++)
            known |= !strcmp(b->names[n], name);
        if (!known && shown(b, one))
            b->names[++b->lines] = name;
    }
}

/* One subject's points, or the reads beside the first subject, from left to right. */
static int points_of(const struct bench_chart *b, int line)
{
    int count = 0;
    for (size_t i = 0; i < json_array_size(b->cases); i++) {
        const json_t *one = json_array_get(b->cases, i);
        if (!shown(b, one) || strcmp(record_text(one, "subject", "name", NULL), b->names[line ? line : 1]))
            continue;
        double x = x_of(b, one), y = record_number(one, "timing",
                                                   line        ? "us"
                                                   : copied(b) ? "copy_us"
                                                               : "read_us",
                                                   "median", NULL);
        int at = count++;
        for (; at > 0 && b->x[at - 1] > x; at--) {
            b->x[at] = b->x[at - 1];
            b->y[at] = b->y[at - 1];
        }
        b->x[at] = x;
        b->y[at] = y;
    }
    return count;
}

static void widen(double *low, double *high, double value)
{
    *low = fmin(*low, value);
    *high = fmax(*high, value);
}

static void draw(FILE *stream, struct bench_chart *b, bool alone)
{
    struct html_chart chart = {.stream = stream,
                               .x0 = INFINITY,
                               .y0 = INFINITY,
                               .log_x = true,
                               .log_y = true,
                               .alone = alone,
                               .height = 260.0};
    char title[300];
    for (int line = 0; line <= b->lines; line++)
        for (int i = points_of(b, line); i-- > 0;) {
            widen(&chart.x0, &chart.x1, b->x[i]);
            widen(&chart.y0, &chart.y1, b->y[i]);
        }
    chart.x0 /= 1.1;
    chart.x1 *= 1.1;
    chart.y0 /= 1.3;
    chart.y1 *= 1.3 * pow(chart.y1 / chart.y0, 0.05 * b->lines); /* room for the names */
    snprintf(title, sizeof title, "Time of %s%s%.200s", b->operator, b->fixture ? ", " : "",
             b->fixture ? b->fixture : "");
    html_chart_begin(&chart, title,
                     b->fixture  ? "batch, tokens"
                     : copied(b) ? "MB of rows that a run moves"
                                 : "MB of weights that a run needs",
                     "us a run");
    for (int line = 0; line <= b->lines; line++) {
        int count = points_of(b, line);
        html_chart_line(&chart, line, b->names[line], b->x, b->y, count);
    }
    html_chart_key(&chart, b->names, b->lines + 1);
    html_chart_end(&chart);
}

/* Whether the records' times are of more than one fixture. */
static bool of_several(const json_t *cases)
{
    const char *first = record_text(json_array_get(cases, 0), "fixture", "path", NULL);
    for (size_t i = 1; i < json_array_size(cases); i++)
        if (strcmp(record_text(json_array_get(cases, i), "fixture", "path", NULL), first))
            return true;
    return false;
}

/* A chart of every operator; alone: of the first one that has times. Returns how many. */
static int draw_operators(FILE *stream, const json_t *record, bool alone)
{
    static const char *const operators[] = {"layer", "gate_up", "down", "route", "dispatch", "combine"};
    const json_t *cases = json_object_get(record, "cases");
    struct bench_chart b = {.cases = cases};
    int drawn = 0;
    size_t count = json_array_size(cases);
    b.x = malloc(sizeof *b.x * (count + 1));
    b.y = malloc(sizeof *b.y * (count + 1));
    if (!of_several(cases))
        b.fixture = record_text(json_array_get(cases, 0), "fixture", "path", NULL);
    for (size_t i = 0; b.x && b.y && i < sizeof operators / sizeof *operators && !(alone && drawn); i++) {
        b.operator= operators[i];
        find_lines(&b);
        if (!b.lines)
            continue;
        draw(stream, &b, alone);
        drawn++;
    }
    free(b.x);
    free(b.y);
    return drawn;
}

static bool has_times(const json_t *record)
{
    const json_t *cases = json_object_get(record, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++)
        if (json_object_get(json_array_get(cases, i), "timing"))
            return true;
    return false;
}

void html_bench(FILE *stream, const json_t *record)
{
    if (!has_times(record))
        return;
    fputs("<div class=\"charts\">\n", stream);
    draw_operators(stream, record, false);
    fputs("</div>\n", stream);
}

bool svg_bench(FILE *stream, const json_t *record)
{
    return has_times(record) && draw_operators(stream, record, true) > 0;
}
