/* SPDX-License-Identifier: Apache-2.0 */
/* Private: sums in float64 on eight lanes. Term i goes to lane i mod 8, and at the end the lanes are added in ascending
 * order, so that every CPU and any number of threads give the same bits. */
#ifndef GB_REFERENCE_TRUTH_SUMS_H
#define GB_REFERENCE_TRUTH_SUMS_H

#include <stddef.h>
#include <stdint.h>

/* Memory for so many doubles, of which no vector lies in two cache lines if rows are whole lines; NULL: there is none.
 * free() releases it. */
double *gb_doubles_new(size_t count);

/* Sums of a[i] * x[i], of |a[i] * x[i]| and of (a[i] * x[i])^2. */
struct gb_product_sums {
    double value, absolute, squares;
};
void gb_sum_products(const double *a, const double *x, uint32_t count, struct gb_product_sums *sums);
/* The first of them alone. */
double gb_sum_inner_product(const double *a, const double *x, uint32_t count);

/* y[i] += factor * x[i]. */
void gb_add_multiple(const double *x, double factor, uint32_t count, double *y);

/* The last of them alone. */
double gb_sum_squared_products(const double *a, const double *x, uint32_t count);

/* Values that carry errors, in arrays. */
struct gb_spreads {
    const double *value, *worst, *variance, *bias, *underflow; /* [count] each */
};

/* Sums of what a row makes of them: row * value, |row| * (|value| + worst), |row| * worst, row^2 * variance,
 * row * bias, |row| * underflow. */
struct gb_spread_sums {
    double value, absolute, worst, variance, bias, underflow;
};
void gb_sum_spreads(const double *row, const struct gb_spreads *h, uint32_t count, struct gb_spread_sums *sums);

/* One column of B D^1/2, docs/numerics.md#error-covariance: scaled[i] = weight * row[i] * sigma[i]. Returns the sum of
 * row[i] * h[i]; *variance is that of scaled[i]^2. */
double gb_sum_scaled(const double *row, const double *h, const double *sigma, double weight, uint32_t count,
                     double *scaled, double *variance);

/* A lower triangle lies row by row: elements before row r, and so of r rows. */
static inline size_t gb_triangle(uint32_t r)
{
    return (size_t)r * ((size_t)r + 1) / 2;
}
/* c += a a^T, rows first .. first + rows - 1. a: [first + rows, columns]; c: a lower triangle. */
void gb_add_gram(const double *a, uint32_t first, uint32_t rows, uint32_t columns, double *c);
/* L x = b in place: x holds b, then x, [count]; l: L, a lower triangle. x is 0 in rows whose element of the diagonal is
 * not above 0. */
void gb_solve_lower(const double *l, uint32_t count, double *x);

/* c [m, n] += a [m, k] . b [k, n], over k in ascending order. a: rows of `stride`. */
void gb_add_product(const float *a, uint32_t stride, uint32_t m, uint32_t k, const double *b, uint32_t n, double *c);

#endif
