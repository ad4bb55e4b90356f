/* SPDX-License-Identifier: Apache-2.0 */
/* quant/bf16.c against the oracle: every code, every tie and its neighbours, floats by a stride. */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "tests/oracle/oracle.h"

static void check_encode(float value)
{
    assert_same_code(oracle_encode(ORACLE_BF16, value), gb_bf16_encode(value).bits, value);
}

static void decode_every_code(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 65536; code++) {
        float value = gb_bf16_decode((gb_bf16){(uint16_t)code});
        assert_same_float((float)oracle_decode(ORACLE_BF16, code), value, "code %04X", code);
        if (!isnan(value))
            assert_int_equal(gb_bf16_encode(value).bits, code);
    }
}

/* Of any count, at any address, and no more than that. */
static void decode_all_of_a_row(void **state)
{
    enum { COUNT = 65536 };
    char *bytes = malloc(1 + COUNT * sizeof(gb_bf16));
    float *values = malloc((COUNT + 1) * sizeof *values);
    (void)state;
    assert_true(bytes && values);
    for (uint32_t i = 0; i < COUNT; i++)
        memcpy(bytes + 1 + 2 * i, &(gb_bf16){(uint16_t)(i * 40503u)}, sizeof(gb_bf16));
    for (uint32_t count = 0; count <= COUNT; count = count < 70 ? count + 1 : count + (COUNT - 70) / 2) {
        values[count] = 0.3f;
        gb_bf16_decode_all(bytes + 1, count, values);
        assert_true(values[count] == 0.3f);
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(float_bits(values[i]), (i * 40503u & 0xFFFF) << 16);
    }
    free(bytes);
    free(values);
}

/* Of any count, NaN and all ties among them, and no more than that. */
static void encode_all_of_a_row(void **state)
{
    enum { COUNT = 65536 };
    float *values = malloc(COUNT * sizeof *values);
    gb_bf16 *codes = malloc((COUNT + 1) * sizeof *codes);
    (void)state;
    assert_true(values && codes);
    for (uint32_t i = 0; i < COUNT; i++)
        values[i] = bits_float((i * 40503u & 0xFFFF) << 16 | (0x7FFF + i % 3));
    for (uint32_t count = 0; count <= COUNT; count = count < 70 ? count + 1 : count + (COUNT - 70) / 2) {
        codes[count].bits = 0x1234;
        gb_bf16_encode_all(values, count, codes);
        assert_int_equal(codes[count].bits, 0x1234);
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(codes[i].bits, gb_bf16_encode(values[i]).bits);
    }
    free(values);
    free(codes);
}

/* Half-way between two codes, and one binary32 ulp to either side; the last tie is the one with infinity. */
static void encode_every_tie(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 65536; code++)
        for (uint32_t low = 0x7FFF; low <= 0x8001; low++)
            check_encode(bits_float(code << 16 | low));
    assert_int_equal(gb_bf16_encode(0x1.01p0f).bits, 0x3F80);
    assert_int_equal(gb_bf16_encode(0x1.03p0f).bits, 0x3F82);
    assert_int_equal(gb_bf16_encode(bits_float(0x7F7F7FFF)).bits, 0x7F7F);
    assert_int_equal(gb_bf16_encode(bits_float(0x7F7F8000)).bits, 0x7F80);
    assert_int_equal(gb_bf16_encode(bits_float(0xFF7F8000)).bits, 0xFF80);
}

static void encode_specials(void **state)
{
    (void)state;
    assert_int_equal(gb_bf16_encode(-0.0f).bits, 0x8000);
    assert_int_equal(gb_bf16_encode(INFINITY).bits, 0x7F80);
    assert_int_equal(gb_bf16_encode(-INFINITY).bits, 0xFF80);
    assert_int_equal(gb_bf16_encode(bits_float(0x7F800001)).bits, 0x7FC0);
    assert_int_equal(gb_bf16_encode(bits_float(0xFFFFFFFF)).bits, 0xFFC0);
    assert_int_equal(gb_bf16_encode(-0x1p-149f).bits, 0x8000);
    assert_int_equal(gb_bf16_encode(0x1p-133f).bits, 0x0001);
}

static void encode_strided_floats(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 251)
        check_encode(bits_float((uint32_t)bits));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_every_code),   cmocka_unit_test(decode_all_of_a_row),
        cmocka_unit_test(encode_all_of_a_row), cmocka_unit_test(encode_every_tie),
        cmocka_unit_test(encode_specials),     cmocka_unit_test(encode_strided_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
