/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of quant/recipes/conversions.c against the oracle, and the encoders of quant/ against the rows that name
 * them. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"

/* Every how manieth case of the sweeps is run. */
static uint32_t stride = 13;

static enum oracle_format element(enum gb_codec codec)
{
    static const enum oracle_format elements[] = {
        [GB_CODEC_E2M1] = ORACLE_E2M1, [GB_CODEC_E3M2] = ORACLE_E3M2,         [GB_CODEC_E2M3] = ORACLE_E2M3,
        [GB_CODEC_E4M3] = ORACLE_E4M3, [GB_CODEC_E4M3FNUZ] = ORACLE_E4M3FNUZ, [GB_CODEC_E5M2] = ORACLE_E5M2,
        [GB_CODEC_BF16] = ORACLE_BF16, [GB_CODEC_FP16] = ORACLE_FP16,
    };
    return elements[codec];
}

/* The enumerators of the two correspond in sequence; the library's begin at 1, so that 0 is none. */
static struct oracle_policy policy(const struct gb_conversion *c)
{
    return (struct oracle_policy){.rounding = (int)c->rounding - 1,
                                  .largest = c->largest,
                                  .overflow = (int)c->overflow - 1,
                                  .infinity = (int)c->infinity - 1,
                                  .nan = c->nan,
                                  .nan_sign = (int)c->nan_sign - 1,
                                  .zero = (int)c->zero - 1};
}

static void check(const struct gb_conversion *c, const struct oracle_policy *p, float value)
{
    unsigned expected =
        c->codec == GB_CODEC_E8M0 ? oracle_e8m0_convert(p, value) : oracle_convert(element(c->codec), p, value);
    unsigned actual = gb_convert(c, value);
    if (actual != expected)
        fail_msg("%s: %a (%08X): expected code %02X, got %02X", c->name, (double)value, float_bits(value), expected,
                 actual);
}

/* Every code's value, the tie above it, their neighbours, with both signs; of formats of 16 bits a part of the codes,
 * with the last ones of each exponent. */
static void check_ties(const struct gb_conversion *c, const struct oracle_policy *p)
{
    unsigned codes = 1u << (gb_codec_bits(c->codec) - (c->codec != GB_CODEC_E8M0));
    for (unsigned code = 0; code < codes; code += stride == 1 || codes <= 256 || code % 128 > 119 ? 1 : 3) {
        float low = gb_codec_decode(c->codec, (uint16_t)code), high = gb_codec_decode(c->codec, (uint16_t)(code + 1));
        float points[] = {low, low / 2 + high / 2, high, 1.5f * low};
        for (unsigned i = 0; i < 4; i++)
            for (int side = 0; side < 6; side++) {
                float value = side % 3 == 0   ? points[i]
                              : side % 3 == 1 ? nextafterf(points[i], 0)
                                              : nextafterf(points[i], INFINITY);
                check(c, p, side < 3 ? value : -value);
            }
    }
}

static void every_row_is_the_oracle(void **state)
{
    (void)state;
    size_t count;
    const struct gb_conversion *rows = gb_conversions(&count);
    const uint32_t third = stride > 1 ? 3 : 1;
    assert_true(count >= 30);
    for (size_t r = 0; r < count; r++) {
        struct oracle_policy p = policy(&rows[r]);
        for (uint32_t code = (uint32_t)r % third; code < 65536; code += third)
            check(&rows[r], &p, bits_float(code << 16));
        check(&rows[r], &p, INFINITY);
        check(&rows[r], &p, -INFINITY);
        for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 9973 * stride)
            check(&rows[r], &p, bits_float((uint32_t)bits));
        check_ties(&rows[r], &p);
    }
}

