/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/program/command.h"
#include "harness/report/record.h"
#include "quant/quant.h"

/* How one case of A relates to the case of B with the same subject, fixture name and batch. */
enum relation {
    SAME_BITS,
    CHANGED_PASSING,
    NEWLY_FAILING,
    NOW_PASSING,
    STILL_FAILING,
    DIFFERENT_INPUTS,
    NOTHING,
    UNMATCHED
};

static const char *const relation_names[] = {
    [SAME_BITS] = "same bits",
    [CHANGED_PASSING] = "changed bits, PASS before and now",
    [NEWLY_FAILING] = "changed bits, PASS before and not now",
    [NOW_PASSING] = "changed bits, PASS now and not before",
    [STILL_FAILING] = "changed bits, PASS neither before nor now",
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

/* Hashes of a layer's outputs, of which a record has those of what its subject writes. */
static const char *const keys[] = {"output_sha256",
                                   "intermediate_sha256",
                                   "ids_sha256",
                                   "weights_sha256",
                                   "x_codes_sha256",
                                   "x_scales_sha256",
                                   "intermediate_codes_sha256",
                                   "intermediate_scales_sha256",
                                   "codes_sha256",
                                   "scales_sha256"};
enum { KEYS = sizeof keys / sizeof *keys };

/* Whether both have as many layers and, of each, the hashes that both have agree: older records have fewer. */
static bool same_bits(const json_t *a, const json_t *b)
{
    const json_t *la = json_object_get(json_object_get(a, "metrics"), "layers");
    const json_t *lb = json_object_get(json_object_get(b, "metrics"), "layers");
    bool same = json_array_size(la) == json_array_size(lb);
    for (size_t i = 0; same && i < json_array_size(la); i++) {
        bool compared = false;
        for (size_t k = 0; k < KEYS; k++) {
            const char *before = record_text(json_array_get(la, i), keys[k], NULL);
            const char *now = record_text(json_array_get(lb, i), keys[k], NULL);
            compared |= before[0] && now[0];
            same &= !before[0] || !now[0] || !strcmp(before, now);
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
    return before ? (now ? CHANGED_PASSING : NEWLY_FAILING) : (now ? NOW_PASSING : STILL_FAILING);
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

/* The largest error over its bound; NaN: the bound was not checked. */
static double bound_ratio(const json_t *one)
{
    const char *checks = json_object_get(one, "checks") ? "checks" : "lanes";
    return record_number(one, checks, "bound", "limit_ratio", NULL);
}

/* Why bits may have changed, and how near the bound both are: a flake is nondeterminism, or a verdict at its edge. */
static void print_cause(const json_t *a, const json_t *b, const json_t *record_a, const json_t *record_b)
{
    double before = bound_ratio(a), now = bound_ratio(b);
    printf("    %s", same_subject(a, b, record_a, record_b)
                         ? "same kernel, same inputs, same device: it is not deterministic"
                         : "another build of the kernel or another device");
    if (!isnan(before) && !isnan(now))
        printf("; max err/bound %.3f, now %.3f%s", before, now,
               fmin(before, now) > 0.9 && fmax(before, now) < 1.1 ? ": at the edge" : "");
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
        if (relation >= CHANGED_PASSING && relation <= STILL_FAILING)
            print_cause(one, other, a, b);
    }
    for (size_t i = 0; i < json_array_size(now); i++)
        if (!find(now, i, before)) {
            count[UNMATCHED]++;
            print(json_array_get(now, i), UNMATCHED);
        }
    size_t changed = count[CHANGED_PASSING] + count[NEWLY_FAILING] + count[NOW_PASSING] + count[STILL_FAILING];
    printf("%zu same bits, %zu changed bits, %zu different inputs, %zu only in one record\n", count[SAME_BITS], changed,
           count[DIFFERENT_INPUTS], count[UNMATCHED]);
    if (changed)
        return EXIT_FAIL;
    return count[DIFFERENT_INPUTS] || count[UNMATCHED] || count[NOTHING] || !count[SAME_BITS] ? EXIT_NOT_RUN
                                                                                              : EXIT_PASS;
}

static bool is_layer(const json_t *layer, size_t index)
{
    bool hashed = false;
    for (size_t k = 0; k < KEYS; k++)
        hashed |= record_text(layer, keys[k], NULL)[0] != '\0';
    return hashed && record_number(layer, "layer", NULL) == (double)index;
}

static bool is_verdict(const char *name)
{
    bool known = false;
    for (enum verdict v = VERDICT_PASS; v <= VERDICT_CRASH; v++)
        known |= !strcmp(name, verdict_name(v));
    return known;
}

/* What a comparison needs of a case is there, or `field` names what is not. */
static bool check_case(const json_t *one, char *field, size_t bytes)
{
    const json_t *metrics = json_object_get(one, "metrics"), *layers = json_object_get(metrics, "layers");
    const char *name = !record_text(one, "fixture", "path", NULL)[0]                                 ? "fixture.path"
                       : !json_is_string(json_object_get(json_object_get(one, "fixture"), "sha256")) ? "fixture.sha256"
                       : !json_is_string(json_object_get(json_object_get(one, "subject"), "name"))   ? "subject.name"
                       : !json_is_integer(json_object_get(one, "batch"))                             ? "batch"
                       : !is_verdict(record_text(one, "verdict", NULL))                              ? "verdict"
                       : metrics && !json_is_null(metrics) && !json_is_array(layers)                 ? "metrics.layers"
                                                                                                     : NULL;
    snprintf(field, bytes, "%s", name ? name : "");
    for (size_t l = 0; !name && l < json_array_size(layers); l++)
        if (!is_layer(json_array_get(layers, l), l)) {
            snprintf(field, bytes, "metrics.layers[%zu]", l);
            return false;
        }
    return !name;
}

/* Whether its schema is one that diff reads: this version's, or the one before, whose checks are called "lanes". */
static bool known_schema(const json_t *record)
{
    const char *schema = record_text(record, "schema", NULL);
    return !strcmp(schema, RECORD_SCHEMA) || !strcmp(schema, RECORD_SCHEMA_BEFORE);
}

static enum gb_status check_record(const char *path, const json_t *record, struct gb_error *error)
{
    char field[64];
    const json_t *cases = json_object_get(record, "cases");
    if (!known_schema(record) || !json_is_array(cases))
        return gb_fail(error, GB_EFORMAT, "%.200s: is no " RECORD_SCHEMA " record", path);
    for (size_t i = 0; i < json_array_size(cases); i++)
        if (!check_case(json_array_get(cases, i), field, sizeof field))
            return gb_fail(error, GB_EFORMAT,
                           "%.200s: cases[%zu].%s: is missing, or no such field of a record; "
                           "give what verify wrote",
                           path, i, field);
    return GB_OK;
}

static enum gb_status read_record(const char *path, json_t **record, struct gb_error *error)
{
    json_error_t problem;
    struct stat about;
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return gb_fail(error, GB_EIO, "%.200s: is no regular file", path);
    *record = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!*record)
        return gb_fail(error, GB_EFORMAT, "%.200s: is no " RECORD_SCHEMA " record: %.160s", path, problem.text);
    return check_record(path, *record, error);
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

static const struct argp argp = {
    .parser = parse,
    .args_doc = "A.json B.json",
    .doc =
        "Compare two records of verify, case by case: same bits, changed bits, or different inputs.\v"
        "Exit codes: 0 the same bits and verdicts, 1 some changed, 2 bad usage or input, 3 none changed, but "
        "inputs differ, a case is in one record only, or there are no outputs.\n\nExample:\n  gaugeblock diff last-week.json today.json",
};

static int run_diff(int argc, char **argv)
{
    const char *paths[2] = {NULL, NULL};
    json_t *records[2] = {NULL, NULL};
    struct gb_error error;
    command_parse(&argp, argc, argv, paths);
    enum gb_status status = read_record(paths[0], &records[0], &error);
    if (status == GB_OK)
        status = read_record(paths[1], &records[1], &error);
    int code = status == GB_OK ? compare(records[0], records[1]) : command_error("diff", "%s", error.message);
    json_decref(records[0]);
    json_decref(records[1]);
    return code;
}

const struct command command_diff = {"diff", run_diff, &argp, "compare two records of verify"};
