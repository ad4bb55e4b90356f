/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of statistics, against the tails of the distributions that GSL has: each is exceeded as seldom as it says, and
 * none is far wider than that takes. */
#include <gsl/gsl_cdf.h>

#include "harness/judge/admissible.h"
#include "harness/judge/aggregate_tests.h"

#include "tests/support/check.h"

static const double levels[] = {1e-3, 1e-9, 1e-13};
enum { LEVELS = sizeof levels / sizeof *levels };

/* Chernoff's bound gives little away. Flips that are rare and many are Poisson's. */
static void differences_are_those_of_the_binomial(void **state)
{
    static const uint32_t counts[] = {1, 20, 500, 5000, 100000};
    static const double rates[] = {1e-9, 1e-6, 1e-3, 0.02, 0.2};
    (void)state;
    for (unsigned n = 0; n < 5; n++)
        for (unsigned p = 0; p < 5; p++)
            for (unsigned l = 0; l < LEVELS; l++) {
                double mean = (double)counts[n] * rates[p];
                uint32_t allowed = (uint32_t)differences_allowed(mean, counts[n], levels[l]), tight = allowed;
                assert_true(gsl_cdf_binomial_Q(allowed, rates[p], counts[n]) <= levels[l]);
                assert_true(allowed == counts[n] || gsl_cdf_poisson_Q(allowed, mean) <= levels[l]);
                while (tight > 0 && gsl_cdf_binomial_Q(tight - 1, rates[p], counts[n]) <= levels[l])
                    tight--;
                if ((double)allowed > 3.0 + 1.35 * (double)tight)
                    fail_msg("%u codes, rate %g: %u allowed, %u would do", counts[n], rates[p], allowed, tight);
            }
    assert_int_equal(differences_allowed(0.0, 1000, 1e-9), 0);
    assert_int_equal(differences_allowed(1000.0, 1000, 1e-9), 1000);
}

/* Of Gaussian errors, which no sub-Gaussian ones exceed more often than this. */
static void squares_are_those_of_chi_square(void **state)
{
    static const double counts[] = {1, 2, 10, 96, 2048, 1e4};
    (void)state;
    for (unsigned n = 0; n < sizeof counts / sizeof *counts; n++)
        for (unsigned l = 0; l < LEVELS; l++) {
            double limit = rms_limit(counts[n], log(1.0 / levels[l])), tight = gsl_cdf_chisq_Qinv(levels[l], counts[n]);
            assert_true(gsl_cdf_chisq_Q(limit * limit, counts[n]) <= levels[l]);
            if (limit > (counts[n] < 100.0 ? 1.4 : 1.02) * sqrt(tight)) /* few errors are given more room */
                fail_msg("%g errors at %g: limit %g, %g would do", counts[n], levels[l], limit, sqrt(tight));
        }
}

static void scales_are_those_of_the_gaussian(void **state)
{
    (void)state;
    for (unsigned l = 0; l < LEVELS; l++)
        for (double sigma = 1e-9; sigma < 1e9; sigma *= 1e3) {
            double limit = scale_limit(sigma * sigma, log(2.0 / levels[l]));
            assert_true(2.0 * gsl_cdf_gaussian_Q(limit, sigma) <= levels[l]);
            assert_true(limit <= 1.2 * gsl_cdf_gaussian_Qinv(0.5 * levels[l], sigma));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences_are_those_of_the_binomial),
        cmocka_unit_test(squares_are_those_of_chi_square),
        cmocka_unit_test(scales_are_those_of_the_gaussian),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
