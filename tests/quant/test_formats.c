/* SPDX-License-Identifier: Apache-2.0 */
/* quant/formats.c, quant/status.c and the tables of recipes and contracts. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/oracle/oracle.h"
#include "tests/support/problem.h"
#include "tests/support/kept_explanation.h"

enum { LONG_ROW = 1056, LONG_ROWS = 8 }; /* more than is decoded at once */

static void status_names(void **state)
{
    (void)state;
    assert_string_equal(gb_status_name(GB_OK), "GB_OK");
    assert_string_equal(gb_status_name(GB_EINVAL), "GB_EINVAL");
    assert_string_equal(gb_status_name(GB_ENOMEM), "GB_ENOMEM");
    assert_string_equal(gb_status_name(GB_EIO), "GB_EIO");
    assert_string_equal(gb_status_name(GB_EFORMAT), "GB_EFORMAT");
    assert_string_equal(gb_status_name(GB_EUNSUPPORTED), "GB_EUNSUPPORTED");
    assert_string_equal(gb_status_name(GB_EDEVICE), "GB_EDEVICE");
    assert_string_equal(gb_status_name((enum gb_status)77), "unknown status");
}

static void messages_are_cut_to_fit(void **state)
{
    struct gb_error error;
    char longer[2000];

    (void)state;
    memset(&error, 0xA5, sizeof error);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_int_equal(gb_fail(&error, GB_EIO, "%d %s", 7, longer), GB_EIO);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_memory_equal(error.message, "7 xxx", 5);
    assert_int_equal(gb_fail(NULL, GB_ENOMEM, "%s", longer), GB_ENOMEM);
}

