/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "quant/multiversion.h"
#include "reference/truth/sums.h"

enum { LANES = 8, BLOCK = 4 };

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

void gb_sum_products(const double *a, const double *x, uint32_t count, double *sum, double *absolute)
{
    double sums[2];
    BEST(products)(a, x, count, sums);
    *sum = sums[0];
    *absolute = sums[1];
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

void gb_add_gram(const double *a, uint32_t first, uint32_t rows, uint32_t columns, double *c, uint32_t stride)
{
    const uint32_t end = first + rows;
    for (uint32_t r = first; r < end; r += BLOCK)
        for (uint32_t q = 0; q < smaller(r + BLOCK, end); q += BLOCK) {
            double dots[BLOCK][BLOCK];
            BEST(gram_block)(a, r, q, end - 1, columns, dots);
            for (uint32_t i = r; i < smaller(r + BLOCK, end); i++)
                for (uint32_t j = q; j < smaller(q + BLOCK, i + 1); j++)
                    c[(size_t)i * stride + j] += dots[i - r][j - q];
        }
}

void gb_add_product(const float *a, uint32_t stride, uint32_t m, uint32_t k, const double *b, uint32_t n, double *c)
{
    for (uint32_t r = 0; r < m; r += BLOCK) {
        const float *rows[BLOCK];
        for (uint32_t i = 0; i < BLOCK; i++)
            rows[i] = a + (size_t)smaller(r + i, m - 1) * stride;
        BEST(add_rows)(rows, smaller(BLOCK, m - r), k, b, n, c + (size_t)r * n);
    }
}
