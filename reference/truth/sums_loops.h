/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private: the loops of reference/truth/sums.c, which includes them once for every width of vectors.
 *   WIDTH:        terms of a vector, that divide the lanes;
 *   FOR_CPUS:     the attribute of the functions;
 *   NAMED(name):  what they are called.
 */
/* No guard: it is included several times. */

/* Loaded from anywhere. */
typedef double NAMED(vector) __attribute__((vector_size(WIDTH * sizeof(double)), aligned(sizeof(double)), may_alias));
typedef int64_t NAMED(words) __attribute__((vector_size(WIDTH * sizeof(int64_t)), aligned(sizeof(int64_t)), may_alias));

#define VECTORS (LANES / WIDTH)
#define AT(array, n) (*(NAMED(vector) *)((array) + (size_t)(n)*WIDTH))
#define TERMS_AT(array, n) (*(const NAMED(vector) *)((array) + (size_t)(n)*WIDTH))
#define MAGNITUDE(v) ((NAMED(vector))((NAMED(words))(v)&INT64_MAX))

FOR_CPUS static void NAMED(products)(const double *a, const double *x, uint32_t count, struct gb_product_sums *sums)
{
    NAMED(vector) value[VECTORS] = {{0}}, absolute[VECTORS] = {{0}}, squares[VECTORS] = {{0}};
    double room[2][LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        const double *left = TERMS(a, i, count, room[0]), *right = TERMS(x, i, count, room[1]);
        UNROLLED(n, VECTORS) {
            NAMED(vector) p = TERMS_AT(left, n) * TERMS_AT(right, n);
            value[n] += p;
            absolute[n] += MAGNITUDE(p);
            squares[n] += p * p;
        }
    }
    *sums = (struct gb_product_sums){total(value), total(absolute), total(squares)};
}

FOR_CPUS static double NAMED(inner_product)(const double *a, const double *x, uint32_t count)
{
    NAMED(vector) sum[VECTORS] = {{0}};
    double room[2][LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        const double *left = TERMS(a, i, count, room[0]), *right = TERMS(x, i, count, room[1]);
        UNROLLED(n, VECTORS)
            sum[n] += TERMS_AT(left, n) * TERMS_AT(right, n);
    }
    return total(sum);
}

FOR_CPUS static void NAMED(add_multiple)(const double *x, double factor, uint32_t count, double *y)
{
    uint32_t i = 0;
    for (; i + WIDTH <= count; i += WIDTH)
        AT(y + i, 0) += factor * TERMS_AT(x + i, 0);
    for (; i < count; i++)
        y[i] += factor * x[i];
}

FOR_CPUS static double NAMED(squared_products)(const double *a, const double *x, uint32_t count)
{
    NAMED(vector) sum[VECTORS] = {{0}};
    double room[2][LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        const double *left = TERMS(a, i, count, room[0]), *right = TERMS(x, i, count, room[1]);
        UNROLLED(n, VECTORS) {
            NAMED(vector) p = TERMS_AT(left, n) * TERMS_AT(right, n);
            sum[n] += p * p;
        }
    }
    return total(sum);
}

FOR_CPUS static void NAMED(spreads)(const double *row, const struct gb_spreads *h, uint32_t count,
                                    struct gb_spread_sums *sums)
{
    NAMED(vector) value[VECTORS] = {{0}}, absolute[VECTORS] = {{0}}, worst[VECTORS] = {{0}};
    NAMED(vector) variance[VECTORS] = {{0}}, bias[VECTORS] = {{0}}, underflow[VECTORS] = {{0}};
    double room[6][LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        const double *of_row = TERMS(row, i, count, room[0]), *of_value = TERMS(h->value, i, count, room[1]);
        const double *of_worst = TERMS(h->worst, i, count, room[2]);
        const double *of_variance = TERMS(h->variance, i, count, room[3]);
        const double *of_bias = TERMS(h->bias, i, count, room[4]);
        const double *of_underflow = TERMS(h->underflow, i, count, room[5]);
        UNROLLED(n, VECTORS) {
            NAMED(vector) r = TERMS_AT(of_row, n), w = MAGNITUDE(r), v = TERMS_AT(of_value, n);
            NAMED(vector) e = TERMS_AT(of_worst, n);
            value[n] += r * v;
            absolute[n] += w * (MAGNITUDE(v) + e);
            worst[n] += w * e;
            variance[n] += w * w * TERMS_AT(of_variance, n);
            bias[n] += r * TERMS_AT(of_bias, n);
            underflow[n] += w * TERMS_AT(of_underflow, n);
        }
    }
    *sums = (struct gb_spread_sums){total(value),    total(absolute), total(worst),
                                    total(variance), total(bias),     total(underflow)};
}

FOR_CPUS static double NAMED(scale)(const double *row, const double *h, const double *sigma, double weight,
                                    uint32_t count, double *scaled, double *squares)
{
    NAMED(vector) value[VECTORS] = {{0}}, variance[VECTORS] = {{0}};
    double room[3][LANES], last[LANES];
    for (uint32_t i = 0; i < count; i += LANES) {
        const double *of_row = TERMS(row, i, count, room[0]), *of_h = TERMS(h, i, count, room[1]);
        const double *of_sigma = TERMS(sigma, i, count, room[2]);
        double *to = i + LANES <= count ? scaled + i : last;
        UNROLLED(n, VECTORS) {
            NAMED(vector) r = TERMS_AT(of_row, n), s = weight * r * TERMS_AT(of_sigma, n);
            value[n] += r * TERMS_AT(of_h, n);
            variance[n] += s * s;
            AT(to, n) = s;
        }
        if (to == last)
            memcpy(scaled + i, last, (count - i) * sizeof *scaled);
    }
    *squares = total(variance);
    return total(value);
}

