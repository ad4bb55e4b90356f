/* SPDX-License-Identifier: Apache-2.0 */
/* quantise and silu_mul_quantise against the oracle, by every recipe of blocks of one row that they take. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/operator_case.h"
#include "tests/oracle/oracle.h"
#include "tests/support/kept_explanation.h"

/* The quantiser's oracle has a byte for each code. */
static void by_rules(const struct gb_quantisation *q, const float *values, uint8_t *codes, void *scales)
{
    uint8_t *apart = malloc(q->columns), *scale_codes = malloc(q->columns);
    float *scale_values = malloc(sizeof *scale_values * q->columns);

    assert_true(apart && scale_codes && scale_values);
    oracle_quantise(&q->quantiser, values, 1, q->columns, q->global_scale, q->bound, apart, scale_codes, scale_values);
    for (uint32_t i = 0; i < q->columns; i++) {
        if (q->quantiser.element != GB_E2M1)
            codes[i] = apart[i];
        else if (i % 2)
            codes[i / 2] = (uint8_t)(apart[i - 1] | apart[i] << 4);
    }
    for (uint32_t b = 0; b < q->columns / q->quantiser.block_columns; b++)
        if (q->quantiser.scale == GB_SCALE_FP32)
            ((float *)scales)[b] = scale_values[b];
        else
            ((uint8_t *)scales)[b] = scale_codes[b];
    free(apart);
    free(scale_codes);
    free(scale_values);
}

/* Both operators, both inputs and layouts, every kind of data, by every recipe that is defined for them. */
static void every_recipe(void **state)
{
    size_t count, recipes = 0;
    const struct gb_recipe *recipe = gb_recipes(&count);

    (void)state;
    for (size_t r = 0; r < count; r++) {
        const struct gb_quantiser *rules = &recipe[r].quantiser;
        if (!rules->element || rules->block_rows != 1 || rules->block_columns < 16 || rules->block_columns > 128 ||
            (rules->scale == GB_SCALE_FP32 && rules->block_columns < 64))
            continue;
        size_t nonzero = 0;
        recipes++;
        for (uint32_t v = 0; v < 2 * 2 * 2 * OPERATOR_KINDS; v++) {
            if ((v ^ v / 2 ^ v / 4 ^ v / 8) % 2) /* half of them, with every two choices */
                continue;
            struct gb_quantisation q = operator_question(rules, v % 2, 2, 256);
            char label[128];
            snprintf(label, sizeof label, "%s, variant %u", recipe[r].name, v);
            q.input = v / 2 % 2 ? GB_FP16 : GB_BF16;
            q.layout = v / 4 % 2 ? GB_SCALES_TRANSPOSED : GB_SCALES_LINEAR;
            q.bound = rules->bound != GB_BOUND_NONE && v / 4 % 2 ? 0.0071f : INFINITY;
            assert_int_equal(gb_quantiser_global(rules, 40.0f, &q.global_scale, NULL), GB_OK);
            uint16_t *input = operator_input(&q, (enum operator_data)(v / 8), r * 100 + v);
            nonzero += expect_operator(&q, input, by_rules, label);
            free(input);
        }
        assert_true(nonzero > 2000);
    }
    assert_true(recipes > 40);
}

/* A row's codes do not depend on the rows beside it. */
static void rows_are_independent(void **state)
{
    const struct gb_recipe *recipe = gb_recipe_find("nvfp4.modelopt/1");
    struct gb_quantisation q = operator_question(&recipe->quantiser, false, 9, 512);
    uint16_t *input = operator_input(&q, OPERATOR_GAUSSIAN, 3);
    uint8_t all[9 * 256], scales[9 * 32], one[256], scale[32];
    struct gb_arguments a = {.size = sizeof a, .quantise = &q, .values = input, .codes = all, .scales = scales};

    (void)state;
    q.global_scale = 0.01f;
    assert_int_equal(gb_reference_quantise(&a, NULL), GB_OK);
    q.rows = 1;
    for (uint32_t row = 0; row < 9; row++) {
        a.values = input + row * 512;
        a.codes = one;
        a.scales = scale;
        assert_int_equal(gb_reference_quantise(&a, NULL), GB_OK);
        assert_memory_equal(one, all + row * 256, 256);
        assert_memory_equal(scale, scales + row * 32, 32);
    }
    free(input);
}

static void a_global_scale_must_be_normal(void **state)
{
    const struct gb_recipe *recipe = gb_recipe_find("nvfp4.modelopt/1");
    static const float bad[] = {0.0f, -1.0f, 0x1p-130f, INFINITY, NAN};
    struct gb_quantisation q = operator_question(&recipe->quantiser, false, 1, 32);
    uint16_t input[32] = {0};
    uint8_t codes[16], scales[2];
    struct gb_arguments a = {.size = sizeof a, .quantise = &q, .values = input, .codes = codes, .scales = scales};

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct gb_error error = {""};
        q.global_scale = bad[i];
        assert_int_equal(gb_reference_quantise(&a, &error), GB_EINVAL);
        kept_message(error.message, NULL);
        assert_non_null(strstr(error.message, "global scale"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recipe),
        cmocka_unit_test(rows_are_independent),
        cmocka_unit_test(a_global_scale_must_be_normal),
        KEPT_AS("test_quantise_operator"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
