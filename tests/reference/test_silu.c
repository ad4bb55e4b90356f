/* SPDX-License-Identifier: Apache-2.0 */
/* gb_silu against MPFR: specials, the ties below 2^-125, the underflow end, floats by a stride. */
#include "tests/support/check.h"

#include "reference/reference.h"
#include "tests/oracle/oracle.h"

static void check(float x)
{
    assert_same_float(oracle_silu(x), gb_silu(x), "silu(%a = %08X)", (double)x, float_bits(x));
}

static void check_both_signs(uint32_t magnitude)
{
    check(bits_float(magnitude));
    check(bits_float(magnitude | 0x80000000));
}

static void specials(void **state)
{
    (void)state;
    assert_same_float(0.0f, gb_silu(0.0f), "%s", "silu(+0)");
    assert_same_float(-0.0f, gb_silu(-0.0f), "%s", "silu(-0)");
    assert_same_float(INFINITY, gb_silu(INFINITY), "%s", "silu(+Inf)");
    assert_same_float(-0.0f, gb_silu(-INFINITY), "%s", "silu(-Inf)");
    assert_true(isnan(gb_silu(bits_float(0x7FC00000))));
    assert_true(isnan(gb_silu(bits_float(0xFF800001))));
    assert_same_float(0x1.fffffep127f, gb_silu(0x1.fffffep127f), "%s", "silu(largest)");
    assert_same_float(-0.0f, gb_silu(-0x1.fffffep127f), "%s", "silu(-largest)");
}

/* Where x/2 needs one bit more than binary32 has, x^2/4 decides: x/2 always rounds towards +Inf. */
static void ties_below_2_to_the_minus_125(void **state)
{
    (void)state;
    for (uint32_t magnitude = 1; magnitude < 2000; magnitude++)
        check_both_signs(magnitude);
    for (uint32_t magnitude = 1; magnitude < 0x01000000; magnitude += 1021)
        check_both_signs(magnitude);
    for (uint32_t step = 0; step < 2000; step++) {
        check_both_signs(0x01000000 - 1000 + step); /* 2^-125, from where every x/2 is exact */
        check_both_signs(0x00800000 - 1000 + step);
    }
    assert_same_float(0x1p-149f, gb_silu(0x1p-149f), "%s", "smallest subnormal");
    assert_same_float(-0.0f, gb_silu(-0x1p-149f), "%s", "negative smallest subnormal");
    assert_same_float(0x1p-126f, gb_silu(0x1.fffffep-126f), "%s", "largest tie");
    assert_same_float(-0x1.fffffcp-127f, gb_silu(-0x1.fffffep-126f), "%s", "largest negative tie");
}

static void underflow_end(void **state)
{
    (void)state;
    check(-96);
    assert_true(gb_silu(-96) < 0);
    for (float x = -87; x > -112; x = nextafterf(x, -112) - 0x1.8p-9f)
        check(x);
}

/* From 16.64 on, silu(x) rounds to x. */
static void large_arguments(void **state)
{
    (void)state;
    for (uint32_t step = 0; step < 2000; step++)
        check(bits_float(float_bits(16.63f) + 16 * step));
}

static void strided_floats(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 10009)
        check(bits_float((uint32_t)bits));
    for (float x = -112; x < 20; x += 0x1.23456p-9f)
        check(x);
}

/* Of arrays: what is decided by one evaluation and what is not, side by side and at every place of a vector. */
static void arrays(void **state)
{
    (void)state;
    enum { COUNT = 1003 };
    float x[COUNT], y[COUNT];
    for (uint32_t first = 0; first < 64; first++) {
        for (uint32_t i = 0; i < COUNT; i++)
            x[i] = i % 7 == first % 7 ? bits_float(0x00800000u * (i % 512) + first) /* any exponent, NaN too */
                                      : (float)((int)i - 500) * 0x1.23456p-4f + (float)first * 0x1p-9f;
        gb_silu_all(x, COUNT - first, y);
        for (uint32_t i = 0; i < COUNT - first; i++)
            assert_same_float(gb_silu(x[i]), y[i], "silu(%a), number %u of an array", (double)x[i], i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specials),       cmocka_unit_test(ties_below_2_to_the_minus_125),
        cmocka_unit_test(underflow_end),  cmocka_unit_test(large_arguments),
        cmocka_unit_test(strided_floats), cmocka_unit_test(arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
