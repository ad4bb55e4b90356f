/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/sample_fixture.h"

#include "quant/quant.h"

const struct gb_shape shape = {.tokens = 5, .hidden = 96, .intermediate = 32, .experts = 3, .top_k = 2};

static void fill_bytes(uint64_t *state, void *bytes, size_t count, uint8_t mask)
{
    for (size_t i = 0; i < count; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)random_below(state, 255) & mask;
}

void fill_bf16(uint64_t *state, const void *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((gb_bf16 *)values)[i] = gb_bf16_encode((float)(random_uniform(state) - 0.5));
}

static void fill_float(uint64_t *state, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ((float *)values)[i] = (float)(random_uniform(state) + 0.25);
}

void fill_double(uint64_t *state, double *values, size_t count)
{
    for (size_t i = 0; values && i < count; i++)
        values[i] = random_uniform(state) - 0.5;
}

void fill_weights(uint64_t *state, const struct gb_weights *w)
{
    size_t codes, scales, global_scales;
    struct gb_error error;
    assert_int_equal(gb_weights_bytes(w, &codes, &scales, &global_scales, &error), GB_OK);
    if (w->format == GB_BF16) {
        fill_bf16(state, w->codes, codes / sizeof(gb_bf16));
        return;
    }
    fill_bytes(state, (void *)w->codes, codes, w->format == GB_MXFP8 || w->format == GB_FP8_BLOCK ? 0xF7 : 0xFF);
    if (w->format == GB_FP8_BLOCK)
        fill_float(state, (float *)w->scales, scales / sizeof(float));
    else
        fill_bytes(state, (void *)w->scales, scales, 0x77);
    if (w->format == GB_NVFP4)
        fill_float(state, w->global_scales, global_scales / sizeof(float));
}

struct gb_fixture *new_fixture(enum gb_format format, bool router, bool stack, bool attention)
{
    struct gb_fixture *f;
    struct gb_error error;
    uint64_t state = 7;
    size_t values = (size_t)shape.tokens * shape.hidden, slots = shape.tokens * shape.top_k;
    assert_int_equal(gb_fixture_new(&shape, LAYERS, format, router, stack, attention, &f, &error), GB_OK);
    f->norm_topk_prob = true;
    f->rms_norm_epsilon = 1e-6;
    f->seed = UINT64_MAX - 1;
    strcpy(f->recipe, "a.recipe/1");
    snprintf(f->contract, sizeof f->contract, "%s.bf16.fma32/1", gb_format_name(format));
    strcpy(f->generator, "gaussian/1");
    strcpy(f->source, "a test: caf\xc3\xa9");
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct gb_layer *layer = &f->layer[l];
        layer->index = 10 + l;
        fill_bf16(&state, layer->x, values);
        for (size_t i = 0; i < slots; i++)
            layer->ids[i] = (int32_t)((i + i / 2 + l) % shape.experts);
        layer->ids[0] = -1;
        layer->ids[1] = -1;
        fill_weights(&state, &layer->gate_up);
        fill_weights(&state, &layer->down);
        if (router) {
            fill_bf16(&state, layer->router.codes, (size_t)shape.experts * shape.hidden);
            fill_float(&state, layer->norm, shape.hidden);
        }
        fill_double(&state, layer->truth_routing_weights, slots);
        for (size_t i = 0; i < slots; i++)
            layer->routing_weights[i] = (float)layer->truth_routing_weights[i];
        fill_double(&state, layer->truth_quantised, values);
        fill_double(&state, layer->truth_original, values);
    }
    fill_double(&state, f->stack.residual, values);
    fill_double(&state, f->stack.attention_delta, LAYERS * values);
    fill_double(&state, f->stack.truth_quantised, LAYERS * values);
    fill_double(&state, f->stack.truth_original, LAYERS * values);
    return f;
}

void same_bytes(const void *a, const void *b, size_t count)
{
    assert_int_equal(a == NULL, b == NULL);
    if (a)
        assert_memory_equal(a, b, count);
}

void same_weights(const struct gb_weights *a, const struct gb_weights *b)
{
    size_t codes, scales, global_scales;
    struct gb_error error;
    assert_int_equal(a->format, b->format);
    assert_int_equal(a->experts, b->experts);
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->columns, b->columns);
    assert_int_equal(a->halves, b->halves);
    assert_int_equal(gb_weights_bytes(a, &codes, &scales, &global_scales, &error), GB_OK);
    same_bytes(a->codes, b->codes, codes);
    same_bytes(a->scales, b->scales, scales);
    same_bytes(a->global_scales, b->global_scales, global_scales);
    assert_int_equal((uintptr_t)b->codes % 64, 0);
}

static void same_head(const struct gb_fixture *a, const struct gb_fixture *b)
{
    assert_memory_equal(&a->shape, &b->shape, sizeof a->shape);
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->weights, b->weights);
    assert_int_equal(a->norm_topk_prob, b->norm_topk_prob);
    assert_memory_equal(&a->rms_norm_epsilon, &b->rms_norm_epsilon, sizeof(double));
    assert_string_equal(a->recipe, b->recipe);
    assert_string_equal(a->contract, b->contract);
    assert_string_equal(a->generator, b->generator);
    assert_true(a->seed == b->seed);
    assert_string_equal(a->source, b->source);
    assert_string_equal(a->source_sha256, b->source_sha256);
    assert_string_equal(a->sha256, b->sha256);
}

void same_fixture(const struct gb_fixture *a, const struct gb_fixture *b)
{
    size_t values = (size_t)shape.tokens * shape.hidden, slots = shape.tokens * shape.top_k;
    same_head(a, b);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct gb_layer *p = &a->layer[l], *q = &b->layer[l];
        assert_int_equal(p->index, q->index);
        same_bytes(p->x, q->x, values * sizeof *p->x);
        same_bytes(p->ids, q->ids, slots * sizeof *p->ids);
        same_bytes(p->routing_weights, q->routing_weights, slots * sizeof *p->routing_weights);
        same_weights(&p->gate_up, &q->gate_up);
        same_weights(&p->down, &q->down);
        same_bytes(p->router.codes, q->router.codes, shape.experts * shape.hidden * sizeof(gb_bf16));
        same_bytes(p->encode_scales[0], q->encode_scales[0], 2 * shape.experts * sizeof(float));
        same_bytes(p->encode_scales[1], q->encode_scales[1], shape.experts * sizeof(float));
        same_bytes(p->norm, q->norm, shape.hidden * sizeof *p->norm);
        same_bytes(p->truth_routing_weights, q->truth_routing_weights, slots * sizeof(double));
        same_bytes(p->truth_quantised, q->truth_quantised, values * sizeof(double));
        same_bytes(p->truth_original, q->truth_original, values * sizeof(double));
    }
    same_bytes(a->stack.residual, b->stack.residual, values * sizeof(double));
    same_bytes(a->stack.attention_delta, b->stack.attention_delta, LAYERS * values * sizeof(double));
    same_bytes(a->stack.truth_quantised, b->stack.truth_quantised, LAYERS * values * sizeof(double));
    same_bytes(a->stack.truth_original, b->stack.truth_original, LAYERS * values * sizeof(double));
}
