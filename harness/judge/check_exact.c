/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/check_exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/layer_inputs.h"
#include "quant/quant.h"

/* The numbers of x's codes. x: [tokens, hidden]. */
static enum gb_status quantised_inputs(const struct gb_arguments *a, double *x, struct gb_error *error)
{
    size_t count = (size_t)a->shape.tokens * a->shape.hidden;
    void *codes = malloc(count), *scales = malloc(count * sizeof(float));
    enum gb_status status = GB_OK;
    if (!codes || !scales)
        status = gb_fail(error, GB_ENOMEM, "no memory to quantise %u tokens", a->shape.tokens);
    if (status == GB_OK)
        status = gb_reference_quantise_activations(a, GB_GATE_UP, a->x, codes, scales, error);
    if (status == GB_OK)
        status = gb_reference_activation_values(a, GB_GATE_UP, codes, scales, x, error);
    free(codes);
    free(scales);
    return status;
}

enum gb_status exact_examine(const struct gb_fixture *f, uint32_t layer, enum gb_format activations,
                             const struct gb_rounding_points *declared, struct gb_exactness *exactness,
                             struct gb_error *error)
{
    const struct gb_layer *l = &f->layer[layer];
    size_t inputs = (size_t)f->shape.tokens * f->shape.hidden, pairs = (size_t)f->shape.tokens * f->shape.top_k;
    struct gb_truth_quantised weights = {l->gate_up, l->down, {f->activation, l->gate_up_bias, l->down_bias}};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    struct gb_arguments a = gb_layer_arguments(f, layer, f->shape.tokens);
    gb_layer_activations(f, layer, activations, &a);
    struct gb_requantisation requantisation = {
        .rules = a.activation_rules, .global = a.intermediate_scale, .x_global = a.x_scale};
    struct gb_rounding_points points = *declared;
    points.requantisation = activations == GB_BF16 ? NULL : &requantisation;
    double *x = malloc(sizeof(double) * inputs);              /* [tokens, hidden] */
    double *routing_weights = malloc(sizeof(double) * pairs); /* [tokens, top_k] */
    enum gb_status status = GB_OK;
    if (!x || !routing_weights)
        status = gb_fail(error, GB_ENOMEM, "no memory to examine %u tokens", f->shape.tokens);
    if (status == GB_OK)
        layer_inputs(f, layer, GB_FP32, x, routing_weights);
    if (status == GB_OK && activations != GB_BF16)
        status = quantised_inputs(&a, x, error);
    for (size_t i = 0; status == GB_OK && !f->apply_router_weight_on_input && i < pairs; i++)
        routing_weights[i] = (double)l->routing_weights[i];
    if (status == GB_OK)
        status = gb_exact_layer(&f->shape, x, l->ids, routing_weights, &source, &points, exactness, error);
    free(x);
    free(routing_weights);
    return status;
}

enum gb_status exact_check(const struct gb_fixture *f, struct gb_error *error)
{
    const struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    struct gb_exactness found;
    enum gb_format activations = gb_generates_exact(f);
    for (uint32_t l = 0; activations && l < f->layers; l++) {
        enum gb_status status = exact_examine(f, l, activations, &points, &found, error);
        if (status != GB_OK)
            return status;
        if (found.why)
            return gb_fail(error, GB_EINVAL, "%s, but layer %u, token %u is not: %s; make a smaller shape",
                           f->generator, l, found.token, found.why);
    }
    return GB_OK;
}

void exact_start(struct exact_result *check, const struct baseline *b, const struct policy *policy,
                 struct case_result *j)
{
    struct gb_error error;
    for (uint32_t l = 0; l < b->fixture->layers; l++) {
        const struct gb_exactness *e = &b->bounds[l].exactness;
        check->bits = fmax(check->bits, e->bits);
        if (!check->why && e->why) {
            check->why = e->why;
            check->layer = l;
            check->token = e->token;
        }
    }
    check->binding = policy->exact && !check->why;
    if (check->why && policy->exact && !policy->bound && !policy->rms && !policy->scale)
        case_worsen(j, VERDICT_VACUOUS, "the check exact does not bind: layer %u, token %u: %s", check->layer,
                    check->token, check->why);
    if (check->why && exact_check(b->fixture, &error) != GB_OK)
        case_worsen(j, VERDICT_BAD_INPUT, "generator: is %s", error.message);
}

/* closed: how far a value may be from the reference's zero. */
static void compare(struct exact_result *check, const char *stage, uint32_t layer, size_t per_token, size_t i,
                    double value, double reference, double closed, struct case_result *j)
{
    check->compared++;
    if (value == reference || (isnan(value) && isnan(reference)) || (reference == 0.0 && fabs(value) <= closed))
        return;
    if (!check->mismatching++ && check->binding)
        case_worsen(j, VERDICT_FAIL,
                    "%s of layer %u: every sum of this fixture is exact in any order, so all correct kernels give "
                    "the same value, but token %zu, element %zu is %.9g, not %.9g",
                    stage, layer, i / per_token, i % per_token, value, reference);
}

