/* SPDX-License-Identifier: Apache-2.0 */
/* quant/fp16.c against the oracle: every code. */
#include "tests/check.h"

#include "quant/quant.h"
#include "tests/oracle.h"

static void decode_every_code(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 65536; code++)
        assert_same_float((float)oracle_fp16_decode(code), gb_fp16_decode((uint16_t)code), "code %04X", code);
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
        cmocka_unit_test(decode_every_code),
        cmocka_unit_test(decode_landmarks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
