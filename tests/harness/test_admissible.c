/* SPDX-License-Identifier: Apache-2.0 */
/* Which codes an interval allows, against its definition on every pair of neighbouring codes. */
#include "harness/judge/admissible.h"

#include "tests/support/check.h"

static const struct {
    const char *name;
    const struct rounding *rounding;
    uint32_t largest; /* finite magnitude */
} formats[] = {{"bf16", &rounding_bf16, 0x7F7F}, {"e4m3", &rounding_e4m3, 0x7E}, {"e2m1", &rounding_e2m1, 7}};

enum { FORMATS = sizeof formats / sizeof *formats };

/* Whether the interval from truth - limit to truth + limit allows `code`, reference being another one. */
static enum admissibility judged(const struct rounding *r, uint32_t code, uint32_t reference, double low, double high)
{
    struct unrounded v = {.truth = 0.5 * (low + high), .limit = 0.5 * (high - low)};
    return admissibility_of(r, code, reference, &v);
}

/* Of neighbours a < b with the tie t between them: t itself goes to the even one, all that lies beyond to its side. */
static void intervals_end_at_ties(void **state)
{
    (void)state;
    for (int f = 0; f < FORMATS; f++) {
        const struct rounding *r = formats[f].rounding;
        for (uint32_t m = 1; m < formats[f].largest; m++)
            for (uint32_t s = 0; s < 2; s++) {
                uint32_t sign = s ? r->sign : 0, a = sign | m, b = sign | (m + 1);
                double low = (double)r->decode(a), high = (double)r->decode(b), tie = 0.5 * (low + high);
                double step = (high - low) * 0x1p-12, near = low + 0.25 * (high - low);
                bool up = m % 2; /* the even one of the two is b */
                assert_int_equal(judged(r, a, a, near, near), CODE_SAME);
                assert_int_equal(judged(r, b, a, near - fabs(step), near + fabs(step)), CODE_INADMISSIBLE);
                assert_int_equal(judged(r, b, a, tie, tie), up ? CODE_ADMISSIBLE : CODE_INADMISSIBLE);
                assert_int_equal(judged(r, a, b, tie, tie), up ? CODE_INADMISSIBLE : CODE_ADMISSIBLE);
                struct unrounded hardly = {.truth = tie, .limit = fabs(step) * 0x1p-20}; /* less than binary32 tells */
                assert_int_equal(admissibility_of(r, b, a, &hardly), CODE_ADMISSIBLE);
                assert_int_equal(admissibility_of(r, a, b, &hardly), CODE_ADMISSIBLE);
                struct unrounded reaches = {.truth = tie - step, .limit = 1.5 * fabs(step)};
                struct unrounded short_of = {.truth = tie - step, .limit = 0.5 * fabs(step)};
                assert_int_equal(admissibility_of(r, b, a, &reaches), CODE_ADMISSIBLE);
                assert_int_equal(admissibility_of(r, b, a, &short_of), CODE_INADMISSIBLE);
            }
    }
}

/* Several codes at once, and every one of E2M1's 16 against what values in the interval are rounded to. */
static void wide_intervals_hold_all_between(void **state)
{
    const struct rounding *r = &rounding_e2m1;
    (void)state;
    for (double low = -7.0; low < 7.0; low += 0.109375)
        for (double width = 0.015625; width < 6.0; width *= 1.75)
            for (uint32_t code = 0; code < 16; code++) {
                bool found = false;
                for (int n = 0; n <= 256; n++)
                    found |= r->decode(r->encode((float)(low + width * n / 256.0))) == r->decode(code);
                uint32_t other = r->decode(code) == 6.0f ? 0xF : 7;
                enum admissibility is = judged(r, code, other, low, low + width);
                if (found ? is != CODE_ADMISSIBLE : is != CODE_INADMISSIBLE)
                    fail_msg("code 0x%x in %g..%g: %d, found %d", code, low, low + width, (int)is, found);
            }
}

