/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The search: what each stage's elements would have to be for the errors seen, or, where errors do not tell that, what
 * each effect everywhere would make of single tokens; the pairs that have it follow by least squares. What is found is
 * planted in the whole window by the contract's operators, and what that explains is what counts.
 */
#include <cblas.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/effects.h"
#include "harness/explain/invert.h"
#include "harness/explain/places.h"
#include "harness/explain/structure.h"
#include "harness/run/progress.h"
#include "quant/quant.h"

#undef I /* complex.h's, which cblas.h includes */

/* What of the worst token's squared error an effect must explain for the others to be looked at. */
#define PROMISING 0.9
/* Findings that leave this share alike are told apart by simplicity. */
#define EXACT 1e-9
enum { MOST_SAMPLES = 192, MOST_EFFECTS = 8 };

struct search {
    struct window *w;
    struct stages s;
    uint32_t *column; /* [samples], wrong columns of the results */
    uint32_t samples;
    uint32_t *token; /* [tokens], the wrong ones, the worst first; finite */
    uint32_t tokens;
    double **down; /* [experts]: rows of down for the samples, [samples, intermediate]; NULL: not yet read */
    bool *asked;   /* [pairs] */
    const struct observed *seen; /* rows of what down multiplies that are known; NULL: none */
    bool *seen_pairs;            /* [pairs], which */
    double *operand;             /* [pairs, intermediate] */
    double *response;            /* [top_k, samples] */
    double *difference;          /* [intermediate], of down's operand */
    double *errors;              /* [samples] */
    double *alpha;               /* [pairs] */
    double *weight;              /* [pairs]: squares of the responses */
    struct structure best;
    double work, most; /* products so far, and how many may be */
    enum gb_status status;
    struct gb_error *error;
};

static bool late(const struct search *q)
{
    return q->status != GB_OK || q->work > q->most;
}

/* Done: nothing is left to explain. */
static bool done(const struct search *q)
{
    return late(q) || 1.0 - q->best.explains < EXACT;
}

static int compare_worse(const void *a, const void *b, void *context)
{
    const double *squares = context;
    double left = squares[*(const uint32_t *)a], right = squares[*(const uint32_t *)b];
    return (left < right) - (left > right);
}

static void search_free(struct search *q)
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
    free(q->errors);
    free(q->alpha);
    free(q->weight);
}

static enum gb_status search_new(struct window *w, struct search *q)
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
    q->errors = malloc(w->width * sizeof *q->errors);
    q->alpha = malloc(pairs * sizeof *q->alpha);
    q->weight = malloc(pairs * sizeof *q->weight);
    double *squares = calloc(shape->tokens, sizeof *squares);
    if (!q->column || !q->token || !q->down || !q->asked || !q->seen_pairs || !q->operand || !q->response ||
        !q->difference || !q->errors || !q->alpha || !q->weight || !squares) {
        free(squares);
        return gb_fail(q->error, GB_ENOMEM, "no memory to look for the structure of an error");
    }
    uint32_t wrong = 0;
    for (uint32_t j = 0; j < w->width; j++)
        if (w->place.column[j])
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
    const struct window *w = q->w;
    const bool *wrong = w->place.column;
    bool *all = malloc(w->width * sizeof *all), found = false;
    uint32_t first = 0, last = w->width - 1, low = UINT32_MAX, high = 0;
    if (!all || !w->place.wrong_columns) {
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
        found = axis->count < period && w->place.wrong_columns >= 8 * axis->count;
    }
    if (n == 2) {
        *axis = (struct finding_axis){.kind = AXIS_RANGE, .first = first, .count = last - first + 1};
        found = axis->count < w->width;
    }
    if (n == 3) {
        *axis = (struct finding_axis){.kind = AXIS_ALL};
        found = true;
    }
    free(all);
    return found;
}

/* About as many products as a finding of the stage costs for so many pairs, down to its rows of `columns` results. */
static double products_of(const struct search *q, enum finding_stage stage, double pairs, double columns)
{
    const double H = q->s.hidden, I = q->s.intermediate;
    double gate_up = stage <= FINDING_ACT ? 2.0 * H * I : 0.0, down = stage <= FINDING_DOWN ? I * columns : columns;
    return pairs * (gate_up + (q->w->inner ? 0.0 : down));
}