/* Not only the combinations that libraries have: every policy of every format that makes sense. */
static void every_policy_is_the_oracle(void **state)
{
    (void)state;
    size_t count;
    const struct gb_conversion *rows = gb_conversions(&count);
    for (size_t r = 0; r < count; r++) {
        struct gb_conversion c = rows[r];
        bool e8m0 = c.codec == GB_CODEC_E8M0, fnuz = c.codec == GB_CODEC_E4M3FNUZ;
        bool nan = c.codec != GB_CODEC_E2M1 && c.codec != GB_CODEC_E2M3 && c.codec != GB_CODEC_E3M2;
        for (int i = 0; i < 4 * 2 * 4; i++) {
            c.rounding = (enum gb_conversion_rounding)(i % 4 + 1);
            if (e8m0 && c.rounding == GB_CONVERT_TIES_TO_ZERO)
                continue;
            c.overflow = i / 4 % 2 && nan ? GB_TO_NAN : GB_TO_LARGEST;
            c.infinity = c.overflow == GB_TO_NAN ? GB_TO_LARGEST : nan ? GB_TO_NAN : GB_TO_LARGEST;
            if (!e8m0 && !fnuz)
                c.zero = (enum gb_conversion_zero)(i / 8 + 1);
            struct oracle_policy p = policy(&c);
            for (uint32_t code = (uint32_t)i % stride; code < 65536; code += stride + code % 3)
                check(&c, &p, bits_float(code << 16));
            if (gb_codec_bits(c.codec) <= 8)
                check_ties(&c, &p);
        }
    }
}

/* The figures that the sources give, by hand. */
static void landmarks(void **state)
{
    (void)state;
    const float nan = bits_float(0x7FC00000), minus_nan = bits_float(0xFFC00000);
    const struct {
        const char *name;
        float value;
        unsigned code;
    } rows[] = {
        {"e4m3.cuda-nosat", 464, 0x7E},
        {"e4m3.cuda-nosat", 465, 0x7F},
        {"e4m3.cuda-nosat", -INFINITY, 0xFF},
        {"e4m3.cuda-nosat", minus_nan, 0x7F},
        {"e4m3.torch-2.12", 465, 0x7F},
        {"e4m3.torch-2.12", minus_nan, 0xFF},
        {"e4m3.torch-2.13", 1e9f, 0x7E},
        {"e4m3.torch-2.13", -INFINITY, 0xFE},
        {"e4m3.torch-2.13", minus_nan, 0xFF},
        {"e4m3.fmax-fmin", minus_nan, 0x7E},
        {"e4m3.fmin-fmax", nan, 0xFE},
        {"e4m3fnuz.hip-satfinite", 1e9f, 0x7F},
        {"e4m3fnuz.hip-satfinite", INFINITY, 0x80},
        {"e4m3fnuz.ml_dtypes", 248, 0x80},
        {"e4m3fnuz.ml_dtypes", -0.0f, 0},
        {"e4m3fnuz.vllm-224", 240, 0x7E},
        {"e4m3fnuz.vllm-224", -INFINITY, 0xFE},
        {"e4m3fnuz.vllm-224", minus_nan, 0x7E},
        {"e5m2.cuda-nosat", 61440, 0x7C},
        {"e5m2.ml_dtypes", minus_nan, 0xFE},
        {"e2m1.ml_dtypes", nan, 0x8},
        {"e2m1.ml_dtypes", minus_nan, 0x0},
        {"e2m1.modelopt", -0.0f, 0x0},
        {"e2m1.modelopt", -0.25f, 0x8},
        {"e2m1.modelopt-mxfp4", 0, 0x8},
        {"e2m1.modelopt-mxfp4", 0.1f, 0x0},
        {"e2m1.modelopt-mxfp4", 0.75f, 0x1},
        {"e2m1.deepgemm", -0.25f, 0x0},
        {"e2m1.deepgemm", 3.5f, 0x5},
        {"e2m1.cuda-rz", 5.9f, 0x6},
        {"e8m0.cuda-rp-satfinite", 0x1.000002p127f, 0xFE},
        {"e8m0.cuda-rp-nosat", 0x1.000002p127f, 0xFF},
        {"e8m0.cuda-rz-satfinite", 0x1.fp-127f, 0x00},
        {"e8m0.torch", 1.5f, 0x80},
        {"e8m0.torch", -3, 0x81},
        {"e8m0.torch", 0x1.1p-127f, 0x01},
        {"e8m0.ml_dtypes", -1, 0xFF},
        {"e8m0.ml_dtypes", 0, 0xFF},
        {"bf16.cuda", minus_nan, 0x7FFF},
        {"fp16.ieee", 65520, 0x7C00},
        {"fp16.saturate", INFINITY, 0x7BFF},
        {"bf16.saturate", -3.4e38f, 0xFF7F},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct gb_conversion *c = gb_conversion_find(rows[i].name);
        assert_non_null(c);
        unsigned code = gb_convert(c, rows[i].value);
        if (code != rows[i].code)
            fail_msg("%s: %a: expected %02X, got %02X", rows[i].name, (double)rows[i].value, rows[i].code, code);
    }
    assert_null(gb_conversion_find("e4m3"));
}

