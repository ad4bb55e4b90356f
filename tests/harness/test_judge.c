/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of harness/judge by themselves: figures, differences, routing of its own, truth that is not that of its inputs;
 * and parts of problems. */
#include "tests/support/check.h"

#include <float.h>

#include "harness/explain/subproblem.h"
#include "harness/faults/faults_exchange.h"
#include "harness/judge/baseline.h"
#include "harness/judge/case_result.h"
#include "harness/judge/identification.h"
#include "harness/judge/judge.h"
#include "harness/judge/metrics.h"
#include "harness/judge/operators.h"
#include "harness/judge/policy.h"
#include "harness/judge/reroute.h"
#include "harness/judge/truth_check.h"
#include "harness/run/layer_inputs.h"
#include "harness/run/residual_stream.h"
#include "quant/quant.h"
#include "tests/support/layer_as_fixture.h"
#include "tests/support/sample_fixture.h"

static struct gb_error error;

static void near(double value, double right)
{
    if (!(fabs(value - right) <= 1e-12 * fabs(right)) && !(isnan(value) && isnan(right)))
        fail_msg("%.17g, not %.17g", value, right);
}

/* Two calls of [2, 3]: a token that is NaN in both is not compared, a NaN in both elements is left out. */
static void test_metrics(void **state)
{
    (void)state;
    const double subject[] = {1.0, -2.0, 2.5, NAN, NAN, NAN, 3.0, NAN, 4.0, -1.0, 0.5, 0.0};
    const double truth[] = {1.0, -2.25, 2.0, NAN, NAN, NAN, 2.0, NAN, 4.0, -1.0, 0.5, 0.25};
    const double cosine[] = {(1.0 + 4.5 + 5.0) / sqrt((1 + 4 + 6.25) * (1 + 5.0625 + 4)),
                             (6.0 + 16.0) / sqrt((9 + 16) * (4 + 16.0)), (1.0 + 0.25) / sqrt(1.25 * 1.3125)};
    struct metrics m;
    metrics_start(&m);
    metrics_add(&m, subject + 3, truth + 3, 1, 3);
    assert_true(isnan(m.cosine_min) && isnan(metrics_cosine(&m)) && m.tokens == 0 && m.max_abs == 0.0);
    metrics_start(&m);
    metrics_add(&m, subject, truth, 2, 3);
    near(m.cosine_min, cosine[0]);
    assert_true(m.cosine_token == 0 && m.tokens == 1 && m.elements == 6 && m.non_finite == 0);
    near(m.max_abs, 0.5);
    metrics_add(&m, subject + 6, truth + 6, 2, 3);
    double smallest = fmin(cosine[0], fmin(cosine[1], cosine[2]));
    near(m.cosine_min, smallest);
    assert_true(m.cosine_token == (smallest == cosine[1] ? 0 : 1) && m.tokens == 3 && m.elements == 12);
    double dot = 10.5 + 22 + 1.25, a = 11.25 + 25 + 1.25, b = 10.0625 + 20 + 1.3125;
    double errors = 0.0625 + 0.25 + 1.0 + 0.0625;
    near(metrics_cosine(&m), dot / sqrt(a * b));
    near(metrics_relative_l2(&m), sqrt(errors / b));
    near(metrics_sqnr(&m), 10.0 * log10(b / errors));
    near(m.max_abs, 1.0);
    near(m.subject_squares, a);
    const double bad[] = {INFINITY, NAN, 1.0}, good[] = {1.0, 2.0, 1.0};
    metrics_add(&m, bad, good, 1, 3);
    assert_true(isnan(m.max_abs) && isnan(m.cosine_min) && m.cosine_token == 0 && m.non_finite == 2);
    metrics_add(&m, good, good, 1, 3);
    assert_true(isnan(m.max_abs) && isnan(m.cosine_min) && m.non_finite == 2 && m.tokens == 5);
}

static void test_differences(void **state)
{
    (void)state;
    static const uint32_t ours[] = {0x3F800000, 0x80000000, 0x7FC00000, 0x7F800000, 0x00000001, 0xFFC00001, 0x3F800000};
    static const uint32_t theirs[] = {0x3F800000, 0x00000000, 0xFFC00000, 0x7F7FFFFF,
                                      0x80000001, 0x3F800000, 0x3F800007};
    static const struct {
        uint64_t count, mismatching, nan, ulp, first;
    } rows[] = {{1, 0, 0, 0, 0}, {2, 1, 0, 1, 1}, {3, 1, 0, 1, 1}, {4, 2, 0, 1, 1},
                {5, 3, 0, 3, 1}, {6, 4, 1, 3, 1}, {7, 5, 1, 7, 1}};
    struct difference d;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        difference_of(GB_FP32, ours, theirs, rows[i].count, &d);
        assert_true(d.compared == rows[i].count && d.mismatching == rows[i].mismatching);
        assert_true(d.nan_mismatching == rows[i].nan && d.max_ulp == rows[i].ulp && d.first == rows[i].first);
        assert_true(!d.mismatching || (d.first_subject == 0x80000000 && d.first_reference == 0));
    }
    static const uint16_t narrow[] = {0x7F80, 0x7F81, 0x8000, 0x0000, 0x3F80},
                          others[] = {0x7F80, 0xFFC0, 0x0001, 0x7F81, 0x3F7C};
    difference_of(GB_BF16, narrow, others, 5, &d);
    assert_true(d.mismatching == 3 && d.first == 2 && d.nan_mismatching == 1 && d.max_ulp == 4);
    assert_true(d.first_subject == 0x8000 && d.first_reference == 0x0001);
}

/* A fixture's routing, and a subject's of its first tokens. */
static void test_routing_of_its_own(void **state)
{
    (void)state;
    const struct gb_shape shape_of = {3, 32, 32, 7, 2};
    struct problem problem;
    problem_new(&problem, shape_of, GB_BF16, DATA_CODES, 4);
    struct gb_fixture *f = problem_fixture(&problem);
    struct gb_outputs *o;
    struct routing_difference d;
    assert_int_equal(gb_outputs_new_routing(&shape_of, 1, &o, &error), GB_OK);
    int32_t *ids = o->layer[0].ids, *right = f->layer[0].ids;
    float *weights = o->layer[0].routing_weights;
    for (int i = 0; i < 6; i++) {
        ids[i] = right[i] = i % 2 ? 6 - i / 2 : i / 2;
        weights[i] = f->layer[0].routing_weights[i] = 0.25f + 0.125f * (float)i;
    }
    assert_true(routing_difference(f, o, &d) == 0 && !d.sets && !d.weights && !d.order && !d.max_ulp);
    weights[1] = bits_float(float_bits(weights[1]) + 3); /* of the first token one weight, */
    ids[2] = right[3], ids[3] = right[2];                /* of the second the slots, */
    weights[2] = f->layer[0].routing_weights[3], weights[3] = f->layer[0].routing_weights[2];
    ids[5] = 3; /* of the third an expert */
    assert_int_equal(routing_difference(f, o, &d), 3);
    assert_true(d.sets == 1 && d.weights == 1 && d.order == 1 && d.max_ulp == 3);
    ids[5] = -1; /* is one expert less */
    assert_true(routing_difference(f, o, &d) == 3 && d.sets == 1 && d.max_ulp == 3);
    weights[0] = bits_float(float_bits(weights[0]) - 5);
    assert_true(routing_difference(f, o, &d) == 3 && d.weights == 1 && d.max_ulp == 5);
    weights[0] = NAN;
    assert_true(routing_difference(f, o, &d) == 3 && d.max_ulp == UINT32_MAX);
    assert_false(can_be_rerouted(f, o));
    f->nonfinite = true;
    assert_true(can_be_rerouted(f, o));
    f->nonfinite = false;
    weights[0] = 0x1p16f;
    assert_true(can_be_rerouted(f, o));
    weights[0] = -0x1p16f;
    assert_true(can_be_rerouted(f, o));
    weights[0] = nextafterf(0x1p16f, INFINITY);
    assert_false(can_be_rerouted(f, o));
    weights[0] = 1.0f;
    static const struct {
        int32_t id;
        bool good;
    } last[] = {{6, true}, {7, false}, {-1, true}, {-2, false}, {0, true}};
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        ids[5] = last[i].id;
        assert_true(can_be_rerouted(f, o) == last[i].good);
    }
    ids[5] = ids[4];
    assert_false(can_be_rerouted(f, o));
    ids[4] = ids[5] = -1;
    assert_true(can_be_rerouted(f, o));
    gb_outputs_free(o);
    gb_fixture_free(f);
    problem_free(&problem);
}

