/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Charts, read back from their SVG: which ticks an axis has, and that ticks, points, bands, intervals and rules lie
 * where their values are, in a field from 46 (128 with rows) to 348 across and from 8 to 34 above the foot. The records
 * of records.json in every form, against what tests/harness/kept holds.
 */
#include "harness/report/bench_report.h"
#include "harness/report/html.h"
#include "harness/report/power_report.h"
#include "harness/report/record.h"
#include "harness/report/to_json.h"

#include "tests/support/check.h"
#include "tests/support/kept_explanation.h"

static char *text;
static size_t length;

static void begin(struct html_chart *c)
{
    c->stream = open_memstream(&text, &length);
    assert_non_null(c->stream);
}

static void end(struct html_chart *c)
{
    html_chart_end(c);
    assert_int_equal(fclose(c->stream), 0);
}

static void says(const char *what)
{
    if (!strstr(text, what))
        fail_msg("no %s in\n%s", what, text);
}

/* Where v lies between from, drawn at `first`, and to, drawn at `last`. */
static double place(double v, double from, double to, bool logarithmic, double first, double last)
{
    double share = logarithmic ? (log10(v) - log10(from)) / (log10(to) - log10(from)) : (v - from) / (to - from);
    return first + fmin(fmax(share, 0.0), 1.0) * (last - first);
}

/* The ticks of the x axis, or of y, are these and no others, each at its place. */
static void check_ticks(const struct html_chart *c, bool along_y, const double *ticks, int count)
{
    int found = 0;
    const char *mark = along_y ? "<path class=\"grid\" d=\"M46 " : "<path class=\"grid\" d=\"M";
    for (const char *at = text; (at = strstr(at, mark)); at++) {
        double where, value;
        const char *behind = strchr(at, '>');
        bool is_y = strchr(at, 'H') && strchr(at, 'H') < behind;
        if (is_y != along_y)
            continue;
        assert_int_equal(sscanf(at + strlen(mark), "%lf", &where), 1);
        behind = strchr(strstr(at, "<text"), '>') + 1;
        assert_int_equal(sscanf(behind, "%lf", &value), 1);
        if (found >= count || fabs(value - ticks[found]) > 1e-9 * fabs(ticks[found]))
            fail_msg("tick %d is %g, not %g", found, value, found < count ? ticks[found] : (double)NAN);
        double right = along_y ? place(value, c->y0, c->y1, c->log_y, c->height - 34, 8)
                               : place(value, c->x0, c->x1, c->log_x, 46, 348);
        if (fabs(where - right) > 0.051)
            fail_msg("tick %g is at %g, not %g", value, where, right);
        found++;
    }
    assert_int_equal(found, count);
}

#define COUNT(array) (int)(sizeof(array) / sizeof *(array))

static void axes_have_round_ticks(void **state)
{
    static const struct {
        double from, to;
        bool logarithmic, whole;
        double ticks[12];
        int count;
    } cases[] = {
        {0, 3, false, true, {0, 1, 2, 3}, 4},
        {0, 2, false, true, {0, 1, 2}, 3},
        {0, 2, false, false, {0, 0.5, 1, 1.5, 2}, 5},
        {0, 47, false, true, {0, 10, 20, 30, 40}, 5},
        {0.5, 6.5, false, false, {1, 2, 3, 4, 5, 6}, 6},
        {-1, 1, false, false, {-1, -0.5, 0, 0.5, 1}, 5},
        {0, 1, false, false, {0, 0.2, 0.4, 0.6, 0.8, 1}, 6},
        {1e-3, 1, true, false, {1e-3, 1e-2, 0.1, 1}, 4},
        {0.01, 1, true, false, {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1}, 7},
        {1.5, 5, true, false, {2, 3, 4, 5}, 4},
        {2e-5, 3e-4, true, false, {2e-5, 5e-5, 1e-4, 2e-4}, 4},
    };
    (void)state;
    for (int i = 0; i < COUNT(cases); i++)
        for (int along_y = 0; along_y < (cases[i].whole ? 1 : 2); along_y++) {
            struct html_chart c = {.x1 = 1, .y1 = 1, .height = 200, .whole_x = cases[i].whole};
            *(along_y ? &c.y0 : &c.x0) = cases[i].from;
            *(along_y ? &c.y1 : &c.x1) = cases[i].to;
            *(along_y ? &c.log_y : &c.log_x) = cases[i].logarithmic;
            begin(&c);
            html_chart_begin(&c, "a < b", "across", "up & down");
            end(&c);
            check_ticks(&c, along_y, cases[i].ticks, cases[i].count);
            says("<figcaption>a &lt; b</figcaption>");
            says(">across</text>");
            says(">up &amp; down</text>");
            says("d=\"M46.0 8V166.0H348\"/>");
            free(text);
        }
}