/* Plants the finding in the window and keeps it if it explains more, or as much and is simpler. */
static void verify(struct search *q, const struct finding *f)
{
    if (late(q) || (f->effect == FINDING_TOKEN && f->tokens.kind == AXIS_LIST)) /* rows that others name better */
        return;
    q->work += products_of(q, f->stage, q->s.pairs, q->w->width);
    q->status = stages_plant(&q->s, f, q->w->faulty, q->error);
    if (q->status != GB_OK)
        return;
    double explains = window_explained(q->w, NULL, NULL);
    double left = fmax(1.0 - explains, EXACT), least = fmax(1.0 - q->best.explains, EXACT);
    bool better = left < 0.25 * least, simpler = left < 4.0 * least && finding_cost(f) < finding_cost(&q->best.finding);
    if (explains > 0.0 && (better || simpler || q->best.explains <= 0.0))
        q->best = (struct structure){*f, explains};
}

/* The same with the elements that the wrong columns show, where the stage's elements are columns of the results. */
static void verify_places(struct search *q, const struct finding *f)
{
    bool shown = q->w->inner ? f->stage != FINDING_INPUT : f->stage == FINDING_DOWN;
    if (!shown || f->elements.kind != AXIS_ALL) {
        verify(q, f);
        return;
    }
    for (int n = 0; n < 4 && !done(q); n++) {
        struct finding one = *f;
        if (hull(q, n, &one.elements))
            verify(q, &one);
    }
}

static const double *down_of(struct search *q, uint32_t expert)
{
    const struct gb_weights *weights = &q->w->trace.arguments.down;
    if (!q->down[expert]) {
        q->down[expert] = malloc((size_t)q->samples * q->s.intermediate * sizeof(double));
        if (!q->down[expert])
            q->status = gb_fail(q->error, GB_ENOMEM, "no memory for rows of down_proj");
        for (uint32_t j = 0; q->down[expert] && j < q->samples; j++)
            gb_weights_row(weights, expert, q->column[j], q->down[expert] + (size_t)j * q->s.intermediate);
    }
    return q->down[expert];
}

/* What q->operand makes of the samples of one token. */
static void respond_operand(struct search *q, uint32_t token)
{
    const struct stages *s = &q->s;
    uint32_t I = s->intermediate;
    size_t first = (size_t)token * s->top_k;
    memset(q->response, 0, (size_t)s->top_k * q->samples * sizeof *q->response);
    for (size_t p = first; p < first + s->top_k; p++) {
        double *response = q->response + (p - first) * q->samples;
        const double *own = s->requant + p * I, *made = q->operand + p * I;
        if (s->ids[p] < 0 || !memcmp(own, made, I * sizeof *own))
            continue;
        const double *down = q->w->inner ? NULL : down_of(q, (uint32_t)s->ids[p]);
        for (uint32_t j = 0; !down && j < q->samples && q->status == GB_OK; j++)
            response[j] = made[q->column[j]] - own[q->column[j]];
        for (uint32_t i = 0; down && i < I; i++)
            q->difference[i] = made[i] - own[i];
        if (down)
            cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)q->samples, (int)I, s->weights[p], down, (int)I,
                        q->difference, 1, 0.0, response, 1);
    }
}

/* What the effect everywhere makes of the samples of one token: a response for each slot. Of FINDING_COMBINE the first
 * slot stands for all. */
static void respond(struct search *q, uint32_t token, const struct finding *f)
{
    const struct stages *s = &q->s;
    uint32_t width, I = s->intermediate;
    const double *rows = stages_array(s, f->stage, &width);
    size_t first = (size_t)token * s->top_k;
    memset(q->response, 0, (size_t)s->top_k * q->samples * sizeof *q->response);
    q->work += products_of(q, f->stage, s->top_k, q->samples);
    bool expert = f->stage == FINDING_DOWN && f->effect == FINDING_EXPERT;
    bool operand = f->stage < FINDING_DOWN || expert || (f->stage == FINDING_DOWN && f->k.kind != AXIS_ALL);
    if (operand && f->stage != FINDING_DOWN) {
        memset(q->asked, 0, s->pairs * sizeof *q->asked);
        memset(q->asked + first, true, s->top_k * sizeof *q->asked);
        q->status = stages_operand(s, f, q->asked, q->operand, NULL, q->error);
        if (q->status == GB_OK)
            respond_operand(q, token);
        return;
    }
    for (size_t p = first; q->status == GB_OK && p < first + s->top_k; p++) {
        double *response = q->response + (p - first) * q->samples;
        if (s->ids[p] < 0 || !stages_hit(s, f, p))
            continue;
        const double *down = operand ? down_of(q, (uint32_t)s->ids[p]) : NULL;
        uint32_t neighbour = (uint32_t)(((int64_t)s->ids[p] + f->offset + s->experts) % s->experts);
        const double *other = expert ? down_of(q, neighbour) : NULL;
        for (uint32_t j = 0; j < q->samples && q->status == GB_OK; j++) {
            double sum = 0.0;
            uint32_t c = q->column[j];
            if (operand) {
                const double *own = s->requant + p * I, *row = down + (size_t)j * I;
                double factor = f->effect == FINDING_CONSTANT ? 0.0 : f->amount;
                for (uint32_t i = 0; i < I; i++)
                    if (expert)
                        sum += (other[(size_t)j * I + i] - row[i]) * own[i];
                    else if (finding_axis_has(&f->k, i))
                        sum += row[i] * own[i] * (factor - 1.0);
                sum *= s->weights[p];
            } else if (f->stage == FINDING_DOWN) {
                sum = s->weights[p] * (effect_of(f, rows, s->pairs, s->top_k, width, p, c) - rows[p * width + c]);
            } else if (f->stage == FINDING_ROUTING_WEIGHT) {
                sum = (effect_of(f, rows, s->pairs, s->top_k, 1, p, 0) - rows[p]) * s->slots[p * s->hidden + c];
            } else if (p == first) {
                sum = effect_of(f, rows, s->tokens, 1, width, token, c) - rows[(size_t)token * width + c];
            }
            if (!operand && f->stage != FINDING_ROUTING_WEIGHT && !finding_axis_has(&f->elements, c))
                sum = 0.0;
            response[j] = sum;
        }
    }
}

