/* SPDX-License-Identifier: Apache-2.0 */
/* Charts as inline SVG, 360 units wide: about the width of a telephone. */
#include <math.h>
#include <string.h>

#include "harness/report/html.h"

enum { WIDTH = 360, RIGHT = 12, TOP = 8, BOTTOM = 34, LEFT = 46, LEFT_OF_ROWS = 128 };

static const char *const dashes[] = {"", "4 2", "1 2", "", "6 2", "2 2", "", "8 2 2 2"};

static double left_of(const struct html_chart *c)
{
    return c->rows ? LEFT_OF_ROWS : LEFT;
}

/* Where between both ends a value lies, 0 to 1; what lies beyond is drawn at the end. */
static double share(double value, double from, double to, bool logarithmic)
{
    double at = logarithmic ? log(value / from) / log(to / from) : (value - from) / (to - from);
    return at < 0.0 ? 0.0 : at > 1.0 ? 1.0 : at;
}

static double x_of(const struct html_chart *c, double x)
{
    return left_of(c) + share(x, c->x0, c->x1, c->log_x) * (WIDTH - RIGHT - left_of(c));
}

static double y_of(const struct html_chart *c, double y)
{
    if (c->rows)
        return TOP + (y + 0.5) / c->row_count * (c->height - TOP - BOTTOM);
    return c->height - BOTTOM - share(y, c->y0, c->y1, c->log_y) * (c->height - TOP - BOTTOM);
}

static bool drawable(const struct html_chart *c, double x, double y)
{
    return isfinite(x) && isfinite(y) && (!c->log_x || x > 0.0) && (!c->log_y || y > 0.0);
}

/* The next tick at or above `at`. Logarithmic: 1, 2, 5 of each decade, of few of them 1 to 9, of many 1 alone. */
static double next_tick(double at, double from, double to, bool logarithmic, bool whole)
{
    if (logarithmic) {
        double decade = pow(10.0, floor(log10(at) + 1e-9));
        for (int i = 1; i <= 10; i++) {
            bool wanted = i == 1 || i == 10 || (to / from < 150.0 && (i == 2 || i == 5)) || to / from < 6.0;
            if (wanted && decade * i >= at * (1.0 - 1e-9))
                return decade * i;
        }
    }
    double raw = (to - from) / 6.0, unit = pow(10.0, floor(log10(raw)));
    double step = unit * (raw <= unit ? 1.0 : raw <= 2.0 * unit ? 2.0 : raw <= 5.0 * unit ? 5.0 : 10.0);
    step = whole && step < 1.0 ? 1.0 : step;
    return ceil(at / step - 1e-9) * step;
}

/* The first one behind it. */
static double tick_after(double tick, double from, double to, bool logarithmic, bool whole)
{
    return next_tick(logarithmic ? tick * 1.0001 : tick + (to - from) * 1e-4, from, to, logarithmic, whole);
}

static void number(FILE *stream, double value)
{
    if (value != 0.0 && (fabs(value) < 1e-3 || fabs(value) >= 1e5))
        fprintf(stream, "%.0e", value);
    else
        fprintf(stream, "%.4g", fabs(value) < 1e-12 ? 0.0 : value);
}

static void x_axis(const struct html_chart *c, const char *words)
{
    double bottom = c->height - BOTTOM;
    for (double x = next_tick(c->x0, c->x0, c->x1, c->log_x, c->whole_x); x <= c->x1 * (1.0 + 1e-9);
         x = tick_after(x, c->x0, c->x1, c->log_x, c->whole_x)) {
        fprintf(c->stream,
                "<path class=\"grid\" d=\"M%.1f %dV%.1f\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
                x_of(c, x), (int)TOP, bottom, x_of(c, x), bottom + 13.0);
        number(c->stream, x);
        fputs("</text>", c->stream);
    }
    fprintf(c->stream, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", 0.5 * (left_of(c) + WIDTH - RIGHT),
            c->height - 6.0);
    html_text(c->stream, words);
    fputs("</text>", c->stream);
}

static void y_axis(const struct html_chart *c, const char *words)
{
    for (int i = 0; c->rows && i < c->row_count; i++) {
        fprintf(c->stream, "<path class=\"grid\" d=\"M%.1f %.1fH%d\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">",
                left_of(c), y_of(c, i), WIDTH - RIGHT, left_of(c) - 4.0, y_of(c, i) + 3.5);
        html_text(c->stream, c->rows[i]);
        fputs("</text>", c->stream);
    }
    if (c->rows)
        return;
    for (double y = next_tick(c->y0, c->y0, c->y1, c->log_y, false); y <= c->y1 * (1.0 + 1e-9);
         y = tick_after(y, c->y0, c->y1, c->log_y, false)) {
        fprintf(c->stream, "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
                (int)LEFT, y_of(c, y), WIDTH - RIGHT, LEFT - 4, y_of(c, y) + 3.5);
        number(c->stream, y);
        fputs("</text>", c->stream);
    }
    fprintf(c->stream, "<text transform=\"translate(10 %.1f) rotate(-90)\" text-anchor=\"middle\">",
            0.5 * (TOP + c->height - BOTTOM));
    html_text(c->stream, words);
    fputs("</text>", c->stream);
}

/* What a page's style says of its charts, for one that has no page. */
static const char style[] =
    "<style>:root{--s0:#000;--s1:#0072b2;--s2:#56b4e9;--s3:#009e73;--s4:#e69f00;--s5:#cc79a7;--s6:#d55e00;"
    "--s7:#8a6d00}text{font:10px system-ui,sans-serif}.grid{stroke:#d5dade;stroke-width:.6}"
    ".axis{stroke:#5b6670;fill:none}</style><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>";

