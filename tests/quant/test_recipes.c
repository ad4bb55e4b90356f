/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every row of the table of recipes, and random rows, through the quantiser and the oracle: codes and scales, bit for
 * bit. The sweeps cut blocks to 8 columns, since no rule depends on their size; blocks_as_they_are has the real ones.
 */
#include "tests/support/check.h"

#include <float.h>

#include "quant/quant.h"
#include "tests/oracle/oracle.h"
#include "tests/support/kept_explanation.h"

enum { MOST = 1 << 19, POISON = 0xA5, WIDE = 8 };

/* Every how manieth case of the sweeps is run, another one for each row. */
static uint32_t stride = 13, shift;

static float values[MOST];
static uint8_t codes[MOST + 1], scales[4 * MOST + 1];
static uint8_t expected_codes[MOST], expected_scale_codes[MOST];
static float expected_scales[MOST];

static float random_of_any_kind(uint64_t *random)
{
    return bits_float((uint32_t)random_bits(random));
}

static float to_bf16(float value)
{
    return bits_float(float_bits(value) & 0xFFFF0000);
}

static uint32_t blocks_of(const struct gb_quantiser *rules, uint32_t rows, uint32_t columns)
{
    uint32_t wide = rules->block_columns ? rules->block_columns : columns;
    return ((rows + rules->block_rows - 1) / rules->block_rows) * ((columns + wide - 1) / wide);
}

/* `values` both ways; everything is compared, and the byte after each buffer. */
static void check(const char *name, const struct gb_quantiser *rules, uint32_t rows, uint32_t columns, float global,
                  float bound)
{
    size_t count = (size_t)rows * columns, code_bytes, scale_bytes;
    struct gb_error error = {""};
    bool packed = rules->element == GB_E2M1, fp32 = rules->scale == GB_SCALE_FP32;

    memset(codes, POISON, count + 1);
    memset(scales, POISON, 4 * (size_t)blocks_of(rules, rows, columns) + 1);
    oracle_quantise(rules, values, rows, columns, global, bound, expected_codes, expected_scale_codes, expected_scales);
    assert_int_equal(gb_quantiser_bytes(rules, rows, columns, &code_bytes, &scale_bytes, &error), GB_OK);
    assert_int_equal(code_bytes, packed ? count / 2 : count);
    assert_int_equal(scale_bytes, blocks_of(rules, rows, columns) * (fp32 ? 4 : 1));
    if (gb_quantiser_run(rules, values, rows, columns, global, bound, codes, scales, &error) != GB_OK)
        fail_msg("%s: %s", name, error.message);
    for (size_t block = 0; block < blocks_of(rules, rows, columns); block++) {
        if (fp32)
            assert_same_float(expected_scales[block], ((float *)scales)[block], "%s: block %zu", name, block);
        else if (scales[block] != expected_scale_codes[block])
            fail_msg("%s, global %a: block %zu: expected scale %02X, got %02X", name, (double)global, block,
                     expected_scale_codes[block], scales[block]);
    }
    for (size_t i = 0; i < count; i++) {
        unsigned code = packed ? codes[i / 2] >> 4 * (i % 2) & 15 : codes[i];
        if (code != expected_codes[i])
            fail_msg("%s, global %a: element %zu = %a (%08X): expected code %02X, got %02X", name, (double)global, i,
                     (double)values[i], float_bits(values[i]), expected_codes[i], code);
    }
    assert_int_equal(codes[code_bytes], POISON);
    assert_int_equal(scales[scale_bytes], POISON);
}

typedef void with_rules(const char *name, const struct gb_quantiser *rules);

/* Every row that has blocks, with blocks of `wide` columns; 0: its own. */
static void every_row(with_rules *test, uint32_t wide)
{
    size_t count, tested = 0;
    const struct gb_recipe *recipes = gb_recipes(&count);

    for (size_t i = 0; i < count; i++) {
        struct gb_quantiser rules = recipes[i].quantiser;
        if (!rules.element)
            continue;
        if (wide) {
            rules.block_rows = 1;
            rules.block_columns = wide;
        }
        shift = (uint32_t)tested++ % stride;
        test(recipes[i].name, &rules);
    }
    assert_true(tested >= 60);
}