/* Solves the symmetric system in place by Cholesky with a little on the diagonal. a: [n, n], b: [n]. */
static void solve(double *a, double *b, uint32_t n)
{
    double trace = 0.0;
    for (uint32_t i = 0; i < n; i++)
        trace += a[i * n + i];
    for (uint32_t i = 0; i < n; i++) {
        a[i * n + i] += 1e-12 * trace / n + DBL_MIN;
        for (uint32_t j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (uint32_t k = 0; k < j; k++)
                sum -= a[i * n + k] * a[j * n + k];
            a[i * n + j] = i == j ? sqrt(fmax(sum, DBL_MIN)) : sum / a[j * n + j];
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < i; k++)
            b[i] -= a[i * n + k] * b[k];
        b[i] /= a[i * n + i];
    }
    for (uint32_t i = n; i-- > 0;) {
        for (uint32_t k = i + 1; k < n; k++)
            b[i] -= a[k * n + i] * b[k];
        b[i] /= a[i * n + i];
    }
}

static double error_at(const struct search *q, uint32_t token, uint32_t slot, uint32_t sample)
{
    size_t row = q->w->rows_per_token > 1 ? (size_t)token * q->w->rows_per_token + slot : token;
    return q->w->errors[row * q->w->width + q->column[sample]];
}

/* An effect of which a multiple is another one of its kind. */
static bool is_linear(const struct finding *f)
{
    return (f->effect == FINDING_FACTOR || f->effect == FINDING_ADD) && f->stage >= FINDING_ACT;
}

/* How much of each slot's response the token's errors have: alpha and weight of its pairs. Returns the squares that are
 * left; *all: of the errors. */
static double regress(struct search *q, uint32_t token, bool linear, double *all)
{
    uint32_t k = q->s.top_k, n = q->samples;
    double gram[64 * 64], b[64], left = 0.0;
    double *alpha = q->alpha + (size_t)token * k, *weight = q->weight + (size_t)token * k;
    *all = 0.0;
    if (k > 64)
        return 0.0;
    bool apart = q->w->inner; /* errors of each slot by itself */
    for (uint32_t u = 0; u < k; u++) {
        const double *left_response = q->response + (size_t)u * n;
        b[u] = 0.0;
        for (uint32_t j = 0; j < n; j++)
            b[u] += left_response[j] * error_at(q, token, u, j);
        for (uint32_t v = 0; v <= u; v++) {
            const double *right = q->response + (size_t)v * n;
            double sum = 0.0;
            for (uint32_t j = 0; j < n; j++)
                sum += left_response[j] * right[j];
            gram[u * k + v] = apart && u != v ? 0.0 : sum;
        }
        weight[u] = gram[u * k + u];
    }
    solve(gram, b, k);
    for (uint32_t u = 0; u < k; u++)
        alpha[u] = linear ? b[u] : b[u] > 0.5;
    for (uint32_t j = 0; j < n; j++)
        for (uint32_t row = 0; row < (apart ? k : 1); row++) {
            double e = error_at(q, token, row, j), rest = e;
            for (uint32_t u = apart ? row : 0; u < (apart ? row + 1 : k); u++)
                rest -= alpha[u] * q->response[(size_t)u * n + j];
            left += rest * rest;
            *all += e * e;
        }
    return left;
}