/* Truth that differs by less than it may, and by more. */
static void test_truth_of_other_inputs(void **state)
{
    (void)state;
    const struct gb_shape shape_of = {3, 64, 32, 5, 2};
    const struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    struct problem problem;
    problem_new(&problem, shape_of, GB_NVFP4, DATA_GAUSSIAN, 6);
    struct gb_fixture *f = problem_fixture(&problem);
    const struct gb_contract *contract = gb_contract_find(GB_NVFP4, GB_BF16, GB_ORDER_FMA32);
    static const double shares[] = {0.7, -1.4};
    for (size_t n = 0; n < sizeof shares / sizeof *shares; n++) {
        struct baseline b;
        assert_int_equal(baseline_new(f, contract, NULL, &b, &error), GB_OK);
        assert_int_equal(baseline_bounds(&b, &points, false, &error), GB_OK);
        double *truth = f->layer[0].truth_quantised, kept[2] = {truth[70], truth[130]};
        const double allowed = 0x1p-28; /* of the bound: 24 bits in place of 53, and as much for either */
        truth[70] += shares[n] * allowed * b.bounds[0].of.output_worst[70];
        truth[130] += shares[n] * allowed * b.bounds[0].of.output_worst[130];
        baseline_free(&b);
        assert_int_equal(baseline_new(f, contract, NULL, &b, &error), GB_OK);
        assert_int_equal(baseline_bounds(&b, &points, false, &error), GB_OK);
        bool differs = fabs(shares[n]) > 1.0;
        assert_int_equal(b.bounds[0].truth_differs, differs ? 2 : 0);
        if (differs)
            assert_true(b.bounds[0].truth_first == 70 && fabs(b.bounds[0].truth_own - kept[0]) < 1e-12);
        assert_true(b.bounds[0].of.output_truth[70] == truth[70]);
        truth[70] = kept[0];
        truth[130] = kept[1];
        baseline_free(&b);
    }
    gb_fixture_free(f);
    problem_free(&problem);
}

/* The truth of its stack becomes that of its inputs. */
static void find_stack(struct gb_fixture *f)
{
    const size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    for (uint32_t l = 0; l < f->layers; l++) {
        const struct gb_layer *layer = &f->layer[l];
        struct gb_truth_quantised weights = {
            layer->gate_up, layer->down, {f->activation, layer->gate_up_bias, layer->down_bias}};
        struct gb_truth_source source = gb_truth_from_quantised(&weights);
        const double *before = l ? f->stack.truth_quantised + (l - 1) * count : f->stack.residual;
        assert_int_equal(stack_truth(f, l, &source, before, f->stack.truth_quantised + l * count, &error), GB_OK);
        memcpy(f->stack.truth_original + l * count, f->stack.truth_quantised + l * count, sizeof(double) * count);
        memcpy(layer->truth_original, layer->truth_quantised, sizeof(double) * count);
    }
}

/* A sample with a stack, and its baseline. */
static struct gb_fixture *stack_fixture(struct baseline *b)
{
    struct gb_fixture *f = new_fixture(GB_BF16, true, true, true);
    find_stack(f);
    assert_int_equal(baseline_new(f, gb_contract_find(GB_BF16, GB_BF16, GB_ORDER_FMA32), NULL, b, &error), GB_OK);
    return f;
}

static void refused(const struct baseline *b, const char *words)
{
    assert_int_equal(truth_check(b, "file.h5", &error), GB_EFORMAT);
    if (!strstr(error.message, words))
        fail_msg("%s", error.message);
}

static void scale(double *values, size_t count, double factor)
{
    for (size_t i = 0; i < count; i++)
        values[i] *= factor;
}

