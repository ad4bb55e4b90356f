/* SPDX-License-Identifier: Apache-2.0 */
/* quant/e4m3fnuz.c against the oracle: every code, every tie and its neighbours, every bf16 value, floats by a stride.
 */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"

static void check_encode(float value)
{
    assert_same_code(oracle_encode(ORACLE_E4M3FNUZ, value), gb_e4m3fnuz_encode(value).bits, value);
}

static void decode_every_code(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 256; code++) {
        float value = gb_e4m3fnuz_decode((gb_e4m3fnuz){(uint8_t)code});
        assert_same_float((float)oracle_decode(ORACLE_E4M3FNUZ, code), value, "code %02X", code);
        assert_int_equal(isnan(value) != 0, code == 0x80);
        assert_int_equal(gb_e4m3fnuz_encode(value).bits, code);
    }
}

/* ml_dtypes finfo(float8_e4m3fnuz); arXiv 2206.02915, table 1. */
static void decode_landmarks(void **state)
{
    (void)state;
    assert_same_float(0x1p-10f, gb_e4m3fnuz_decode((gb_e4m3fnuz){0x01}), "%s", "smallest subnormal");
    assert_same_float(0x1.cp-8f, gb_e4m3fnuz_decode((gb_e4m3fnuz){0x07}), "%s", "largest subnormal");
    assert_same_float(0x1p-7f, gb_e4m3fnuz_decode((gb_e4m3fnuz){0x08}), "%s", "smallest normal");
    assert_same_float(1, gb_e4m3fnuz_decode((gb_e4m3fnuz){0x40}), "%s", "one");
    assert_same_float(240, gb_e4m3fnuz_decode((gb_e4m3fnuz){0x7F}), "%s", "largest");
    assert_same_float(-0x1p-10f, gb_e4m3fnuz_decode((gb_e4m3fnuz){0x81}), "%s", "largest negative");
}

static void encode_ties(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 0x7F; code++) {
        float low = (float)oracle_decode(ORACLE_E4M3FNUZ, code), high = (float)oracle_decode(ORACLE_E4M3FNUZ, code + 1);
        float tie = (low + high) / 2;
        unsigned even = code % 2 == 0 ? code : code + 1;
        assert_same_code(even, gb_e4m3fnuz_encode(tie).bits, tie);
        assert_same_code(even ? even + 128 : 0, gb_e4m3fnuz_encode(-tie).bits, -tie);
        assert_same_code(code, gb_e4m3fnuz_encode(nextafterf(tie, 0)).bits, nextafterf(tie, 0));
        assert_same_code(code + 1, gb_e4m3fnuz_encode(nextafterf(tie, 500)).bits, nextafterf(tie, 500));
        check_encode(tie);
        check_encode(-tie);
    }
}

static void encode_specials(void **state)
{
    (void)state;
    assert_int_equal(gb_e4m3fnuz_encode(-0.0f).bits, 0);
    assert_int_equal(gb_e4m3fnuz_encode(-0x1p-11f).bits, 0);
    assert_int_equal(gb_e4m3fnuz_encode(0x1.8p-11f).bits, 1);
    assert_int_equal(gb_e4m3fnuz_encode(-0x1.8p-11f).bits, 0x81);
    assert_int_equal(gb_e4m3fnuz_encode(248).bits, 0x7F);
    assert_int_equal(gb_e4m3fnuz_encode(-1e30f).bits, 0xFF);
    assert_int_equal(gb_e4m3fnuz_encode(INFINITY).bits, 0x7F);
    assert_int_equal(gb_e4m3fnuz_encode(-INFINITY).bits, 0xFF);
    assert_int_equal(gb_e4m3fnuz_encode(bits_float(0x7FC00000)).bits, 0x80);
    assert_int_equal(gb_e4m3fnuz_encode(bits_float(0xFF800001)).bits, 0x80);
}

static void encode_every_bf16(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++)
        check_encode(bits_float(code << 16));
}

static void encode_strided_floats(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 107)
        check_encode(bits_float((uint32_t)bits));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_every_code), cmocka_unit_test(decode_landmarks),
        cmocka_unit_test(encode_ties),       cmocka_unit_test(encode_specials),
        cmocka_unit_test(encode_every_bf16), cmocka_unit_test(encode_strided_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
