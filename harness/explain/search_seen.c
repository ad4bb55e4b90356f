/* SPDX-License-Identifier: Apache-2.0 */
/* Findings in rows that are known: the results, a single slot's, and what down must have multiplied. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/effects.h"
#include "harness/explain/invert.h"
#include "harness/explain/places.h"
#include "harness/explain/search.h"

/* Levels of noise to look through, in units of a row's typical value. */
static const double noises[] = {2e-6, 1e-4, 2e-3};
enum { NOISES = sizeof noises / sizeof *noises };

static double typical_of(const double *rows, size_t count)
{
    double squares = 0.0;
    for (size_t i = 0; i < count; i++)
        squares += rows[i] * rows[i];
    return sqrt(squares / (double)count);
}

void search_try_outputs(struct search *q)
{
    const struct diagnosis *w = q->w;
    uint32_t *row = malloc(w->rows * sizeof *row), rows = 0;
    double *values = malloc((size_t)w->rows * w->width * sizeof *values);
    for (uint32_t t = 0; row && values && t < w->rows; t++)
        if (w->location.token[t]) {
            memcpy(values + (size_t)rows * w->width, w->values + (size_t)t * w->width, w->width * sizeof *values);
            row[rows++] = t;
        }
    bool gate_up = w->inner;
    enum finding_stage stage = gate_up ? FINDING_ACT : FINDING_COMBINE;
    uint32_t width;
    const double *clean = stages_array(&q->s, stage, &width);
    double scale = typical_of(clean, (size_t)w->rows * width);
    bool few = w->wrong < FEW_ELEMENTS; /* another value to the last bit is no chance */
    for (int n = 0; rows && n < (few ? 1 : NOISES) && !search_done(q); n++) {
        double noise = few ? 0.0 : noises[n];
        struct observed o = {stage, clean, w->rows, w->rows_per_token, width, rows, row, values, noise * scale, noise};
        struct finding found[MOST_EFFECTS];
        uint32_t count = effects_infer(&o, found, MOST_EFFECTS);
        for (uint32_t i = 0; i < count && !search_done(q); i++) {
            bool *is = calloc(q->s.pairs, sizeof *is), *would = calloc(q->s.pairs, sizeof *would);
            for (uint32_t r = 0; is && would && r < w->rows; r++)
                for (uint32_t j = 0; j < width; j++) {
                    double m = effect_of(&found[i], clean, w->rows, w->rows_per_token, width, r, j);
                    would[r] |= finding_axis_has(&found[i].elements, j) &&
                                !(fabs(m - clean[(size_t)r * width + j]) <= 2.0 * noise * (scale + fabs(m)));
                    is[r] = w->location.token[r];
                }
            if (is && would &&
                (gate_up ? pairs_describe(&q->s, is, would, &found[i]) : tokens_describe(&q->s, is, would, &found[i])))
                search_verify(q, &found[i]);
            free(is);
            free(would);
        }
    }
    free(row);
    free(values);
}

void search_try_single_slots(struct search *q)
{
    const struct stages *s = &q->s;
    uint32_t t = q->token[0], H = s->hidden;
    double *values = malloc(H * sizeof *values), scale = typical_of(s->slots, (size_t)s->pairs * H);
    for (size_t p = (size_t)t * s->top_k; values && p < (size_t)(t + 1) * s->top_k && !search_done(q); p++) {
        if (s->ids[p] < 0 || s->weights[p] == 0.0)
            continue;
        for (uint32_t j = 0; j < H; j++)
            values[j] = s->slots[p * H + j] + q->w->errors[(size_t)t * H + j] / s->weights[p];
        for (int n = 0; n < NOISES && !search_done(q); n++) {
            uint32_t row = (uint32_t)p;
            struct observed o = {FINDING_DOWN,          s->slots,     s->pairs, s->top_k, H, 1, &row, values,
                                 4 * noises[n] * scale, 4 * noises[n]};
            struct finding found[MOST_EFFECTS];
            uint32_t count = effects_infer(&o, found, MOST_EFFECTS);
            for (uint32_t i = 0; i < count; i++)
                search_settle(q, &found[i]);
        }
    }
    free(values);
}

