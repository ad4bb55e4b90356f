/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data of kind `exact`: valid layers of every order give the reference's values, which are those of float64, and the
 * check `exact` catches faults that the others let pass.
 */
#include "harness/judge/check_exact.h"
#include "harness/judge/judge.h"
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/fma32.h"
#include "tests/support/valid_kernels.h"

static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_MXFP4, GB_FP8_BLOCK, GB_BF16};
enum { FORMATS = sizeof formats / sizeof *formats };

/* Every how manieth variant of valid orders and fault is run; odd, so that all choices occur. */
static int sparse = 5;

static const struct gb_shape small = {8, 128, 32, 8, 2}, large = {4, 128, 512, 4, 4};

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK)
        fail_msg("%s", error ? error->message : gb_status_name(status));
}

/* A layer of exact data with its truth; every expert is made. */
static struct gb_fixture *exact_fixture(const struct gb_shape *shape, enum gb_format format, const char *routing,
                                        uint64_t seed)
{
    struct gb_fixture *f;
    struct gb_error error;
    ok(gb_fixture_new(shape, 1, format, false, false, false, &f, &error), &error);
    strcpy(f->generator, "exact/1");
    f->seed = seed;
    f->norm_topk_prob = true;
    ok(gb_generate_inputs(f, &error), &error);
    ok(gb_generate_routing(f, routing, &error), &error);
    for (uint32_t e = 0; e < shape->experts; e++)
        ok(gb_generate_expert(f, 0, e, &error), &error);
    struct gb_layer *l = &f->layer[0];
    size_t inputs = (size_t)shape->tokens * shape->hidden;
    struct gb_truth_quantised weights = {.gate_up = l->gate_up, .down = l->down};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    double *x = malloc(sizeof(double) * inputs);
    for (size_t i = 0; i < inputs; i++)
        x[i] = (double)gb_bf16_decode(l->x[i]);
    ok(gb_truth_layer(shape, x, l->ids, l->truth_routing_weights, &source, l->truth_quantised, NULL, &error), &error);
    memcpy(l->truth_original, l->truth_quantised, sizeof(double) * inputs);
    free(x);
    return f;
}

static struct gb_exactness examine(const struct gb_fixture *f, uint32_t bits)
{
    struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = bits};
    struct gb_exactness found;
    struct gb_error error;
    ok(exact_examine(f, 0, GB_BF16, &points, &found, &error), &error);
    return found;
}

/* The layer in float64, term by term; of the roundings of the contract only the one to bf16. */
static void float64_layer(const struct gb_fixture *f, double *output, double *intermediate)
{
    const struct gb_shape *s = &f->shape;
    const struct gb_layer *l = &f->layer[0];
    double *row = malloc(sizeof(double) * (s->hidden + s->intermediate));
    memset(output, 0, sizeof(double) * s->tokens * s->hidden);
    for (uint32_t pair = 0; pair < s->tokens * s->top_k; pair++) {
        double *h = intermediate + (size_t)pair * s->intermediate;
        const gb_bf16 *x = l->x + (size_t)(pair / s->top_k) * s->hidden;
        memset(h, 0, sizeof(double) * s->intermediate);
        for (uint32_t i = 0; l->ids[pair] >= 0 && i < s->intermediate; i++) {
            double value[2] = {0, 0};
            for (uint32_t part = 0; part < 2; part++) {
                gb_weights_row(&l->gate_up, (uint32_t)l->ids[pair], part * s->intermediate + i, row);
                for (uint32_t c = 0; c < s->hidden; c++)
                    value[part] += row[c] * (double)gb_bf16_decode(x[c]);
            }
            h[i] = value[0] > 0 ? (double)gb_bf16_decode(gb_bf16_encode((float)(value[0] * value[1]))) : 0;
        }
        for (uint32_t r = 0; l->ids[pair] >= 0 && r < s->hidden; r++) {
            gb_weights_row(&l->down, (uint32_t)l->ids[pair], r, row);
            for (uint32_t i = 0; i < s->intermediate; i++)
                output[(size_t)(pair / s->top_k) * s->hidden + r] += (double)l->routing_weights[pair] * row[i] * h[i];
        }
    }
    free(row);
}

