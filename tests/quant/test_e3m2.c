/* SPDX-License-Identifier: Apache-2.0 */
/* quant/e3m2.c against the oracle: every code, every tie and its neighbours, every bf16 value, floats by a stride. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"

static void check_encode(float value)
{
    assert_same_code(oracle_encode(ORACLE_E3M2, value), gb_e3m2_encode(value).bits, value);
}

static void decode_every_code(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 64; code++) {
        float value = gb_e3m2_decode((gb_e3m2){(uint8_t)code});
        assert_same_float((float)oracle_decode(ORACLE_E3M2, code), value, "code %02X", code);
        assert_int_equal(gb_e3m2_encode(value).bits, code);
    }
}

/* OCP MX v1.0, section 5.3.2. */
static void decode_landmarks(void **state)
{
    (void)state;
    assert_same_float(0x1p-4f, gb_e3m2_decode((gb_e3m2){0x01}), "%s", "smallest subnormal");
    assert_same_float(0x1.8p-3f, gb_e3m2_decode((gb_e3m2){0x03}), "%s", "largest subnormal");
    assert_same_float(0x1p-2f, gb_e3m2_decode((gb_e3m2){0x04}), "%s", "smallest normal");
    assert_same_float(1, gb_e3m2_decode((gb_e3m2){0x0C}), "%s", "one");
    assert_same_float(28, gb_e3m2_decode((gb_e3m2){0x1F}), "%s", "largest");
    assert_same_float(-0.0f, gb_e3m2_decode((gb_e3m2){0x20}), "%s", "negative zero");
    assert_same_float(-28, gb_e3m2_decode((gb_e3m2){0x3F}), "%s", "smallest");
}

static void encode_ties(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 0x1F; code++) {
        float low = (float)oracle_decode(ORACLE_E3M2, code), high = (float)oracle_decode(ORACLE_E3M2, code + 1);
        float tie = (low + high) / 2;
        unsigned even = code % 2 == 0 ? code : code + 1;
        assert_same_code(even, gb_e3m2_encode(tie).bits, tie);
        assert_same_code(even + 32, gb_e3m2_encode(-tie).bits, -tie);
        assert_same_code(code, gb_e3m2_encode(nextafterf(tie, 0)).bits, nextafterf(tie, 0));
        assert_same_code(code + 1, gb_e3m2_encode(nextafterf(tie, 500)).bits, nextafterf(tie, 500));
        check_encode(tie);
        check_encode(-tie);
    }
}

static void encode_specials(void **state)
{
    (void)state;
    assert_int_equal(gb_e3m2_encode(-0.0f).bits, 0x20);
    assert_int_equal(gb_e3m2_encode(-0x1p-5f).bits, 0x20);
    assert_int_equal(gb_e3m2_encode(30).bits, 0x1F);
    assert_int_equal(gb_e3m2_encode(-1e30f).bits, 0x3F);
    assert_int_equal(gb_e3m2_encode(INFINITY).bits, 0x1F);
    assert_int_equal(gb_e3m2_encode(-INFINITY).bits, 0x3F);
    assert_int_equal(gb_e3m2_encode(bits_float(0x7FC00000)).bits, 0x1F);
    assert_int_equal(gb_e3m2_encode(bits_float(0xFF800001)).bits, 0x1F);
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
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 109)
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