static void test_truth_is_checked(void **state)
{
    (void)state;
    struct baseline b;
    struct gb_fixture *f = stack_fixture(&b);
    const size_t count = (size_t)f->shape.tokens * f->shape.hidden, hidden = f->shape.hidden;
    if (truth_check(&b, "file.h5", &error) != GB_OK)
        fail_msg("%s", error.message);
    double *original = f->layer[1].truth_original;
    scale(original, count, 15.9);
    assert_int_equal(truth_check(&b, "file.h5", &error), GB_OK);
    scale(original, count, 16.1 / 15.9);
    refused(&b, "file.h5: /layers/1/truth/original: is 16.1 times as large as truth/quantised");
    scale(original, count, 1.0 / 16.1 / 15.9);
    assert_int_equal(truth_check(&b, "file.h5", &error), GB_OK);
    scale(original, count, 15.9 / 16.1);
    refused(&b, "file.h5: /layers/1/truth/original: is 0.0621 times");
    scale(original, count, 0.0);
    refused(&b, "/layers/1/truth/original: is all zeros, but truth/quantised is not");
    memcpy(original, f->layer[1].truth_quantised, sizeof *original * count);
    original[hidden + 1] = 1e200;
    refused(&b, "/layers/1/truth/original: is so large that no distance");
    original[hidden + 1] = NAN; /* says nothing */
    assert_int_equal(truth_check(&b, "file.h5", &error), GB_OK);
    /* Of small values alike. */
    double *quantised = f->layer[1].truth_quantised;
    scale(quantised, count, 0x1p-40);
    memcpy(original, quantised, sizeof *original * count);
    scale(original, count, 17.0);
    refused(&b, "file.h5: /layers/1/truth/original: is 17 times as large as truth/quantised");
    scale(original, count, 0.0);
    refused(&b, "/layers/1/truth/original: is all zeros, but truth/quantised is not");
    double zeros[96 * 5] = {0.0}, *kept_quantised = f->layer[1].truth_quantised;
    assert_true(count == sizeof zeros / sizeof *zeros);
    f->layer[1].truth_quantised = zeros; /* of which zeros are no multiple, and others are not told */
    assert_int_equal(truth_check(&b, "file.h5", &error), GB_OK);
    f->layer[1].truth_quantised = kept_quantised;
    scale(quantised, count, 0x1p40);
    memcpy(original, quantised, sizeof *original * count);
    /* The stream, by what the second layer adds to the third token, and by the last rounding. */
    const size_t token = 2 * hidden, places[] = {token, token + 5, token + hidden - 1}, at = places[1];
    double *stream = f->stack.truth_quantised + count, kept, largest = 0.0;
    for (size_t i = 0; i < hidden; i++)
        largest = fmax(largest, fabs(stream[token + i] - stream[token + i - count]));
    for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
        char words[128];
        kept = stream[places[n]];
        stream[places[n]] = kept + 0.7 * 0x1p-32 * largest;
        assert_int_equal(truth_check(&b, "file.h5", &error), GB_OK);
        stream[places[n]] = kept - 1.5 * 0x1p-32 * largest;
        snprintf(words, sizeof words,
                 "file.h5: /stack/truth/quantised: is not that of its inputs: after layer 1, token 2, element %zu is ",
                 places[n] - token);
        refused(&b, words);
        stream[places[n]] = kept;
    }
    kept = f->stack.truth_quantised[at];
    f->stack.truth_quantised[at] += 1.0;
    refused(&b, "after layer 0, token 2, element 5 is ");
    f->stack.truth_quantised[at] = kept;
    /* A layer that adds little. */
    for (size_t i = 0; i < hidden; i++)
        f->layer[1].norm[i] *= 0x1p-8f;
    find_stack(f);
    largest = 0.0;
    for (size_t i = 0; i < hidden; i++)
        largest = fmax(largest, fabs(stream[token + i] - stream[token + i - count]));
    if (!(largest < 0.5 && largest > 0x1p-12 * fabs(stream[at])))
        fail_msg("%g is added to %g", largest, stream[at]);
    kept = stream[at];
    stream[at] = kept - 1.5 * 0x1p-32 * largest;
    refused(&b, "after layer 1, token 2, element 5 is ");
    stream[at] = kept - 0.7 * 0x1p-32 * largest;
    assert_int_equal(truth_check(&b, "file.h5", &error), GB_OK);
    kept = f->stack.residual[at];
    f->stack.residual[at] = 0x1p40;
    find_stack(f);
    assert_true(stream[at] > 0x1.fp39 && stream[at] < 0x1.1p40); /* of which 2^-51 is 2^-11 */
    for (int n = -3; n <= 3; n++) {
        find_stack(f);
        stream[at] += n * 0x1p-12;
        if (abs(n) < 3)
            assert_int_equal(truth_check(&b, "file.h5", &error), GB_OK);
        else
            refused(&b, "after layer 1, token 2, element 5 is ");
    }
    f->stack.residual[at] = kept;
    find_stack(f);
    kept = stream[at];
    stream[at] = kept;
    f->stack.truth_original[count] = 1e200;
    refused(&b, "file.h5: /stack/truth/original: is so large");
    f->stack.truth_original[count] = f->stack.truth_quantised[count];
    b.reference->stack[count + at] = INFINITY;
    refused(&b, "file.h5: /stack/residual: the reference's stream is not finite after layer 1, token 2; make");
    b.reference->stack[2 * count - 1] = b.reference->stack[0] = NAN;
    refused(&b, "file.h5: /stack/residual: the reference's stream is not finite after layer 0, token 0; make");
    b.reference->stack[0] = b.reference->stack[count + at] = 0.0;
    refused(&b, "file.h5: /stack/residual: the reference's stream is not finite after layer 1, token 4; make");
    baseline_free(&b);
    gb_fixture_free(f);
}

/* Blocks of every class, and codes of every class of inputs. */
static void test_classes_of_differences(void **state)
{
    (void)state;
    struct gb_block_format format = gb_block_format_of(&gb_recipe_find("mxfp8.rceil/1")->quantiser);
    struct gb_vectors *v;
    assert_int_equal(gb_vectors_make(&format, &v, &error), GB_OK);
    struct gb_vector_outputs *ours, *theirs;
    const struct gb_quantiser *rules = &gb_recipe_find("mxfp8.rceil/1")->quantiser;
    enum { ROW = 5, LENGTH = 32 };
    assert_true(v->rows > ROW && v->columns == LENGTH && format.block_columns == LENGTH);
    static const uint16_t firsts[] = {0x7F80, 0xFF80, 0x7FC0, 0x8000, 0x007F, 0x8001, 0x0080, 0x3F80};
    static const enum block_class classes[] = {BLOCK_NONFINITE, BLOCK_NONFINITE, BLOCK_NONFINITE, BLOCK_ZERO,
                                               BLOCK_SUBNORMAL, BLOCK_SUBNORMAL, BLOCK_ORDINARY,  BLOCK_ORDINARY};
    for (size_t n = 0; n < sizeof firsts / sizeof *firsts; n++) {
        struct quantiser_difference d;
        gb_bf16 *values = (gb_bf16 *)v->values + ROW * LENGTH;
        for (size_t i = 0; i < LENGTH; i++)
            values[i].bits = 0;
        values[3].bits = firsts[n];
        assert_int_equal(gb_vector_outputs_run(v, rules, &ours, &error), GB_OK);
        assert_int_equal(gb_vector_outputs_run(v, rules, &theirs, &error), GB_OK);
        difference_between(v, ours, theirs, &d);
        assert_true(!d.blocks && !d.globals && !d.nonfinite_blocks);
        ((uint8_t *)theirs->scales)[ROW] ^= 1;
        difference_between(v, ours, theirs, &d);
        assert_true(d.blocks == 1 && d.scales[classes[n]] == 1 &&
                    d.nonfinite_blocks == (classes[n] == BLOCK_NONFINITE));
        assert_true(d.first_case == 0 && d.first_row == ROW && d.first_column == 0);
        ((uint8_t *)theirs->scales)[ROW] ^= 1;
        uint8_t *code = (uint8_t *)theirs->codes + ROW * LENGTH + 3, before = *code;
        *code = 0x38;
        difference_between(v, ours, theirs, &d);
        enum element_class class = firsts[n] == 0x7FC0              ? ELEMENT_NAN
                                   : (firsts[n] & 0x7FFF) == 0x7F80 ? ELEMENT_INFINITE
                                   : firsts[n] == 0x8000            ? ELEMENT_ZERO
                                   : (before & 0x7F) == 0           ? ELEMENT_UNDERFLOW
                                                                    : ELEMENT_ORDINARY;
        assert_true(d.blocks == (before != 0x38) && d.codes[class] == (before != 0x38));
        assert_true(before == 0x38 || d.first_column == 3);
        gb_vector_outputs_free(ours);
        gb_vector_outputs_free(theirs);
    }
    gb_vectors_free(v);
}

