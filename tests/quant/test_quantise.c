/* SPDX-License-Identifier: Apache-2.0 */
/* gb_quantise against the oracle, code for code and scale for scale, and what it refuses. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"
#include "tests/support/kept_explanation.h"

enum { MOST = 1 << 20, POISON = 0xA5 };

static float values[MOST];
static uint8_t codes[MOST / 2 + 1], expected_codes[MOST / 2];
static uint8_t scales[MOST / 16 + 1], expected_scales[MOST / 16];

static const struct gb_recipe *nvfp4(void)
{
    return gb_recipe_default(GB_NVFP4);
}

/* Quantises `values` both ways and compares everything, the byte after each buffer included. */
static void check(uint32_t rows, uint32_t columns)
{
    size_t count = (size_t)rows * columns;
    float global = NAN, expected_global = NAN;
    struct gb_error error = {""};

    memset(codes, POISON, sizeof codes);
    memset(scales, POISON, sizeof scales);
    assert_true(oracle_quantise_nvfp4(values, rows, columns, expected_codes, expected_scales, &expected_global));
    if (gb_quantise(nvfp4(), values, rows, columns, codes, scales, &global, &error) != GB_OK)
        fail_msg("refused: %s", error.message);
    assert_same_float(expected_global, global, "global of %u x %u", rows, columns);
    for (size_t block = 0; block < count / 16; block++)
        if (scales[block] != expected_scales[block])
            fail_msg("block %zu: expected scale %02X, got %02X", block, expected_scales[block], scales[block]);
    for (size_t i = 0; i < count; i++) {
        unsigned expected = expected_codes[i / 2] >> 4 * (i % 2) & 15, code = codes[i / 2] >> 4 * (i % 2) & 15;
        if (code != expected)
            fail_msg("element %zu = %a: expected code %u, got %u", i, (double)values[i], expected, code);
    }
    assert_int_equal(codes[count / 2], POISON);
    assert_int_equal(scales[count / 16], POISON);
}

static void fill(size_t first, size_t count, float value)
{
    for (size_t i = first; i < first + count; i++)
        values[i] = value;
}

static void gaussian_values(void **state)
{
    uint64_t random = 3;

    (void)state;
    for (size_t i = 0; i < MOST; i++)
        values[i] = (float)random_gaussian(&random);
    check(1024, 1024);
}

/* As trained weights are: bf16, a spread per row, outlier columns, some exact zeros of both signs. */
static void trained_like_values(void **state)
{
    uint64_t random = 4;

    (void)state;
    for (uint32_t row = 0; row < 512; row++) {
        double spread = 0.02 * exp2(random_gaussian(&random));
        for (uint32_t column = 0; column < 384; column++) {
            double value = spread * random_gaussian(&random) * (column % 97 == 5 ? 20 : 1);
            if (random_below(&random, 50) == 0)
                value = random_below(&random, 2) ? 0.0 : -0.0;
            values[row * 384 + column] = (float)oracle_decode(ORACLE_BF16, oracle_encode(ORACLE_BF16, (float)value));
        }
    }
    check(512, 384);
}

/* Every magnitude and midpoint of E2M1 at one ulp's distance, on the grid that each block's scale spans, for every
 * E4M3 scale from the largest down to the floor: quotients fall on ties and just beside them. */
static void tie_aligned_blocks(void **state)
{
    static const float points[16] = {0, 0.25f, 0.5f, 0.75f, 1, 1.25f, 1.5f, 1.75f, 2, 2.5f, 3, 3.5f, 4, 5, 6, -0.25f};
    static const float globals[] = {1, 0x1.8p-12f, 0x1.555556p-9f, 0x1.fffffep-20f, 0x1.3a92a4p5f};

    (void)state;
    for (unsigned g = 0; g < sizeof globals / sizeof *globals; g++) {
        size_t count = 0;
        for (unsigned code = 0x7E; code > 0; code--)
            for (int variant = 0; variant < 6; variant++, count += 16)
                for (unsigned i = 0; i < 16; i++) {
                    float value = points[i] * (float)oracle_decode(ORACLE_E4M3, code) * globals[g];
                    if (variant % 3 == 1)
                        value = nextafterf(value, 0);
                    if (variant % 3 == 2)
                        value = nextafterf(value, 1e30f);
                    values[count + i] = variant < 3 ? value : -value;
                }
        values[14] = 2688 * globals[g];
        check(1, (uint32_t)count);
    }
}

