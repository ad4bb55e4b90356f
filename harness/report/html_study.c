/* SPDX-License-Identifier: Apache-2.0 */
/* Studies on the page: answers in words (html_study_answers.c), then charts, then tables. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/html.h"
#include "harness/report/html_study.h"
#include "quant/quant.h"

/* Limits of an axis around positive values, to the next 1, 2 or 5. */
static void around(double low, double high, double *from, double *to)
{
    *from = low / 1.15;
    *to = high * 1.15;
}

typedef double figure_of(const struct study_page *p, enum study_truth truth, uint32_t layer, uint32_t path);

static double relative_l2(const struct study_page *p, enum study_truth truth, uint32_t layer, uint32_t path)
{
    return study_figures_of(p->c, STUDY_OPEN_LOOP, truth, layer, path).relative_l2;
}

static double injected(const struct study_page *p, enum study_truth truth, uint32_t layer, uint32_t path)
{
    return study_figures_of(p->c, STUDY_OPEN_LOOP, truth, layer, path).injected;
}

static double changed(const struct study_page *p, enum study_truth truth, uint32_t layer, uint32_t path)
{
    return 100.0 * study_figures_of(p->c, STUDY_OPEN_LOOP, truth, layer, path).changed / p->c->samples;
}

/* One figure of every path by layer; band: with the interval of relative_l2. */
static void by_layer(const struct study_page *p, const char *title, const char *words, enum study_truth truth,
                     figure_of *figure, bool logarithmic, bool band)
{
    const struct study_case *c = p->c;
    double low = INFINITY, high = 0.0, *value = p->line, *lows = value + c->layers, *highs = lows + c->layers;
    for (uint32_t i = 0; i < c->paths; i++)
        for (uint32_t l = 0; l < c->layers; l++) {
            double v = figure(p, truth, l, i);
            low = v < low && v > 0.0 ? v : low;
            high = v > high ? v : high;
        }
    struct html_chart chart = {.stream = p->stream,
                               .x0 = p->layer[0] - 0.25,
                               .x1 = p->layer[c->layers - 1] + 0.25,
                               .whole_x = true,
                               .log_y = logarithmic && high > 0.0,
                               .y1 = high > 0.0 ? 1.1 * high : 1.0,
                               .height = 250.0};
    if (chart.log_y)
        around(low, high, &chart.y0, &chart.y1);
    html_chart_begin(&chart, title, "layer", words);
    for (uint32_t i = 0; i < c->paths; i++) {
        for (uint32_t l = 0; l < c->layers; l++) {
            value[l] = figure(p, truth, l, i);
            if (!band)
                continue;
            struct study_interval r = study_relative_l2(c, &p->resamples, STUDY_OPEN_LOOP, truth, l, i);
            lows[l] = r.low;
            highs[l] = r.high;
        }
        if (band)
            html_chart_band(&chart, (int)i, p->layer, lows, highs, (int)c->layers);
        html_chart_line(&chart, (int)i, p->names[i], p->layer, value, (int)c->layers);
    }
    html_chart_end(&chart);
}

/* Ratios to path 0 of every path and both truths. */
static void closeness(const struct study_page *p)
{
    const struct study_case *c = p->c;
    char title[160];
    double high = 1.0;
    for (int t = 0; t < STUDY_TRUTHS; t++)
        for (uint32_t i = 1; i < c->paths; i++) {
            struct study_interval r = study_closeness(c, &p->resamples, (enum study_truth)t, i, c->layers);
            high = r.high > high ? r.high : high;
        }
    for (int t = STUDY_TRUTHS; t-- > 0;) {
        struct html_chart chart = {.stream = p->stream,
                                   .x0 = 0.8,
                                   .x1 = 1.2 * high,
                                   .log_x = true,
                                   .height = 60.0 + 20.0 * (c->paths - 1),
                                   .rows = p->names + 1,
                                   .row_count = (int)c->paths - 1};
        snprintf(title, sizeof title,
                 "Error of layer outputs over that of %s, against %s, each given the same bf16 input", p->names[0],
                 study_page_against((enum study_truth)t));
        html_chart_begin(&chart, title, "ratio of errors, with its 95 % interval", NULL);
        html_chart_rule(&chart, 1.0);
        for (uint32_t i = 1; i < c->paths; i++) {
            struct study_interval r = study_closeness(c, &p->resamples, (enum study_truth)t, i, c->layers);
            html_chart_interval(&chart, (int)i, (double)i - 1.0, p->names[i], r.value, r.low, r.high);
        }
        html_chart_end(&chart);
    }
}

