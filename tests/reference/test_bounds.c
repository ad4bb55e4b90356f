/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gb_bound_layer: every valid order of summation stays within `worst`, sigma predicts the spread that is seen, and
 * kernels with something missing exceed both.
 */
#include "tests/support/bounds_case.h"

#include "quant/quant.h"
#include "tests/support/check.h"

static double rms_ratio(const double *values, const double *truth, const double *sigma, size_t count)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++) {
        double ratio = (values[i] - truth[i]) / sigma[i];
        assert_true(sigma[i] > 0);
        sum += ratio * ratio;
    }
    return sqrt(sum / (double)count);
}

/* seed: of two problems the callers take one and the other in turn. */
static struct ratios every_order(enum gb_format format, enum data data, const struct gb_rounding_points *points,
                                 uint64_t seed)
{
    struct ratios largest = {0, 0};
    struct bounded b;
    bounded_new(&b, (struct gb_shape){1, 96, 64, 3, 3}, format, data, seed);
    problem_empty_slots(&b.problem, 7, seed);
    check_every_order(&b, points, seed, &largest);
    bounded_free(&b);
    return largest;
}

/* An intermediate rounded to bf16 comes close to half an ulp, so its bound is nearly sharp. */
static void valid_orders_stay_within(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16};

    (void)state;
    for (unsigned f = 0; f < 3; f++) {
        struct ratios largest = every_order(formats[f], DATA_GAUSSIAN, &points_bf16_fp32, 1 + f % 2);
        assert_true(largest.intermediate > 0.9 && largest.output > 0.05);
        largest = every_order(formats[f], DATA_GAUSSIAN, &points_bf16_bf16, 2 - f % 2);
        assert_true(largest.output > 0.1);
        largest = every_order(formats[f], DATA_CODES, &points_fp32_fp32, 2 - f % 2);
        assert_true(largest.intermediate > 0.005 && largest.output > 0.002);
        every_order(formats[f], DATA_CANCEL, &points_fp32_fp32, 1 + f % 2);
    }
}

/* Kernels that store gate, up, silu, routing weights and every slot's product in bf16, as unfused ones do. */
static void rounded_stages_stay_within(void **state)
{
    static const struct gb_stage_roundings stages[] = {
        {.gate_up = GB_BF16, .silu = GB_FP32, .slot = GB_FP32},
        {.silu = GB_BF16},
        {.slot = GB_BF16},
        {.gate_up = GB_BF16, .silu = GB_BF16, .slot = GB_BF16},
        {.weighted = GB_BF16},
        {.slot = GB_BF16, .routing_weight = GB_BF16, .weighted = GB_BF16},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof stages / sizeof *stages; i++) {
        struct gb_rounding_points points = {GB_BF16, GB_BF16, 24, stages[i], NULL};
        struct ratios largest = every_order(GB_BF16, DATA_GAUSSIAN, &points, 1 + i % 2);
        assert_true(largest.intermediate > 0.2 && largest.output > 0.05);
        points.intermediate = points.output = GB_FP32;
        every_order(GB_BF16, DATA_GAUSSIAN, &points, 2 - i % 2);
    }
}

/* Each of them is seen where it was not declared. */
static void undeclared_roundings_are_seen(void **state)
{
    static const struct gb_stage_roundings stages[] = {{.gate_up = GB_BF16}, {.silu = GB_BF16}};
    static const struct gb_stage_roundings of_outputs[] = {
        {.slot = GB_BF16}, {.routing_weight = GB_BF16}, {.weighted = GB_BF16}};

    (void)state;
    for (unsigned i = 0; i < sizeof stages / sizeof *stages; i++) {
        struct gb_rounding_points does = {GB_BF16, GB_FP32, 24, stages[i], NULL};
        struct valid_kernel valid = {.order = VALID_FORWARD};
        struct bounded b;
        bounded_new(&b, (struct gb_shape){1, 96, 64, 3, 3}, GB_BF16, DATA_GAUSSIAN, 5);
        bound(&b, &points_bf16_fp32);
        valid_layer(&b.problem, &valid, &does, b.output, b.intermediate);
        assert_true(largest_ratio(b.intermediate, b.truth_h, b.worst_h, b.intermediates) > 1);
        bounded_free(&b);
    }
    for (unsigned i = 0; i < sizeof of_outputs / sizeof *of_outputs; i++) {
        struct gb_rounding_points does = {GB_FP32, GB_FP32, 24, of_outputs[i], NULL};
        struct valid_kernel valid = {.order = VALID_FORWARD};
        struct bounded b;
        bounded_new(&b, (struct gb_shape){1, 96, 64, 3, 1}, GB_BF16, DATA_GAUSSIAN, 5);
        bound(&b, &points_fp32_fp32);
        valid_layer(&b.problem, &valid, &does, b.output, b.intermediate);
        assert_true(largest_ratio(b.output, b.truth, b.worst, b.outputs) > 1);
        bounded_free(&b);
    }
}

