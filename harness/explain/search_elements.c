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
#include "quant/multiversion.h"
#include "quant/quant.h"

/* Samples enough to tell one place from another; the rest is told by settling. What a range of whole steps must explain
 * for its ends to be looked for. */
#define WORTH_REFINING 0.2
enum { STEP = 16, LONGEST_PERIOD = 32, MOST_BLOCKS = 64, FEW_SAMPLES = 64 };
/* Sums that are added up side by side, so that none waits for another. */
enum { ABREAST = 4 };
typedef double vector __attribute__((vector_size(ABREAST * sizeof(double)), aligned(sizeof(double)), may_alias));

/* Of some slots of the worst token: what elements 0 .. i - 1 add to the samples, [elements + 1, samples], and how much
 * of that is along the errors, in units of their squares, [elements + 1]. */
struct prefix {
    double *sums, *along;
    uint32_t elements, samples;
    double *errors; /* [samples] */
    double all;     /* their squares */
    bool linear;    /* a multiple of the sums is as good */
};

static void prefix_free(struct prefix *y)
{
    free(y->sums);
    free(y->along);
    free(y->errors);
}

static uint32_t sample_of(const struct search *q, const struct prefix *y, uint32_t j)
{
    return (uint32_t)((uint64_t)j * q->samples / y->samples);
}

static bool prefix_new(struct search *q, const struct finding *f, struct prefix *y)
{
    *y = (struct prefix){.linear = search_is_linear(f),
                         .elements = q->s.intermediate,
                         .samples = q->samples < FEW_SAMPLES ? q->samples : FEW_SAMPLES};
    y->sums = calloc((size_t)(y->elements + 1) * y->samples, sizeof *y->sums);
    y->along = calloc(y->elements + 1, sizeof *y->along);
    y->errors = malloc(y->samples * sizeof *y->errors);
    if (!y->sums || !y->along || !y->errors) {
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for sums over the intermediate");
        return false;
    }
    for (uint32_t j = 0; j < y->samples; j++) {
        y->errors[j] = search_error(q, q->token[0], 0, sample_of(q, y, j));
        y->all += y->errors[j] * y->errors[j];
    }
    return y->all > 0.0;
}

GB_NARROW_CLONES static void sum_along(struct prefix *y)
{
    for (uint32_t i = 0; i <= y->elements; i++) {
        double terms[FEW_SAMPLES], along = 0.0;
        for (uint32_t j = 0; j < y->samples; j++)
            terms[j] = y->sums[(size_t)i * y->samples + j] * y->errors[j] / y->all;
        for (uint32_t j = 0; j < y->samples; j++)
            along += terms[j];
        y->along[i] = along;
    }
}

/* Adds what elements 0 .. i - 1 come to, for `count` samples from j on. rows: [intermediate] of each; operand:
 * [intermediate]. */
static void add_prefixes(const struct prefix *y, uint32_t j, uint32_t count, double weight,
                         const double *const rows[ABREAST], const double *operand)
{
    double total[ABREAST] = {0.0};
    for (size_t i = 0; i < y->elements; i++)
        for (uint32_t k = 0; k < count; k++) {
            total[k] += weight * rows[k][i] * operand[i];
            y->sums[(i + 1) * y->samples + j + k] = total[k];
        }
}

/* What each element of the pair's operand, changed as q->operand has it, adds; of FINDING_DOWN each column of K. */
static void add_pair(struct search *q, const struct finding *f, size_t pair, struct prefix *y)
{
    const struct stages *s = &q->s;
    const size_t I = s->intermediate;
    const double *own = s->requant + pair * I, *made = q->operand + pair * I;
    double *room = malloc((ABREAST + 1) * I * sizeof *room), *change = room + ABREAST * I;
    struct altered altered = {0};
    const bool is_down = f->stage == FINDING_DOWN;
    const double *down = is_down || s->ids[pair] < 0 ? NULL : search_down_of(q, (uint32_t)s->ids[pair]);
    bool good = room && (!is_down || altered_new(&q->w->trace.arguments.down, f, &altered));
    for (size_t i = 0; good && !is_down && i < I; i++)
        change[i] = made[i] - own[i];
    for (uint32_t j = 0; good && s->ids[pair] >= 0 && q->status == GB_OK && j < y->samples; j += ABREAST) {
        const double *rows[ABREAST];
        const uint32_t count = y->samples - j < ABREAST ? y->samples - j : ABREAST;
        for (uint32_t k = 0; k < count; k++) {
            const uint32_t sample = sample_of(q, y, j + k);
            rows[k] = is_down ? room + k * I : down + (size_t)sample * I;
            if (is_down)
                altered_row(&altered, (uint32_t)s->ids[pair], q->column[sample], room + k * I);
        }
        add_prefixes(y, j, count, s->weights[pair], rows, is_down ? own : change);
    }
    if (!good)
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for rows of down_proj");
    free(room);
    altered_free(&altered);
}

