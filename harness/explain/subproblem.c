/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/run/layer_inputs.h"
#include "harness/explain/subproblem.h"
#include "quant/quant.h"
#include "reference/reference.h"

struct part part_whole(const struct gb_fixture *f, uint32_t layer, uint32_t tokens)
{
    return (struct part){layer, 0, tokens, 0, f->shape.top_k, f->shape.hidden, f->shape.intermediate};
}

/* Rows from .. from + count of one expert become rows to .. of another, cut to `to`'s columns. FP8's scales apart. */
static void copy_rows(const struct gb_weights *from, uint32_t from_expert, uint32_t from_row, struct gb_weights *to,
                      uint32_t to_expert, uint32_t to_row, uint32_t count)
{
    size_t codes = gb_row_code_bytes(to->format, to->columns),
           from_codes = gb_row_code_bytes(to->format, from->columns);
    size_t scales = gb_row_scale_bytes(to->format, to->columns);
    size_t from_scales = gb_row_scale_bytes(to->format, from->columns);
    for (uint32_t r = 0; r < count; r++) {
        size_t source = (size_t)from_expert * from->rows + from_row + r;
        size_t target = (size_t)to_expert * to->rows + to_row + r;
        memcpy((uint8_t *)(uintptr_t)to->codes + target * codes, (const uint8_t *)from->codes + source * from_codes,
               codes);
        if (scales && to->format != GB_FP8_BLOCK)
            memcpy((uint8_t *)(uintptr_t)to->scales + target * scales,
                   (const uint8_t *)from->scales + source * from_scales, scales);
    }
}

static uint32_t blocks(uint32_t count)
{
    return (count + 127) / 128;
}

/* FP8: the scales of one part. */
static void copy_blocks(const struct gb_weights *from, uint32_t from_expert, struct gb_weights *to, uint32_t to_expert,
                        uint32_t part)
{
    uint32_t down = blocks(from->rows / from->halves), across = blocks(from->columns);
    uint32_t to_down = blocks(to->rows / to->halves), to_across = blocks(to->columns);
    const float *source = (const float *)from->scales + ((size_t)from_expert * from->halves + part) * down * across;
    float *target = (float *)(uintptr_t)to->scales + ((size_t)to_expert * to->halves + part) * to_down * to_across;
    for (uint32_t r = 0; r < to_down; r++)
        memcpy(target + (size_t)r * to_across, source + (size_t)r * across, to_across * sizeof *target);
}

static void copy_expert(const struct gb_weights *from, uint32_t from_expert, struct gb_weights *to, uint32_t to_expert)
{
    uint32_t rows = to->rows / to->halves;
    for (uint32_t part = 0; part < to->halves; part++) {
        copy_rows(from, from_expert, part * (from->rows / from->halves), to, to_expert, part * rows, rows);
        if (to->format == GB_FP8_BLOCK)
            copy_blocks(from, from_expert, to, to_expert, part);
    }
    if (to->global_scales)
        memcpy((float *)(uintptr_t)to->global_scales + to_expert * to->halves,
               from->global_scales + from_expert * from->halves, to->halves * sizeof(float));
}

static void copy_biases(const struct gb_layer *from, uint32_t from_intermediate, uint32_t from_hidden, uint32_t e,
                        struct gb_layer *to, const struct gb_shape *shape, uint32_t to_expert)
{
    uint32_t I = shape->intermediate;
    float *bias = to->gate_up_bias + (size_t)to_expert * 2 * I;
    const float *source = from->gate_up_bias + (size_t)e * 2 * from_intermediate;
    memcpy(bias, source, I * sizeof *bias);
    memcpy(bias + I, source + from_intermediate, I * sizeof *bias);
    memcpy(to->down_bias + (size_t)to_expert * shape->hidden, from->down_bias + (size_t)e * from_hidden,
           shape->hidden * sizeof *bias);
}

/* number: [experts], the new number of each expert in use, -1 otherwise. Returns how many are in use. */
static uint32_t number_experts(const struct gb_fixture *f, const struct part *p, int32_t *number)
{
    const int32_t *ids = f->layer[p->layer].ids;
    uint32_t count = 0;
    for (uint32_t e = 0; e < f->shape.experts; e++)
        number[e] = -1;
    for (uint32_t t = 0; t < p->tokens; t++)
        for (uint32_t k = 0; k < p->slots; k++) {
            int32_t id = ids[(size_t)(p->first_token + t) * f->shape.top_k + p->first_slot + k];
            if (id >= 0)
                number[id] = 0;
        }
    for (uint32_t e = 0; e < f->shape.experts; e++)
        if (number[e] == 0)
            number[e] = (int32_t)count++;
    return count;
}