static void narrow_accumulators_stay_within(void **state)
{
    static const uint32_t bits[] = {8, 11, 14, 20};

    (void)state;
    for (unsigned i = 0; i < sizeof bits / sizeof *bits; i++) {
        struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = bits[i]};
        every_order(GB_NVFP4, DATA_GAUSSIAN, &points, 1 + i % 2);
    }
}

static void the_reference_stays_within(void **state)
{
    static const enum data kinds[] = {DATA_GAUSSIAN, DATA_CODES, DATA_CANCEL};
    struct ratios largest = {0, 0};

    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        struct bounded b;
        bounded_new(&b, (struct gb_shape){4, 384, 192, 4, 3}, GB_NVFP4, kinds[k], 20 + k);
        bound(&b, &points_bf16_fp32);
        run_reference(&b);
        expect_within(&b, "reference", &largest);
        bounded_free(&b);
    }
    assert_true(largest.intermediate > 0.9);
}

/* Where the rounding of the intermediate to bf16 outweighs all else, sigma is not a bound but an estimate. */
static void sigma_predicts_the_spread(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_BF16};

    (void)state;
    for (unsigned f = 0; f < 3; f++) {
        struct bounded b;
        bounded_new(&b, (struct gb_shape){8, 384, 192, 4, 3}, formats[f], DATA_GAUSSIAN, 30 + f);
        bound(&b, &points_bf16_fp32);
        run_reference(&b);
        double y = rms_ratio(b.output, b.truth, b.sigma, b.outputs);
        double h = rms_ratio(b.intermediate, b.truth_h, b.sigma_h, b.intermediates);
        if (!(y > 1 / 1.5 && y < 1.5 && h > 1 / 1.5 && h < 1.5))
            fail_msg("observed rms / sigma: output %g, intermediate %g", y, h);

        bound(&b, &points_bf16_bf16);
        for (size_t i = 0; i < b.outputs; i++)
            b.output[i] = (double)gb_bf16_decode(gb_bf16_encode(b.problem.output[i]));
        y = rms_ratio(b.output, b.truth, b.sigma, b.outputs);
        if (!(y > 1 / 1.5 && y < 1.5))
            fail_msg("observed rms / sigma of a bf16 output: %g", y);
        bounded_free(&b);
    }
}

/* Elements beyond the worst case, of those of the token. */
static uint32_t beyond(const struct bounded *b, uint32_t token)
{
    uint32_t hidden = b->problem.arguments.shape.hidden, count = 0;

    for (uint32_t i = token * hidden; i < (token + 1) * hidden; i++)
        count += fabs(b->output[i] - b->truth[i]) > b->worst[i];
    return count;
}

static void a_lost_slot_exceeds_the_bound(void **state)
{
    const struct gb_shape shape = {6, 384, 192, 8, 4};
    struct bounded b;

    (void)state;
    bounded_new(&b, shape, GB_NVFP4, DATA_GAUSSIAN, 40);
    bound(&b, &points_bf16_fp32);
    for (uint32_t t = 0; t < shape.tokens; t++)
        b.problem.ids[t * shape.top_k + t % shape.top_k] = -1;
    run_reference(&b);
    for (uint32_t t = 0; t < shape.tokens; t++)
        assert_true(beyond(&b, t) > shape.hidden / 2);
    assert_true(rms_ratio(b.output, b.truth, b.sigma, b.outputs) > 20);
    bounded_free(&b);
}

static void a_lost_block_exceeds_the_bound(void **state)
{
    const struct gb_shape shape = {6, 384, 192, 8, 4};
    struct bounded b;

    (void)state;
    bounded_new(&b, shape, GB_NVFP4, DATA_GAUSSIAN, 41);
    bound(&b, &points_bf16_fp32);
    uint8_t *scales = (uint8_t *)b.problem.arguments.down.scales;
    for (size_t row = 1; row <= (size_t)shape.experts * shape.hidden; row++)
        scales[row * (shape.intermediate / 16) - 1] = 0;
    run_reference(&b);
    for (uint32_t t = 0; t < shape.tokens; t++)
        assert_true(beyond(&b, t) > shape.hidden / 8);
    assert_true(rms_ratio(b.output, b.truth, b.sigma, b.outputs) > 10);
    bounded_free(&b);
}