/* Elements of the residual stream after the last layer by how many bf16 ulp they are off, at most. */
static void ulp_histogram(const struct study_page *p, enum study_truth truth)
{
    const struct study_case *c = p->c;
    char title[160];
    double ulp[STUDY_BINS], share[STUDY_BINS];
    struct html_chart chart = {.stream = p->stream, .x0 = 0.4, .x1 = 0x1p17, .log_x = true, .y1 = 1.0, .height = 250.0};
    snprintf(title, sizeof title, "Cumulative histogram of bf16 ulp from %s, after the last layer",
             study_page_against(truth));
    for (int b = 0; b < STUDY_BINS; b++)
        ulp[b] = ldexp(0.5, b);
    html_chart_begin(&chart, title, "off by at most so many ulp (leftmost: the same number)", "share of elements");
    for (uint32_t i = 0; i < c->paths; i++) {
        size_t row = (size_t)(c->layers - 1) * c->paths + i;
        const double *count = c->measure[STUDY_OPEN_LOOP][truth].ulps + row * STUDY_BINS;
        for (int b = 0; b < STUDY_BINS; b++)
            share[b] = (b ? share[b - 1] : 0.0) + count[b] / ((double)c->samples * c->shape.hidden);
        html_chart_line(&chart, (int)i, p->names[i], ulp, share, STUDY_BINS);
    }
    html_chart_end(&chart);
}

enum { CELL = 64, COLUMNS = 11 };

__attribute__((format(printf, 3, 4))) static void cell(char cells[COLUMNS][CELL], int i, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(cells[i], CELL, format, list);
    va_end(list);
}

static void put(FILE *stream, char cells[COLUMNS][CELL], int columns)
{
    const char *row[COLUMNS];
    for (int i = 0; i < columns; i++)
        row[i] = cells[i];
    html_row(stream, row, columns);
}

static void summary_table(const struct study_page *p, enum study_truth truth)
{
    const struct study_case *c = p->c;
    char caption[160], cells[COLUMNS][CELL], text[STUDY_INTERVAL_TEXT], stream_head[CELL * 2], output_head[CELL * 2];
    snprintf(stream_head, sizeof stream_head, "error of the stream over that of %s", p->names[0]);
    snprintf(output_head, sizeof output_head, "error of layer outputs over that of %s", p->names[0]);
    const char *const heads[COLUMNS] = {"path",         "relative L2",    "95 % interval", stream_head,
                                        output_head,    "min cosine",     "SQNR, dB",      "max |error|",
                                        "max bf16 ulp", "changed tokens", "growth"};
    snprintf(caption, sizeof caption, "Residual stream after layer %.0f against %s", c->model_layer[c->layers - 1],
             study_page_against(truth));
    html_table_begin(p->stream, caption, heads, COLUMNS);
    const double *errors = c->measure[STUDY_OPEN_LOOP][truth].error2 + (size_t)(c->layers - 1) * c->paths * c->samples;
    for (uint32_t i = 0; i < c->paths; i++) {
        struct study_figures f = study_page_last(p, truth, i);
        struct study_interval r = study_relative_l2(c, &p->resamples, STUDY_OPEN_LOOP, truth, c->layers - 1, i);
        struct study_growth g = study_growth_of(c, &p->resamples, truth, i);
        struct study_interval times = study_closeness(c, &p->resamples, truth, i, c->layers);
        struct study_interval of_stream = study_ratio(&p->resamples, errors + (size_t)i * c->samples, errors);
        cell(cells, 0, "%s", p->names[i]);
        cell(cells, 1, "%.3e", r.value);
        cell(cells, 2, "%s", study_interval_text(r, 1.0, "%.2e to %.2e", text));
        cell(cells, 3, i ? "%.3f (%s)" : "1", of_stream.value,
             study_interval_text(of_stream, 1.0, "%.3f to %.3f", text));
        cell(cells, 4, i ? "%.3f (%s)" : "1", times.value, study_interval_text(times, 1.0, "%.3f to %.3f", text));
        cell(cells, 5, "%.8f", f.cosine_min);
        cell(cells, 6, "%.1f", f.sqnr_db);
        cell(cells, 7, "%.2e", f.max_abs);
        cell(cells, 8, "%.0f", f.max_ulp);
        cell(cells, 9, "%.0f", f.changed);
        cell(cells, 10, isnan(g.exponent.value) ? "" : "%.2f \xc2\xb1 %.2f", g.exponent.value, g.error);
        put(p->stream, cells, COLUMNS);
    }
    html_table_end(p->stream);
}