static void zeros_and_nan(void **state)
{
    struct unrounded exact = {.truth = 0.0}, none = {.truth = NAN}, any = {.truth = 1.0, .limit = INFINITY};
    (void)state;
    assert_int_equal(admissibility_of(&rounding_bf16, 0x8000, 0, &exact), CODE_SAME);
    assert_int_equal(admissibility_of(&rounding_bf16, 0x0001, 0, &exact), CODE_INADMISSIBLE);
    assert_int_equal(admissibility_of(&rounding_bf16, 0x7FC0, 0x3F80, &any), CODE_INADMISSIBLE);
    assert_int_equal(admissibility_of(&rounding_bf16, 0xFF80, 0x3F80, &any), CODE_ADMISSIBLE);
    assert_int_equal(admissibility_of(&rounding_bf16, 0xFFC0, 0x7FC0, &none), CODE_SAME);
    assert_int_equal(admissibility_of(&rounding_bf16, 0x3F80, 0x7FC0, &none), CODE_INADMISSIBLE);
    assert_true(flip_probability(&rounding_bf16, 0x7FC0, &none) == 0.0);
    struct unrounded unlimited = {.truth = 1.0, .limit = NAN}; /* NaN alone */
    const struct unrounded *const open[] = {&none, &unlimited};
    for (int n = 0; n < 2; n++) {
        assert_int_equal(admissibility_of(&rounding_bf16, 0x7FC0, 0x3F80, open[n]), CODE_ADMISSIBLE);
        assert_int_equal(admissibility_of(&rounding_bf16, 0x7F80, 0x3F80, open[n]), CODE_INADMISSIBLE);
        assert_int_equal(admissibility_of(&rounding_bf16, 0x4000, 0x3F80, open[n]), CODE_INADMISSIBLE);
    }
}

/* A normal error is one of those that the bound is for. Without any, only a code on the wrong side is improbable. */
static void flips_are_no_likelier_than_stated(void **state)
{
    const double one = 1.0, ulp = 0x1p-7; /* 0x3F80: from 1 - ulp / 4 to 1 + ulp / 2 */
    (void)state;
    for (double truth = one - ulp / 4.0; truth <= one + ulp / 2.0; truth += ulp / 64.0)
        for (double sigma = ulp / 256.0; sigma < ulp; sigma *= 2.0)
            for (int side = -1; side <= 1; side++) {
                struct unrounded v = {truth, 1.0, 1.0, sigma * sigma, sigma, 0.0};
                double mean = truth + side * sigma, above = (one + ulp / 2.0 - mean) / sigma;
                double below = (mean - one + ulp / 4.0) / sigma;
                double flips = 0.5 * erfc(above / sqrt(2.0)) + 0.5 * erfc(below / sqrt(2.0));
                if (!(flip_probability(&rounding_bf16, 0x3F80, &v) >= flips))
                    fail_msg("truth %g, sigma %g: %g of %g", truth, sigma, flip_probability(&rounding_bf16, 0x3F80, &v),
                             flips);
            }
    struct unrounded exact = {.truth = one + ulp / 8.0}, beyond = {.truth = one + ulp};
    assert_true(flip_probability(&rounding_bf16, 0x3F80, &exact) == 0.0);
    assert_true(flip_probability(&rounding_bf16, 0x3F80, &beyond) == 1.0);
    struct unrounded within = {one, 1.0, ulp / 8.0, ulp * ulp, 0.0, 0.0}; /* the theorem */
    assert_true(flip_probability(&rounding_bf16, 0x3F80, &within) == 0.0);
    struct unrounded largest = {.truth = 7.0, .worst = 1.0, .variance = 0.01};
    assert_true(flip_probability(&rounding_e2m1, 7, &largest) < 0.01); /* saturates: nothing lies above */
}

/* P(error >= distance), by the definitions in admissible.h. */
static double cantelli(double distance, double mean, const struct unrounded *v)
{
    if (distance > v->worst)
        return 0.0;
    const double beyond = distance - v->underflow - mean;
    return beyond > 0.0 ? v->variance / (v->variance + pow(beyond, 2)) : 1.0;
}

