/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/check_activations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"

/* Codes by code: E2M1's are unpacked, so that an element is a value; FP32 scales keep their bits. */
static enum gb_status check_codes(const char *name, uint32_t layer, const struct gb_activation_array *a,
                                  uint32_t tokens, const uint8_t *subject, const uint8_t *reference,
                                  struct layer_result *of_layer, struct check_result *check, struct case_result *j)
{
    bool packed = !strcmp(a->format, "e2m1x2");
    size_t per_token = (size_t)a->slots * a->width * (packed ? 2 : 1);
    struct difference d = {.compared = tokens * per_token};
    if (a->bytes > 1)
        difference_of(GB_FP32, subject, reference, d.compared, &d);
    for (size_t i = 0; a->bytes == 1 && i < d.compared; i++) {
        uint32_t mine = packed ? subject[i / 2] >> (i % 2 ? 4 : 0) & 0xFu : subject[i];
        uint32_t right = packed ? reference[i / 2] >> (i % 2 ? 4 : 0) & 0xFu : reference[i];
        if (mine != right && d.mismatching++ == 0) {
            d.first = i;
            d.first_subject = mine;
            d.first_reference = right;
        }
    }
    layer_add_bits(of_layer, name, GB_FP32, per_token, &d);
    check_add_bits(check, &d);
    if (d.mismatching)
        case_worsen(j, VERDICT_FAIL,
                    "%s of layer %u: %llu of %llu are not what the recipe makes of the value; first at token %llu, "
                    "element %llu: 0x%x, reference 0x%x",
                    name, layer, (unsigned long long)d.mismatching, (unsigned long long)d.compared,
                    (unsigned long long)(d.first / per_token), (unsigned long long)(d.first % per_token),
                    d.first_subject, d.first_reference);
    return GB_OK;
}

/* The codes of the subject's own intermediate. own: of gb_outputs_new, one layer. */
static enum gb_status requantise(const struct baseline *b, uint32_t layer, const struct gb_outputs *outputs,
                                 struct gb_layer_outputs *own, struct gb_error *error)
{
    const struct gb_shape *shape = &outputs->shape;
    struct gb_arguments a = gb_layer_arguments(b->fixture, layer, shape->tokens);
    gb_layer_activations(b->fixture, layer, b->contract->activations, &a);
    return gb_reference_quantise_activations(&a, GB_DOWN, outputs->layer[layer].intermediate,
                                             own->activations[GB_INTERMEDIATE_CODES],
                                             own->activations[GB_INTERMEDIATE_SCALES], error);
}

/* What the intermediate codes are held against: the recipe's of the subject's own bf16 intermediate, if it hands that
 * out, since the values may differ legally, but not what the recipe makes of them. */
static enum gb_status judge_intermediate_codes(const struct baseline *b, uint32_t layer,
                                               const struct gb_outputs *outputs, struct layer_result *of_layer,
                                               struct check_result *check, struct case_result *j,
                                               struct gb_error *error)
{
    const struct gb_layer_outputs *out = &outputs->layer[layer];
    struct gb_outputs *own;
    enum gb_status status = gb_outputs_new(&outputs->shape, 1, GB_FP32, false, false, &own, error);
    if (status == GB_OK)
        status = gb_outputs_add_activations(own, outputs->activation_rules, GB_INTERMEDIATE_CODES, error);
    if (status == GB_OK)
        status = gb_outputs_add_activations(own, outputs->activation_rules, GB_INTERMEDIATE_SCALES, error);
    if (status == GB_OK)
        status = requantise(b, layer, outputs, own->layer, error);
    for (int p = GB_INTERMEDIATE_CODES; status == GB_OK && p < GB_ACTIVATION_PARTS; p++)
        if (out->activations[p]) {
            struct gb_activation_array a =
                gb_activation_array(outputs->activation_rules, &outputs->shape, (enum gb_activation_part)p);
            status = check_codes(a.name, layer, &a, outputs->shape.tokens, out->activations[p],
                                 own->layer->activations[p], of_layer, check, j);
        }
    gb_outputs_free(own);
    return status;
}

