/* SPDX-License-Identifier: Apache-2.0 */
/* Effects on some columns of K of gate_up, or of x: which columns, by sums from column 0 on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/search.h"
#include "quant/quant.h"

/*
 * Sums over columns of K of one token's products of gate_up with what is added to x: [top_k, 2 * intermediate, blocks +
 * 1], from column 0 on, or from residue 0 on.
 */
enum { BLOCK = 16, LONGEST_PERIOD = 32 };
struct range_sums {
    double *sums;
    uint32_t token, blocks;
    uint32_t period; /* 0: blocks of BLOCK columns; otherwise residues */
};

/* What an effect adds to x as gate_up reads it: [hidden]. */
static void added_to_x(struct search *q, uint32_t token, const struct finding *f, double *added)
{
    const struct stages *s = &q->s;
    size_t H = s->hidden, p = (size_t)token * s->top_k;
    gb_bf16 *rows = malloc(2 * H * sizeof *rows);
    double *values = malloc(2 * H * sizeof *values);
    if (!rows || !values)
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for a row of x");
    for (size_t i = 0; q->status == GB_OK && i < H; i++) {
        rows[i] = gb_bf16_encode((float)s->x[p * H + i]);
        rows[H + i] = gb_bf16_encode((float)effect_of(f, s->x, s->pairs, s->top_k, H, p, i));
    }
    if (q->status == GB_OK)
        q->status = stages_read(s, rows, 2, values, q->error);
    for (size_t i = 0; q->status == GB_OK && i < H; i++)
        added[i] = values[H + i] - values[i];
    free(rows);
    free(values);
}

static bool range_sums_new(struct search *q, uint32_t token, const struct finding *f, uint32_t period,
                           struct range_sums *r)
{
    const struct stages *s = &q->s;
    uint32_t rows = 2 * s->intermediate;
    q->work += search_products(q, FINDING_GATE_UP, s->top_k, q->samples);
    double *added = malloc(s->hidden * sizeof *added), *row = malloc(s->hidden * sizeof *row);
    *r = (struct range_sums){
        .token = token, .blocks = period ? period : (s->hidden + BLOCK - 1) / BLOCK, .period = period};
    r->sums = calloc((size_t)s->top_k * rows * (r->blocks + 1), sizeof *r->sums);
    if (!added || !row || !r->sums)
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for sums over columns of K");
    if (q->status == GB_OK)
        added_to_x(q, token, f, added);
    for (uint32_t k = 0; k < s->top_k && !search_late(q); k++) {
        int32_t id = s->ids[(size_t)token * s->top_k + k];
        for (uint32_t n = 0; id >= 0 && n < rows; n++) {
            double *to = r->sums + ((size_t)k * rows + n) * (r->blocks + 1);
            gb_weights_row(&q->w->trace.arguments.gate_up, (uint32_t)id, n, row);
            for (uint32_t i = 0; i < s->hidden; i++)
                to[(period ? i % period : i / BLOCK) + 1] += row[i] * added[i];
            for (uint32_t b = 0; b < r->blocks; b++)
                to[b + 1] += to[b];
        }
    }
    free(added);
    free(row);
    if (search_late(q))
        free(r->sums);
    return !search_late(q);
}

/* What the effect on blocks first .. last - 1 explains. */
static double rate_range(struct search *q, const struct range_sums *r, enum finding_stage stage, uint32_t first,
                         uint32_t last)
{
    const struct stages *s = &q->s;
    uint32_t I = s->intermediate, stride = r->blocks + 1;
    gb_bf16 *rows = malloc(I * sizeof *rows);
    double all = 0.0, left;
    for (uint32_t k = 0; rows && k < s->top_k && !search_late(q); k++) {
        size_t p = (size_t)r->token * s->top_k + k;
        for (uint32_t i = 0; i < I; i++) {
            const double *gate = r->sums + ((size_t)k * 2 * I + i) * stride, *up = gate + (size_t)I * stride;
            double g = s->gate[p * I + i] + (stage == FINDING_UP ? 0.0 : gate[last] - gate[first]);
            double u = s->up[p * I + i] + (stage == FINDING_GATE ? 0.0 : up[last] - up[first]);
            rows[i] = gb_bf16_encode(gb_gated(q->w->trace.arguments.activation, (float)g, (float)u));
        }
        if (s->ids[p] < 0)
            memcpy(q->operand + p * I, s->requant + p * I, I * sizeof *q->operand);
        else
            q->status = stages_requantise(s, rows, 1, q->operand + p * I, q->error);
    }
    free(rows);
    if (search_late(q))
        return 0.0;
    if (q->seen)
        return search_rate_seen(q);
    search_respond_operand(q, r->token);
    left = search_regress(q, r->token, false, &all);
    return all > 0.0 && isfinite(left) ? 1.0 - left / all : 0.0;
}

