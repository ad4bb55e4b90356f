/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "quant/multiversion.h"
#include "reference/truth/sums.h"

enum { LANES = 8, BLOCK = 4 };

/* Loaded from anywhere. */
typedef double lanes __attribute__((vector_size(LANES * sizeof(double)), aligned(sizeof(double)), may_alias));
typedef int64_t words __attribute__((vector_size(LANES * sizeof(int64_t)), aligned(sizeof(int64_t)), may_alias));

#define INLINE static inline __attribute__((always_inline)) /* into each of the clones */
#define AT(array, i) (*(const lanes *)((array) + (i)))
#define MAGNITUDE(v) ((lanes)((words)(v)&INT64_MAX))

#define TOTAL(v) (0.0 + (v)[0] + (v)[1] + (v)[2] + (v)[3] + (v)[4] + (v)[5] + (v)[6] + (v)[7])

/* The last terms, filled up with +0, which adds nothing. Returns where to read `LANES` values from. */
static inline const double *tail(const double *array, uint32_t first, uint32_t count, double room[LANES])
{
    memset(room, 0, LANES * sizeof *room);
    memcpy(room, array + first, (count - first) * sizeof *room);
    return room;
}

/* Where terms i .. i + LANES - 1 lie. */
#define TERMS(array, i, count, room) ((i) + LANES <= (count) ? (array) + (i) : tail(array, i, count, room))

GB_VECTOR_CLONES static void products(const double *a, const double *x, uint32_t count, double sums[2])
{
    lanes sum = {0}, absolute = {0};
    double room[2][LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        lanes p = AT(TERMS(a, i, count, room[0]), 0) * AT(TERMS(x, i, count, room[1]), 0);
        sum += p;
        absolute += MAGNITUDE(p);
    }
    sums[0] = TOTAL(sum);
    sums[1] = TOTAL(absolute);
}

void gb_sum_products(const double *a, const double *x, uint32_t count, double *sum, double *absolute)
{
    double sums[2];
    products(a, x, count, sums);
    *sum = sums[0];
    *absolute = sums[1];
}

GB_VECTOR_CLONES static double inner_product(const double *a, const double *x, uint32_t count)
{
    lanes sum = {0};
    double room[2][LANES];
    for (uint32_t i = 0; i < count; i += LANES)
        sum += AT(TERMS(a, i, count, room[0]), 0) * AT(TERMS(x, i, count, room[1]), 0);
    return TOTAL(sum);
}

double gb_sum_inner_product(const double *a, const double *x, uint32_t count)
{
    return inner_product(a, x, count);
}

GB_VECTOR_CLONES static void add_multiple(const double *x, double factor, uint32_t count, double *y)
{
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        *(lanes *)(y + i) += factor * AT(x, i);
    for (; i < count; i++)
        y[i] += factor * x[i];
}

void gb_add_multiple(const double *x, double factor, uint32_t count, double *y)
{
    add_multiple(x, factor, count, y);
}

GB_VECTOR_CLONES static double squared_products(const double *a, const double *x, uint32_t count)
{
    lanes sum = {0};
    double room[2][LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        lanes p = AT(TERMS(a, i, count, room[0]), 0) * AT(TERMS(x, i, count, room[1]), 0);
        sum += p * p;
    }
    return TOTAL(sum);
}

double gb_sum_squared_products(const double *a, const double *x, uint32_t count)
{
    return squared_products(a, x, count);
}

GB_VECTOR_CLONES static void spreads(const double *row, const struct gb_spreads *h, uint32_t count,
                                     struct gb_spread_sums *sums)
{
    lanes value = {0}, absolute = {0}, worst = {0}, variance = {0}, bias = {0}, underflow = {0};
    double room[6][LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        lanes r = AT(TERMS(row, i, count, room[0]), 0), w = MAGNITUDE(r);
        lanes v = AT(TERMS(h->value, i, count, room[1]), 0), e = AT(TERMS(h->worst, i, count, room[2]), 0);
        value += r * v;
        absolute += w * (MAGNITUDE(v) + e);
        worst += w * e;
        variance += w * w * AT(TERMS(h->variance, i, count, room[3]), 0);
        bias += r * AT(TERMS(h->bias, i, count, room[4]), 0);
        underflow += w * AT(TERMS(h->underflow, i, count, room[5]), 0);
    }
    *sums = (struct gb_spread_sums){TOTAL(value),    TOTAL(absolute), TOTAL(worst),
                                    TOTAL(variance), TOTAL(bias),     TOTAL(underflow)};
}

void gb_sum_spreads(const double *row, const struct gb_spreads *h, uint32_t count, struct gb_spread_sums *sums)
{
    spreads(row, h, count, sums);
}

GB_VECTOR_CLONES static void scale(const double *row, const double *h, const double *sigma, double weight,
                                   uint32_t count, double *scaled, double sums[2])
{
    lanes value = {0}, variance = {0};
    double room[3][LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        lanes r = AT(TERMS(row, i, count, room[0]), 0);
        lanes s = weight * r * AT(TERMS(sigma, i, count, room[1]), 0);
        value += r * AT(TERMS(h, i, count, room[2]), 0);
        variance += s * s;
        if (i + LANES <= count)
            *(lanes *)(scaled + i) = s;
        else
            memcpy(scaled + i, &s, (count - i) * sizeof *scaled);
    }
    sums[0] = TOTAL(value);
    sums[1] = TOTAL(variance);
}

