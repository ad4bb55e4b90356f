/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/report/power_report.h"
#include "harness/report/record.h"

/* "codes, down" of a list of checks; "" if nothing saw a fault. */
static const char *listed(const json_t *checks, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < json_array_size(checks) && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? ", " : "",
                                 json_string_value(json_array_get(checks, i)));
    return text;
}

/* What one policy saw of a fault. */
static const char *joined(const json_t *fault, const char *policy, char *text, size_t bytes)
{
    return listed(json_object_get(json_object_get(fault, "caught_by"), policy), text, bytes);
}

/* A number, or a dash where there is none. */
static const char *number(const json_t *object, const char *key, char *text, size_t bytes)
{
    double value = record_number(object, key, NULL);
    snprintf(text, bytes, isnan(value) ? "-" : "%.2g", value);
    return text;
}

static const char *whole(const json_t *object, const char *key, char *text, size_t bytes)
{
    double value = record_number(object, key, NULL);
    snprintf(text, bytes, isnan(value) ? "-" : "%.0f", value);
    return text;
}

/* Whether the stages' checks see a fault where the intermediate is handed out. */
static bool staged(const json_t *fault)
{
    return json_array_size(json_object_get(fault, "caught_by_stages")) > 0;
}

/* "changed tokens" of "changed_tokens". */
static const char *words(const char *key, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s", key);
    for (char *c = text; *c; c++)
        if (*c == '_')
            *c = ' ';
    return text;
}

/* What saw an injected bug of an operator, and whether less of it is wrong where the form of silu is open. */
static const char *seen(const json_t *bug, char *text, size_t bytes)
{
    const json_t *open = json_object_get(bug, "caught_with_open_silu"), *count;
    const char *key;
    json_int_t changed = 0;
    char checks[64];
    json_object_foreach((json_t *)bug, key, count) changed += json_integer_value(count);
    listed(json_object_get(bug, "caught_by"), checks, sizeof checks);
    snprintf(text, bytes, "%s%s",
             !changed    ? "no effect on this fixture"
             : checks[0] ? checks
                         : "NOT CAUGHT",
             checks[0] && open && json_array_size(open) == 0 ? "; admissible with --open-silu" : "");
    return text;
}

/* Bugs of one operator, with how many of what each changes. of: " of the router", or "". */
static void operator_table(FILE *stream, const json_t *bugs, const char *of)
{
    const char *key;
    json_t *value;
    char text[128];
    snprintf(text, sizeof text, "injected bug%s", of);
    fprintf(stream, "\n%-62s", text);
    json_object_foreach(json_array_get(bugs, 0), key, value) if (json_is_integer(value))
        fprintf(stream, " %14s", words(key, text, sizeof text));
    fprintf(stream, "  caught by\n");
    for (size_t i = 0; i < json_array_size(bugs); i++) {
        json_t *bug = json_array_get(bugs, i);
        fprintf(stream, "%-62s", record_text(bug, "name", NULL));
        json_object_foreach(bug, key, value) if (json_is_integer(value))
            fprintf(stream, " %14lld", (long long)json_integer_value(value));
        fprintf(stream, "  %s\n", seen(bug, text, sizeof text));
    }
}

static void operator_markdown(FILE *stream, const json_t *bugs, const char *of)
{
    const char *key;
    json_t *value;
    char text[128], rule[64] = "|---|---|";
    fprintf(stream, "\n| injected bug%s | modelled on |", of);
    json_object_foreach(json_array_get(bugs, 0), key, value) if (json_is_integer(value))
    {
        fprintf(stream, " %s |", words(key, text, sizeof text));
        strncat(rule, "---|", sizeof rule - strlen(rule) - 1);
    }
    fprintf(stream, " caught by |\n%s---|\n", rule);
    for (size_t i = 0; i < json_array_size(bugs); i++) {
        json_t *bug = json_array_get(bugs, i);
        fprintf(stream, "| %s | %s |", record_text(bug, "name", NULL), record_text(bug, "modelled_on", NULL));
        json_object_foreach(bug, key, value) if (json_is_integer(value))
            fprintf(stream, " %lld |", (long long)json_integer_value(value));
        fprintf(stream, " %s |\n", seen(bug, text, sizeof text));
    }
}

