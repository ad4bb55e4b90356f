/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/report/study_report.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* What errors are against, for people. */
static const char *against(enum study_truth truth)
{
    return truth == STUDY_QUANTISED ? "the quantised weights" : "the original weights";
}

/* A table, as text in columns or as Markdown. */
struct table {
    FILE *stream;
    bool markdown;
    int columns;
    int width[10];
};

static void markdown_cell(FILE *stream, const char *text)
{
    fputs("| ", stream);
    for (; *text; text++)
        fprintf(stream, *text == '|' ? "\\%c" : "%c", *text);
    fputs(" ", stream);
}

/* One row: cells of this format, separated by tabs; header: a line follows. A bar in a cell is none of Markdown's. */
__attribute__((format(printf, 3, 4))) static void row(const struct table *t, bool header, const char *format, ...)
{
    char line[512], *at = line;
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    for (int i = 0; i < t->columns && at; i++) {
        char *end = strchr(at, '\t');
        if (end)
            *end = '\0';
        if (t->markdown)
            markdown_cell(t->stream, at);
        else
            fprintf(t->stream, i ? "  %*s" : "  %-*s", t->width[i], at);
        at = end ? end + 1 : NULL;
    }
    fputs(t->markdown ? "|\n" : "\n", t->stream);
    for (int i = 0; header && t->markdown && i < t->columns; i++)
        fputs(i ? "|---:" : "|---", t->stream);
    if (header && t->markdown)
        fputs("|\n", t->stream);
}

static void heading(FILE *stream, bool markdown, const struct study_case *c)
{
    fprintf(stream, "%s%s, %s weights: %u layers, %u tokens", markdown ? "\n## " : "\n", c->name, c->weights, c->layers,
            c->shape.tokens);
    if (c->seeds > 1)
        fprintf(stream, " of each of %u seeds", c->seeds);
    if (c->outlier_factor != 1.0)
        fprintf(stream, ", outlier channels %g times", c->outlier_factor);
    if (c->routing_skew != 1.0)
        fprintf(stream, ", routing skew %g", c->routing_skew);
    fputs(markdown ? "\n\n" : "\n", stream);
}

static void drift_table(FILE *stream, bool markdown, const struct study_case *c, const struct study_resamples *r,
                        enum study_truth truth)
{
    const struct table t = {stream, markdown, 9, {24, 30, 12, 8, 8, 9, 16, 9, 9}};
    uint32_t last = c->layers - 1;
    fprintf(stream, "%s%s: residual stream after layer %.0f vs float64, open loop%s\n", markdown ? "" : "  ",
            against(truth), c->model_layer[last], markdown ? "\n" : "");
    row(&t, true,
        "path\trelative L2, 95 %% interval\tmin cosine\tSQNR, dB\tmax ulp\tchanged\tgrowth exponent\tinjected\tcarried");
    for (uint32_t p = 0; p < c->paths; p++) {
        struct study_figures f = study_figures_of(c, STUDY_OPEN_LOOP, truth, last, p);
        struct study_interval i = study_relative_l2(c, r, STUDY_OPEN_LOOP, truth, last, p);
        struct study_growth g = study_growth_of(c, r, truth, p);
        char growth[48] = "-", text[STUDY_INTERVAL_TEXT];
        if (!isnan(g.exponent.value))
            snprintf(growth, sizeof growth, "%.2f +- %.2f", g.exponent.value, g.error);
        row(&t, false, "%s\t%.3e  %s\t%.8f\t%.1f\t%.0f\t%.0f of %u\t%s\t%.2e\t%.2e", c->path[p].name, i.value,
            study_interval_text(i, 1.0, "%.2e .. %.2e", text), f.cosine_min, f.sqnr_db, f.max_ulp, f.changed,
            c->samples, growth, f.injected, f.carried);
    }
    fputc('\n', stream);
}

/* Relative L2 of every layer: a row a layer where they are few. */
static void layer_table(FILE *stream, bool markdown, const struct study_case *c, enum study_truth truth)
{
    enum { ROWS = 12 };
    const struct table t = {stream, markdown, 7, {24, 7, 12, 12, 12, 16, 12}};
    uint32_t step = (c->layers + ROWS - 1) / ROWS;
    fprintf(stream, "%s%s: by layer%s\n", markdown ? "" : "  ", against(truth), markdown ? "\n" : "");
    row(&t, true, "path\tlayer\topen loop\tinjected\tcarried\tlayer by itself\tchanged");
    for (uint32_t p = 0; p < c->paths; p++)
        for (uint32_t l = 0; l < c->layers; l++) {
            if (l % step && l + 1 < c->layers)
                continue;
            struct study_figures f = study_figures_of(c, STUDY_OPEN_LOOP, truth, l, p);
            struct study_figures alone = study_figures_of(c, STUDY_LAYER, truth, l, p);
            row(&t, false, "%s\t%.0f\t%.3e\t%.3e\t%.3e\t%.3e\t%.0f", c->path[p].name, c->model_layer[l], f.relative_l2,
                f.injected, f.carried, alone.relative_l2, f.changed);
        }
    fputc('\n', stream);
}

