/* SPDX-License-Identifier: Apache-2.0 */
/* The contracts with quantised activations: every stage of the reference against the oracle, on every path of the CPU.
 */
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/oracle/oracle.h"
#include "tests/support/problem.h"
#include "tests/support/kept_explanation.h"

struct contract {
    enum gb_format weights;
    const char *recipe;
    struct gb_shape shapes[3];
};

/* The first recipe of a format is its default. tokens, hidden, intermediate, experts, top_k */
static const struct contract contracts[] = {
    {GB_NVFP4, "nvfp4.trtllm/1", {{1, 16, 16, 1, 1}, {3, 80, 48, 4, 3}, {2, 544, 64, 3, 2}}},
    {GB_NVFP4, "nvfp4.modelopt/1", {{3, 80, 48, 4, 3}, {1, 32, 16, 1, 1}, {2, 128, 96, 3, 2}}},
    {GB_NVFP4, "nvfp4.flashinfer-4over6-mae-448/1", {{3, 80, 48, 4, 3}, {1, 32, 16, 1, 1}, {2, 64, 96, 3, 2}}},
    {GB_NVFP4, "nvfp4.llamacpp/1", {{3, 80, 48, 4, 3}, {1, 32, 16, 1, 1}, {2, 64, 96, 3, 2}}},
    {GB_MXFP8, "mxfp8.rceil/1", {{1, 32, 32, 1, 1}, {3, 160, 96, 4, 3}, {2, 544, 32, 2, 2}}},
    {GB_MXFP8, "mxfp8.floor/1", {{1, 32, 32, 1, 1}, {3, 160, 96, 4, 3}, {2, 64, 32, 2, 2}}},
    {GB_MXFP4, "mxfp8.rceil/1", {{1, 32, 32, 1, 1}, {3, 160, 96, 4, 3}, {2, 544, 32, 2, 2}}},
    {GB_FP8_BLOCK, "fp8g128.vllm/1", {{1, 128, 128, 1, 1}, {3, 256, 128, 4, 3}, {2, 640, 256, 2, 2}}},
    {GB_FP8_BLOCK, "fp8g128.deepseek/1", {{1, 128, 128, 1, 1}, {3, 256, 128, 4, 3}, {2, 128, 256, 2, 2}}},
};

/* Codes and scales of one of the two: packed as the operators write them, and as the oracle has them. */
struct coded {
    size_t count, blocks;
    uint8_t *codes, *expected;             /* [count] */
    uint8_t *scales, *expected_scale_code; /* [blocks], `scales` of up to four bytes */
    float *expected_scales;                /* [blocks] */
};

static struct coded coded_new(size_t count, uint32_t block)
{
    struct coded c = {.count = count, .blocks = count / block};
    c.codes = malloc(count);
    c.expected = malloc(count);
    c.scales = malloc(c.blocks * sizeof(float));
    c.expected_scale_code = malloc(c.blocks);
    c.expected_scales = malloc(c.blocks * sizeof(float));
    assert_true(c.codes && c.expected && c.scales && c.expected_scale_code && c.expected_scales);
    memset(c.codes, 0xA5, count);
    memset(c.scales, 0xA5, c.blocks * sizeof(float));
    return c;
}

static void coded_free(struct coded *c)
{
    free(c->codes);
    free(c->expected);
    free(c->scales);
    free(c->expected_scale_code);
    free(c->expected_scales);
}

static void expect_codes(const struct gb_quantiser *rules, const struct coded *c, const char *what)
{
    for (size_t i = 0; i < c->count; i++) {
        unsigned code = rules->element == GB_E2M1 ? c->codes[i / 2] >> (i % 2 * 4) & 15u : c->codes[i];
        if (code != c->expected[i])
            fail_msg("%s: code %zu: expected %02X, got %02X", what, i, c->expected[i], code);
    }
    for (size_t b = 0; b < c->blocks; b++)
        if (rules->scale == GB_SCALE_FP32)
            assert_same_float(c->expected_scales[b], ((const float *)(const void *)c->scales)[b], "%s: scale %zu", what,
                              b);
        else if (c->scales[b] != c->expected_scale_code[b])
            fail_msg("%s: scale %zu: expected %02X, got %02X", what, b, c->expected_scale_code[b], c->scales[b]);
}