/* The block's largest value on E4M3's ties: the scale byte itself is decided by the even rule. */
static void ties_of_the_scale(void **state)
{
    size_t count = 0;

    (void)state;
    fill(0, 16, 2688);
    for (unsigned code = 0; code < 0x7E; code++)
        for (int side = -1; side <= 1; side++) {
            count += 16;
            float tie = (float)(oracle_decode(ORACLE_E4M3, code) + oracle_decode(ORACLE_E4M3, code + 1)) / 2;
            float largest = 6 * tie;
            if (side != 0)
                largest = nextafterf(largest, side < 0 ? 0 : 1e30f);
            for (unsigned i = 0; i < 16; i++)
                values[count + i] = largest * (float)i / (i % 2 ? 15.0f : -15.0f);
        }
    check(1, (uint32_t)(count + 16));
}

/* Every bf16 mantissa for the matrix's largest value times every one for a block's, over the exponents that scales
 * span: where a / 6 / d, or a product with a reciprocal, would round to another scale. */
static void every_pair_of_mantissas(void **state)
{
    enum { EXPONENTS = 10, BLOCKS = 128 * EXPONENTS };

    (void)state;
    for (uint32_t mantissa = 0; mantissa < 128; mantissa++) {
        float largest = bits_float(0x41000000 | mantissa << 16);
        for (uint32_t block = 0; block < BLOCKS; block++) {
            float amax = ldexpf(bits_float(0x40800000 | block % 128 << 16), -(int)(block / 128));
            amax = amax < largest ? amax : largest;
            for (unsigned i = 0; i < 16; i++)
                values[16 * block + i] = (i % 2 ? -amax : amax) * (float)(16 - i) / 16;
        }
        values[0] = largest;
        check(1, 16 * BLOCKS);
    }
}

/* Two values with equal |amax|, one positive and one negative; and the largest in every position of a block. */
static void largest_anywhere(void **state)
{
    uint64_t random = 5;

    (void)state;
    for (size_t i = 0; i < 16 * 32; i++)
        values[i] = (float)random_uniform(&random);
    for (unsigned i = 0; i < 16; i++) {
        values[16 * i + i] = -3;
        values[16 * (16 + i) + i] = 3;
        values[16 * (16 + i) + (i + 7) % 16] = -3;
    }
    check(4, 128);
}

/* Blocks of zeros, of -0, and below the smallest scale 2^-9; negative values that round to zero. */
static void zero_and_tiny_blocks(void **state)
{
    (void)state;
    fill(0, 16, 2688);
    fill(16, 16, 0.0f);
    fill(32, 16, -0.0f);
    for (unsigned i = 0; i < 16; i++) {
        values[48 + i] = ldexpf(i % 2 ? -1.0f : 1.0f, -9 - (int)i);
        values[64 + i] = (i % 2 ? -1.0f : 1.0f) * (float)i * 0x1p-12f;
        values[80 + i] = (i % 2 ? -0x1p-149f : 0x1p-149f);
        values[96 + i] = i == 3 ? 6 : i % 2 ? -0x1p-149f : -0.0f;
        values[112 + i] = i == 5 ? -6 : i % 2 ? -0.125f : -0.0f;
    }
    check(1, 128);
    for (unsigned i = 16; i < 48; i++)
        assert_int_equal(codes[i / 2], 0);
    assert_int_equal(scales[1], 0x38);
    assert_int_equal(scales[2], 0x38);
    assert_int_equal(scales[3], 0x01);
    assert_int_equal(codes[48 + 8], 0x80); /* -0 is code 0, a negative value that rounds to zero code 8 */
}

/* In a block whose largest value was rounded down to the scale, that value exceeds 6 and saturates. */
static void saturation(void **state)
{
    unsigned saturated = 0;

    (void)state;
    fill(0, 16, 448 * 6);
    for (unsigned block = 1; block < 256; block++)
        for (unsigned i = 0; i < 16; i++)
            values[16 * block + i] = (float)(block + 1) * (i % 2 ? -1.0f : 1.0f) * (1 - (float)i / 64);
    check(8, 512);
    for (unsigned block = 1; block < 256; block++) {
        float step = (float)oracle_decode(ORACLE_E4M3, scales[block]);
        saturated += values[16 * block] / step > 6 && codes[8 * block] % 16 == 7;
    }
    assert_true(saturated > 20);
}

static void extreme_ranges(void **state)
{
    uint64_t random = 6;

    (void)state;
    for (size_t i = 0; i < 4096; i++)
        values[i] = bits_float((uint32_t)random_bits(&random) & 0xBFFFFFFF);
    values[4095] = 0x1.fffffep127f;
    check(16, 256);
    for (size_t i = 0; i < 4096; i++)
        values[i] = (float)random_gaussian(&random) * 0x1p-118f;
    values[77] = 2688 * 0x1p-126f;
    for (size_t i = 0; i < 4096; i++)
        if (fabsf(values[i]) > 2688 * 0x1p-126f)
            values[i] *= 0x1p-4f;
    check(16, 256);
}