/* Of operators that are parts of a layer: every list "<part>_bugs". */
static void part_tables(FILE *stream, const json_t *record, void (*print)(FILE *, const json_t *, const char *))
{
    const char *key;
    json_t *list;
    json_object_foreach((json_t *)record, key, list)
    {
        size_t length = strlen(key);
        char of[64];
        if (length < 6 || strcmp(key + length - 5, "_bugs") || !strcmp(key, "injected_bugs") || !json_array_size(list))
            continue;
        snprintf(of, sizeof of, " of the %.*s", (int)(length - 5), key);
        print(stream, list, of);
    }
}

/* A fixture that is a problem of one operator alone. */
static void alone_table(FILE *stream, const json_t *record)
{
    const json_t *bugs = json_object_get(record, "injected_bugs");
    const char *reason = record_text(record, "reason", NULL);
    fprintf(stream, "%s of %s\n", record_text(record, "fixture", "operator", NULL),
            record_text(record, "fixture", "path", NULL));
    operator_table(stream, bugs, "");
    fprintf(stream, "\n%.0f of %zu injected bugs are caught\n%s%s%s\n", record_number(record, "caught", NULL),
            json_array_size(bugs), record_text(record, "verdict", NULL), reason[0] ? ": " : "", reason);
}

static void alone_markdown(FILE *stream, const json_t *record)
{
    fprintf(stream, "Fixture %s: %s by %s\n", record_text(record, "fixture", "path", NULL),
            record_text(record, "fixture", "operator", NULL), record_text(record, "fixture", "recipe", NULL));
    operator_markdown(stream, json_object_get(record, "injected_bugs"), "");
}

static bool of_one_operator(const json_t *record)
{
    return record_text(record, "fixture", "operator", NULL)[0] != '\0';
}

void power_table(FILE *stream, const json_t *record)
{
    if (of_one_operator(record)) {
        alone_table(stream, record);
        return;
    }
    const json_t *faults = json_object_get(record, "injected_bugs"), *policies = json_object_get(record, "policies");
    const char *policy = record_text(json_array_get(policies, 0), "name", NULL);
    char a[64], b[64], c[64], d[64], e[64];
    fprintf(stream, "policy %s on %s\n\n%-58s %-10s %9s  %s\n", policy, record_text(record, "fixture", "path", NULL),
            "injected bug", "stage", "rel. L2", "caught by");
    for (size_t i = 0; i < json_array_size(faults); i++) {
        const json_t *f = json_array_get(faults, i);
        bool effect = record_number(f, "changed", NULL) > 0;
        const char *checks = joined(f, policy, a, sizeof a);
        fprintf(stream, "%-58s %-10s %9s  %s\n", record_text(f, "name", NULL), record_text(f, "stage", NULL),
                number(f, "relative_l2", b, sizeof b),
                !effect     ? "no effect on this fixture"
                : checks[0] ? checks
                : staged(f) ? "NOT CAUGHT, but where the intermediate is handed out"
                            : "NOT CAUGHT");
    }
    part_tables(stream, record, operator_table);
    fprintf(stream, "\n%-24s %-8s %6s %6s  %9s %9s %9s %9s %9s\n", "policy", "verdict", "caught", "missed", "scale",
            "of a row", "noise", "rows", "elements");
    for (size_t i = 0; i < json_array_size(policies); i++) {
        const json_t *g = json_array_get(policies, i), *limits = json_object_get(g, "detection_limits");
        fprintf(stream, "%-24.24s %-8s %6.0f %6.0f  %9s %9s %9s %9s %9s\n", record_text(g, "name", NULL),
                record_text(g, "verdict", NULL), record_number(g, "caught", NULL), record_number(g, "missed", NULL),
                number(limits, "scale", a, sizeof a), number(limits, "scale_of_a_row", b, sizeof b),
                number(limits, "noise_of_the_intermediate", e, sizeof e), whole(limits, "lost_rows", c, sizeof c),
                whole(limits, "lost_elements", d, sizeof d));
    }
    const json_t *limits = json_object_get(json_array_get(policies, 0), "detection_limits");
    fprintf(
        stream,
        "\nWhere the intermediate is handed out, the first policy sees an error of down's scale of %s, of a row's %s.\n",
        number(limits, "scale_given_the_intermediate", a, sizeof a),
        number(limits, "scale_of_a_row_given_the_intermediate", b, sizeof b));
    const char *reason = record_text(json_array_get(policies, 0), "reason", NULL);
    fprintf(
        stream,
        "\nThe last five columns, what the policy sees: the smallest error of the scale, of the faintest row's\n"
        "scale, of every element of the intermediate (signs at random); the fewest lost rows and elements.\n%s%s%s\n",
        record_text(record, "verdict", NULL), reason[0] ? ": " : "", reason);
}