static void points_lie_where_their_values_are(void **state)
{
    const double x[] = {1, 10, 100, 1000, 5000}, y[] = {0.5, NAN, 2, 1, 9}, low[] = {0, 0, 1, 0, 2},
                 high[] = {1, 2, 3, 2, 4};
    struct html_chart c = {.x0 = 1, .x1 = 1000, .y0 = 0, .y1 = 4, .log_x = true, .height = 142};
    (void)state;
    begin(&c);
    html_chart_line(&c, 9, "a & b", x, y, 5);
    html_chart_band(&c, 2, x, low, high, 4);
    html_chart_rule(&c, 100);
    end(&c);
    /* 100 units high: a 25th of a unit for a hundredth; the last point is beyond both ends. */
    says(
        "stroke=\"var(--s1)\" stroke-width=\"1.6\" stroke-dasharray=\"4 2\" d=\"M46.0 95.5M247.3 58.0L348.0 83.0L348.0 8.0\"");
    says("<circle cx=\"247.3\" cy=\"58.0\" r=\"2.4\" fill=\"var(--s1)\"><title>a &amp; b, 100: 2</title></circle>");
    assert_null(strstr(text, "a &amp; b, 10: "));
    says(
        "fill=\"var(--s2)\" fill-opacity=\".18\" d=\"M46.0 83.0L146.7 58.0L247.3 33.0L348.0 58.0L348.0 108.0L247.3 83.0"
        "L146.7 108.0L46.0 108.0Z\"");
    says("<path class=\"axis\" d=\"M247.3 8V108.0\"/>");
    free(text);
    begin(&c);
    html_chart_band(&c, 2, x, low, y, 4); /* not of numbers alone */
    end(&c);
    assert_null(strstr(text, "fill-opacity"));
    free(text);
}

static void rows_have_intervals(void **state)
{
    static const char *const rows[] = {"first", "second < third", "last"};
    struct html_chart c = {.x0 = 0, .x1 = 2, .y1 = 1, .height = 132, .rows = rows, .row_count = 3};
    (void)state;
    begin(&c);
    html_chart_begin(&c, "rows", "ratio", NULL);
    html_chart_interval(&c, 0, 1, "one", 1, 0.5, 1.5);
    html_chart_interval(&c, 3, 2.25, "other", 0.5, (double)NAN, 1);
    html_chart_interval(&c, 3, 0, "none", (double)NAN, 0, 1);
    end(&c);
    /* Rows of 30 units: in the middle of each. */
    says("<path class=\"grid\" d=\"M128.0 23.0H348\"/><text x=\"124.0\" y=\"26.5\" text-anchor=\"end\">first</text>");
    says("y=\"56.5\" text-anchor=\"end\">second &lt; third</text>");
    says("y=\"86.5\" text-anchor=\"end\">last</text>");
    says(
        "<path stroke=\"var(--s0)\" stroke-width=\"1.6\" d=\"M183.0 53.0H293.0\"/><circle cx=\"238.0\" cy=\"53.0\" r=\"3\" "
        "fill=\"var(--s0)\"><title>one: 1 (0.5 to 1.5)</title></circle>");
    says("</circle>\n<circle cx=\"183.0\" cy=\"90.5\" r=\"3\" fill=\"var(--s3)\"><title>other: 0.5</title></circle>");
    assert_null(strstr(text, "none"));
    says(">0.5</text>");
    free(text);
}

static void legends_name_series(void **state)
{
    static const char *const names[] = {"bf16", "a & b"};
    FILE *stream = open_memstream(&text, &length);
    (void)state;
    html_legend(stream, names, 2);
    assert_int_equal(fclose(stream), 0);
    says("stroke=\"var(--s0)\" stroke-width=\"2\" stroke-dasharray=\"\"");
    says(
        "stroke-dasharray=\"4 2\" d=\"M0 5H30\"/><circle cx=\"15\" cy=\"5\" r=\"3\" fill=\"var(--s1)\"/></svg>a &amp; b</li></ul>");
    free(text);
}

/* What follows from times: the line that they grow by, tables, charts. */
static void tell_times(FILE *stream, const json_t *record)
{
    json_t *grown = json_deep_copy(record);
    bench_growth(grown);
    json_dumpf(json_object_get(grown, "growth"), stream, JSON_REAL_PRECISION(9));
    fputs("\n", stream);
    bench_table(stream, grown);
    fprintf(stream, "%d\n", svg_bench(stream, grown));
    html_bench(stream, grown);
    json_decref(grown);
}