static void same_values(const double *expected, const double *got, size_t count, const char *what, int variant)
{
    for (size_t i = 0; i < count; i++)
        if (!(expected[i] == got[i]))
            fail_msg("%s %zu of variant %d: %.17g, expected %.17g", what, i, variant, got[i], expected[i]);
}

static void all_orders_agree(const struct gb_shape *shape, enum gb_format format, const char *routing, uint64_t seed,
                             int stride)
{
    struct gb_fixture *f = exact_fixture(shape, format, routing, seed);
    size_t outputs = (size_t)shape->tokens * shape->hidden;
    size_t inner = (size_t)shape->tokens * shape->top_k * shape->intermediate, open = 0, nonzero = 0;
    double *memory = malloc(sizeof(double) * 2 * (outputs + inner));
    double *output = memory, *expected = output + outputs, *h = expected + outputs, *expected_h = h + inner;
    struct problem p = {.arguments = gb_layer_arguments(f, 0, shape->tokens),
                        .ids = f->layer[0].ids,
                        .routing_weights = f->layer[0].routing_weights,
                        .x = f->layer[0].x};
    struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    struct gb_exactness found = examine(f, 24);
    struct gb_error error;
    if (found.why)
        fail_msg("%s %u: %s, token %u", gb_format_name(format), shape->intermediate, found.why, found.token);
    float64_layer(f, expected, expected_h);
    for (size_t i = 0; i < inner; i++)
        open += expected_h[i] != 0;
    for (size_t i = 0; i < outputs; i++)
        nonzero += expected[i] != 0;
    assert_true(open > inner / 40 && nonzero > outputs / 2);
    for (int v = 0; v < VALID_ORDERS * 16; v += stride) {
        struct valid_kernel valid = {.order = v / 16,
                                     .fma = v & 1,
                                     .scales_first = v & 2,
                                     .reciprocal = v & 4,
                                     .fold = v & 8,
                                     .seed = (uint64_t)v};
        valid_layer(&p, &valid, &points, output, h);
        same_values(expected_h, h, inner, "intermediate", v);
        same_values(expected, output, outputs, "output", v);
    }
    p.arguments.output = malloc(sizeof(float) * outputs);
    p.arguments.intermediate = malloc(sizeof(gb_bf16) * inner);
    ok(fma32_layer(&p.arguments, &error), &error);
    for (size_t i = 0; i < outputs; i++)
        assert_true((double)((float *)p.arguments.output)[i] == expected[i]);
    free(p.arguments.output);
    free(p.arguments.intermediate);
    free(memory);
    gb_fixture_free(f);
}

static void orders_agree(void **state)
{
    (void)state;
    static const struct gb_shape shapes[] = {{8, 128, 32, 8, 2}, {4, 384, 128, 6, 3}, {3, 640, 96, 4, 4}};
    for (int f = 0; f < FORMATS; f++)
        for (int s = 0; s < 3; s++)
            if (sparse == 1 || s == 0 || s == 1 + f % 2)
                all_orders_agree(&shapes[s], formats[f], s == 2 ? "holes" : "uniform", 1 + (uint64_t)s,
                                 sparse * (1 + 6 * s));
}

/* As many terms as an output of the largest models has: top_k * intermediate = 16,384. */
static void large_sums_fit(void **state)
{
    (void)state;
    const struct gb_shape deep = {2, sparse > 1 ? 128 : 256, 2048, 8, 8};
    for (int f = 0; f < FORMATS; f += sparse)
        all_orders_agree(&deep, formats[f], "uniform", 5, 27);
}

