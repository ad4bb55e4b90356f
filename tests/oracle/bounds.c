/* SPDX-License-Identifier: Apache-2.0 */
/* docs/numerics.md#bounds but for its router, and "Down by itself" of #stages. */
#include "tests/oracle/bounds.h"

#include <math.h>
#include <stdlib.h>

static long double square(long double v)
{
    return v * v;
}

/* 2^-p */
static long double roundoff(const struct oracle_declared *declared)
{
    return ldexpl(1, -(int)declared->bits);
}

/* (1 + u)^n - 1, as the binomial sum: n u is far below 1. */
static long double gamma_of(long double n, long double u)
{
    long double term = n * u, sum = 0;
    for (int k = 2; k < 40; k++) {
        sum += term;
        term *= (n - k + 1) / k * u;
    }
    return sum;
}

/* Half an ulp of bf16, found by searching the exponent. */
static long double half_ulp(long double v)
{
    int e = -126;
    v = fabsl(v);
    if (v == 0)
        return 0;
    while (e < 128 && v >= ldexpl(1, e + 1))
        e++;
    return ldexpl(1, e - 8);
}

/* T of a sum of n roundings */
static long double order_of(long double p, long double n, long double d, long double Q)
{
    return p < 24 ? square((n + 1) * ldexpl(1, -(int)p)) * (Q + d * d / 16) / 16 : 0;
}

/* V of a sum: n (u M)^2 / 3 where it rounds to nearest */
static long double variance_of(long double p, long double n, long double square_of_M, long double T)
{
    long double u = ldexpl(1, -(int)p);
    return p < 24 ? fmaxl(n * u * u * square_of_M / 3, n * u * u * square_of_M / 12 + T) : n * u * u * square_of_M / 3;
}

static void to_bf16(bool declared, struct oracle_error *v)
{
    if (!declared)
        return;
    long double a = half_ulp(fabsl(v->value) + v->worst);
    v->worst += a;
    v->variance += a * a / 3;
    v->typical += a * a / 3;
}

static long double weight(const struct gb_weights *w, uint32_t expert, uint32_t row, uint32_t column)
{
    return (long double)oracle_weight_code(w, expert, row, column) *
           (long double)oracle_weight_scale(w, expert, row, column) * (long double)oracle_global_scale(w, expert, row);
}

static long double at_least_one(long double v)
{
    return v > 1 ? v : 1; /* of NaN, too */
}

/* "Underflow": A of a row of weights */
static long double weights_reach(const struct gb_weights *w, uint32_t expert, uint32_t row)
{
    long double codes = 1, scales = 1;
    for (uint32_t i = 0; i < w->columns; i++) {
        codes = fmaxl(codes, at_least_one(fabsl((long double)oracle_weight_code(w, expert, row, i))));
        scales = fmaxl(scales, at_least_one(fabsl((long double)oracle_weight_scale(w, expert, row, i))));
    }
    return codes * scales * at_least_one(fabsl((long double)oracle_global_scale(w, expert, row)));
}

/* "Underflow": B of values of which the largest has this magnitude */
static long double values_reach(const struct oracle_declared *declared, long double most, float d)
{
    if (!declared->recipe)
        return at_least_one(most);
    if (declared->recipe->element == GB_E2M1)
        return 6 * 448 * at_least_one((long double)d);
    return 448 * at_least_one(most);
}

/* "Underflow": eta */
static long double eta(const struct oracle_declared *declared)
{
    return ldexpl(1, -125 - (int)declared->bits);
}

/* "Gate and up" */
static struct oracle_error projection(const struct gb_arguments *a, uint32_t expert, uint32_t row, const double *x,
                                      const struct oracle_declared *declared)
{
    const uint32_t C = a->shape.hidden;
    const long double q = declared->recipe ? 1 : 0, beta = a->gate_up_bias ? 1 : 0, u = roundoff(declared);
    long double bias = 0, d = 0, S = 0, Q = 0, most = 0, n = C + 4 + 2 * q + beta;
    if (a->gate_up_bias)
        bias = (long double)a->gate_up_bias[(size_t)expert * 2 * a->shape.intermediate + row];
    for (uint32_t i = 0; i < C; i++) {
        long double term = weight(&a->gate_up, expert, row, i) * (long double)x[i];
        d += term;
        S += fabsl(term);
        Q += square(term);
        most = fmaxl(most, fabsl((long double)x[i]));
    }
    S += fabsl(bias);
    Q += square(bias);
    struct oracle_error r = {.value = d, .scale = n * u * S};
    r.underflow = (C + 1.0L) * (6 + 2 * q) * eta(declared) * (1 + gamma_of(n, u)) *
                  weights_reach(&a->gate_up, expert, row) * values_reach(declared, most, declared->d_x);
    r.worst = gamma_of(n, u) * S + r.underflow;
    long double T = order_of(declared->bits, n, d + bias, Q);
    r.variance = variance_of(declared->bits, n, S * S, T);
    r.typical = n * square(u) * (square(d + bias) + Q) / 3;
    r.bias = n * u * (d + bias) / 2;
    if (a->gate_up_bias)
        to_bf16(declared->gate_up, &r);
    r.value = d + bias;
    to_bf16(declared->gate_up, &r);
    return r;
}