/* The same without that intermediate: values of codes, which lie around those of truth's codes as far away as legal
 * flips can take them; +0 in empty slots. */
static enum gb_status judge_intermediate_values(const struct baseline *b, uint32_t layer,
                                                const struct gb_outputs *outputs, struct case_result *j,
                                                struct gb_error *error)
{
    const struct gb_shape *shape = &outputs->shape;
    const struct gb_layer_outputs *out = &outputs->layer[layer];
    const struct gb_bounds *of = &b->bounds[layer].of;
    const void *codes = out->activations[GB_INTERMEDIATE_CODES], *scales = out->activations[GB_INTERMEDIATE_SCALES];
    const size_t columns = shape->intermediate, count = (size_t)shape->tokens * shape->top_k * columns;
    struct gb_arguments a = gb_layer_arguments(b->fixture, layer, shape->tokens);
    size_t wrong = 0, first = 0;
    if (!codes || !scales) {
        if (b->bounds[layer].exactness.why) /* or the check exact compares them */
            case_worsen(j, VERDICT_VACUOUS,
                        "intermediate_%s of layer %u: of what they are is not known; hand out intermediate_%s, too",
                        codes ? "codes" : "scales", layer, codes ? "scales" : "codes");
        return GB_OK;
    }
    gb_layer_activations(b->fixture, layer, b->contract->activations, &a);
    double *values = malloc(sizeof *values * count); /* [tokens, top_k, intermediate] */
    enum gb_status status = values ? gb_reference_activation_values(&a, GB_DOWN, codes, scales, values, error)
                                   : gb_fail(error, GB_ENOMEM, "no memory to judge %zu codes", count);
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        bool empty = b->fixture->layer[layer].ids[i / columns] < 0;
        double right = empty ? 0.0 : of->requantised[i], flips = empty ? 0.0 : of->flips[i];
        if (!(fabs(values[i] - right) <= flips * (1.0 + 0x1p-20)) && wrong++ == 0)
            first = i;
    }
    if (wrong)
        case_worsen(
            j, VERDICT_FAIL,
            "intermediate_codes of layer %u: the values of %zu of %zu are none that admissible differences lead to; "
            "first at token %zu, slot %zu, column %zu: %.9g, truth's code %.9g",
            layer, wrong, count, first / columns / shape->top_k, first / columns % shape->top_k, first % columns,
            values[first], b->fixture->layer[layer].ids[first / columns] < 0 ? 0.0 : of->requantised[first]);
    free(values);
    return status;
}

enum gb_status check_activations(const struct baseline *b, uint32_t layer, const struct gb_outputs *outputs,
                                 bool ordered, struct layer_result *of_layer, struct check_result *check,
                                 struct case_result *j, struct gb_error *error)
{
    const struct gb_layer_outputs *out = &outputs->layer[layer], *reference = &b->reference->layer[layer];
    enum gb_status status = GB_OK;
    if (b->contract->activations == GB_BF16 || !outputs->activation_rules)
        return GB_OK;
    for (int p = 0; status == GB_OK && p < GB_ACTIVATION_PARTS; p++)
        if (out->activations[p] && (p < GB_INTERMEDIATE_CODES || ordered)) {
            struct gb_activation_array a =
                gb_activation_array(outputs->activation_rules, &outputs->shape, (enum gb_activation_part)p);
            status = check_codes(a.name, layer, &a, outputs->shape.tokens, out->activations[p],
                                 reference->activations[p], of_layer, check, j);
        }
    if (status != GB_OK || ordered ||
        !(out->activations[GB_INTERMEDIATE_CODES] || out->activations[GB_INTERMEDIATE_SCALES]))
        return status;
    return out->intermediate ? judge_intermediate_codes(b, layer, outputs, of_layer, check, j, error)
                             : judge_intermediate_values(b, layer, outputs, j, error);
}
