/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/report/to_json.h"
#include "harness/run/json_text.h"

static void set_in_group(json_t *object, const char *group, const char *name, json_t *value)
{
    json_t *inner = json_object_get(object, group);
    if (!inner) {
        inner = json_object();
        json_object_set_new(object, group, inner);
    }
    json_object_set_new(inner, name, value);
}

json_t *number_to_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *metrics_to_json(const struct metrics *m)
{
    return json_pack("{s:I, s:I, s:o, s:i, s:o, s:o, s:o, s:o}", "elements", (json_int_t)m->elements, "non_finite",
                     (json_int_t)m->non_finite, "cosine_min", number_to_json(m->cosine_min), "cosine_min_token",
                     (int)m->cosine_token, "cosine", number_to_json(metrics_cosine(m)), "max_abs",
                     number_to_json(m->max_abs), "relative_l2", number_to_json(metrics_relative_l2(m)), "sqnr_db",
                     number_to_json(metrics_sqnr(m)));
}

static json_t *hex(uint32_t bits, enum gb_format format)
{
    return json_sprintf("0x%0*x", format == GB_FP32 ? 8 : 4, bits);
}

static json_t *difference_to_json(const struct difference *d, enum gb_format format, size_t per_token)
{
    json_t *object = json_pack("{s:I, s:I, s:I, s:I}", "compared", (json_int_t)d->compared, "mismatching",
                               (json_int_t)d->mismatching, "nan_mismatching", (json_int_t)d->nan_mismatching, "max_ulp",
                               (json_int_t)d->max_ulp);
    if (d->mismatching)
        json_object_set_new(object, "first",
                            json_pack("{s:I, s:I, s:o, s:o}", "token", (json_int_t)(d->first / per_token), "element",
                                      (json_int_t)(d->first % per_token), "subject", hex(d->first_subject, format),
                                      "reference", hex(d->first_reference, format)));
    return object;
}

static json_t *stage_bound_to_json(const struct bound_result *r, size_t per_token)
{
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:I, s:I}", "elements", (json_int_t)r->elements, "exceeding",
                     (json_int_t)r->exceeding, "worst_case_ratio", number_to_json(r->worst_ratio), "limit_ratio",
                     number_to_json(r->limit_ratio), "rms_ratio", number_to_json(r->rms_ratio), "at_token",
                     (json_int_t)(r->at / per_token), "at_element", (json_int_t)(r->at % per_token));
}

static json_t *bits_to_json(const struct check_result *check, bool binding)
{
    return json_pack("{s:b, s:s, s:I, s:I, s:I}", "binding", binding, "result", check->mismatching ? "FAIL" : "PASS",
                     "compared", (json_int_t)check->compared, "mismatching", (json_int_t)check->mismatching, "max_ulp",
                     (json_int_t)check->max_ulp);
}

static json_t *bound_to_json(const struct check_result *check, bool binding)
{
    return json_pack("{s:b, s:s, s:I, s:I, s:o, s:o, s:o, s:f}", "binding", binding, "result",
                     check->exceeding ? "FAIL" : "PASS", "elements", (json_int_t)check->elements, "exceeding",
                     (json_int_t)check->exceeding, "worst_case_ratio", number_to_json(check->worst_ratio),
                     "limit_ratio", number_to_json(check->limit_ratio), "rms_ratio", number_to_json(check->rms_ratio),
                     "false_alarm_probability", FALSE_ALARM_PROBABILITY);
}

static json_t *family_to_json(enum family family, const struct family_result *r)
{
    char place[64];
    return json_pack(
        "{s:s, s:I, s:I, s:o, s:i, s:s, s:o, s:o}", "name", family_name(family), "statistics", (json_int_t)r->count,
        "exceeding", (json_int_t)r->exceeding, "limit_ratio", number_to_json(r->limit_ratio), "at_layer", (int)r->layer,
        "at", family_place(family, r, place, sizeof place), "detection_limit_smallest",
        number_to_json(r->detection_smallest), "detection_limit_worst", number_to_json(r->detection_worst));
}