/* Samples as figures: of an odd and an even number, of copies and reads, in and beyond the cache. */
static void times_are_told(void **state)
{
    struct timing t = {.copies = 3,
                       .runs = 4,
                       .launches = 2,
                       .weights = 7000,
                       .bytes = 2000,
                       .cache_bytes = 6000,
                       .large_bytes = 90000,
                       .prepare_s = 0.125};
    (void)state;
    for (t.samples = 4; t.samples <= 5; t.samples++) {
        const bool odd = t.samples % 2;
        for (uint32_t i = 0; i < t.samples; i++)
            t.sample[i] =
                (struct timing_sample){1e-3 * ((i * 3) % 5 + 1.5), 1e-4 * ((i * 2) % 5 + 2), 1e-2 * (i % 3 + 1)};
        t.cache_bytes -= odd;
        json_t *timing = timing_to_json(&t, odd);
        char *dumped = json_dumps(timing, JSON_REAL_PRECISION(9) | JSON_INDENT(0));
        assert_non_null(dumped);
        kept_text(dumped);
        kept_text("\n");
        free(dumped);
        json_decref(timing);
    }
}

/* Of cases of every verdict, of what decides it and of each operator: for people, Markdown, JUnit; pages of others. */
static void records_are_told(void **state)
{
    json_error_t where;
    json_t *records = json_load_file(GB_SOURCE_DIR "/tests/harness/records.json", 0, &where), *one;
    size_t i;
    (void)state;
    if (!records)
        fail_msg("line %d: %s", where.line, where.text);
    json_array_foreach(records, i, one)
    {
        const json_t *record = json_object_get(one, "record"), *bench = json_object_get(record, "bench");
        FILE *stream = open_memstream(&text, &length);
        assert_non_null(stream);
        fprintf(stream, "= %s\n", json_string_value(json_object_get(one, "name")));
        if (bench) {
            tell_times(stream, record);
        } else {
            report_table(stream, record, false);
            fprintf(stream, "= all figures\n");
            report_table(stream, record, true);
            assert_true(report_markdown(stream, record));
            assert_true(report_junit(stream, record));
        }
        if (!bench && strcmp(record_text(record, "schema", NULL), RECORD_SCHEMA))
            html_record(stream, "a & b", record);
        assert_int_equal(fclose(stream), 0);
        kept_text(text);
        free(text);
    }
    json_decref(records);
    expect_kept_explanations("test_report");
}

static void add_time(json_t *cases, const char *subject, const char *weights, double bytes, double us)
{
    json_t *one = json_pack("{s:{s:s}, s:{s:s}}", "subject", "name", subject, "fixture", "weights", weights);
    if (us > 0.0)
        json_object_set_new(one, "timing", json_pack("{s:f, s:{s:f}}", "bytes", bytes, "us", "median", us));
    json_array_append_new(cases, one);
}

/* A line through the times of each subject on each format, from three amounts of bytes on: of 5 us and 0.1 GB/s, or
 * with times a tenth beside it. */
static void lines_of_growth(void **state)
{
    (void)state;
    static const char *const names[] = {"two", "three", "again", "beside"};
    static const double bytes[] = {100, 100, 100, 300, 300, 700, 1500};
    enum { TIMES = sizeof bytes / sizeof *bytes };
    json_t *record = json_pack("{s:[]}", "cases"), *cases = json_object_get(record, "cases");
    for (int i = 0; i < TIMES; i++) {
        const double us = 5.0 + 0.01 * bytes[i];
        if (i < 5)
            add_time(cases, names[0], "nvfp4", bytes[i], us);
        if (i > 3)
            add_time(cases, names[1], "mxfp8", bytes[i], us);
        if (i < 6)
            add_time(cases, names[2], "nvfp4", bytes[i], us);
        add_time(cases, names[2], "bf16", bytes[i], i == 1 ? 0.0 : 2.0 * us); /* one that failed has none */
        add_time(cases, names[3], "nvfp4", bytes[i], i % 3 ? us : 1.1 * us);
    }
    bench_growth(record);
    const json_t *growth = json_object_get(record, "growth");
    static const struct {
        int name;
        const char *weights;
        int times;
        double fixed, rate;
    } right[] = {
        {2, "nvfp4", 6, 5.0, 0.1}, {2, "bf16", 6, 10.0, 0.05}, {3, "nvfp4", 7, NAN, NAN}, {1, "mxfp8", 3, 5.0, 0.1}};
    assert_int_equal(json_array_size(growth), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *line = json_array_get(growth, i);
        const double fixed = record_number(line, "fixed_us", NULL), rate = record_number(line, "gb_per_s", NULL);
        double largest = 0.0;
        assert_string_equal(record_text(line, "subject", NULL), names[right[i].name]);
        assert_string_equal(record_text(line, "weights", NULL), right[i].weights);
        assert_int_equal((int)record_number(line, "times", NULL), right[i].times);
        if (!isnan(right[i].fixed))
            assert_true(fabs(fixed - right[i].fixed) < 1e-9 && fabs(rate - right[i].rate) < 1e-12);
        for (int n = 0; isnan(right[i].fixed) && n < TIMES; n++) {
            const double us = (n % 3 ? 1.0 : 1.1) * (5.0 + 0.01 * bytes[n]);
            largest = fmax(largest, fabs((fixed + 1e-3 * bytes[n] / rate) / us - 1.0));
        }
        assert_true(fabs(record_number(line, "largest_deviation", NULL) - largest) < 1e-9);
    }
    json_decref(record);
}

