/* SPDX-License-Identifier: Apache-2.0 */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/invert.h"
#include "quant/quant.h"

#undef I /* complex.h's, which cblas.h includes */

/* Entries of the matrix at most, the share of the equations that unknowns may be, and what of the squared error may be
 * left. */
#define MOST_ENTRIES (1u << 24)
#define MOST_UNKNOWNS 0.95
#define UNEXPLAINED 1e-5

/* The outputs' errors as the products of a matrix with the errors looked for. */
struct system {
    uint32_t equations, unknowns; /* top_k * intermediate */
    float *matrix;                /* [unknowns, equations]: a row for each unknown */
    double *rest;                 /* [equations], what is left of the errors */
    float *left, *products;       /* [equations], rest in FP32; [unknowns], matrix times it */
    double *basis;                /* [most, equations], orthonormal */
    double *factor;               /* [most, most], upper triangular: the chosen rows in the basis */
    double *along;                /* [most]: the errors in the basis */
    double *overlap;              /* [most]: a new row in the basis */
    uint32_t *chosen;             /* [most] */
    uint32_t count, most;
    bool *taken;   /* [unknowns] */
    double *power; /* [unknowns]: squares of the rows */
};

static void system_free(struct system *y)
{
    free(y->matrix);
    free(y->rest);
    free(y->left);
    free(y->products);
    free(y->overlap);
    free(y->basis);
    free(y->factor);
    free(y->along);
    free(y->chosen);
    free(y->taken);
    free(y->power);
}

/* Zeros; of no elements not NULL either. */
static void *array(size_t count, size_t bytes)
{
    return calloc(count ? count : 1, bytes);
}

static enum gb_status system_new(const struct stages *s, uint32_t token, struct system *y, struct gb_error *error)
{
    const struct diagnosis *w = s->diagnosis;
    uint32_t wrong = w->location.wrong_columns, I = s->intermediate;
    uint32_t *column = malloc(wrong * sizeof *column), found = 0;
    double *row = malloc(I * sizeof *row);
    *y = (struct system){.unknowns = s->top_k * I};
    y->equations = wrong < MOST_ENTRIES / y->unknowns ? wrong : MOST_ENTRIES / y->unknowns;
    y->most = (uint32_t)(MOST_UNKNOWNS * y->equations);
    y->most = y->most < y->unknowns ? y->most : y->unknowns;
    y->matrix = array((size_t)y->unknowns * y->equations, sizeof *y->matrix);
    y->rest = array(y->equations, sizeof *y->rest);
    y->basis = array((size_t)y->most * y->equations, sizeof *y->basis);
    y->factor = array((size_t)y->most * y->most, sizeof *y->factor);
    y->along = array(y->most, sizeof *y->along);
    y->overlap = array(y->most, sizeof *y->overlap);
    y->left = array(y->equations, sizeof *y->left);
    y->products = array(y->unknowns, sizeof *y->products);
    y->chosen = array(y->most, sizeof *y->chosen);
    y->taken = array(y->unknowns, sizeof *y->taken);
    y->power = array(y->unknowns, sizeof *y->power);
    bool memory = column && row && y->matrix && y->rest && y->left && y->products && y->basis && y->factor &&
                  y->along && y->overlap && y->chosen && y->taken && y->power;
    for (uint32_t j = 0; memory && j < w->width; j++)
        if (w->location.column[j])
            column[found++] = j;
    for (uint32_t n = 0; memory && n < y->equations; n++) {
        uint32_t j = column[(uint64_t)n * wrong / y->equations];
        y->rest[n] = w->errors[(size_t)token * w->width + j];
        for (uint32_t k = 0; k < s->top_k; k++) {
            size_t p = (size_t)token * s->top_k + k;
            if (s->ids[p] < 0)
                continue;
            gb_weights_row(&w->trace.arguments.down, (uint32_t)s->ids[p], j, row);
            for (uint32_t i = 0; i < I; i++) {
                float v = (float)(s->weights[p] * row[i]);
                y->matrix[((size_t)k * I + i) * y->equations + n] = v;
                y->power[(size_t)k * I + i] += (double)v * (double)v;
            }
        }
    }
    free(column);
    free(row);
    return memory ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory to invert the down projection");
}

static double squares(const double *v, uint32_t n)
{
    return cblas_ddot((int)n, v, 1, v, 1);
}

static uint32_t group_of(const struct stages *s, enum grouping grouping, uint32_t unknown)
{
    const uint32_t i = unknown % s->intermediate, first = unknown - i; /* of the slot */
    switch (grouping) {
    case GROUP_BLOCKS:
        return first + i / 16;
    case GROUP_COLUMNS:
        return i / 16;
    case GROUP_RESIDUES:
        return i % 32;
    default:
        return first + i % 32;
    }
}

