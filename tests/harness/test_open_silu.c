/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes and scales of silu_mul_quantise whose SiLU is an FP32 evaluation of its own: five of them are admissible
 * everywhere, over recipes, data and roundings, and what is a little further off, or has another mistake, is not.
 */
#include <math.h>

#include "fixtures/fixtures.h"
#include "harness/judge/check_quantise.h"
#include "harness/faults/quantise_as.h"
#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/check.h"

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

/* What a kernel with this silu makes of the fixture. */
static struct gb_outputs *outputs_of(const struct gb_fixture *f, silu_function *silu)
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
    assert_int_equal(gb_quantiser_run(&q->quantiser, values, q->rows, q->columns, q->global_scale, q->bound,
                                      outputs->codes, outputs->scales, &error),
                     GB_OK);
    free(values);
    return outputs;
}

static struct gb_fixture *make(const char *recipe, const char *generator, bool rounds)
{
    struct gb_fixture *f;
    struct gb_error error;
    struct gb_quantisation q = {.size = sizeof q,
                                .input = GB_BF16,
                                .rows = 32,
                                .columns = 512,
                                .input_columns = 1024,
                                .silu = GB_SILU_EXACT,
                                .activated = rounds ? GB_BF16 : GB_FP32,
                                .product = rounds ? GB_BF16 : GB_FP32,
                                .quantiser = gb_recipe_find(recipe)->quantiser,
                                .bound = INFINITY,
                                .global_scale = 1.0f};
    assert_int_equal(gb_fixture_new_quantise(GB_SILU_MUL_QUANTISE, &q, recipe, &f, &error), GB_OK);
    snprintf(f->generator, sizeof f->generator, "%s", generator);
    f->seed = 3;
    assert_int_equal(gb_generate_values(f, &error), GB_OK);
    return f;
}

static const char *const recipes[] = {"nvfp4.trtllm/1", "nvfp4.te/1",       "mxfp8.rceil/1",     "mxfp4.vllm/1",
                                      "fp8g128.vllm/1", "fp8g128.trtllm/1", "int8g128.sglang/1", "fp8g64.vllm-fused/1"};
static const char *const generators[] = {"gaussian/1", "ties/1", "edge/1", "nonfinite/1"};

/* Calls `each` for every fixture, with the reference's outputs. */
static void for_fixtures(void (*each)(const struct gb_fixture *f, const struct gb_outputs *reference))
{
    struct gb_error error;
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++)
        for (size_t g = 0; g < sizeof generators / sizeof *generators; g++)
            for (int rounds = 0; rounds < 2; rounds++) {
                struct gb_fixture *f = make(recipes[r], generators[g], rounds);
                struct gb_outputs *reference;
                assert_int_equal(quantise_reference(f, f->quantisation.rows, &reference, &error), GB_OK);
                each(f, reference);
                gb_outputs_free(reference);
                gb_fixture_free(f);
            }
}

static struct quantise_check check(const struct gb_fixture *f, const struct gb_outputs *reference,
                                   const struct gb_outputs *outputs, bool open)
{
    struct quantise_check k;
    struct gb_error error;
    assert_int_equal(check_quantise(f, reference, outputs, open, &k, &error), GB_OK);
    return k;
}

static uint64_t differing, wrong;

static void expect_admissible(const struct gb_fixture *f, const struct gb_outputs *reference)
{
    silu_function *const all[] = {by_division, by_reciprocal, by_exp2, in_double, by_fast_exp};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct gb_outputs *outputs = outputs_of(f, all[i]);
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
    for_fixtures(expect_admissible);
    assert_true(differing > 500);
    assert_int_equal(differing, wrong);
}

static uint64_t caught, tried;

static void expect_wrong(const struct gb_fixture *f, const struct gb_outputs *reference)
{
    struct gb_outputs *outputs = outputs_of(f, a_little_off);
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
    for_fixtures(expect_wrong);
    if (4 * caught < 3 * tried || tried < 24)
        fail_msg("seen on %llu of %llu fixtures", (unsigned long long)caught, (unsigned long long)tried);
}

static void expect_places(const struct gb_fixture *f, const struct gb_outputs *reference)
{
    const struct gb_quantisation *q = &f->quantisation;
    struct gb_outputs *outputs = outputs_of(f, by_division);
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
    for_fixtures(expect_places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admissible),
        cmocka_unit_test(test_too_far),
        cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
