/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/report/to_json.h"
#include "harness/run/json_text.h"

static void describe_into(json_t *object, const char *group, const char *name, json_t *value)
{
    json_t *inner = json_object_get(object, group);
    if (!inner) {
        inner = json_object();
        json_object_set_new(object, group, inner);
    }
    json_object_set_new(inner, name, value);
}

json_t *describe_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *describe_metrics(const struct metrics *m)
{
    return json_pack("{s:I, s:I, s:o, s:i, s:o, s:o, s:o, s:o}", "elements", (json_int_t)m->elements, "non_finite",
                     (json_int_t)m->non_finite, "cosine_min", describe_number(m->cosine_min), "cosine_min_token",
                     (int)m->cosine_token, "cosine", describe_number(metrics_cosine(m)), "max_abs",
                     describe_number(m->max_abs), "relative_l2", describe_number(metrics_relative_l2(m)), "sqnr_db",
                     describe_number(metrics_sqnr(m)));
}

static json_t *hex(uint32_t bits, enum gb_format format)
{
    return json_sprintf("0x%0*x", format == GB_FP32 ? 8 : 4, bits);
}

static json_t *describe_difference(const struct difference *d, enum gb_format format, size_t per_token)
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

static json_t *describe_stage_bound(const struct bound_result *r, size_t per_token)
{
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:I, s:I}", "elements", (json_int_t)r->elements, "exceeding",
                     (json_int_t)r->exceeding, "worst_case_ratio", describe_number(r->worst_ratio), "limit_ratio",
                     describe_number(r->limit_ratio), "rms_ratio", describe_number(r->rms_ratio), "at_token",
                     (json_int_t)(r->at / per_token), "at_element", (json_int_t)(r->at % per_token));
}

static json_t *describe_bits(const struct check_result *check, bool binding)
{
    return json_pack("{s:b, s:s, s:I, s:I, s:I}", "binding", binding, "result", check->mismatching ? "FAIL" : "PASS",
                     "compared", (json_int_t)check->compared, "mismatching", (json_int_t)check->mismatching, "max_ulp",
                     (json_int_t)check->max_ulp);
}

static json_t *describe_bound(const struct check_result *check, bool binding)
{
    return json_pack("{s:b, s:s, s:I, s:I, s:o, s:o, s:o, s:f}", "binding", binding, "result",
                     check->exceeding ? "FAIL" : "PASS", "elements", (json_int_t)check->elements, "exceeding",
                     (json_int_t)check->exceeding, "worst_case_ratio", describe_number(check->worst_ratio),
                     "limit_ratio", describe_number(check->limit_ratio), "rms_ratio", describe_number(check->rms_ratio),
                     "false_alarm_probability", FALSE_ALARM_PROBABILITY);
}

static json_t *describe_family(enum family family, const struct family_result *r)
{
    char place[64];
    return json_pack(
        "{s:s, s:I, s:I, s:o, s:i, s:s, s:o, s:o}", "name", family_name(family), "statistics", (json_int_t)r->count,
        "exceeding", (json_int_t)r->exceeding, "limit_ratio", describe_number(r->limit_ratio), "at_layer",
        (int)r->layer, "at", family_place(family, r, place, sizeof place), "detection_limit_smallest",
        describe_number(r->detection_smallest), "detection_limit_worst", describe_number(r->detection_worst));
}

static json_t *describe_aggregate(const struct aggregate_tests *s, bool scale, bool binding)
{
    json_t *families = json_array();
    uint64_t count = 0, exceeding = 0;
    double largest = 0.0;
    for (enum family f = 0; f < FAMILIES; f++) {
        const struct family_result *r = &s->family[f];
        if (family_is_scale(f) != scale || r->count == 0)
            continue;
        json_array_append_new(families, describe_family(f, r));
        count += r->count;
        exceeding += r->exceeding;
        largest = isnan(largest) || largest >= r->limit_ratio ? largest : r->limit_ratio;
    }
    json_t *object = json_pack("{s:b, s:s, s:I, s:I, s:o, s:f, s:i}", "binding", binding, "result",
                               exceeding ? "FAIL" : "PASS", "statistics", (json_int_t)count, "exceeding",
                               (json_int_t)exceeding, "limit_ratio", describe_number(largest),
                               "false_alarm_probability", s->probability, "tokens_judged", (int)s->tokens_judged);
    if (s->ambiguous_codes || s->tokens_left_out)
        json_object_update_new(object, json_pack("{s:I, s:I}", "ambiguous_codes", (json_int_t)s->ambiguous_codes,
                                                 "tokens_left_out", (json_int_t)s->tokens_left_out));
    json_object_set_new(object, "families", families);
    return object;
}