static void bytes_refuse_overflow(void **state)
{
    size_t bytes = 1;

    (void)state;
    assert_true(gb_bytes(3, 5, 7, 4, &bytes));
    assert_int_equal(bytes, 420);
    assert_true(gb_bytes(UINT64_MAX, 0, 7, 4, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(gb_bytes(UINT64_MAX, 2, 1, 1, &bytes));
    assert_false(gb_bytes(1, UINT64_MAX, 2, 1, &bytes));
    assert_false(gb_bytes((uint64_t)1 << 32, (uint64_t)1 << 31, 1, 4, &bytes));
    assert_false(gb_bytes((uint64_t)1 << 31, (uint64_t)1 << 31, 8, 1, &bytes));
}

static void formats_without_scales(void **state)
{
    static const enum gb_format formats[] = {GB_BF16, GB_FP16, GB_FP32};
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const struct gb_format_row *row = gb_format_find(formats[i]);
        if (row->scales || row->block != 1 || row->block_rows != 1 || row->edges || row->global ||
            row->full_code != 0.0f || row->weights != (formats[i] == GB_BF16))
            fail_msg("%s: scales %d of %u x %u", row->name, (int)row->scales, row->block_rows, row->block);
    }
}

static void names_of_formats(void **state)
{
    enum gb_format format = GB_FP32;

    (void)state;
    assert_string_equal(gb_format_name(GB_FP32), "fp32");
    assert_string_equal(gb_format_name(GB_BF16), "bf16");
    assert_string_equal(gb_format_name(GB_NVFP4), "nvfp4");
    assert_string_equal(gb_format_name(GB_MXFP8), "mxfp8");
    assert_string_equal(gb_format_name(GB_MXFP4), "mxfp4");
    assert_string_equal(gb_format_name(GB_FP8_BLOCK), "fp8");
    assert_null(gb_format_name((enum gb_format)0));
    assert_true(gb_format_parse("nvfp4", &format));
    assert_int_equal(format, GB_NVFP4);
    assert_true(gb_format_parse("mxfp8", &format));
    assert_int_equal(format, GB_MXFP8);
    assert_true(gb_format_parse("bf16", &format));
    assert_int_equal(format, GB_BF16);
    assert_true(gb_format_parse("mxfp4", &format));
    assert_int_equal(format, GB_MXFP4);
    assert_true(gb_format_parse("fp8", &format));
    assert_int_equal(format, GB_FP8_BLOCK);
    assert_false(gb_format_parse("fp32", &format)); /* no weight format */
    assert_false(gb_format_parse("nvfp", &format));
    assert_false(gb_format_parse("", &format));
}

static void sizes_of_rows(void **state)
{
    (void)state;
    assert_int_equal(gb_format_block(GB_NVFP4), 16);
    assert_int_equal(gb_format_block(GB_MXFP8), 32);
    assert_int_equal(gb_format_block(GB_BF16), 1);
    assert_int_equal(gb_row_code_bytes(GB_NVFP4, 48), 24);
    assert_int_equal(gb_row_scale_bytes(GB_NVFP4, 48), 3);
    assert_int_equal(gb_row_code_bytes(GB_MXFP8, 96), 96);
    assert_int_equal(gb_row_scale_bytes(GB_MXFP8, 96), 3);
    assert_int_equal(gb_row_code_bytes(GB_BF16, 13), 26);
    assert_int_equal(gb_row_scale_bytes(GB_BF16, 13), 0);
    assert_int_equal(gb_format_block(GB_MXFP4), 32);
    assert_int_equal(gb_format_multiple(GB_MXFP4), 32);
    assert_int_equal(gb_row_code_bytes(GB_MXFP4, 96), 48);
    assert_int_equal(gb_row_scale_bytes(GB_MXFP4, 96), 3);
    assert_int_equal(gb_part_scale_bytes(GB_MXFP4, 5, 96), 15);
    assert_int_equal(gb_format_block(GB_FP8_BLOCK), 128);
    assert_int_equal(gb_format_block_rows(GB_FP8_BLOCK), 128);
    assert_int_equal(gb_format_multiple(GB_FP8_BLOCK), 1);
    assert_int_equal(gb_row_code_bytes(GB_FP8_BLOCK, 130), 130);
    assert_int_equal(gb_row_scale_bytes(GB_FP8_BLOCK, 128), 4);
    assert_int_equal(gb_row_scale_bytes(GB_FP8_BLOCK, 129), 8);
    assert_int_equal(gb_part_scale_bytes(GB_FP8_BLOCK, 128, 129), 8);
    assert_int_equal(gb_part_scale_bytes(GB_FP8_BLOCK, 129, 129), 16);
    assert_int_equal(gb_row_code_bytes(GB_NVFP4, 0xFFFFFFF0), 0x7FFFFFF8);
    assert_int_equal(gb_row_code_bytes(GB_BF16, 0xFFFFFFF0), 0x1FFFFFFE0);
}

static void sizes_of_weights(void **state)
{
    size_t codes = 1, scales = 1, globals = 1;
    struct gb_error error = {""};
    struct gb_weights weights = {.format = GB_NVFP4, .experts = 3, .rows = 10, .columns = 48, .halves = 2};

    (void)state;
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_OK);
    assert_int_equal(codes, 3 * 10 * 24);
    assert_int_equal(scales, 3 * 10 * 3);
    assert_int_equal(globals, 3 * 2 * 4);
    weights.format = GB_MXFP8;
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_EINVAL);
    weights.columns = 96;
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_OK);
    assert_int_equal(codes, 3 * 10 * 96);
    assert_int_equal(scales, 3 * 10 * 3);
    assert_int_equal(globals, 0);
    weights.format = GB_NVFP4;
    weights.columns = 40;
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    assert_non_null(strstr(error.message, "40"));
    weights.columns = 0;
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_EINVAL);
    weights = (struct gb_weights){
        .format = GB_BF16, .experts = UINT32_MAX, .rows = UINT32_MAX - 1, .columns = 16, .halves = 1};
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    weights = (struct gb_weights){.format = GB_BF16, .experts = 2, .rows = 5, .columns = 7, .halves = 1};
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_OK);
    assert_int_equal(codes, 2 * 5 * 7 * 2);
    assert_int_equal(scales, 0);
    assert_int_equal(globals, 0);
    weights = (struct gb_weights){.format = GB_FP8_BLOCK, .experts = 2, .rows = 260, .columns = 130, .halves = 2};
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_OK);
    assert_int_equal(codes, 2 * 260 * 130);
    assert_int_equal(scales, 2 * 2 * 2 * 2 * 4); /* each part of 130 rows has two rows of two blocks */
    assert_int_equal(globals, 0);
    weights.rows = 261;
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    assert_non_null(strstr(error.message, "261"));
    weights.halves = 0;
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_EINVAL);
    weights.format = (enum gb_format)99;
    assert_int_equal(gb_weights_bytes(&weights, &codes, &scales, &globals, &error), GB_EINVAL);
}