/* NaN of an FP32 scale is a class, and nothing else is. */
static void test_scales_that_are_nan(void **state)
{
    (void)state;
    static const struct {
        uint32_t ours, theirs;
        bool same;
    } cases[] = {{0x7FC00000, 0xFFC00001, true},  {0x7FC00000, 0x3F800000, false}, {0x3F800000, 0xFF800001, false},
                 {0x3F800000, 0x3F800001, false}, {0x00000000, 0x80000000, false}, {0x7F800000, 0x7F800000, true}};
    const struct gb_quantiser *rules = &gb_recipe_find("fp8g128.vllm/1")->quantiser;
    struct gb_block_format format = gb_block_format_of(rules);
    struct gb_vector_outputs *ours, *theirs;
    struct quantiser_difference d;
    struct gb_vectors *v;
    assert_int_equal(gb_vectors_make(&format, &v, &error), GB_OK);
    assert_int_equal(gb_vector_outputs_run(v, rules, &ours, &error), GB_OK);
    assert_int_equal(gb_vector_outputs_run(v, rules, &theirs, &error), GB_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy((char *)ours->scales + 3 * sizeof(float), &cases[i].ours, sizeof(float));
        memcpy((char *)theirs->scales + 3 * sizeof(float), &cases[i].theirs, sizeof(float));
        difference_between(v, ours, theirs, &d);
        assert_int_equal(d.blocks, !cases[i].same);
    }
    gb_vector_outputs_free(ours);
    gb_vector_outputs_free(theirs);
    gb_vectors_free(v);
}

static struct gb_fixture *over_ranks(enum gb_operator operation, const char *recipe)
{
    const struct gb_exchange_kinds kinds = {
        .generator = "gaussian/1", .routing = "uniform", .placement = "blocks", .seed = 5};
    struct gb_exchange x = {.size = sizeof x,
                            .ranks = 2,
                            .tokens = 3,
                            .hidden = 128,
                            .experts = 4,
                            .top_k = 2,
                            .global_scale = 1.0f,
                            .input = GB_BF16};
    struct gb_fixture *f;
    if (operation == GB_COMBINE) {
        x.accumulation = GB_AT_RECEIVER;
        x.ranks_per_node = 2;
    } else {
        x.quantiser = gb_recipe_find(recipe)->quantiser;
    }
    if (gb_generate_exchange(operation, &x, recipe, &kinds, &f, &error) != GB_OK)
        fail_msg("%s", error.message);
    return f;
}

/* The verdict on what a kernel wrote of the fixture, and how many elements have other bits. scale: of the reference's
 * first row, or NULL: as it is. */
static enum verdict judged(const struct gb_fixture *f, const struct gb_outputs *outputs, const uint32_t *scale,
                           uint64_t *mismatching, char reason[128])
{
    const struct gb_kernel kernel = {
        .name = "kernel", .operation = f->operation, .output = GB_FP32, .accumulator_bits = 24};
    struct baselines all = {.fixture = f};
    struct baseline *baseline;
    struct case_result j;
    struct policy policy;
    assert_true(policy_preset(0, &policy));
    assert_int_equal(
        operator_check_find(f->operation)->baseline(&all, &kernel, outputs->shape.tokens, &baseline, &error), GB_OK);
    if (scale)
        memcpy(baseline->reference->scales, scale, sizeof *scale);
    assert_int_equal(judge(baseline, &kernel, outputs, NULL, &policy, &j, &error), GB_OK);
    const enum verdict verdict = j.verdict;
    *mismatching = j.bits.mismatching;
    snprintf(reason, 128, "%.127s", j.reason);
    case_result_free(&j);
    baselines_free(&all);
    return verdict;
}

/* Truth in a file is that of its inputs to 2^-24 of the bound. Where zeros are right, nothing is verified. */
static void test_sums_over_ranks(void **state)
{
    struct gb_fixture *f = over_ranks(GB_COMBINE, "bf16");
    struct gb_arguments a = gb_fixture_exchange_arguments(f);
    const size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    double *truth = f->exchanged.truth, *right = malloc(count * sizeof *right), *worst = malloc(count * sizeof *worst);
    struct gb_outputs *outputs;
    uint64_t mismatching;
    char reason[128];
    (void)state;
    assert_true(truth && right && worst);
    assert_int_equal(gb_truth_exchange(&a, truth, &error), GB_OK);
    assert_int_equal(gb_bound_exchange(&a, GB_FP32, 24, right, worst, &error), GB_OK);
    assert_int_equal(exchange_reference(f, f->shape.tokens, &outputs, &error), GB_OK);
    for (size_t i = 0; i < count; i += count - 1)
        for (int n = 0; n < 4; n++) {
            truth[i] = right[i] + (n % 2 ? -1.0 : 1.0) * (n < 2 ? 0.9 : 1.1) * 0x1p-24 * worst[i];
            if (judged(f, outputs, NULL, &mismatching, reason) != (n < 2 ? VERDICT_PASS : VERDICT_BAD_INPUT))
                fail_msg("truth[%zu] is %.17g, not %.17g: %s", i, truth[i], right[i], reason);
            assert_int_equal(mismatching, 0);
            truth[i] = right[i];
        }
    for (uint32_t s = 0; s < f->shape.tokens * f->shape.top_k; s++)
        f->exchanged.routing_weights[s] = 0.0f;
    memset(truth, 0, count * sizeof *truth);
    memset(outputs->combined, 0, count * sizeof(float));
    assert_int_equal(judged(f, outputs, NULL, &mismatching, reason), VERDICT_VACUOUS);
    assert_string_equal(reason, "zeros would lie inside the bound, so nothing was verified");
    f->exchanged.routing_weights[0] = 1.0f;
    assert_int_equal(gb_truth_exchange(&a, truth, &error), GB_OK);
    gb_outputs_free(outputs);
    assert_int_equal(exchange_reference(f, f->shape.tokens, &outputs, &error), GB_OK);
    assert_int_equal(judged(f, outputs, NULL, &mismatching, reason), VERDICT_PASS);
    gb_outputs_free(outputs);
    gb_fixture_free(f);
    free(right);
    free(worst);
}

/* NaN of an FP32 scale is a class among ranks, too. */
static void test_scales_over_ranks(void **state)
{
    static const struct {
        uint32_t ours, theirs;
        bool same;
    } cases[] = {{0x7FC00000, 0xFFC00001, true},  {0x7FC00000, 0x7F800001, true},  {0x7FC00000, 0x3F800000, false},
                 {0x3F800000, 0x3F800001, false}, {0x7FC00000, 0x7F800000, false}, {0x7F800000, 0xFF800000, false}};
    (void)state;
    struct gb_fixture *f = over_ranks(GB_DISPATCH, "fp8g128.vllm/1");
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct gb_outputs *outputs;
        uint64_t mismatching;
        char reason[128];
        assert_int_equal(exchange_reference(f, f->shape.tokens, &outputs, &error), GB_OK);
        memcpy(outputs->scales, &cases[n].theirs, sizeof cases[n].theirs);
        const enum verdict verdict = judged(f, outputs, &cases[n].ours, &mismatching, reason);
        if (mismatching != !cases[n].same || verdict != (cases[n].same ? VERDICT_PASS : VERDICT_FAIL))
            fail_msg("%08x, not %08x: %llu differ: %s", cases[n].theirs, cases[n].ours, (unsigned long long)mismatching,
                     reason);
        gb_outputs_free(outputs);
    }
    gb_fixture_free(f);
}

