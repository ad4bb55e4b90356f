/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "harness/judge/policy.h"
#include "quant/quant.h"

#define GATE_SCHEMA "gaugeblock-gate/1"

/* Times truth, an output that is right nowhere: an error relative to it is all but 1. */
#define HUGE_FACTOR (-0x1p40)

/* The thresholds by their keys, and what they may be: above a low of 0 where 0 would let anything pass. */
static const struct threshold {
    const char *key;
    size_t offset; /* of the double in struct gate */
    double low, high;
    bool above;
} thresholds[] = {
    {"cosine", offsetof(struct gate, cosine), 0.0, 1.0, true},
    {"cosine_min", offsetof(struct gate, cosine_min), 0.0, 1.0, true},
    {"max_abs", offsetof(struct gate, max_abs), 0.0, 1e308, false},
    {"nmse", offsetof(struct gate, nmse), 0.0, 1e308, false},
    {"atol", offsetof(struct gate, atol), 0.0, 1e308, false},
    {"rtol", offsetof(struct gate, rtol), 0.0, 1e308, false},
    {"fraction", offsetof(struct gate, fraction), 0.0, 1.0, true},
};

/* Published rules, as the systems apply them to a result and a reference of their own. docs/gates.md#presets. */
static const struct preset {
    const char *name;
    bool lanes; /* all of them */
    struct {
        const char *key;
        double limit;
    } limits[3];
    bool either, by_subject;
} presets[] = {
    {.name = "default", .lanes = true},
    /* A report on NVFP4 kernels: the smallest cosine over tokens, and a max_abs of 2^-9. */
    {.name = "cosine-0.999996", .limits = {{"cosine_min", 0.999996}, {"max_abs", 0.001953125}}},
    {.name = "cosine-0.99", .limits = {{"cosine", 0.99}}},
    /* vLLM 07b13497, tests/kernels/moe/test_nvfp4_moe.py: assert_close(reference, kernel). */
    {.name = "vllm-nvfp4-moe", .limits = {{"atol", 0.1}, {"rtol", 0.1}}, .by_subject = true},
    /* FlashInfer, tests/moe/test_trtllm_gen_fused_moe.py, FP4: right = atol + rtol * abs(kernel). */
    {.name = "flashinfer-fp4-moe", .limits = {{"atol", 0.1}, {"rtol", 0.85}, {"fraction", 0.925}}, .by_subject = true},
    /* flashinfer-bench 40e6ca7, bench/eval_config.yaml: wrong only if both tolerances are exceeded. */
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

static double *threshold_of(struct gate *gate, const struct threshold *threshold)
{
    return (double *)(void *)((char *)gate + threshold->offset);
}

/* What a name is made of, so that tables and records stay whole: printable ASCII but the bar of tables. */
static bool name_holds(char c)
{
    return c >= ' ' && c <= '~' && c != '|';
}

static enum gb_status read_name(const char *path, const char *name, struct gate *gate, struct gb_error *error)
{
    struct gate preset;
    bool good = name[0] && strlen(name) < sizeof gate->name;
    for (const char *c = name; *c; c++)
        good = good && name_holds(*c);
    if (!good)
        return gb_fail(error, GB_EFORMAT, "%s: name: give 1 to %zu printable ASCII characters, none of them |", path,
                       sizeof gate->name - 1);
    for (unsigned i = 0; gate_preset(i, &preset); i++)
        if (!strcmp(preset.name, name))
            return gb_fail(error, GB_EFORMAT, "%s: name: '%s' is a preset's; give another", path, name);
    snprintf(gate->name, sizeof gate->name, "%s", name);
    return GB_OK;
}

/* A gate that asks for nothing. */
static void gate_clear(struct gate *gate, const char *name)
{
    *gate = (struct gate){.bound = false};
    snprintf(gate->name, sizeof gate->name, "%.63s", name);
    for (char *c = gate->name; *c; c++)
        if (!name_holds(*c))
            *c = '?';
    for (size_t i = 0; i < sizeof thresholds / sizeof *thresholds; i++)
        *threshold_of(gate, &thresholds[i]) = NAN;
}

/* Without a fraction, all elements must be close. */
static void gate_complete(struct gate *gate)
{
    if (isnan(gate->fraction) && !isnan(gate->atol))
        gate->fraction = 1.0;
}

bool gate_preset(unsigned index, struct gate *gate)
{
    if (index >= sizeof presets / sizeof *presets)
        return false;
    const struct preset *preset = &presets[index];
    gate_clear(gate, preset->name);
    gate->exact = gate->bound = gate->rms = gate->gain = preset->lanes;
    gate->either = preset->either;
    gate->by_subject = preset->by_subject;
    for (size_t i = 0; i < sizeof preset->limits / sizeof *preset->limits && preset->limits[i].key; i++)
        *threshold_of(gate, threshold_find(preset->limits[i].key)) = preset->limits[i].limit;
    gate_complete(gate);
    return true;
}

static enum gb_status read_lanes(const char *path, const json_t *lanes, struct gate *gate, struct gb_error *error)
{
    for (size_t i = 0; i < json_array_size(lanes); i++) {
        const char *lane = json_string_value(json_array_get(lanes, i));
        if (lane && !strcmp(lane, "exact"))
            gate->exact = true;
        else if (lane && !strcmp(lane, "bound"))
            gate->bound = true;
        else if (lane && !strcmp(lane, "rms"))
            gate->rms = true;
        else if (lane && !strcmp(lane, "gain"))
            gate->gain = true;
        else
            return gb_fail(error, GB_EFORMAT, "%s: lanes: there are \"exact\", \"bound\", \"rms\" and \"gain\"", path);
    }
    return json_is_array(lanes) ? GB_OK : gb_fail(error, GB_EFORMAT, "%s: lanes: give an array of names", path);
}

static enum gb_status read_key(const char *path, const char *key, const json_t *value, struct gate *gate,
                               struct gb_error *error)
{
    const struct threshold *threshold = threshold_find(key);
    double number = json_number_value(value);
    if (threshold) {
        *threshold_of(gate, threshold) = number;
        if (json_is_number(value) && number <= threshold->high &&
            (threshold->above ? number > threshold->low : number >= threshold->low))
            return GB_OK;
        return gb_fail(error, GB_EFORMAT, "%s: %s: give a number %s %g to %g", path, key,
                       threshold->above ? "above" : "from", threshold->low, threshold->high);
    }
    if (!strcmp(key, "lanes"))
        return read_lanes(path, value, gate, error);
    if (!strcmp(key, "either") && json_is_boolean(value))
        gate->either = json_is_true(value);
    else if (!strcmp(key, "relative_to") && json_is_string(value) && !strcmp(json_string_value(value), "subject"))
        gate->by_subject = true;
    else if (!strcmp(key, "relative_to") && json_is_string(value) && !strcmp(json_string_value(value), "truth"))
        gate->by_subject = false;
    else if (!strcmp(key, "name") && json_is_string(value))
        return read_name(path, json_string_value(value), gate, error);
    else if (strcmp(key, "schema") || !json_is_string(value) || strcmp(json_string_value(value), GATE_SCHEMA))
        return gb_fail(error, GB_EFORMAT,
                       "%s: '%.40s' is no key of a gate, or its value is of another type; see docs/gates.md", path,
                       key);
    return GB_OK;
}

static enum gb_status read_object(const char *path, json_t *object, struct gate *gate, struct gb_error *error)
{
    const char *key;
    json_t *value;
    enum gb_status status = GB_OK;
    if (!json_is_object(object) || !json_object_get(object, "schema"))
        return gb_fail(error, GB_EFORMAT, "%s: a gate is an object with \"schema\": \"gaugeblock-gate/1\"", path);
    json_object_foreach(object, key, value) if (status == GB_OK) status = read_key(path, key, value, gate, error);
    if (status == GB_OK && isnan(gate->atol) != isnan(gate->rtol))
        status = gb_fail(error, GB_EFORMAT, "%s: atol and rtol go together", path);
    if (status == GB_OK && isnan(gate->atol) && (!isnan(gate->fraction) || gate->either))
        status = gb_fail(error, GB_EFORMAT, "%s: fraction and either go with atol and rtol", path);
    gate_complete(gate);
    bool any = gate->exact || gate->bound || gate->rms || gate->gain || !isnan(gate->cosine) ||
               !isnan(gate->cosine_min) || !isnan(gate->max_abs) || !isnan(gate->nmse) || !isnan(gate->atol);
    if (status == GB_OK && !any)
        status = gb_fail(error, GB_EFORMAT, "%s: a gate without lanes and thresholds lets everything pass", path);
    return status;
}

enum gb_status gate_read(const char *path, struct gate *gate, struct gb_error *error)
{
    json_error_t problem;
    struct stat about;
    for (unsigned i = 0; gate_preset(i, gate); i++)
        if (!strcmp(gate->name, path))
            return GB_OK;
    gate_clear(gate, path);
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode))
        return gb_fail(error, GB_EIO, "--gate %.200s: is no regular file", path);
    json_t *object = json_load_file(path, JSON_REJECT_DUPLICATES, &problem);
    if (!object)
        return problem.line < 1
                   ? gb_fail(error, GB_EIO, "--gate %.200s: neither a preset nor a JSON file: %.160s", path,
                             problem.text)
                   : gb_fail(error, GB_EFORMAT, "--gate %.200s: neither a preset nor JSON: line %d, column %d: %.160s",
                             path, problem.line, problem.column, problem.text);
    enum gb_status status = read_object(path, object, gate, error);
    json_decref(object);
    return status;
}

