/* SPDX-License-Identifier: Apache-2.0 */
/* Reports in files: JSON is the record itself, JUnit and Markdown are drawn from it. */
#include <libxml/xmlwriter.h>
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
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    bool good = stream && write(stream, path, record);
    if (stream && fclose(stream))
        good = false;
    enum gb_status status =
        good ? gb_file_write(path, text, bytes, error) : gb_fail(error, GB_ENOMEM, "no memory for a report");
    free(text);
    return status;
}

/* "fixture.h5 batch 8", "fixture.h5 batch 8 route": what tells cases of one subject apart. A file that was refused has
 * no batch. */
static void case_name(const json_t *one, char *text, size_t bytes)
{
    const char *path = record_text(one, "fixture", "path", NULL);
    const char *slash = strrchr(path, '/');
    bool route = !strcmp(record_text(one, "subject", "operator", NULL), "route");
    double batch = record_number(one, "batch", NULL);
    size_t used = (size_t)snprintf(text, bytes, "%.400s", slash ? slash + 1 : path);
    if (batch > 0)
        snprintf(text + used, bytes - used, " batch %.0f%s", batch, route ? " route" : "");
}

static int count_verdicts(const json_t *cases, const char *a, const char *b)
{
    int count = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const char *v = record_text(json_array_get(cases, i), "verdict", NULL);
        count += !strcmp(v, a) || !strcmp(v, b);
    }
    return count;
}

/* NaN, of a case that took no time of its own, such as a kernel that does not fit: 0. */
static void junit_time(xmlTextWriterPtr w, double seconds)
{
    xmlTextWriterWriteFormatAttribute(w, BAD_CAST "time", "%.3f", isnan(seconds) ? 0.0 : seconds);
}

static void junit_case(xmlTextWriterPtr w, const json_t *one)
{
    char name[512];
    const char *verdict = record_text(one, "verdict", NULL), *reason = record_text(one, "reason", NULL);
    bool skipped = !strcmp(verdict, "NOT_RUN") || !strcmp(verdict, "UNSUPPORTED");
    bool error = !strcmp(verdict, "CRASH") || !strcmp(verdict, "BAD_INPUT");
    case_name(one, name, sizeof name);
    xmlTextWriterStartElement(w, BAD_CAST "testcase");
    xmlTextWriterWriteAttribute(w, BAD_CAST "classname", BAD_CAST record_text(one, "subject", "name", NULL));
    xmlTextWriterWriteAttribute(w, BAD_CAST "name", BAD_CAST name);
    junit_time(w, record_number(one, "seconds", NULL));
    if (skipped) {
        xmlTextWriterStartElement(w, BAD_CAST "skipped");
        xmlTextWriterWriteFormatAttribute(w, BAD_CAST "message", "%s: %s", verdict, reason);
        xmlTextWriterEndElement(w);
    } else if (strcmp(verdict, "PASS")) {
        xmlTextWriterStartElement(w, BAD_CAST(error ? "error" : "failure"));
        xmlTextWriterWriteAttribute(w, BAD_CAST "type", BAD_CAST verdict);
        xmlTextWriterWriteAttribute(w, BAD_CAST "message", BAD_CAST reason);
        xmlTextWriterWriteFormatString(w, "reproduce: %s", record_text(one, "repro", NULL));
        xmlTextWriterEndElement(w);
    }
    xmlTextWriterEndElement(w);
}

static void junit_property(xmlTextWriterPtr w, const char *name, const char *value)
{
    xmlTextWriterStartElement(w, BAD_CAST "property");
    xmlTextWriterWriteAttribute(w, BAD_CAST "name", BAD_CAST name);
    xmlTextWriterWriteAttribute(w, BAD_CAST "value", BAD_CAST value);
    xmlTextWriterEndElement(w);
}

static void junit_properties(xmlTextWriterPtr w, const json_t *record)
{
    static const char *const keys[] = {"version", "commit", "cpu", "system"};
    xmlTextWriterStartElement(w, BAD_CAST "properties");
    junit_property(w, "verdict", record_text(record, "verdict", NULL));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        junit_property(w, keys[i], record_text(record, "environment", keys[i], NULL));
    xmlTextWriterEndElement(w);
}

bool report_junit(FILE *stream, const json_t *record)
{
    xmlBufferPtr buffer = xmlBufferCreate();
    xmlTextWriterPtr w = buffer ? xmlNewTextWriterMemory(buffer, 0) : NULL;
    if (!w)
        return false;
    const json_t *cases = json_object_get(record, "cases");
    xmlTextWriterSetIndent(w, 1);
    xmlTextWriterStartDocument(w, NULL, "UTF-8", NULL);
    xmlTextWriterStartElement(w, BAD_CAST "testsuites");
    xmlTextWriterStartElement(w, BAD_CAST "testsuite");
    xmlTextWriterWriteAttribute(w, BAD_CAST "name", BAD_CAST "gaugeblock verify");
    xmlTextWriterWriteFormatAttribute(w, BAD_CAST "tests", "%zu", json_array_size(cases));
    xmlTextWriterWriteFormatAttribute(w, BAD_CAST "failures", "%d",
                                      count_verdicts(cases, "FAIL", "VACUOUS") +
                                          count_verdicts(cases, "NONDETERMINISTIC", "NONDETERMINISTIC"));
    xmlTextWriterWriteFormatAttribute(w, BAD_CAST "errors", "%d", count_verdicts(cases, "CRASH", "BAD_INPUT"));
    xmlTextWriterWriteFormatAttribute(w, BAD_CAST "skipped", "%d", count_verdicts(cases, "NOT_RUN", "UNSUPPORTED"));
    junit_time(w, record_number(record, "summary", "seconds", NULL));
    xmlTextWriterWriteFormatAttribute(w, BAD_CAST "timestamp", "%.19s",
                                      record_text(record, "environment", "date", NULL));
    xmlTextWriterWriteAttribute(w, BAD_CAST "hostname", BAD_CAST "localhost");
    junit_properties(w, record);
    for (size_t i = 0; i < json_array_size(cases); i++)
        junit_case(w, json_array_get(cases, i));
    xmlTextWriterWriteElement(w, BAD_CAST "system-out", BAD_CAST record_text(record, "summary", "reason", NULL));
    xmlTextWriterWriteElement(w, BAD_CAST "system-err", BAD_CAST "");
    xmlTextWriterEndDocument(w);
    xmlFreeTextWriter(w);
    bool good =
        fwrite(xmlBufferContent(buffer), 1, (size_t)xmlBufferLength(buffer), stream) == (size_t)xmlBufferLength(buffer);
    xmlBufferFree(buffer);
    return good;
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
        case_name(one, name, sizeof name);
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
        case_name(one, name, sizeof name);
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
