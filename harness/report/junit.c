/* SPDX-License-Identifier: Apache-2.0 */
/* A record as JUnit XML, the form that CI systems show. tests/cli/junit.xsd is its schema. */
#include <math.h>
#include <string.h>

#include "harness/report/html.h"
#include "harness/report/record.h"

static void attribute(FILE *stream, const char *name, const char *value)
{
    fprintf(stream, " %s=\"", name);
    html_text(stream, value);
    fputc('"', stream);
}

/* NaN, of a case that took no time of its own, such as a kernel that does not fit: 0. */
static void time_attribute(FILE *stream, double seconds)
{
    fprintf(stream, " time=\"%.3f\"", isnan(seconds) ? 0.0 : seconds);
}

/* What a test case holds beyond its name and time where it did not pass. */
static void outcome(FILE *stream, const json_t *one)
{
    const char *verdict = record_text(one, "verdict", NULL), *reason = record_text(one, "reason", NULL);
    const char *element = "failure";
    if (!strcmp(verdict, "NOT_RUN") || !strcmp(verdict, "UNSUPPORTED")) {
        fputs("   <skipped message=\"", stream);
        html_text(stream, verdict);
        fputs(": ", stream);
        html_text(stream, reason);
        fputs("\"/>\n", stream);
        return;
    }
    if (!strcmp(verdict, "CRASH") || !strcmp(verdict, "BAD_INPUT"))
        element = "error";
    fprintf(stream, "   <%s", element);
    attribute(stream, "type", verdict);
    attribute(stream, "message", reason);
    fputs(">reproduce: ", stream);
    html_text(stream, record_text(one, "repro", NULL));
    fprintf(stream, "</%s>\n", element);
}

static void test_case(FILE *stream, const json_t *one)
{
    char name[512];
    record_case_name(one, name, sizeof name);
    fputs("  <testcase", stream);
    attribute(stream, "classname", record_text(one, "subject", "name", NULL));
    attribute(stream, "name", name);
    time_attribute(stream, record_number(one, "seconds", NULL));
    fputs(">\n", stream);
    if (strcmp(record_text(one, "verdict", NULL), "PASS"))
        outcome(stream, one);
    fputs("  </testcase>\n", stream);
}

static void property(FILE *stream, const char *name, const char *value)
{
    fputs("   <property", stream);
    attribute(stream, "name", name);
    attribute(stream, "value", value);
    fputs("/>\n", stream);
}

static void properties(FILE *stream, const json_t *record)
{
    static const char *const keys[] = {"version", "commit", "cpu", "system"};
    fputs("  <properties>\n", stream);
    property(stream, "verdict", record_text(record, "verdict", NULL));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        property(stream, keys[i], record_text(record, "environment", keys[i], NULL));
    fputs("  </properties>\n", stream);
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

bool report_junit(FILE *stream, const json_t *record)
{
    const json_t *cases = json_object_get(record, "cases");
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n <testsuite name=\"gaugeblock verify\"", stream);
    fprintf(stream, " tests=\"%zu\" failures=\"%d\" errors=\"%d\" skipped=\"%d\"", json_array_size(cases),
            count_verdicts(cases, "FAIL", "VACUOUS") + count_verdicts(cases, "NONDETERMINISTIC", "NONDETERMINISTIC"),
            count_verdicts(cases, "CRASH", "BAD_INPUT"), count_verdicts(cases, "NOT_RUN", "UNSUPPORTED"));
    time_attribute(stream, record_number(record, "summary", "seconds", NULL));
    fprintf(stream, " timestamp=\"%.19s\" hostname=\"localhost\">\n", record_text(record, "environment", "date", NULL));
    properties(stream, record);
    for (size_t i = 0; i < json_array_size(cases); i++)
        test_case(stream, json_array_get(cases, i));
    fputs("  <system-out>", stream);
    html_text(stream, record_text(record, "summary", "reason", NULL));
    fputs("</system-out>\n  <system-err/>\n </testsuite>\n</testsuites>\n", stream);
    return !ferror(stream);
}
