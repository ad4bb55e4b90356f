/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/judge/baseline.h"
#include "harness/judge/check_exact.h"
#include "harness/judge/checks.h"
#include "harness/run/layer_inputs.h"
#include "harness/run/progress.h"
#include "harness/run/residual_stream.h"
#include "quant/quant.h"

struct gb_arguments baseline_arguments(const struct baseline *b, uint32_t layer)
{
    struct gb_arguments a = gb_layer_arguments(b->fixture, layer, b->fixture->shape.tokens);
    gb_layer_activations(b->fixture, layer, b->contract->activations, &a);
    return a;
}

static enum gb_status run_stack(struct baseline *b, double *state, struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    size_t count = (size_t)f->shape.tokens * f->shape.hidden, pairs = (size_t)f->shape.tokens * f->shape.top_k;
    gb_bf16 *x = malloc(count * sizeof *x);
    int32_t *ids = malloc(pairs * sizeof *ids);
    float *routing_weights = malloc(pairs * sizeof *routing_weights);
    float *output = malloc(count * sizeof *output);
    enum gb_status status = GB_OK;
    if (!x || !ids || !routing_weights || !output)
        status = gb_fail(error, GB_ENOMEM, "no memory for the stack of %u tokens", f->shape.tokens);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        struct gb_arguments a = baseline_arguments(b, l);
        status = stack_input(b->contract, f, l, f->shape.tokens, state, x, ids, routing_weights, error);
        a.x = x;
        a.ids = ids;
        a.routing_weights = routing_weights;
        a.output = output;
        if (status == GB_OK)
            status = gb_reference_layer(b->contract, &a, error);
        if (status == GB_OK) {
            stack_add(state, GB_FP32, output, count);
            memcpy(b->reference->stack + l * count, state, count * sizeof *state);
        }
    }
    free(x);
    free(ids);
    free(routing_weights);
    free(output);
    return status;
}

static enum gb_status run(struct baseline *b, struct gb_error *error)
{
    const struct gb_fixture *fixture = b->fixture;
    bool with_stack = fixture->stack.residual != NULL;
    enum gb_status status =
        gb_outputs_new(&fixture->shape, fixture->layers, GB_FP32, true, with_stack, &b->reference, error);
    for (int p = 0; status == GB_OK && b->contract->activations != GB_BF16 && p < GB_ACTIVATION_PARTS; p++)
        status = gb_outputs_add_activations(b->reference, gb_fixture_activation_rules(fixture),
                                            (enum gb_activation_part)p, error);
    for (uint32_t l = 0; status == GB_OK && l < fixture->layers; l++) {
        progress_item("computing the reference", l, fixture->layers);
        struct gb_arguments a = baseline_arguments(b, l);
        const struct gb_layer_outputs *out = &b->reference->layer[l];
        a.output = out->output;
        a.intermediate = out->intermediate;
        a.x_codes = out->activations[GB_X_CODES];
        a.x_scales = out->activations[GB_X_SCALES];
        a.intermediate_codes = out->activations[GB_INTERMEDIATE_CODES];
        a.intermediate_scales = out->activations[GB_INTERMEDIATE_SCALES];
        status = gb_reference_layer(b->contract, &a, error);
    }
    if (status == GB_OK && with_stack) {
        size_t bytes = sizeof(double) * fixture->shape.tokens * fixture->shape.hidden;
        double *state = malloc(bytes);
        if (!state)
            return gb_fail(error, GB_ENOMEM, "no memory for the residual stream");
        memcpy(state, fixture->stack.residual, bytes);
        status = run_stack(b, state, error);
        free(state);
    }
    return status;
}

void baseline_routing_weights(const struct baseline *b, uint32_t layer, uint32_t tokens, double *routing_weights)
{
    const struct gb_fixture *f = b->fixture;
    const float *given = f->layer[layer].routing_weights;
    bool rounded = b->points.stages.routing_weight == GB_BF16;
    for (size_t i = 0; i < (size_t)tokens * f->shape.top_k; i++)
        routing_weights[i] = f->apply_router_weight_on_input ? 1.0
                             : rounded                       ? (double)gb_bf16_decode(gb_bf16_encode(given[i]))
                                                             : (double)given[i];
}