/* "Activation": w of f = g sigmoid(z) */
static long double activation_error(long double g, long double z, long double f)
{
    return (8 + 2.4L * fabsl(z)) * 0x1p-24L * fabsl(f) + 0x1p-120L + 0x1p-127L * fabsl(g);
}

long double oracle_silu_error(long double gate)
{
    return activation_error(gate, gate, gate / (1 + expl(-gate)));
}

/* "Activation": f */
static struct oracle_error activated(bool oai, struct oracle_error gate, const struct oracle_declared *declared)
{
    bool clamped = oai && gate.value > 7;
    long double g = clamped ? 7 : gate.value, z = oai ? 1.702L * g : g, sigmoid = 1 / (1 + expl(-z));
    struct oracle_error f = {.value = g * sigmoid};
    long double w = activation_error(g, z, f.value) + (oai ? 0x1p-24L : 0);
    f.worst = 1.1L * gate.worst + w;
    f.variance = square(1.1L) * gate.variance + w * w / 3;
    f.typical = square(1.1L) * gate.typical + w * w / 3;
    f.bias = f.value < 0 || (f.value == 0 && signbit(gate.value)) ? -w : w;
    if (!clamped)
        f.bias += sigmoid * (1 + z * (1 - sigmoid)) * gate.bias;
    f.underflow = 1.1L * gate.underflow;
    f.scale = w + 1.1L * gate.scale;
    to_bf16(declared->silu, &f);
    return f;
}

/* "Activation": v */
static struct oracle_error other_factor(bool oai, struct oracle_error up, long double u)
{
    if (!oai)
        return up;
    bool clamped = fabsl(up.value) > 7;
    struct oracle_error v = up;
    v.value = 1 + (up.value > 7 ? 7 : up.value < -7 ? -7 : up.value);
    long double a = u * (fabsl(v.value) + up.worst);
    v.worst = up.worst + a;
    v.variance = up.variance + a * a / 3;
    v.typical = up.typical + a * a / 3;
    v.bias = (clamped ? 0 : up.bias) + u * v.value;
    v.scale += u * 8;
    return v;
}

/* "Intermediate" */
static struct oracle_error product(struct oracle_error f, struct oracle_error v, long double u, long double unit)
{
    struct oracle_error h = {.value = f.value * v.value};
    long double a = u * (fabsl(f.value) + f.worst) * (fabsl(v.value) + v.worst);
    h.worst = fabsl(v.value) * f.worst + fabsl(f.value) * v.worst + f.worst * v.worst + a + unit;
    h.underflow = (fabsl(v.value) + v.worst) * f.underflow + (fabsl(f.value) + f.worst) * v.underflow + unit;
    h.variance =
        square(v.value) * f.variance + square(f.value) * v.variance + a * a / 3 + 100 * f.variance * v.variance;
    h.typical = square(v.value) * f.typical + square(f.value) * v.typical + a * a / 3 + f.typical * v.typical;
    h.bias = v.value * f.bias + f.value * v.bias + u * h.value;
    h.scale = fabsl(v.value) * f.scale + fabsl(f.value) * v.scale + f.worst * v.scale + f.scale * v.worst;
    return h;
}