/* code * scale * global, exact: at most 2 + 4 + 24 significant bits. */
static void rows_are_exact(void **state)
{
    enum { EXPERTS = 2, ROWS = 6, COLUMNS = 48 };
    uint64_t random = 8;
    struct gb_weights weights;
    double values[COLUMNS];

    (void)state;
    problem_weights(&weights, GB_NVFP4, EXPERTS, ROWS, COLUMNS, 2, DATA_CODES, &random);
    const uint8_t *codes = weights.codes, *scales = weights.scales;
    for (uint32_t expert = 0; expert < EXPERTS; expert++)
        for (uint32_t row = 0; row < ROWS; row++) {
            assert_int_equal(gb_weights_part(&weights, row), row / 3);
            gb_weights_row(&weights, expert, row, values);
            for (uint32_t i = 0; i < COLUMNS; i++) {
                size_t index = ((size_t)expert * ROWS + row) * COLUMNS + i;
                double expected = oracle_decode(ORACLE_E2M1, codes[index / 2] >> 4 * (index % 2) & 15) *
                                  oracle_decode(ORACLE_E4M3, scales[index / 16]) *
                                  (double)weights.global_scales[2 * expert + row / 3];
                assert_true(values[i] == expected);
            }
        }
    problem_weights_free(&weights);
}

static void rows_without_a_global_scale(void **state)
{
    enum { EXPERTS = 2, ROWS = 6, COLUMNS = 96 };
    const size_t start = (ROWS + 4) * COLUMNS; /* expert 1, row 4 */
    uint64_t random = 9;
    struct gb_weights weights;
    double values[COLUMNS];

    (void)state;
    problem_weights(&weights, GB_BF16, EXPERTS, ROWS, COLUMNS, 2, DATA_CODES, &random);
    const gb_bf16 *elements = weights.codes;
    gb_weights_row(&weights, 1, 4, values);
    for (uint32_t i = 0; i < COLUMNS; i++)
        assert_true(values[i] == oracle_decode(ORACLE_BF16, elements[start + i].bits));
    problem_weights_free(&weights);

    problem_weights(&weights, GB_MXFP8, EXPERTS, ROWS, COLUMNS, 2, DATA_CODES, &random);
    const uint8_t *codes = weights.codes, *scales = weights.scales;
    gb_weights_row(&weights, 1, 4, values);
    for (uint32_t i = 0; i < COLUMNS; i++)
        assert_true(values[i] ==
                    oracle_decode(ORACLE_E4M3, codes[start + i]) * oracle_e8m0_decode(scales[(start + i) / 32]));
    problem_weights_free(&weights);

    problem_weights(&weights, GB_MXFP4, EXPERTS, ROWS, COLUMNS, 2, DATA_CODES, &random);
    codes = weights.codes, scales = weights.scales;
    gb_weights_row(&weights, 1, 4, values);
    for (uint32_t i = 0; i < COLUMNS; i++)
        assert_true(values[i] == oracle_decode(ORACLE_E2M1, codes[(start + i) / 2] >> 4 * (i % 2) & 15) *
                                     oracle_e8m0_decode(scales[(start + i) / 32]));
    problem_weights_free(&weights);
}

