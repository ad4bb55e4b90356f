/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>

#include "harness/report/to_json.h"

void describe_into(json_t *object, const char *group, const char *name, json_t *value)
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

json_t *describe_metrics(const struct metrics *m)
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

json_t *describe_difference(const struct difference *d, enum gb_format format, size_t per_token)
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

json_t *describe_bound(const struct bound_result *r, size_t per_token)
{
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:I, s:I}", "elements", (json_int_t)r->elements, "exceeding",
                     (json_int_t)r->exceeding, "worst_case_ratio", describe_number(r->worst_ratio), "limit_ratio",
                     describe_number(r->limit_ratio), "rms_ratio", describe_number(r->rms_ratio), "at_token",
                     (json_int_t)(r->at / per_token), "at_element", (json_int_t)(r->at % per_token));
}

json_t *describe_bits_lane(const struct lane *lane, bool binding)
{
    return json_pack("{s:b, s:s, s:I, s:I, s:I}", "binding", binding, "result", lane->mismatching ? "FAIL" : "PASS",
                     "compared", (json_int_t)lane->compared, "mismatching", (json_int_t)lane->mismatching, "max_ulp",
                     (json_int_t)lane->max_ulp);
}

json_t *describe_bound_lane(const struct lane *lane, bool binding)
{
    return json_pack("{s:b, s:s, s:I, s:I, s:o, s:o, s:o, s:f}", "binding", binding, "result",
                     lane->exceeding ? "FAIL" : "PASS", "elements", (json_int_t)lane->elements, "exceeding",
                     (json_int_t)lane->exceeding, "worst_case_ratio", describe_number(lane->worst_ratio), "limit_ratio",
                     describe_number(lane->limit_ratio), "rms_ratio", describe_number(lane->rms_ratio),
                     "false_alarm_probability", FALSE_ALARM_PROBABILITY);
}

static json_t *describe_family(enum family family, const struct family_result *r)
{
    char place[64];
    return json_pack("{s:s, s:I, s:I, s:o, s:i, s:s, s:o, s:o}", "name", family_name(family), "statistics",
                     (json_int_t)r->count, "exceeding", (json_int_t)r->exceeding, "limit_ratio",
                     describe_number(r->limit_ratio), "at_layer", (int)r->layer, "at",
                     family_place(family, r, place, sizeof place), "detection_floor_smallest",
                     describe_number(r->floor_smallest), "detection_floor_worst", describe_number(r->floor_worst));
}

json_t *describe_statistics(const struct statistics *s, bool gain, bool binding)
{
    json_t *families = json_array();
    uint64_t count = 0, exceeding = 0;
    double largest = 0.0;
    for (enum family f = 0; f < FAMILIES; f++) {
        const struct family_result *r = &s->family[f];
        if (family_is_gain(f) != gain || r->count == 0)
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
    if (s->open_codes || s->tokens_left_out)
        json_object_update_new(object, json_pack("{s:I, s:I}", "open_codes", (json_int_t)s->open_codes,
                                                 "tokens_left_out", (json_int_t)s->tokens_left_out));
    json_object_set_new(object, "families", families);
    return object;
}

void describe_hash(json_t *object, const char *name, const void *data, size_t bytes)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1] = "";
    unsigned length = 0;
    if (EVP_Digest(data, bytes, digest, &length, EVP_sha256(), NULL))
        for (unsigned i = 0; i < length; i++)
            snprintf(text + 2 * i, 3, "%02x", digest[i]);
    json_object_set_new(object, name, json_string(text));
}

void describe_hashes(json_t *object, const struct gb_layer_outputs *outputs, const struct gb_shape *shape,
                     const struct gb_quantiser *rules, bool with_output)
{
    size_t output = (size_t)shape->tokens * shape->hidden * (outputs->format == GB_FP32 ? 4 : 2);
    size_t inner = (size_t)shape->tokens * shape->top_k * shape->intermediate * sizeof(gb_bf16);
    if (with_output)
        describe_hash(object, "output_sha256", outputs->output, output);
    if (outputs->intermediate)
        describe_hash(object, "intermediate_sha256", outputs->intermediate, inner);
    for (int p = 0; p < GB_ACTIVATION_PARTS; p++)
        if (rules && outputs->activations[p]) {
            struct gb_activation_array a = gb_activation_array(rules, shape, (enum gb_activation_part)p);
            char name[64];
            snprintf(name, sizeof name, "%s_sha256", a.name);
            describe_hash(object, name, outputs->activations[p], (size_t)shape->tokens * a.slots * a.width * a.bytes);
        }
}
