/* SPDX-License-Identifier: Apache-2.0 */
/* The router's part of docs/numerics.md#bounds. */
#include "tests/oracle/bounds.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static const long double rounding = 0x1p-24L; /* u' */

struct logit {
    long double l, error;
};

static struct logit logit_of(const struct gb_arguments *a, uint32_t e, const double *x, unsigned bits,
                             long double lambda)
{
    const uint32_t H = a->shape.hidden;
    const long double u = ldexpl(1, -(int)bits), n = H + 4;
    struct logit r = {0, 0};
    long double S = 0, Q = 0, V, P, b = 0, unit = INFINITY;
    for (uint32_t i = 0; i < H; i++) {
        long double term = (long double)oracle_weight_code(&a->router_weights, 0, e, i) * (long double)x[i];
        r.l += term;
        S += fabsl(term);
        Q += term * term;
        while (isfinite(term) && term != 0 && fmodl(term, unit) != 0)
            unit = isinf(unit) ? ldexpl(1, ilogbl(term)) : unit / 2;
    }
    P = fabsl(r.l) * sqrtl((n + 2) / 3) + lambda * sqrtl((n + 1) * Q / 2);
    P = fminl(n * S * S, P * P);
    V = u * u * P / 3;
    if (bits < 24) {
        V = fmaxl(V, u * u * P / 12 + (n + 1) * (n + 1) * u * u * (Q + r.l * r.l / 16) / 16);
        b = n * u * fabsl(r.l) / 2;
    }
    r.error = fminl((powl(1 + u, n) - 1) * S, lambda * sqrtl(V) + b);
    if (S <= ldexpl(unit, (int)bits) && unit >= (long double)FLT_MIN)
        r.error = 0;
    if (S * (1 + n * u) > (long double)FLT_MAX || isnan(S))
        r.error = INFINITY;
    if (a->router->bias == GB_ROUTER_BIAS_LOGIT) {
        r.l += (long double)a->router_bias[e];
        r.error += rounding * (fabsl(r.l) + r.error);
    }
    if (a->router->logits == GB_BF16)
        r.error += 0x1p-8L * (fabsl(r.l) + r.error);
    return r;
}

static long double logistic(long double v)
{
    return 1 / (1 + expl(-v));
}

/* "Choice" of one expert, before groups. */
static void choice(const struct gb_arguments *a, uint32_t e, const struct logit *logits, long double m, long double D,
                   long double *low, long double *high)
{
    const struct gb_router *router = a->router;
    bool added = router->bias == GB_ROUTER_BIAS_CHOICE || router->bias == GB_ROUTER_BIAS_LOSSY;
    long double l = logits[e].l, err = logits[e].error, sum = 0;
    *low = l - err;
    *high = l + err;
    if (router->score == GB_ROUTER_SCORE_SIGMOID) {
        *low = logistic(l - err) * (1 - 16 * rounding) - 0x1p-120L;
        *high = logistic(l + err) * (1 + 16 * rounding) + 0x1p-120L;
    }
    if (router->score == GB_ROUTER_SCORE_SOFTMAX || router->score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL) {
        *low = l - (err + rounding * (16 + m - l + 2 * D));
        *high = l + (err + rounding * (16 + m - l + 2 * D));
        if (*low < m + 2 * D - 86)
            *low = -INFINITY;
        if (*high < m - 86)
            *high = m - 86;
        if (added || router->groups > 1) {
            long double F = expl(2 * D + (a->shape.experts + 16) * rounding);
            for (uint32_t other = 0; other < a->shape.experts; other++)
                sum += expl(logits[other].l - m);
            *low = expl(*low - m) / sum / F;
            *high = expl(*high - m) / sum * F;
        }
    }
    if (added) {
        long double b = (long double)a->router_bias[e], slack = rounding * (fabsl(*high) + fabsl(b));
        *low = *low + b - slack;
        *high = *high + b + slack;
    }
}

