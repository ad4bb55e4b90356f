/* SPDX-License-Identifier: Apache-2.0 */
/* gb_exp against MPFR: specials, both ends of the range, the tie regions around 0, floats by a stride. */
#include "tests/support/check.h"

#include "reference/reference.h"
#include "tests/oracle/oracle.h"

static void check(float x)
{
    assert_same_float(oracle_exp(x), gb_exp(x), "exp(%a = %08X)", (double)x, float_bits(x));
}

/* `count` floats to either side of x. */
static void check_around(float x, uint32_t count)
{
    uint32_t bits = float_bits(x);

    for (uint32_t step = 0; step < count; step++) {
        check(bits_float(bits + step));
        check(bits_float(bits - step));
    }
}

static void specials(void **state)
{
    (void)state;
    assert_same_float(1, gb_exp(0.0f), "%s", "exp(+0)");
    assert_same_float(1, gb_exp(-0.0f), "%s", "exp(-0)");
    assert_same_float(INFINITY, gb_exp(INFINITY), "%s", "exp(+Inf)");
    assert_same_float(0, gb_exp(-INFINITY), "%s", "exp(-Inf)");
    assert_true(isnan(gb_exp(bits_float(0x7FC00000))));
    assert_true(isnan(gb_exp(bits_float(0xFF800001))));
    assert_same_float(INFINITY, gb_exp(3e38f), "%s", "exp(3e38)");
    assert_same_float(0, gb_exp(-3e38f), "%s", "exp(-3e38)");
}

static void ends_of_the_range(void **state)
{
    (void)state;
    check_around(0x1.62e43p6f, 2000);   /* overflow: ln(2^128) */
    check_around(-0x1.5d58ap6f, 2000);  /* the results become subnormal: ln(2^-126) */
    check_around(-0x1.9fe368p6f, 2000); /* underflow: ln(2^-150) */
}

/* e^x rounds to 1 or a neighbour; 1 + x is a tie at 2^-24 and -2^-25. */
static void near_one(void **state)
{
    (void)state;
    check_around(0x1p-24f, 2000);
    check_around(-0x1p-25f, 2000);
    check_around(0x3p-24f, 2000);
    check_around(-0x3p-25f, 2000);
    for (uint32_t exponent = 0; exponent < 255; exponent++)
        for (uint32_t sign = 0; sign < 2; sign++)
            check(bits_float(sign << 31 | exponent << 23 | 1));
}

static void strided_floats(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 10007)
        check(bits_float((uint32_t)bits));
    for (float x = -104; x < 89; x += 0x1.23456p-9f)
        check(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specials),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(near_one),
        cmocka_unit_test(strided_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