static void test_the_gravest_says_why(void **state)
{
    (void)state;
    struct case_result j = {.verdict = VERDICT_PASS};
    const struct gb_kernel kernel = {.flags = 0}, declared = {.flags = GB_NONDETERMINISTIC};
    case_worsen(&j, VERDICT_VACUOUS, "first %d", 1);
    case_worsen(&j, VERDICT_VACUOUS, "second");
    assert_true(j.verdict == VERDICT_VACUOUS && !j.wrong);
    assert_string_equal(j.reason, "first 1");
    case_worsen(&j, VERDICT_FAIL, "third");
    case_worsen(&j, VERDICT_UNSUPPORTED, "fourth");
    assert_true(j.verdict == VERDICT_FAIL && j.wrong);
    assert_string_equal(j.reason, "third");
    struct worker_checks checks = {.differing = 7, .where = "element 3 of output"};
    case_watch(&j, &declared, &checks);
    assert_int_equal(j.verdict, VERDICT_FAIL);
    case_watch(&j, &kernel, &checks);
    assert_string_equal(j.reason, "7 elements differ between two runs on the same inputs; first: element 3 of output");
    static const struct {
        struct worker_checks checks;
        bool wrong;
        const char *reason;
    } cases[] = {{{.canary_broken = true, .where = "here"}, false, "wrote outside a buffer: here"},
                 {{.input_changed = true, .where = "x"}, false, "changed an input: x"},
                 {{.unwritten = 5, .where = "there"}, true, "5 elements were never written; first: there"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct case_result of = {.verdict = VERDICT_PASS};
        case_watch(&of, &kernel, &cases[i].checks);
        assert_true(of.verdict == VERDICT_FAIL && of.wrong == cases[i].wrong);
        assert_string_equal(of.reason, cases[i].reason);
    }
    struct case_result of = {.verdict = VERDICT_PASS};
    case_watch(&of, &kernel, &(struct worker_checks){.where = ""});
    assert_int_equal(of.verdict, VERDICT_PASS);
}

/* An output of which every element but one is nothing, that one less than its bound: of a subject with an order its
 * bits verify it, unless it is nothing as well. */
static void test_zeros_that_would_pass(void **state)
{
    enum { HIDDEN = 64, INNER = 32 };
    const struct gb_shape one = {1, HIDDEN, INNER, 1, 1};
    const struct gb_contract *contract = gb_contract_find(GB_BF16, GB_BF16, GB_ORDER_FMA32);
    struct policy gate;
    (void)state;
    static const uint32_t places[] = {0, 1, HIDDEN - 1, HIDDEN}; /* HIDDEN: there is none */
    policy_preset(0, &gate);
    for (int n = 0; n < 4; n++)
        for (size_t place = 0; place < sizeof places / sizeof *places; place++) {
            const bool ordered = n & 1, bound = n & 2;
            const uint32_t at = places[place];
            gate.bound = bound;
            gate.rms = true;
            const struct gb_kernel kernel = {.name = "subject",
                                             .operation = GB_LAYER,
                                             .weights = GB_BF16,
                                             .activations = GB_BF16,
                                             .output = GB_FP32,
                                             .order = ordered ? GB_ORDER_FMA32 : NULL,
                                             .accumulator_bits = 24};
            struct problem problem;
            struct baseline b;
            struct case_result result = {0};
            problem_new(&problem, one, GB_BF16, DATA_GAUSSIAN, 6);
            gb_bf16 *gate_up = (gb_bf16 *)problem.arguments.gate_up.codes,
                    *down = (gb_bf16 *)problem.arguments.down.codes;
            memset(gate_up, 0, sizeof *gate_up * 2 * INNER * HIDDEN);
            memset(down, 0, sizeof *down * HIDDEN * INNER);
            memset(problem.x, 0, sizeof *problem.x * HIDDEN);
            memset(problem.truth_x, 0, sizeof *problem.truth_x * HIDDEN);
            /* Two numbers of the intermediate, 2^-10 of either apart, are subtracted. */
            problem.x[0] = gb_bf16_encode((float)(problem.truth_x[0] = 1.0));
            problem.x[1] = gb_bf16_encode((float)(problem.truth_x[1] = 0x1p-10));
            for (uint32_t i = 0; i < 2; i++) {
                gate_up[i * HIDDEN] = gate_up[(INNER + i) * HIDDEN] = gb_bf16_encode(1.0f);
                gate_up[(INNER + i) * HIDDEN + 1] = gb_bf16_encode((float)i);
                if (at < HIDDEN)
                    down[at * INNER + i] = gb_bf16_encode(i ? -1.0f : 1.0f);
            }
            struct gb_fixture *f = problem_fixture(&problem);
            assert_int_equal(baseline_new(f, contract, NULL, &b, &error), GB_OK);
            assert_int_equal(judge(&b, &kernel, b.reference, NULL, &gate, &result, &error), GB_OK);
            const bool vacuous = result.verdict == VERDICT_VACUOUS;
            if (vacuous != (!ordered || at == HIDDEN) || (at < HIDDEN && f->layer[0].truth_quantised[at] == 0.0))
                fail_msg("element %u, %s order, %s bound: %s", at, ordered ? "an" : "no", bound ? "a" : "no",
                         result.reason);
            case_result_free(&result);
            baseline_free(&b);
            gb_fixture_free(f);
            problem_free(&problem);
        }
}

/* An expert that cannot be chosen is named beside the one in whose place it is, and by how much it is below that; where
 * e^x of it may be nothing there is no such number. */
static void test_experts_out_of_reach(void **state)
{
    static const struct {
        float logits[4];
        int32_t chosen;
        const char *reason;
    } cases[] = {
        {{100.0f, 99.0f, 0.0f, 1.0f},
         2,
         "routing of layer 0: token 0 has expert 2 and not 0, whose value is 0 ulp away, outside the derived bound; "
         "-inf..14 and 99.999999..100.000001"},
        {{100.0f, 99.0f, 0.0f, 1.0f},
         1,
         "routing of layer 0: token 0 has expert 1 and not 0, whose value is 131072 ulp away, outside the derived "
         "bound; 98.999999..99.000001 and 99.999999..100.000001"},
        {{-100.0f, -120.0f, -10.0f, -96.0f},
         1,
         "routing of layer 0: token 0 has expert 1 and not 2, whose value is 0 ulp away, outside the derived bound; "
         "-inf..-96 and -10.000001..-9.99999905"}};
    const struct gb_shape one = {1, 32, 32, 4, 1};
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const struct gb_kernel kernel = {.name = "router",
                                         .operation = GB_ROUTE,
                                         .weights = GB_BF16,
                                         .activations = GB_BF16,
                                         .output = GB_FP32,
                                         .accumulator_bits = 24};
        struct gb_fixture *f;
        struct gb_outputs *o;
        struct policy policy;
        struct case_result j;
        assert_int_equal(gb_fixture_new(&one, 1, GB_BF16, true, false, false, &f, &error), GB_OK);
        strcpy(f->router, "transformers.hunyuan-v1-moe/1");
        f->layer[0].x[0] = gb_bf16_encode(1.0f);
        for (size_t e = 0; e < one.experts; e++)
            ((gb_bf16 *)f->layer[0].router.codes)[e * one.hidden] = gb_bf16_encode(cases[n].logits[e]);
        struct baselines all = {.fixture = f};
        struct baseline *baseline;
        if (operator_check_find(GB_ROUTE)->baseline(&all, &kernel, 1, &baseline, &error) != GB_OK)
            fail_msg("%s", error.message);
        assert_int_equal(gb_outputs_new_routing(&one, 1, &o, &error), GB_OK);
        o->layer[0].ids[0] = cases[n].chosen;
        o->layer[0].routing_weights[0] = 1.0f;
        assert_true(policy_preset(0, &policy));
        assert_int_equal(judge(baseline, &kernel, o, NULL, &policy, &j, &error), GB_OK);
        assert_string_equal(j.reason, cases[n].reason);
        case_result_free(&j);
        baselines_free(&all);
        gb_outputs_free(o);
        gb_fixture_free(f);
    }
}

