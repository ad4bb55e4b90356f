/* SPDX-License-Identifier: Apache-2.0 */
/* One self-contained HTML page: tables that sort, charts as inline SVG, nothing from a network. */
#ifndef GB_HARNESS_REPORT_HTML_H
#define GB_HARNESS_REPORT_HTML_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "harness/study/study.h"

/* The page around its sections. title: plain text. */
void html_begin(FILE *stream, const char *title);
void html_end(FILE *stream);
/* Plain text, escaped. */
void html_text(FILE *stream, const char *text);

/* A table that sorts by a click on its heads. A cell is plain text; one that begins with a number sorts as that. */
void html_table_begin(FILE *stream, const char *caption, const char *const *heads, int columns);
void html_row(FILE *stream, const char *const *cells, int columns);
void html_table_end(FILE *stream);

/* A chart. Colours and dashes of series go by their number. */
enum { HTML_SERIES = 8 };
struct html_chart {
    FILE *stream;
    double x0, x1, y0, y1; /* what the axes span */
    bool log_x, log_y;
    bool whole_x;            /* ticks at whole numbers alone */
    bool alone;              /* an SVG file of its own instead of a figure of the page */
    double height;           /* in units of which the width is 360 */
    const char *const *rows; /* names along y, from the top, instead of numbers; NULL: numbers */
    int row_count;
};
/* axes: "x" and "y" in words; y may be NULL with rows. */
void html_chart_begin(const struct html_chart *chart, const char *title, const char *x, const char *y);
/* Points that are not finite, or not above zero on a logarithmic axis, interrupt the line. label: a tip on each point.
 */
void html_chart_line(const struct html_chart *chart, int series, const char *label, const double *x, const double *y,
                     int count);
void html_chart_band(const struct html_chart *chart, int series, const double *x, const double *low, const double *high,
                     int count);
/* A point with its interval along x, in row `row`. */
void html_chart_interval(const struct html_chart *chart, int series, double row, const char *label, double value,
                         double low, double high);
/* A vertical rule at x. */
void html_chart_rule(const struct html_chart *chart, double x);
/* Names of series, in the upper left corner. */
void html_chart_key(const struct html_chart *chart, const char *const *names, int count);
void html_chart_end(const struct html_chart *chart);
/* Names of series, below charts. */
void html_legend(FILE *stream, const char *const *names, int count);

/* A study's section, and one of any JSON record: verify, power, bench, accuracy over ranks. name: of the file.
 * GB_ENOMEM. */
enum gb_status html_study(FILE *stream, const char *name, const struct study *study, struct gb_error *error);
void html_record(FILE *stream, const char *name, const json_t *record);
/* Charts of the times that a record of bench has; nothing of any other record. */
void html_bench(FILE *stream, const json_t *record);
/* Charts of the errors that a record of gb_accuracy_ranks has; likewise. */
void html_ranks(FILE *stream, const json_t *record);
/* One chart of them as an SVG file; false: the record has no times. */
bool svg_bench(FILE *stream, const json_t *record);

#endif
