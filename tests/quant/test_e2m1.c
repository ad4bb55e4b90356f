/* SPDX-License-Identifier: Apache-2.0 */
/* quant/e2m1.c against the oracle: every code, every tie and its neighbours, every bf16 value, floats by a stride. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"

static void check_encode(float value)
{
    assert_same_code(oracle_encode(ORACLE_E2M1, value), gb_e2m1_encode(value).bits, value);
}

static void decode_every_code(void **state)
{
    static const float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

    (void)state;
    for (unsigned code = 0; code < 16; code++) {
        float expected = code < 8 ? magnitudes[code] : -magnitudes[code - 8];
        assert_same_float(expected, gb_e2m1_decode((gb_e2m1){(uint8_t)code}), "code %u", code);
        assert_same_float(expected, (float)oracle_decode(ORACLE_E2M1, code), "oracle's code %u", code);
        assert_int_equal(gb_e2m1_encode(expected).bits, code);
    }
}

/* The normative list: the even code at each tie, the nearer code one ulp to either side. */
static void encode_ties(void **state)
{
    static const float tie[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};

    (void)state;
    for (unsigned i = 0; i < 7; i++) {
        unsigned even = i % 2 == 0 ? i : i + 1;
        assert_same_code(even, gb_e2m1_encode(tie[i]).bits, tie[i]);
        assert_same_code(even + 8, gb_e2m1_encode(-tie[i]).bits, -tie[i]);
        for (int sign = -1; sign <= 1; sign += 2) {
            check_encode((float)sign * tie[i]);
            check_encode((float)sign * nextafterf(tie[i], 0));
            check_encode((float)sign * nextafterf(tie[i], 8));
        }
        assert_same_code(i, gb_e2m1_encode(nextafterf(tie[i], 0)).bits, tie[i]);
        assert_same_code(i + 1, gb_e2m1_encode(nextafterf(tie[i], 8)).bits, tie[i]);
    }
}

static void encode_specials(void **state)
{
    (void)state;
    assert_int_equal(gb_e2m1_encode(0.0f).bits, 0);
    assert_int_equal(gb_e2m1_encode(-0.0f).bits, 8);
    assert_int_equal(gb_e2m1_encode(-0x1p-149f).bits, 8);
    assert_int_equal(gb_e2m1_encode(INFINITY).bits, 7);
    assert_int_equal(gb_e2m1_encode(-INFINITY).bits, 15);
    assert_int_equal(gb_e2m1_encode(bits_float(0x7FC00000)).bits, 7);
    assert_int_equal(gb_e2m1_encode(bits_float(0xFFC00000)).bits, 7);
    assert_int_equal(gb_e2m1_encode(bits_float(0xFF800001)).bits, 7);
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
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 101)
        check_encode(bits_float((uint32_t)bits));
}

static void pack_even_element_low(void **state)
{
    (void)state;
    for (unsigned even = 0; even < 16; even++)
        for (unsigned odd = 0; odd < 16; odd++) {
            gb_e2m1x2 pair = gb_e2m1_pack((gb_e2m1){(uint8_t)even}, (gb_e2m1){(uint8_t)odd});
            assert_int_equal(pair.bits, odd * 16 + even);
            assert_int_equal(gb_e2m1_even(pair).bits, even);
            assert_int_equal(gb_e2m1_odd(pair).bits, odd);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_every_code),     cmocka_unit_test(encode_ties),
        cmocka_unit_test(encode_specials),       cmocka_unit_test(encode_every_bf16),
        cmocka_unit_test(encode_strided_floats), cmocka_unit_test(pack_even_element_low),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
