/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/judge/policy.h"
#include "quant/quant.h"

#define POLICY_SCHEMA "gaugeblock-gate/2"

/* Times truth, an output that is right nowhere: an error relative to it is all but 1. */
#define HUGE_FACTOR (-0x1p40)

/* The thresholds by their keys, and what they may be: above a low of 0 where 0 would let anything pass. */
static const struct threshold {
    const char *key;
    size_t offset; /* of the double in struct policy */
    double low, high;
    bool above;
} thresholds[] = {
    {"cosine", offsetof(struct policy, cosine), 0.0, 1.0, true},
    {"cosine_min", offsetof(struct policy, cosine_min), 0.0, 1.0, true},
    {"max_abs", offsetof(struct policy, max_abs), 0.0, 1e308, false},
    {"nmse", offsetof(struct policy, nmse), 0.0, 1e308, false},
    {"atol", offsetof(struct policy, atol), 0.0, 1e308, false},
    {"rtol", offsetof(struct policy, rtol), 0.0, 1e308, false},
    {"fraction", offsetof(struct policy, fraction), 0.0, 1.0, true},
};

/* Published rules, as the systems apply them to a result and a reference of their own. docs/gates.md#presets. */
static const struct preset {
    const char *name;
    bool checks; /* all of them */
    struct {
        const char *key;
        double limit;
    } limits[3];
    bool either, by_subject;
} presets[] = {
    {.name = "default", .checks = true},
    /* A report on NVFP4 kernels: the smallest cosine over tokens, and a max_abs of 2^-9. */
    {.name = "cosine-0.999996", .limits = {{"cosine_min", 0.999996}, {"max_abs", 0.001953125}}},
    {.name = "cosine-0.99", .limits = {{"cosine", 0.99}}},
    /* vLLM 07b13497, tests/kernels/moe/test_nvfp4_moe.py: assert_close(reference, kernel). */
    {.name = "vllm-nvfp4-moe", .limits = {{"atol", 0.1}, {"rtol", 0.1}}, .by_subject = true},
    /* FlashInfer 6930085e, tests/moe/test_trtllm_gen_fused_moe.py, FP4: right = atol + rtol * abs(kernel). */
    {.name = "flashinfer-fp4-moe", .limits = {{"atol", 0.1}, {"rtol", 0.85}, {"fraction", 0.925}}, .by_subject = true},
    /* flashinfer-bench 40e6ca7, bench/eval_config.yaml and config.py: wrong only if both tolerances are exceeded. */
    {.name = "flashinfer-bench-moe", .limits = {{"atol", 1e-2}, {"rtol", 1e-2}, {"fraction", 0.95}}, .either = true},
    /* llama.cpp 0054f928, tests/test-backend-ops.cpp, FP4 on Blackwell: normalised by the tested backend's energy. */
    {.name = "llama.cpp-fp4", .limits = {{"nmse", 2e-2}}, .by_subject = true},
};

static const struct threshold *threshold_find(const char *key)
{
    for (size_t i = 0; i < sizeof thresholds / sizeof *thresholds; i++)
        if (!strcmp(thresholds[i].key, key))
            return &thresholds[i];
    return NULL;
}

static double *threshold_of(struct policy *policy, const struct threshold *threshold)
{
    return (double *)(void *)((char *)policy + threshold->offset);
}

/* What a name is made of, so that tables and records stay whole: printable ASCII but the bar of tables. */
static bool name_holds(char c)
{
    return c >= ' ' && c <= '~' && c != '|';
}

static enum gb_status read_name(const char *path, const char *name, struct policy *policy, struct gb_error *error)
{
    struct policy preset;
    bool good = name[0] && strlen(name) < sizeof policy->name;
    for (const char *c = name; *c; c++)
        good = good && name_holds(*c);
    if (!good)
        return gb_fail(error, GB_EFORMAT, "%s: name: give 1 to %zu printable ASCII characters, none of them |", path,
                       sizeof policy->name - 1);
    for (unsigned i = 0; policy_preset(i, &preset); i++)
        if (!strcmp(preset.name, name))
            return gb_fail(error, GB_EFORMAT, "%s: name: '%s' is a preset's; give another", path, name);
    snprintf(policy->name, sizeof policy->name, "%s", name);
    return GB_OK;
}

