/* SPDX-License-Identifier: Apache-2.0 */
/* quant/fp16.c against the oracle: every code, every tie and its neighbours, floats by a stride. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"

static void check_encode(float value)
{
    assert_same_code(oracle_encode(ORACLE_FP16, value), gb_fp16_encode(value), value);
}

static void every_code(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 65536; code++) {
        float value = gb_fp16_decode((uint16_t)code);
        assert_same_float((float)oracle_decode(ORACLE_FP16, code), value, "code %04X", code);
        if (!isnan(value))
            assert_int_equal(gb_fp16_encode(value), code);
    }
}

/* Half-way between two codes, and one binary32 ulp to either side; 65520 is the tie with infinity. */
static void encode_every_tie(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 0x7C00; code++) {
        double next = code + 1 < 0x7C00 ? oracle_decode(ORACLE_FP16, code + 1) : 65536;
        float tie = (float)((oracle_decode(ORACLE_FP16, code) + next) / 2);
        check_encode(tie);
        check_encode(-tie);
        check_encode(nextafterf(tie, 0));
        check_encode(nextafterf(-tie, -INFINITY));
    }
    assert_int_equal(gb_fp16_encode(65520), 0x7C00);
    assert_int_equal(gb_fp16_encode(-65519), 0xFBFF);
    assert_int_equal(gb_fp16_encode(0x1p-25f), 0);
    assert_int_equal(gb_fp16_encode(-0x1p-25f), 0x8000);
}

static void encode_specials(void **state)
{
    (void)state;
    assert_int_equal(gb_fp16_encode(-0.0f), 0x8000);
    assert_int_equal(gb_fp16_encode(-INFINITY), 0xFC00);
    assert_int_equal(gb_fp16_encode(bits_float(0x7F800001)), 0x7E00);
    assert_int_equal(gb_fp16_encode(bits_float(0xFFFFFFFF)), 0xFE00);
}

static void encode_strided_floats(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 109)
        check_encode(bits_float((uint32_t)bits));
}

static void decode_landmarks(void **state)
{
    (void)state;
    assert_same_float(0x1p-24f, gb_fp16_decode(0x0001), "%s", "smallest subnormal");
    assert_same_float(0x1.ff8p-15f, gb_fp16_decode(0x03FF), "%s", "largest subnormal");
    assert_same_float(0x1p-14f, gb_fp16_decode(0x0400), "%s", "smallest normal");
    assert_same_float(65504, gb_fp16_decode(0x7BFF), "%s", "largest");
    assert_same_float(-INFINITY, gb_fp16_decode(0xFC00), "%s", "negative infinity");
    assert_same_float(-0.0f, gb_fp16_decode(0x8000), "%s", "negative zero");
    assert_true(isnan(gb_fp16_decode(0x7C01)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code),      cmocka_unit_test(decode_landmarks),      cmocka_unit_test(encode_every_tie),
        cmocka_unit_test(encode_specials), cmocka_unit_test(encode_strided_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