/* A global scale near that of values of order 1, of full precision; the second one too small, so that codes saturate.
 */
static void ask(struct problem *p, const struct gb_quantiser *rules, uint64_t seed)
{
    struct gb_arguments *a = &p->arguments;
    a->activation_rules = rules;
    a->x_scale = 0.00187654f + 1e-5f * (float)seed;
    a->intermediate_scale = 0.000345678f;
}

static void check_stages(struct problem *p)
{
    struct gb_arguments *a = &p->arguments;
    const struct gb_quantiser *rules = a->activation_rules;
    const struct gb_shape *shape = &a->shape;
    size_t inner = (size_t)shape->tokens * shape->top_k * shape->intermediate;
    size_t outer = (size_t)shape->tokens * shape->hidden;
    struct coded x = coded_new(outer, rules->block_columns), h = coded_new(inner, rules->block_columns);
    gb_bf16 *intermediate = malloc(inner * sizeof *intermediate); /* [tokens, top_k, intermediate] */
    float *output = malloc(outer * sizeof *output);               /* [tokens, hidden] */
    assert_true(intermediate && output);
    oracle_quantise_activations(a, false, p->x, x.expected, x.expected_scale_code, x.expected_scales);
    oracle_quantised_gate_up(a, x.expected, x.expected_scales, intermediate);
    oracle_quantise_activations(a, true, intermediate, h.expected, h.expected_scale_code, h.expected_scales);
    oracle_quantised_down(a, h.expected, h.expected_scales, output);
    for (int path = GB_CPU_PLAIN; path <= GB_CPU_AVX512; path++) {
        if (!gb_cpu_path_available((enum gb_cpu_path)path))
            continue;
        const char *name = gb_cpu_path_name((enum gb_cpu_path)path);
        assert_int_equal(gb_cpu_path_set((enum gb_cpu_path)path, NULL), GB_OK);
        for (int staged = 0; staged < 2; staged++) {
            problem_poison(p);
            a->x_codes = staged ? x.codes : NULL;
            a->x_scales = staged ? x.scales : NULL;
            a->intermediate_codes = staged ? h.codes : NULL;
            a->intermediate_scales = staged ? h.scales : NULL;
            assert_int_equal(fma32_layer(a, NULL), GB_OK);
            for (size_t i = 0; i < inner; i++)
                if (!same_bf16(intermediate[i], p->intermediate[i]))
                    fail_msg("%s: intermediate %zu: expected %04X, got %04X", name, i, intermediate[i].bits,
                             p->intermediate[i].bits);
            for (size_t i = 0; i < outer; i++)
                assert_same_float(output[i], p->output[i], "%s: output %zu", name, i);
        }
        expect_codes(rules, &x, "x");
        expect_codes(rules, &h, "intermediate");
    }
    coded_free(&x);
    coded_free(&h);
    free(intermediate);
    free(output);
}

static void stages_equal_the_oracle(void **state)
{
    static const enum data kinds[] = {DATA_GAUSSIAN, DATA_CODES, DATA_SUBNORMAL, DATA_CANCEL};
    (void)state;
    for (size_t c = 0; c < sizeof contracts / sizeof *contracts; c++)
        for (size_t s = 0; s < 3; s++)
            for (size_t d = (c + s) % 2; d < sizeof kinds / sizeof *kinds; d += 2) {
                struct problem p;
                problem_new(&p, contracts[c].shapes[s], contracts[c].weights, kinds[d], 7 * c + s);
                ask(&p, &gb_recipe_find(contracts[c].recipe)->quantiser, s);
                problem_empty_slots(&p, 5, c);
                check_stages(&p);
                problem_free(&p);
            }
}