/* Of each part's list of bugs a table, which says what saw a bug, and whether less of it is wrong with silu open; a
 * list that is empty has none, nor has what is called otherwise. */
static void bugs_of_parts_are_told(void **state)
{
    (void)state;
    static const struct {
        const char *name, *caught, *open; /* open: NULL: not asked */
        int tokens, rows;
        const char *says;
    } bugs[] = {{"two checks", "[\"ids\", \"weights\"]", NULL, 3, 0, "ids, weights"},
                {"rows alone", "[\"ids\"]", NULL, 0, 1, "ids"},
                {"no effect", "[]", NULL, 0, 0, "no effect on this fixture"},
                {"no effect, open", "[]", "[]", 0, 0, "no effect on this fixture"},
                {"unseen", "[]", NULL, 2, 1, "NOT CAUGHT"},
                {"unseen, open", "[]", "[]", 2, 1, "NOT CAUGHT"},
                {"seen", "[\"codes\"]", "[\"codes\"]", 2, 1, "codes"},
                {"seen, but not open", "[\"codes\"]", "[]", 2, 1, "codes; admissible with --open-silu"}};
    enum { BUGS = sizeof bugs / sizeof *bugs };
    json_t *record = json_loads("{\"policies\": [{\"name\": \"default\"}], \"y_bugs\": [], \"x_bugs\": []}", 0, NULL);
    for (int i = 0; i < BUGS; i++) {
        json_t *one =
            json_pack("{s:s, s:s, s:i, s:i, s:o}", "name", bugs[i].name, "modelled_on", "a model", "changed_tokens",
                      bugs[i].tokens, "changed_rows", bugs[i].rows, "caught_by", json_loads(bugs[i].caught, 0, NULL));
        if (bugs[i].open)
            json_object_set_new(one, "caught_with_open_silu", json_loads(bugs[i].open, 0, NULL));
        json_array_append_new(json_object_get(record, "x_bugs"), one);
    }
    static const char *const others[] = {"_bugs", "bugs", "z_bugs_of", "z_rugs", "injected_bugs"};
    for (int i = 0; i < 5; i++)
        json_object_set_new(record, others[i], json_loads("[{\"name\": \"other\", \"changed_tokens\": 9}]", 0, NULL));
    for (int markdown = 0; markdown < 2; markdown++) {
        FILE *stream = open_memstream(&text, &length);
        assert_non_null(stream);
        (markdown ? power_markdown : power_table)(stream, record);
        assert_int_equal(fclose(stream), 0);
        says(markdown
                 ? "\n| injected bug of the x | modelled on | changed tokens | changed rows | caught by |\n"
                   "|---|---|---|---|---|\n"
                 : "\ninjected bug of the x                                          changed tokens   changed rows  "
                   "caught by\n");
        for (int i = 0; i < BUGS; i++) {
            char line[256];
            snprintf(line, sizeof line, markdown ? "\n| %s | a model | %d | %d | %s |\n" : "\n%-62s %14d %14d  %s\n",
                     bugs[i].name, bugs[i].tokens, bugs[i].rows, bugs[i].says);
            says(line);
        }
        const char *table = strstr(text, "injected bug of the ");
        assert_null(strstr(table + 1, "injected bug of the "));
        free(text);
    }
    json_decref(record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axes_have_round_ticks), cmocka_unit_test(points_lie_where_their_values_are),
        cmocka_unit_test(rows_have_intervals),   cmocka_unit_test(legends_name_series),
        cmocka_unit_test(times_are_told),        cmocka_unit_test(records_are_told),
        cmocka_unit_test(lines_of_growth),       cmocka_unit_test(bugs_of_parts_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