void oracle_bound_intermediate(const struct gb_arguments *a, const double *x, const struct oracle_declared *declared,
                               struct oracle_error *unrounded, struct oracle_error *rounded)
{
    const uint32_t I = a->shape.intermediate;
    const bool oai = a->activation == GB_SWIGLU_OAI;
    for (size_t at = 0; at < (size_t)a->shape.tokens * a->shape.top_k * I; at++) {
        size_t pair = at / I;
        uint32_t i = (uint32_t)(at % I);
        unrounded[at] = rounded[at] = (struct oracle_error){0};
        if (a->ids[pair] < 0)
            continue;
        const double *token = x + pair / a->shape.top_k * a->shape.hidden;
        struct oracle_error gate = projection(a, (uint32_t)a->ids[pair], i, token, declared);
        struct oracle_error up = projection(a, (uint32_t)a->ids[pair], I + i, token, declared);
        unrounded[at] = product(activated(oai, gate, declared), other_factor(oai, up, roundoff(declared)),
                                roundoff(declared), eta(declared));
        rounded[at] = unrounded[at];
        to_bf16(declared->intermediate, &rounded[at]);
    }
}

/* The bf16 number nearest to the binary32 number nearest to v. */
static float bf16_of(long double v)
{
    return (float)oracle_decode(ORACLE_BF16, oracle_encode(ORACLE_BF16, (float)v));
}

struct ends {
    float low, middle, high;
};

static float smaller_magnitude(const struct ends *e)
{
    if (e->low <= 0 && e->high >= 0)
        return 0;
    return fminf(fabsf(e->low), fabsf(e->high));
}

/* The bf16 number above a positive one. */
static float next_bf16(float v)
{
    return (float)oracle_decode(ORACLE_BF16, oracle_encode(ORACLE_BF16, v) + 1);
}

static void widen(const struct oracle_declared *declared, float A, const struct ends *ends, uint32_t columns,
                  struct oracle_error *codes)
{
    for (uint32_t i = 0; i < columns; i++)
        for (int end = 0; end < 2; end++) {
            float v = end ? ends[i].high : ends[i].low;
            long double number = oracle_quantised_number(declared->recipe, A, v, declared->d_h);
            codes[i].worst = fmaxl(codes[i].worst, fabsl(number - codes[i].value));
        }
}

/* "Quantised intermediate", one block. */
static void block_codes(const struct oracle_declared *declared, const struct oracle_error *unrounded, uint32_t columns,
                        struct oracle_error *codes)
{
    struct ends ends[128];
    float least = 0, middle = 0, most = 0;
    bool open = declared->recipe->four_over_six != GB_SIX;
    for (uint32_t i = 0; i < columns; i++) {
        const struct oracle_error *h = &unrounded[i];
        long double likely = declared->lambda * sqrtl(h->variance) + h->underflow + fabsl(h->bias),
                    c = fminl(h->worst, likely);
        ends[i] = (struct ends){bf16_of(h->value - c), bf16_of(h->value), bf16_of(h->value + c)};
        least = fmaxf(least, smaller_magnitude(&ends[i]));
        middle = fmaxf(middle, fabsf(ends[i].middle));
        most = fmaxf(most, fmaxf(fabsf(ends[i].low), fabsf(ends[i].high)));
        open |= !isfinite(ends[i].low) || !isfinite(ends[i].high);
    }
    for (uint32_t i = 0; i < columns; i++)
        codes[i] = (struct oracle_error){
            .value = open ? 0 : oracle_quantised_number(declared->recipe, middle, ends[i].middle, declared->d_h)};
    long double before = -1;
    unsigned scales = 0;
    for (float A = least; !open && A <= most; A = next_bf16(A)) {
        long double scale = oracle_quantised_scale(declared->recipe, A, declared->d_h);
        if (scale != before) {
            widen(declared, A, ends, columns, codes);
            open = ++scales > 512;
        }
        before = scale;
    }
    for (uint32_t i = 0; open && i < columns; i++)
        codes[i].worst = INFINITY;
}

void oracle_bound_codes(const struct gb_arguments *a, const struct oracle_declared *declared,
                        const struct oracle_error *unrounded, struct oracle_error *codes)
{
    uint32_t columns = declared->recipe->block_columns;
    size_t count = (size_t)a->shape.tokens * a->shape.top_k * a->shape.intermediate;
    for (size_t first = 0; first < count; first += columns)
        block_codes(declared, unrounded + first, columns, codes + first);
}

/* What the slots of one output add up to: "Output". */
struct sums {
    long double y, S, W_c, V_c, b, T, R, U, scale;
};

/* The declared roundings of slots: half-widths a, three at most. */
static void slot_roundings(const struct oracle_declared *declared, bool biased, long double r, long double d,
                           long double bias, long double e, long double a[3])
{
    a[0] = a[1] = a[2] = 0;
    if (declared->slot && biased) {
        a[0] = fabsl(r) * half_ulp(fabsl(d) + e);
        e = e + half_ulp(fabsl(d) + e);
    }
    long double m = fabsl(d + bias) + e;
    if (declared->slot) {
        a[1] = fmaxl(fabsl(r) * half_ulp(m), half_ulp(fabsl(r) * m));
        m = m + half_ulp(m);
    }
    if (declared->weighted)
        a[2] = half_ulp(fabsl(r) * m);
}

