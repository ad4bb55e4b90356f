/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/command.h"
#include "harness/record.h"

/* How one case of A relates to the case of B with the same subject, fixture name and batch. */
enum relation {
    SAME_BITS,
    LEGAL_VARIATION,
    NEWLY_ILLEGAL,
    NOW_LEGAL,
    STILL_ILLEGAL,
    DIFFERENT_INPUTS,
    NOTHING,
    UNMATCHED
};

static const char *const relation_names[] = {
    [SAME_BITS] = "same bits",
    [LEGAL_VARIATION] = "changed bits, PASS before and now",
    [NEWLY_ILLEGAL] = "changed bits, PASS before and not now",
    [NOW_LEGAL] = "changed bits, PASS now and not before",
    [STILL_ILLEGAL] = "changed bits, PASS neither before nor now",
    [DIFFERENT_INPUTS] = "different inputs",
    [NOTHING] = "no outputs in either",
    [UNMATCHED] = "only in one record",
};

static const char *base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool same_case(const json_t *a, const json_t *b)
{
    return !strcmp(record_text(a, "subject", "name", NULL), record_text(b, "subject", "name", NULL)) &&
           !strcmp(base(record_text(a, "fixture", "path", NULL)), base(record_text(b, "fixture", "path", NULL))) &&
           json_integer_value(json_object_get(a, "batch")) == json_integer_value(json_object_get(b, "batch"));
}

/* Whether both wrote outputs and every layer's hashes agree. */
static bool same_bits(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"output_sha256", "intermediate_sha256"};
    const json_t *la = json_object_get(json_object_get(a, "metrics"), "layers");
    const json_t *lb = json_object_get(json_object_get(b, "metrics"), "layers");
    bool same = json_array_size(la) == json_array_size(lb) && json_array_size(la) > 0;
    for (size_t i = 0; same && i < json_array_size(la); i++) {
        bool compared = false;
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const char *before = record_text(json_array_get(la, i), keys[k], NULL);
            compared |= before[0] != '\0';
            same &= !strcmp(before, record_text(json_array_get(lb, i), keys[k], NULL));
        }
        same &= compared;
    }
    return same;
}

static bool has_outputs(const json_t *one)
{
    return json_array_size(json_object_get(json_object_get(one, "metrics"), "layers")) > 0;
}

static enum relation relate(const json_t *a, const json_t *b)
{
    if (strcmp(record_text(a, "fixture", "sha256", NULL), record_text(b, "fixture", "sha256", NULL)))
        return DIFFERENT_INPUTS;
    if (!has_outputs(a) && !has_outputs(b))
        return NOTHING;
    bool before = !strcmp(record_text(a, "verdict", NULL), "PASS");
    bool now = !strcmp(record_text(b, "verdict", NULL), "PASS");
    if (before == now && same_bits(a, b))
        return SAME_BITS;
    return before ? (now ? LEGAL_VARIATION : NEWLY_ILLEGAL) : (now ? NOW_LEGAL : STILL_ILLEGAL);
}

/* The case of `other` that stands where case i of `cases` does: the n-th of its subject, fixture name and batch. */
static const json_t *find(const json_t *cases, size_t i, const json_t *other)
{
    const json_t *one = json_array_get(cases, i);
    size_t place = 0;
    for (size_t k = 0; k < i; k++)
        place += same_case(json_array_get(cases, k), one);
    for (size_t k = 0; k < json_array_size(other); k++)
        if (same_case(json_array_get(other, k), one) && place-- == 0)
            return json_array_get(other, k);
    return NULL;
}

static void print(const json_t *one, enum relation relation)
{
    printf("%-42s %s on %s, batch %lld\n", relation_names[relation], record_text(one, "subject", "name", NULL),
           base(record_text(one, "fixture", "path", NULL)),
           (long long)json_integer_value(json_object_get(one, "batch")));
}

/* Whether both records know which build of the kernel ran on which device, and it is the same. */
static bool same_subject(const json_t *a, const json_t *b, const json_t *record_a, const json_t *record_b)
{
    const char *built = record_text(a, "subject", "library_sha256", NULL);
    if (!built[0]) /* the reference: it is the program's own */
        return strcmp(record_text(a, "subject", "library", NULL), "builtin") == 0 &&
               !strcmp(record_text(record_a, "environment", "commit", NULL),
                       record_text(record_b, "environment", "commit", NULL));
    return !strcmp(built, record_text(b, "subject", "library_sha256", NULL)) &&
           !strcmp(record_text(a, "subject", "device", NULL), record_text(b, "subject", "device", NULL));
}