void search_try_ranges(struct search *q, const struct finding *effect)
{
    struct range_sums r;
    struct finding f = *effect;
    uint32_t first = 0, last = 0;
    double most = 0.0;
    if (search_done(q) || !range_sums_new(q, q->token[0], effect, 0, &r)) {
        return;
    }
    for (uint32_t size = 1; size < r.blocks; size *= 2)
        for (uint32_t from = 0; from + size <= r.blocks && !search_late(q); from += size > 1 ? size / 2 : 1) {
            double p = rate_range(q, &r, f.stage, from, from + size);
            if (p > most) {
                most = p;
                first = from;
                last = from + size;
            }
        }
    for (uint32_t step = r.blocks; step && most > 0.05 && !search_late(q); step /= 2) {
        const int64_t moves[][2] = {{-(int64_t)step, 0}, {step, 0}, {0, -(int64_t)step}, {0, step}};
        for (int m = 0; m < 4; m++) {
            int64_t a = (int64_t)first + moves[m][0], b = (int64_t)last + moves[m][1];
            double p = a >= 0 && a < b && b <= r.blocks ? rate_range(q, &r, f.stage, (uint32_t)a, (uint32_t)b) : 0.0;
            if (p > most) {
                most = p;
                first = (uint32_t)a;
                last = (uint32_t)b;
            }
        }
    }
    free(r.sums);
    if (search_late(q) || most < (f.stage == FINDING_INPUT ? 0.3 : PROMISING))
        return;
    struct finding_axis *axis = f.stage == FINDING_INPUT ? &f.elements : &f.k;
    *axis = (struct finding_axis){.kind = AXIS_RANGE, .first = first * BLOCK, .count = (last - first) * BLOCK};
    if (axis->first + axis->count > q->s.hidden)
        axis->count = q->s.hidden - axis->first;
    most = search_promise(q, &f);
    for (uint32_t step = BLOCK / 2; step && most < 1.0 - EXACT && !search_late(q); step /= 2) {
        const int32_t moves[][2] = {{-(int32_t)step, 0}, {(int32_t)step, 0}, {0, -(int32_t)step}, {0, (int32_t)step}};
        for (int m = 0; m < 4; m++) {
            struct finding_axis before = *axis;
            int64_t a = (int64_t)axis->first + moves[m][0], b = (int64_t)axis->first + axis->count + moves[m][1];
            if (a < 0 || a >= b || b > q->s.hidden)
                continue;
            *axis = (struct finding_axis){.kind = AXIS_RANGE, .first = (uint32_t)a, .count = (uint32_t)(b - a)};
            double p = search_promise(q, &f);
            if (p > most)
                most = p;
            else
                *axis = before;
        }
    }
    search_settle(q, &f);
}

/* Sums by residues of the longest period become those of half of it. */
static void halve_period(const struct search *q, struct range_sums *r)
{
    const uint32_t half = r->period / 2, stride = r->period + 1, rows = q->s.top_k * 2 * q->s.intermediate;
    for (uint32_t n = 0; n < rows; n++) {
        const double *from = r->sums + (size_t)n * stride;
        double *to = r->sums + (size_t)n * (half + 1), made[LONGEST_PERIOD + 1];
        for (uint32_t i = 0; i <= half; i++) /* the first half, and what the second adds */
            made[i] = from[i] + from[half + i] - from[half];
        memcpy(to, made, (half + 1) * sizeof *made);
    }
    r->period = r->blocks = half;
}

void search_try_residues(struct search *q, const struct finding *effect)
{
    struct range_sums r;
    struct finding f = *effect;
    struct finding_axis *axis = f.stage == FINDING_INPUT ? &f.elements : &f.k;
    double most = 0.99 * PROMISING;
    bool found = false;
    if (search_done(q) || q->s.hidden < 2 * LONGEST_PERIOD ||
        !range_sums_new(q, q->token[0], effect, LONGEST_PERIOD, &r))
        return;
    for (; r.period > 1 && !search_late(q); halve_period(q, &r))
        for (uint32_t count = 1; count < r.period; count *= 2)
            for (uint32_t first = 0; first < r.period && !search_late(q); first += count) {
                double p = rate_range(q, &r, f.stage, first, first + count);
                q->work += search_products(q, FINDING_DOWN, q->s.top_k, q->samples);
                if (p < most - 1e-9)
                    continue;
                most = p;
                found = true;
                *axis = (struct finding_axis){.kind = AXIS_MODULO, .first = first, .count = count, .period = r.period};
            }
    free(r.sums);
    if (found)
        search_settle(q, &f);
}

void search_each_range(struct search *q)
{
    static const double factors[] = {0.0, 2.0, -1.0, 0.5};
    struct finding f = {.effect = FINDING_FACTOR};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        for (int stage = FINDING_GATE_UP; stage >= FINDING_INPUT && !search_done(q); stage--) {
            f.stage = (enum finding_stage)stage;
            f.amount = factors[i];
            search_try_ranges(q, &f);
            search_try_residues(q, &f);
        }
    search_each_effect(q, FINDING_INPUT, (struct finding_axis){.kind = AXIS_ALL}, search_try_ranges);
}
