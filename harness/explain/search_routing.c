/* SPDX-License-Identifier: Apache-2.0 */
/* Findings in what a router hands on, which the outputs tell: the weights of each token's slots, and their experts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/places.h"
#include "harness/explain/search.h"

/* Of the largest weight: how far one that is told by the outputs may be off. */
#define WEIGHT_TOLD 1e-4
/* What a slot's other expert must explain of the worst token's errors. */
#define EXPERT_TOLD 1e-3

/* The weights [pairs] that make the outputs seen. false: none do. */
static bool weights_told(struct search *q, double *told)
{
    const struct stages *s = &q->s;
    const struct finding left_out = {.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_FACTOR};
    double all = 0.0, left = 0.0, one;
    memcpy(told, s->weights, s->pairs * sizeof *told);
    for (uint32_t n = 0; n < q->tokens && !search_late(q); n++) {
        left += search_fit_token_freely(q, q->token[n], &left_out, &one);
        all += one;
        for (size_t p = (size_t)q->token[n] * s->top_k; p < (size_t)(q->token[n] + 1) * s->top_k; p++)
            told[p] = s->weights[p] * (1.0 - q->alpha[p]); /* 0: what has no response */
    }
    return !search_late(q) && all > 0.0 && 1.0 - left / all >= PROMISING;
}

void search_try_weights(struct search *q)
{
    const struct stages *s = &q->s;
    double *told = malloc(s->pairs * sizeof *told), largest = 0.0;
    uint32_t *row = malloc(s->pairs * sizeof *row), rows = 0;
    bool *is = calloc(s->pairs, sizeof *is), *would = calloc(s->pairs, sizeof *would);
    const bool good = told && row && is && would && weights_told(q, told);
    for (size_t p = 0; good && p < s->pairs; p++)
        largest = fmax(largest, fabs(s->weights[p]));
    const double tolerance = WEIGHT_TOLD * largest;
    for (size_t p = 0; good && p < s->pairs; p++) {
        is[p] = fabs(told[p] - s->weights[p]) > tolerance;
        if (!is[p])
            continue;
        told[rows] = told[p];
        row[rows++] = (uint32_t)p;
    }
    struct observed o = {FINDING_ROUTING_WEIGHT, s->weights, s->pairs, s->top_k, 1, rows, row, told, tolerance, 1e-4};
    struct finding found[MOST_EFFECTS] = {{.stage = FINDING_ROUTING_WEIGHT, .effect = FINDING_CONSTANT, .amount = 1.0}};
    bool missing = rows > 0;
    for (uint32_t r = 0; r < rows; r++)
        missing &= fabs(told[r] - 1.0) <= tolerance;
    const uint32_t count = missing ? 1 : rows ? effects_infer(&o, found, MOST_EFFECTS) : 0;
    for (uint32_t i = 0; i < count && !search_done(q); i++) {
        for (size_t p = 0; p < s->pairs; p++)
            would[p] = s->ids[p] >= 0 &&
                       !(fabs(stages_effect(s, &found[i], s->weights, 1, p, 0) - s->weights[p]) <= 2.0 * tolerance);
        if (pairs_describe(s, is, would, &found[i]))
            search_verify(q, &found[i]);
    }
    free(told);
    free(row);
    free(is);
    free(would);
}

/* What each expert would add to the samples of the worst token's slots: [experts, top_k, samples]. */
struct atoms {
    double *responses, *squares; /* [experts, top_k] */
    double *rest;                /* [samples], of the errors */
};

static bool atoms_new(struct search *q, enum finding_stage stage, struct atoms *a)
{
    const struct stages *s = &q->s;
    const size_t slots = s->top_k, n = q->samples;
    *a = (struct atoms){malloc(s->experts * slots * n * sizeof(double)), malloc(s->experts * slots * sizeof(double)),
                        malloc(n * sizeof(double))};
    if (!a->responses || !a->squares || !a->rest) {
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for what %u experts make", s->experts);
        return false;
    }
    for (uint32_t j = 0; j < n; j++)
        a->rest[j] = search_error(q, q->token[0], 0, j);
    struct finding f = {.stage = stage, .effect = FINDING_EXPERT_OF};
    for (uint32_t e = 0; e < s->experts && !search_late(q); e++) {
        f.offset = (int32_t)e;
        search_respond(q, q->token[0], &f);
        for (size_t u = 0; u < slots; u++) {
            double *to = a->responses + (e * slots + u) * n;
            memcpy(to, q->response + u * n, n * sizeof *to);
            a->squares[e * slots + u] = 0.0;
            for (uint32_t j = 0; j < n; j++)
                a->squares[e * slots + u] += to[j] * to[j];
        }
    }
    return !search_late(q);
}