static void head_table(const struct study_page *p, enum study_against against, const char *whom)
{
    static const char *const heads[] = {"path", "KL, nats", "95 % interval", "same top-1, %", "95 % interval, %"};
    enum { USED = sizeof heads / sizeof *heads };
    char caption[160], cells[COLUMNS][CELL];
    snprintf(caption, sizeof caption, "Logits over a vocabulary of %u against %s", p->c->vocabulary, whom);
    html_table_begin(p->stream, caption, heads, USED);
    for (uint32_t i = against == STUDY_AGAINST_BF16; i < p->c->paths; i++) {
        struct study_interval kl = study_mean_kl(p->c, &p->resamples, against, i),
                              top = study_top_agreement(p->c, against, i);
        cell(cells, 0, "%s", p->names[i]);
        cell(cells, 1, "%.3e", kl.value);
        cell(cells, 2, isnan(kl.low) ? "" : "%.2e to %.2e", kl.low, kl.high);
        cell(cells, 3, "%.1f", 100.0 * top.value);
        cell(cells, 4, "%.1f to %.1f", 100.0 * top.low, 100.0 * top.high);
        put(p->stream, cells, USED);
    }
    html_table_end(p->stream);
}

static void layer_table(const struct study_page *p, enum study_truth truth)
{
    static const char *const heads[] = {"path",      "layer",      "relative L2", "injected",      "carried",
                                        "by itself", "min cosine", "max |error|", "changed tokens"};
    enum { USED = sizeof heads / sizeof *heads };
    const struct study_case *c = p->c;
    char caption[160], cells[COLUMNS][CELL];
    snprintf(caption, sizeof caption, "By layer, against %s", study_page_against(truth));
    fprintf(p->stream, "<details><summary>%s</summary>", caption);
    html_table_begin(p->stream, caption, heads, USED);
    for (uint32_t i = 0; i < c->paths; i++)
        for (uint32_t l = 0; l < c->layers; l++) {
            struct study_figures f = study_figures_of(c, STUDY_OPEN_LOOP, truth, l, i);
            cell(cells, 0, "%s", p->names[i]);
            cell(cells, 1, "%.0f", c->model_layer[l]);
            cell(cells, 2, "%.3e", f.relative_l2);
            cell(cells, 3, "%.3e", f.injected);
            cell(cells, 4, "%.3e", f.carried);
            cell(cells, 5, "%.3e", study_figures_of(c, STUDY_LAYER, truth, l, i).relative_l2);
            cell(cells, 6, "%.8f", f.cosine_min);
            cell(cells, 7, "%.2e", f.max_abs);
            cell(cells, 8, "%.0f", f.changed);
            put(p->stream, cells, USED);
        }
    html_table_end(p->stream);
    fputs("</details>\n", p->stream);
}

static void write_case(const struct study_page *p)
{
    const struct study_case *c = p->c;
    char title[128];
    fputs("<section><h3>", p->stream);
    html_text(p->stream, c->name);
    fprintf(p->stream, ", %s weights: %u layers, %u tokens</h3>\n", c->weights, c->layers, c->samples);
    study_page_answers(p);
    html_legend(p->stream, p->names, (int)c->paths);
    fputs("<div class=\"charts\">\n", p->stream);
    for (int t = STUDY_TRUTHS; t-- > 0;) {
        snprintf(title, sizeof title, "Drift: error of the residual stream against %s",
                 study_page_against((enum study_truth)t));
        by_layer(p, title, "relative L2", (enum study_truth)t, relative_l2, true, true);
    }
    for (int t = STUDY_TRUTHS; t-- > 0;) {
        snprintf(title, sizeof title, "Injected by each layer, against %s", study_page_against((enum study_truth)t));
        by_layer(p, title, "relative L2", (enum study_truth)t, injected, true, false);
    }
    for (int t = STUDY_TRUTHS; t-- > 0;) {
        snprintf(title, sizeof title, "Tokens whose experts changed, against %s",
                 study_page_against((enum study_truth)t));
        by_layer(p, title, "% of the tokens", (enum study_truth)t, changed, false, false);
    }
    closeness(p);
    ulp_histogram(p, STUDY_QUANTISED);
    ulp_histogram(p, STUDY_ORIGINAL);
    fputs("</div>\n", p->stream);
    for (int t = STUDY_TRUTHS; t-- > 0;)
        summary_table(p, (enum study_truth)t);
    if (c->vocabulary) {
        head_table(p, STUDY_AGAINST_BF16, "bf16 activations, the same weights (bf16.fma32)");
        for (int t = STUDY_TRUTHS; t-- > 0;)
            head_table(p, (enum study_against)t, study_page_against((enum study_truth)t));
    }
    for (int t = STUDY_TRUTHS; t-- > 0;)
        layer_table(p, (enum study_truth)t);
    fputs("</section>\n", p->stream);
}