static unsigned encode(enum gb_codec codec, float value)
{
    switch (codec) {
    case GB_CODEC_E2M1:
        return gb_e2m1_encode(value).bits;
    case GB_CODEC_E3M2:
        return gb_e3m2_encode(value).bits;
    case GB_CODEC_E2M3:
        return gb_e2m3_encode(value).bits;
    case GB_CODEC_E4M3:
        return gb_e4m3_encode(value).bits;
    case GB_CODEC_E4M3FNUZ:
        return gb_e4m3fnuz_encode(value).bits;
    case GB_CODEC_E5M2:
        return gb_e5m2_encode(value).bits;
    case GB_CODEC_E8M0:
        return gb_e8m0_encode(value).bits;
    case GB_CODEC_BF16:
        return gb_bf16_encode(value).bits;
    case GB_CODEC_FP16:
        return gb_fp16_encode(value);
    }
    return 0;
}

static void encoders_are_the_rows_that_name_them(void **state)
{
    (void)state;
    static const char *const names[] = {"e2m1.cuda",
                                        "e3m2.cuda",
                                        "e2m3.cuda",
                                        "e4m3.cuda-satfinite",
                                        "e4m3fnuz.saturate",
                                        "e5m2.cuda-satfinite",
                                        "e8m0.cuda-rp-satfinite",
                                        "bf16.ieee",
                                        "fp16.ieee"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        const struct gb_conversion *c = gb_conversion_find(names[n]);
        assert_non_null(c);
        const uint32_t step = 751 * stride;
        for (uint64_t i = 0; i < 65536 + ((uint64_t)1 << 32) / step; i++) {
            uint32_t bits = (uint32_t)(i < 65536 ? i << 16 : (i - 65536) * step);
            unsigned expected = encode(c->codec, bits_float(bits)), actual = gb_convert(c, bits_float(bits));
            if (actual != expected)
                fail_msg("%s(%08X): encoder %02X, row %02X", names[n], bits, expected, actual);
        }
    }
}

static void array_is_one_by_one(void **state)
{
    (void)state;
    const float values[] = {-0.0f, 0.3f, -448, 1e30f, 7};
    uint16_t codes[6] = {[5] = 0xBEEF};
    const struct gb_conversion *c = gb_conversion_find("e4m3.cuda-nosat");
    gb_convert_array(c, values, 5, codes);
    for (int i = 0; i < 5; i++)
        assert_int_equal(codes[i], gb_convert(c, values[i]));
    assert_int_equal(codes[5], 0xBEEF);
}

