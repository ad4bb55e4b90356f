/* SPDX-License-Identifier: Apache-2.0 */
/* gb_dot against the oracle's fma32 on integers, and against dot products worked out by hand. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/oracle/oracle.h"
#include "tests/support/problem.h"

/* What kinds of results were seen, so that a data kind cannot silently lose its point. */
struct seen {
    unsigned nan, infinite, subnormal, negative_zero, normal;
};

static void note(struct seen *seen, float value)
{
    seen->nan += isnan(value) != 0;
    seen->infinite += isinf(value) != 0;
    seen->subnormal += fpclassify(value) == FP_SUBNORMAL;
    seen->negative_zero += value == 0 && signbit(value);
    seen->normal += fpclassify(value) == FP_NORMAL;
}

static void check_rows(enum gb_format format, uint32_t columns, enum data data, uint64_t seed, struct seen *seen)
{
    enum { EXPERTS = 2, ROWS = 6, PARTS = 2 };
    uint64_t random = seed;
    struct gb_weights weights;
    gb_bf16 *x = malloc(columns * sizeof *x);

    assert_non_null(x);
    problem_weights(&weights, format, EXPERTS, ROWS, columns, PARTS, data, &random);
    problem_activations(x, columns, data, &random);
    for (uint32_t expert = 0; expert < EXPERTS; expert++)
        for (uint32_t row = 0; row < ROWS; row++) {
            float expected = oracle_dot(&weights, expert, row, x);
            assert_same_float(expected, fma32_dot(&weights, expert, row, x), "%s, %u columns, expert %u, row %u",
                              gb_format_name(format), columns, expert, row);
            note(seen, expected);
        }
    free(x);
    problem_weights_free(&weights);
}

static const uint32_t lengths[] = {16,  32,  48,  64,   80,   96,   192,  240,  256,  272,  384, 496,
                                   512, 528, 768, 1008, 1024, 1040, 1536, 2048, 2064, 2880, 4096};
static const uint32_t odd_lengths[] = {1, 2, 7, 8, 9, 13, 15, 17, 31, 33, 127, 255, 257, 263, 384, 1001};

static struct seen check_lengths(enum data data)
{
    struct seen seen = {0};

    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        check_rows(GB_NVFP4, lengths[i], data, 100 + i, &seen);
        check_rows(GB_BF16, lengths[i], data, 200 + i, &seen);
        if (lengths[i] % 32 == 0)
            check_rows(GB_MXFP8, lengths[i], data, 400 + i, &seen);
        if (lengths[i] % 32 == 0)
            check_rows(GB_MXFP4, lengths[i], data, 500 + i, &seen);
        check_rows(GB_FP8_BLOCK, lengths[i], data, 600 + i, &seen);
    }
    for (unsigned i = 0; i < sizeof odd_lengths / sizeof *odd_lengths; i++) {
        check_rows(GB_BF16, odd_lengths[i], data, 300 + i, &seen);
        check_rows(GB_FP8_BLOCK, odd_lengths[i], data, 700 + i, &seen);
    }
    return seen;
}

static void every_code_and_scale(void **state)
{
    (void)state;
    assert_true(check_lengths(DATA_CODES).normal > 500);
}

static void gaussian_weights(void **state)
{
    (void)state;
    assert_true(check_lengths(DATA_GAUSSIAN).normal > 500);
}

static void wide_activations(void **state)
{
    (void)state;
    assert_true(check_lengths(DATA_WIDE).normal > 500);
}

static void subnormal_results(void **state)
{
    (void)state;
    assert_true(check_lengths(DATA_SUBNORMAL).subnormal > 200);
}

static void cancellation(void **state)
{
    (void)state;
    assert_true(check_lengths(DATA_CANCEL).normal > 400);
}

static void nan_and_infinity(void **state)
{
    struct seen seen;

    (void)state;
    seen = check_lengths(DATA_NONFINITE);
    assert_true(seen.nan > 100 && seen.infinite > 20 && seen.normal > 100);
}