/* The group along which most is left, per unknown. */
static uint32_t choose(const struct stages *s, enum grouping grouping, const struct system *y, double *energy,
                       double *power)
{
    const uint32_t groups = y->unknowns; /* at most */
    uint32_t best = groups;
    double most = 0.0;
    for (uint32_t n = 0; n < y->equations; n++)
        y->left[n] = (float)y->rest[n];
    cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)y->unknowns, (int)y->equations, 1.0f, y->matrix, (int)y->equations,
                y->left, 1, 0.0f, y->products, 1);
    memset(energy, 0, groups * sizeof *energy);
    memset(power, 0, groups * sizeof *power);
    for (uint32_t u = 0; u < y->unknowns; u++) {
        if (y->taken[u] || y->power[u] == 0.0)
            continue;
        uint32_t g = group_of(s, grouping, u);
        double c = (double)y->products[u];
        energy[g] += c * c;
        power[g] += y->power[u];
    }
    for (uint32_t g = 0; g < groups; g++)
        if (power[g] > 0.0 && energy[g] / power[g] > most) {
            most = energy[g] / power[g];
            best = g;
        }
    return best;
}

/* Adds one unknown: by Gram and Schmidt, twice. */
static void take(struct system *y, uint32_t unknown)
{
    double *q = y->basis + (size_t)y->count * y->equations;
    const float *row = y->matrix + (size_t)unknown * y->equations;
    y->taken[unknown] = true;
    for (uint32_t n = 0; n < y->equations; n++)
        q[n] = (double)row[n];
    int rows = (int)y->count, columns = (int)y->equations, most = (int)y->most;
    for (int pass = 0; rows && pass < 2; pass++) {
        cblas_dgemv(CblasRowMajor, CblasNoTrans, rows, columns, 1.0, y->basis, columns, q, 1, 0.0, y->overlap, 1);
        cblas_dgemv(CblasRowMajor, CblasTrans, rows, columns, -1.0, y->basis, columns, y->overlap, 1, 1.0, q, 1);
        cblas_daxpy(rows, 1.0, y->overlap, 1, y->factor + y->count, most);
    }
    double length = sqrt(squares(q, y->equations));
    if (length < 1e-6 * sqrt(y->power[unknown])) {
        cblas_dscal(rows, 0.0, y->factor + y->count, most);
        return;
    }
    cblas_dscal(columns, 1.0 / length, q, 1);
    y->factor[(size_t)y->count * y->most + y->count] = length;
    y->along[y->count] = cblas_ddot(columns, q, 1, y->rest, 1);
    cblas_daxpy(columns, -y->along[y->count], q, 1, y->rest, 1);
    y->chosen[y->count++] = unknown;
}

static void solve(const struct system *y, double *delta)
{
    memset(delta, 0, y->unknowns * sizeof *delta);
    if (!y->count) /* of few equations none may be taken */
        return;
    cblas_dtrsv(CblasRowMajor, CblasUpper, CblasNoTrans, CblasNonUnit, (int)y->count, y->factor, (int)y->most, y->along,
                1);
    for (uint32_t c = 0; c < y->count; c++)
        delta[y->chosen[c]] = y->along[c];
}

enum gb_status invert(const struct stages *s, uint32_t token, enum grouping grouping, double most, double *delta,
                      double *work, struct gb_error *error)
{
    struct system y;
    enum gb_status status = system_new(s, token, &y, error);
    double *energy = malloc(y.unknowns * sizeof *energy), *power = malloc(y.unknowns * sizeof *power);
    if (status == GB_OK && (!energy || !power))
        status = gb_fail(error, GB_ENOMEM, "no memory to invert the down projection");
    double all = status == GB_OK ? squares(y.rest, y.equations) : 0.0;
    double products = 0.0;
    while (status == GB_OK && squares(y.rest, y.equations) > UNEXPLAINED * all) {
        products += (double)y.unknowns * y.equations;
        uint32_t g = choose(s, grouping, &y, energy, power), members = 0;
        for (uint32_t u = 0; u < y.unknowns; u++)
            members += !y.taken[u] && group_of(s, grouping, u) == g;
        products += 4.0 * members * y.count * y.equations;
        if (g == y.unknowns || y.count + members > y.most || products > most)
            status = GB_EUNSUPPORTED;
        for (uint32_t u = 0; status == GB_OK && u < y.unknowns; u++)
            if (!y.taken[u] && y.power[u] > 0.0 && group_of(s, grouping, u) == g)
                take(&y, u);
    }
    if (status == GB_OK)
        solve(&y, delta);
    *work += products;
    system_free(&y);
    free(energy);
    free(power);
    return status;
}
