/* SPDX-License-Identifier: Apache-2.0 */
/* docs/numerics.md#aggregate-tests: covariances are whole matrices, and every sum is written out. */
#include "tests/oracle/bounds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One scale error: z, signal, V, dir . b_y and sum of |dir_o| U_y. */
struct scale_error {
    long double z, signal, V, b, U;
};

/* One RMS error: |e'|^2, |y'|^2, |b'|^2, n and U'^2. */
struct rms_error {
    long double e, y, b, n, U;
};

struct work {
    const struct oracle_aggregates *of;
    struct oracle_sum *sums;
    uint32_t H, K, I;
    uint32_t m;             /* ambiguous codes of the token at hand */
    long double *C;         /* [hidden, hidden] */
    long double *L;         /* [hidden, hidden], block diagonal: tile by tile */
    long double *Q;         /* [m, hidden] */
    long double *t;         /* [top_k + 1, hidden]: shares, and their sum */
    long double *e, *y, *b; /* [hidden] */
    long double *A;         /* [hidden] */
    struct scale_error all, *expert /* [experts] */, *column /* [hidden] */;
    struct rms_error *tiles; /* [tiles] */
    long double N_rms, N_scale;
    long double direction; /* how good the worst one is */
};

static long double *numbers(size_t count)
{
    long double *values = calloc(count + 1, sizeof *values);
    if (!values)
        abort();
    return values;
}