static json_t *describe_exact(const struct exact_result *check)
{
    if (check->why)
        return json_pack("{s:b, s:s, s:s, s:i, s:i}", "binding", false, "result", "NOT_RUN", "reason", check->why,
                         "at_layer", (int)check->layer, "at_token", (int)check->token);
    return json_pack("{s:b, s:s, s:I, s:I, s:f}", "binding", check->binding, "result",
                     exact_violated(check) ? "FAIL" : "PASS", "compared", (json_int_t)check->compared, "mismatching",
                     (json_int_t)check->mismatching, "widest_sum_bits", check->bits);
}

static json_t *describe_codes(const struct codes_result *check)
{
    return json_pack("{s:b, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:I, s:f}", "binding", check->binding, "result",
                     codes_violated(check) ? "FAIL" : "PASS", "codes", (json_int_t)check->codes, "same",
                     (json_int_t)(check->codes - check->flips - check->inadmissible), "admissible_differences",
                     (json_int_t)check->flips, "inadmissible", (json_int_t)check->inadmissible, "counted_differences",
                     (json_int_t)check->counted, "expected_differences", describe_number(check->expected),
                     "allowed_differences", (json_int_t)check->allowed, "false_alarm_probability",
                     FALSE_ALARM_PROBABILITY);
}

static json_t *describe_down(const struct down_result *check)
{
    json_t *object = json_pack("{s:o}", "bound", describe_bound(&check->bound, check->bound_binding));
    if (check->why) {
        json_object_set_new(object, "aggregate_tests_not_run", json_string(check->why));
    } else {
        json_object_set_new(object, "rms", describe_aggregate(&check->aggregate, false, check->rms_binding));
        json_object_set_new(object, "scale", describe_aggregate(&check->aggregate, true, check->scale_binding));
    }
    return object;
}

/* rms, or scale. */
static json_t *describe_sums(const struct case_result *r, bool scale)
{
    json_t *object = describe_aggregate(&r->aggregate, scale, scale ? r->scale_binding : r->rms_binding);
    if (r->without_sums) {
        json_object_set_new(object, "result", json_string("NOT_RUN"));
        json_object_set_new(object, "reason", json_string(r->without_sums));
    }
    return object;
}

/* NULL: the policy has none. */
static json_t *describe_thresholds(const struct closeness *c)
{
    struct threshold_check checks[MOST_THRESHOLDS];
    size_t count = policy_checks(c, checks);
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_pack("{s:s, s:o, s:f, s:s}", "name", checks[i].name, "value",
                                               describe_number(checks[i].value), "limit", checks[i].limit, "result",
                                               threshold_met(&checks[i]) ? "PASS" : "FAIL"));
    if (!count) {
        json_decref(array);
        return NULL;
    }
    return json_pack("{s:b, s:s, s:s, s:o}", "binding", true, "result", policy_missed(c) ? "FAIL" : "PASS", "gate",
                     c->policy->name, "checks", array);
}

/* Of a quantiser: codes, or scales. */
static json_t *describe_array(const struct quantise_check *k, const struct array_check *a, uint32_t digits)
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

static json_t *describe_quantise_check(const struct quantise_check *k)
{
    uint64_t wrong = array_wrong(k, &k->codes) + array_wrong(k, &k->scales);
    return json_pack("{s:{s:b, s:s, s:I, s:I, s:I, s:b}}", "bits", "binding", true, "result", wrong ? "FAIL" : "PASS",
                     "compared", (json_int_t)(k->codes.compared + k->scales.compared), "mismatching",
                     (json_int_t)(k->codes.mismatching + k->scales.mismatching), "admissible",
                     (json_int_t)(k->codes.admissible + k->scales.admissible), "open_silu", k->open_silu);
}

/* In the form of one layer. */
static json_t *describe_quantised(const struct quantise_check *k)
{
    return json_pack("{s:[{s:i, s:i, s:{s:o, s:o}, s:s, s:s}]}", "layers", "layer", 0, "model_layer", 0,
                     "subject_reference", "codes", describe_array(k, &k->codes, k->code_digits), "scales",
                     describe_array(k, &k->scales, k->scale_digits), "codes_sha256", k->codes_sha256, "scales_sha256",
                     k->scales_sha256);
}

json_t *describe_checks(const struct case_result *r)
{
    if (r->quantiser)
        return describe_quantise_check(&r->quantise);
    json_t *checks = json_pack("{s:o}", "bits", describe_bits(&r->bits, r->bits_binding));
    if (r->exchange && !r->bound_binding)
        return checks;
    if (!r->router && !r->exchange)
        json_object_set_new(checks, "exact", describe_exact(&r->exact));
    json_object_set_new(checks, "bound", describe_bound(&r->bound, r->bound_binding));
    if (r->router || r->exchange)
        return checks;
    json_object_set_new(checks, "rms", describe_sums(r, false));
    json_object_set_new(checks, "scale", describe_sums(r, true));
    if (r->codes.codes)
        json_object_set_new(checks, "codes", describe_codes(&r->codes));
    if (!check_vacuous(&r->down.bound))
        json_object_set_new(checks, "down", describe_down(&r->down));
    json_t *thresholds = r->output ? describe_thresholds(&r->closeness) : NULL;
    if (thresholds)
        json_object_set_new(checks, "thresholds", thresholds);
    return checks;
}