/* Two parts of 130 rows and 300 columns: 2 x 3 blocks each, the last of 2 rows and 44 columns. */
static void rows_of_square_blocks(void **state)
{
    enum { EXPERTS = 2, ROWS = 260, COLUMNS = 300 };
    uint64_t random = 10;
    struct gb_weights weights;
    double values[COLUMNS];

    (void)state;
    problem_weights(&weights, GB_FP8_BLOCK, EXPERTS, ROWS, COLUMNS, 2, DATA_CODES, &random);
    const uint8_t *codes = weights.codes;
    const float *scales = weights.scales;
    for (uint32_t expert = 0; expert < EXPERTS; expert++)
        for (uint32_t row = 0; row < ROWS; row++) {
            uint32_t part = 2 * expert + row / 130, block_row = 2 * part + row % 130 / 128;
            gb_weights_row(&weights, expert, row, values);
            for (uint32_t i = 0; i < COLUMNS; i++)
                assert_true(values[i] ==
                            oracle_decode(ORACLE_E4M3, codes[((size_t)expert * ROWS + row) * COLUMNS + i]) *
                                (double)scales[3 * block_row + i / 128]);
        }
    problem_weights_free(&weights);
}

/* The bits of a row: its codes' own times their scales', the sign of zero included; any NaN is one. */
static void check_row(const struct gb_weights *weights, uint32_t row, const float *codes, const float *scales)
{
    const uint32_t block = gb_format_block(weights->format);
    double values[LONG_ROW];
    gb_weights_row(weights, 0, row, values);
    for (uint32_t i = 0; i < LONG_ROW; i++) {
        double expected = (double)codes[i] * ((double)scales[i / block] * (double)gb_weights_global(weights, 0, row));
        if (isnan(expected) ? !isnan(values[i]) : memcmp(&expected, &values[i], sizeof expected))
            fail_msg("%s, row %u, column %u: expected %a, got %a", gb_format_name(weights->format), row, i, expected,
                     values[i]);
    }
}

static float largest_of(const float *values, uint32_t count)
{
    float largest = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        largest = fabsf(values[i]) > largest ? fabsf(values[i]) : largest; /* no NaN is */
    return largest;
}

/* Any bits, in rows of ever fewer of them, so that their largest magnitudes differ; NaN in the first half of the rows.
 * bytes: [LONG_ROWS, 4 * LONG_ROW]. */
static void fill_rows(uint8_t *bytes, uint64_t *random)
{
    static const uint8_t kept[LONG_ROWS] = {0xFF, 0xF7, 0xBB, 0x99, 0x71, 0x13, 0x80, 0x00};
    for (size_t i = 0; i < 4 * LONG_ROW * LONG_ROWS; i++) {
        size_t row = i / (4 * LONG_ROW);
        bool nan = row < LONG_ROWS / 2 && i % 32 >= 28;
        bytes[i] = (uint8_t)(nan ? 0xFF : random_bits(random) & kept[row]);
    }
}