/* A row of `columns` NVFP4 elements that are all code 2 = 1.0, with scales 0x38 = 1.0 and global scale `global`. */
struct ones {
    uint8_t codes[2048];
    uint8_t scales[256];
    float global;
    gb_bf16 x[4096];
    struct gb_weights weights;
};

static void ones_new(struct ones *ones, uint32_t columns, float global)
{
    memset(ones->codes, 0x22, sizeof ones->codes);
    memset(ones->scales, 0x38, sizeof ones->scales);
    memset(ones->x, 0, sizeof ones->x);
    ones->global = global;
    ones->weights = (struct gb_weights){GB_NVFP4, 1, 1, columns, 1, ones->codes, ones->scales, &ones->global};
}

static float ones_dot(const struct ones *ones)
{
    float value = fma32_dot(&ones->weights, 0, 0, ones->x);
    assert_same_float(oracle_dot(&ones->weights, 0, 0, ones->x), value, "%u columns", ones->weights.columns);
    return value;
}

/* 2^24 + 1 = 2^24 in FP32, so a 1 survives only if it meets another 1 before it meets 2^24. */
static void order_seen_by_absorption(void **state)
{
    static struct ones ones;
    const gb_bf16 one = {0x3F80}, big = {0x4B80};

    (void)state;
    ones_new(&ones, 2048, 1);
    ones.x[0] = big; /* two runs of one chunk: the second, 1 + 1, is added whole */
    ones.x[16] = one;
    ones.x[17] = one;
    assert_same_float(0x1p24f + 2, ones_dot(&ones), "%s", "two runs");
    ones.x[17].bits = 0; /* one run: each 1 is absorbed */
    ones.x[1] = one;
    assert_same_float(0x1p24f, ones_dot(&ones), "%s", "one run");

    ones_new(&ones, 2048, 1);
    ones.x[0] = big; /* lane 0, chunk 0, then chunk 32 */
    ones.x[1024] = one;
    ones.x[16 * 32] = one; /* lane 16 joins lane 0 first */
    assert_same_float(0x1p24f, ones_dot(&ones), "%s", "lane 16 alone");
    ones.x[16] = one;
    assert_same_float(0x1p24f, ones_dot(&ones), "%s", "second run of lane 0");
    ones.x[8 * 32] = one; /* lanes 8 and 24 join each other, then lane 0 */
    ones.x[24 * 32] = one;
    assert_same_float(0x1p24f + 2, ones_dot(&ones), "%s", "lanes 8 and 24");
}

/* The scale enters once per run, by fma, and the global scale once at the end. */
static void scales_enter_where_stated(void **state)
{
    static struct ones ones;

    (void)state;
    ones_new(&ones, 32, 0x1.000002p0f);
    for (unsigned i = 0; i < 32; i++)
        ones.x[i].bits = 0x3F81; /* 1 + 2^-7 */
    ones.scales[0] = 0x39;       /* 1.125 */
    ones.scales[1] = 0x01;       /* 2^-9 */
    assert_same_float(18.172119140625f * 0x1.000002p0f, ones_dot(&ones), "%s", "16.125 * (1.125 + 2^-9)");
}

/* A negative sum that underflows keeps its sign; -0 products do not make a sum -0. */
static void signs_of_zero(void **state)
{
    static struct ones ones;

    (void)state;
    ones_new(&ones, 48, 0x1p-126f);
    ones.x[3].bits = 0x8000 | 0x2E80; /* -2^-34 */
    assert_same_float(-0.0f, ones_dot(&ones), "%s", "underflow");
    ones_new(&ones, 48, 1);
    for (unsigned i = 0; i < 48; i++)
        ones.x[i].bits = 0x8000;
    assert_same_float(0.0f, ones_dot(&ones), "%s", "-0 in all elements");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_and_scale),
        cmocka_unit_test(gaussian_weights),
        cmocka_unit_test(wide_activations),
        cmocka_unit_test(subnormal_results),
        cmocka_unit_test(cancellation),
        cmocka_unit_test(nan_and_infinity),
        cmocka_unit_test(order_seen_by_absorption),
        cmocka_unit_test(scales_enter_where_stated),
        cmocka_unit_test(signs_of_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