/* A policy that asks for nothing. */
static void policy_clear(struct policy *policy, const char *name)
{
    *policy = (struct policy){.bound = false};
    snprintf(policy->name, sizeof policy->name, "%.63s", name);
    for (char *c = policy->name; *c; c++)
        if (!name_holds(*c))
            *c = '?';
    for (size_t i = 0; i < sizeof thresholds / sizeof *thresholds; i++)
        *threshold_of(policy, &thresholds[i]) = NAN;
}

/* Without a fraction, all elements must be close. */
static void policy_complete(struct policy *policy)
{
    if (isnan(policy->fraction) && !isnan(policy->atol))
        policy->fraction = 1.0;
}

bool policy_preset(unsigned index, struct policy *policy)
{
    if (index >= sizeof presets / sizeof *presets)
        return false;
    const struct preset *preset = &presets[index];
    policy_clear(policy, preset->name);
    policy->exact = policy->bound = policy->rms = policy->scale = preset->checks;
    policy->either = preset->either;
    policy->by_subject = preset->by_subject;
    for (size_t i = 0; i < sizeof preset->limits / sizeof *preset->limits && preset->limits[i].key; i++)
        *threshold_of(policy, threshold_find(preset->limits[i].key)) = preset->limits[i].limit;
    policy_complete(policy);
    return true;
}

static enum gb_status read_checks(const char *path, const json_t *checks, struct policy *policy, struct gb_error *error)
{
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const char *check = json_string_value(json_array_get(checks, i));
        if (check && !strcmp(check, "exact"))
            policy->exact = true;
        else if (check && !strcmp(check, "bound"))
            policy->bound = true;
        else if (check && !strcmp(check, "rms"))
            policy->rms = true;
        else if (check && !strcmp(check, "scale"))
            policy->scale = true;
        else
            return gb_fail(error, GB_EFORMAT, "%s: checks: there are \"exact\", \"bound\", \"rms\" and \"scale\"",
                           path);
    }
    return json_is_array(checks) ? GB_OK : gb_fail(error, GB_EFORMAT, "%s: checks: give an array of names", path);
}

static enum gb_status read_key(const char *path, const char *key, const json_t *value, struct policy *policy,
                               struct gb_error *error)
{
    const struct threshold *threshold = threshold_find(key);
    double number = json_number_value(value);
    if (threshold) {
        *threshold_of(policy, threshold) = number;
        if (json_is_number(value) && number <= threshold->high &&
            (threshold->above ? number > threshold->low : number >= threshold->low))
            return GB_OK;
        return gb_fail(error, GB_EFORMAT, "%s: %s: give a number %s %g to %g", path, key,
                       threshold->above ? "above" : "from", threshold->low, threshold->high);
    }
    if (!strcmp(key, "checks"))
        return read_checks(path, value, policy, error);
    if (!strcmp(key, "either") && json_is_boolean(value))
        policy->either = json_is_true(value);
    else if (!strcmp(key, "relative_to") && json_is_string(value) && !strcmp(json_string_value(value), "subject"))
        policy->by_subject = true;
    else if (!strcmp(key, "relative_to") && json_is_string(value) && !strcmp(json_string_value(value), "truth"))
        policy->by_subject = false;
    else if (!strcmp(key, "name") && json_is_string(value))
        return read_name(path, json_string_value(value), policy, error);
    else if (strcmp(key, "schema") || !json_is_string(value) || strcmp(json_string_value(value), POLICY_SCHEMA))
        return gb_fail(error, GB_EFORMAT,
                       "%s: '%.40s' is no key of a policy, or its value is of another type; see docs/gates.md", path,
                       key);
    return GB_OK;
}