/* Every code of E2M1, all around the values that it is for, with errors of either mean. */
static void probabilities_are_those_of_the_inequality(void **state)
{
    static const double values[] = {-6.0, -4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    enum { VALUES = sizeof values / sizeof *values };
    static const struct unrounded errors[] = {{.worst = 20.0, .variance = 0.25},
                                              {.worst = 0.25, .variance = 0.04},
                                              {.worst = 20.0, .variance = 0.01, .bias = 0.125},
                                              {.worst = 20.0, .variance = 0.01, .bias = -0.1875},
                                              {.worst = 20.0, .variance = 0.04, .underflow = 0.0625},
                                              {.worst = 0.3, .variance = 0.04, .bias = 0.03125, .underflow = 0.015625},
                                              {.worst = 1.0, .variance = 0.09, .bias = -0.5, .underflow = 0.125}};
    (void)state;
    for (uint32_t code = 0; code < 16; code++)
        for (size_t n = 0; n < sizeof errors / sizeof *errors; n++)
            for (double truth = -7.0; truth <= 7.0; truth += 0.0625) {
                struct unrounded v = errors[n];
                uint32_t at = 0;
                while (values[at] != (double)rounding_e2m1.decode(code))
                    at++;
                const double high = at + 1 < VALUES ? 0.5 * (values[at] + values[at + 1]) : INFINITY,
                             low = at ? 0.5 * (values[at] + values[at - 1]) : -INFINITY;
                v.truth = truth;
                const double above = high - truth, below = truth - low,
                             right = cantelli(above, v.bias, &v) + cantelli(below, -v.bias, &v),
                             left = cantelli(above, -v.bias, &v) + cantelli(below, v.bias, &v);
                const double expected = above < 0.0 || below < 0.0 ? 1.0 : fmin(1.0, fmax(right, left)),
                             is = flip_probability(&rounding_e2m1, code, &v);
                if (!(fabs(is - expected) <= 1e-12))
                    fail_msg("code %u, error %zu, truth %g: %.17g, not %.17g", code, n, truth, is, expected);
            }
}

/* One less than the first number of flips that Chernoff's bound has as improbable, counted up to. */
static void as_many_flips_are_allowed(void **state)
{
    static const double expected[] = {0.0, 1e-9, 0.01, 0.3, 0.999, 1.0, 2.5, 17.0, 99.5, 640.0},
                        probabilities[] = {0.5, 1e-3, 1e-9, 1e-12};
    static const uint64_t codes[] = {0, 1, 2, 7, 100, 1000, 5000};
    (void)state;
    for (size_t e = 0; e < sizeof expected / sizeof *expected; e++)
        for (size_t p = 0; p < sizeof probabilities / sizeof *probabilities; p++)
            for (size_t c = 0; c < sizeof codes / sizeof *codes; c++) {
                const double m = fmax(expected[e], 1e-300);
                uint64_t k = (uint64_t)expected[e] + 1;
                if (m > (double)codes[c])
                    continue;
                while (k <= codes[c] && !((double)k > m && (double)k * log((double)k / m) - (double)k + m >=
                                                               log(1.0 / probabilities[p])))
                    k++;
                const uint64_t right = k - 1 < codes[c] ? k - 1 : codes[c],
                               is = differences_allowed(expected[e], codes[c], probabilities[p]);
                if (is != right)
                    fail_msg("%g of %llu expected, %g: %llu, not %llu", expected[e], (unsigned long long)codes[c],
                             probabilities[p], (unsigned long long)is, (unsigned long long)right);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intervals_end_at_ties),
        cmocka_unit_test(wide_intervals_hold_all_between),
        cmocka_unit_test(zeros_and_nan),
        cmocka_unit_test(flips_are_no_likelier_than_stated),
        cmocka_unit_test(probabilities_are_those_of_the_inequality),
        cmocka_unit_test(as_many_flips_are_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
