/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which elements of the intermediate, or columns of K of down, an effect is: down is linear in each of them, so that
 * what a set of them explains follows from sums.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/altered_row.h"
#include "harness/explain/search.h"
#include "quant/quant.h"

/* Samples enough to tell one place from another; the rest is told by settling. */
enum { STEP = 16, LONGEST_PERIOD = 32, MOST_BLOCKS = 64, FEW_SAMPLES = 64 };

/* Of some slots of the worst token: what elements 0 .. i - 1 add to the samples, [elements + 1, samples]. */
struct prefix {
    double *sums;
    uint32_t elements, samples;
    double *errors; /* [samples] */
    double all;     /* their squares */
};

static void prefix_free(struct prefix *y)
{
    free(y->sums);
    free(y->errors);
}

static uint32_t sample_of(const struct search *q, const struct prefix *y, uint32_t j)
{
    return (uint32_t)((uint64_t)j * q->samples / y->samples);
}

/* What each element of the pair's operand, changed as q->operand has it, adds; of FINDING_DOWN each column of K. */
static void add_pair(struct search *q, const struct finding *f, size_t pair, struct prefix *y)
{
    const struct stages *s = &q->s;
    const size_t I = s->intermediate;
    const double *own = s->requant + pair * I, *made = q->operand + pair * I;
    double *row = malloc(I * sizeof *row);
    float *scratch = malloc(4 * I * sizeof *scratch);
    for (uint32_t j = 0; row && scratch && s->ids[pair] >= 0 && j < y->samples; j++) {
        const struct gb_weights *down = &q->w->trace.arguments.down;
        uint32_t column = q->column[sample_of(q, y, j)];
        if (f->stage == FINDING_DOWN)
            altered_row(down, f, (uint32_t)s->ids[pair], column, scratch, row);
        else
            gb_weights_row(down, (uint32_t)s->ids[pair], column, row);
        for (size_t i = 0; i < I; i++)
            y->sums[(i + 1) * y->samples + j] +=
                s->weights[pair] * row[i] * (f->stage == FINDING_DOWN ? own[i] : made[i] - own[i]);
    }
    if (!row || !scratch)
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for rows of down_proj");
    free(row);
    free(scratch);
}

/* slot: top_k for all of them. */
static bool prefix_new(struct search *q, const struct finding *f, uint32_t slot, struct prefix *y)
{
    const struct stages *s = &q->s;
    uint32_t token = q->token[0];
    *y = (struct prefix){.elements = s->intermediate, .samples = q->samples < FEW_SAMPLES ? q->samples : FEW_SAMPLES};
    y->sums = calloc((size_t)(y->elements + 1) * y->samples, sizeof *y->sums);
    y->errors = malloc(y->samples * sizeof *y->errors);
    if (!y->sums || !y->errors)
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for sums over the intermediate");
    for (uint32_t u = 0; u < s->top_k && q->status == GB_OK; u++)
        if (slot == s->top_k || slot == u)
            add_pair(q, f, (size_t)token * s->top_k + u, y);
    for (uint32_t j = 0; q->status == GB_OK && j < y->samples; j++) {
        y->errors[j] = search_error(q, token, 0, sample_of(q, y, j));
        y->all += y->errors[j] * y->errors[j];
        for (uint32_t i = 0; i < y->elements; i++)
            y->sums[(size_t)(i + 1) * y->samples + j] += y->sums[(size_t)i * y->samples + j];
    }
    return q->status == GB_OK && y->all > 0.0;
}

static double rate_range(const struct prefix *y, uint32_t first, uint32_t last)
{
    const double *low = y->sums + (size_t)first * y->samples, *high = y->sums + (size_t)last * y->samples;
    double left = 0.0;
    for (uint32_t j = 0; j < y->samples; j++) {
        double rest = y->errors[j] - (high[j] - low[j]);
        left += rest * rest;
    }
    return 1.0 - left / y->all;
}