/* Biases and gpt-oss's activation, as in other contracts. */
static void extensions(void **state)
{
    struct problem p;
    (void)state;
    problem_new(&p, (struct gb_shape){3, 64, 32, 4, 2}, GB_MXFP4, DATA_GAUSSIAN, 3);
    problem_extend(&p, GB_SWIGLU_OAI, 5);
    ask(&p, &gb_recipe_default_activations(GB_MXFP8)->quantiser, 0);
    check_stages(&p);
    problem_free(&p);
}

/* MXFP8's numbers where bf16 ends: below 2^-133 they are rounded, at 2^128 infinite. */
static void ends_of_bf16(void **state)
{
    static const uint16_t bits[] = {0x0001, 0x0003, 0x0009, 0x0011, 0x7F7F, 0x7F01};
    (void)state;
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        struct problem p;
        problem_new(&p, (struct gb_shape){1, 32, 32, 1, 1}, GB_MXFP8, DATA_GAUSSIAN, i);
        ask(&p, &gb_recipe_default_activations(GB_MXFP8)->quantiser, 0);
        for (size_t c = 0; c < 32; c++)
            p.x[c].bits = (uint16_t)(bits[i] ^ (c % 3 ? 0x8000 : 0) ^ c % 2);
        check_stages(&p);
        problem_free(&p);
    }
}

static void refusals(void **state)
{
    struct gb_error error;
    struct problem p;
    (void)state;
    problem_new(&p, (struct gb_shape){2, 64, 32, 2, 1}, GB_NVFP4, DATA_GAUSSIAN, 1);
    ask(&p, &gb_recipe_find("mxfp8.rceil/1")->quantiser, 0);
    assert_int_equal(fma32_layer(&p.arguments, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    assert_non_null(strstr(error.message, "no contract has nvfp4 weights"));
    ask(&p, &gb_recipe_find("nvfp4.trtllm/1")->quantiser, 0);
    p.arguments.intermediate_scale = 0x1p-127f;
    assert_int_equal(fma32_layer(&p.arguments, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    assert_non_null(strstr(error.message, "must be normal"));
    p.arguments.intermediate_scale = 1.0f;
    p.arguments.x_scale = NAN;
    assert_int_equal(fma32_gate_up(&p.arguments, &error), GB_EINVAL);
    assert_int_equal(fma32_down(&p.arguments, &error), GB_OK); /* takes no x */
    problem_free(&p);
    problem_new(&p, (struct gb_shape){2, 192, 128, 2, 1}, GB_FP8_BLOCK, DATA_GAUSSIAN, 1);
    ask(&p, &gb_recipe_find("fp8g128.vllm/1")->quantiser, 0);
    assert_int_equal(fma32_layer(&p.arguments, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    assert_non_null(strstr(error.message, "no multiple of 128"));
    problem_free(&p);
}

/* Arguments of a caller that ends before the recipe are bf16's, whatever lies behind them. */
static void older_callers(void **state)
{
    struct problem p;
    (void)state;
    problem_new(&p, (struct gb_shape){2, 64, 32, 2, 1}, GB_NVFP4, DATA_GAUSSIAN, 2);
    float expected[128];
    assert_int_equal(fma32_layer(&p.arguments, NULL), GB_OK);
    memcpy(expected, p.output, sizeof expected);
    ask(&p, &gb_recipe_find("nvfp4.trtllm/1")->quantiser, 0);
    p.arguments.size = offsetof(struct gb_arguments, activation_rules);
    problem_poison(&p);
    assert_int_equal(fma32_layer(&p.arguments, NULL), GB_OK);
    assert_memory_equal(expected, p.output, sizeof expected);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_equal_the_oracle),
        cmocka_unit_test(extensions),
        cmocka_unit_test(ends_of_bf16),
        cmocka_unit_test(refusals),
        cmocka_unit_test(older_callers),
        KEPT_AS("test_activations"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