json_t *gate_json(const struct gate *gate)
{
    struct gate copy = *gate;
    json_t *lanes = json_array();
    if (gate->exact)
        json_array_append_new(lanes, json_string("exact"));
    if (gate->bound)
        json_array_append_new(lanes, json_string("bound"));
    if (gate->rms)
        json_array_append_new(lanes, json_string("rms"));
    if (gate->gain)
        json_array_append_new(lanes, json_string("gain"));
    json_t *object =
        json_pack("{s:s, s:o, s:o}", "schema", GATE_SCHEMA, "name", json_string(gate->name), "lanes", lanes);
    for (size_t i = 0; i < sizeof thresholds / sizeof *thresholds; i++)
        if (!isnan(*threshold_of(&copy, &thresholds[i])))
            json_object_set_new(object, thresholds[i].key, json_real(*threshold_of(&copy, &thresholds[i])));
    if (gate->either)
        json_object_set_new(object, "either", json_true());
    if (gate->by_subject)
        json_object_set_new(object, "relative_to", json_string("subject"));
    return object;
}

void gate_start(const struct gate *gate, struct closeness *c)
{
    *c = (struct closeness){.gate = gate};
    metrics_start(&c->subject);
    metrics_start(&c->zeros);
    metrics_start(&c->negated);
    metrics_start(&c->huge);
}

