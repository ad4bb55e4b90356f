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

static void route_table(FILE *stream, const json_t *faults)
{
    char text[64];
    if (json_array_size(faults))
        fprintf(stream, "\n%-58s %17s  %s\n", "fault of the router", "tokens changed", "caught by");
    for (size_t i = 0; i < json_array_size(faults); i++) {
        const json_t *f = json_array_get(faults, i);
        bool effect = record_number(f, "changed_tokens", NULL) > 0;
        const char *checks = listed(json_object_get(f, "caught_by"), text, sizeof text);
        fprintf(stream, "%-58s %17.0f  %s\n", record_text(f, "name", NULL), record_number(f, "changed_tokens", NULL),
                !effect     ? "no effect on this fixture"
                : checks[0] ? checks
                            : "NOT CAUGHT");
    }
}

static void route_markdown(FILE *stream, const json_t *faults)
{
    char text[64];
    if (json_array_size(faults))
        fprintf(stream,
                "\n| injected bug of the router | modelled on | tokens changed | caught by |\n|---|---|---|---|\n");
    for (size_t i = 0; i < json_array_size(faults); i++) {
        const json_t *f = json_array_get(faults, i);
        fprintf(stream, "| %s | %s | %.0f | %s |\n", record_text(f, "name", NULL), record_text(f, "modelled_on", NULL),
                record_number(f, "changed_tokens", NULL), listed(json_object_get(f, "caught_by"), text, sizeof text));
    }
}

/* What is changed by an injected bug of a quantiser, and what of it stays wrong where the form of silu is open. */
static const char *seen(const json_t *fault, char *text, size_t bytes)
{
    const json_t *open = json_object_get(fault, "caught_with_open_silu");
    char checks[64];
    listed(json_object_get(fault, "caught_by"), checks, sizeof checks);
    snprintf(text, bytes, "%s%s", checks[0] ? checks : "no effect on this fixture",
             checks[0] && open && json_array_size(open) == 0 ? "; admissible with --open-silu" : "");
    return text;
}

static void quantise_table(FILE *stream, const json_t *record)
{
    const json_t *faults = json_object_get(record, "injected_bugs");
    const char *reason = record_text(record, "reason", NULL);
    char text[128];
    fprintf(stream, "%s of %s\n\n%-62s %8s %8s  %s\n", record_text(record, "fixture", "operator", NULL),
            record_text(record, "fixture", "path", NULL), "injected bug", "codes", "scales", "caught by");
    for (size_t i = 0; i < json_array_size(faults); i++) {
        const json_t *f = json_array_get(faults, i);
        fprintf(stream, "%-62s %8.0f %8.0f  %s\n", record_text(f, "name", NULL), record_number(f, "codes", NULL),
                record_number(f, "scales", NULL), seen(f, text, sizeof text));
    }
    fprintf(stream, "\n%.0f of %zu injected bugs are caught\n%s%s%s\n", record_number(record, "caught", NULL),
            json_array_size(faults), record_text(record, "verdict", NULL), reason[0] ? ": " : "", reason);
}

static void quantise_markdown(FILE *stream, const json_t *record)
{
    const json_t *faults = json_object_get(record, "injected_bugs");
    char text[128];
    fprintf(stream,
            "Fixture %s: %s by %s\n\n| injected bug | modelled on | codes changed | scales changed | caught by |\n"
            "|---|---|---|---|---|\n",
            record_text(record, "fixture", "path", NULL), record_text(record, "fixture", "operator", NULL),
            record_text(record, "fixture", "recipe", NULL));
    for (size_t i = 0; i < json_array_size(faults); i++) {
        const json_t *f = json_array_get(faults, i);
        fprintf(stream, "| %s | %s | %.0f | %.0f | %s |\n", record_text(f, "name", NULL),
                record_text(f, "modelled_on", NULL), record_number(f, "codes", NULL), record_number(f, "scales", NULL),
                seen(f, text, sizeof text));
    }
}

static bool of_quantiser(const json_t *record)
{
    return record_text(record, "fixture", "operator", NULL)[0] != '\0';
}

void power_table(FILE *stream, const json_t *record)
{
    if (of_quantiser(record)) {
        quantise_table(stream, record);
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
    route_table(stream, json_object_get(record, "router_bugs"));
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
    if (of_quantiser(record)) {
        quantise_markdown(stream, record);
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
    route_markdown(stream, json_object_get(record, "router_bugs"));
}