static enum gb_status read_object(const char *path, json_t *object, struct policy *policy, struct gb_error *error)
{
    const char *key;
    json_t *value;
    enum gb_status status = GB_OK;
    if (!json_is_object(object) || !json_object_get(object, "schema"))
        return gb_fail(error, GB_EFORMAT, "%s: a policy is an object with \"schema\": \"" POLICY_SCHEMA "\"", path);
    json_object_foreach(object, key, value) if (status == GB_OK) status = read_key(path, key, value, policy, error);
    if (status == GB_OK && isnan(policy->atol) != isnan(policy->rtol))
        status = gb_fail(error, GB_EFORMAT, "%s: atol and rtol go together", path);
    if (status == GB_OK && isnan(policy->atol) && (!isnan(policy->fraction) || policy->either))
        status = gb_fail(error, GB_EFORMAT, "%s: fraction and either go with atol and rtol", path);
    policy_complete(policy);
    bool any = policy->exact || policy->bound || policy->rms || policy->scale || !isnan(policy->cosine) ||
               !isnan(policy->cosine_min) || !isnan(policy->max_abs) || !isnan(policy->nmse) || !isnan(policy->atol);
    if (status == GB_OK && !any)
        status = gb_fail(error, GB_EFORMAT, "%s: a policy without checks and thresholds lets everything pass", path);
    return status;
}

enum gb_status policy_read(const char *path, struct policy *policy, struct gb_error *error)
{
    json_error_t problem;
    struct stat about;
    for (unsigned i = 0; policy_preset(i, policy); i++)
        if (!strcmp(policy->name, path))
            return GB_OK;
    policy_clear(policy, path);
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return gb_fail(error, GB_EIO, "--gate %.200s: is no regular file", path);
    json_t *object = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!object)
        return problem.line < 1
                   ? gb_fail(error, GB_EIO, "--gate %.200s: neither a preset nor a JSON file: %.160s", path,
                             problem.text)
                   : gb_fail(error, GB_EFORMAT, "--gate %.200s: neither a preset nor JSON: line %d, column %d: %.160s",
                             path, problem.line, problem.column, problem.text);
    enum gb_status status = read_object(path, object, policy, error);
    json_decref(object);
    return status;
}

json_t *policy_json(const struct policy *policy)
{
    struct policy copy = *policy;
    json_t *checks = json_array();
    if (policy->exact)
        json_array_append_new(checks, json_string("exact"));
    if (policy->bound)
        json_array_append_new(checks, json_string("bound"));
    if (policy->rms)
        json_array_append_new(checks, json_string("rms"));
    if (policy->scale)
        json_array_append_new(checks, json_string("scale"));
    json_t *object =
        json_pack("{s:s, s:o, s:o}", "schema", POLICY_SCHEMA, "name", json_string(policy->name), "checks", checks);
    for (size_t i = 0; i < sizeof thresholds / sizeof *thresholds; i++)
        if (!isnan(*threshold_of(&copy, &thresholds[i])))
            json_object_set_new(object, thresholds[i].key, json_real(*threshold_of(&copy, &thresholds[i])));
    if (policy->either)
        json_object_set_new(object, "either", json_true());
    if (policy->by_subject)
        json_object_set_new(object, "relative_to", json_string("subject"));
    return object;
}

void policy_start(const struct policy *policy, struct closeness *c)
{
    *c = (struct closeness){.policy = policy};
    metrics_start(&c->subject);
    metrics_start(&c->zeros);
}

/* What is not finite is close to nothing, and nothing to it, though infinity is within any share of itself. */
static bool is_close(const struct policy *policy, double value, double truth)
{
    double error = fabs(value - truth), relative = policy->rtol * fabs(policy->by_subject ? value : truth);
    if (!isfinite(error))
        return false;
    return policy->either ? error <= policy->atol || error <= relative : error <= policy->atol + relative;
}