/* Why bits may have changed, and how near the bound both are: a flake is nondeterminism, or a verdict at its edge. */
static void print_cause(const json_t *a, const json_t *b, const json_t *record_a, const json_t *record_b)
{
    double before = record_number(a, "lanes", "bound", "limit_ratio", NULL);
    double now = record_number(b, "lanes", "bound", "limit_ratio", NULL);
    printf("    %s", same_subject(a, b, record_a, record_b)
                         ? "same kernel, same inputs, same device: it is not deterministic"
                         : "another build of the kernel or another device");
    if (!isnan(before) && !isnan(now))
        printf("; of bound %.3f, now %.3f%s", before, now,
               fmax(before, now) > 0.9 && fmin(before, now) < 1.1 ? ": at the edge" : "");
    printf("\n");
}

static int compare(const json_t *a, const json_t *b)
{
    const json_t *before = json_object_get(a, "cases"), *now = json_object_get(b, "cases");
    size_t count[sizeof relation_names / sizeof *relation_names] = {0};
    for (size_t i = 0; i < json_array_size(before); i++) {
        const json_t *one = json_array_get(before, i), *other = find(before, i, now);
        enum relation relation = other ? relate(one, other) : UNMATCHED;
        count[relation]++;
        print(one, relation);
        if (relation >= LEGAL_VARIATION && relation <= STILL_ILLEGAL)
            print_cause(one, other, a, b);
    }
    for (size_t i = 0; i < json_array_size(now); i++)
        if (!find(now, i, before)) {
            count[UNMATCHED]++;
            print(json_array_get(now, i), UNMATCHED);
        }
    size_t changed = count[LEGAL_VARIATION] + count[NEWLY_ILLEGAL] + count[NOW_LEGAL] + count[STILL_ILLEGAL];
    printf("%zu same bits, %zu changed bits, %zu different inputs, %zu only in one record\n", count[SAME_BITS], changed,
           count[DIFFERENT_INPUTS], count[UNMATCHED]);
    if (changed)
        return EXIT_FAIL;
    return count[DIFFERENT_INPUTS] || count[UNMATCHED] || count[NOTHING] || !count[SAME_BITS] ? EXIT_NOT_RUN
                                                                                              : EXIT_PASS;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    const char **paths = state->input;
    if (key == ARGP_KEY_ARG && state->arg_num < 2)
        paths[state->arg_num] = argument;
    else if (key == ARGP_KEY_ARG || (key == ARGP_KEY_END && state->arg_num < 2))
        usage_error(state, "give two records");
    else if (key != ARGP_KEY_END)
        return ARGP_ERR_UNKNOWN;
    return 0;
}

int command_diff(int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .args_doc = "A.json B.json",
        .doc = "Compare two records of verify, case by case: same bits, changed bits, or different inputs.\v"
               "Exit code: 0 same bits, 1 some bits changed, 3 nothing comparable changed but inputs differ or a case "
               "is in one record only.\n\nExample:\n  gaugeblock diff last-week.json today.json",
    };
    const char *paths[2] = {NULL, NULL};
    json_t *records[2] = {NULL, NULL};
    command_parse(&argp, argc, argv, paths);
    for (int i = 0; i < 2; i++) {
        json_error_t problem;
        records[i] = json_load_file(paths[i], JSON_REJECT_DUPLICATES, &problem);
        if (!records[i] || strcmp(record_text(records[i], "schema", NULL), RECORD_SCHEMA) ||
            !json_is_array(json_object_get(records[i], "cases"))) {
            int code = command_error("diff", "%s: is no " RECORD_SCHEMA " record%s%s", paths[i], records[i] ? "" : ": ",
                                     records[i] ? "" : problem.text);
            json_decref(records[0]);
            json_decref(records[1]);
            return code;
        }
    }
    int code = compare(records[0], records[1]);
    json_decref(records[0]);
    json_decref(records[1]);
    return code;
}