static bool same_double(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* A problem of two layers, with biases, of random values in every buffer. Token 3 has one expert in both slots 1 and 2.
 */
static struct gb_fixture *whole_problem(enum gb_format format, const struct gb_shape *s)
{
    uint64_t random = 19;
    struct gb_fixture *f;
    assert_int_equal(gb_fixture_new(s, 2, format, false, false, false, &f, NULL), GB_OK);
    assert_int_equal(gb_fixture_add(f, GB_EXTRA_BIASES, NULL), GB_OK);
    if (format == GB_NVFP4)
        assert_int_equal(gb_fixture_quantise_activations(f, GB_NVFP4, NULL, NULL), GB_OK);
    for (uint32_t l = 0; l < 2; l++) {
        struct gb_layer *layer = &f->layer[l];
        layer->index = 30 + l;
        fill_bf16(&random, layer->x, (size_t)s->tokens * s->hidden);
        fill_weights(&random, &layer->gate_up);
        fill_weights(&random, &layer->down);
        for (size_t i = 0; i < (size_t)s->tokens * s->top_k; i++) {
            layer->ids[i] = (int32_t)((i * 3 + i / 4 + l) % s->experts);
            layer->routing_weights[i] = (float)random_uniform(&random);
            layer->truth_routing_weights[i] = random_uniform(&random);
        }
        layer->ids[2 * s->top_k + 1] = -1;
        layer->ids[3 * s->top_k + 2] = layer->ids[3 * s->top_k + 1] = 5;
        for (size_t i = 0; i < (size_t)s->experts * 2 * s->intermediate; i++)
            layer->gate_up_bias[i] = (float)random_uniform(&random);
        for (size_t i = 0; i < (size_t)s->experts * s->hidden; i++)
            layer->down_bias[i] = (float)random_uniform(&random);
        for (int i = 0; layer->activation_scales && i < 2; i++)
            layer->activation_scales[i] = (float)random_uniform(&random);
    }
    f->activation = GB_SWIGLU_OAI;
    f->apply_router_weight_on_input = f->norm_topk_prob = f->nonfinite = true;
    f->rms_norm_epsilon = 0.125;
    strcpy(f->recipe, "a.recipe/1");
    strcpy(f->contract, "a.contract/1");
    strcpy(f->source, "a whole");
    strcpy(f->sha256, "5ea1");
    return f;
}

/* Rows of an expert of the part have the first columns of the whole's; of two halves, the first rows of each. */
static void same_rows(const struct gb_weights *part, uint32_t expert, const struct gb_weights *whole, uint32_t as)
{
    double *values = malloc(part->columns * sizeof *values), *right = malloc(whole->columns * sizeof *right);
    const uint32_t rows = part->rows / part->halves;
    assert_true(values && right);
    for (uint32_t r = 0; r < part->rows; r++) {
        gb_weights_row(part, expert, r, values);
        gb_weights_row(whole, as, r / rows * (whole->rows / whole->halves) + r % rows, right);
        for (uint32_t i = 0; i < part->columns; i++)
            if (!same_double(values[i], right[i]))
                fail_msg("expert %u, row %u, column %u: %a, not %a", expert, r, i, values[i], right[i]);
    }
    free(values);
    free(right);
}

/* The part's truth, from its own values. */
static void expect_truth(const struct gb_fixture *f)
{
    const size_t count = (size_t)f->shape.tokens * f->shape.hidden, slots = (size_t)f->shape.tokens * f->shape.top_k;
    struct gb_layer *l = &f->layer[0];
    struct gb_truth_quantised weights = {l->gate_up, l->down, {GB_SWIGLU_OAI, l->gate_up_bias, l->down_bias}};
    const struct gb_truth_source source = gb_truth_from_quantised(&weights);
    double *x = malloc(count * sizeof *x), *output = malloc(count * sizeof *output),
           *weights_of_slots = malloc(slots * sizeof *weights_of_slots);
    assert_true(x && output && weights_of_slots);
    layer_inputs(f, 0, GB_FP32, x, weights_of_slots);
    assert_int_equal(gb_truth_layer(&f->shape, x, l->ids, weights_of_slots, &source, output, NULL, NULL), GB_OK);
    for (size_t i = 0; i < count; i++)
        if (!same_double(l->truth_quantised[i], output[i]) || !same_double(l->truth_original[i], output[i]))
            fail_msg("truth %zu: %a and %a, not %a", i, l->truth_quantised[i], l->truth_original[i], output[i]);
    free(x);
    free(output);
    free(weights_of_slots);
}

/* A part has the whole's values: its own tokens, slots, columns and neurons; and experts numbered in their order. */
static void test_parts_of_a_problem(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_FP8_BLOCK, GB_BF16};
    static const struct {
        struct part part;   /* hidden, intermediate: blocks of them */
        int32_t experts[6]; /* of the whole, then -1 */
        const char *source;
    } rows[] = {{{1, 1, 3, 0, 3, 1, 2}, {0, 2, 3, 5, 6, -1}, "layer 1, tokens 1 to 3, slots 0 to 2 of a whole"},
                {{0, 3, 1, 1, 2, 2, 1}, {5, -1}, "layer 0, tokens 3 to 3, slots 1 to 2 of a whole"},
                {{1, 0, 1, 0, 3, 2, 2}, {0, 1, 4, -1}, "layer 1, tokens 0 to 0, slots 0 to 2 of a whole"}};
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const uint32_t block = formats[i] == GB_FP8_BLOCK ? 128 : 32;
        const struct gb_shape whole = {
            .tokens = 5, .hidden = 2 * block, .intermediate = 2 * block, .experts = 7, .top_k = 3};
        struct gb_fixture *f = whole_problem(formats[i], &whole), *part;
        for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
            struct part of = rows[n].part, *p = &of;
            const struct gb_layer *from = &f->layer[p->layer];
            uint32_t used = 0;
            of.hidden *= block;
            of.intermediate *= block;
            f->apply_router_weight_on_input = false;
            assert_int_equal(part_new(f, p, &part, &error), GB_OK);
            const struct gb_layer *layer = &part->layer[0];
            while (rows[n].experts[used] >= 0)
                used++;
            const struct gb_shape s = {p->tokens, p->hidden, p->intermediate, used < p->slots ? p->slots : used,
                                       p->slots};
            assert_memory_equal(&part->shape, &s, sizeof s);
            for (uint32_t e = 0; e < s.experts; e++) {
                const uint32_t as = (uint32_t)rows[n].experts[e < used ? e : 0];
                same_rows(&layer->gate_up, e, &from->gate_up, as);
                same_rows(&layer->down, e, &from->down, as);
                if (e >= used)
                    continue;
                for (uint32_t half = 0; half < 2; half++)
                    same_bytes(layer->gate_up_bias + (2 * e + half) * s.intermediate,
                               from->gate_up_bias + (2 * as + half) * whole.intermediate,
                               s.intermediate * sizeof(float));
                same_bytes(layer->down_bias + e * s.hidden, from->down_bias + as * whole.hidden,
                           s.hidden * sizeof(float));
            }
            for (uint32_t t = 0; t < s.tokens; t++) {
                same_bytes(layer->x + t * s.hidden, from->x + (p->first_token + t) * whole.hidden,
                           s.hidden * sizeof *layer->x);
                for (uint32_t k = 0; k < s.top_k; k++) {
                    const size_t own = t * s.top_k + k, whence = (p->first_token + t) * whole.top_k + p->first_slot + k;
                    assert_int_equal(layer->ids[own] < 0 ? -1 : rows[n].experts[layer->ids[own]], from->ids[whence]);
                    assert_true(layer->routing_weights[own] == from->routing_weights[whence] &&
                                layer->truth_routing_weights[own] == from->truth_routing_weights[whence]);
                }
            }
            if (from->activation_scales)
                same_bytes(layer->activation_scales, from->activation_scales, 2 * sizeof(float));
            expect_truth(part);
            assert_true(part->layers == 1 && layer->index == from->index && part->weights == f->weights &&
                        part->activations == f->activations && part->activation == GB_SWIGLU_OAI &&
                        !part->apply_router_weight_on_input && part->norm_topk_prob && part->nonfinite &&
                        part->rms_norm_epsilon == 0.125);
            assert_string_equal(part->recipe, f->recipe);
            assert_string_equal(part->activation_recipe, f->activation_recipe);
            assert_string_equal(part->contract, "a.contract/1");
            assert_string_equal(part->generator, "import/1");
            assert_string_equal(part->source, rows[n].source);
            assert_string_equal(part->source_sha256, "5ea1");
            gb_fixture_free(part);
        }
        f->apply_router_weight_on_input = true; /* which then is in x, of one slot */
        assert_int_equal(part_new(f, &(struct part){0, 4, 1, 2, 1, 2 * block, block}, &part, &error), GB_OK);
        assert_true(part->apply_router_weight_on_input);
        expect_truth(part);
        gb_fixture_free(part);
        assert_int_equal(part_new(f, &(struct part){0, 2, 1, 1, 1, block, block}, &part, &error), GB_EINVAL);
        assert_string_equal(error.message, "the part has no slot in use");
        const struct part all = part_whole(f, 1, 4);
        assert_true(all.layer == 1 && all.first_token == 0 && all.tokens == 4 && all.first_slot == 0 &&
                    all.slots == 3 && all.hidden == whole.hidden && all.intermediate == whole.intermediate);
        gb_fixture_free(f);
    }
}