static void bounds_free(struct baseline *b)
{
    for (uint32_t l = 0; b->bounds && l < b->fixture->layers; l++) {
        struct layer_bounds *bounds = &b->bounds[l];
        free(bounds->of.output_worst);
        free(bounds->of.output_sigma);
        free(bounds->of.output_bias);
        free(bounds->of.output_underflow);
        free(bounds->of.intermediate_underflow);
        free(bounds->of.intermediate_worst);
        free(bounds->of.intermediate_sigma);
        free(bounds->of.intermediate_bias);
        free(bounds->of.unrounded_worst);
        free(bounds->of.unrounded_sigma);
        free(bounds->of.unrounded_typical);
        free(bounds->of.output_truth);
        free(bounds->of.intermediate_truth);
        free(bounds->of.requantised);
        free(bounds->of.flips);
        free(bounds->down.output_truth);
        free(bounds->down.output_worst);
        free(bounds->down.output_sigma);
        free(bounds->down.output_bias);
        free(bounds->down.output_underflow);
        gb_covariance_free(&bounds->covariance);
    }
    free(b->bounds);
}

void baseline_free(struct baseline *b)
{
    bounds_free(b);
    gb_outputs_free(b->reference);
    memset(b, 0, sizeof *b);
}

enum gb_status baseline_new(const struct gb_fixture *fixture, const struct gb_contract *contract,
                            struct baseline *plain, struct baseline *b, struct gb_error *error)
{
    *b = (struct baseline){.fixture = fixture, .contract = contract, .plain = plain};
    return run(b, error);
}

/* Where the next one goes. */
static enum gb_status append(struct baselines *all, struct baseline *b, struct gb_error *error)
{
    struct baseline **more = realloc(all->of, sizeof(struct baseline *) * (all->count + 1));
    if (!more)
        return gb_fail(error, GB_ENOMEM, "no memory for a reference");
    all->of = more;
    all->of[all->count++] = b;
    return GB_OK;
}

enum gb_status baselines_get(struct baselines *all, const struct gb_contract *contract, struct baseline **baseline,
                             struct gb_error *error)
{
    struct baseline *plain = NULL;
    enum gb_status status = GB_OK;
    if (!contract)
        return gb_fail(error, GB_EINVAL, "no contract has these weights, activations and this order");
    for (size_t i = 0; i < all->count; i++)
        if (all->of[i]->contract == contract) {
            *baseline = all->of[i];
            return GB_OK;
        }
    if (contract->activations != GB_BF16)
        status = baselines_get(all, gb_contract_find(contract->weights, GB_BF16, gb_order_name(contract->order)),
                               &plain, error);
    struct baseline *b = status == GB_OK ? calloc(1, sizeof *b) : NULL;
    if (status == GB_OK && !b)
        status = gb_fail(error, GB_ENOMEM, "no memory for a reference");
    if (status != GB_OK)
        return status;
    status = baseline_new(all->fixture, contract, plain, b, error);
    if (status == GB_OK)
        status = append(all, b, error);
    if (status == GB_OK) {
        *baseline = b;
        return GB_OK;
    }
    baseline_free(b);
    free(b);
    return status;
}

enum gb_status baselines_of_kernel(struct baselines *all, const struct gb_kernel *kernel, uint32_t tokens,
                                   struct baseline **baseline, struct gb_error *error)
{
    (void)tokens;
    return baselines_get(all, kernel_contract(all->fixture, kernel), baseline, error);
}

enum gb_status baselines_get_rows(struct baselines *all, uint32_t tokens, baseline_function compute,
                                  struct baseline **baseline, struct gb_error *error)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->of[i]->compute == compute && all->of[i]->reference->shape.tokens == tokens) {
            *baseline = all->of[i];
            return GB_OK;
        }
    struct baseline *b = calloc(1, sizeof *b);
    if (!b)
        return gb_fail(error, GB_ENOMEM, "no memory for a reference");
    b->fixture = all->fixture;
    b->compute = compute;
    enum gb_status status = compute(all->fixture, tokens, &b->reference, error);
    if (status == GB_OK)
        status = append(all, b, error);
    if (status == GB_OK) {
        *baseline = b;
        return GB_OK;
    }
    baseline_free(b);
    free(b);
    return status;
}

