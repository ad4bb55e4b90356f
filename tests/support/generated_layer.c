/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/generated_layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/compute_truth.h"
#include "quant/quant.h"

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK) {
        fprintf(stderr, "%s\n", error->message);
        abort();
    }
}

static enum gb_status matrix(void *fixture, uint32_t layer, uint32_t expert, enum gb_projection projection,
                             float *values, struct gb_error *error)
{
    return gb_generate_matrix(fixture, layer, expert, projection, values, error);
}

static enum gb_status expert(void *fixture, uint32_t layer, uint32_t e, struct gb_error *error)
{
    return gb_generate_expert(fixture, layer, e, error);
}

struct gb_fixture *generated_layer(const struct generated_layer *of)
{
    bool routed = strcmp(of->routing, "router") != 0;
    struct gb_fixture *f;
    struct gb_error error = {""};
    ok(gb_fixture_new(&of->shape, 1, of->weights, true, false, false, &f, &error), &error);
    struct weight_source source = {.context = f, .matrix = matrix, .expert = expert};
    f->norm_topk_prob = true;
    f->rms_norm_epsilon = 1e-6;
    f->seed = of->seed;
    snprintf(f->recipe, sizeof f->recipe, "%s", gb_recipe_default(of->weights)->name);
    snprintf(f->generator, sizeof f->generator, "%s", of->data);
    if (of->activations != GB_BF16)
        ok(activations_choose(f, of->activations, of->recipe, &error), &error);
    ok(gb_generate_inputs(f, &error), &error);
    if (routed)
        ok(gb_generate_routing(f, of->routing, &error), &error);
    ok(build_fixture(f, &source, routed, &error), &error);
    return f;
}

struct problem generated_problem(const struct gb_fixture *f, bool quantised, float factor)
{
    const struct gb_layer *l = &f->layer[0];
    size_t pairs = (size_t)f->shape.tokens * f->shape.top_k;
    struct problem p = {.arguments = gb_layer_arguments(f, 0, f->shape.tokens),
                        .ids = l->ids,
                        .routing_weights = malloc(sizeof *p.routing_weights * pairs),
                        .x = l->x};
    if (!p.routing_weights)
        abort();
    for (size_t i = 0; i < pairs; i++)
        p.routing_weights[i] = l->routing_weights[i] * factor;
    if (quantised)
        gb_layer_activations(f, 0, f->activations, &p.arguments);
    return p;
}