/* gb_weights_codes has each number by itself: rows and their largest magnitudes follow from it. */
static void long_rows_of_any_bits(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP4, GB_MXFP8, GB_BF16, GB_FP8_BLOCK, GB_FP32};
    static uint8_t code_bytes[(LONG_ROWS + 1) * 4 * LONG_ROW], scale_bytes[(LONG_ROWS + 1) * 4 * LONG_ROW];
    static float codes[LONG_ROW], scales[LONG_ROW];
    uint64_t random = 11;

    (void)state;
    fill_rows(code_bytes, &random);
    fill_rows(scale_bytes, &random);
    for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++)
        for (uint32_t row = 0; row < LONG_ROWS; row++) {
            const uint32_t blocks = (LONG_ROW + gb_format_block(formats[f]) - 1) / gb_format_block(formats[f]);
            const float global = -0.3f;
            const struct gb_weights weights = {formats[f],
                                               1,
                                               2,
                                               LONG_ROW,
                                               1,
                                               code_bytes + row * 4 * LONG_ROW,
                                               scale_bytes + row * 4 * LONG_ROW,
                                               gb_format_find(formats[f])->global ? &global : NULL};
            for (uint32_t r = 0; r < 2; r++) {
                float code, scale;
                gb_weights_codes(&weights, 0, r, codes, scales);
                check_row(&weights, r, codes, scales);
                gb_weights_largest(&weights, 0, r, &code, &scale);
                assert_true(code == largest_of(codes, LONG_ROW));
                assert_true(scale == largest_of(scales, blocks));
            }
        }
}

static void recipes_are_named(void **state)
{
    size_t count = 0;
    const struct gb_recipe *recipes = gb_recipes(&count);

    (void)state;
    assert_true(count >= 2);
    for (size_t i = 0; i < count; i++) {
        assert_true(strlen(recipes[i].name) > 2 && strlen(recipes[i].source) > 10 && strlen(recipes[i].summary) > 10);
        for (size_t other = 0; other < i; other++)
            assert_string_not_equal(recipes[i].name, recipes[other].name);
    }
    assert_string_equal(gb_recipe_default(GB_NVFP4)->name, "nvfp4.modelopt/1");
    assert_string_equal(gb_recipe_default(GB_MXFP8)->name, "mxfp8.rceil/1");
    assert_int_equal(gb_recipe_default(GB_BF16)->format, GB_BF16);
    assert_null(gb_recipe_default(GB_FP32));
    uint32_t weights = 0;
    for (int f = 0; f < 64; f++) { /* all that --format takes: each has one */
        const char *name = gb_format_name((enum gb_format)f);
        enum gb_format format;
        if (!name || !gb_format_parse(name, &format))
            continue;
        assert_non_null(gb_recipe_default(format));
        assert_int_equal(gb_recipe_default(format)->format, f);
        weights++;
    }
    assert_int_equal(weights, 5);
}

static void contracts_are_found(void **state)
{
    size_t count = 0;
    const struct gb_contract *contracts = gb_contracts(&count);

    (void)state;
    assert_true(count >= 2);
    for (size_t i = 0; i < count; i++) {
        const struct gb_contract *c = &contracts[i];
        char name[64];
        assert_ptr_equal(gb_contract_find(c->weights, c->activations, gb_order_name(c->order)), c);
        snprintf(name, sizeof name, "%s.%s.%s", gb_format_name(c->weights), gb_format_name(c->activations),
                 gb_order_name(c->order));
        assert_string_equal(c->name, name);
    }
    assert_null(gb_contract_find(GB_NVFP4, GB_BF16, "fma32/2"));
    assert_null(gb_contract_find(GB_NVFP4, GB_BF16, NULL));
    assert_null(gb_contract_find(GB_NVFP4, GB_FP32, "fma32/1"));
    assert_null(gb_contract_find(GB_FP32, GB_BF16, "fma32/1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_names),
        cmocka_unit_test(messages_are_cut_to_fit),
        cmocka_unit_test(bytes_refuse_overflow),
        cmocka_unit_test(formats_without_scales),
        cmocka_unit_test(names_of_formats),
        cmocka_unit_test(sizes_of_rows),
        cmocka_unit_test(sizes_of_weights),
        cmocka_unit_test(rows_are_exact),
        cmocka_unit_test(rows_without_a_global_scale),
        cmocka_unit_test(rows_of_square_blocks),
        cmocka_unit_test(long_rows_of_any_bits),
        cmocka_unit_test(recipes_are_named),
        cmocka_unit_test(contracts_are_found),
        KEPT_AS("test_formats"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