double gb_sum_scaled(const double *row, const double *h, const double *sigma, double weight, uint32_t count,
                     double *scaled, double *variance)
{
    double sums[2];
    scale(row, h, sigma, weight, count, scaled, sums);
    *variance = sums[1];
    return sums[0];
}

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Adds the products of terms i .. i + LANES - 1 of two blocks of rows. */
INLINE void add_terms(const double *const left[BLOCK], const double *const right[BLOCK], uint32_t i,
                      lanes sum[BLOCK][BLOCK])
{
    lanes x[BLOCK], y[BLOCK];
#pragma GCC unroll 4
    for (int k = 0; k < BLOCK; k++) {
        x[k] = AT(left[k], i);
        y[k] = AT(right[k], i);
    }
#pragma GCC unroll 4
    for (int k = 0; k < BLOCK; k++)
#pragma GCC unroll 4
        for (int m = 0; m < BLOCK; m++)
            sum[k][m] += x[k] * y[m];
}

/* The dot products of BLOCK rows from r on with BLOCK rows from c on; rows beyond `last` count as that one. */
GB_VECTOR_CLONES static void gram_block(const double *a, uint32_t r, uint32_t c, uint32_t last, uint32_t columns,
                                        double dots[BLOCK][BLOCK])
{
    lanes sum[BLOCK][BLOCK] = {{{0}}};
    const double *left[BLOCK], *right[BLOCK];
    double room[2][BLOCK][LANES];
    const uint32_t whole = columns / LANES * LANES;
#pragma GCC unroll 4
    for (uint32_t k = 0; k < BLOCK; k++) {
        left[k] = a + (size_t)smaller(r + k, last) * columns;
        right[k] = a + (size_t)smaller(c + k, last) * columns;
    }
    for (uint32_t i = 0; i < whole; i += LANES)
        add_terms(left, right, i, sum);
    if (whole < columns) {
#pragma GCC unroll 4
        for (uint32_t k = 0; k < BLOCK; k++) {
            left[k] = tail(left[k], whole, columns, room[0][k]);
            right[k] = tail(right[k], whole, columns, room[1][k]);
        }
        add_terms(left, right, 0, sum);
    }
#pragma GCC unroll 4
    for (int k = 0; k < BLOCK; k++)
#pragma GCC unroll 4
        for (int m = 0; m < BLOCK; m++)
            dots[k][m] = TOTAL(sum[k][m]);
}

void gb_add_gram(const double *a, uint32_t first, uint32_t rows, uint32_t columns, double *c, uint32_t stride)
{
    const uint32_t end = first + rows;
    for (uint32_t r = first; r < end; r += BLOCK)
        for (uint32_t q = 0; q < smaller(r + BLOCK, end); q += BLOCK) {
            double dots[BLOCK][BLOCK];
            gram_block(a, r, q, end - 1, columns, dots);
            for (uint32_t i = r; i < smaller(r + BLOCK, end); i++)
                for (uint32_t j = q; j < smaller(q + BLOCK, i + 1); j++)
                    c[(size_t)i * stride + j] += dots[i - r][j - q];
        }
}

/* Adds to columns 0 .. 2 * LANES - 1 of BLOCK rows of a product. */
INLINE void product_block(const float *const rows[BLOCK], uint32_t k, const double *b, uint32_t n,
                          double sums[BLOCK][2 * LANES])
{
    lanes sum[BLOCK][2];
#pragma GCC unroll 4
    for (int m = 0; m < BLOCK; m++) {
        sum[m][0] = AT(sums[m], 0);
        sum[m][1] = AT(sums[m], LANES);
    }
    for (uint32_t o = 0; o < k; o++) {
        const lanes x = AT(b, (size_t)o * n), y = AT(b, (size_t)o * n + LANES);
#pragma GCC unroll 4
        for (int m = 0; m < BLOCK; m++) {
            double w = (double)rows[m][o];
            sum[m][0] += w * x;
            sum[m][1] += w * y;
        }
    }
#pragma GCC unroll 4
    for (int m = 0; m < BLOCK; m++) {
        *(lanes *)sums[m] = sum[m][0];
        *(lanes *)(sums[m] + LANES) = sum[m][1];
    }
}

GB_VECTOR_CLONES static void add_rows(const float *const rows[BLOCK], uint32_t count, uint32_t k, const double *b,
                                      uint32_t n, double *c)
{
    uint32_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        double sums[BLOCK][2 * LANES] = {{0}};
        for (uint32_t m = 0; m < count; m++)
            memcpy(sums[m], c + (size_t)m * n + i, sizeof sums[m]);
        product_block(rows, k, b + i, n, sums);
        for (uint32_t m = 0; m < count; m++)
            memcpy(c + (size_t)m * n + i, sums[m], sizeof sums[m]);
    }
    for (uint32_t m = 0; m < count; m++)
        for (uint32_t o = 0; o < k; o++)
            for (uint32_t j = i; j < n; j++)
                c[(size_t)m * n + j] += (double)rows[m][o] * b[(size_t)o * n + j];
}

void gb_add_product(const float *a, uint32_t stride, uint32_t m, uint32_t k, const double *b, uint32_t n, double *c)
{
    for (uint32_t r = 0; r < m; r += BLOCK) {
        const float *rows[BLOCK];
        for (uint32_t i = 0; i < BLOCK; i++)
            rows[i] = a + (size_t)smaller(r + i, m - 1) * stride;
        add_rows(rows, smaller(BLOCK, m - r), k, b, n, c + (size_t)r * n);
    }
}