static json_t *describe_tokens(const struct routed_tokens *t)
{
    return json_pack("{s:I, s:I, s:I, s:o}", "same_experts", (json_int_t)t->same, "swapped", (json_int_t)t->swapped,
                     "wrong", (json_int_t)t->wrong, "largest_gap_ulp", describe_number(t->gap_ulp));
}

static json_t *describe_layer(const struct layer_result *l)
{
    json_t *object = json_pack("{s:i, s:i}", "layer", (int)l->layer, "model_layer", (int)l->model_layer);
    for (uint32_t i = 0; i < l->bits_count; i++)
        describe_into(object, "subject_reference", l->bits[i].stage,
                      describe_difference(&l->bits[i].of, l->bits[i].format, l->bits[i].per_token));
    for (uint32_t i = 0; i < l->bound_count; i++)
        describe_into(object, "bound", l->bound[i].stage, describe_stage_bound(&l->bound[i].of, l->bound[i].per_token));
    for (uint32_t i = 0; i < l->distance_count; i++)
        describe_into(object, l->distance[i].subject, l->distance[i].truth, describe_metrics(&l->distance[i].of));
    for (uint32_t i = 0; i < l->hash_count; i++)
        json_object_set_new(object, l->hash[i].name, json_string(l->hash[i].sha256));
    if (l->routed)
        json_object_set_new(object, "tokens", describe_tokens(&l->tokens));
    return object;
}

static json_t *describe_distances(const struct distances *sum)
{
    json_t *object = json_object();
    describe_into(object, "reference_truth", "quantised", describe_metrics(&sum->reference_quantised));
    describe_into(object, "reference_truth", "original", describe_metrics(&sum->reference_original));
    describe_into(object, "subject_truth", "quantised", describe_metrics(&sum->subject_quantised));
    describe_into(object, "subject_truth", "original", describe_metrics(&sum->subject_original));
    describe_into(object, "subject_truth", "quantised_bf16_store", describe_metrics(&sum->stored_quantised));
    return object;
}

static json_t *describe_drift(const struct drift_result *d)
{
    json_t *object = json_pack("{s:i, s:i}", "layer", (int)d->layer, "model_layer", (int)d->model_layer);
    describe_into(object, "subject_truth", "quantised", describe_metrics(&d->subject_quantised));
    describe_into(object, "subject_truth", "original", describe_metrics(&d->subject_original));
    json_object_set_new(object, "subject_changed_expert_sets", json_integer(d->subject_changed));
    describe_into(object, "reference_truth", "quantised", describe_metrics(&d->reference_quantised));
    describe_into(object, "reference_truth", "original", describe_metrics(&d->reference_original));
    json_object_set_new(object, "reference_changed_expert_sets", json_integer(d->reference_changed));
    return object;
}

json_t *describe_figures(const struct case_result *r)
{
    if (r->quantiser)
        return describe_quantised(&r->quantise);
    json_t *layers = json_array(), *metrics = json_pack("{s:o}", "layers", layers);
    for (uint32_t l = 0; l < r->layers; l++)
        json_array_append_new(layers, describe_layer(&r->layer[l]));
    if (r->output)
        json_object_set_new(metrics, "overall", describe_distances(&r->overall));
    if (r->drift) {
        json_t *drift = json_array();
        for (uint32_t l = 0; l < r->layers; l++)
            json_array_append_new(drift, describe_drift(&r->drift[l]));
        json_object_set_new(metrics, "drift", drift);
    }
    return metrics;
}

json_t *describe_explanation(const struct explanation *e)
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
    return json_pack("{s:i, s:s, s:s, s:f, s:o, s:o, s:o, s:o}", "layer", (int)e->layer, "name", e->best.name, "kind",
                     e->kind, "explains", e->best.explains, "structure", structure, "also_fits", also, "where", where,
                     "candidates", candidates);
}

json_t *describe_minimal(const struct minimal_part *m)
{
    return json_pack("{s:s, s:I, s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:o}", "path", m->path, "bytes",
                     (json_int_t)m->bytes, "name", m->name, "explained_alike", m->explained_alike, "layer",
                     (int)m->layer, "first_token", (int)m->first_token, "tokens", (int)m->tokens, "first_slot",
                     (int)m->first_slot, "slots", (int)m->slots, "hidden", (int)m->hidden, "intermediate",
                     (int)m->intermediate, "tries", (int)m->tries, "repro", record_string(m->repro));
}

json_t *describe_coverage(const struct coverage *c)
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