/* The sum of the `terms` largest, moved by `outward` times its rounding. Sorts values. */
static long double group_score(long double *values, uint32_t count, uint32_t terms, int outward)
{
    long double sum = 0, magnitudes = 0;
    for (uint32_t i = 0; i < terms; i++) {
        for (uint32_t n = i + 1; n < count; n++)
            if (values[n] > values[i]) {
                long double swap = values[i];
                values[i] = values[n];
                values[n] = swap;
            }
        sum += values[i];
        magnitudes += fabsl(values[i]);
    }
    return isinf(sum) ? sum : sum + outward * (terms * rounding * magnitudes);
}

static void groups(const struct gb_arguments *a, long double *low, long double *high)
{
    const uint32_t count = a->router->groups, size = a->shape.experts / count, kept = a->router->kept_groups;
    const long double masked = (long double)a->router->masked;
    long double *least = malloc(sizeof *least * count), *most = malloc(sizeof *most * count),
                *sorted = malloc(sizeof *sorted * size);
    uint32_t terms = a->router->group_terms ? a->router->group_terms : a->shape.top_k / kept;
    if (!least || !most || !sorted)
        abort();
    terms = terms < 1 ? 1 : terms > size ? size : terms;
    for (uint32_t g = 0; g < count; g++) {
        for (uint32_t i = 0; i < size; i++)
            sorted[i] = low[g * size + i];
        least[g] = group_score(sorted, size, terms, -1);
        for (uint32_t i = 0; i < size; i++)
            sorted[i] = high[g * size + i];
        most[g] = group_score(sorted, size, terms, 1);
    }
    for (uint32_t g = 0; g < count; g++) {
        uint32_t can_reach = 0, must_beat = 0;
        for (uint32_t other = 0; other < count; other++) {
            can_reach += other != g && most[other] >= least[g];
            must_beat += other != g && least[other] > most[g];
        }
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            if (must_beat >= kept)
                low[e] = high[e] = masked;
            else if (can_reach >= kept) {
                low[e] = fminl(low[e], masked);
                high[e] = fmaxl(high[e], masked);
            }
        }
    }
    free(least);
    free(most);
    free(sorted);
}

/* "Weights" */
static long double missed(const struct gb_arguments *a, const struct logit *logits, long double D, long double lambda)
{
    const long double E = a->shape.experts;
    long double least = logits[0].l, most = logits[0].l, bias = 0;
    if (isinf(D))
        return INFINITY;
    for (uint32_t e = 0; e < a->shape.experts; e++) {
        least = fminl(least, logits[e].l);
        most = fmaxl(most, logits[e].l);
        if (a->router->bias == GB_ROUTER_BIAS_LOSSY)
            bias = fmaxl(bias, fabsl((long double)a->router_bias[e]));
    }
    long double R = most - least, A = fminl(E, lambda * sqrtl(E / 3));
    long double rel = expm1l(2 * D + rounding * (A + 40 + 2 * (R + 2 * D + logl(E))));
    if (a->router->bias == GB_ROUTER_BIAS_LOSSY)
        rel += 4 * rounding * (1 + bias) * (1 + expl(D - least));
    if (a->router->weights == GB_BF16)
        rel += 0x1p-8L * (1 + rel);
    return rel;
}

void oracle_bound_router(const struct gb_arguments *a, const double *x, unsigned bits, long double lambda,
                         long double *low, long double *high, long double *relative)
{
    const uint32_t E = a->shape.experts;
    struct logit *logits = malloc(sizeof *logits * E);
    if (!logits)
        abort();
    for (uint32_t t = 0; t < a->shape.tokens; t++) {
        long double D = 0, m = -INFINITY;
        for (uint32_t e = 0; e < E; e++) {
            logits[e] = logit_of(a, e, x + (size_t)t * a->shape.hidden, bits, lambda);
            D = fmaxl(D, logits[e].error);
            m = fmaxl(m, logits[e].l);
        }
        for (uint32_t e = 0; e < E; e++)
            choice(a, e, logits, m, D, &low[(size_t)t * E + e], &high[(size_t)t * E + e]);
        if (a->router->groups > 1)
            groups(a, low + (size_t)t * E, high + (size_t)t * E);
        relative[t] = missed(a, logits, D, lambda);
    }
    free(logits);
}