/* The sum of (high - low)^2. */
GB_NARROW_CLONES static double squares_between(const double *low, const double *high, uint32_t count)
{
    vector sum = {0.0};
    uint32_t j = 0;
    for (; j + ABREAST <= count; j += ABREAST) {
        const vector difference = *(const vector *)(high + j) - *(const vector *)(low + j);
        sum += difference * difference;
    }
    for (uint32_t k = 0; j < count; j++, k++)
        sum[k] += (high[j] - low[j]) * (high[j] - low[j]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* The sum of (error - (high - low))^2. */
GB_NARROW_CLONES static double squares_left(const double *errors, const double *low, const double *high, uint32_t count)
{
    vector sum = {0.0};
    uint32_t j = 0;
    for (; j + ABREAST <= count; j += ABREAST) {
        const vector rest = *(const vector *)(errors + j) - (*(const vector *)(high + j) - *(const vector *)(low + j));
        sum += rest * rest;
    }
    for (uint32_t k = 0; j < count; j++, k++)
        sum[k] += (errors[j] - (high[j] - low[j])) * (errors[j] - (high[j] - low[j]));
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* What of the errors a multiple of elements first .. last - 1 explains. */
static double rate_multiple(const struct prefix *y, uint32_t first, uint32_t last)
{
    const double *low = y->sums + (size_t)first * y->samples, *high = y->sums + (size_t)last * y->samples;
    const double along = y->along[last] - y->along[first];
    const double squares = squares_between(low, high, y->samples);
    return squares > 0.0 ? along * along * y->all / squares : 0.0;
}

/* What elements first .. last - 1 explain, if that can be more than `least`; else `least`. */
static double rate_range(const struct prefix *y, uint32_t first, uint32_t last, double least)
{
    const double *low = y->sums + (size_t)first * y->samples, *high = y->sums + (size_t)last * y->samples;
    const double along = y->along[last] - y->along[first];
    if (y->linear)
        return fmax(rate_multiple(y, first, last), least);
    if (!(along * (2.0 - along) > least)) /* which leaves nothing but what is along the errors */
        return least;
    return fmax(1.0 - squares_left(y->errors, low, high, y->samples) / y->all, least);
}

static double find_range(const struct prefix *y, struct finding_axis *axis)
{
    uint32_t step = y->elements / STEP > MOST_BLOCKS ? y->elements / MOST_BLOCKS : STEP, first = 0, last = 0;
    double most = WORTH_REFINING;
    for (uint32_t a = 0; a < y->elements; a += step)
        for (uint32_t b = a + step; b < y->elements + step; b += step) {
            uint32_t end = b < y->elements ? b : y->elements;
            double p = rate_range(y, a, end, most);
            if (p > most) {
                most = p;
                first = a;
                last = end;
            }
        }
    for (step /= 2; step && last; step /= 2) {
        const int64_t moves[][2] = {{-(int64_t)step, 0}, {step, 0}, {0, -(int64_t)step}, {0, step}};
        for (int m = 0; m < 4; m++) {
            int64_t a = (int64_t)first + moves[m][0], b = (int64_t)last + moves[m][1];
            double p = a >= 0 && a < b && b <= y->elements ? rate_range(y, (uint32_t)a, (uint32_t)b, most) : 0.0;
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
    folded->along = malloc((period + 1) * sizeof *folded->along);
    if (!folded->sums || !folded->along)
        return false;
    for (uint32_t i = 0; i < y->elements; i++)
        for (uint32_t j = 0; j < y->samples; j++)
            folded->sums[(size_t)(i % period + 1) * y->samples + j] +=
                y->sums[(size_t)(i + 1) * y->samples + j] - y->sums[(size_t)i * y->samples + j];
    for (uint32_t i = 0; i < period; i++)
        for (uint32_t j = 0; j < y->samples; j++)
            folded->sums[(size_t)(i + 1) * y->samples + j] += folded->sums[(size_t)i * y->samples + j];
    sum_along(folded);
    return true;
}

/* Of the residues of the longest period those of the shorter ones are made. */
static double find_residues(const struct prefix *y, struct finding_axis *axis)
{
    double most = 0.99 * PROMISING;
    struct prefix longest;
    bool good = fold(y, LONGEST_PERIOD, &longest);
    for (uint32_t period = 2; good && period <= LONGEST_PERIOD && period < y->elements; period *= 2) {
        struct prefix folded;
        const bool made = fold(&longest, period, &folded);
        for (uint32_t a = 0; made && a < period; a++)
            for (uint32_t b = a + 1; b <= period; b++) {
                double p = b - a == period ? 0.0 : rate_range(&folded, a, b, most);
                if (p <= most + 1e-9)
                    continue;
                most = p;
                *axis = (struct finding_axis){.kind = AXIS_MODULO, .first = a, .count = b - a, .period = period};
            }
        free(folded.sums);
        free(folded.along);
    }
    free(longest.sums);
    free(longest.along);
    return most;
}

static void settle_elements(struct search *q, const struct finding *effect, const struct prefix *y,
                            double (*find)(const struct prefix *, struct finding_axis *))
{
    struct finding f = *effect;
    if (find(y, f.stage == FINDING_DOWN ? &f.k : &f.elements) >= PROMISING)
        search_settle(q, &f);
}

/* The slot's pair, added to what the others of `total` have. */
static void try_slot(struct search *q, const struct finding *effect, uint32_t slot, struct prefix *total)
{
    struct prefix y;
    if (prefix_new(q, effect, &y)) {
        add_pair(q, effect, (size_t)q->token[0] * q->s.top_k + slot, &y);
        for (size_t i = 0; i < (size_t)(y.elements + 1) * y.samples; i++)
            total->sums[i] += y.sums[i];
        sum_along(&y);
        settle_elements(q, effect, &y, find_range);
        settle_elements(q, effect, &y, find_residues);
    }
    prefix_free(&y);
}

void search_try_elements(struct search *q, const struct finding *effect)
{
    const struct stages *s = &q->s;
    struct prefix total = {0};
    if (search_done(q) || q->w->inner)
        return;
    size_t first = (size_t)q->token[0] * s->top_k;
    q->work += search_products(q, effect->stage, s->top_k, 4 * FEW_SAMPLES) *
               (effect->operand == FINDING_RESULTS ? 1.0 : REREAD);
    memset(q->asked, 0, s->pairs * sizeof *q->asked);
    memset(q->asked + first, true, s->top_k * sizeof *q->asked);
    if (effect->stage != FINDING_DOWN)
        q->status = stages_operand(s, effect, q->asked, q->operand, q->error);
    double *operand = malloc(s->top_k * (size_t)s->intermediate * sizeof *operand); /* settling has another one */
    if (!operand)
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for rows of the intermediate");
    const size_t from = first * s->intermediate, bytes = s->top_k * (size_t)s->intermediate * sizeof *operand;
    if (operand)
        memcpy(operand, q->operand + from, bytes);
    bool good = q->status == GB_OK && prefix_new(q, effect, &total);
    for (uint32_t slot = 0; good && slot < s->top_k && !search_done(q); slot++) {
        memcpy(q->operand + from, operand, bytes);
        try_slot(q, effect, slot, &total);
    }
    if (good && !search_done(q)) {
        sum_along(&total);
        settle_elements(q, effect, &total, find_range);
        settle_elements(q, effect, &total, find_residues);
    }
    prefix_free(&total);
    free(operand);
}
