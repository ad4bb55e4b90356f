/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes and scales of silu_mul_quantise whose SiLU is an FP32 evaluation of its own, and whose quantiser works row by
 * row or is the oracle's: they are admissible everywhere, over recipes, data and roundings, and what is a little
 * further off, or has another mistake, is not. `test_open_silu all` judges right ones by every recipe.
 */
#include <math.h>

#include "fixtures/fixtures.h"
#include "harness/judge/check_quantise.h"
#include "harness/faults/quantise_as.h"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/oracle/oracle.h"
#include "tests/support/check.h"

enum { COLUMNS = 512 };

typedef float silu_function(float x);

static float by_division(float x)
{
    return x / (1.0f + expf(-x));
}

static float by_reciprocal(float x)
{
    return x * (1.0f / (1.0f + expf(-x)));
}

static float by_exp2(float x)
{
    return x / (1.0f + exp2f(-1.44269504f * x));
}

static float in_double(float x)
{
    return (float)((double)x / (1.0 + exp(-(double)x)));
}

/* A fast exponential: 2^x with the last two bits of its fraction off. */
static float by_fast_exp(float x)
{
    float e = exp2f(-1.44269504f * x);
    return isfinite(e) && e > 0x1p-100f ? x / (1.0f + bits_float(float_bits(e) ^ 2)) : x / (1.0f + e);
}

/* Of negative numbers by an exponential that does not overflow. */
static float by_sign(float x)
{
    float e = expf(-fabsf(x));
    return x < 0.0f ? x * (e / (1.0f + e)) : x / (1.0f + e);
}

/* The reciprocal by an estimate of about 12 bits and two steps of Newton's. */
static float by_newton(float x)
{
    float d = 1.0f + expf(-x), r;
    if (!isfinite(d) || d > 0x1p120f)
        return by_division(x);
    r = bits_float(float_bits(1.0f / d) & 0xFFFFF000);
    for (int step = 0; step < 2; step++)
        r = fmaf(r, fmaf(-d, r, 1.0f), r);
    return x * r;
}

/* Wider, and rounded once too often. */
static float through_long(float x)
{
    return (float)(double)((long double)x / (1.0L + expl(-(long double)x)));
}

static float a_little_off(float x)
{
    return by_division(x) * (1.0f + 0x1p-14f);
}

static float rounded_to(enum gb_format format, float value)
{
    return format == GB_BF16   ? gb_bf16_decode(gb_bf16_encode(value))
           : format == GB_FP16 ? gb_fp16_decode(gb_fp16_encode(value))
                               : value;
}

static float input_at(const struct gb_fixture *f, size_t i)
{
    return f->quantisation.input == GB_FP16 ? gb_fp16_decode(f->values[i]) : gb_bf16_decode((gb_bf16){f->values[i]});
}

enum quantiser { ALL_ROWS, LAST_ROW_FIRST, BY_ORACLE, QUANTISERS };

/* One row by the oracle, which has a byte for each code. */
static void quantise_by_oracle(const struct gb_quantisation *q, const float *values, uint8_t *codes, void *scales)
{
    uint8_t apart[COLUMNS], scale_codes[COLUMNS];
    float scale_values[COLUMNS];
    oracle_quantise(&q->quantiser, values, 1, q->columns, q->global_scale, q->bound, apart, scale_codes, scale_values);
    for (uint32_t i = 0; i < q->columns; i++)
        if (q->quantiser.element != GB_E2M1)
            codes[i] = apart[i];
        else if (i % 2)
            codes[i / 2] = (uint8_t)(apart[i - 1] | apart[i] << 4);
    if (q->quantiser.scale == GB_SCALE_FP32)
        memcpy(scales, scale_values, sizeof *scale_values * (q->columns / q->quantiser.block_columns));
    else
        memcpy(scales, scale_codes, q->columns / q->quantiser.block_columns);
}

static void quantise(const struct gb_quantisation *q, enum quantiser how, const float *values,
                     struct gb_outputs *outputs)
{
    struct gb_error error;
    const uint32_t rows = how == ALL_ROWS ? q->rows : 1;
    size_t codes, scales;
    assert_int_equal(gb_quantiser_bytes(&q->quantiser, rows, q->columns, &codes, &scales, &error), GB_OK);
    for (uint32_t row = q->rows; row > 0; row -= rows) {
        const size_t at = (row - rows) / rows;
        const float *from = values + at * rows * q->columns;
        uint8_t *to = (uint8_t *)outputs->codes + at * codes, *to_scales = (uint8_t *)outputs->scales + at * scales;
        if (how == BY_ORACLE)
            quantise_by_oracle(q, from, to, to_scales);
        else
            assert_int_equal(gb_quantiser_run(&q->quantiser, from, rows, q->columns, q->global_scale, q->bound, to,
                                              to_scales, &error),
                             GB_OK);
    }
}