static json_t *aggregate_to_json(const struct aggregate_tests *s, bool scale, bool binding)
{
    json_t *families = json_array();
    uint64_t count = 0, exceeding = 0;
    double largest = 0.0;
    for (enum family f = 0; f < FAMILIES; f++) {
        const struct family_result *r = &s->family[f];
        if (family_is_scale(f) != scale || r->count == 0)
            continue;
        json_array_append_new(families, family_to_json(f, r));
        count += r->count;
        exceeding += r->exceeding;
        largest = isnan(largest) || largest >= r->limit_ratio ? largest : r->limit_ratio;
    }
    json_t *object = json_pack("{s:b, s:s, s:I, s:I, s:o, s:f, s:i}", "binding", binding, "result",
                               exceeding ? "FAIL" : "PASS", "statistics", (json_int_t)count, "exceeding",
                               (json_int_t)exceeding, "limit_ratio", number_to_json(largest), "false_alarm_probability",
                               s->probability, "tokens_judged", (int)s->tokens_judged);
    if (s->ambiguous_codes || s->tokens_left_out)
        json_object_update_new(object, json_pack("{s:I, s:I}", "ambiguous_codes", (json_int_t)s->ambiguous_codes,
                                                 "tokens_left_out", (json_int_t)s->tokens_left_out));
    json_object_set_new(object, "families", families);
    return object;
}

static json_t *exact_to_json(const struct exact_result *check)
{
    if (check->why)
        return json_pack("{s:b, s:s, s:s, s:i, s:i}", "binding", false, "result", "NOT_RUN", "reason", check->why,
                         "at_layer", (int)check->layer, "at_token", (int)check->token);
    return json_pack("{s:b, s:s, s:I, s:I, s:f}", "binding", check->binding, "result",
                     exact_violated(check) ? "FAIL" : "PASS", "compared", (json_int_t)check->compared, "mismatching",
                     (json_int_t)check->mismatching, "widest_sum_bits", check->bits);
}

static json_t *codes_to_json(const struct codes_result *check)
{
    return json_pack("{s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:f}", "binding", check->binding, "result",
                     codes_violated(check) ? "FAIL" : "PASS", "codes", (json_int_t)check->codes, "same",
                     (json_int_t)(check->codes - check->flips - check->inadmissible), "admissible_differences",
                     (json_int_t)check->flips, "inadmissible", (json_int_t)check->inadmissible, "counted_differences",
                     (json_int_t)check->counted, "expected_differences", number_to_json(check->expected),
                     "allowed_differences", (json_int_t)check->allowed, "false_alarm_probability",
                     FALSE_ALARM_PROBABILITY);
}

static json_t *down_to_json(const struct down_result *check)
{
    json_t *object = json_pack("{s:o}", "bound", bound_to_json(&check->bound, check->bound_binding));
    if (check->why) {
        json_object_set_new(object, "aggregate_tests_not_run", json_string(check->why));
    } else {
        json_object_set_new(object, "rms", aggregate_to_json(&check->aggregate, false, check->rms_binding));
        json_object_set_new(object, "scale", aggregate_to_json(&check->aggregate, true, check->scale_binding));
    }
    return object;
}

/* rms, or scale. */
static json_t *sums_to_json(const struct case_result *r, bool scale)
{
    json_t *object = aggregate_to_json(&r->aggregate, scale, scale ? r->scale_binding : r->rms_binding);
    if (r->without_sums) {
        json_object_set_new(object, "result", json_string("NOT_RUN"));
        json_object_set_new(object, "reason", json_string(r->without_sums));
    }
    return object;
}

/* NULL: the policy has none. */
static json_t *thresholds_to_json(const struct closeness *c)
{
    struct threshold_check checks[MOST_THRESHOLDS];
    size_t count = policy_checks(c, checks);
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_pack("{s:s, s:o, s:f, s:s}", "name", checks[i].name, "value",
                                               number_to_json(checks[i].value), "limit", checks[i].limit, "result",
                                               threshold_met(&checks[i]) ? "PASS" : "FAIL"));
    if (!count) {
        json_decref(array);
        return NULL;
    }
    return json_pack("{s:b, s:s, s:s, s:o}", "binding", true, "result", policy_missed(c) ? "FAIL" : "PASS", "gate",
                     c->policy->name, "checks", array);
}

/* Of a quantiser: codes, or scales. */
static json_t *array_to_json(const struct quantise_check *k, const struct array_check *a, uint32_t digits)
{
    json_t *object = json_pack("{s:I, s:I, s:I}", "compared", (json_int_t)a->compared, "mismatching",
                               (json_int_t)a->mismatching, "admissible", (json_int_t)a->admissible);
    if (a->mismatching)
        json_object_set_new(object, "first",
                            json_pack("{s:i, s:i, s:i, s:o, s:o}", "row", (int)a->row, "column", (int)a->column,
                                      "block", (int)(a->column / k->block), "subject",
                                      json_sprintf("0x%0*x", (int)digits, a->got), "reference",
                                      json_sprintf("0x%0*x", (int)digits, a->reference)));
    return object;
}