static double fit_token(struct search *q, uint32_t token, const struct finding *f, double *all)
{
    respond(q, token, f);
    return regress(q, token, is_linear(f), all);
}

/* The pairs that have the effect, from alpha, and of a linear one its amount. */
static bool take_pairs(struct search *q, struct finding *f)
{
    const struct stages *s = &q->s;
    bool *is = calloc(s->pairs, sizeof *is), *would = calloc(s->pairs, sizeof *would), good = is && would;
    double most = 0.0, strongest = 0.0, common = 1.0;
    for (size_t p = 0; p < s->pairs; p++)
        most = fmax(most, q->weight[p]);
    for (size_t p = 0; p < s->pairs; p++)
        if (q->alpha[p] * q->alpha[p] * q->weight[p] > strongest) {
            strongest = q->alpha[p] * q->alpha[p] * q->weight[p];
            common = q->alpha[p];
        }
    if (!is_linear(f))
        common = 1.0;
    for (size_t p = 0; good && p < s->pairs; p++) {
        would[p] = q->weight[p] > 1e-6 * most;
        is[p] = would[p] && fabs(q->alpha[p] / common - 1.0) < 0.5;
    }
    if (good && is_linear(f)) {
        double top = 0.0, bottom = 0.0;
        for (size_t p = 0; p < s->pairs; p++)
            if (is[p]) {
                top += q->alpha[p] * q->weight[p];
                bottom += q->weight[p];
            }
        common = bottom > 0.0 ? top / bottom : common;
        f->amount = f->effect == FINDING_FACTOR ? 1.0 + (f->amount - 1.0) * common : f->amount * common;
    }
    if (good && f->stage == FINDING_COMBINE) {
        for (uint32_t t = 0; t < s->tokens; t++) {
            is[t] = is[(size_t)t * s->top_k];
            would[t] = would[(size_t)t * s->top_k];
        }
        good = tokens_describe(s, is, would, f);
    } else {
        good = good && pairs_describe(s, is, would, f);
    }
    free(is);
    free(would);
    return good;
}

/* What q->operand explains of the wrong elements of the rows seen. */
static double rate_seen(const struct search *q)
{
    const struct observed *o = q->seen;
    double left = 0.0, all = 0.0;
    for (uint32_t r = 0; r < o->rows; r++)
        for (size_t i = 0; i < o->width; i++) {
            double clean = o->clean[o->row[r] * o->width + i], seen = o->values[r * o->width + i];
            double made = q->operand[o->row[r] * o->width + i];
            if (fabs(seen - clean) <= o->tolerance + o->relative * fabs(clean))
                continue;
            left += (seen - made) * (seen - made);
            all += (seen - clean) * (seen - clean);
        }
    return all > 0.0 ? 1.0 - left / all : 0.0;
}

/* What the effect everywhere explains of the worst token. */
static double promise(struct search *q, const struct finding *f)
{
    double all, left;
    if (late(q) || !q->tokens)
        return 0.0;
    if (q->seen) {
        q->work += products_of(q, f->stage, q->seen->rows, 0.0);
        q->status = stages_operand(&q->s, f, q->seen_pairs, q->operand, NULL, q->error);
        return q->status == GB_OK ? rate_seen(q) : 0.0;
    }
    left = fit_token(q, q->token[0], f, &all);
    return q->status == GB_OK && all > 0.0 && isfinite(left) ? 1.0 - left / all : 0.0;
}

static void settle(struct search *q, const struct finding *effect);

/* An effect that makes what was seen of some rows: with the elements that have it, in the whole window. */
static void settle_seen(struct search *q, const struct finding *effect)
{
    const struct observed *seen = q->seen;
    struct finding f = *effect;
    double *made = malloc(seen->rows * seen->width * sizeof *made);
    for (uint32_t r = 0; made && r < seen->rows; r++)
        memcpy(made + r * seen->width, q->operand + seen->row[r] * seen->width, seen->width * sizeof *made);
    if (made && effect_fits(seen, made, &f)) {
        q->seen = NULL;
        settle(q, &f);
        q->seen = seen;
    }
    free(made);
}

/* Finds the pairs that have the effect, and verifies. */
static void settle(struct search *q, const struct finding *effect)
{
    struct finding f = *effect;
    double all = 0.0, left = 0.0, one;
    if (done(q) || (f.stage == FINDING_DOWN && f.effect == FINDING_ADD) || promise(q, &f) < PROMISING)
        return;
    if (q->seen) {
        settle_seen(q, &f);
        return;
    }
    for (uint32_t t = 0; t < q->s.tokens && !late(q); t++) {
        left += fit_token(q, t, &f, &one);
        all += one;
    }
    if (late(q) || !(1.0 - left / all >= PROMISING) || !take_pairs(q, &f))
        return;
    if (f.effect == FINDING_FACTOR && fabs(f.amount) < 1e-6)
        f = (struct finding){.stage = f.stage,
                             .effect = FINDING_CONSTANT,
                             .tokens = f.tokens,
                             .slots = f.slots,
                             .experts = f.experts,
                             .elements = f.elements,
                             .k = f.k};
    verify_places(q, &f);
}

