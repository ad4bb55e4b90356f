/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/operator_case.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/oracle/oracle.h"

enum { CANARY = 64 };

const struct gb_quantiser *operator_rules(const char *recipe)
{
    const struct gb_recipe *found = gb_recipe_find(recipe);
    if (!found)
        fail_msg("there is no recipe %s", recipe);
    return &found->quantiser;
}

struct gb_quantisation operator_question(const struct gb_quantiser *rules, bool gated, uint32_t rows, uint32_t columns)
{
    return (struct gb_quantisation){.size = sizeof(struct gb_quantisation),
                                    .input = GB_BF16,
                                    .rows = rows,
                                    .columns = columns,
                                    .input_columns = gated ? 2 * columns : columns,
                                    .silu = GB_SILU_EXACT,
                                    .activated = GB_FP32,
                                    .product = GB_FP32,
                                    .quantiser = *rules,
                                    .bound = INFINITY,
                                    .global_scale = 1.0f};
}

static uint16_t encoded(enum gb_format input, double value)
{
    return (uint16_t)oracle_encode(input == GB_FP16 ? ORACLE_FP16 : ORACLE_BF16, (float)value);
}

/* Odd multiples of powers of two below `largest`: of those many lie halfway between codes. */
static double on_a_tie(double largest, uint64_t *state)
{
    double value = ldexp(2.0 * random_below(state, 32) + 1, (int)random_below(state, 16) - 9);
    value = value < largest ? value : largest;
    return random_below(state, 2) ? -value : value;
}

uint16_t *operator_input(const struct gb_quantisation *q, enum operator_data kind, uint64_t seed)
{
    uint32_t block = q->quantiser.block_columns;
    bool gated = q->input_columns != q->columns;
    uint16_t *input = malloc(sizeof *input * q->rows * q->input_columns);
    double largest = (double)q->quantiser.largest;
    uint16_t nonfinite = q->input == GB_FP16 ? 0x7C00 : 0x7F80; /* the exponent of NaN and Inf */

    assert_non_null(input);
    for (uint32_t row = 0; row < q->rows; row++)
        for (uint32_t i = 0; i < q->input_columns; i++) {
            uint16_t *out = &input[(size_t)row * q->input_columns + i];
            uint32_t in_block = i % q->columns % block;
            bool gate = gated && i < q->columns, zeros = (i / block + row) % 7 == 3;
            if (kind == OPERATOR_GAUSSIAN)
                *out = encoded(q->input, random_gaussian(&seed) * (gate ? 2 : 1));
            else if (kind == OPERATOR_TIES && gate)
                *out = encoded(q->input, 32); /* silu leaves it as it is */
            else if (kind == OPERATOR_TIES)
                *out = encoded(q->input, (in_block == 3 ? largest : on_a_tie(largest, &seed)) / (gated ? 32 : 1));
            else if (zeros)
                *out = (uint16_t)(random_below(&seed, 2) << 15);
            else if (random_below(&seed, 2))
                *out = encoded(q->input, ldexp(random_gaussian(&seed), (int)random_below(&seed, 25) - 18));
            else if (random_below(&seed, 48))
                *out = encoded(q->input, random_gaussian(&seed));
            else
                *out = (uint16_t)(random_bits(&seed) | (random_below(&seed, 4) ? 0 : nonfinite));
        }
    return input;
}

struct outputs {
    size_t code_bytes, scale_bytes;
    uint8_t *codes, *scales; /* each with canaries around it */
};

static struct outputs outputs_new(const struct gb_quantisation *q, int poison)
{
    struct outputs o;
    assert_int_equal(gb_quantiser_bytes(&q->quantiser, q->rows, q->columns, &o.code_bytes, &o.scale_bytes, NULL),
                     GB_OK);
    o.codes = malloc(o.code_bytes + 2 * CANARY);
    o.scales = malloc(o.scale_bytes + 2 * CANARY);
    assert_true(o.codes && o.scales);
    memset(o.codes, poison, o.code_bytes + 2 * CANARY);
    memset(o.scales, poison, o.scale_bytes + 2 * CANARY);
    return o;
}

static void expect_bytes(const uint8_t *expected, const uint8_t *actual, size_t bytes, size_t per_row, const char *what,
                         const char *label)
{
    for (size_t i = 0; i < bytes + 2 * CANARY; i++)
        if (expected[i] != actual[i])
            fail_msg("%s: %s byte %zd (row %zu, byte %zu): expected %02X, got %02X", label, what, (ssize_t)i - CANARY,
                     (i - CANARY) / per_row, (i - CANARY) % per_row, expected[i], actual[i]);
}

static void expect_once(const struct gb_quantisation *q, const uint16_t *input, const struct outputs *expected,
                        int poison, const char *label)
{
    struct outputs o = outputs_new(q, poison);
    struct gb_arguments a = {
        .size = sizeof a, .quantise = q, .values = input, .codes = o.codes + CANARY, .scales = o.scales + CANARY};
    struct gb_error error = {""};
    enum gb_status status =
        q->input_columns == q->columns ? gb_reference_quantise(&a, &error) : gb_reference_silu_mul_quantise(&a, &error);

    if (status != GB_OK)
        fail_msg("%s: %s", label, error.message);
    for (int end = 0; end < 2; end++) { /* the canaries of this poison */
        memset(expected->codes + end * (CANARY + o.code_bytes), poison, CANARY);
        memset(expected->scales + end * (CANARY + o.scale_bytes), poison, CANARY);
    }
    expect_bytes(expected->scales, o.scales, o.scale_bytes, o.scale_bytes / q->rows, "scale", label);
    expect_bytes(expected->codes, o.codes, o.code_bytes, o.code_bytes / q->rows, "code", label);
    free(o.codes);
    free(o.scales);
}

static void place_scales(const struct gb_quantisation *q, uint32_t row, const uint8_t *scales, size_t each,
                         uint8_t *all)
{
    uint32_t blocks = q->columns / q->quantiser.block_columns;

    for (uint32_t b = 0; b < blocks; b++)
        memcpy(all + each * (q->layout == GB_SCALES_TRANSPOSED ? b * q->rows + row : row * blocks + b),
               scales + each * b, each);
}

size_t expect_operator(const struct gb_quantisation *q, const uint16_t *input, operator_oracle oracle,
                       const char *label)
{
    struct outputs expected = outputs_new(q, 0);
    size_t each = q->quantiser.scale == GB_SCALE_FP32 ? sizeof(float) : 1, nonzero = 0;
    size_t input_bytes = sizeof *input * q->rows * q->input_columns;
    float *values = malloc(sizeof *values * q->rows * q->columns);
    float *scales = malloc(sizeof *scales * q->columns);
    uint16_t *copy = malloc(input_bytes);

    assert_true(values && scales && copy);
    memcpy(copy, input, input_bytes);
    oracle_operator_values(q, input, values);
    for (uint32_t row = 0; row < q->rows; row++) {
        oracle(q, values + (size_t)row * q->columns, expected.codes + CANARY + row * (expected.code_bytes / q->rows),
               scales);
        place_scales(q, row, (const uint8_t *)scales, each, expected.scales + CANARY);
    }
    expect_once(q, input, &expected, 0xA5, label);
    expect_once(q, input, &expected, 0x5A, label);
    assert_memory_equal(input, copy, input_bytes);
    for (size_t i = 0; i < expected.code_bytes; i++)
        nonzero += (expected.codes[CANARY + i] & 0x7F) != 0;
    free(expected.codes);
    free(expected.scales);
    free(values);
    free(scales);
    free(copy);
    return nonzero;
}