/* Every E2M1 code and three block scales occur, and the routing weights of some tokens are too long for bf16. */
static void data_is_varied(void **state)
{
    (void)state;
    struct gb_fixture *f = exact_fixture(&small, GB_NVFP4, "uniform", 1);
    const struct gb_weights *w = &f->layer[0].gate_up;
    bool code[16] = {false}, scale[256] = {false};
    size_t codes, scales, globals, kinds = 0, lost = 0;
    ok(gb_weights_bytes(w, &codes, &scales, &globals, NULL), NULL);
    for (size_t i = 0; i < codes; i++)
        code[((const uint8_t *)w->codes)[i] & 15] = code[((const uint8_t *)w->codes)[i] >> 4] = true;
    for (size_t i = 0; i < scales; i++)
        kinds += !scale[((const uint8_t *)w->scales)[i]], scale[((const uint8_t *)w->scales)[i]] = true;
    for (int i = 0; i < 16; i++)
        assert_true(code[i]);
    assert_int_equal(kinds, 3);
    for (uint32_t i = 0; i < small.tokens * small.top_k; i++) {
        float weight = f->layer[0].routing_weights[i];
        lost += gb_bf16_decode(gb_bf16_encode(weight)) != weight;
    }
    assert_true(lost > 0);
    gb_fixture_free(f);
}

/* Whatever breaks exactness is seen, with its reason. */
static void breaches_are_seen(void **state)
{
    (void)state;
    struct gb_fixture *f = exact_fixture(&small, GB_BF16, "uniform", 1);
    struct gb_layer *l = &f->layer[0];
    gb_bf16 *down = (gb_bf16 *)(uintptr_t)l->down.codes + (size_t)l->ids[0] * small.hidden * small.intermediate;
    gb_bf16 *gate = (gb_bf16 *)(uintptr_t)l->gate_up.codes + (size_t)l->ids[0] * 2 * small.intermediate * small.hidden;
    struct gb_exactness found = examine(f, 24);
    assert_null(found.why);
    assert_null(examine(f, (uint32_t)ceil(found.bits)).why);
    assert_string_equal(examine(f, (uint32_t)ceil(found.bits) - 1).why, "the terms of an output have too many bits");
    assert_non_null(examine(f, 8).why);

    float weight = l->routing_weights[0];
    l->routing_weights[0] = 1.0f / 3.0f;
    assert_string_equal(examine(f, 24).why, "the terms of an output have too many bits");
    l->routing_weights[0] = weight;

    gb_bf16 code = down[3];
    down[3] = gb_bf16_encode(0x1.02p-20f);
    assert_string_equal(examine(f, 24).why, "the terms of an output have too many bits");
    down[3] = code;

    gb_bf16 *up = gate + (size_t)small.intermediate * small.hidden;
    memset(gate, 0, sizeof *gate * small.hidden);
    memset(up, 0, sizeof *up * small.hidden);
    for (int c = 0; c < 2; c++) /* 15 bits each */
        gate[c] = up[c] = gb_bf16_encode(copysignf(c ? 0x1p7f : 0x1p22f, gb_bf16_decode(l->x[c])));
    assert_string_equal(examine(f, 24).why, "silu(gate) * up has too many bits");

    memset(gate, 0, sizeof *gate * small.hidden);
    memset(up, 0, sizeof *up * small.hidden);
    gate[0] = gb_bf16_encode(9.0f);
    assert_string_equal(examine(f, 24).why, "a gate lies where forms of SiLU differ");
    gb_fixture_free(f);
}

/* A judge of one fixture, and a subject without an order. */
struct bench {
    struct gb_fixture *fixture;
    struct baseline baseline;
    struct gb_outputs *outputs;
    struct gb_kernel kernel;
};