/* The largest code that comes out is the format's, but for one row; NaN becomes what each library makes of it. */
static void codes_of_rows(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned nan;
    } expected[] = {{"e2m1.cuda", 0x7},
                    {"e2m1.cuda-rz", 0x7},
                    {"e2m1.ml_dtypes", 0x0},
                    {"e2m1.modelopt", 0x7},
                    {"e2m1.modelopt-mxfp4", 0x0},
                    {"e2m1.deepgemm", 0x0},
                    {"e3m2.cuda", 0x1F},
                    {"e3m2.cuda-rz", 0x1F},
                    {"e3m2.ml_dtypes", 0x0},
                    {"e2m3.cuda", 0x1F},
                    {"e2m3.cuda-rz", 0x1F},
                    {"e2m3.ml_dtypes", 0x0},
                    {"e4m3.cuda-satfinite", 0x7F},
                    {"e4m3.cuda-nosat", 0x7F},
                    {"e4m3.cuda-double-satfinite", 0x7F},
                    {"e4m3.ml_dtypes", 0x7F},
                    {"e4m3.torch-2.12", 0x7F},
                    {"e4m3.torch-2.13", 0x7F},
                    {"e4m3.fmax-fmin", 0x7E},
                    {"e4m3.fmin-fmax", 0xFE},
                    {"e4m3fnuz.saturate", 0x80},
                    {"e4m3fnuz.hip-satfinite", 0x80},
                    {"e4m3fnuz.ml_dtypes", 0x80},
                    {"e4m3fnuz.torch", 0x80},
                    {"e4m3fnuz.vllm-224", 0x7E},
                    {"e5m2.cuda-satfinite", 0x7F},
                    {"e5m2.cuda-nosat", 0x7F},
                    {"e5m2.ml_dtypes", 0x7E},
                    {"e5m2.torch", 0x7F},
                    {"e8m0.cuda-rp-satfinite", 0xFF},
                    {"e8m0.cuda-rp-nosat", 0xFF},
                    {"e8m0.cuda-rz-satfinite", 0xFF},
                    {"e8m0.cuda-rz-nosat", 0xFF},
                    {"e8m0.torch", 0xFF},
                    {"e8m0.ml_dtypes", 0xFF},
                    {"bf16.ieee", 0x7FC0},
                    {"bf16.cuda", 0x7FFF},
                    {"bf16.saturate", 0x7FC0},
                    {"fp16.ieee", 0x7E00},
                    {"fp16.cuda", 0x7FFF},
                    {"fp16.saturate", 0x7E00}};
    size_t count;
    const struct gb_conversion *rows = gb_conversions(&count);
    assert_int_equal(count, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < count; i++) {
        uint16_t largest = 0;
        for (uint32_t code = 0; code < 1u << (gb_codec_bits(rows[i].codec) - (rows[i].codec != GB_CODEC_E8M0)); code++)
            if (isfinite(gb_codec_decode(rows[i].codec, (uint16_t)code)))
                largest = (uint16_t)code;
        if (!strcmp(rows[i].name, "e4m3fnuz.vllm-224"))
            assert_true(gb_codec_decode(rows[i].codec, largest = 0x7E) == 224.0f);
        if (strcmp(rows[i].name, expected[i].name) || rows[i].nan != expected[i].nan || rows[i].largest != largest)
            fail_msg("%s, NaN %X, largest %X: not %s, NaN %X, largest %X", rows[i].name, rows[i].nan, rows[i].largest,
                     expected[i].name, expected[i].nan, largest);
    }
}

static void rows_are_complete(void **state)
{
    (void)state;
    size_t count;
    const struct gb_conversion *rows = gb_conversions(&count);
    for (size_t i = 0; i < count; i++) {
        const char *name = gb_codec_name(rows[i].codec);
        assert_non_null(name);
        assert_memory_equal(rows[i].name, name, strlen(name));
        assert_int_equal(rows[i].name[strlen(name)], '.');
        assert_ptr_equal(gb_conversion_find(rows[i].name), &rows[i]);
        assert_true(strlen(rows[i].source) > 10);
        assert_true(isfinite(gb_codec_decode(rows[i].codec, rows[i].largest)));
    }
    assert_null(gb_codec_name((enum gb_codec)0));
    assert_int_equal(gb_codec_bits((enum gb_codec)99), 0);
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        stride = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_the_oracle),
        cmocka_unit_test(every_policy_is_the_oracle),
        cmocka_unit_test(landmarks),
        cmocka_unit_test(encoders_are_the_rows_that_name_them),
        cmocka_unit_test(array_is_one_by_one),
        cmocka_unit_test(codes_of_rows),
        cmocka_unit_test(rows_are_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