static json_t *quantise_check_to_json(const struct quantise_check *k)
{
    uint64_t wrong = array_wrong(k, &k->codes) + array_wrong(k, &k->scales);
    return json_pack("{s:{s:b, s:s, s:I, s:I, s:I, s:b}}", "bits", "binding", true, "result", wrong ? "FAIL" : "PASS",
                     "compared", (json_int_t)(k->codes.compared + k->scales.compared), "mismatching",
                     (json_int_t)(k->codes.mismatching + k->scales.mismatching), "admissible",
                     (json_int_t)(k->codes.admissible + k->scales.admissible), "open_silu", k->open_silu);
}

/* In the form of one layer. */
static json_t *quantised_to_json(const struct quantise_check *k)
{
    return json_pack("{s:[{s:i, s:i, s:{s:o, s:o}, s:s, s:s}]}", "layers", "layer", 0, "model_layer", 0,
                     "subject_reference", "codes", array_to_json(k, &k->codes, k->code_digits), "scales",
                     array_to_json(k, &k->scales, k->scale_digits), "codes_sha256", k->codes_sha256, "scales_sha256",
                     k->scales_sha256);
}

json_t *checks_to_json(const struct case_result *r)
{
    if (r->quantiser)
        return quantise_check_to_json(&r->quantise);
    json_t *checks = json_pack("{s:o}", "bits", bits_to_json(&r->bits, r->bits_binding));
    if (r->exchange && !r->bound_binding)
        return checks;
    if (!r->router && !r->exchange)
        json_object_set_new(checks, "exact", exact_to_json(&r->exact));
    json_object_set_new(checks, "bound", bound_to_json(&r->bound, r->bound_binding));
    if (r->router || r->exchange)
        return checks;
    json_object_set_new(checks, "rms", sums_to_json(r, false));
    json_object_set_new(checks, "scale", sums_to_json(r, true));
    if (r->codes.codes)
        json_object_set_new(checks, "codes", codes_to_json(&r->codes));
    if (!check_vacuous(&r->down.bound))
        json_object_set_new(checks, "down", down_to_json(&r->down));
    json_t *thresholds = r->output ? thresholds_to_json(&r->closeness) : NULL;
    if (thresholds)
        json_object_set_new(checks, "thresholds", thresholds);
    return checks;
}

static json_t *tokens_to_json(const struct routed_tokens *t)
{
    return json_pack("{s:I, s:I, s:I, s:o}", "same_experts", (json_int_t)t->same, "swapped", (json_int_t)t->swapped,
                     "wrong", (json_int_t)t->wrong, "largest_gap_ulp", number_to_json(t->gap_ulp));
}

static json_t *layer_to_json(const struct layer_result *l)
{
    json_t *object = json_pack("{s:i, s:i}", "layer", (int)l->layer, "model_layer", (int)l->model_layer);
    for (uint32_t i = 0; i < l->bits_count; i++)
        set_in_group(object, "subject_reference", l->bits[i].stage,
                     difference_to_json(&l->bits[i].of, l->bits[i].format, l->bits[i].per_token));
    for (uint32_t i = 0; i < l->bound_count; i++)
        set_in_group(object, "bound", l->bound[i].stage, stage_bound_to_json(&l->bound[i].of, l->bound[i].per_token));
    for (uint32_t i = 0; i < l->distance_count; i++)
        set_in_group(object, l->distance[i].subject, l->distance[i].truth, metrics_to_json(&l->distance[i].of));
    for (uint32_t i = 0; i < l->hash_count; i++)
        json_object_set_new(object, l->hash[i].name, json_string(l->hash[i].sha256));
    if (l->routed)
        json_object_set_new(object, "tokens", tokens_to_json(&l->tokens));
    return object;
}

static json_t *distances_to_json(const struct distances *sum)
{
    json_t *object = json_object();
    set_in_group(object, "reference_truth", "quantised", metrics_to_json(&sum->reference_quantised));
    set_in_group(object, "reference_truth", "original", metrics_to_json(&sum->reference_original));
    set_in_group(object, "subject_truth", "quantised", metrics_to_json(&sum->subject_quantised));
    set_in_group(object, "subject_truth", "original", metrics_to_json(&sum->subject_original));
    set_in_group(object, "subject_truth", "quantised_bf16_store", metrics_to_json(&sum->stored_quantised));
    return object;
}

