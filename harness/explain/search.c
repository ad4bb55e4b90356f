/* SPDX-License-Identifier: Apache-2.0 */
/* A search: what it keeps, and how a finding is verified in all tokens of the diagnosis. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/places.h"
#include "harness/explain/search.h"
#include "quant/quant.h"

bool search_late(const struct search *q)
{
    return q->status != GB_OK || q->work > q->most;
}

bool search_done(const struct search *q)
{
    return search_late(q) || 1.0 - q->best.explains < EXACT;
}

static int compare_worse(const void *a, const void *b, void *context)
{
    const double *squares = context;
    double left = squares[*(const uint32_t *)a], right = squares[*(const uint32_t *)b];
    return (left < right) - (left > right);
}

void search_free(struct search *q)
{
    for (uint32_t e = 0; q->down && e < q->s.experts; e++)
        free(q->down[e]);
    free(q->down);
    stages_free(&q->s);
    free(q->column);
    free(q->token);
    free(q->asked);
    free(q->seen_pairs);
    free(q->operand);
    free(q->response);
    free(q->difference);
    free(q->alpha);
    free(q->weight);
}

enum gb_status search_new(struct diagnosis *w, struct search *q)
{
    const struct gb_shape *shape = &w->trace.arguments.shape;
    uint32_t pairs = shape->tokens * shape->top_k;
    q->w = w;
    enum gb_status status = stages_new(w, &q->s, q->error);
    if (status != GB_OK)
        return status;
    q->column = malloc(w->width * sizeof *q->column);
    q->token = malloc(shape->tokens * sizeof *q->token);
    q->down = calloc(shape->experts, sizeof *q->down);
    q->asked = calloc(pairs, sizeof *q->asked);
    q->seen_pairs = calloc(pairs, sizeof *q->seen_pairs);
    q->operand = malloc((size_t)pairs * shape->intermediate * sizeof *q->operand);
    q->response = malloc((size_t)shape->top_k * w->width * sizeof *q->response);
    q->difference = malloc(shape->intermediate * sizeof *q->difference);
    q->alpha = malloc(pairs * sizeof *q->alpha);
    q->weight = malloc(pairs * sizeof *q->weight);
    double *squares = calloc(shape->tokens, sizeof *squares);
    if (!q->column || !q->token || !q->down || !q->asked || !q->seen_pairs || !q->operand || !q->response ||
        !q->difference || !q->alpha || !q->weight || !squares) {
        free(squares);
        return gb_fail(q->error, GB_ENOMEM, "no memory to look for the structure of an error");
    }
    uint32_t wrong = 0;
    for (uint32_t j = 0; j < w->width; j++)
        if (w->location.column[j])
            q->column[wrong++] = j;
    uint32_t most = MOST_SAMPLES > 6 * shape->top_k ? MOST_SAMPLES : 6 * shape->top_k;
    q->samples = wrong < most ? wrong : most;
    for (uint32_t j = 0; j < q->samples; j++)
        q->column[j] = q->column[(uint64_t)j * wrong / q->samples];
    for (uint32_t t = 0; t < shape->tokens; t++) {
        for (uint32_t row = 0; row < w->rows_per_token; row++)
            squares[t] += w->squares[t * w->rows_per_token + row];
        if (squares[t] > 0.0 && isfinite(squares[t]))
            q->token[q->tokens++] = t;
    }
    qsort_r(q->token, q->tokens, sizeof *q->token, compare_worse, squares);
    free(squares);
    return GB_OK;
}

/* The wrong columns as an axis: as they are; those of a period; from the first to the last. false: there is none. */
static bool hull(const struct search *q, int n, struct finding_axis *axis)
{
    const struct diagnosis *w = q->w;
    const bool *wrong = w->location.column;
    bool *all = malloc(w->width * sizeof *all), found = false;
    uint32_t first = 0, last = w->width - 1, low = UINT32_MAX, high = 0;
    if (!all || !w->location.wrong_columns) {
        free(all);
        return false;
    }
    memset(all, true, w->width * sizeof *all);
    while (!wrong[first])
        first++;
    while (!wrong[last])
        last--;
    if (n == 0)
        found = axis_describe(wrong, all, w->width, axis);
    for (uint32_t period = 2; n == 1 && !found && period <= 64; period *= 2) {
        low = UINT32_MAX;
        high = 0;
        for (uint32_t j = 0; j < w->width; j++)
            if (wrong[j]) {
                low = j % period < low ? j % period : low;
                high = j % period > high ? j % period : high;
            }
        *axis = (struct finding_axis){.kind = AXIS_MODULO, .first = low, .count = high - low + 1, .period = period};
        found = axis->count < period && w->location.wrong_columns >= 8 * axis->count;
    }
    if (n == 2) {
        *axis = (struct finding_axis){.kind = AXIS_RANGE, .first = first, .count = last - first + 1};
        found = axis->count < w->width;
    }
    free(all);
    return found;
}

double search_products(const struct search *q, enum finding_stage stage, double pairs, double columns)
{
    const double H = q->s.hidden, I = q->s.intermediate;
    double gate_up = stage <= FINDING_ACT ? 2.0 * H * I : 0.0, down = stage <= FINDING_DOWN ? I * columns : columns;
    return pairs * (gate_up + (q->w->inner ? 0.0 : down));
}

void search_verify(struct search *q, const struct finding *f)
{
    const bool pair = f->effect == FINDING_TOKEN_XOR && f->tokens.kind != AXIS_MODULO && q->tokens <= 2;
    if (search_late(q) || pair ||
        (f->effect == FINDING_TOKEN && f->tokens.kind == AXIS_LIST)) /* rows that others name better */
        return;
    q->work += search_products(q, f->stage, q->s.pairs, q->w->width);
    q->w->searched.findings++;
    q->status = stages_plant(&q->s, f, q->w->faulty, q->error);
    if (q->status != GB_OK)
        return;
    double explains = diagnosis_explained(q->w, NULL, NULL);
    double left = fmax(1.0 - explains, EXACT), least = fmax(1.0 - q->best.explains, EXACT);
    bool better = left < 0.25 * least, simpler = left < 4.0 * least && finding_cost(f) < finding_cost(&q->best.finding);
    if (explains > 0.0 && (better || simpler || q->best.explains <= 0.0))
        q->best = (struct structure){*f, explains};
}

void search_verify_places(struct search *q, const struct finding *f)
{
    bool shown = q->w->inner ? f->stage != FINDING_INPUT : f->stage == FINDING_DOWN;
    if (!shown || f->elements.kind != AXIS_ALL) {
        search_verify(q, f);
        return;
    }
    for (int n = 0; n < 3 && !search_done(q); n++) {
        struct finding one = *f;
        if (hull(q, n, &one.elements))
            search_verify(q, &one);
    }
    if (!search_done(q))
        search_verify(q, f);
}