/* Of the products of `count` terms of x, whole vectors, and of each of BLOCK rows: the sums of all lanes. */
FOR_CPUS static void NAMED(row_products)(const double *const rows[BLOCK], const double *x, uint32_t count,
                                         double lanes[BLOCK][LANES])
{
    NAMED(vector) sum[BLOCK][VECTORS] = {{{0}}};
    for (uint32_t i = 0; i < count; i += LANES)
        UNROLLED(n, VECTORS) {
            NAMED(vector) terms = TERMS_AT(x + i, n);
            UNROLLED(k, BLOCK)
                sum[k][n] += TERMS_AT(rows[k] + i, n) * terms;
        }
    UNROLLED(k, BLOCK)
        UNROLLED(n, VECTORS)
            AT(lanes[k], n) = sum[k][n];
}

/* Adds the products of terms of two blocks of rows. */
INLINE void NAMED(add_terms)(const double *const left[GRAM_ROWS], const double *const right[BLOCK], size_t i,
                             NAMED(vector) sum[GRAM_ROWS][BLOCK])
{
    NAMED(vector) terms[GRAM_ROWS]; /* read once */
    UNROLLED(k, GRAM_ROWS)
        terms[k] = TERMS_AT(left[k] + i, 0);
    UNROLLED(m, BLOCK) {
        NAMED(vector) x = TERMS_AT(right[m] + i, 0);
        UNROLLED(k, GRAM_ROWS)
            sum[k][m] += terms[k] * x;
    }
}

/* The dot products of GRAM_ROWS rows from r on with BLOCK rows from c on; rows beyond `last` count as that one. */
FOR_CPUS static void NAMED(gram_block)(const double *a, uint32_t r, uint32_t c, uint32_t last, uint32_t columns,
                                       double dots[GRAM_ROWS][BLOCK])
{
    const double *left[GRAM_ROWS], *right[BLOCK], *left_tail[GRAM_ROWS], *right_tail[BLOCK];
    double room[2][BLOCK][LANES], lanes[GRAM_ROWS][BLOCK][LANES];
    const uint32_t whole = columns / LANES * LANES;
    for (uint32_t k = 0; k < GRAM_ROWS; k++) {
        left[k] = a + (size_t)smaller(r + k, last) * columns;
        left_tail[k] = tail(left[k], whole, columns, room[0][k]);
    }
    for (uint32_t k = 0; k < BLOCK; k++) {
        right[k] = a + (size_t)smaller(c + k, last) * columns;
        right_tail[k] = tail(right[k], whole, columns, room[1][k]);
    }
    for (size_t n = 0; n < VECTORS; n++) { /* registers hold the sums of so many lanes */
        NAMED(vector) sum[GRAM_ROWS][BLOCK] = {{{0}}};
        for (uint32_t i = 0; i < whole; i += LANES)
            NAMED(add_terms)(left, right, i + n * WIDTH, sum);
        NAMED(add_terms)(left_tail, right_tail, n * WIDTH, sum);
        UNROLLED(k, GRAM_ROWS)
            UNROLLED(m, BLOCK)
                AT(lanes[k][m], n) = sum[k][m];
    }
    for (int k = 0; k < GRAM_ROWS; k++)
        for (int m = 0; m < BLOCK; m++)
            dots[k][m] = total(lanes[k][m]);
}

/* Adds to columns i .. i + 2 * WIDTH - 1 of BLOCK rows of a product. */
INLINE void NAMED(product_block)(const double rows[BLOCK][TERMS_AT_ONCE], uint32_t k, const double *b, uint32_t n,
                                 uint32_t i, double *const to[BLOCK])
{
    NAMED(vector) sum[BLOCK][2];
    UNROLLED(m, BLOCK)
        UNROLLED(p, 2)
            sum[m][p] = AT(to[m] + i, p);
    for (uint32_t o = 0; o < k; o++) {
        const double *of_b = b + (size_t)o * n + i;
        UNROLLED(m, BLOCK)
            UNROLLED(p, 2)
                sum[m][p] += rows[m][o] * TERMS_AT(of_b, p);
    }
    UNROLLED(m, BLOCK)
        UNROLLED(p, 2)
            AT(to[m] + i, p) = sum[m][p];
}

/* Of BLOCK rows `count` exist; the others are the last one, with the same sums in the same place. */
FOR_CPUS static void NAMED(add_rows)(const double rows[BLOCK][TERMS_AT_ONCE], uint32_t count, uint32_t k,
                                     const double *b, uint32_t n, double *c)
{
    double *to[BLOCK];
    uint32_t i = 0;
    for (uint32_t m = 0; m < BLOCK; m++)
        to[m] = c + (size_t)smaller(m, count - 1) * n;
    for (; i + 2 * WIDTH <= n; i += 2 * WIDTH)
        NAMED(product_block)(rows, k, b, n, i, to);
    for (uint32_t m = 0; m < count; m++)
        for (uint32_t o = 0; o < k; o++)
            for (uint32_t j = i; j < n; j++)
                to[m][j] += rows[m][o] * b[(size_t)o * n + j];
}

#undef VECTORS
#undef AT
#undef TERMS_AT
#undef MAGNITUDE
#undef WIDTH
#undef FOR_CPUS
#undef NAMED