/* What a kernel with this silu makes of the fixture. */
static struct gb_outputs *outputs_of(const struct gb_fixture *f, silu_function *silu, enum quantiser how)
{
    const struct gb_quantisation *q = &f->quantisation;
    struct gb_outputs *outputs;
    struct gb_error error;
    float *values = malloc(sizeof *values * q->rows * q->columns);
    assert_non_null(values);
    assert_int_equal(gb_outputs_new_codes(q, &outputs, &error), GB_OK);
    for (size_t row = 0; row < q->rows; row++)
        for (uint32_t c = 0; c < q->columns; c++) {
            size_t at = row * q->input_columns + c;
            float gate = input_at(f, at), up = input_at(f, at + q->columns), product;
            product = rounded_to(q->activated, gate < -87.0f ? gb_silu_as(GB_SILU_DIVIDE, gate) : silu(gate)) * up;
            values[row * q->columns + c] = isnan(product) ? NAN : rounded_to(q->product, product);
        }
    quantise(q, how, values, outputs);
    free(values);
    return outputs;
}

static struct gb_fixture *make(const struct gb_recipe *recipe, const char *generator, enum gb_format input, bool rounds,
                               uint64_t seed)
{
    struct gb_fixture *f;
    struct gb_error error;
    struct gb_quantisation q = {.size = sizeof q,
                                .input = input,
                                .rows = 32,
                                .columns = COLUMNS,
                                .input_columns = 2 * COLUMNS,
                                .silu = GB_SILU_EXACT,
                                .activated = rounds ? input : GB_FP32,
                                .product = rounds ? input : GB_FP32,
                                .quantiser = recipe->quantiser,
                                .bound = INFINITY,
                                .global_scale = 1.0f};
    if (gb_fixture_new_quantise(GB_SILU_MUL_QUANTISE, &q, recipe->name, &f, &error) != GB_OK)
        fail_msg("%s: %s", recipe->name, error.message);
    snprintf(f->generator, sizeof f->generator, "%s", generator);
    f->seed = seed;
    assert_int_equal(gb_generate_values(f, &error), GB_OK);
    return f;
}

static const char *const some[] = {"nvfp4.trtllm/1", "nvfp4.te/1",       "mxfp8.rceil/1",     "mxfp4.vllm/1",
                                   "fp8g128.vllm/1", "fp8g128.trtllm/1", "int8g128.sglang/1", "fp8g64.vllm-fused/1"};
static const char *const generators[] = {"gaussian/1", "ties/1", "edge/1", "nonfinite/1"};

static bool whole;

/* One of some, or of all that the operator takes. */
static bool is_tried(const struct gb_recipe *recipe)
{
    const struct gb_quantiser *rules = &recipe->quantiser;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (!strcmp(some[i], recipe->name))
            return true;
    if (rules->four_over_six != GB_SIX) /* which leaves nothing open */
        return false;
    return whole && rules->element && rules->block_rows == 1 && rules->block_columns >= 16 &&
           rules->block_columns <= 128 && (rules->scale != GB_SCALE_FP32 || rules->block_columns >= 64);
}

static void for_fixture(void (*each)(const struct gb_fixture *f, const struct gb_outputs *reference),
                        struct gb_fixture *f)
{
    struct gb_error error;
    struct gb_outputs *reference;
    assert_int_equal(quantise_reference(f, f->quantisation.rows, &reference, &error), GB_OK);
    each(f, reference);
    gb_outputs_free(reference);
    gb_fixture_free(f);
}

/* Calls `each` for every fixture, or for half of them, with the reference's outputs. */
static void for_fixtures(void (*each)(const struct gb_fixture *f, const struct gb_outputs *reference), bool half)
{
    enum { SEEDS = 2 };
    size_t count;
    const struct gb_recipe *recipe = gb_recipes(&count);
    for (size_t r = 0; r < count; r++)
        for (size_t g = 0; is_tried(&recipe[r]) && g < sizeof generators / sizeof *generators; g++)
            for (uint32_t v = half ? (r + g) % 2 : 0; v < (whole ? 4 * SEEDS : 2); v += half ? 2 : 1)
                for_fixture(each, make(&recipe[r], generators[g], v / 2 % 2 ? GB_FP16 : GB_BF16, v % 2, 3 + v / 4));
}