void baselines_free(struct baselines *all)
{
    while (all->count) {
        baseline_free(all->of[--all->count]);
        free(all->of[all->count]);
    }
    free(all->of);
    all->of = NULL;
}

static enum gb_status bounds_new(const struct gb_shape *shape, bool stages, struct layer_bounds *bounds,
                                 struct gb_error *error)
{
    size_t outputs = sizeof(double) * shape->tokens * shape->hidden;
    size_t inner = sizeof(double) * shape->tokens * shape->top_k * shape->intermediate;
    *bounds = (struct layer_bounds){
        .of = {malloc(outputs), malloc(outputs), malloc(outputs), malloc(inner), malloc(inner), malloc(inner),
               malloc(inner), malloc(inner), stages ? malloc(inner) : NULL, malloc(outputs), malloc(inner),
               malloc(outputs), malloc(inner)},
    };
    if (bounds->of.output_worst && bounds->of.output_sigma && bounds->of.output_bias && bounds->of.intermediate_worst &&
        bounds->of.intermediate_sigma && bounds->of.intermediate_bias && bounds->of.unrounded_worst &&
        bounds->of.unrounded_sigma && (bounds->of.unrounded_typical || !stages) && bounds->of.output_truth &&
        bounds->of.intermediate_truth && bounds->of.output_underflow && bounds->of.intermediate_underflow)
        return GB_OK;
    return gb_fail(error, GB_ENOMEM, "no memory for the bounds of %u tokens", shape->tokens);
}

/* How often a value may be out by its rounding noise, as the judge's limit allows (harness/judge/checks.h), with all
 * values of the fixture at stake. */
static double deviations_of(const struct gb_fixture *f)
{
    double values = (double)f->shape.hidden + (double)f->shape.top_k * f->shape.intermediate;
    return sqrt(2.0 * log(2.0 * values * f->shape.tokens * f->layers / FALSE_ALARM_PROBABILITY));
}

/* Down by itself, on the codes that truth has, for sums of errors. routing_weights: [tokens, top_k], written. */
static enum gb_status bound_codes(struct baseline *b, uint32_t layer, const struct gb_truth_quantised *weights,
                                  const struct gb_rounding_points *points, double *routing_weights,
                                  struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    struct layer_bounds *bounds = &b->bounds[layer];
    size_t outputs = sizeof(double) * f->shape.tokens * f->shape.hidden;
    bounds->down = (struct gb_bounds){.output_worst = malloc(outputs),
                                      .output_sigma = malloc(outputs),
                                      .output_bias = malloc(outputs),
                                      .output_underflow = malloc(outputs),
                                      .output_truth = malloc(outputs)};
    if (!bounds->down.output_worst || !bounds->down.output_sigma || !bounds->down.output_bias ||
        !bounds->down.output_underflow || !bounds->down.output_truth)
        return gb_fail(error, GB_ENOMEM, "no memory for the bounds of %u tokens", f->shape.tokens);
    baseline_routing_weights(b, layer, f->shape.tokens, routing_weights);
    return gb_bound_down(&f->shape, bounds->of.requantised, bounds->of.flips, f->layer[layer].ids, routing_weights,
                         weights, points, &bounds->down, &bounds->covariance, error);
}

/* As bound_one, with quantised activations: x are the numbers of its codes, the intermediate's truth is of them, and
 * the output's of the codes of that intermediate. x, routing_weights: scratch, [tokens, hidden], [tokens, top_k]. */
