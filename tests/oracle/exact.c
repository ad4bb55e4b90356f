/* SPDX-License-Identifier: Apache-2.0 */
/* docs/numerics.md#exact, of bf16 activations. Units are found by dividing by two. */
#include "tests/oracle/bounds.h"

#include <math.h>
#include <stdlib.h>

/* The largest power of two that v is a multiple of; infinite for 0, which is left out of every minimum. */
static long double unit(long double v)
{
    int e;
    if (v == 0)
        return INFINITY;
    frexpl(v, &e);
    while (ldexpl(v, -e) != floorl(ldexpl(v, -e)))
        e--;
    return ldexpl(1, e);
}

static bool at_most(int bits, long double v)
{
    return v == 0 || fabsl(v) / unit(v) < ldexpl(1, bits);
}

static long double weight(const struct gb_weights *w, uint32_t expert, uint32_t row, uint32_t column)
{
    return (long double)oracle_weight_code(w, expert, row, column) *
           (long double)oracle_weight_scale(w, expert, row, column) * (long double)oracle_global_scale(w, expert, row);
}

struct work {
    const struct gb_arguments *a;
    const struct oracle_declared *declared;
    bool exact;
    long double bits;
    long double closed, rows; /* max w |up|, max sum of |r w| */
};

/* Conditions 1 to 3 of a sum of magnitudes S whose terms are multiples of k. */
static void sum(struct work *w, long double S, long double k)
{
    if (S == 0)
        return;
    w->exact &= S <= ldexpl(k, (int)w->declared->bits < 24 ? (int)w->declared->bits : 24);
    w->exact &= S <= 0x1p100L && k >= 0x1p-100L;
    w->bits = fmaxl(w->bits, log2l(S / k));
}

/* The dot product of a row of gate_up. */
static long double projection(struct work *w, uint32_t expert, uint32_t row, const double *x)
{
    long double value = 0, S = 0, unit_w = INFINITY, unit_x = INFINITY;
    for (uint32_t i = 0; i < w->a->shape.hidden; i++) {
        long double v = weight(&w->a->gate_up, expert, row, i), xi = (long double)x[i];
        value += v * xi;
        S += fabsl(v * xi);
        unit_w = fminl(unit_w, unit(v));
        unit_x = fminl(unit_x, unit(xi));
    }
    sum(w, S, unit_w * unit_x);
    return value;
}

static long double intermediate(struct work *w, long double gate, long double up)
{
    long double silu = gate >= 32 ? gate : 0, h = silu * up;
    if (gate <= -110) {
        long double f = gate / (1 + expl(-gate));
        long double own = (8 + 2.4L * fabsl(gate)) * 0x1p-24L * fabsl(f) + 0x1p-120L + 0x1p-127L * fabsl(gate);
        w->closed = fmaxl(w->closed, own * fabsl(up));
    }
    w->exact &= gate == 0 || gate >= 32 || gate <= -110;
    w->exact &= at_most((int)w->declared->bits < 24 ? (int)w->declared->bits : 24, h);
    w->exact &= !w->declared->gate_up || (at_most(8, gate) && at_most(8, up));
    w->exact &= !w->declared->silu || h == 0 || at_most(8, silu);
    w->exact &= w->declared->intermediate || at_most(8, h);
    return (long double)oracle_decode(ORACLE_BF16, oracle_encode(ORACLE_BF16, (float)h));
}

/* One output of one token. h: [top_k, intermediate] */
static void output(struct work *w, uint32_t token, uint32_t o, const double *weights, const long double *h)
{
    long double S = 0, k = INFINITY, rows = 0;
    for (uint32_t j = 0; j < w->a->shape.top_k; j++) {
        int32_t expert = w->a->ids[token * w->a->shape.top_k + j];
        long double r = (long double)weights[token * w->a->shape.top_k + j], unit_w = INFINITY, unit_h = INFINITY;
        long double value = 0, magnitudes = 0;
        for (uint32_t i = 0; expert >= 0 && i < w->a->shape.intermediate; i++) {
            long double v = weight(&w->a->down, (uint32_t)expert, o, i);
            long double hi = h[(size_t)j * w->a->shape.intermediate + i];
            value += v * hi;
            magnitudes += fabsl(v * hi);
            rows += fabsl(r * v);
            unit_w = fminl(unit_w, unit(v));
            unit_h = fminl(unit_h, unit(hi));
        }
        S += fabsl(r) * magnitudes;
        if (r != 0 && magnitudes != 0)
            k = fminl(k, unit(r) * unit_w * unit_h);
        if (w->declared->slot || w->declared->weighted)
            w->exact &= at_most(8, value) && at_most(8, r * value);
        w->exact &= !w->declared->routing_weight || expert < 0 || at_most(8, r);
    }
    sum(w, S, k);
    w->rows = fmaxl(w->rows, rows);
}

bool oracle_exact(const struct gb_arguments *a, const double *x, const double *weights,
                  const struct oracle_declared *declared, long double *bits, long double closed[2])
{
    const uint32_t I = a->shape.intermediate, K = a->shape.top_k;
    struct work w = {a, declared, true, 0, 0, 0};
    long double *h = calloc((size_t)K * I, sizeof *h);
    if (!h)
        abort();
    for (uint32_t t = 0; t < a->shape.tokens; t++) {
        for (uint32_t p = 0; p < K * I; p++) {
            int32_t expert = a->ids[t * K + p / I];
            const double *token = x + (size_t)t * a->shape.hidden;
            h[p] = 0;
            if (expert < 0)
                continue;
            long double gate = projection(&w, (uint32_t)expert, p % I, token);
            h[p] = intermediate(&w, gate, projection(&w, (uint32_t)expert, I + p % I, token));
        }
        for (uint32_t o = 0; o < a->shape.hidden; o++)
            output(&w, t, o, weights, h);
    }
    free(h);
    *bits = w.bits;
    closed[0] = 4 * w.closed;
    closed[1] = 4 * closed[0] * w.rows;
    return w.exact;
}