static json_t *drift_to_json(const struct drift_result *d)
{
    json_t *object = json_pack("{s:i, s:i}", "layer", (int)d->layer, "model_layer", (int)d->model_layer);
    set_in_group(object, "subject_truth", "quantised", metrics_to_json(&d->subject_quantised));
    set_in_group(object, "subject_truth", "original", metrics_to_json(&d->subject_original));
    json_object_set_new(object, "subject_changed_expert_sets", json_integer(d->subject_changed));
    set_in_group(object, "reference_truth", "quantised", metrics_to_json(&d->reference_quantised));
    set_in_group(object, "reference_truth", "original", metrics_to_json(&d->reference_original));
    json_object_set_new(object, "reference_changed_expert_sets", json_integer(d->reference_changed));
    return object;
}

json_t *figures_to_json(const struct case_result *r)
{
    if (r->quantiser)
        return quantised_to_json(&r->quantise);
    json_t *layers = json_array(), *metrics = json_pack("{s:o}", "layers", layers);
    for (uint32_t l = 0; l < r->layers; l++)
        json_array_append_new(layers, layer_to_json(&r->layer[l]));
    if (r->output)
        json_object_set_new(metrics, "overall", distances_to_json(&r->overall));
    if (r->drift) {
        json_t *drift = json_array();
        for (uint32_t l = 0; l < r->layers; l++)
            json_array_append_new(drift, drift_to_json(&r->drift[l]));
        json_object_set_new(metrics, "drift", drift);
    }
    return metrics;
}

json_t *explanation_to_json(const struct explanation *e)
{
    json_t *candidates = json_array(), *also = json_array(), *where = json_object();
    for (uint32_t i = 0; i < e->shown_count; i++)
        json_array_append_new(candidates,
                              json_pack("{s:s, s:f}", "name", e->shown[i].name, "explains", e->shown[i].explains));
    for (uint32_t i = 0; i < e->also_count; i++)
        json_array_append_new(also, json_string(e->also[i].name));
    if (e->tokens[0])
        json_object_set_new(where, "tokens", json_string(e->tokens));
    if (e->expert >= 0)
        json_object_set_new(where, "expert", json_integer(e->expert));
    if (e->columns[0])
        json_object_set_new(where, "columns", json_string(e->columns));
    json_t *structure = json_array();
    for (uint32_t i = 0; i < e->found_count; i++)
        json_array_append_new(structure,
                              json_pack("{s:s, s:s, s:s, s:s}", "stage", e->words[i].stage, "array", e->words[i].array,
                                        "place", e->words[i].place, "effect", e->words[i].effect));
    const struct searched *s = &e->searched;
    json_t *object = json_pack("{s:i, s:s, s:s, s:f, s:o, s:o, s:o, s:o}", "layer", (int)e->layer, "name", e->best.name,
                               "kind", e->kind, "explains", e->best.explains, "structure", structure, "also_fits", also,
                               "where", where, "candidates", candidates);
    if (s->findings || s->known_bugs)
        json_object_set_new(object, "searched",
                            json_pack("{s:I, s:f, s:I, s:I}", "findings", (json_int_t)s->findings, "products",
                                      s->products, "known_bugs", (json_int_t)s->known_bugs, "untried_bugs",
                                      (json_int_t)s->untried_bugs));
    return object;
}

json_t *minimal_to_json(const struct minimal_part *m)
{
    return json_pack("{s:s, s:I, s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "path", m->path, "bytes",
                     (json_int_t)m->bytes, "name", m->name, "explained_alike", m->explained_alike, "layer",
                     (int)m->layer, "first_token", (int)m->first_token, "tokens", (int)m->tokens, "first_slot",
                     (int)m->first_slot, "slots", (int)m->slots, "hidden", (int)m->hidden, "intermediate",
                     (int)m->intermediate, "tries", (int)m->tries, "repro", record_string(m->repro));
}

json_t *coverage_to_json(const struct coverage *c)
{
    json_t *object = json_object();
    char name[32];
    for (enum coverage_item i = 0; i < COVERAGE_ITEMS; i++) {
        if (!c->of[i].applies)
            continue;
        json_t *count = json_pack("{s:I}", "seen", (json_int_t)c->of[i].seen);
        if (c->of[i].possible)
            json_object_set_new(count, "possible", json_integer((json_int_t)c->of[i].possible));
        json_object_set_new(object, coverage_name(i, name), count);
    }
    return object;
}
