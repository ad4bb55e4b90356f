/* SPDX-License-Identifier: Apache-2.0 */
/* gb_rms_norm against long double, and its exact cases. */
#include "tests/support/check.h"

#include "reference/reference.h"

enum { MOST = 2880 };

static void check(uint32_t hidden, double epsilon, double magnitude, uint64_t seed)
{
    static double x[MOST], y[MOST + 1];
    static float weight[MOST];
    uint64_t random = seed;
    long double squares = 0;

    for (uint32_t i = 0; i < hidden; i++) {
        x[i] = magnitude * random_gaussian(&random);
        weight[i] = (float)random_gaussian(&random);
        squares += (long double)x[i] * x[i];
    }
    y[hidden] = 12345;
    gb_rms_norm(x, weight, hidden, epsilon, y);
    long double r = sqrtl(squares / hidden + (long double)epsilon);
    for (uint32_t i = 0; i < hidden; i++) {
        double expected = (double)(x[i] / r * (long double)weight[i]);
        double error = fabs(y[i] - expected);
        if (!(error <= 1e-13 * fabs(expected)))
            fail_msg("hidden %u, element %u: expected %.17g, got %.17g", hidden, i, expected, y[i]);
    }
    assert_true(y[hidden] == 12345);
}

static void against_long_double(void **state)
{
    static const uint32_t sizes[] = {1, 2, 3, 16, 384, 2048, 2880};

    (void)state;
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        check(sizes[i], 1e-6, 1, i);
        check(sizes[i], 1e-5, 1e-3, 10 + i); /* epsilon outweighs the mean square */
        check(sizes[i], 0.25, 30, 20 + i);
    }
}

static void exact_cases(void **state)
{
    const double x[4] = {3, -3, 3, 3};
    const float weight[4] = {1, 2, -0.5f, 0};
    double y[4];

    (void)state;
    gb_rms_norm(x, weight, 4, 16 - 9, y);
    assert_true(y[0] == 0.75 && y[1] == -1.5 && y[2] == -0.375 && y[3] == 0);
    gb_rms_norm(x, weight, 4, 0, y);
    assert_true(y[0] == 1 && y[1] == -2 && y[2] == -0.5 && y[3] == 0);
}

static void in_place(void **state)
{
    double x[4] = {3, -3, 3, 3};
    const float weight[4] = {1, 2, -0.5f, 4};

    (void)state;
    gb_rms_norm(x, weight, 4, 0, x);
    assert_true(x[0] == 1 && x[1] == -2 && x[2] == -0.5 && x[3] == 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_long_double),
        cmocka_unit_test(exact_cases),
        cmocka_unit_test(in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