static void fill(const struct gb_fixture *f, const struct part *p, const int32_t *number, struct gb_fixture *to)
{
    const struct gb_layer *from = &f->layer[p->layer];
    struct gb_layer *layer = &to->layer[0];
    layer->index = from->index;
    for (uint32_t t = 0; t < p->tokens; t++) {
        memcpy(layer->x + (size_t)t * p->hidden, from->x + (size_t)(p->first_token + t) * f->shape.hidden,
               p->hidden * sizeof *layer->x);
        for (uint32_t k = 0; k < p->slots; k++) {
            size_t source = (size_t)(p->first_token + t) * f->shape.top_k + p->first_slot + k;
            size_t target = (size_t)t * p->slots + k;
            layer->ids[target] = from->ids[source] < 0 ? -1 : number[from->ids[source]];
            layer->routing_weights[target] = from->routing_weights[source];
            layer->truth_routing_weights[target] = from->truth_routing_weights[source];
        }
    }
    for (uint32_t e = 0; e < f->shape.experts; e++)
        if (number[e] >= 0) {
            copy_expert(&from->gate_up, e, &layer->gate_up, (uint32_t)number[e]);
            copy_expert(&from->down, e, &layer->down, (uint32_t)number[e]);
            if (from->gate_up_bias)
                copy_biases(from, f->shape.intermediate, f->shape.hidden, e, layer, &to->shape, (uint32_t)number[e]);
        }
}

/* Experts that no token uses but top_k asks for: weights of a used one. */
static void fill_spare(struct gb_fixture *to, uint32_t used)
{
    struct gb_layer *layer = &to->layer[0];
    for (uint32_t e = used; e < to->shape.experts; e++) {
        copy_expert(&layer->gate_up, 0, &layer->gate_up, e);
        copy_expert(&layer->down, 0, &layer->down, e);
    }
}

static enum gb_status truth(struct gb_fixture *f, struct gb_error *error)
{
    struct gb_layer *l = &f->layer[0];
    struct gb_truth_quantised weights = {l->gate_up, l->down, {f->activation, l->gate_up_bias, l->down_bias}};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    double *x = malloc(count * sizeof *x); /* [tokens, hidden] */
    double *routing_weights = malloc(sizeof(double) * f->shape.tokens * f->shape.top_k);
    if (!x || !routing_weights) {
        free(x);
        free(routing_weights);
        return gb_fail(error, GB_ENOMEM, "no memory for the truth of %u tokens", f->shape.tokens);
    }
    layer_inputs(f, 0, GB_FP32, x, routing_weights);
    enum gb_status status =
        gb_truth_layer(&f->shape, x, l->ids, routing_weights, &source, l->truth_quantised, NULL, error);
    free(routing_weights);
    memcpy(l->truth_original, l->truth_quantised, count * sizeof *x);
    free(x);
    return status;
}

static void describe(const struct gb_fixture *f, const struct part *p, struct gb_fixture *to)
{
    to->activation = f->activation;
    to->apply_router_weight_on_input = f->apply_router_weight_on_input;
    to->norm_topk_prob = f->norm_topk_prob;
    to->nonfinite = f->nonfinite;
    to->rms_norm_epsilon = f->rms_norm_epsilon;
    memcpy(to->recipe, f->recipe, sizeof to->recipe);
    memcpy(to->contract, f->contract, sizeof to->contract);
    memcpy(to->activation_recipe, f->activation_recipe, sizeof to->activation_recipe);
    to->activations = f->activations;
    memcpy(to->source_sha256, f->sha256, sizeof to->source_sha256);
    snprintf(to->generator, sizeof to->generator, "import/1");
    snprintf(to->source, sizeof to->source, "layer %u, tokens %u to %u, slots %u to %u of %.160s", p->layer,
             p->first_token, p->first_token + p->tokens - 1, p->first_slot, p->first_slot + p->slots - 1, f->source);
}

enum gb_status part_new(const struct gb_fixture *f, const struct part *p, struct gb_fixture **result,
                        struct gb_error *error)
{
    int32_t *number = malloc(f->shape.experts * sizeof *number); /* [experts] */
    *result = NULL;
    if (!number)
        return gb_fail(error, GB_ENOMEM, "no memory for %u experts", f->shape.experts);
    uint32_t used = number_experts(f, p, number);
    struct gb_shape shape = {p->tokens, p->hidden, p->intermediate, used < p->slots ? p->slots : used, p->slots};
    enum gb_status status = used ? gb_fixture_new(&shape, 1, f->weights, false, false, false, result, error)
                                 : gb_fail(error, GB_EINVAL, "the part has no slot in use");
    if (status == GB_OK && f->layer[p->layer].gate_up_bias)
        status = gb_fixture_add(*result, GB_EXTRA_BIASES, error);
    if (status == GB_OK && f->layer[p->layer].activation_scales) {
        status = gb_fixture_add(*result, GB_EXTRA_ACTIVATION_SCALES, error);
        if (status == GB_OK)
            memcpy((*result)->layer[0].activation_scales, f->layer[p->layer].activation_scales, 2 * sizeof(float));
    }
    if (status == GB_OK) {
        describe(f, p, *result);
        fill(f, p, number, *result);
        fill_spare(*result, used);
        status = truth(*result, error);
    }
    free(number);
    return status;
}