static enum gb_status bound_quantised(struct baseline *b, uint32_t layer, const struct gb_truth_quantised *weights,
                                      double *routing_weights, double *x, struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    const struct gb_layer_outputs *codes = &b->reference->layer[layer];
    const int32_t *ids = f->layer[layer].ids;
    struct layer_bounds *bounds = &b->bounds[layer];
    struct gb_arguments a = baseline_arguments(b, layer);
    struct gb_requantisation requantisation = {a.activation_rules, a.intermediate_scale, deviations_of(f), a.x_scale};
    struct gb_rounding_points points = b->points;
    points.requantisation = &requantisation;
    enum gb_status status = gb_reference_activation_values(&a, GB_GATE_UP, codes->activations[GB_X_CODES],
                                                           codes->activations[GB_X_SCALES], x, error);
    size_t inner = sizeof(double) * f->shape.tokens * f->shape.top_k * f->shape.intermediate;
    bounds->of.requantised = malloc(inner);
    bounds->of.flips = malloc(inner);
    if (status == GB_OK && (!bounds->of.requantised || !bounds->of.flips))
        status = gb_fail(error, GB_ENOMEM, "no memory for the codes of %u tokens", f->shape.tokens);
    if (status == GB_OK)
        status = gb_bound_layer(&f->shape, x, ids, routing_weights, weights, &points, &bounds->of, error);
    if (status == GB_OK)
        status = bound_codes(b, layer, weights, &points, routing_weights, error);
    if (status == GB_OK)
        status = exact_examine(f, layer, b->contract->activations, &b->points, &bounds->exactness, error);
    return status;
}

/*
 * The fixture's truth takes the place of that of the bounds, to which it must be equal but for the roundings of
 * float64: with 53 bits in the place of p the worst case is 2^(p - 53) times as wide or less, for either of the two.
 */
static void take_truth(const struct gb_layer *l, size_t count, uint32_t bits, struct layer_bounds *bounds)
{
    const double narrow = ldexp(1.0, (int)bits - 52);
    for (size_t i = 0; i < count; i++) {
        double own = bounds->of.output_truth[i], given = l->truth_quantised[i];
        if (!(fabs(own - given) <= narrow * bounds->of.output_worst[i]) && !(isnan(own) && isnan(given)) &&
            !bounds->truth_differs++) {
            bounds->truth_first = i;
            bounds->truth_own = own;
        }
        bounds->of.output_truth[i] = given;
    }
}

/* x, routing_weights: scratch, [tokens, hidden], [tokens, top_k]. */
static enum gb_status bound_one(struct baseline *b, uint32_t layer, double *x, double *routing_weights,
                                struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    const struct gb_layer *l = &f->layer[layer];
    struct layer_bounds *bounds = &b->bounds[layer];
    struct gb_truth_quantised weights = {l->gate_up, l->down, {f->activation, l->gate_up_bias, l->down_bias}};
    enum gb_status status = bounds_new(&f->shape, b->stages, bounds, error);
    layer_inputs(f, layer, b->points.stages.routing_weight, x, routing_weights);
    if (status == GB_OK && b->contract->activations != GB_BF16)
        return bound_quantised(b, layer, &weights, routing_weights, x, error);
    if (status == GB_OK)
        status = gb_bound_layer(&f->shape, x, l->ids, routing_weights, &weights, &b->points, &bounds->of, error);
    if (status == GB_OK && b->points.stages.routing_weight != GB_BF16)
        take_truth(l, (size_t)f->shape.tokens * f->shape.hidden, b->points.accumulator_bits, bounds);
    if (status == GB_OK)
        status = gb_covariance_new(&f->shape, l->ids, routing_weights, bounds->of.intermediate_truth, &weights,
                                   &bounds->of, &bounds->covariance, error);
    if (status == GB_OK)
        status = exact_examine(f, layer, GB_BF16, &b->points, &bounds->exactness, error);
    return status;
}

enum gb_status baseline_bounds(struct baseline *b, const struct gb_rounding_points *points, bool stages,
                               struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    if (b->bounds && !memcmp(&b->points, points, sizeof *points) && (b->stages || !stages))
        return GB_OK;
    bounds_free(b);
    b->points = *points;
    b->stages = stages;
    size_t tokens = f->shape.tokens;
    double *x = malloc(sizeof(double) * tokens * f->shape.hidden);              /* [tokens, hidden] */
    double *routing_weights = malloc(sizeof(double) * tokens * f->shape.top_k); /* [tokens, top_k] */
    b->bounds = calloc(f->layers, sizeof *b->bounds);
    enum gb_status status = GB_OK;
    if (!x || !routing_weights || !b->bounds)
        status = gb_fail(error, GB_ENOMEM, "no memory for bounds");
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        progress_item("computing bounds", l, f->layers);
        status = bound_one(b, l, x, routing_weights, error);
    }
    free(x);
    free(routing_weights);
    return status;
}