static struct quantise_check check(const struct gb_fixture *f, const struct gb_outputs *reference,
                                   const struct gb_outputs *outputs, bool open)
{
    struct quantise_check k;
    struct gb_error error;
    assert_int_equal(check_quantise(f, reference, outputs, open, &k, &error), GB_OK);
    return k;
}

static uint64_t differing, wrong, cases;

static void expect_admissible(const struct gb_fixture *f, const struct gb_outputs *reference)
{
    silu_function *const all[] = {by_division, by_reciprocal, by_exp2,   in_double,
                                  by_fast_exp, by_sign,       by_newton, through_long};
    enum { ALL = sizeof all / sizeof *all, SOME = 2 };
    for (size_t n = 0; n < (whole ? ALL : SOME); n++, cases++) {
        const size_t i = whole ? n : cases % (ALL + 1) % ALL; /* others in every fixture */
        struct gb_outputs *outputs = outputs_of(f, all[i], (enum quantiser)(cases % QUANTISERS));
        struct quantise_check k = check(f, reference, outputs, true);
        if (array_wrong(&k, &k.codes) || array_wrong(&k, &k.scales))
            fail_msg("%s, %s, silu %zu: %llu codes, %llu scales; first code at %u, %u: %x, not %x", f->recipe,
                     f->generator, i, (unsigned long long)array_wrong(&k, &k.codes),
                     (unsigned long long)array_wrong(&k, &k.scales), k.codes.row, k.codes.column, k.codes.got,
                     k.codes.reference);
        differing += k.codes.mismatching + k.scales.mismatching;
        k = check(f, reference, outputs, false);
        wrong += array_wrong(&k, &k.codes) + array_wrong(&k, &k.scales);
        gb_outputs_free(outputs);
    }
}

/* Every evaluation is admissible where it is declared, and no difference where it is not. */
static void test_admissible(void **state)
{
    (void)state;
    for_fixtures(expect_admissible, false);
    assert_true(differing > 300);
    assert_int_equal(differing, wrong);
    print_message("%llu right kernels, no alarm\n", (unsigned long long)cases);
}

static uint64_t caught, tried;

static void expect_wrong(const struct gb_fixture *f, const struct gb_outputs *reference)
{
    struct gb_outputs *outputs = outputs_of(f, a_little_off, ALL_ROWS);
    struct quantise_check k = check(f, reference, outputs, true);
    bool differs = k.codes.mismatching + k.scales.mismatching > 0;
    tried += differs;
    caught += array_wrong(&k, &k.codes) + array_wrong(&k, &k.scales) > 0;
    gb_outputs_free(outputs);
}

/* A silu 2^-14 too large is not, wherever there are enough values to show it. */
static void test_too_far(void **state)
{
    (void)state;
    for_fixtures(expect_wrong, true);
    if (4 * caught < 3 * tried || tried < 20)
        fail_msg("seen on %llu of %llu fixtures", (unsigned long long)caught, (unsigned long long)tried);
}

static void expect_places(const struct gb_fixture *f, const struct gb_outputs *reference)
{
    const struct gb_quantisation *q = &f->quantisation;
    struct gb_outputs *outputs = outputs_of(f, by_division, ALL_ROWS);
    struct gb_code_arrays a = gb_code_arrays(q);
    uint8_t *codes = outputs->codes;
    memmove(codes + 1, codes, a.codes - 1);
    struct quantise_check k = check(f, reference, outputs, true);
    assert_true(array_wrong(&k, &k.codes) > a.codes / 16);
    gb_outputs_free(outputs);
}

/* Codes of other places are not, however open SiLU is. */
static void test_places(void **state)
{
    (void)state;
    for_fixtures(expect_places, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admissible),
        cmocka_unit_test(test_too_far),
        cmocka_unit_test(test_places),
    };
    const struct CMUnitTest right[] = {cmocka_unit_test(test_admissible)};
    whole = sweeps_are_whole(argc, argv);
    return whole ? cmocka_run_group_tests(right, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}