/* Calls `try` for each effect without an amount that a stage can have. */
static void each_effect(struct search *q, enum finding_stage stage, struct finding_axis elements,
                        void (*try)(struct search *, const struct finding *))
{
    static const enum finding_effect plain[] = {FINDING_NEGATIVE, FINDING_REVERSE, FINDING_SWAPPED};
    uint32_t width;
    stages_array(&q->s, stage, &width);
    struct finding f = {.stage = stage, .effect = FINDING_FACTOR, .elements = elements};
    try(q, &f);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        f.effect = plain[i];
        if (width > 1 && (f.effect != FINDING_SWAPPED || stage == FINDING_GATE_UP))
            try(q, &f);
    }
    f.effect = FINDING_ROUND;
    for (int type = 0; type < FINDING_TYPES; type++) {
        f.type = (enum finding_type)type;
        try(q, &f);
    }
    f.type = FINDING_BF16;
    for (f.offset = -1; f.offset <= 1; f.offset += 2) {
        f.effect = FINDING_TOKEN;
        try(q, &f);
        f.effect = FINDING_SLOT;
        if (stage_has_slots(stage) && stage != FINDING_INPUT)
            try(q, &f);
        f.effect = FINDING_EXPERT;
        if ((stage >= FINDING_GATE && stage <= FINDING_GATE_UP) || stage == FINDING_DOWN)
            try(q, &f);
    }
    f.effect = FINDING_SCALES;
    for (f.offset = -1; f.offset <= 1 && stage == FINDING_REQUANT; f.offset += 2)
        try(q, &f);
    for (uint32_t d = 1; d < width; d *= 2) {
        f.effect = FINDING_ELEMENT;
        f.offset = (int32_t)d;
        try(q, &f);
        f.offset = -(int32_t)d;
        try(q, &f);
        f.effect = FINDING_XOR;
        f.offset = (int32_t)d;
        try(q, &f);
    }
    f.effect = FINDING_ELEMENT;
    f.offset = (int32_t)(width / 2);
    if (width > 1 && (width & (width - 1)))
        try(q, &f);
}

/* Amounts: magnitudes of an array's elements by rank. */
static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double promise_of(struct search *q, struct finding *f, double amount)
{
    f->amount = amount;
    return promise(q, f);
}