void html_chart_begin(const struct html_chart *c, const char *title, const char *x, const char *y)
{
    if (!c->alone) {
        fputs("<figure><figcaption>", c->stream);
        html_text(c->stream, title);
        fputs("</figcaption>", c->stream);
    }
    fprintf(c->stream, "<svg %sviewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"",
            c->alone ? "xmlns=\"http://www.w3.org/2000/svg\" " : "", WIDTH, c->height);
    html_text(c->stream, title);
    fprintf(c->stream, "\">%s", c->alone ? style : "");
    x_axis(c, x);
    y_axis(c, y ? y : "");
    fprintf(c->stream, "<path class=\"axis\" d=\"M%.1f %dV%.1fH%d\"/>\n", left_of(c), (int)TOP, c->height - BOTTOM,
            WIDTH - RIGHT);
}

void html_chart_line(const struct html_chart *c, int series, const char *label, const double *x, const double *y,
                     int count)
{
    int s = series % HTML_SERIES;
    bool down = false;
    fprintf(c->stream, "<path fill=\"none\" stroke=\"var(--s%d)\" stroke-width=\"1.6\" stroke-dasharray=\"%s\" d=\"", s,
            dashes[s]);
    for (int i = 0; i < count; i++) {
        bool now = drawable(c, x[i], y[i]);
        if (now)
            fprintf(c->stream, "%c%.1f %.1f", down ? 'L' : 'M', x_of(c, x[i]), y_of(c, y[i]));
        down = now;
    }
    fputs("\"/>", c->stream);
    for (int i = 0; i < count; i++) {
        if (!drawable(c, x[i], y[i]))
            continue;
        fprintf(c->stream, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%s\" fill=\"var(--s%d)\"><title>", x_of(c, x[i]),
                y_of(c, y[i]), count > 24 ? "1.4" : "2.4", s);
        html_text(c->stream, label);
        fprintf(c->stream, ", %g: %.4g</title></circle>", x[i], y[i]);
    }
    fputc('\n', c->stream);
}

void html_chart_band(const struct html_chart *c, int series, const double *x, const double *low, const double *high,
                     int count)
{
    bool any = false;
    for (int i = 0; i < count; i++)
        if (!drawable(c, x[i], low[i]) || !drawable(c, x[i], high[i]))
            return;
    fprintf(c->stream, "<path fill=\"var(--s%d)\" fill-opacity=\".18\" d=\"", series % HTML_SERIES);
    for (int i = 0; i < count; i++, any = true)
        fprintf(c->stream, "%c%.1f %.1f", any ? 'L' : 'M', x_of(c, x[i]), y_of(c, high[i]));
    for (int i = count; i-- > 0;)
        fprintf(c->stream, "L%.1f %.1f", x_of(c, x[i]), y_of(c, low[i]));
    fputs("Z\"/>\n", c->stream);
}

void html_chart_interval(const struct html_chart *c, int series, double row, const char *label, double value,
                         double low, double high)
{
    int s = series % HTML_SERIES;
    if (!drawable(c, value, 1.0))
        return;
    double y = y_of(c, row);
    if (drawable(c, low, 1.0) && drawable(c, high, 1.0))
        fprintf(c->stream, "<path stroke=\"var(--s%d)\" stroke-width=\"1.6\" d=\"M%.1f %.1fH%.1f\"/>", s, x_of(c, low),
                y, x_of(c, high));
    fprintf(c->stream, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"var(--s%d)\"><title>", x_of(c, value), y, s);
    html_text(c->stream, label);
    fprintf(c->stream, isnan(low) ? ": %.4g</title></circle>\n" : ": %.4g (%.4g to %.4g)</title></circle>\n", value,
            low, high);
}

void html_chart_rule(const struct html_chart *c, double x)
{
    fprintf(c->stream, "<path class=\"axis\" d=\"M%.1f %dV%.1f\"/>", x_of(c, x), (int)TOP, c->height - BOTTOM);
}

void html_chart_key(const struct html_chart *c, const char *const *names, int count)
{
    enum { LINE = 11, DASH = 16 };
    for (int i = 0; i < count; i++) {
        int s = i % HTML_SERIES;
        double y = TOP + LINE * (i + 0.8), x = left_of(c) + 6.0;
        fprintf(c->stream,
                "<path fill=\"none\" stroke=\"var(--s%d)\" stroke-width=\"1.6\" stroke-dasharray=\"%s\" "
                "d=\"M%.1f %.1fh%d\"/><text x=\"%.1f\" y=\"%.1f\">",
                s, dashes[s], x, y - 3.0, (int)DASH, x + DASH + 4.0, y);
        html_text(c->stream, names[i]);
        fputs("</text>", c->stream);
    }
}

void html_chart_end(const struct html_chart *c)
{
    fputs(c->alone ? "</svg>\n" : "</svg></figure>\n", c->stream);
}

void html_legend(FILE *stream, const char *const *names, int count)
{
    fputs("<ul class=\"legend\">", stream);
    for (int i = 0; i < count; i++) {
        int s = i % HTML_SERIES;
        fprintf(stream,
                "<li><svg viewBox=\"0 0 30 10\"><path stroke=\"var(--s%d)\" stroke-width=\"2\" stroke-dasharray=\"%s\" "
                "d=\"M0 5H30\"/><circle cx=\"15\" cy=\"5\" r=\"3\" fill=\"var(--s%d)\"/></svg>",
                s, dashes[s], s);
        html_text(stream, names[i]);
        fputs("</li>", stream);
    }
    fputs("</ul>\n", stream);
}