static double find_range(const struct prefix *y, struct finding_axis *axis)
{
    uint32_t step = y->elements / STEP > MOST_BLOCKS ? y->elements / MOST_BLOCKS : STEP, first = 0, last = 0;
    double most = 0.0;
    for (uint32_t a = 0; a < y->elements; a += step)
        for (uint32_t b = a + step; b < y->elements + step; b += step) {
            uint32_t end = b < y->elements ? b : y->elements;
            double p = rate_range(y, a, end);
            if (p > most) {
                most = p;
                first = a;
                last = end;
            }
        }
    for (step /= 2; step && most > 0.0; step /= 2) {
        const int64_t moves[][2] = {{-(int64_t)step, 0}, {step, 0}, {0, -(int64_t)step}, {0, step}};
        for (int m = 0; m < 4; m++) {
            int64_t a = (int64_t)first + moves[m][0], b = (int64_t)last + moves[m][1];
            double p = a >= 0 && a < b && b <= y->elements ? rate_range(y, (uint32_t)a, (uint32_t)b) : 0.0;
            if (p > most) {
                most = p;
                first = (uint32_t)a;
                last = (uint32_t)b;
            }
        }
    }
    *axis = (struct finding_axis){.kind = AXIS_RANGE, .first = first, .count = last - first};
    if (last - first == y->elements)
        *axis = (struct finding_axis){.kind = AXIS_ALL};
    return most;
}

/* Sums by residue, in the order of residues. */
static bool fold(const struct prefix *y, uint32_t period, struct prefix *folded)
{
    *folded = *y;
    folded->elements = period;
    folded->sums = calloc((size_t)(period + 1) * y->samples, sizeof *folded->sums);
    for (uint32_t i = 0; folded->sums && i < y->elements; i++)
        for (uint32_t j = 0; j < y->samples; j++)
            folded->sums[(size_t)(i % period + 1) * y->samples + j] +=
                y->sums[(size_t)(i + 1) * y->samples + j] - y->sums[(size_t)i * y->samples + j];
    for (uint32_t i = 0; folded->sums && i < period; i++)
        for (uint32_t j = 0; j < y->samples; j++)
            folded->sums[(size_t)(i + 1) * y->samples + j] += folded->sums[(size_t)i * y->samples + j];
    return folded->sums;
}

static double find_residues(const struct prefix *y, struct finding_axis *axis)
{
    double most = 0.0;
    for (uint32_t period = 2; period <= LONGEST_PERIOD && period < y->elements; period *= 2) {
        struct prefix folded;
        if (!fold(y, period, &folded))
            continue;
        for (uint32_t a = 0; a < period; a++)
            for (uint32_t b = a + 1; b <= period; b++) {
                double p = rate_range(&folded, a, b);
                if (p <= most + 1e-9 || b - a == period)
                    continue;
                most = p;
                *axis = (struct finding_axis){.kind = AXIS_MODULO, .first = a, .count = b - a, .period = period};
            }
        free(folded.sums);
    }
    return most;
}

static void settle_elements(struct search *q, const struct finding *effect, const struct prefix *y,
                            double (*find)(const struct prefix *, struct finding_axis *))
{
    struct finding f = *effect;
    if (find(y, f.stage == FINDING_DOWN ? &f.k : &f.elements) >= PROMISING)
        search_settle(q, &f);
}

void search_try_elements(struct search *q, const struct finding *effect)
{
    const struct stages *s = &q->s;
    if (search_done(q) || q->w->inner)
        return;
    size_t first = (size_t)q->token[0] * s->top_k;
    q->work += search_products(q, effect->stage, s->top_k, 4 * FEW_SAMPLES) *
               (effect->operand == FINDING_RESULTS ? 1.0 : REREAD);
    memset(q->asked, 0, s->pairs * sizeof *q->asked);
    memset(q->asked + first, true, s->top_k * sizeof *q->asked);
    if (effect->stage != FINDING_DOWN)
        q->status = stages_operand(s, effect, q->asked, q->operand, NULL, q->error);
    for (uint32_t slot = 0; slot <= s->top_k && !search_done(q); slot++) {
        struct prefix y;
        if (prefix_new(q, effect, slot, &y)) {
            settle_elements(q, effect, &y, find_range);
            settle_elements(q, effect, &y, find_residues);
        }
        prefix_free(&y);
    }
}