/* The amount between a and b, taken as positive, for which the effect explains most: by golden section. */
static double refine(struct search *q, struct finding *f, double a, double b)
{
    const double golden = 0.6180339887498949;
    double left = b - golden * (b - a), right = a + golden * (b - a);
    double at_left = promise_of(q, f, left), at_right = promise_of(q, f, right);
    for (int i = 0; i < 32 && !late(q); i++) {
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
    if (promise(q, f) < most)
        return;
    for (int level = 0; level < 3 && !late(q); level++, span /= 8.0) {
        double centre = near, best = promise_of(q, f, near);
        for (uint32_t i = 0; i <= 2 * steps && !late(q); i++) {
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
    for (size_t i = 0; i < sizeof units / sizeof *units && !late(q); i++) {
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
    if (done(q))
        return;
    for (uint32_t i = 0; i < count && !late(q); i++) {
        double p = promise_of(q, &f, grid[i]);
        if (p > most) {
            most = p;
            best = i;
        }
    }
    if (late(q) || most < 0.05)
        return;
    f.amount = refine(q, &f, grid[best ? best - 1 : 0], grid[best + 1 < count ? best + 1 : count - 1]);
    if (f.effect == FINDING_FLUSH)
        refine_threshold(q, &f, most);
    snap(q, &f);
    settle(q, &f);
}

enum { GRID = 33 };

/* Saturation, flushing, and, where they are not linear, factors and constants added. */
static void each_amount(struct search *q, enum finding_stage stage, struct finding_axis elements)
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
    f.effect = FINDING_FLUSH;
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

/* A constant added to the rows of some slots: of all, of one, or of an expert. */
static void try_added(struct search *q)
{
    const struct stages *s = &q->s;
    struct finding f = {.stage = FINDING_DOWN, .effect = FINDING_ADD};
    bool *is = calloc(s->pairs, sizeof *is);
    double *mean = calloc(s->tokens, sizeof *mean);
    for (uint32_t n = 0; is && mean && !done(q) && n <= s->top_k + s->experts; n++) {
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
                sum += error_at(q, t, 0, j);
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
                double e = error_at(q, t, 0, j);
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
            verify_places(q, &one);
        free(would);
    }
    free(is);
    free(mean);
}

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

/* What the output itself became. */
static void try_outputs(struct search *q)
{
    const struct window *w = q->w;
    uint32_t *row = malloc(w->rows * sizeof *row), rows = 0;
    double *values = malloc((size_t)w->rows * w->width * sizeof *values);
    for (uint32_t t = 0; row && values && t < w->rows; t++)
        if (w->place.token[t]) {
            memcpy(values + (size_t)rows * w->width, w->values + (size_t)t * w->width, w->width * sizeof *values);
            row[rows++] = t;
        }
    bool gate_up = w->inner;
    enum finding_stage stage = gate_up ? FINDING_ACT : FINDING_COMBINE;
    uint32_t width;
    const double *clean = stages_array(&q->s, stage, &width);
    double scale = typical_of(clean, (size_t)w->rows * width);
    bool few = w->wrong < FEW_ELEMENTS; /* another value to the last bit is no chance */
    for (int n = 0; rows && n < (few ? 1 : NOISES) && !done(q); n++) {
        double noise = few ? 0.0 : noises[n];
        struct observed o = {stage, clean, w->rows, w->rows_per_token, width, rows, row, values, noise * scale, noise};
        struct finding found[MOST_EFFECTS];
        uint32_t count = effects_infer(&o, found, MOST_EFFECTS);
        for (uint32_t i = 0; i < count && !done(q); i++) {
            bool *is = calloc(q->s.pairs, sizeof *is), *would = calloc(q->s.pairs, sizeof *would);
            for (uint32_t r = 0; is && would && r < w->rows; r++)
                for (uint32_t j = 0; j < width; j++) {
                    double m = effect_of(&found[i], clean, w->rows, w->rows_per_token, width, r, j);
                    would[r] |= finding_axis_has(&found[i].elements, j) &&
                                !(fabs(m - clean[(size_t)r * width + j]) <= 2.0 * noise * (scale + fabs(m)));
                    is[r] = w->place.token[r];
                }
            if (is && would &&
                (gate_up ? pairs_describe(&q->s, is, would, &found[i]) : tokens_describe(&q->s, is, would, &found[i])))
                verify(q, &found[i]);
            free(is);
            free(would);
        }
    }
    free(row);
    free(values);
}

/* Each slot of the worst token as the only one that is wrong: what its row became. */
static void try_single_slots(struct search *q)
{
    const struct stages *s = &q->s;
    uint32_t t = q->token[0], H = s->hidden;
    double *values = malloc(H * sizeof *values), scale = typical_of(s->slots, (size_t)s->pairs * H);
    for (size_t p = (size_t)t * s->top_k; values && p < (size_t)(t + 1) * s->top_k && !done(q); p++) {
        if (s->ids[p] < 0 || s->weights[p] == 0.0)
            continue;
        for (uint32_t j = 0; j < H; j++)
            values[j] = s->slots[p * H + j] + q->w->errors[(size_t)t * H + j] / s->weights[p];
        for (int n = 0; n < NOISES && !done(q); n++) {
            uint32_t row = (uint32_t)p;
            struct observed o = {FINDING_DOWN,          s->slots,     s->pairs, s->top_k, H, 1, &row, values,
                                 4 * noises[n] * scale, 4 * noises[n]};
            struct finding found[MOST_EFFECTS];
            uint32_t count = effects_infer(&o, found, MOST_EFFECTS);
            for (uint32_t i = 0; i < count; i++)
                settle(q, &found[i]);
        }
    }
    free(values);
}

/*
 * Sums over columns of K of one token's products of gate_up with what is added to x: [top_k, 2 * intermediate, blocks +
 * 1], from column 0 on.
 */
enum { BLOCK = 16 };
struct range_sums {
    double *sums;
    uint32_t token, blocks;
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

static bool range_sums_new(struct search *q, uint32_t token, const struct finding *f, struct range_sums *r)
{
    const struct stages *s = &q->s;
    uint32_t rows = 2 * s->intermediate;
    double *added = malloc(s->hidden * sizeof *added), *row = malloc(s->hidden * sizeof *row);
    *r = (struct range_sums){.token = token, .blocks = (s->hidden + BLOCK - 1) / BLOCK};
    r->sums = calloc((size_t)s->top_k * rows * (r->blocks + 1), sizeof *r->sums);
    if (!added || !row || !r->sums)
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for sums over columns of K");
    if (q->status == GB_OK)
        added_to_x(q, token, f, added);
    for (uint32_t k = 0; k < s->top_k && !late(q); k++) {
        int32_t id = s->ids[(size_t)token * s->top_k + k];
        for (uint32_t n = 0; id >= 0 && n < rows; n++) {
            double *to = r->sums + ((size_t)k * rows + n) * (r->blocks + 1);
            gb_weights_row(&q->w->trace.arguments.gate_up, (uint32_t)id, n, row);
            for (uint32_t i = 0; i < s->hidden; i++) {
                to[i / BLOCK + 1] += row[i] * added[i];
            }
            for (uint32_t b = 0; b < r->blocks; b++)
                to[b + 1] += to[b];
        }
    }
    free(added);
    free(row);
    return !late(q);
}

/* What the effect on blocks first .. last - 1 explains. */
static double rate_range(struct search *q, const struct range_sums *r, enum finding_stage stage, uint32_t first,
                         uint32_t last)
{
    const struct stages *s = &q->s;
    uint32_t I = s->intermediate, stride = r->blocks + 1;
    gb_bf16 *rows = malloc(I * sizeof *rows);
    double all = 0.0, left;
    for (uint32_t k = 0; rows && k < s->top_k && !late(q); k++) {
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
    if (late(q))
        return 0.0;
    if (q->seen)
        return rate_seen(q);
    respond_operand(q, r->token);
    left = regress(q, r->token, false, &all);
    return all > 0.0 && isfinite(left) ? 1.0 - left / all : 0.0;
}

/* The range of columns, in blocks and then one by one, for which the effect explains most of the worst token. Of a dot
 * product's stage columns of K. */
static void try_ranges(struct search *q, const struct finding *effect)
{
    struct range_sums r;
    struct finding f = *effect;
    uint32_t first = 0, last = 0;
    double most = 0.0;
    if (done(q) || !range_sums_new(q, q->token[0], effect, &r)) {
        return;
    }
    for (uint32_t size = 1; size < r.blocks; size *= 2)
        for (uint32_t from = 0; from + size <= r.blocks && !late(q); from += size > 1 ? size / 2 : 1) {
            double p = rate_range(q, &r, f.stage, from, from + size);
            if (p > most) {
                most = p;
                first = from;
                last = from + size;
            }
        }
    for (uint32_t step = r.blocks; step && most > 0.05 && !late(q); step /= 2) {
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
    if (late(q) || most < (f.stage == FINDING_INPUT ? 0.3 : PROMISING))
        return;
    struct finding_axis *axis = f.stage == FINDING_INPUT ? &f.elements : &f.k;
    *axis = (struct finding_axis){.kind = AXIS_RANGE, .first = first * BLOCK, .count = (last - first) * BLOCK};
    if (axis->first + axis->count > q->s.hidden)
        axis->count = q->s.hidden - axis->first;
    most = promise(q, &f);
    for (uint32_t step = BLOCK / 2; step && most < 1.0 - EXACT && !late(q); step /= 2) {
        const int32_t moves[][2] = {{-(int32_t)step, 0}, {(int32_t)step, 0}, {0, -(int32_t)step}, {0, (int32_t)step}};
        for (int m = 0; m < 4; m++) {
            struct finding_axis before = *axis;
            int64_t a = (int64_t)axis->first + moves[m][0], b = (int64_t)axis->first + axis->count + moves[m][1];
            if (a < 0 || a >= b || b > q->s.hidden)
                continue;
            *axis = (struct finding_axis){.kind = AXIS_RANGE, .first = (uint32_t)a, .count = (uint32_t)(b - a)};
            double p = promise(q, &f);
            if (p > most)
                most = p;
            else
                *axis = before;
        }
    }
    settle(q, &f);
}

/* Effects on columns of x, and columns of K that gate_up leaves out or takes twice. */
static void each_range(struct search *q)
{
    static const double factors[] = {0.0, 2.0};
    struct finding f = {.effect = FINDING_FACTOR};
    for (int i = 0; i < 2; i++)
        for (int stage = FINDING_GATE_UP; stage >= FINDING_INPUT && !done(q); stage--) {
            f.stage = (enum finding_stage)stage;
            f.amount = factors[i];
            try_ranges(q, &f);
        }
    each_effect(q, FINDING_INPUT, (struct finding_axis){.kind = AXIS_ALL}, try_ranges);
}

/* An effect on what down multiplies: where only some columns are wrong, on columns of K. */
static void settle_inverted(struct search *q, const struct finding *effect)
{
    struct finding f = *effect;
    bool scaled = f.effect == FINDING_FACTOR || (f.effect == FINDING_CONSTANT && f.amount == 0.0);
    if (q->w->place.wrong_columns < q->w->width && scaled && f.elements.kind != AXIS_ALL) {
        f.k = f.elements;
        f.elements = (struct finding_axis){.kind = AXIS_ALL};
        f.stage = FINDING_DOWN;
        settle(q, &f);
        return;
    }
    f.stage = FINDING_ACT;
    settle(q, &f);
    f.stage = FINDING_REQUANT;
    if (effect->stage == FINDING_REQUANT && scaled)
        settle(q, &f);
}

/* Effects that make what was seen, of the stages before. */
static void each_seen(struct search *q)
{
    struct finding_axis all = {.kind = AXIS_ALL};
    if (q->s.window->trace.arguments.activation_rules)
        each_effect(q, FINDING_REQUANT, all, settle);
    for (int stage = FINDING_ACT; stage >= FINDING_GATE; stage--) {
        each_effect(q, (enum finding_stage)stage, all, settle);
        each_amount(q, (enum finding_stage)stage, all);
    }
    for (int stage = FINDING_GATE_UP; stage >= FINDING_GATE && !done(q); stage--)
        try_ranges(q, &(struct finding){.stage = (enum finding_stage)stage});
}

/* What the worst token's rows of the intermediate must have been, by the outputs alone, and what made them so. */
static void try_inverted(struct search *q)
{
    const struct stages *s = &q->s;
    size_t I = s->intermediate, first = (size_t)q->token[0] * s->top_k;
    double *values = malloc(s->top_k * I * sizeof *values), scale = typical_of(s->requant, s->pairs * I);
    uint32_t *row = malloc(s->top_k * sizeof *row);
    for (int grouping = 0; values && row && grouping < GROUPINGS && !done(q); grouping++) {
        q->status = invert(s, q->token[0], (enum grouping)grouping, q->most - q->work, values, &q->work, q->error);
        if (q->status == GB_EUNSUPPORTED) {
            q->status = GB_OK;
            continue;
        }
        for (int n = 0; n < NOISES && !done(q); n++) {
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
            struct observed o = {s->window->trace.arguments.activation_rules ? FINDING_REQUANT : FINDING_ACT,
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
            for (uint32_t i = 0; i < count && !done(q); i++)
                settle_inverted(q, &found[i]);
            if (rows && some && !done(q)) {
                q->seen = &o;
                each_seen(q);
                q->seen = NULL;
            }
            free(some);
        }
    }
    free(values);
    free(row);
}

static void each_stage(struct search *q)
{
    static const enum finding_stage stages[] = {FINDING_ROUTING_WEIGHT, FINDING_DOWN, FINDING_ACT,
                                                FINDING_REQUANT,        FINDING_UP,   FINDING_GATE,
                                                FINDING_GATE_UP,        FINDING_INPUT};
    bool down = q->w->given, gate_up = q->w->inner;
    struct finding_axis all = {.kind = AXIS_ALL};
    for (size_t i = 0; i < sizeof stages / sizeof *stages && !done(q); i++) {
        enum finding_stage stage = stages[i];
        progress("searching what the error looks like", 0.7 + 0.02 * (double)i);
        if ((gate_up && stage > FINDING_ACT) || (down && stage < FINDING_ACT) ||
            (stage == FINDING_REQUANT && !q->w->trace.arguments.activation_rules))
            continue;
        each_effect(q, stage, all, settle);
        if (stage != FINDING_ROUTING_WEIGHT && stage != FINDING_REQUANT && !done(q))
            each_amount(q, stage, all);
        if (stage == FINDING_ACT && !done(q)) {
            struct finding added = {.stage = stage, .effect = FINDING_ADD, .amount = 1.0};
            settle(q, &added);
        }
    }
}

enum gb_status structure_search(struct window *w, double products, struct structure *best, struct gb_error *error)
{
    struct search q = {.most = products, .status = GB_OK, .error = error};
    q.status = search_new(w, &q);
    if (q.status == GB_OK && !done(&q))
        try_outputs(&q);
    bool many = w->wrong >= FEW_ELEMENTS && q.tokens;
    if (q.status == GB_OK && many && !done(&q) && !w->inner) {
        try_single_slots(&q);
        try_added(&q);
    }
    if (q.status == GB_OK && many && !done(&q))
        each_stage(&q);
    if (q.status == GB_OK && many && !done(&q) && !w->inner)
        try_inverted(&q);
    if (q.status == GB_OK && many && !done(&q) && !w->given)
        each_range(&q);
    *best = q.best;
    search_free(&q);
    return q.status;
}