static void bench_new(struct bench *b, const struct gb_shape *shape, enum gb_format format)
{
    struct gb_error error;
    b->fixture = exact_fixture(shape, format, "uniform", 1);
    b->kernel = (struct gb_kernel){.name = "subject",
                                   .operation = GB_LAYER,
                                   .weights = format,
                                   .activations = GB_BF16,
                                   .output = GB_FP32,
                                   .accumulator_bits = 24};
    ok(baseline_new(b->fixture, gb_contract_find(b->fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &b->baseline,
                    &error),
       &error);
    ok(gb_outputs_new(shape, 1, GB_FP32, false, false, &b->outputs, &error), &error);
}

static void bench_free(struct bench *b)
{
    baseline_free(&b->baseline);
    gb_outputs_free(b->outputs);
    gb_fixture_free(b->fixture);
}

/* The reference on the weights and routing as they are now. */
static enum verdict verdict_of(struct bench *b, bool exact)
{
    const struct gb_shape *shape = &b->fixture->shape;
    struct gb_arguments a = gb_layer_arguments(b->fixture, 0, shape->tokens);
    struct case_result j;
    struct gb_error error;
    struct policy gate;
    a.output = b->outputs->layer[0].output;
    ok(fma32_layer(&a, &error), &error);
    policy_preset(0, &gate);
    gate.exact = exact;
    ok(judge(&b->baseline, &b->kernel, b->outputs, NULL, &gate, &j, &error), &error);
    assert_int_equal(exact_violated(&j.exact), memcmp(a.output, b->baseline.reference->layer[0].output,
                                                      sizeof(float) * shape->tokens * shape->hidden) != 0);
    case_result_free(&j);
    return j.verdict;
}

/* exp's argument is clamped at 88.376: closed gates leave some 1e-36, and outputs that are zeros otherwise. */
static void clamped_exponentials_pass(void **state)
{
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        const size_t outputs = (size_t)small.tokens * small.hidden;
        const size_t inner = (size_t)small.tokens * small.top_k * small.intermediate;
        const struct valid_kernel clamped = {.order = VALID_SPLIT, .clamp = true, .reciprocal = f % 2};
        const struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
        double *output = malloc(sizeof *output * (outputs + inner)), *h = output + outputs;
        struct bench b;
        struct case_result j;
        struct gb_error error;
        struct policy gate;
        size_t other = 0;
        bench_new(&b, &small, formats[f]);
        gb_outputs_free(b.outputs);
        ok(gb_outputs_new(&small, 1, GB_FP32, true, false, &b.outputs, &error), &error);
        struct problem p = {.arguments = gb_layer_arguments(b.fixture, 0, small.tokens),
                            .ids = b.fixture->layer[0].ids,
                            .routing_weights = b.fixture->layer[0].routing_weights,
                            .x = b.fixture->layer[0].x};
        gb_bf16 *code = b.outputs->layer[0].intermediate;
        valid_layer(&p, &clamped, &points, output, h);
        for (size_t i = 0; i < outputs; i++)
            ((float *)b.outputs->layer[0].output)[i] = (float)output[i];
        for (size_t i = 0; i < inner; i++) {
            code[i] = gb_bf16_encode((float)h[i]);
            other += h[i] != (double)gb_bf16_decode(b.baseline.reference->layer[0].intermediate[i]);
        }
        assert_true(other > 0);
        policy_preset(0, &gate);
        ok(judge(&b.baseline, &b.kernel, b.outputs, NULL, &gate, &j, &error), &error);
        if (j.verdict != VERDICT_PASS || !j.exact.binding)
            fail_msg("%s: %s", gb_format_name(formats[f]), j.reason);
        case_result_free(&j);
        for (size_t i = 0; i < inner; i++) /* more than any form leaves */
            if (gb_bf16_decode(b.baseline.reference->layer[0].intermediate[i]) == 0.0f && h[i] != 0.0)
                code[i] = gb_bf16_encode(0x1p-80f);
        ok(judge(&b.baseline, &b.kernel, b.outputs, NULL, &gate, &j, &error), &error);
        assert_int_equal(j.verdict, VERDICT_FAIL);
        assert_true(j.exact.mismatching > 0);
        case_result_free(&j);
        free(output);
        bench_free(&b);
    }
}

struct count {
    int caught, unseen; /* by the check; of those, by all others */
};