/* Logits of every path against those of both truths and of bf16.fma32. */
static void head_table(FILE *stream, bool markdown, const struct study_case *c, const struct study_resamples *r)
{
    static const char *const against_whom[] = {"the quantised weights in float64", "the original weights in float64",
                                               "bf16.fma32"};
    const struct table t = {stream, markdown, 5, {24, 12, 24, 12, 20}};
    for (int a = STUDY_AGAINST; a-- > 0;) {
        fprintf(stream, "%slogits of %u words vs %s\n%s", markdown ? "" : "  ", c->vocabulary, against_whom[a],
                markdown ? "\n" : "");
        row(&t, true, "path\tKL, nats\t95 %% interval\tsame top-1\t95 %% interval");
        for (uint32_t p = a == STUDY_AGAINST_BF16; p < c->paths; p++) {
            struct study_interval kl = study_mean_kl(c, r, (enum study_against)a, p),
                                  top = study_top_agreement(c, (enum study_against)a, p);
            char text[STUDY_INTERVAL_TEXT];
            row(&t, false, "%s\t%.3e\t%s\t%.1f %%\t%.1f .. %.1f %%", c->path[p].name, kl.value,
                study_interval_text(kl, 1.0, "%.2e .. %.2e", text), 100.0 * top.value, 100.0 * top.low,
                100.0 * top.high);
        }
        fputc('\n', stream);
    }
}

/* A ratio, or a very small one. */
static const char *ratio_text(double ratio, char text[16])
{
    snprintf(text, 16, ratio < 0.01 ? "%.2e" : "%.3f", ratio);
    return text;
}

static void closeness_rows(const struct table *t, const struct study_case *c, const struct study_resamples *r)
{
    for (uint32_t p = 1; p < c->paths; p++)
        for (int truth = 0; truth < STUDY_TRUTHS; truth++) {
            double low = INFINITY, high = 0.0;
            struct study_interval i = study_closeness(c, r, (enum study_truth)truth, p, c->layers);
            for (uint32_t l = 0; l < c->layers; l++) {
                double one = study_closeness(c, r, (enum study_truth)truth, p, l).value;
                low = one < low ? one : low;
                high = one > high ? one : high;
            }
            char text[3][16], interval[STUDY_INTERVAL_TEXT];
            const char *format = i.low < 0.01 ? "%.2e .. %.2e" : "%.3f .. %.3f";
            row(t, false, "%s\t%s\t%s\t%s\t%s\t%s\t%s .. %s", c->name, c->weights, c->path[p].name,
                study_truth_name((enum study_truth)truth), ratio_text(i.value, text[0]),
                study_interval_text(i, 1.0, format, interval), ratio_text(low, text[1]), ratio_text(high, text[2]));
        }
}

static enum gb_status print_case(FILE *stream, const struct study *study, const struct study_case *c, bool markdown,
                                 const struct table *closeness, struct gb_error *error)
{
    struct study_resamples r;
    enum gb_status status = study_resamples_new(c->layers, c->seeds, c->shape.tokens, &r, error);
    if (status != GB_OK)
        return status;
    if (!strcmp(study->kind, "closeness")) {
        closeness_rows(closeness, c, &r);
    } else {
        heading(stream, markdown, c);
        for (int t = 0; t < STUDY_TRUTHS; t++) {
            drift_table(stream, markdown, c, &r, (enum study_truth)t);
            layer_table(stream, markdown, c, (enum study_truth)t);
        }
        if (c->vocabulary)
            head_table(stream, markdown, c, &r);
    }
    study_resamples_free(&r);
    return GB_OK;
}

enum gb_status study_print(FILE *stream, const struct study *study, bool markdown, struct gb_error *error)
{
    const struct table closeness = {stream, markdown, 7, {22, 7, 24, 9, 8, 18, 18}};
    enum gb_status status = GB_OK;
    if (!strcmp(study->kind, "closeness"))
        row(&closeness, true, "model\tweights\tpath\ttruth\tratio\t95 %% interval\tby layer");
    for (uint32_t i = 0; status == GB_OK && i < study->cases; i++)
        if (study->of[i].done == study->of[i].seeds * study->of[i].layers)
            status = print_case(stream, study, &study->of[i], markdown, &closeness, error);
    return status;
}