void power_markdown(FILE *stream, const json_t *record)
{
    if (of_one_operator(record)) {
        alone_markdown(stream, record);
        return;
    }
    const json_t *faults = json_object_get(record, "injected_bugs"), *policies = json_object_get(record, "policies");
    char a[64], b[64], c[64], d[64], e[64];
    fprintf(
        stream,
        "Fixture %s: %s; contract %s\n\n| policy | verdict | caught | missed | smallest error of the scale | of the faintest "
        "row's | of every element of the intermediate | fewest lost rows | fewest lost elements |\n"
        "|---|---|---|---|---|---|---|---|---|\n",
        record_text(record, "fixture", "path", NULL), record_text(record, "fixture", "source", NULL),
        record_text(record, "contract", NULL));
    for (size_t i = 0; i < json_array_size(policies); i++) {
        const json_t *g = json_array_get(policies, i), *limits = json_object_get(g, "detection_limits");
        const char *reason = record_text(g, "reason", NULL);
        fprintf(stream, "| %s | %s%s%s | %.0f | %.0f | %s | %s | %s | %s | %s |\n", record_text(g, "name", NULL),
                record_text(g, "verdict", NULL), reason[0] ? ": " : "", reason, record_number(g, "caught", NULL),
                record_number(g, "missed", NULL), number(limits, "scale", a, sizeof a),
                number(limits, "scale_of_a_row", b, sizeof b), number(limits, "noise_of_the_intermediate", e, sizeof e),
                whole(limits, "lost_rows", c, sizeof c), whole(limits, "lost_elements", d, sizeof d));
    }
    fprintf(stream, "\n| injected bug | modelled on | relative L2 |");
    for (size_t g = 0; g < json_array_size(policies); g++)
        fprintf(stream, " %s |", record_text(json_array_get(policies, g), "name", NULL));
    fprintf(stream, " stages, given the intermediate |\n|---|---|---|---|");
    for (size_t g = 0; g < json_array_size(policies); g++)
        fprintf(stream, "---|");
    for (size_t i = 0; i < json_array_size(faults); i++) {
        const json_t *f = json_array_get(faults, i);
        fprintf(stream, "\n| %s | %s | %s |", record_text(f, "name", NULL), record_text(f, "modelled_on", NULL),
                number(f, "relative_l2", a, sizeof a));
        for (size_t g = 0; g < json_array_size(policies); g++)
            fprintf(stream, " %s |", joined(f, record_text(json_array_get(policies, g), "name", NULL), b, sizeof b));
        fprintf(stream, " %s |", listed(json_object_get(f, "caught_by_stages"), b, sizeof b));
    }
    fprintf(stream, "\n");
    part_tables(stream, record, operator_markdown);
}