/* An effect on what down multiplies: where only some columns are wrong, on columns of K. */
static void settle_inverted(struct search *q, const struct finding *effect)
{
    struct finding f = *effect;
    bool scaled = f.effect == FINDING_FACTOR || (f.effect == FINDING_CONSTANT && f.amount == 0.0);
    if (q->w->location.wrong_columns < q->w->width && scaled && f.elements.kind != AXIS_ALL) {
        f.k = f.elements;
        f.elements = (struct finding_axis){.kind = AXIS_ALL};
        f.stage = FINDING_DOWN;
        search_settle(q, &f);
        return;
    }
    f.stage = FINDING_ACT;
    search_settle(q, &f);
    f.stage = FINDING_REQUANT;
    if (effect->stage == FINDING_REQUANT && scaled)
        search_settle(q, &f);
}

/* Effects that make what was seen, of the stages before. */
static void each_seen(struct search *q, bool operands)
{
    struct finding_axis all = {.kind = AXIS_ALL};
    if (q->s.diagnosis->trace.arguments.activation_rules)
        search_each_effect(q, FINDING_REQUANT, all, search_settle);
    for (int stage = FINDING_ACT; stage >= FINDING_GATE; stage--) {
        search_each_effect(q, (enum finding_stage)stage, all, search_settle);
        search_each_amount(q, (enum finding_stage)stage, all);
    }
    for (int stage = FINDING_GATE_UP; operands && stage >= FINDING_GATE && !search_done(q); stage--)
        search_each_operand(q, (enum finding_stage)stage, search_settle);
    for (int stage = FINDING_GATE_UP; stage >= FINDING_GATE && !search_done(q); stage--)
        search_try_ranges(q, &(struct finding){.stage = (enum finding_stage)stage});
}

void search_try_inverted(struct search *q)
{
    const struct stages *s = &q->s;
    size_t I = s->intermediate, first = (size_t)q->token[0] * s->top_k;
    double *values = malloc(s->top_k * I * sizeof *values), scale = typical_of(s->requant, s->pairs * I);
    uint32_t *row = malloc(s->top_k * sizeof *row);
    bool operands = true; /* once: they take long */
    for (int grouping = 0; values && row && grouping < GROUPINGS && !search_done(q); grouping++) {
        q->status = invert(s, q->token[0], (enum grouping)grouping, q->most - q->work, values, &q->work, q->error);
        if (q->status == GB_EUNSUPPORTED) {
            q->status = GB_OK;
            continue;
        }
        for (int n = 0; n < NOISES && !search_done(q); n++) {
            uint32_t rows = 0;
            double *some = malloc(s->top_k * I * sizeof *some);
            memset(q->seen_pairs, 0, s->pairs * sizeof *q->seen_pairs);
            for (uint32_t k = 0; some && k < s->top_k; k++) {
                bool wrong = false;
                for (size_t i = 0; i < I; i++)
                    wrong |= fabs(values[k * I + i]) > 20.0 * noises[n] * scale;
                if (!wrong)
                    continue;
                for (size_t i = 0; i < I; i++)
                    some[rows * I + i] = s->requant[(first + k) * I + i] + values[k * I + i];
                q->seen_pairs[first + k] = true;
                row[rows++] = (uint32_t)(first + k);
            }
            struct observed o = {s->diagnosis->trace.arguments.activation_rules ? FINDING_REQUANT : FINDING_ACT,
                                 s->requant,
                                 s->pairs,
                                 s->top_k,
                                 I,
                                 rows,
                                 row,
                                 some,
                                 10.0 * noises[n] * scale,
                                 10.0 * noises[n]};
            struct finding found[MOST_EFFECTS];
            uint32_t count = rows && some ? effects_infer(&o, found, MOST_EFFECTS) : 0;
            for (uint32_t i = 0; i < count && !search_done(q); i++)
                settle_inverted(q, &found[i]);
            if (rows && some && !search_done(q)) {
                q->seen = &o;
                each_seen(q, operands);
                operands = false;
                q->seen = NULL;
            }
            free(some);
        }
    }
    free(values);
    free(row);
}