static void all_zero_matrix(void **state)
{
    float global = NAN;

    (void)state;
    fill(0, 64, -0.0f);
    check(2, 32);
    assert_int_equal(gb_quantise(nvfp4(), values, 2, 32, codes, scales, &global, NULL), GB_OK);
    assert_same_float(1, global, "%s", "global of zeros");
    for (unsigned i = 0; i < 32; i++)
        assert_int_equal(codes[i], 0);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(scales[i], 0x38);
}

static void refuses(const struct gb_recipe *recipe, uint32_t rows, uint32_t columns, const char *words)
{
    float global;
    struct gb_error error = {""};

    assert_int_equal(gb_quantise(recipe, values, rows, columns, codes, scales, &global, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    if (!strstr(error.message, words))
        fail_msg("\"%s\" does not name %s", error.message, words);
    assert_null(strchr(error.message, '\n'));
}

static void refuses_what_is_not_finite(void **state)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        fill(0, 64, 1.5f);
        values[32 + 17] = bad[i];
        refuses(nvfp4(), 2, 32, "[1, 17]");
        refuses(gb_recipe_default(GB_BF16), 2, 32, "[1, 17]");
        assert_false(oracle_quantise_nvfp4(values, 2, 32, expected_codes, expected_scales, &(float){0}));
    }
}

static void refuses_what_does_not_fit(void **state)
{
    (void)state;
    fill(0, 64, 0);
    values[9] = nextafterf(2688 * 0x1p-126f, 0);
    refuses(nvfp4(), 2, 32, "small");
    values[9] = -0x1p-149f;
    refuses(nvfp4(), 2, 32, "small");
    values[9] = -2688 * 0x1p-126f;
    check(2, 32);
    fill(0, 64, 1.5f);
    refuses(nvfp4(), 2, 24, "24");
    values[40] = 0x1.ffp127f;
    refuses(gb_recipe_default(GB_BF16), 2, 32, "[1, 8]");
}

static void bf16_is_rounded(void **state)
{
    uint64_t random = 7;
    static gb_bf16 rounded[4096];

    (void)state;
    for (size_t i = 0; i < 4096; i++)
        values[i] = bits_float((uint32_t)random_bits(&random) & 0xBFFFFFFF);
    assert_int_equal(gb_quantise(gb_recipe_default(GB_BF16), values, 32, 128, rounded, NULL, NULL, NULL), GB_OK);
    for (size_t i = 0; i < 4096; i++)
        assert_same_code(oracle_encode(ORACLE_BF16, values[i]), rounded[i].bits, values[i]);
}

/* The sign of a quotient that is itself rounded to -0 is not seen: -2^-149 / 2^20 becomes code 0. */
static void quotient_that_underflows(void **state)
{
    (void)state;
    fill(0, 16, -0x1p-149f);
    values[3] = 0x1p30f;
    check(1, 16);
    assert_int_equal(codes[0], 0);
}

/* Whichever scale a recipe's rule has, weights get the decoding one: the largest magnitude over what stands for it. */
static void global_scales_decode(void **state)
{
    size_t count, encoding = 0;
    const struct gb_recipe *recipes = gb_recipes(&count);
    uint64_t random = 11;
    (void)state;
    for (size_t i = 0; i < count; i++) {
        const struct gb_quantiser *q = &recipes[i].quantiser;
        float global = NAN, amax = 0.0f;
        if (recipes[i].format != GB_NVFP4 || q->global == GB_GLOBAL_NONE)
            continue;
        for (size_t n = 0; n < 1024; n++) {
            values[n] = ldexpf((float)(random_bits(&random) >> 32) - 0x1p31f, -28);
            amax = fmaxf(amax, fabsf(values[n]));
        }
        assert_int_equal(gb_quantise(&recipes[i], values, 16, 64, codes, scales, &global, NULL), GB_OK);
        if (!(fabs((double)global * (double)q->global_largest / (double)amax - 1.0) < 0x1p-22))
            fail_msg("%s: %a of %a", recipes[i].name, (double)global, (double)amax);
        encoding += q->global != GB_GLOBAL_DECODE;
    }
    assert_true(encoding > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaussian_values),
        cmocka_unit_test(trained_like_values),
        cmocka_unit_test(tie_aligned_blocks),
        cmocka_unit_test(ties_of_the_scale),
        cmocka_unit_test(every_pair_of_mantissas),
        cmocka_unit_test(largest_anywhere),
        cmocka_unit_test(zero_and_tiny_blocks),
        cmocka_unit_test(saturation),
        cmocka_unit_test(extreme_ranges),
        cmocka_unit_test(all_zero_matrix),
        cmocka_unit_test(refuses_what_is_not_finite),
        cmocka_unit_test(refuses_what_does_not_fit),
        cmocka_unit_test(bf16_is_rounded),
        cmocka_unit_test(quotient_that_underflows),
        cmocka_unit_test(global_scales_decode),
        KEPT_AS("test_quantise"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
