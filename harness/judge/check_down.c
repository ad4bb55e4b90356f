/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/check_down.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"

/* What down's output is held against. */
struct down {
    double *intermediate;    /* [tokens, top_k, intermediate] */
    double *routing_weights; /* [tokens, top_k] */
    struct gb_bounds bounds; /* output_*: [tokens, hidden] */
    struct gb_covariance covariance;
};

static void down_free(struct down *e)
{
    free(e->intermediate);
    free(e->routing_weights);
    free(e->bounds.output_truth);
    free(e->bounds.output_worst);
    free(e->bounds.output_sigma);
    free(e->bounds.output_bias);
    free(e->bounds.output_underflow);
    gb_covariance_free(&e->covariance);
}

/* What down's dot products take of the intermediate: its values, or with quantised activations those of the codes that
 * the recipe makes of it. values: [tokens, top_k, intermediate]. */
static enum gb_status values_of(const struct baseline *b, uint32_t layer, const struct gb_shape *shape,
                                const gb_bf16 *intermediate, double *values, struct gb_error *error)
{
    size_t count = (size_t)shape->tokens * shape->top_k * shape->intermediate;
    for (size_t i = 0; i < count; i++)
        values[i] = (double)gb_bf16_decode(intermediate[i]);
    if (b->contract->activations == GB_BF16)
        return GB_OK;
    struct gb_arguments a = gb_layer_arguments(b->fixture, layer, shape->tokens);
    gb_layer_activations(b->fixture, layer, b->contract->activations, &a);
    uint8_t *codes = malloc(count); /* two a byte, or one */
    float *scales = malloc(sizeof *scales * (count / a.activation_rules->block_columns));
    enum gb_status status = codes && scales ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %zu codes", count);
    if (status == GB_OK)
        status = gb_reference_quantise_activations(&a, GB_DOWN, intermediate, codes, scales, error);
    if (status == GB_OK)
        status = gb_reference_activation_values(&a, GB_DOWN, codes, scales, values, error);
    free(codes);
    free(scales);
    return status;
}

static enum gb_status down_new(const struct baseline *b, uint32_t layer, uint32_t tokens, const gb_bf16 *codes,
                               struct down *e, struct gb_error *error)
{
    const struct gb_layer *l = &b->fixture->layer[layer];
    struct gb_truth_quantised weights = {l->gate_up, l->down, {b->fixture->activation, l->gate_up_bias, l->down_bias}};
    struct gb_shape shape = b->fixture->shape;
    shape.tokens = tokens;
    size_t outputs = sizeof(double) * tokens * shape.hidden, pairs = (size_t)tokens * shape.top_k;
    *e = (struct down){malloc(sizeof(double) * pairs * shape.intermediate),
                       malloc(sizeof(double) * pairs),
                       {.output_truth = malloc(outputs),
                        .output_worst = malloc(outputs),
                        .output_sigma = malloc(outputs),
                        .output_bias = malloc(outputs),
                        .output_underflow = malloc(outputs)},
                       {0}};
    if (!e->intermediate || !e->routing_weights || !e->bounds.output_truth || !e->bounds.output_worst ||
        !e->bounds.output_sigma || !e->bounds.output_bias || !e->bounds.output_underflow)
        return gb_fail(error, GB_ENOMEM, "no memory to judge down for %u tokens", tokens);
    enum gb_status status = values_of(b, layer, &shape, codes, e->intermediate, error);
    baseline_routing_weights(b, layer, tokens, e->routing_weights);
    const struct gb_requantisation quantised = {.rules = gb_fixture_activation_rules(b->fixture),
                                                .global = baseline_arguments(b, layer).intermediate_scale};
    struct gb_rounding_points points = b->points;
    points.requantisation = b->contract->activations == GB_BF16 ? NULL : &quantised;
    if (status == GB_OK)
        status = gb_bound_down(&shape, e->intermediate, NULL, l->ids, e->routing_weights, &weights, &points, &e->bounds,
                               &e->covariance, error);
    return status;
}