/* A value that lies on, or an ulp beside, a midpoint of the row's element, for a block of this amax. */
static float near_tie(const struct gb_quantiser *rules, float amax, uint64_t *random)
{
    static const float midpoints[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    float scale = amax / rules->largest, value;

    if (rules->scale == GB_SCALE_E8M0)
        scale =
            exp2f(floorf(log2f(amax > 0 ? amax : 1)) - floorf(log2f(rules->largest)) + (float)random_below(random, 2));
    if (rules->element == GB_E2M1)
        value = midpoints[random_below(random, 7)];
    else if (rules->element == GB_INT8)
        value = (float)random_below(random, 127) + 0.5f;
    else /* odd multiples of half an ulp of three mantissa bits */
        value = ldexpf((float)(17 + 2 * random_below(random, 8)), (int)random_below(random, 14) - 10);
    value *= scale;
    uint32_t beside = random_below(random, 3);
    if (beside == 1)
        value = nextafterf(value, 0);
    if (beside == 2)
        value = nextafterf(value, INFINITY);
    return random_below(random, 2) ? value : -value;
}

static void fill_block(const struct gb_quantiser *rules, float *block, float amax, uint64_t *random)
{
    for (unsigned i = 0; i < WIDE; i++) {
        float value = near_tie(rules, amax, random);
        block[i] = fabsf(value) <= amax ? value : (i % 2 ? -0.0f : 0.0f);
    }
    block[random_below(random, WIDE)] = random_below(random, 2) ? amax : -amax;
}

/* The 32,512 positive normal bf16 block maxima, beside elements on and near the ties. */
static void all_maxima(const char *name, const struct gb_quantiser *rules)
{
    uint64_t random = 41;
    uint32_t blocks = 0;
    float global;

    for (uint32_t bits = 0x0080 + shift; bits < 0x7F80; bits += stride)
        fill_block(rules, values + (size_t)blocks++ * WIDE, bits_float(bits << 16), &random);
    assert_true(blocks * WIDE <= MOST);
    assert_int_equal(gb_quantiser_global(rules, 3.0f, &global, NULL), GB_OK);
    check(name, rules, blocks, WIDE, global, INFINITY);
}

static void all_bf16_maxima(void **state)
{
    (void)state;
    every_row(all_maxima, WIDE);
}

/* For rows with a global scale: every bf16 mantissa of the matrix's amax and of the block's, over the exponents from
 * saturating to vanishing scales. */
static void pairs_of_mantissas(const char *name, const struct gb_quantiser *rules)
{
    enum { EXPONENTS = 20 };
    uint64_t random = 42;
    float global;

    if (rules->global == GB_GLOBAL_NONE)
        return;
    for (uint32_t mantissa = shift; mantissa < 128; mantissa += stride) {
        for (uint32_t block = 0; block < 128; block++) {
            float amax = ldexpf(bits_float(0x40800000 | block << 16), 1 - (int)(random_below(&random, EXPONENTS)));
            fill_block(rules, values + (size_t)block * WIDE, amax, &random);
        }
        assert_int_equal(gb_quantiser_global(rules, bits_float(0x41000000 | mantissa << 16), &global, NULL), GB_OK);
        check(name, rules, 128, WIDE, global, INFINITY);
    }
}

static void all_pairs_of_mantissas(void **state)
{
    (void)state;
    every_row(pairs_of_mantissas, WIDE);
}

static const float special[] = {0.0f,      -0.0f,      NAN,       -NAN,       INFINITY, -INFINITY,
                                0x1p-149f, -0x1p-149f, 0x1p-126f, -0x1p-127f, FLT_MAX,  -FLT_MAX,
                                1.0f,      -1.0f,      0x1p-133f, 0x1p-70f,   1e-10f,   -1e-4f};
enum { SPECIAL = sizeof special / sizeof *special };

/* Zero blocks of either sign, NaN and infinity anywhere and everywhere, the smallest and the largest numbers, and
 * floats of any bits: as bf16 and as they are. */
static void extremes(const char *name, const struct gb_quantiser *rules)
{
    static const float globals[] = {1.0f, FLT_MIN, 0x1.3a92a4p5f, 0x1p100f, FLT_MAX};
    uint32_t blocks = stride > 1 ? 1024 : 4096;
    uint64_t random = 43;

    for (size_t i = 0; i < (size_t)blocks * WIDE; i++) {
        uint32_t block = (uint32_t)(i / WIDE);
        if (block < SPECIAL)
            values[i] = special[block];
        else if (block < 2 * SPECIAL)
            values[i] = i % WIDE == block % WIDE ? special[block - SPECIAL] : (float)random_gaussian(&random);
        else if (block < blocks / 4)
            values[i] = special[random_below(&random, SPECIAL)];
        else if (block < blocks / 2)
            values[i] = to_bf16(random_of_any_kind(&random));
        else if (block < 3 * blocks / 4)
            values[i] = ldexpf(random_of_any_kind(&random), -100);
        else
            values[i] = ldexpf((float)random_gaussian(&random), (int)random_below(&random, 40) - 20);
    }
    for (unsigned g = 0; g < (rules->global ? sizeof globals / sizeof *globals : 1); g++)
        check(name, rules, blocks, WIDE, globals[g], INFINITY);
}

static void all_extremes(void **state)
{
    (void)state;
    every_row(extremes, WIDE);
}

static void bounds(const char *name, const struct gb_quantiser *rules)
{
    static const float bound[] = {1e-9f, 1e-3f, 0.5f, 3.0f, 1e3f};
    uint64_t random = 44;

    if (rules->bound == GB_BOUND_NONE)
        return;
    for (size_t i = 0; i < (size_t)512 * WIDE; i++)
        values[i] = ldexpf((float)random_gaussian(&random), (int)(i / WIDE / 16) - 16);
    for (unsigned b = 0; b < sizeof bound / sizeof *bound; b++)
        check(name, rules, 512, WIDE, 1.0f, bound[b]);
}

static void all_bounds(void **state)
{
    (void)state;
    every_row(bounds, WIDE);
}

/* Real blocks: whole rows, groups, and blocks of 128 x 128 cut short by both edges; then one number of another kind in
 * each row, and zeros where the next rows begin. */
static void as_they_are(const char *name, const struct gb_quantiser *rules)
{
    uint32_t rows = rules->block_rows == 1 ? SPECIAL + 2 : 130, columns = rules->block_rows == 1 ? 384 : 300;
    float global = rules->global == GB_GLOBAL_DECODE ? 0.01f : 200.0f;
    uint64_t random = 45;

    for (size_t i = 0; i < (size_t)rows * columns; i++)
        values[i] = (float)(random_gaussian(&random) * exp2(random_gaussian(&random)));
    check(name, rules, rows, columns, global, INFINITY);
    for (uint32_t row = 0; row < rows; row++)
        if (row < SPECIAL)
            values[row * columns + random_below(&random, columns)] = special[row];
        else
            memset(values + (size_t)row * columns, 0, columns / 2 * sizeof *values);
    check(name, rules, rows, columns, global, INFINITY);
}

static void blocks_as_they_are(void **state)
{
    (void)state;
    every_row(as_they_are, 0);
}

/* A multiplier without a largest value is infinite for a block of zeros, whose quotients are NaN then. */
static void infinite_multipliers(void **state)
{
    (void)state;
    struct gb_quantiser rules = gb_recipe_find("nvfp4.te/1")->quantiser;
    rules.multiplier_max = 0.0f;
    as_they_are("nvfp4.te/1 with any multiplier", &rules);
}

#define one_of(first, last) (first + random_below(random, (last) - (first) + 1))

/* Any combination of choices, those that no row makes too. */
static struct gb_quantiser random_rules(uint64_t *random)
{
    static const float largest[] = {0, 6, 448, 240, 57344, 28, 7.5f, 127};
    static const float floors[] = {0, 0, 1, 0x1p-9f, 1e-10f, 0.37f};
    struct gb_quantiser rules = {.element = one_of(GB_E2M1, GB_INT8),
                                 .scale = one_of(GB_SCALE_E4M3, GB_SCALE_FP32),
                                 .block_rows = 1,
                                 .block_columns = WIDE,
                                 .global = one_of(GB_GLOBAL_NONE, GB_GLOBAL_ENCODE_RECIPROCAL)};

    rules.largest = largest[rules.element];
    if (rules.element == GB_E4M3FNUZ && random_below(random, 2))
        rules.largest = 224;
    rules.reciprocal = nextafterf(1 / rules.largest, random_below(random, 2) ? 0 : 1);
    rules.global_largest = 6 * 448;
    rules.global_overflow = 1;
    rules.amax_start = floors[random_below(random, 6)];
    rules.amax_nan = one_of(GB_AMAX_DROPS_NAN, GB_AMAX_NAN_IF_ALL_ARE);
    rules.bound = one_of(GB_BOUND_NONE, GB_BOUND_RATIO);
    rules.ratio = one_of(rules.scale == GB_SCALE_E8M0 ? GB_RATIO_POWER : GB_RATIO_DIVIDE, GB_RATIO_INVERSE);
    rules.ratio_intermediate = one_of(GB_INTERMEDIATE_FP32, GB_INTERMEDIATE_FP16);
    rules.ratio_if_zero = floors[random_below(random, 6)];
    rules.ratio_min = floors[random_below(random, 6)];
    rules.ratio_max = random_below(random, 4) ? 0 : 1.7f;
    rules.scale_rounding = GB_SCALE_NEAREST;
    if (rules.scale == GB_SCALE_E4M3 && random_below(random, 3) == 0)
        rules.scale_rounding = GB_SCALE_LLAMA_CPP;
    if (rules.scale == GB_SCALE_E8M0)
        rules.scale_rounding = one_of(GB_SCALE_FLOOR, GB_SCALE_CEIL_FRACTION);
    rules.mantissa_bits = one_of(1, 5);
    rules.scale_min = (uint8_t)random_below(random, 3);
    rules.scale_max = random_below(random, 3) ? 0 : 0x70;
    rules.scale_if_zero = random_below(random, 3) ? 0 : 0x20;
    rules.scale_infinity = random_below(random, 2) ? 0 : 0xFF;
    rules.scale_nan = random_below(random, 2) ? 0 : 0x35;
    rules.quotient = one_of(GB_QUOTIENT_DIVIDE, GB_QUOTIENT_DECODE);
    if (rules.quotient == GB_QUOTIENT_POWER && rules.scale != GB_SCALE_E8M0)
        rules.quotient = GB_QUOTIENT_ENCODE;
    rules.multiplier_max = random_below(random, 2) ? 0 : 100;
    rules.multiplier_lowest = random_below(random, 2) ? 0 : 1;
    rules.zero_multiplier = one_of(GB_ZERO_NEVER, GB_ZERO_IF_SCALE_IS);
    rules.intermediate = one_of(GB_INTERMEDIATE_FP32, GB_INTERMEDIATE_FP16);
    rules.rounding = one_of(GB_TIES_TO_EVEN, GB_TRUNCATE);
    rules.element_nan = one_of(GB_NAN_IS_NAN, GB_NAN_IS_ZERO);
    rules.zero_sign = one_of(GB_ZERO_KEEPS_SIGN, GB_ZERO_NEGATIVE_UNLESS_ABOVE);
    rules.flush_subnormals = random_below(random, 2);
    if (rules.element == GB_E2M1 && rules.scale == GB_SCALE_E4M3)
        rules.four_over_six = one_of(GB_SIX, GB_FOUR_OVER_SIX_SQUARE);
    return rules;
}

/* The same, but for what blocks of weights are quantised by on vectors: ModelOpt's ratio and quotient, or one
 * of the two. */
static struct gb_quantiser random_products(uint64_t *random)
{
    struct gb_quantiser rules = random_rules(random);
    rules.element = random_below(random, 2) ? GB_E2M1 : GB_E4M3;
    rules.largest = rules.element == GB_E2M1 ? 6 : 448;
    if (random_below(random, 4) == 0) /* of which no vectors are made */
        rules.largest = rules.element == GB_E2M1 ? 4 : 240;
    rules.scale = GB_SCALE_E4M3;
    rules.scale_rounding = random_below(random, 4) ? GB_SCALE_NEAREST : GB_SCALE_LLAMA_CPP;
    if (random_below(random, 3))
        rules.ratio = GB_RATIO_DIVIDE_PRODUCT;
    if (random_below(random, 3))
        rules.quotient = GB_QUOTIENT_DIVIDE_PRODUCT;
    rules.flush_subnormals = random_below(random, 8) == 0;
    rules.intermediate = GB_INTERMEDIATE_FP32;
    rules.rounding = GB_TIES_TO_EVEN;
    rules.zero_sign = one_of(GB_ZERO_KEEPS_SIGN, GB_ZERO_SIGN_OF_VALUE);
    rules.four_over_six = GB_SIX;
    rules.block_columns = 2 * WIDE;
    return rules;
}

static void any_rules(void **state)
{
    uint64_t random = 46;

    (void)state;
    for (unsigned n = 0; n < (stride > 1 ? 430 : 3000); n++) {
        struct gb_quantiser rules = n % 5 ? random_rules(&random) : random_products(&random);
        char name[32];
        snprintf(name, sizeof name, "random row %u", n);
        for (unsigned block = 0; block < 24; block++) {
            if (block < 16)
                fill_block(&rules, values + (size_t)block * WIDE,
                           ldexpf((float)random_uniform(&random), (int)random_below(&random, 24) - 12), &random);
            else
                for (unsigned i = 0; i < WIDE; i++)
                    values[block * WIDE + i] = random_of_any_kind(&random);
        }
        memset(values + 23 * WIDE, 0, WIDE * sizeof *values);
        uint32_t columns = rules.block_columns;
        check(name, &rules, 24 * WIDE / columns, columns, 0x1.9p-3f, random_below(&random, 2) ? INFINITY : 0.4f);
    }
}

/* Step 1 over all bf16 numbers. */
static void globals(const char *name, const struct gb_quantiser *rules)
{
    float global;

    assert_int_equal(gb_quantiser_global(rules, 0.0f, &global, NULL), GB_OK);
    assert_same_float(1, global, "%s: zero matrix", name);
    if (rules->global == GB_GLOBAL_NONE)
        return;
    assert_int_equal(gb_quantiser_global(rules, INFINITY, &global, NULL), GB_EINVAL);
    assert_int_equal(gb_quantiser_global(rules, NAN, &global, NULL), GB_EINVAL);
    for (uint32_t bits = 0x0001; bits < 0x7F80; bits++) {
        float amax = bits_float(bits << 16);
        float largest = rules->global_largest;
        float expected = rules->global == GB_GLOBAL_DECODE   ? oracle_divide(amax, largest)
                         : rules->global == GB_GLOBAL_ENCODE ? oracle_divide(largest, amax)
                                                             : oracle_multiply(largest, oracle_divide(1.0f, amax));
        if (isinf(expected))
            expected = rules->global_overflow;
        enum gb_status status = gb_quantiser_global(rules, amax, &global, NULL);
        assert_int_equal(status, expected >= FLT_MIN ? GB_OK : GB_EINVAL);
        if (status == GB_OK)
            assert_same_float(expected, global, "%s: amax %a", name, (double)amax);
    }
}

static void all_globals(void **state)
{
    (void)state;
    every_row(globals, 0);
}

/* What a recipe quantises activations to, where there is such a format; scales of groups of 128 are FP32 there. */
static void formats_of_activations(void **state)
{
    static const struct {
        const char *prefix;
        enum gb_format format;
    } formats[] = {{"nvfp4.", GB_NVFP4}, {"mxfp8.", GB_MXFP8}, {"fp8g128.", GB_FP8_BLOCK}};
    size_t count;
    const struct gb_recipe *rows = gb_recipes(&count);
    (void)state;
    for (size_t i = 0; i < count; i++) {
        enum gb_format expected = 0, found = gb_quantiser_activations(&rows[i].quantiser);
        for (size_t n = 0; n < sizeof formats / sizeof *formats; n++)
            if (!strncmp(rows[i].name, formats[n].prefix, strlen(formats[n].prefix)) && !strstr(rows[i].name, "-ue8m0"))
                expected = formats[n].format;
        if (found != expected)
            fail_msg("%s: %d, not %d", rows[i].name, (int)found, (int)expected);
    }
}

static void refuses(const struct gb_quantiser *rules, uint32_t rows, uint32_t columns, float global, const char *words)
{
    struct gb_error error = {""};

    assert_int_equal(gb_quantiser_run(rules, values, rows, columns, global, INFINITY, codes, scales, &error),
                     GB_EINVAL);
    kept_message(error.message, NULL);
    if (!strstr(error.message, words))
        fail_msg("\"%s\" does not name %s", error.message, words);
}

static void refusals(void **state)
{
    const struct gb_quantiser *nvfp4 = &gb_recipe_find("nvfp4.te/1")->quantiser;

    (void)state;
    refuses(nvfp4, 2, 24, 1.0f, "24");
    refuses(nvfp4, 0, 32, 1.0f, "0 rows");
    refuses(nvfp4, 1, 0, 1.0f, "0 columns");
    refuses(nvfp4, 1, 32, 0.0f, "global");
    refuses(nvfp4, 1, 32, NAN, "global");
    refuses(nvfp4, 1, 32, 0x1p-127f, "global");
    refuses(nvfp4, 1, 32, INFINITY, "global");
    assert_null(gb_recipe_find("nvfp4.te/2"));
    assert_null(gb_recipe_find(""));
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        stride = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_bf16_maxima),
        cmocka_unit_test(all_pairs_of_mantissas),
        cmocka_unit_test(all_extremes),
        cmocka_unit_test(all_bounds),
        cmocka_unit_test(blocks_as_they_are),
        cmocka_unit_test(infinite_multipliers),
        cmocka_unit_test(any_rules),
        cmocka_unit_test(all_globals),
        cmocka_unit_test(formats_of_activations),
        cmocka_unit_test(refusals),
        KEPT_AS("test_recipes"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
