/* SPDX-License-Identifier: Apache-2.0 */
/* Effects with an amount, looked for between values that the rows have: thresholds, factors, constants added. */
#include <math.h>
#include <stdlib.h>

#include "harness/explain/places.h"
#include "harness/explain/search.h"

/* Amounts: magnitudes of an array's elements by rank. */
static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double promise_of(struct search *q, struct finding *f, double amount)
{
    f->amount = amount;
    return search_promise(q, f);
}

/* The amount between a and b, taken as positive, for which the effect explains most: by golden section. */
static double refine(struct search *q, struct finding *f, double a, double b)
{
    const double golden = 0.6180339887498949;
    double left = b - golden * (b - a), right = a + golden * (b - a);
    double at_left = promise_of(q, f, left), at_right = promise_of(q, f, right);
    for (int i = 0; i < 32 && !search_late(q); i++) {
        if (at_left >= at_right) {
            b = right;
            right = left;
            at_right = at_left;
            left = b - golden * (b - a);
            at_left = promise_of(q, f, left);
        } else {
            a = left;
            left = right;
            at_left = at_right;
            right = a + golden * (b - a);
            at_right = promise_of(q, f, right);
        }
    }
    return at_left >= at_right ? left : right;
}

/* A threshold only changes what lies between two magnitudes: each step of the worst token's rows near the best one. */
static void refine_threshold(struct search *q, struct finding *f, double most)
{
    const uint32_t steps = 24;
    double near = f->amount, span = 0.25 * near;
    if (search_promise(q, f) < most)
        return;
    for (int level = 0; level < 3 && !search_late(q); level++, span /= 8.0) {
        double centre = near, best = promise_of(q, f, near);
        for (uint32_t i = 0; i <= 2 * steps && !search_late(q); i++) {
            double amount = centre + span * ((double)i - steps) / steps, p = promise_of(q, f, amount);
            if (p > best) {
                best = p;
                near = amount;
            }
        }
    }
    f->amount = near;
}

/* An amount that somebody writes, where it explains as much. */
static void snap(struct search *q, struct finding *f)
{
    double found = f->amount, best = found, most = promise_of(q, f, found);
    const double units[] = {1.0, 0.25, 0.0625, exp2(round(log2(fabs(found)))), 0.1, 0.01, 0.001};
    for (size_t i = 0; i < sizeof units / sizeof *units && !search_late(q); i++) {
        double amount = units[i] * round(found / units[i]), p;
        if (!(fabs(amount - found) < 0.05 * fabs(found)) || (p = promise_of(q, f, amount)) < most)
            continue;
        most = p;
        best = amount;
    }
    f->amount = best;
}

/* Looks for the amount among `grid`, ascending, and between its neighbours; then for the pairs. */
static void settle_amount(struct search *q, const struct finding *effect, const double *grid, uint32_t count)
{
    struct finding f = *effect;
    double most = -INFINITY;
    uint32_t best = 0;
    if (search_done(q))
        return;
    for (uint32_t i = 0; i < count && !search_late(q); i++) {
        double p = promise_of(q, &f, grid[i]);
        if (p > most) {
            most = p;
            best = i;
        }
    }
    if (search_late(q) || most < 0.05)
        return;
    f.amount = refine(q, &f, grid[best ? best - 1 : 0], grid[best + 1 < count ? best + 1 : count - 1]);
    if (f.effect == FINDING_FLUSH)
        refine_threshold(q, &f, most);
    snap(q, &f);
    search_settle(q, &f);
}

enum { GRID = 33 };