static long double dot(const long double *a, const long double *b, size_t count)
{
    long double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Where a sum is: a token, tile, column or expert, and a slot or tile. */
struct sum_index {
    uint32_t first, second;
};

static void enter(struct oracle_sum *sum, struct sum_index place, long double value, long double limit,
                  long double zeros, long double least)
{
    long double ratio = value == 0 ? 0 : value / limit;
    sum->above += value > limit;
    sum->zeros_above += zeros > limit;
    if (sum->count == 0 || ratio > sum->ratio) {
        sum->ratio = ratio;
        sum->first = place.first;
        sum->second = place.second;
    }
    if (isfinite(least)) {
        sum->least = sum->most == 0 ? least : fminl(sum->least, least);
        sum->most = fmaxl(sum->most, least);
    }
    sum->count++;
}

/* "Scale error": |z| <= sqrt(2 V ln(2 N_scale / P)) + |dir . b_y| + sum of |dir_o| U_y */
static void enter_scale(struct work *w, enum oracle_sums kind, struct sum_index place, const struct scale_error *g)
{
    long double limit = sqrtl(2 * g->V * logl(2 * w->N_scale / w->of->probability)) + fabsl(g->b) + g->U;
    enter(&w->sums[kind], place, fabsl(g->z), limit, g->signal, limit / g->signal);
}

/* "RMS error": |e'| <= sqrt(n + 2 sqrt(n s) + 2 s) + |b'| + U', s = ln(N_rms / P) */
static void enter_rms(struct work *w, enum oracle_sums kind, struct sum_index place, const struct rms_error *r)
{
    long double s = logl(w->N_rms / w->of->probability);
    long double limit = sqrtl(r->n + 2 * sqrtl(r->n * s) + 2 * s) + sqrtl(r->b) + sqrtl(r->U);
    enter(&w->sums[kind], place, sqrtl(r->e), limit, sqrtl(r->y), sqrtl((limit * limit - r->n) / r->y));
}

/* "Several tokens are added with the best weights, a = signal / V each" */
static void add_scale(struct scale_error *sum, const struct scale_error *g)
{
    long double a = g->V > 0 ? g->signal / g->V : 0;
    sum->z += a * g->z;
    sum->signal += a * g->signal;
    sum->V += a * a * g->V;
    sum->b += a * g->b;
    sum->U += fabsl(a) * g->U;
}

static void add_rms(struct rms_error *sum, const struct rms_error *r)
{
    sum->e += r->e;
    sum->y += r->y;
    sum->b += r->b;
    sum->n += r->n;
    sum->U += r->U;
}

static long double down_weight(const struct work *w, uint32_t expert, uint32_t o, uint32_t i)
{
    const struct gb_weights *down = &w->of->arguments->down;
    return (long double)oracle_weight_code(down, expert, o, i) * (long double)oracle_weight_scale(down, expert, o, i) *
           (long double)oracle_global_scale(down, expert, o);
}

static bool repeated(const struct work *w, uint32_t t)
{
    for (uint32_t before = 0; before < t; before++)
        if (!memcmp(w->of->x + (size_t)before * w->H, w->of->x + (size_t)t * w->H, w->H * sizeof(gb_bf16)))
            return true;
    return false;
}

/* C = B D B^T + A and the shares t_j of one token. */
static void covariance(struct work *w, uint32_t t)
{
    const struct oracle_aggregates *of = w->of;
    const size_t H = w->H, KI = (size_t)w->K * w->I;
    long double *B = numbers(H * KI); /* times the deviation of the intermediate */
    memset(w->C, 0, sizeof *w->C * H * H);
    memset(w->t, 0, sizeof *w->t * (w->K + 1) * H);
    for (uint32_t j = 0; j < w->K; j++) {
        size_t pair = (size_t)t * w->K + j;
        int32_t expert = of->arguments->ids[pair];
        long double r = (long double)of->weights[pair];
        for (uint32_t o = 0; expert >= 0 && o < H; o++) {
            const float *bias = of->arguments->down_bias;
            long double d = bias && !of->sigma_h ? (long double)bias[(size_t)expert * H + o] : 0;
            for (uint32_t i = 0; i < w->I; i++) {
                long double v = down_weight(w, (uint32_t)expert, o, i);
                d += v * (long double)of->h[pair * w->I + i];
                B[o * KI + j * w->I + i] = of->sigma_h ? r * v * (long double)of->sigma_h[pair * w->I + i] : 0;
            }
            w->t[j * H + o] = r * d;
            w->t[w->K * H + o] += r * d;
        }
    }
    for (size_t o = 0; o < H; o++) {
        long double V = (long double)of->sigma_y[t * H + o] * (long double)of->sigma_y[t * H + o];
        for (size_t p = 0; p <= o && of->sigma_h; p++)
            w->C[o * H + p] = w->C[p * H + o] = dot(B + o * KI, B + p * KI, KI);
        long double U = (long double)of->underflow_y[t * H + o];
        w->A[o] = fmaxl(V - w->C[o * H + o], 0x1p-40L * V) + U * U;
        w->C[o * H + o] += w->A[o];
    }
    free(B);
}

/* C = L L^T, tile by tile. */
static void factorise(struct work *w)
{
    const size_t H = w->H;
    memset(w->L, 0, sizeof *w->L * H * H);
    for (size_t r = 0; r < H; r++)
        for (size_t c = r / w->of->tile * w->of->tile; c <= r; c++) {
            long double left = w->C[r * H + c] - dot(w->L + r * H, w->L + c * H, c);
            w->L[r * H + c] = r == c ? sqrtl(left) : w->L[c * H + c] > 0 ? left / w->L[c * H + c] : 0;
        }
}

/* values = L^-1 values; where nothing may err 0. */
static void whiten(const struct work *w, long double *values)
{
    for (size_t r = 0; r < w->H; r++) {
        long double pivot = w->L[r * w->H + r], left = values[r] - dot(w->L + r * w->H, values, r);
        values[r] = pivot > 0 ? left / pivot : 0;
    }
}

/* values = L^-T values */
static void whiten_transposed(const struct work *w, long double *values)
{
    for (size_t r = w->H; r-- > 0;) {
        for (size_t below = r + 1; below < w->H; below++)
            values[r] -= w->L[below * w->H + r] * values[below];
        values[r] = w->L[r * w->H + r] > 0 ? values[r] / w->L[r * w->H + r] : 0;
    }
}

/* "Ambiguous codes": Q spans the columns of L^-1 B_m. Returns false where the token is left out. */
static bool span(struct work *w, uint32_t t)
{
    const size_t H = w->H, first = (size_t)t * w->K * w->I;
    w->m = 0;
    for (size_t i = 0; w->of->width && i < (size_t)w->K * w->I; i++) {
        w->m += w->of->width[first + i] > 0;
        if (isinf(w->of->width[first + i]) || w->of->width[first + i] > 0x1p400)
            return false;
    }
    if (w->m >= H)
        return false;
    uint32_t n = 0;
    for (size_t i = 0; w->m && i < (size_t)w->K * w->I; i++) {
        if (!(w->of->width[first + i] > 0))
            continue;
        long double *q = w->Q + H * n, whole;
        size_t pair = (size_t)t * w->K + i / w->I;
        for (uint32_t o = 0; o < H; o++)
            q[o] = (long double)w->of->weights[pair] *
                   down_weight(w, (uint32_t)w->of->arguments->ids[pair], o, (uint32_t)(i % w->I));
        whiten(w, q);
        whole = sqrtl(dot(q, q, H));
        for (int again = 0; again < 3; again++)
            for (uint32_t other = 0; other < n; other++) {
                long double along = dot(w->Q + H * other, q, H);
                for (size_t o = 0; o < H; o++)
                    q[o] -= along * w->Q[H * other + o];
            }
        long double left = sqrtl(dot(q, q, H));
        for (size_t o = 0; o < H; o++)
            q[o] = left > 0x1p-40L * whole ? q[o] / left : 0;
        n++;
    }
    return true;
}

/* values = L (1 - Q Q^T) L^-1 values; L is diagonal wherever there is a Q. */
static void project(const struct work *w, long double *values)
{
    const size_t H = w->H;
    if (!w->m)
        return;
    whiten(w, values);
    for (uint32_t q = 0; q < w->m; q++) {
        long double along = dot(w->Q + H * q, values, H);
        for (size_t o = 0; o < H; o++)
            values[o] -= along * w->Q[H * q + o];
    }
    for (size_t o = 0; o < H; o++)
        values[o] *= w->L[o * H + o];
}

static struct scale_error sum_along(const struct work *w, uint32_t token, const long double *dir, const long double *t)
{
    const size_t H = w->H;
    struct scale_error g = {dot(dir, w->e, H), dot(dir, t, H), 0, dot(dir, w->b, H), 0};
    for (size_t o = 0; o < H; o++)
        g.U += fabsl(dir[o]) * (long double)w->of->underflow_y[token * H + o];
    for (size_t o = 0; o < H; o++)
        g.V += dir[o] * dot(dir, w->C + o * H, H);
    return g;
}

static long double largest_of(const long double *values, size_t count)
{
    long double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmaxl(largest, fabsl(values[i]));
    return largest;
}

/* dir = C^-1 t, stored in binary32 with a largest component of 1. d: of a slot, or top_k. */
static struct scale_error along(struct work *w, uint32_t token, uint32_t d)
{
    const size_t H = w->H;
    const long double *t = w->t + d * H;
    long double *dir = numbers(H), largest;
    memcpy(dir, t, sizeof *dir * H);
    whiten(w, dir);
    whiten_transposed(w, dir);
    largest = largest_of(dir, H);
    for (size_t o = 0; o < H; o++)
        dir[o] = largest > 0 ? (long double)(float)(dir[o] / largest) : 0;
    struct scale_error own = sum_along(w, token, dir, t), given;
    for (size_t o = 0; o < H; o++)
        dir[o] = (long double)w->of->direction[((size_t)token * (w->K + 1) + d) * H + o];
    given = sum_along(w, token, dir, t);
    if (largest > 0) {
        long double as_good = given.signal * given.signal / given.V / (own.signal * own.signal / own.V);
        w->direction = largest_of(dir, H) == 1 ? fminl(w->direction, as_good) : 0;
    }
    free(dir);
    return given;
}

/* U'^2 of `count` columns of a token */
static long double underflow_of(const struct work *w, uint32_t t, size_t first, size_t count)
{
    long double sum = 0;
    for (size_t o = first; o < first + count; o++) {
        long double U = (long double)w->of->underflow_y[t * w->H + o];
        sum += U > 0 ? U * U / w->A[o] : 0;
    }
    return sum;
}

static void scale_errors(struct work *w, uint32_t t, bool repeat)
{
    for (uint32_t j = 0; j < w->K; j++) {
        int32_t expert = w->of->arguments->ids[(size_t)t * w->K + j];
        if (expert < 0)
            continue;
        struct scale_error g = along(w, t, j);
        enter_scale(w, ORACLE_SCALE_SLOT, (struct sum_index){t, j}, &g);
        if (!repeat)
            add_scale(&w->expert[expert], &g);
    }
    struct scale_error g = along(w, t, w->K);
    enter_scale(w, ORACLE_SCALE_TOKEN, (struct sum_index){t, 0}, &g);
    if (!repeat)
        add_scale(&w->all, &g);
    long double U_of_token = underflow_of(w, t, 0, w->H);
    for (size_t o = 0; o < w->H && !repeat; o++) {
        long double kept = 1, sigma = (long double)w->of->sigma_y[t * w->H + o];
        long double U = (long double)w->of->underflow_y[t * w->H + o], V = sigma * sigma + U * U;
        for (uint32_t q = 0; q < w->m; q++)
            kept -= w->Q[q * w->H + o] * w->Q[q * w->H + o];
        g = (struct scale_error){w->e[o], kept * (long double)w->of->y[t * w->H + o], kept * V, w->b[o],
                                 w->m ? sqrtl(V * U_of_token) : U};
        if (kept > 0x1p-20L)
            add_scale(&w->column[o], &g);
    }
}

static void rms_errors(struct work *w, uint32_t t, bool repeat)
{
    whiten(w, w->e);
    whiten(w, w->y);
    whiten(w, w->b);
    for (uint32_t first = 0; first < w->H; first += w->of->tile) {
        size_t n = w->H - first < w->of->tile ? w->H - first : w->of->tile;
        struct rms_error r = {dot(w->e + first, w->e + first, n), dot(w->y + first, w->y + first, n),
                              dot(w->b + first, w->b + first, n), (long double)n - w->m, underflow_of(w, t, first, n)};
        enter_rms(w, ORACLE_RMS_TOKEN, (struct sum_index){t, first / w->of->tile}, &r);
        if (!repeat)
            add_rms(&w->tiles[first / w->of->tile], &r);
    }
}

/* "Errors of the intermediate are independent: C is diagonal" */
static void intermediate(struct work *w, size_t pair)
{
    const struct oracle_aggregates *of = w->of;
    struct scale_error sum = {0};
    struct rms_error squares = {0};
    for (size_t i = pair * w->I; i < (pair + 1) * w->I; i++) {
        long double sigma = (long double)of->sigma_h[i], U = (long double)of->underflow_h[i];
        long double V = sigma * sigma + U * U, h = (long double)of->h[i];
        long double e = (long double)of->error_h[i], b = (long double)of->bias_h[i];
        if (V == 0)
            continue;
        add_scale(&sum, &(struct scale_error){e, h, V, b, U});
        add_rms(&squares, &(struct rms_error){e * e / V, h * h / V, b * b / V, 1, U * U / V});
    }
    enter_scale(w, ORACLE_SCALE_INTERMEDIATE, (struct sum_index){(uint32_t)(pair / w->K), (uint32_t)(pair % w->K)},
                &sum);
    enter_rms(w, ORACLE_RMS_INTERMEDIATE, (struct sum_index){(uint32_t)(pair / w->K), (uint32_t)(pair % w->K)},
              &squares);
}

static void token(struct work *w, uint32_t t)
{
    bool repeat = repeated(w, t);
    covariance(w, t);
    factorise(w);
    if (!span(w, t))
        return;
    for (size_t o = 0; o < w->H; o++) {
        w->e[o] = (long double)w->of->error[t * w->H + o];
        w->y[o] = (long double)w->of->y[t * w->H + o];
        w->b[o] = (long double)w->of->bias_y[t * w->H + o];
    }
    project(w, w->e);
    project(w, w->y);
    project(w, w->b);
    for (uint32_t j = 0; j <= w->K; j++)
        project(w, w->t + (size_t)j * w->H);
    scale_errors(w, t, repeat);
    rms_errors(w, t, repeat);
}

long double oracle_aggregate(const struct oracle_aggregates *of, struct oracle_sum sums[ORACLE_SUMS])
{
    const struct gb_shape *shape = &of->arguments->shape;
    const size_t H = shape->hidden, K = shape->top_k, tiles = (H + of->tile - 1) / of->tile;
    long double T = shape->tokens;
    struct work w = {
        .of = of, .sums = sums, .H = shape->hidden, .K = shape->top_k, .I = shape->intermediate, .direction = INFINITY};
    w.C = numbers(H * H);
    w.L = numbers(H * H);
    w.Q = numbers(H * H);
    w.t = numbers((K + 1) * H);
    w.e = numbers(H);
    w.y = numbers(H);
    w.b = numbers(H);
    w.A = numbers(H);
    w.expert = calloc(shape->experts, sizeof *w.expert);
    w.column = calloc(H, sizeof *w.column);
    w.tiles = calloc(tiles, sizeof *w.tiles);
    if (!w.expert || !w.column || !w.tiles)
        abort();
    memset(sums, 0, sizeof *sums * ORACLE_SUMS);
    w.N_rms = tiles * (T + 1) + (of->error_h ? T * K : 0);
    w.N_scale = 1 + T * (1 + K) + H + shape->experts + (of->error_h ? T * K : 0);
    for (uint32_t t = 0; t < shape->tokens; t++)
        token(&w, t);
    for (size_t pair = 0; of->error_h && pair < shape->tokens * K; pair++)
        intermediate(&w, pair);
    enter_scale(&w, ORACLE_SCALE_ALL, (struct sum_index){0, 0}, &w.all);
    for (uint32_t o = 0; o < H; o++)
        enter_scale(&w, ORACLE_SCALE_COLUMN, (struct sum_index){o, 0}, &w.column[o]);
    for (uint32_t e = 0; e < shape->experts; e++)
        if (w.expert[e].signal > 0)
            enter_scale(&w, ORACLE_SCALE_EXPERT, (struct sum_index){e, 0}, &w.expert[e]);
    for (uint32_t k = 0; k < tiles; k++)
        enter_rms(&w, ORACLE_RMS_TILE, (struct sum_index){k, 0}, &w.tiles[k]);
    free(w.C);
    free(w.L);
    free(w.Q);
    free(w.t);
    free(w.e);
    free(w.y);
    free(w.b);
    free(w.A);
    free(w.expert);
    free(w.column);
    free(w.tiles);
    return w.direction;
}

static float number_of(uint16_t code)
{
    uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* To the nearest bf16, ties to the even code. */
static uint16_t code_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* "moved outward to binary32" */
static float outward(long double value, float direction)
{
    float near = (float)value;
    bool inside = direction > 0 ? (long double)near < value : (long double)near > value;
    return inside ? nextafterf(near, direction) : near;
}

void oracle_admissible(const struct oracle_error *h, long double lambda, uint16_t *low, uint16_t *high)
{
    long double c = fminl(h->worst, lambda * sqrtl(h->variance) + fabsl(h->bias));
    *low = code_of(outward(h->value - c, -INFINITY));
    *high = code_of(outward(h->value + c, INFINITY));
}

/* "Cantelli's inequality" */
static long double reach(const struct oracle_error *h, long double a, long double b)
{
    return a > h->worst ? 0 : a <= b ? 1 : h->typical / (h->typical + (a - b) * (a - b));
}

long double oracle_difference(const struct oracle_error *h, uint16_t code)
{
    bool negative = code >> 15, zero = !(code & 0x7FFF);
    uint16_t smaller = zero ? code ^ 0x8001 : code - 1; /* a zero's neighbour on the other side is of the other sign */
    long double own = number_of(code), edges[2] = {(own + number_of(code + 1)) / 2, (own + number_of(smaller)) / 2};
    long double up = edges[negative] - h->value, down = h->value - edges[!negative], b = fabsl(h->bias);
    if (up < 0 || down < 0)
        return 1;
    return fminl(1, fmaxl(reach(h, up, b) + reach(h, down, -b), reach(h, up, -b) + reach(h, down, b)));
}

uint64_t oracle_differences(long double M, uint64_t count, long double probability)
{
    uint64_t most = 0;
    for (uint64_t number = 0; number <= count; number++) {
        long double k = (long double)number, bound = k > M ? expl(-(k * logl(k / M) - k + M)) : 1;
        if (bound > probability)
            most = number;
    }
    return most;
}
