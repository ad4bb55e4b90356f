/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "quant/multiversion.h"
#include "reference/truth/sums.h"

/* GRAM_ROWS: their sums with BLOCK rows fill 12 of the 16 registers of AVX2. */
enum { LANES = 8, BLOCK = 4, GRAM_ROWS = 3, TERMS_AT_ONCE = 32 };

#define INLINE static inline __attribute__((always_inline)) /* into functions for any CPU */
/* Unrolled, so that vectors stay in registers. */
#define UNROLLED(n, count) _Pragma("GCC unroll 8") for (size_t n = 0; n < (count); n++)

/* The last terms, filled up with +0, which adds nothing. Returns where to read `LANES` values from. */
static inline const double *tail(const double *array, uint32_t first, uint32_t count, double room[LANES])
{
    memset(room, 0, LANES * sizeof *room);
    memcpy(room, array + first, (count - first) * sizeof *room);
    return room;
}

/* Where terms i .. i + LANES - 1 lie. */
#define TERMS(array, i, count, room) ((i) + LANES <= (count) ? (array) + (i) : tail(array, i, count, room))

/* Of all lanes, [LANES], in ascending order. */
static double total(const void *lanes)
{
    double lane[LANES], sum = 0.0;
    memcpy(lane, lanes, sizeof lane);
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

#define WIDTH 4
#define FOR_CPUS GB_NARROW_CLONES
#define NAMED(name) name##_of_4
#include "reference/truth/sums_loops.h"

/* On other CPUs these would pass through memory, and take several times as long. */
#ifdef GB_WIDE_VECTORS
#define WIDTH 8
#define FOR_CPUS GB_WIDE_VECTORS
#define NAMED(name) name##_of_8
#include "reference/truth/sums_loops.h"
#define BEST(name) (gb_has_wide_vectors() ? name##_of_8 : name##_of_4)
#else
#define BEST(name) name##_of_4
#endif

double *gb_doubles_new(size_t count)
{
    enum { LINE = 64 };
    return aligned_alloc(LINE, (count * sizeof(double) + LINE - 1) / LINE * LINE);
}

void gb_sum_products(const double *a, const double *x, uint32_t count, struct gb_product_sums *sums)
{
    BEST(products)(a, x, count, sums);
}

double gb_sum_inner_product(const double *a, const double *x, uint32_t count)
{
    return BEST(inner_product)(a, x, count);
}

void gb_add_multiple(const double *x, double factor, uint32_t count, double *y)
{
    BEST(add_multiple)(x, factor, count, y);
}

double gb_sum_squared_products(const double *a, const double *x, uint32_t count)
{
    return BEST(squared_products)(a, x, count);
}

void gb_sum_spreads(const double *row, const struct gb_spreads *h, uint32_t count, struct gb_spread_sums *sums)
{
    BEST(spreads)(row, h, count, sums);
}

double gb_sum_scaled(const double *row, const double *h, const double *sigma, double weight, uint32_t count,
                     double *scaled, double *variance)
{
    return BEST(scale)(row, h, sigma, weight, count, scaled, variance);
}

void gb_add_gram(const double *a, uint32_t first, uint32_t rows, uint32_t columns, double *c)
{
    const uint32_t end = first + rows;
    for (uint32_t r = first; r < end; r += GRAM_ROWS)
        for (uint32_t q = 0; q < smaller(r + GRAM_ROWS, end); q += BLOCK) {
            double dots[GRAM_ROWS][BLOCK];
            BEST(gram_block)(a, r, q, end - 1, columns, dots);
            for (uint32_t i = r; i < smaller(r + GRAM_ROWS, end); i++)
                for (uint32_t j = q; j < smaller(q + BLOCK, i + 1); j++)
                    c[gb_triangle(i) + j] += dots[i - r][j - q];
        }
}

/* Elements first .. end - 1 of x, at most BLOCK of one vector of lanes, which begins with `whole`. */
static void solve_rows(const double *l, uint32_t whole, uint32_t first, uint32_t end, double *x)
{
    const double *rows[BLOCK];
    double lanes[BLOCK][LANES];
    for (uint32_t k = 0; k < BLOCK; k++)
        rows[k] = l + gb_triangle(smaller(first + k, end - 1));
    BEST(row_products)(rows, x, whole, lanes);
    for (uint32_t r = first; r < end; r++) {
        const double *row = rows[r - first];
        double *sums = lanes[r - first];
        for (uint32_t i = whole; i < r; i++)
            sums[i - whole] += row[i] * x[i];
        x[r] = row[r] > 0.0 ? (x[r] - total(sums)) / row[r] : 0.0;
    }
}

void gb_solve_lower(const double *l, uint32_t count, double *x)
{
    for (uint32_t r = 0; r < count; r += BLOCK)
        solve_rows(l, r / LANES * LANES, r, smaller(r + BLOCK, count), x);
}

/* The rows of a that begin at `a`, BLOCK of them, of which `count` exist; the last one stands for the others. */
static void widen(const float *a, uint32_t stride, uint32_t count, uint32_t k, double rows[BLOCK][TERMS_AT_ONCE])
{
    for (uint32_t m = 0; m < BLOCK; m++)
        for (uint32_t o = 0; o < k; o++)
            rows[m][o] = (double)a[(size_t)smaller(m, count - 1) * stride + o];
}

void gb_add_product(const float *a, uint32_t stride, uint32_t m, uint32_t k, const double *b, uint32_t n, double *c)
{
    double rows[BLOCK][TERMS_AT_ONCE];
    for (uint32_t o = 0; o < k; o += TERMS_AT_ONCE)
        for (uint32_t r = 0; r < m; r += BLOCK) {
            const uint32_t count = smaller(BLOCK, m - r), terms = smaller(TERMS_AT_ONCE, k - o);
            widen(a + (size_t)r * stride + o, stride, count, terms, rows);
            BEST(add_rows)(rows, count, terms, b + (size_t)o * n, n, c + (size_t)r * n);
        }
}