void search_each_amount(struct search *q, enum finding_stage stage, struct finding_axis elements)
{
    uint32_t width;
    const double *rows = stages_array(&q->s, stage, &width);
    size_t first = (size_t)q->token[0] * (stage_has_slots(stage) ? q->s.top_k : 1) * width,
           count = (size_t)(stage_has_slots(stage) ? q->s.top_k : 1) * width;
    double *ranked = malloc(count * sizeof *ranked), grid[GRID];
    struct finding f = {.stage = stage, .elements = elements};
    if (!ranked)
        return;
    for (size_t i = 0; i < count; i++)
        ranked[i] = fabs(rows[first + i]);
    qsort(ranked, count, sizeof *ranked, by_value);
    double typical = ranked[count * 68 / 100];
    for (int i = 0; i < GRID; i++)
        grid[i] = ranked[(count - 1) * (size_t)i / (GRID - 1)];
    f.effect = FINDING_SATURATE;
    settle_amount(q, &f, grid, GRID);
    f.effect = FINDING_CAP;
    if (stage == FINDING_GATE || stage == FINDING_UP)
        settle_amount(q, &f, grid, GRID);
    f.effect = FINDING_FLUSH;
    settle_amount(q, &f, grid, GRID);
    for (int i = 0; i < GRID; i++)
        grid[i] = -ranked[(count - 1) * (size_t)(GRID - 1 - i) / (GRID - 1)];
    f.effect = FINDING_FLOOR;
    if (stage == FINDING_GATE || stage == FINDING_UP)
        settle_amount(q, &f, grid, GRID);
    if (stage < FINDING_ACT || (q->seen && stage == FINDING_ACT)) {
        static const double factors[] = {-8,   -2,  -1,   -0.5, 0, 0.25, 0.5, 0.75, 0.9, 0.99,
                                         1.01, 1.1, 1.25, 1.5,  2, 4,    8,   80,   500};
        f.effect = FINDING_FACTOR;
        settle_amount(q, &f, factors, sizeof factors / sizeof *factors);
        for (int i = 0; i < GRID; i++)
            grid[i] = typical * 0.25 * (i - GRID / 2);
        f.effect = FINDING_ADD;
        settle_amount(q, &f, grid, GRID);
    }
    free(ranked);
}

void search_try_added(struct search *q)
{
    const struct stages *s = &q->s;
    struct finding f = {.stage = FINDING_DOWN, .effect = FINDING_ADD};
    bool *is = calloc(s->pairs, sizeof *is);
    double *mean = calloc(s->tokens, sizeof *mean);
    for (uint32_t n = 0; is && mean && !search_done(q) && n <= s->top_k + s->experts; n++) {
        double top = 0.0, bottom = 0.0, left = 0.0, all = 0.0;
        struct finding one = f;
        if (n >= 1 && n <= s->top_k)
            one.slots = (struct finding_axis){.kind = AXIS_RANGE, .first = n - 1, .count = 1};
        else if (n > s->top_k)
            one.experts = (struct finding_axis){.kind = AXIS_RANGE, .first = n - 1 - s->top_k, .count = 1};
        for (uint32_t i = 0; i < q->tokens; i++) {
            uint32_t t = q->token[i];
            double sum = 0.0, weights = 0.0;
            for (uint32_t j = 0; j < q->samples; j++)
                sum += search_error(q, t, 0, j);
            for (size_t p = (size_t)t * s->top_k; p < (size_t)(t + 1) * s->top_k; p++)
                weights += stages_hit(s, &one, p) ? s->weights[p] : 0.0;
            mean[t] = sum / q->samples;
            top += mean[t] * weights;
            bottom += weights * weights;
        }
        one.amount = bottom > 0.0 ? top / bottom : 0.0;
        for (uint32_t i = 0; i < q->tokens; i++) {
            uint32_t t = q->token[i];
            double weights = 0.0;
            for (size_t p = (size_t)t * s->top_k; p < (size_t)(t + 1) * s->top_k; p++)
                weights += stages_hit(s, &one, p) ? s->weights[p] : 0.0;
            for (uint32_t j = 0; j < q->samples; j++) {
                double e = search_error(q, t, 0, j);
                left += (e - one.amount * weights) * (e - one.amount * weights);
                all += e * e;
            }
        }
        if (!(left < (1.0 - PROMISING) * all))
            continue;
        for (uint32_t i = 0; i < s->pairs; i++)
            is[i] = false;
        for (uint32_t i = 0; i < q->tokens; i++)
            for (size_t p = (size_t)q->token[i] * s->top_k; p < (size_t)(q->token[i] + 1) * s->top_k; p++)
                is[p] = stages_hit(s, &one, p);
        bool *would = calloc(s->pairs, sizeof *would);
        for (size_t p = 0; would && p < s->pairs; p++)
            would[p] = s->ids[p] >= 0;
        if (would && pairs_describe(s, is, would, &one))
            search_verify_places(q, &one);
        free(would);
    }
    free(is);
    free(mean);
}