static void fewer_bits_give_wider_bounds(void **state)
{
    static const uint32_t bits[] = {53, 24, 20, 14, 11, 8};
    struct bounded b;
    double *previous;

    (void)state;
    bounded_new(&b, (struct gb_shape){2, 2048, 16, 2, 2}, GB_NVFP4, DATA_GAUSSIAN, 42);
    previous = calloc(b.outputs, sizeof(double));
    assert_non_null(previous);
    for (unsigned i = 0; i < sizeof bits / sizeof *bits; i++) {
        struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = bits[i]};
        bound(&b, &points);
        for (size_t o = 0; o < b.outputs; o++)
            if (!(b.worst[o] > previous[o] && b.sigma[o] > 0))
                fail_msg("%u bits, element %zu: worst %g, sigma %g", bits[i], o, b.worst[o], b.sigma[o]);
        memcpy(previous, b.worst, b.outputs * sizeof(double));
    }
    free(previous);
    bounded_free(&b);
}

static void fill_codes(struct gb_weights *weights, size_t first, size_t count, uint16_t bits)
{
    for (size_t i = first; i < first + count; i++)
        ((gb_bf16 *)weights->codes)[i].bits = bits;
}

/* One sum over all slots: 1 + 2^-24 + 2^-24 + ... stays 1, and the errors of 768 additions add up. */
static void one_sum_over_all_slots_stays_within(void **state)
{
    enum { SLOTS = 4, WIDTH = 256 };
    const struct valid_kernel valid = {.order = VALID_FORWARD, .fma = true, .fold = true};
    struct ratios largest = {0, 0};
    struct bounded b;

    (void)state;
    bounded_new(&b, (struct gb_shape){1, 1, WIDTH, SLOTS, SLOTS}, GB_BF16, DATA_GAUSSIAN, 44);
    b.problem.x[0].bits = 0x3F80;
    b.problem.truth_x[0] = 1;
    struct gb_weights *gate_up = &b.problem.arguments.gate_up, *down = &b.problem.arguments.down;
    for (size_t e = 0; e < SLOTS; e++) { /* gate = 32, up = 1/32, so h = 1 */
        fill_codes(gate_up, 2 * e * WIDTH, WIDTH, 0x4200);
        fill_codes(gate_up, (2 * e + 1) * WIDTH, WIDTH, 0x3D00);
        fill_codes(down, e * WIDTH, WIDTH, e == 0 ? 0 : 0x3380); /* 2^-24 */
        b.problem.ids[e] = (int32_t)e;
        b.problem.routing_weights[e] = 1;
        b.problem.truth_routing_weights[e] = 1;
    }
    fill_codes(down, 0, 1, 0x3F80);
    bound(&b, &points_fp32_fp32);
    valid_layer(&b.problem, &valid, &points_fp32_fp32, b.output, b.intermediate);
    assert_true(b.output[0] == 1 && b.truth[0] > 1 + 760 * 0x1p-24);
    expect_within(&b, "folded", &largest);
    bounded_free(&b);
}

/* Without a slot in use, zero is the only legal result. */
static void empty_slots_have_no_error(void **state)
{
    const struct gb_shape shape = {2, 32, 16, 4, 2};
    struct bounded b;

    (void)state;
    bounded_new(&b, shape, GB_NVFP4, DATA_CODES, 43);
    const struct gb_bounds outputs = {.output_worst = b.worst, .output_sigma = b.sigma};
    b.problem.ids[0] = b.problem.ids[1] = b.problem.ids[3] = -1;
    for (int stored = 0; stored < 2; stored++) { /* FP32, bf16 */
        bound(&b, stored ? &points_bf16_bf16 : &points_bf16_fp32);
        for (size_t i = 0; i < b.outputs; i++)
            assert_true(i < shape.hidden ? b.worst[i] == 0 && b.sigma[i] == 0 : b.worst[i] > 0);
        for (size_t i = 0; i < b.intermediates; i++)
            assert_true((b.worst_h[i] > 0) == (i / shape.intermediate == 2));
    }
    assert_int_equal(gb_bound_layer(&shape, b.problem.truth_x, b.problem.ids, b.problem.truth_routing_weights,
                                    &b.weights, &points_bf16_fp32, &outputs, NULL),
                     GB_OK);
    b.problem.ids[2] = 4;
    struct gb_error error = {""};
    assert_int_equal(gb_bound_layer(&shape, b.problem.truth_x, b.problem.ids, b.problem.truth_routing_weights,
                                    &b.weights, &points_bf16_fp32, &outputs, &error),
                     GB_EINVAL);
    assert_non_null(strstr(error.message, "expert id 4"));
    bounded_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_orders_stay_within),      cmocka_unit_test(rounded_stages_stay_within),
        cmocka_unit_test(undeclared_roundings_are_seen), cmocka_unit_test(narrow_accumulators_stay_within),
        cmocka_unit_test(the_reference_stays_within),    cmocka_unit_test(sigma_predicts_the_spread),
        cmocka_unit_test(a_lost_slot_exceeds_the_bound), cmocka_unit_test(a_lost_block_exceeds_the_bound),
        cmocka_unit_test(fewer_bits_give_wider_bounds),  cmocka_unit_test(one_sum_over_all_slots_stays_within),
        cmocka_unit_test(empty_slots_have_no_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