void exact_output(struct exact_result *check, uint32_t layer, uint32_t tokens, const struct baseline *b,
                  const double *output, enum gb_format format, struct case_result *j)
{
    const float *reference = b->reference->layer[layer].output;
    size_t hidden = b->fixture->shape.hidden;
    for (size_t i = 0; !check->why && i < tokens * hidden; i++) {
        float stored = format == GB_FP32 ? reference[i] : gb_bf16_decode(gb_bf16_encode(reference[i]));
        compare(check, "output", layer, hidden, i, output[i], (double)stored, b->bounds[layer].exactness.closed_output,
                j);
    }
}

void exact_intermediate(struct exact_result *check, uint32_t layer, uint32_t tokens, const struct baseline *b,
                        const double *intermediate, struct case_result *j)
{
    const gb_bf16 *reference = b->reference->layer[layer].intermediate;
    size_t per_token = (size_t)b->fixture->shape.top_k * b->fixture->shape.intermediate;
    for (size_t i = 0; !check->why && i < tokens * per_token; i++)
        compare(check, "intermediate", layer, per_token, i, intermediate[i], (double)gb_bf16_decode(reference[i]),
                b->bounds[layer].exactness.closed_intermediate, j);
}

static double activation_value(const char *format, const void *array, size_t i)
{
    const uint8_t *bytes = array;
    if (!strcmp(format, "e2m1x2"))
        return (double)gb_e2m1_decode((gb_e2m1){(uint8_t)(bytes[i / 2] >> (i % 2 ? 4 : 0) & 0xF)});
    if (!strcmp(format, "fp32"))
        return (double)((const float *)array)[i];
    return (double)(!strcmp(format, "e4m3") ? gb_e4m3_decode((gb_e4m3){bytes[i]})
                                            : gb_e8m0_decode((gb_e8m0){bytes[i]}));
}

/* Whether a block of the intermediate is zeros in the reference, and the subject's number nearly so: its scale is of no
 * matter then. codes, scales: of either; block: of all. */
static bool closed_block(const struct baseline *b, uint32_t layer, const struct gb_layer_outputs *subject,
                         const struct gb_activation_array *codes, const struct gb_activation_array *scales,
                         uint32_t columns, size_t block)
{
    const struct gb_layer_outputs *right = &b->reference->layer[layer];
    const float *d = b->fixture->layer[layer].activation_scales;
    const void *of = subject->activations[GB_INTERMEDIATE_CODES], *by = subject->activations[GB_INTERMEDIATE_SCALES];
    double closed = b->bounds[layer].exactness.closed_intermediate / (d ? (double)d[1] : 1.0);
    bool zeros = of && by;
    for (size_t i = block * columns; zeros && i < (block + 1) * columns; i++)
        zeros = activation_value(codes->format, right->activations[GB_INTERMEDIATE_CODES], i) == 0.0 &&
                fabs(activation_value(codes->format, of, i) * activation_value(scales->format, by, block)) <= closed;
    return zeros;
}

void exact_activations(struct exact_result *check, uint32_t layer, const struct baseline *b,
                       const struct gb_outputs *outputs, struct case_result *j)
{
    const struct gb_quantiser *rules = outputs->activation_rules;
    if (b->contract->activations == GB_BF16 || !rules)
        return;
    struct gb_activation_array codes = gb_activation_array(rules, &outputs->shape, GB_INTERMEDIATE_CODES),
                               scales = gb_activation_array(rules, &outputs->shape, GB_INTERMEDIATE_SCALES);
    for (int p = 0; p < GB_ACTIVATION_PARTS; p++) {
        const void *mine = outputs->layer[layer].activations[p], *right = b->reference->layer[layer].activations[p];
        struct gb_activation_array a = gb_activation_array(rules, &outputs->shape, (enum gb_activation_part)p);
        size_t per_token = (size_t)a.slots * a.width * (strcmp(a.format, "e2m1x2") ? 1 : 2);
        uint32_t columns = p == GB_INTERMEDIATE_CODES ? rules->block_columns : p == GB_INTERMEDIATE_SCALES ? 1 : 0;
        for (size_t i = 0; mine && !check->why && i < outputs->shape.tokens * per_token; i++) {
            double value = activation_value(a.format, mine, i), expected = activation_value(a.format, right, i);
            if (value != expected && columns &&
                closed_block(b, layer, &outputs->layer[layer], &codes, &scales, rules->block_columns, i / columns))
                value = expected;
            compare(check, a.name, layer, per_token, i, value, expected, 0.0, j);
        }
    }
}
