/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's own arithmetic against the processor's: operands of close and far exponents, subnormals, specials. */
#include "tests/support/check.h"

#include "tests/oracle/oracle.h"

static const uint32_t edges[] = {
    0x00000000, 0x00000001, 0x00000003, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000,
    0x33800000, 0x33FFFFFF, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x3FC00000, 0x4B7FFFFF, 0x4B800000,
    0x4B800001, 0x5F000000, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000,
};
enum { EDGES = 2 * sizeof edges / sizeof *edges };

static float edge(unsigned index)
{
    return bits_float(edges[index / 2] | (index % 2 ? 0x80000000 : 0));
}

static void check(float a, float b, float c)
{
    assert_same_float(fmaf(a, b, c), oracle_fma(a, b, c), "fma(%a, %a, %a)", (double)a, (double)b, (double)c);
    assert_same_float(a + b, oracle_add(a, b), "%a + %a", (double)a, (double)b);
    assert_same_float(a * b, oracle_multiply(a, b), "%a * %a", (double)a, (double)b);
    assert_same_float(a / b, oracle_divide(a, b), "%a / %a", (double)a, (double)b);
}

static void edges_of_binary32(void **state)
{
    (void)state;
    for (unsigned a = 0; a < EDGES; a++)
        for (unsigned b = 0; b < EDGES; b++)
            for (unsigned c = 0; c < EDGES; c++)
                check(edge(a), edge(b), edge(c));
}

static void any_bits(void **state)
{
    uint64_t random = 1;

    (void)state;
    for (unsigned i = 0; i < 1000000; i++)
        check(bits_float((uint32_t)random_bits(&random)), bits_float((uint32_t)random_bits(&random)),
              bits_float((uint32_t)random_bits(&random)));
}

/* A number of few bits, so that products cancel and ties occur. */
static float few_bits(uint64_t *random)
{
    float significand = (float)((int32_t)random_below(random, 8193) - 4096);
    return ldexpf(significand, (int)random_below(random, 40) - 20);
}

static void cancellation_and_ties(void **state)
{
    uint64_t random = 2;

    (void)state;
    for (unsigned i = 0; i < 1000000; i++) {
        float a = few_bits(&random), b = few_bits(&random);
        check(a, b, few_bits(&random));
        check(a, b, -(a * b));
        check(a, b, nextafterf(-(a * b), few_bits(&random)));
        check(a * 0x1p-70f, b * 0x1p-60f, few_bits(&random) * 0x1p-120f);
    }
}

static void formats_are_the_ones_named(void **state)
{
    (void)state;
    assert_true(oracle_decode(ORACLE_E2M1, 15) == -6);
    assert_true(oracle_decode(ORACLE_E4M3, 0x7E) == 448 && oracle_decode(ORACLE_E4M3, 0x01) == 0x1p-9);
    assert_true(isnan(oracle_decode(ORACLE_E4M3, 0xFF)));
    assert_true(oracle_decode(ORACLE_E5M2, 0x7B) == 57344 && oracle_decode(ORACLE_E5M2, 0x81) == -0x1p-16);
    assert_true(isinf(oracle_decode(ORACLE_E5M2, 0xFC)) && isnan(oracle_decode(ORACLE_E5M2, 0x7D)));
    assert_true(oracle_decode(ORACLE_BF16, 0x7F7F) == 0x1.fep127 && oracle_decode(ORACLE_BF16, 1) == 0x1p-133);
    assert_true(oracle_decode(ORACLE_BF16, 0xFF80) == -(double)INFINITY && isnan(oracle_decode(ORACLE_BF16, 0x7F81)));
    assert_true(oracle_decode(ORACLE_FP16, 0x7BFF) == 65504 && oracle_decode(ORACLE_FP16, 1) == 0x1p-24);
    assert_true(oracle_e8m0_decode(0) == 0x1p-127 && oracle_e8m0_decode(0xFE) == 0x1p127);
    assert_true(oracle_e8m0_encode(-3) == 129 && oracle_e8m0_encode(4) == 129 && oracle_e8m0_encode(0) == 0);
}

/* Values from their series: silu(x) = x/2 + x^2/4 - ..., e^x = 1 + x + ... */
static void functions_at_known_points(void **state)
{
    (void)state;
    assert_same_float(1, oracle_exp(0), "%s", "e^0");
    assert_same_float(0x1.5bf0a8p1f, oracle_exp(1), "%s", "e");
    assert_same_float(0x1p-149f, oracle_exp(-103), "%s", "e^-103 = 1.3 * 2^-149");
    assert_same_float(0, oracle_exp(-104), "%s", "e^-104 = 0.96 * 2^-150");
    assert_same_float(INFINITY, oracle_exp(0x1.62e43p6f), "%s", "e^x just above the largest number");
    assert_same_float(0x1p-149f, oracle_silu(0x1p-149f), "%s", "2^-150 + 2^-300 rounds up");
    assert_same_float(-0.0f, oracle_silu(-0x1p-149f), "%s", "-2^-150 + 2^-300 rounds to -0");
    assert_same_float(-0x1p-149f, oracle_silu(-0x3p-149f), "%s", "-1.5 * 2^-149 + 2^-298 rounds up");
    assert_same_float(0x1p-148f, oracle_silu(0x3p-149f), "%s", "1.5 * 2^-149 + 2^-298 rounds up");
    assert_same_float(100, oracle_silu(100), "%s", "silu(100)");
    assert_same_float(-0.0f, oracle_silu(-1e30f), "%s", "silu(-1e30)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edges_of_binary32),         cmocka_unit_test(any_bits),
        cmocka_unit_test(cancellation_and_ties),     cmocka_unit_test(formats_are_the_ones_named),
        cmocka_unit_test(functions_at_known_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
