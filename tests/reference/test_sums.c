/* SPDX-License-Identifier: Apache-2.0 */
/* Sums on lanes: bit for bit their definition, whichever instructions the CPU has, for every number of terms. */
#include "tests/support/check.h"

#include <math.h>

#include "reference/truth/sums.h"

enum { LANES = 8, MOST = 83, ROWS = 13 };

/* Of both signs and many magnitudes, so that every other sequence of additions gives other bits. */
static double value_of(uint32_t seed)
{
    uint64_t draw = (seed + 1) * 0x9E3779B97F4A7C15u;
    draw ^= draw >> 29;
    draw *= 0xBF58476D1CE4E5B9u;
    return ldexp((double)(int64_t)draw, -63 - (int)(draw & 31));
}

static double lane_sum(const double *terms, uint32_t count)
{
    double lanes[LANES] = {0}, sum = 0.0;
    for (uint32_t i = 0; i < count; i++)
        lanes[i % LANES] += terms[i];
    for (int l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

static void expect_bits(const char *what, uint32_t count, double got, double expected)
{
    if (memcmp(&got, &expected, sizeof got))
        fail_msg("%s of %u terms: %a, expected %a", what, count, got, expected);
}

struct data {
    double a[MOST], x[MOST], worst[MOST], variance[MOST], bias[MOST], underflow[MOST], terms[MOST], scaled[MOST + 1];
};

static void fill(struct data *d)
{
    for (uint32_t i = 0; i < MOST; i++) {
        d->a[i] = value_of(i);
        d->x[i] = value_of(1000 + i);
        d->worst[i] = fabs(value_of(2000 + i));
        d->variance[i] = fabs(value_of(3000 + i));
        d->bias[i] = value_of(4000 + i);
        d->underflow[i] = fabs(value_of(6000 + i));
    }
}

static void rows(void **state)
{
    struct data d;
    (void)state;
    fill(&d);
#define EXPECT(name, got, term)                                                                                        \
    do {                                                                                                               \
        for (uint32_t i = 0; i < count; i++)                                                                           \
            d.terms[i] = term;                                                                                         \
        expect_bits(name, count, got, lane_sum(d.terms, count));                                                       \
    } while (0)
    for (uint32_t count = 1; count <= MOST; count++) {
        double sum, variance;
        struct gb_product_sums p;
        struct gb_spread_sums s;
        gb_sum_products(d.a, d.x, count, &p);
        EXPECT("products", p.value, d.a[i] * d.x[i]);
        EXPECT("an inner product", gb_sum_inner_product(d.a, d.x, count), d.a[i] * d.x[i]);
        EXPECT("absolute products", p.absolute, fabs(d.a[i] * d.x[i]));
        EXPECT("squares", p.squares, (d.a[i] * d.x[i]) * (d.a[i] * d.x[i]));
        EXPECT("squared products", gb_sum_squared_products(d.a, d.x, count), (d.a[i] * d.x[i]) * (d.a[i] * d.x[i]));
        gb_sum_spreads(d.a, &(struct gb_spreads){d.x, d.worst, d.variance, d.bias, d.underflow}, count, &s);
        EXPECT("values", s.value, d.a[i] * d.x[i]);
        EXPECT("absolute values", s.absolute, fabs(d.a[i]) * (fabs(d.x[i]) + d.worst[i]));
        EXPECT("worst errors", s.worst, fabs(d.a[i]) * d.worst[i]);
        EXPECT("variances", s.variance, d.a[i] * d.a[i] * d.variance[i]);
        EXPECT("biases", s.bias, d.a[i] * d.bias[i]);
        EXPECT("underflow", s.underflow, fabs(d.a[i]) * d.underflow[i]);
        d.scaled[count] = 42.0;
        sum = gb_sum_scaled(d.a, d.x, d.worst, 0.3, count, d.scaled, &variance);
        EXPECT("unscaled", sum, d.a[i] * d.x[i]);
        EXPECT("scaled", variance, (0.3 * d.a[i] * d.worst[i]) * (0.3 * d.a[i] * d.worst[i]));
        for (uint32_t i = 0; i < count; i++)
            expect_bits("a scaled value", count, d.scaled[i], 0.3 * d.a[i] * d.worst[i]);
        assert_true(d.scaled[count] == 42.0);
    }
#undef EXPECT
}

/* All ranges of rows; what lies outside the range stays. */
static void gram(void **state)
{
    enum { TRIANGLE = ROWS * (ROWS + 1) / 2 };
    double a[ROWS * MOST], c[TRIANGLE + 1], terms[MOST];
    (void)state;
    for (uint32_t i = 0; i < ROWS * MOST; i++)
        a[i] = value_of(i);
    for (uint32_t columns = MOST - LANES; columns <= MOST; columns++)
        for (uint32_t first = 0; first < ROWS; first++)
            for (uint32_t end = first + 1; end <= ROWS; end++) {
                for (uint32_t i = 0; i <= TRIANGLE; i++)
                    c[i] = 0.25;
                gb_add_gram(a, first, end - first, columns, c);
                for (uint32_t r = 0; r < ROWS; r++)
                    for (uint32_t q = 0; q <= r; q++) {
                        for (uint32_t i = 0; i < columns; i++)
                            terms[i] = a[r * columns + i] * a[q * columns + i];
                        bool inside = r >= first && r < end;
                        expect_bits("gram", columns, c[r * (r + 1) / 2 + q],
                                    inside ? 0.25 + lane_sum(terms, columns) : 0.25);
                    }
                assert_true(c[TRIANGLE] == 0.25);
            }
}

/* For every number of rows; two rows have no pivot. */
static void lower_triangle(void **state)
{
    enum { TRIANGLE = MOST * (MOST + 1) / 2 };
    double l[TRIANGLE], x[MOST + 1], expected[MOST], terms[MOST];
    (void)state;
    for (uint32_t i = 0; i < TRIANGLE; i++)
        l[i] = value_of(i);
    for (uint32_t r = 0; r < MOST; r++)
        l[r * (r + 1) / 2 + r] = r == 5 ? 0.0 : r == 42 ? -1.0 : 1.0 + fabs(value_of(7000 + r));
    for (uint32_t count = 0; count <= MOST; count++) {
        for (uint32_t r = 0; r <= MOST; r++)
            x[r] = value_of(8000 + r);
        for (uint32_t r = 0; r < count; r++) {
            for (uint32_t i = 0; i < r; i++)
                terms[i] = l[r * (r + 1) / 2 + i] * expected[i];
            expected[r] = r == 5 || r == 42 ? 0.0 : (x[r] - lane_sum(terms, r)) / l[r * (r + 1) / 2 + r];
        }
        gb_solve_lower(l, count, x);
        for (uint32_t r = 0; r <= MOST; r++)
            expect_bits("a solution", count, x[r], r < count ? expected[r] : value_of(8000 + r));
    }
}

static void product(void **state)
{
    enum { STRIDE = 40, DEPTH = 37 };
    float a[ROWS * STRIDE];
    double b[DEPTH * MOST], c[ROWS * MOST + 1];
    (void)state;
    for (uint32_t i = 0; i < ROWS * STRIDE; i++)
        a[i] = (float)value_of(i);
    for (uint32_t i = 0; i < DEPTH * MOST; i++)
        b[i] = value_of(5000 + i);
    for (uint32_t n = 1; n <= MOST; n++)
        for (uint32_t m = 1; m <= ROWS; m++) {
            for (uint32_t i = 0; i <= ROWS * MOST; i++)
                c[i] = 0.25;
            gb_add_product(a, STRIDE, m, DEPTH, b, n, c);
            for (uint32_t r = 0; r < m; r++)
                for (uint32_t q = 0; q < n; q++) {
                    double expected = 0.25;
                    for (uint32_t o = 0; o < DEPTH; o++)
                        expected += (double)a[r * STRIDE + o] * b[o * n + q];
                    expect_bits("product", n, c[r * n + q], expected);
                }
            assert_true(c[m * n] == 0.25);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),
        cmocka_unit_test(gram),
        cmocka_unit_test(lower_triangle),
        cmocka_unit_test(product),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
