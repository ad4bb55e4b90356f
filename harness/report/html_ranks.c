/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of layers over ranks, by where they add up, as charts: records of gb_accuracy_ranks. */
#include <math.h>
#include <string.h>

#include "harness/report/html.h"
#include "harness/report/record.h"

/* Of the record's accumulations, as struct gb_exchange has them; before them a line of the layer on one rank. */
static const char *const keys[] = {"", "receiver", "sender", "node"};
static const char *const names[] = {"one rank, slots in FP32", "at the receiver", "at the sender",
                                    "at the sender and its node"};
enum { LINES = sizeof names / sizeof *names, MOST_COUNTS = 16 };

/* Points of one accumulation with experts at random; one rank has one placement. */
static int points_of(const json_t *fixture, const char *accumulation, const char *figure, double x[MOST_COUNTS],
                     double y[MOST_COUNTS])
{
    const json_t *cases = json_object_get(fixture, "cases");
    int count = 0;
    for (size_t i = 0; i < json_array_size(cases) && count < MOST_COUNTS; i++) {
        const json_t *one = json_array_get(cases, i);
        const double ranks = record_number(one, "ranks", NULL);
        if (strcmp(record_text(one, "accumulation", NULL), accumulation) ||
            (ranks > 1.0 && strcmp(record_text(one, "placement", NULL), "random")))
            continue;
        x[count] = ranks;
        y[count++] = record_number(one, figure, NULL);
    }
    return count;
}

/* figure: "relative_l2_bf16"; words: of the output that has it. */
static void draw(FILE *stream, const json_t *fixture, const char *figure, const char *words)
{
    double x[LINES][MOST_COUNTS], y[LINES][MOST_COUNTS];
    int count[LINES] = {0};
    char title[300];
    struct html_chart chart = {.stream = stream, .x0 = 1.0 / 1.1, .log_x = true, .height = 260.0};
    for (int l = 1; l < LINES; l++) {
        count[l] = points_of(fixture, keys[l], figure, x[l], y[l]);
        for (int i = 0; i < count[l]; i++) {
            chart.x1 = fmax(chart.x1, 1.1 * x[l][i]);
            chart.y1 = fmax(chart.y1, 1.1 * y[l][i]);
            x[0][i] = x[l][i];
            y[0][i] = record_number(fixture, "one_rank_fp32_slots", figure, NULL);
        }
        count[0] = count[l] > count[0] ? count[l] : count[0];
    }
    if (!(chart.y1 > 0.0)) /* nor where there are no points */
        return;
    snprintf(title, sizeof title, "%.200s: error of the output in %s", record_text(fixture, "source", NULL), words);
    html_chart_begin(&chart, title, "ranks", "relative L2 from float64");
    for (int l = 0; l < LINES; l++)
        html_chart_line(&chart, l, names[l], x[l], y[l], count[l]);
    html_chart_end(&chart);
}

void html_ranks(FILE *stream, const json_t *record)
{
    const json_t *fixtures = json_object_get(record, "fixtures");
    if (strcmp(record_text(record, "schema", NULL), "gaugeblock.accuracy-ranks/1"))
        return;
    fputs("<div class=\"charts\">\n", stream);
    for (size_t i = 0; i < json_array_size(fixtures); i++) {
        draw(stream, json_array_get(fixtures, i), "relative_l2_fp32", "FP32");
        draw(stream, json_array_get(fixtures, i), "relative_l2_bf16", "bf16");
    }
    fputs("</div>\n", stream);
    html_legend(stream, names, LINES);
}