static enum gb_status html_case(FILE *stream, const struct study_case *c, struct gb_error *error)
{
    struct study_page p = {.stream = stream, .c = c};
    enum gb_status status = study_resamples_new(c->layers, c->seeds, c->shape.tokens, &p.resamples, error);
    if (status != GB_OK)
        return status;
    p.layer = c->model_layer;
    p.line = malloc(sizeof *p.line * 3 * c->layers);
    for (uint32_t i = 0; i < c->paths; i++)
        p.names[i] = c->path[i].name;
    if (p.line)
        write_case(&p);
    else
        status = gb_fail(error, GB_ENOMEM, "no memory for %u layers", c->layers);
    free(p.line);
    study_resamples_free(&p.resamples);
    return status;
}

static void words(FILE *stream)
{
    fputs(
        "<details><summary>What the words mean</summary><ul>\n"
        "<li><b>Path</b>: format of activations, then the order in which dot products are summed. Paths that begin with "
        "<code>bf16</code> leave activations in bf16, as kernels do that decode weights on the fly (warp decode); "
        "the others quantise them before each projection, which is the classical way of grouped GEMMs: MXFP8 and MXFP4 "
        "in blocks of 32, NVFP4 of 16, FP8 and INT8 of 128, or 64 where 128 does not divide. <code>fma32</code> adds "
        "in FP32, <code>mma16-sm90</code> as Hopper's tensor cores do. <code>prereducedN</code>: experts are spread "
        "over N ranks, each of which rounds its partial sum to bf16. Each path routes on its own residual stream.</li>\n"
        "<li><b>Original weights</b>: those before quantisation, so that errors against them are what was lost in all; "
        "against <b>quantised weights</b>, what the kernel's own arithmetic lost.</li>\n"
        "<li><b>Relative L2</b>: the norm of the error over that of the truth, over all tokens. <b>Max bf16 "
        "ulp</b>: how many bf16 numbers lie between; around zero they are dense, and a changed sign is tens of "
        "thousands.</li>\n"
        "<li><b>Injected</b>: the error of a layer that starts from the exact residual stream. <b>Carried</b>: what "
        "came in from the layers before; injected and carried may cancel, and need not add up. Both are relative to the "
        "residual stream. <b>By itself</b>: the error of the layer's output alone, relative to that output, given the "
        "same bf16 input. <b>Error of layer outputs</b> over that of <code>bf16.fma32</code>: the ratio of the errors "
        "by themselves over all layers, each layer's divided by the size of its output; <b>error of the stream</b> "
        "over it: of the residual streams. Layers are counted from 0.</li>\n"
        "<li><b>Changed</b>: tokens that go to another set of experts than in float64. Experts that the router ranks "
        "nearly alike change places at a small error, so that this is no measure of harm. <b>Growth</b>: the error "
        "grows as the number of layers to this power, with its standard error; 0.5 is what independent errors do, 1 "
        "what equal ones do; empty where there are too few layers.</li>\n"
        "<li><b>KL</b>, where <code>--head</code> was given: by how much the distribution of the next token differs, in "
        "the mean over tokens; <b>same top-1</b>: how often the most probable token is the same.</li>\n"
        "<li>Attention is not computed: its share of the residual stream is the captured one on every path, so no "
        "error passes through it.</li>\n"
        "<li><b>95 % interval</b>: over tokens and seeds; it says nothing about other texts or models. Ratios of two "
        "paths are paired, token by token: paths may differ though their own intervals overlap.</li>\n"
        "</ul></details>\n",
        stream);
}

enum gb_status html_study(FILE *stream, const char *name, const struct study *study, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    fputs("<h2>Study: ", stream);
    html_text(stream, name);
    fputs("</h2>\n<p class=\"dim\"><code>", stream);
    html_text(stream, study->command);
    fputs("</code></p>\n", stream);
    words(stream);
    for (uint32_t i = 0; status == GB_OK && i < study->cases; i++) {
        const struct study_case *c = &study->of[i];
        if (c->done == c->seeds * c->layers)
            status = html_case(stream, c, error);
        else
            fprintf(stream, "<p>A case of %u layers is not finished.</p>\n", c->layers);
    }
    return status;
}