static void add_slot(const struct gb_arguments *a, uint32_t expert, uint32_t o, long double r,
                     const struct oracle_declared *declared, const struct oracle_error *h, bool given,
                     struct sums *sums)
{
    const long double q = declared->recipe ? 1 : 0, beta = a->down_bias ? 1 : 0, u = roundoff(declared);
    long double bias = a->down_bias ? (long double)a->down_bias[(size_t)expert * a->shape.hidden + o] : 0;
    long double d = 0, S = fabsl(bias), Q = bias * bias, E = 0, V = 0, b = 0, U = 0, most = 0, halves[3];
    for (uint32_t i = 0; i < a->shape.intermediate; i++) {
        long double w = weight(&a->down, expert, o, i);
        d += w * h[i].value;
        Q += square(w * h[i].value);
        S += fabsl(w) * (fabsl(h[i].value) + h[i].worst);
        E += given ? 0 : fabsl(w) * h[i].worst;
        V += given ? 0 : w * w * h[i].variance;
        b += given ? 0 : w * h[i].bias;
        U += given ? 0 : fabsl(w) * h[i].underflow;
        most = fmaxl(most, fabsl(h[i].value) + h[i].worst);
        sums->scale += given ? 0 : fabsl(r * w) * (fabsl(h[i].bias) + h[i].scale);
    }
    long double n = a->shape.intermediate + 4 + 2 * q + beta;
    long double of_layer = a->shape.top_k * (a->shape.intermediate + 1 + beta) + 6 + 2 * q;
    long double own = (a->shape.intermediate + 1.0L) * (8 + 2 * q) * eta(declared) * (1 + gamma_of(of_layer, u)) *
                      weights_reach(&a->down, expert, o) * values_reach(declared, most, declared->d_h) *
                      at_least_one(fabsl(r));
    slot_roundings(declared, a->down_bias, r, d, bias, E + gamma_of(n, u) * S + own, halves);
    sums->U += fabsl(r) * U + own;
    sums->y += r * (d + bias);
    sums->T += r * r * order_of(declared->bits, n, d + bias, Q);
    sums->R += square(r * (d + bias));
    sums->S += fabsl(r) * S;
    sums->W_c += fabsl(r) * E + halves[0] + halves[1] + halves[2];
    sums->V_c += r * r * V + (square(halves[0]) + square(halves[1]) + square(halves[2])) / 3;
    sums->b += r * b;
}

void oracle_bound_output(const struct gb_arguments *a, const double *weights, const struct oracle_declared *declared,
                         const struct oracle_error *h, bool given, struct oracle_error *output, long double *above)
{
    const struct gb_shape *shape = &a->shape;
    const long double q = declared->recipe ? 1 : 0, beta = a->down_bias ? 1 : 0, u = roundoff(declared);
    const long double n = (long double)shape->top_k * (shape->intermediate + 1 + beta) + 6 + 2 * q;
    for (size_t at = 0; at < (size_t)shape->tokens * shape->hidden; at++) {
        struct sums sums = {0};
        for (uint32_t j = 0; j < shape->top_k; j++) {
            size_t pair = at / shape->hidden * shape->top_k + j;
            if (a->ids[pair] >= 0)
                add_slot(a, (uint32_t)a->ids[pair], (uint32_t)(at % shape->hidden), (long double)weights[pair],
                         declared, h + pair * shape->intermediate, given, &sums);
        }
        if (declared->bits < 24)
            sums.T += square((shape->top_k + 1.0L) * (shape->intermediate + 1.0L) * u) *
                      fmaxl(sums.R - square(sums.y) / shape->top_k, 0) / 16;
        output[at] =
            (struct oracle_error){.value = sums.y,
                                  .worst = sums.W_c + gamma_of(n, u) * sums.S + sums.U,
                                  .variance = sums.V_c + variance_of(declared->bits, n, sums.S * sums.S, sums.T),
                                  .bias = sums.b + n * u * sums.y / 2,
                                  .underflow = sums.U,
                                  .scale = sums.scale + n * u * sums.S};
        to_bf16(declared->output, &output[at]);
        above[at] = sums.W_c;
    }
}
