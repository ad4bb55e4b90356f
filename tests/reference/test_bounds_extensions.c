/* SPDX-License-Identifier: Apache-2.0 */
/* gb_bound_layer of layers with biases and with gpt-oss's activation. */
#include "tests/support/bounds_case.h"
#include "tests/support/check.h"

/* Biases and gpt-oss's activation, by the reference and in every order. */
static void extensions_stay_within(void **state)
{
    static const enum gb_activation activations[] = {GB_SILU, GB_SWIGLU_OAI};
    static const struct gb_rounding_points points[] = {{GB_BF16, GB_FP32, 24, {0}, NULL},
                                                       {GB_BF16, GB_FP32, 11, {0}, NULL},
                                                       {GB_BF16, GB_BF16, 24, {GB_BF16, GB_BF16, GB_BF16, 0, 0}, NULL},
                                                       {GB_BF16, GB_FP32, 24, {0, 0, GB_BF16, GB_BF16, GB_BF16}, NULL}};

    (void)state;
    for (unsigned a = 0; a < 2; a++) {
        struct ratios largest = {0, 0};
        struct bounded b;
        for (unsigned seed = 0; seed < 4; seed++) {
            bounded_new(&b, (struct gb_shape){4, 384, 192, 4, 3}, GB_MXFP4, DATA_CODES, 60 + seed);
            bounded_extend(&b, activations[a], 70 + seed);
            bound(&b, &points_bf16_fp32);
            run_reference(&b);
            expect_within(&b, "reference", &largest);
            bounded_free(&b);
        }
        assert_true(largest.intermediate > 0.9);
        for (unsigned i = 0; i < sizeof points / sizeof *points; i++) {
            bounded_new(&b, (struct gb_shape){1, 96, 64, 3, 3}, GB_MXFP4, DATA_GAUSSIAN, 80 + i);
            problem_empty_slots(&b.problem, 7, i);
            bounded_extend(&b, activations[a], 90 + i);
            check_every_order(&b, &points[i], 1, &largest);
            bounded_free(&b);
        }
    }
}

/* Each of them is seen where the bounds are those of a layer without it. */
static void missing_extensions_are_seen(void **state)
{
    (void)state;
    for (unsigned missing = 0; missing < 3; missing++) {
        struct ratios largest = {0, 0};
        struct bounded b;
        bounded_new(&b, (struct gb_shape){1, 96, 64, 3, 3}, GB_MXFP4, DATA_GAUSSIAN, 85);
        bounded_extend(&b, GB_SWIGLU_OAI, 95);
        bound(&b, &points_bf16_fp32);
        run_reference(&b);
        expect_within(&b, "reference", &largest);
        if (missing == 0)
            b.problem.arguments.activation = GB_SILU;
        else if (missing == 1)
            b.problem.arguments.gate_up_bias = NULL;
        else
            b.problem.arguments.down_bias = NULL;
        run_reference(&b);
        assert_true(largest_ratio(b.output, b.truth, b.worst, b.outputs) > 1);
        bounded_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extensions_stay_within),
        cmocka_unit_test(missing_extensions_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