/* What the figures of zeros are for so many times truth, below 0. */
static struct metrics multiple(const struct metrics *zeros, double factor)
{
    struct metrics m = *zeros;
    m.max_abs = (1.0 - factor) * zeros->max_abs;
    m.error_squares = (1.0 - factor) * (1.0 - factor) * zeros->error_squares;
    m.subject_squares = factor * factor * zeros->truth_squares;
    m.dot = factor * zeros->truth_squares;
    m.cosine_min = -1.0;
    return m;
}

void policy_compare(struct closeness *c, const double *subject, const double *truth, uint32_t tokens, uint32_t width)
{
    metrics_add(&c->subject, subject, truth, tokens, width);
    for (uint32_t t = 0; t < tokens; t++) {
        const double *row = truth + (size_t)t * width;
        for (uint32_t i = 0; i < width; i++) {
            c->subject_close += is_close(c->policy, subject[(size_t)t * width + i], row[i]);
            c->zeros_close += is_close(c->policy, 0.0, row[i]);
            c->negated_close += is_close(c->policy, -row[i], row[i]);
            c->huge_close += is_close(c->policy, HUGE_FACTOR * row[i], row[i]);
            c->zeros.max_abs = fmax(c->zeros.max_abs, fabs(row[i]));
            c->zeros.error_squares += row[i] * row[i];
        }
    }
    c->zeros.truth_squares = c->zeros.error_squares;
    c->zeros.elements = c->subject.elements;
    c->negated = multiple(&c->zeros, -1.0);
    c->huge = multiple(&c->zeros, HUGE_FACTOR);
}

/* Those that the policy has; NaN, as 0/0, meets none. */
static size_t list_checks(const struct closeness *c, const struct metrics *m, uint64_t close,
                          struct threshold_check checks[MOST_THRESHOLDS])
{
    const struct policy *policy = c->policy;
    double energy = policy->by_subject ? m->subject_squares : m->truth_squares;
    const struct threshold_check all[MOST_THRESHOLDS] = {
        {"cosine", metrics_cosine(m), policy->cosine, true},
        {"cosine_min", m->cosine_min, policy->cosine_min, true},
        {"max_abs", m->elements ? m->max_abs : NAN, policy->max_abs, false},
        {"nmse", m->error_squares / energy, policy->nmse, false},
        {"close", (double)close / (double)m->elements, isnan(policy->atol) ? NAN : policy->fraction, true},
    };
    size_t count = 0;
    for (size_t i = 0; i < MOST_THRESHOLDS; i++)
        if (!isnan(all[i].limit))
            checks[count++] = all[i];
    return count;
}

bool threshold_met(const struct threshold_check *check)
{
    return check->at_least ? check->value >= check->limit : check->value <= check->limit;
}

const char *policy_missed(const struct closeness *c)
{
    struct threshold_check checks[MOST_THRESHOLDS];
    size_t count = list_checks(c, &c->subject, c->subject_close, checks);
    for (size_t i = 0; i < count; i++)
        if (!threshold_met(&checks[i]))
            return checks[i].name;
    return NULL;
}

static bool all_met(const struct closeness *c, const struct metrics *m, uint64_t close)
{
    struct threshold_check checks[MOST_THRESHOLDS];
    size_t count = list_checks(c, m, close, checks), met = 0;
    for (size_t i = 0; i < count; i++)
        met += threshold_met(&checks[i]);
    return count > 0 && met == count;
}

const char *policy_vacuous(const struct closeness *c)
{
    if (c->policy->exact || c->policy->bound || c->policy->rms || c->policy->scale)
        return NULL;
    if (all_met(c, &c->zeros, c->zeros_close))
        return "zeros";
    if (all_met(c, &c->negated, c->negated_close))
        return "truth of the wrong sign";
    return all_met(c, &c->huge, c->huge_close) ? "huge values" : NULL;
}

size_t policy_checks(const struct closeness *c, struct threshold_check checks[MOST_THRESHOLDS])
{
    return list_checks(c, &c->subject, c->subject_close, checks);
}
