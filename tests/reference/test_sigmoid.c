/* SPDX-License-Identifier: Apache-2.0 */
/* gb_sigmoid against MPFR: specials, the ties around 1/2, both ends, floats by a stride. */
#include "tests/support/check.h"

#include "reference/reference.h"
#include "tests/oracle/oracle.h"

static void check(float x)
{
    assert_same_float(oracle_sigmoid(x), gb_sigmoid(x), "sigmoid(%a = %08X)", (double)x, float_bits(x));
}

static void specials(void **state)
{
    (void)state;
    assert_same_float(0.5f, gb_sigmoid(0.0f), "%s", "sigmoid(+0)");
    assert_same_float(0.5f, gb_sigmoid(-0.0f), "%s", "sigmoid(-0)");
    assert_same_float(1.0f, gb_sigmoid(INFINITY), "%s", "sigmoid(+Inf)");
    assert_same_float(0.0f, gb_sigmoid(-INFINITY), "%s", "sigmoid(-Inf)");
    assert_same_float(0.0f, gb_sigmoid(-0x1.fffffep127f), "%s", "sigmoid(-largest)");
    assert_true(isnan(gb_sigmoid(bits_float(0x7FC00000))));
}

/* 1/2 + x/4 lies half-way between two floats for odd multiples of 2^-23 (x > 0) or 2^-24 (x < 0). */
static void ties_around_one_half(void **state)
{
    (void)state;
    for (int i = 1; i < 4000; i++)
        for (int neighbour = -1; neighbour <= 1; neighbour++)
            for (int sign = -1; sign <= 1; sign += 2) {
                float tie = (float)i * 0x1p-24f;
                check((float)sign * (neighbour ? nextafterf(tie, neighbour > 0 ? INFINITY : 0) : tie));
            }
    for (uint32_t step = 0; step < 2000; step++)
        check(bits_float(float_bits(0x1p-15f) - 1000 + step));
}

static void both_ends(void **state)
{
    (void)state;
    for (float x = 16; x < 19; x += 0x1p-9f)
        check(x);
    for (float x = -86; x > -106; x -= 0x1.8p-8f)
        check(x);
}

static void strided_floats(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += 10009)
        check(bits_float((uint32_t)bits));
    for (float x = -106; x < 20; x += 0x1.23456p-9f)
        check(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(specials),
        cmocka_unit_test(ties_around_one_half),
        cmocka_unit_test(both_ends),
        cmocka_unit_test(strided_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