static void try_fault(struct bench *b, struct count *count)
{
    if (verdict_of(b, true) != VERDICT_FAIL)
        return;
    count->caught++;
    count->unseen += verdict_of(b, false) == VERDICT_PASS;
}

/* Single bits of the down projection's codes and scales, and routing weights in bf16. */
static void faults_below_the_floors(void **state)
{
    (void)state;
    struct bench b;
    struct count element = {0}, scale = {0}, weight = {0};
    uint64_t random = 3;
    bench_new(&b, &large, GB_MXFP8);
    assert_int_equal(verdict_of(&b, true), VERDICT_PASS);
    struct gb_layer *l = &b.fixture->layer[0];
    size_t codes, scales, globals;
    ok(gb_weights_bytes(&l->down, &codes, &scales, &globals, NULL), NULL);
    for (int n = 0; n < 60; n += sparse) {
        uint8_t *code = (uint8_t *)(uintptr_t)l->down.codes + random_below(&random, (uint32_t)codes);
        *code ^= 1;
        try_fault(&b, &element);
        *code ^= 1;
    }
    bench_free(&b);

    bench_new(&b, &large, GB_NVFP4);
    l = &b.fixture->layer[0];
    ok(gb_weights_bytes(&l->down, &codes, &scales, &globals, NULL), NULL);
    assert_int_equal(verdict_of(&b, true), VERDICT_PASS);
    for (int n = 0; n < 60; n += sparse) {
        uint8_t *code = (uint8_t *)(uintptr_t)l->down.scales + random_below(&random, (uint32_t)scales);
        *code += 1;
        try_fault(&b, &scale);
        *code -= 1;
    }
    bench_free(&b);

    bench_new(&b, &small, GB_NVFP4);
    l = &b.fixture->layer[0];
    for (uint32_t i = 0; i < small.tokens * small.top_k; i++) {
        float exact = l->routing_weights[i];
        l->routing_weights[i] = gb_bf16_decode(gb_bf16_encode(exact));
        if (l->routing_weights[i] != exact)
            try_fault(&b, &weight);
        l->routing_weights[i] = exact;
    }
    bench_free(&b);
    print_message("caught (unseen by the other checks): element %d (%d), scale %d (%d), weight %d (%d)\n",
                  element.caught, element.unseen, scale.caught, scale.unseen, weight.caught, weight.unseen);
    assert_true(element.unseen > 0 && scale.unseen > 0 && weight.unseen > 0);
}

/* A fixture that names the generator without its data. */
static void false_claims_are_refused(void **state)
{
    (void)state;
    struct bench b;
    bench_new(&b, &small, GB_BF16);
    assert_int_equal(verdict_of(&b, true), VERDICT_PASS);
    b.kernel.accumulator_bits = 16; /* narrower than the data's sums: the check does not bind */
    assert_int_equal(verdict_of(&b, true), VERDICT_PASS);
    bench_free(&b);
    bench_new(&b, &small, GB_BF16);
    ((gb_bf16 *)(uintptr_t)b.fixture->layer[0]
         .down.codes)[(size_t)b.fixture->layer[0].ids[0] * small.hidden * small.intermediate] =
        gb_bf16_encode(0x1.02p-30f);
    struct gb_error error;
    assert_int_equal(exact_check(b.fixture, &error), GB_EINVAL);
    assert_non_null(strstr(error.message, "exact/1, but layer 0, token "));
    baseline_free(&b.baseline);
    ok(baseline_new(b.fixture, gb_contract_find(b.fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &b.baseline,
                    &error),
       &error);
    assert_int_equal(verdict_of(&b, true), VERDICT_BAD_INPUT);
    bench_free(&b);
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        sparse = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_agree),
        cmocka_unit_test(large_sums_fit),
        cmocka_unit_test(data_is_varied),
        cmocka_unit_test(breaches_are_seen),
        cmocka_unit_test(clamped_exponentials_pass),
        cmocka_unit_test(faults_below_the_floors),
        cmocka_unit_test(false_claims_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