static void check_bound(struct down_result *check, const struct baseline *b, uint32_t layer, uint32_t tokens,
                        const struct down *e, const double *output, struct case_result *j)
{
    uint32_t hidden = b->fixture->shape.hidden;
    struct bound_result r;
    const struct enclosure expected = enclosure_output(&e->bounds, b->points.accumulator_bits);
    bound_compare(output, &expected, tokens, hidden, check->elements, &r);
    check_add_bound(&check->bound, &r);
    if (check->bound_binding && r.exceeding)
        case_worsen(j, VERDICT_FAIL,
                    "down of layer %u: %llu of %llu elements exceed the error bound of the down projection, "
                    "recomputed in float64 from the kernel's own intermediate; worst at token %llu, element %llu: "
                    "%.9g, truth %.9g, %.3g times the bound",
                    layer, (unsigned long long)r.exceeding, (unsigned long long)r.elements,
                    (unsigned long long)(r.at / hidden), (unsigned long long)(r.at % hidden), output[r.at],
                    e->bounds.output_truth[r.at], r.limit_ratio);
}

const char *down_without_sums(const struct gb_rounding_points *points, bool nonfinite)
{
    const struct gb_stage_roundings *stages = &points->stages;
    if (nonfinite)
        return "some values are not finite";
    if (points->output == GB_BF16 || stages->slot == GB_BF16 || stages->weighted == GB_BF16)
        return "bf16 rounding errors are correlated when one low-precision term dominates a sum";
    return NULL;
}

enum gb_status check_down(struct down_result *check, const struct baseline *b, uint32_t layer, uint32_t tokens,
                          const gb_bf16 *codes, const double *output, struct case_result *j, struct gb_error *error)
{
    struct down e;
    enum gb_status status = down_new(b, layer, tokens, codes, &e, error);
    if (status == GB_OK) {
        struct prediction expected = {e.bounds.output_truth, &e.bounds, &e.covariance};
        check_bound(check, b, layer, tokens, &e, output, j);
        if (!check->aggregate.scale)
            aggregate_start_down(&check->aggregate, b, &e.covariance, FALSE_ALARM_PROBABILITY);
        if (!check->why)
            status = aggregate_down(&check->aggregate, b, layer, &expected, output, error);
        case_of_sums(j, &check->aggregate, "down projection by itself, ", check->rms_binding, check->scale_binding);
    }
    down_free(&e);
    return status;
}

enum gb_status down_compare(const struct baseline *b, uint32_t layer, uint32_t tokens, const gb_bf16 *codes,
                            enum gb_format format, const void *output, struct layer_result *of_layer,
                            struct case_result *j, struct gb_error *error)
{
    struct gb_arguments a = gb_layer_arguments(b->fixture, layer, tokens);
    gb_layer_activations(b->fixture, layer, b->contract->activations, &a);
    size_t count = (size_t)tokens * a.shape.hidden, inner = (size_t)tokens * a.shape.top_k * a.shape.intermediate;
    float *expected = malloc(sizeof *expected * count);      /* [tokens, hidden] */
    gb_bf16 *stored = malloc(sizeof *stored * count);        /* [tokens, hidden] */
    a.intermediate = malloc(sizeof *a.intermediate * inner); /* [tokens, top_k, intermediate] */
    a.output = expected;
    enum gb_status status = GB_OK;
    if (!expected || !stored || !a.intermediate)
        status = gb_fail(error, GB_ENOMEM, "no memory to compare %zu values", count);
    for (size_t i = 0; status == GB_OK && i < inner; i++)
        a.intermediate[i] = codes[i];
    if (status == GB_OK)
        status = gb_reference_down(b->contract, &a, error);
    if (status == GB_OK) {
        struct difference d;
        for (size_t i = 0; i < count; i++)
            stored[i] = gb_bf16_encode(expected[i]);
        difference_of(format, output, format == GB_FP32 ? (const void *)expected : stored, count, &d);
        layer_add_bits(of_layer, "down", format, a.shape.hidden, &d);
        size_t used = strlen(j->reason);
        if (j->verdict == VERDICT_FAIL)
            snprintf(j->reason + used, sizeof j->reason - used,
                     "; from this intermediate, the down projection of layer %u %s", layer,
                     d.mismatching ? "is wrong too" : "is the reference's in every bit");
    }
    free(expected);
    free(stored);
    free(a.intermediate);
    return status;
}