/* What is not finite is close to nothing, though infinity is within any share of itself. */
static bool is_close(const struct gate *gate, double value, double truth)
{
    if (!isfinite(value))
        return false;
    double error = fabs(value - truth), relative = gate->rtol * fabs(gate->by_subject ? value : truth);
    return gate->either ? error <= gate->atol || error <= relative : error <= gate->atol + relative;
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

void gate_compare(struct closeness *c, const double *subject, const double *truth, uint32_t tokens, uint32_t width)
{
    metrics_add(&c->subject, subject, truth, tokens, width);
    for (uint32_t t = 0; t < tokens; t++) {
        const double *row = truth + (size_t)t * width;
        for (uint32_t i = 0; i < width; i++) {
            c->subject_close += is_close(c->gate, subject[(size_t)t * width + i], row[i]);
            c->zeros_close += is_close(c->gate, 0.0, row[i]);
            c->negated_close += is_close(c->gate, -row[i], row[i]);
            c->huge_close += is_close(c->gate, HUGE_FACTOR * row[i], row[i]);
            c->zeros.max_abs = fmax(c->zeros.max_abs, fabs(row[i]));
            c->zeros.error_squares += row[i] * row[i];
        }
    }
    c->zeros.truth_squares = c->zeros.error_squares;
    c->zeros.elements = c->subject.elements;
    c->negated = multiple(&c->zeros, -1.0);
    c->huge = multiple(&c->zeros, HUGE_FACTOR);
}

/* Those that the gate has; NaN, as 0/0, meets none. */
static size_t list_checks(const struct closeness *c, const struct metrics *m, uint64_t close,
                          struct threshold_check checks[MOST_THRESHOLDS])
{
    const struct gate *gate = c->gate;
    double energy = gate->by_subject ? m->subject_squares : m->truth_squares;
    const struct threshold_check all[MOST_THRESHOLDS] = {
        {"cosine", metrics_cosine(m), gate->cosine, true},
        {"cosine_min", m->cosine_min, gate->cosine_min, true},
        {"max_abs", m->elements ? m->max_abs : NAN, gate->max_abs, false},
        {"nmse", m->error_squares / energy, gate->nmse, false},
        {"close", (double)close / (double)m->elements, isnan(gate->atol) ? NAN : gate->fraction, true},
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

const char *gate_missed(const struct closeness *c)
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

const char *gate_vacuous(const struct closeness *c)
{
    if (c->gate->exact || c->gate->bound || c->gate->rms || c->gate->gain)
        return NULL;
    if (all_met(c, &c->zeros, c->zeros_close))
        return "zeros";
    if (all_met(c, &c->negated, c->negated_close))
        return "truth of the wrong sign";
    return all_met(c, &c->huge, c->huge_close) ? "huge values" : NULL;
}

size_t gate_checks(const struct closeness *c, struct threshold_check checks[MOST_THRESHOLDS])
{
    return list_checks(c, &c->subject, c->subject_close, checks);
}