/* Presets as gate files have them. */
static void test_presets_are_as_published(void **state)
{
    static const char *const rest[] = {
        "\"checks\":[\"exact\",\"bound\",\"rms\",\"scale\"],\"name\":\"default\"",
        "\"checks\":[],\"cosine_min\":0.999996,\"max_abs\":0.001953125,\"name\":\"cosine-0.999996\"",
        "\"checks\":[],\"cosine\":0.99,\"name\":\"cosine-0.99\"",
        "\"atol\":0.1,\"checks\":[],\"fraction\":1.0,\"name\":\"vllm-nvfp4-moe\",\"relative_to\":\"subject\",\"rtol\":0.1",
        "\"atol\":0.1,\"checks\":[],\"fraction\":0.925,\"name\":\"flashinfer-fp4-moe\",\"relative_to\":\"subject\","
        "\"rtol\":0.85",
        "\"atol\":0.01,\"checks\":[],\"either\":true,\"fraction\":0.95,\"name\":\"flashinfer-bench-moe\",\"rtol\":0.01",
        "\"checks\":[],\"name\":\"llama.cpp-fp4\",\"nmse\":0.02,\"relative_to\":\"subject\""};
    enum { PRESETS = sizeof rest / sizeof *rest };
    struct policy policy;
    (void)state;
    for (unsigned i = 0; i < PRESETS; i++) {
        char right[256];
        assert_true(policy_preset(i, &policy));
        json_t *object = policy_json(&policy);
        char *text = json_dumps(object, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(15));
        snprintf(right, sizeof right, "{%s,\"schema\":\"gaugeblock-gate/2\"}", rest[i]);
        assert_non_null(text);
        assert_string_equal(text, right);
        free(text);
        json_decref(object);
        struct policy named;
        assert_int_equal(policy_read(policy.name, &named, &error), GB_OK);
        assert_string_equal(named.name, policy.name);
        assert_true(named.exact == policy.exact && named.either == policy.either &&
                    named.by_subject == policy.by_subject);
    }
    assert_false(policy_preset(PRESETS, &policy));
}

/* A policy of thresholds alone, as text: "nmse 0.5 either". */
static struct policy policy_of(const char *text)
{
    struct policy p = {.name = "a", .cosine = NAN, .cosine_min = NAN, .max_abs = NAN, .nmse = NAN, .atol = NAN};
    p.rtol = p.fraction = NAN;
    char key[16];
    for (int used; sscanf(text, "%15s%n", key, &used) == 1;) {
        text += used;
        p.either |= !strcmp(key, "either");
        p.by_subject |= !strcmp(key, "by_subject");
        p.exact |= !strcmp(key, "exact");
        p.bound |= !strcmp(key, "bound");
        p.rms |= !strcmp(key, "rms");
        p.scale |= !strcmp(key, "scale");
        double *of = !strcmp(key, "cosine")       ? &p.cosine
                     : !strcmp(key, "cosine_min") ? &p.cosine_min
                     : !strcmp(key, "max_abs")    ? &p.max_abs
                     : !strcmp(key, "nmse")       ? &p.nmse
                     : !strcmp(key, "atol")       ? &p.atol
                     : !strcmp(key, "rtol")       ? &p.rtol
                     : !strcmp(key, "fraction")   ? &p.fraction
                                                  : NULL;
        if (of && sscanf(text, "%lf%n", of, &used) == 1)
            text += used;
    }
    return p;
}