/* A field of comma-separated values, in quotes: a shape, which has commas, or the name of a file. */
static void quoted(FILE *stream, const char *text)
{
    fputc('"', stream);
    for (; *text; text++) {
        fputc(*text, stream);
        if (*text == '"')
            fputc('"', stream);
    }
    fputc('"', stream);
}

/* One figure; what is not a number is left out. */
static void line(FILE *stream, uint32_t index, const struct study_case *c, const char *where, uint32_t layer,
                 uint32_t path, const char *name, struct study_interval i)
{
    if (isnan(i.value))
        return;
    fprintf(stream, "%u,", index);
    quoted(stream, c->name);
    fprintf(stream, ",%s,%s,", c->weights, where);
    if (layer < c->layers)
        fprintf(stream, "%.0f", c->model_layer[layer]);
    fprintf(stream, ",%s,%s,%.9g,", c->path[path].name, name, i.value);
    if (!isnan(i.low))
        fprintf(stream, "%.9g,%.9g\n", i.low, i.high);
    else
        fprintf(stream, ",\n");
}

static struct study_interval bare(double value)
{
    return (struct study_interval){value, (double)NAN, (double)NAN};
}

static void csv_path(FILE *stream, uint32_t index, const struct study_case *c, const struct study_resamples *r,
                     enum study_mode mode, enum study_truth truth, uint32_t path)
{
    char where[48];
    snprintf(where, sizeof where, "%s,%s", study_mode_name(mode), study_truth_name(truth));
    for (uint32_t l = 0; l < c->layers; l++) {
        struct study_figures f = study_figures_of(c, mode, truth, l, path);
        const struct {
            const char *name;
            double value;
        } all[] = {{"cosine", f.cosine},     {"cosine_min", f.cosine_min}, {"sqnr_db", f.sqnr_db},
                   {"max_abs", f.max_abs},   {"max_bf16_ulp", f.max_ulp},  {"changed_tokens", f.changed},
                   {"injected", f.injected}, {"carried", f.carried}};
        line(stream, index, c, where, l, path, "relative_l2", study_relative_l2(c, r, mode, truth, l, path));
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            line(stream, index, c, where, l, path, all[k].name, bare(all[k].value));
        if (mode == STUDY_LAYER && path)
            line(stream, index, c, where, l, path, "closeness", study_closeness(c, r, truth, path, l));
    }
    if (mode == STUDY_LAYER && path)
        line(stream, index, c, where, c->layers, path, "closeness", study_closeness(c, r, truth, path, c->layers));
    if (mode == STUDY_OPEN_LOOP)
        line(stream, index, c, where, c->layers, path, "growth_exponent", study_growth_of(c, r, truth, path).exponent);
}

/* Of every path and what its logits are compared with. */
static void csv_head(FILE *stream, uint32_t index, const struct study_case *c, const struct study_resamples *r)
{
    char where[48];
    for (int a = 0; c->vocabulary && a < STUDY_AGAINST; a++) {
        snprintf(where, sizeof where, "head,%s", study_against_name((enum study_against)a));
        for (uint32_t p = 0; p < c->paths; p++) {
            line(stream, index, c, where, c->layers, p, "kl_nats", study_mean_kl(c, r, (enum study_against)a, p));
            line(stream, index, c, where, c->layers, p, "top_agreement",
                 study_top_agreement(c, (enum study_against)a, p));
        }
    }
}

enum gb_status study_csv(FILE *stream, const struct study *study, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    fprintf(stream, "case,model,weights,mode,truth,layer,path,figure,value,low,high\n");
    for (uint32_t i = 0; status == GB_OK && i < study->cases; i++) {
        const struct study_case *c = &study->of[i];
        struct study_resamples r;
        if (c->done < c->seeds * c->layers)
            continue;
        status = study_resamples_new(c->layers, c->seeds, c->shape.tokens, &r, error);
        for (int m = 0; status == GB_OK && m < STUDY_MODES; m++)
            for (int t = 0; t < STUDY_TRUTHS; t++)
                for (uint32_t p = 0; p < c->paths; p++)
                    csv_path(stream, i, c, &r, (enum study_mode)m, (enum study_truth)t, p);
        if (status == GB_OK)
            csv_head(stream, i, c, &r);
        if (status == GB_OK)
            study_resamples_free(&r);
    }
    return status;
}
