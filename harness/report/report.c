/* SPDX-License-Identifier: Apache-2.0 */
/* Reports in files: JSON is the record itself; Markdown is drawn from it here, JUnit in junit.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/record.h"
#include "quant/quant.h"

static const char *extension(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && !strchr(dot, '/') ? dot : "";
}

bool report_known(const char *path)
{
    const char *e = extension(path);
    return !strcmp(e, ".json") || !strcmp(e, ".xml") || !strcmp(e, ".md");
}

static bool write_report(FILE *stream, const char *path, const json_t *record)
{
    if (!strcmp(extension(path), ".xml"))
        return report_junit(stream, record);
    if (!strcmp(extension(path), ".md"))
        return report_markdown(stream, record);
    return json_dumpf(record, stream, JSON_INDENT(2)) == 0 && fputc('\n', stream) != EOF;
}

enum gb_status report_write(const char *path, const json_t *record, struct gb_error *error)
{
    return report_write_by(write_report, path, record, error);
}

enum gb_status report_write_by(report_writer *write, const char *path, const json_t *record, struct gb_error *error)
{
    char *text = NULL;
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    bool good = stream && write(stream, path, record);
    if (stream && fclose(stream))
        good = false;
    enum gb_status status =
        good ? gb_file_write(path, text, bytes, error) : gb_fail(error, GB_ENOMEM, "no memory for a report");
    free(text);
    return status;
}

static void markdown_number(FILE *stream, const char *format, double value)
{
    fprintf(stream, " ");
    if (isnan(value))
        fprintf(stream, "-");
    else
        fprintf(stream, format, value);
    fprintf(stream, " |");
}

bool report_markdown(FILE *stream, const json_t *record)
{
    const json_t *cases = json_object_get(record, "cases");
    fprintf(stream, "## gaugeblock verify: %s\n\n", record_text(record, "verdict", NULL));
    for (size_t i = 0; i < json_array_size(cases); i++) {
        char name[512];
        const json_t *one = json_array_get(cases, i);
        const char *next = record_text(one, "next", NULL);
        record_case_name(one, name, sizeof name);
        if (strcmp(record_text(one, "verdict", NULL), "PASS"))
            fprintf(stream, "**%s** %s, %s: %s%s%s\n\n    %s\n\n", record_text(one, "verdict", NULL),
                    record_text(one, "subject", "name", NULL), name, record_text(one, "reason", NULL),
                    next[0] ? ". Next: " : "", next, record_text(one, "repro", NULL));
    }
    fprintf(stream,
            "| subject | case | verdict | bit mismatches | min cosine | max abs | relative L2 | max err/bound |\n"
            "|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        char name[512];
        const json_t *one = json_array_get(cases, i);
        const json_t *truth = json_object_get(
            json_object_get(json_object_get(json_object_get(one, "metrics"), "overall"), "subject_truth"), "quantised");
        record_case_name(one, name, sizeof name);
        fprintf(stream, "| %s | %s | %s |", record_text(one, "subject", "name", NULL), name,
                record_text(one, "verdict", NULL));
        markdown_number(stream, "%.0f", record_number(one, "checks", "bits", "mismatching", NULL));
        markdown_number(stream, "%.9f", record_number(truth, "cosine_min", NULL));
        markdown_number(stream, "%.3e", record_number(truth, "max_abs", NULL));
        markdown_number(stream, "%.3e", record_number(truth, "relative_l2", NULL));
        markdown_number(stream, "%.3f", record_bound_ratio(one));
        fprintf(stream, "\n");
    }
    const char *reason = record_text(record, "summary", "reason", NULL);
    if (reason[0])
        fprintf(stream, "\n%s\n", reason);
    return !ferror(stream);
}
