/* SPDX-License-Identifier: Apache-2.0 */
/* The recipe mxfp8.rceil/1 against the oracle, code for code and scale for scale. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"
#include "tests/support/kept_explanation.h"

enum { MOST = 1 << 18, POISON = 0xA5 };

static float values[MOST];
static uint8_t codes[MOST + 1], expected_codes[MOST];
static uint8_t scales[MOST / 32 + 1], expected_scales[MOST / 32];

static void check(uint32_t rows, uint32_t columns)
{
    size_t count = (size_t)rows * columns;
    struct gb_error error = {""};

    memset(codes, POISON, sizeof codes);
    memset(scales, POISON, sizeof scales);
    assert_true(oracle_quantise_mxfp8(values, rows, columns, expected_codes, expected_scales));
    if (gb_quantise(gb_recipe_default(GB_MXFP8), values, rows, columns, codes, scales, NULL, &error) != GB_OK)
        fail_msg("refused: %s", error.message);
    for (size_t block = 0; block < count / 32; block++)
        if (scales[block] != expected_scales[block])
            fail_msg("block %zu: expected scale %02X, got %02X", block, expected_scales[block], scales[block]);
    for (size_t i = 0; i < count; i++)
        assert_same_code(expected_codes[i], codes[i], values[i]);
    assert_int_equal(codes[count], POISON);
    assert_int_equal(scales[count / 32], POISON);
}

static void gaussian_values(void **state)
{
    uint64_t random = 31;

    (void)state;
    for (size_t i = 0; i < MOST; i++)
        values[i] = (float)random_gaussian(&random);
    check(512, 512);
}

/* Largest values on and beside 448 * 2^k, where the scale byte steps. RN(1/448) is above 1/448, but 448 times it
 * rounds to 1, so the step lies exactly at the power of two. */
static void steps_of_the_scale(void **state)
{
    uint64_t random = 32;
    size_t count = 0;

    (void)state;
    for (int exponent = -140; exponent <= 119; exponent++)
        for (int side = -2; side <= 2; side++, count += 32) {
            float largest = ldexpf(448, exponent);
            for (int step = 0; step < abs(side); step++)
                largest = nextafterf(largest, side < 0 ? 0 : INFINITY);
            for (size_t i = 0; i < 32; i++)
                values[count + i] = (float)((2 * random_uniform(&random) - 1) * (double)largest);
            values[count + random_below(&random, 32)] = random_below(&random, 2) ? largest : -largest;
        }
    check(1, (uint32_t)count);
}

/* Quotients on E4M3's ties, and one ulp to either side, for scales over the whole range. */
static void tie_aligned_blocks(void **state)
{
    size_t count = 0;

    (void)state;
    for (int exponent = -100; exponent <= 100; exponent += 25)
        for (unsigned code = 0; code < 0x7E; code++, count += 32) {
            double tie = (oracle_decode(ORACLE_E4M3, code) + oracle_decode(ORACLE_E4M3, code + 1)) / 2;
            float value = (float)ldexp(tie, exponent);
            for (unsigned i = 0; i < 30; i++) {
                float beside = i % 3 == 0 ? value : nextafterf(value, i % 3 == 1 ? 0 : INFINITY);
                values[count + i] = i % 2 ? -beside : beside;
            }
            values[count + 30] = ldexpf(448, exponent);
            values[count + 31] = -ldexpf(225, exponent);
        }
    check(1, (uint32_t)count);
}

/* Zero blocks have scale byte 0 and keep the signs; the smallest and the largest numbers stay finite. */
static void zero_and_extreme_blocks(void **state)
{
    (void)state;
    for (size_t i = 0; i < 32; i++) {
        values[i] = i % 2 ? -0.0f : 0.0f;
        values[32 + i] = (i % 2 ? -1.0f : 1.0f) * bits_float((uint32_t)i * 37);
        values[64 + i] = (i % 2 ? -1.0f : 1.0f) * ldexpf(1, -149 + 8 * (int)i);
        values[96 + i] = 0x1.fffffep127f * (i % 2 ? -1.0f : 1.0f) / (float)(1 + i);
    }
    check(4, 32);
    assert_int_equal(scales[0], 0);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 0x80);
    assert_int_equal(scales[3], 127 + 128 - 8); /* 2^128 / 448 lies between 2^119 and 2^120 */
}

static void any_bits(void **state)
{
    uint64_t random = 33;

    (void)state;
    for (size_t i = 0; i < MOST; i++) {
        uint32_t bits = (uint32_t)random_bits(&random);
        values[i] = bits_float((bits >> 23 & 0xFF) == 0xFF ? bits & 0xBFFFFFFF : bits);
    }
    check(64, 4096);
}

static void refusals(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const struct gb_recipe *recipe = gb_recipe_default(GB_MXFP8);
    struct gb_error error = {""};

    (void)state;
    for (size_t i = 0; i < 64; i++)
        values[i] = 1.5f;
    assert_int_equal(gb_quantise(recipe, values, 1, 48, codes, scales, NULL, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    assert_non_null(strstr(error.message, "48"));
    for (unsigned i = 0; i < 3; i++) {
        values[40] = bad[i];
        assert_int_equal(gb_quantise(recipe, values, 2, 32, codes, scales, NULL, &error), GB_EINVAL);
        kept_message(error.message, NULL);
        assert_non_null(strstr(error.message, "[1, 8]"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaussian_values),
        cmocka_unit_test(steps_of_the_scale),
        cmocka_unit_test(tie_aligned_blocks),
        cmocka_unit_test(zero_and_extreme_blocks),
        cmocka_unit_test(any_bits),
        cmocka_unit_test(refusals),
        KEPT_AS("test_mxfp8"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
