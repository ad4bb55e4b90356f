/* SPDX-License-Identifier: Apache-2.0 */
/* quant/e8m0.c against the oracle: every code and its neighbours, every bf16 value, floats by a stride. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"

static void check_encode(float value)
{
    assert_same_code(oracle_e8m0_encode(value), gb_e8m0_encode(value).bits, value);
}

/* A power of two is itself; one ulp more is the next; one ulp less rounds up to it. */
static void every_code(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 255; code++) {
        float value = gb_e8m0_decode((gb_e8m0){(uint8_t)code});
        assert_same_float((float)oracle_e8m0_decode(code), value, "code %02X", code);
        assert_same_code(code, gb_e8m0_encode(value).bits, value);
        assert_same_code(code, gb_e8m0_encode(-value).bits, -value);
        assert_same_code(code < 254 ? code + 1 : 254, gb_e8m0_encode(nextafterf(value, INFINITY)).bits, value);
        assert_same_code(code, gb_e8m0_encode(nextafterf(value, 0)).bits, value);
    }
    assert_true(isnan(gb_e8m0_decode((gb_e8m0){0xFF})));
}

static void encode_specials(void **state)
{
    (void)state;
    assert_int_equal(gb_e8m0_encode(0.0f).bits, 0);
    assert_int_equal(gb_e8m0_encode(-0.0f).bits, 0);
    assert_int_equal(gb_e8m0_encode(0x1p-149f).bits, 0);
    assert_int_equal(gb_e8m0_encode(1.0f).bits, 127);
    assert_int_equal(gb_e8m0_encode(0x1.fffffep127f).bits, 0xFE);
    assert_int_equal(gb_e8m0_encode(INFINITY).bits, 0xFE);
    assert_int_equal(gb_e8m0_encode(-INFINITY).bits, 0xFE);
    assert_int_equal(gb_e8m0_encode(bits_float(0x7FC00000)).bits, 0xFF);
    assert_int_equal(gb_e8m0_encode(bits_float(0xFF800001)).bits, 0xFF);
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
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 4099)
        check_encode(bits_float((uint32_t)bits));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code),
        cmocka_unit_test(encode_specials),
        cmocka_unit_test(encode_every_bf16),
        cmocka_unit_test(encode_strided_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