/* Figures of two calls of [2, 3], the first threshold that is missed, and what is wrong and would meet all. */
static void test_thresholds_of_policies(void **state)
{
    static const double subject[] = {1.0, -2.0, 2.5, 0.5, 1.0, 4.0, 3.0, 2.0, 4.0, -1.0, 0.5, 0.0};
    static const double truth[] = {1.25, -2.0, 2.0, 0.5, 1.0, 4.5, 3.0, 2.0, 3.0, -1.0, 0.5, 0.25};
    static const struct {
        const char *policy, *missed, *vacuous;
    } rows[] = {
        {"cosine 0.97", NULL, NULL},
        {"cosine 0.99", "cosine", NULL},
        {"cosine_min 0.95", NULL, NULL},
        {"cosine_min 0.99", "cosine_min", NULL},
        {"max_abs 1.0", NULL, NULL},
        {"max_abs 0.999", "max_abs", NULL},
        {"max_abs 4.5", NULL, "zeros"},
        {"max_abs 4.499", NULL, NULL},
        {"nmse 0.0300", NULL, NULL},
        {"nmse 0.0298", "nmse", NULL},
        {"nmse 0.0278 by_subject", NULL, NULL},
        {"nmse 0.0275 by_subject", "nmse", NULL},
        {"nmse 1.0", NULL, "zeros"},
        {"nmse 0.9999 by_subject", NULL, NULL},
        {"nmse 1.0000000000013642 by_subject", NULL, NULL},          /* 1 + 0.75 * 2^-39 */
        {"nmse 1.0000000000027285 by_subject", NULL, "huge values"}, /* 1 + 1.5 * 2^-39 */
        {"nmse 3.999 by_subject", NULL, "huge values"},
        {"nmse 4.0 by_subject", NULL, "truth of the wrong sign"},
        {"nmse 4.0 by_subject max_abs 9.0", NULL, "truth of the wrong sign"},
        {"nmse 4.0 by_subject max_abs 8.99", NULL, NULL},
        {"nmse 4.0", NULL, "zeros"},
        {"nmse 0.9999 cosine 0.5", NULL, NULL},
        {"nmse 9.0 cosine 0.001", NULL, NULL},
        {"nmse 9.0 cosine 0.99", "cosine", NULL},
        {"nmse 0.0001 max_abs 0.1", "max_abs", NULL},
        {"cosine_min 0.99 cosine 0.99", "cosine", NULL},
        {"nmse 1.0 exact", NULL, NULL},
        {"nmse 1.0 bound", NULL, NULL},
        {"nmse 1.0 rms", NULL, NULL},
        {"nmse 1.0 scale", NULL, NULL},
        {"atol 0.25 rtol 0.0 fraction 0.75", NULL, NULL},
        {"atol 0.25 rtol 0.0 fraction 0.76", "close", NULL},
        {"atol 0.2499 rtol 0.0 fraction 0.75", "close", NULL},
        {"atol 0.0 rtol 0.34 fraction 0.91", NULL, NULL}, /* 1 is a third of 3, */
        {"atol 0.0 rtol 0.34 fraction 0.92", "close", NULL},
        {"atol 0.0 rtol 0.24 by_subject fraction 0.83", "close", NULL}, /* a quarter of 4 */
        {"atol 0.0 rtol 0.26 by_subject fraction 0.91", NULL, NULL},
        {"atol 0.25 rtol 0.25 fraction 1.0", NULL, NULL},
        {"atol 0.25 rtol 0.24 fraction 1.0", "close", NULL},
        {"atol 0.25 rtol 0.25 either fraction 0.91", NULL, NULL},
        {"atol 0.25 rtol 0.25 either fraction 0.92", "close", NULL},
        {"atol 0.25 rtol 0.334 either fraction 1.0", NULL, NULL},
        {"atol 4.5 rtol 0.0 fraction 1.0", NULL, "zeros"},
        {"atol 0.25 rtol 0.0 fraction 0.0833", NULL, "zeros"},
        {"atol 0.25 rtol 0.0 fraction 0.0834", NULL, NULL},
        {"atol 0.25 rtol 0.99 by_subject fraction 1.0", NULL, NULL},
        {"atol 0.0 rtol 1.001 by_subject fraction 1.0", "close", "huge values"},
        {"atol 0.0 rtol 2.0 by_subject fraction 1.0", "close", "truth of the wrong sign"},
        {"", NULL, NULL},
    };
    (void)state;
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        const struct policy policy = policy_of(rows[n].policy);
        struct threshold_check checks[MOST_THRESHOLDS];
        struct closeness c;
        policy_start(&policy, &c);
        for (int call = 0; call < 2; call++)
            policy_compare(&c, subject + 6 * call, truth + 6 * call, 2, 3);
        const char *missed = policy_missed(&c), *vacuous = policy_vacuous(&c);
        if (strcmp(missed ? missed : "", rows[n].missed ? rows[n].missed : "") ||
            strcmp(vacuous ? vacuous : "", rows[n].vacuous ? rows[n].vacuous : ""))
            fail_msg("\"%s\": misses %s, would pass %s", rows[n].policy, missed ? missed : "nothing",
                     vacuous ? vacuous : "nothing");
        const size_t count = policy_checks(&c, checks);
        for (size_t i = 0; i < count; i++) {
            const double squares = 1.25 * 1.25 + 4 + 4 + 0.25 + 1 + 20.25 + 9 + 4 + 9 + 1 + 0.25 + 0.0625;
            const double own = 1 + 4 + 6.25 + 0.25 + 1 + 16 + 9 + 4 + 16 + 1 + 0.25;
            const double errors = 0.0625 + 0.25 + 0.25 + 1 + 0.0625;
            const double dot = 1.25 + 4 + 5 + 0.25 + 1 + 18 + 9 + 4 + 12 + 1 + 0.25;
            const double least = (1 + 0.25) / sqrt(1.25 * 1.3125);
            const double right = !strcmp(checks[i].name, "cosine")       ? dot / sqrt(squares * own)
                                 : !strcmp(checks[i].name, "cosine_min") ? least
                                 : !strcmp(checks[i].name, "max_abs")    ? 1.0
                                 : !strcmp(checks[i].name, "nmse")       ? errors / (policy.by_subject ? own : squares)
                                                                         : checks[i].value;
            near(checks[i].value, right);
            assert_int_equal(checks[i].at_least, strcmp(checks[i].name, "max_abs") && strcmp(checks[i].name, "nmse"));
        }
        size_t asked = !isnan(policy.cosine) + !isnan(policy.cosine_min) + !isnan(policy.max_abs) +
                       !isnan(policy.nmse) + !isnan(policy.atol);
        assert_int_equal(count, asked);
    }
    struct policy policy = policy_of("atol 0.5 rtol 1.0 fraction 0.5");
    struct closeness c;
    policy_start(&policy, &c);
    policy_compare(&c, (const double[]){INFINITY, NAN, 1.0}, (const double[]){INFINITY, NAN, 1.0}, 1, 3);
    assert_true(c.subject_close == 1 && c.zeros_close == 1 && c.negated_close == 0 && c.huge_close == 0);
    assert_string_equal(policy_missed(&c), "close");
    policy = policy_of("nmse 1.0"); /* beside elements of which truth is nothing */
    policy_start(&policy, &c);
    policy_compare(&c, (const double[]){1.0, 0.0, 2.0}, (const double[]){1.0, 0.0, 2.0}, 1, 3);
    assert_null(policy_missed(&c));
    assert_string_equal(policy_vacuous(&c), "zeros");
    policy = policy_of("atol 0.5 rtol 1.0 fraction 0.5");
    policy_start(&policy, &c); /* nothing was compared */
    assert_string_equal(policy_missed(&c), "close");
    assert_null(policy_vacuous(&c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_routing_of_its_own),
        cmocka_unit_test(test_truth_of_other_inputs),
        cmocka_unit_test(test_truth_is_checked),
        cmocka_unit_test(test_classes_of_differences),
        cmocka_unit_test(test_scales_that_are_nan),
        cmocka_unit_test(test_sums_over_ranks),
        cmocka_unit_test(test_scales_over_ranks),
        cmocka_unit_test(test_the_gravest_says_why),
        cmocka_unit_test(test_zeros_that_would_pass),
        cmocka_unit_test(test_experts_out_of_reach),
        cmocka_unit_test(test_parts_of_a_problem),
        cmocka_unit_test(test_presets_are_as_published),
        cmocka_unit_test(test_thresholds_of_policies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