/* The slot and expert that explain most of what is left, in units of squares; 0: none do. */
static double best_atom(const struct search *q, const struct atoms *a, const int32_t *taken, uint32_t *expert,
                        uint32_t *slot)
{
    const uint32_t slots = q->s.top_k, n = q->samples;
    double most = 0.0;
    for (uint32_t e = 0; e < q->s.experts; e++)
        for (uint32_t u = 0; u < slots; u++) {
            const double *response = a->responses + ((size_t)e * slots + u) * n;
            double along = 0.0;
            for (uint32_t j = 0; taken[u] < 0 && j < n; j++)
                along += response[j] * a->rest[j];
            const double gain = taken[u] < 0 ? 2.0 * along - a->squares[e * slots + u] : 0.0;
            if (gain > most) {
                most = gain;
                *expert = e;
                *slot = u;
            }
        }
    return most;
}

/* Rules by which a slot's expert may have become another one: the two for each other, that one for all, or so many
 * further on. */
static void settle_expert(struct search *q, enum finding_stage stage, int32_t id, int32_t other)
{
    const int32_t experts = (int32_t)q->s.experts;
    int32_t offset = other - id;
    const struct finding_axis both = {
        .kind = AXIS_LIST,
        .count = 2,
        .list = {(uint32_t)(id < other ? id : other), (uint32_t)(id < other ? other : id)}};
    struct finding f = {.stage = stage, .effect = FINDING_EXCHANGED, .offset = id + other, .experts = both};
    search_verify(q, &f);
    f = (struct finding){.stage = stage, .effect = FINDING_EXPERT_OF, .offset = other};
    search_settle(q, &f);
    f.effect = FINDING_EXPERT;
    f.offset = 2 * abs(offset) <= experts ? offset : offset < 0 ? offset + experts : offset - experts;
    if (abs(f.offset) != 1) /* which was tried */
        search_settle(q, &f);
}

/* Slot by slot, the one whose other expert explains most first. */
static void try_stage(struct search *q, enum finding_stage stage)
{
    const struct stages *s = &q->s;
    const size_t first = (size_t)q->token[0] * s->top_k;
    int32_t taken[MOST_SLOTS];
    struct atoms a;
    double all = 0.0, left, gain;
    uint32_t expert = 0, slot = 0;
    for (uint32_t u = 0; u < s->top_k; u++)
        taken[u] = -1;
    const bool good = atoms_new(q, stage, &a);
    for (uint32_t j = 0; good && j < q->samples; j++)
        all += a.rest[j] * a.rest[j];
    left = all;
    while (good && (gain = best_atom(q, &a, taken, &expert, &slot)) > EXPERT_TOLD * all) {
        taken[slot] = (int32_t)expert;
        left -= gain;
        for (uint32_t j = 0; j < q->samples; j++)
            a.rest[j] -= a.responses[((size_t)expert * s->top_k + slot) * q->samples + j];
    }
    for (uint32_t u = 0; good && left <= (1.0 - PROMISING) * all && u < s->top_k; u++)
        if (taken[u] >= 0)
            settle_expert(q, stage, s->ids[first + u], taken[u]);
    free(a.responses);
    free(a.squares);
    free(a.rest);
}

void search_try_experts(struct search *q)
{
    static const enum finding_stage stages[] = {FINDING_INPUT, FINDING_DOWN, FINDING_GATE_UP};
    for (size_t i = 0; i < sizeof stages / sizeof *stages && q->s.top_k <= MOST_SLOTS && !search_done(q); i++)
        if (!(q->w->given && stages[i] != FINDING_DOWN))
            try_stage(q, stages[i]);
}
