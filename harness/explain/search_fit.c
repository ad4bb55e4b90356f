/* SPDX-License-Identifier: Apache-2.0 */
/* What an effect everywhere makes of samples of single tokens, and by least squares which slots have it. */
#include <cblas.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/altered_row.h"
#include "harness/explain/places.h"
#include "harness/explain/search.h"
#include "quant/quant.h"

#undef I /* complex.h's, which cblas.h includes */

const double *search_down_of(struct search *q, uint32_t expert)
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

void search_respond_operand(struct search *q, uint32_t token)
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
        const double *down = q->w->inner ? NULL : search_down_of(q, (uint32_t)s->ids[p]);
        if (q->status != GB_OK)
            return;
        for (uint32_t j = 0; !down && j < q->samples; j++)
            response[j] = made[q->column[j]] - own[q->column[j]];
        for (uint32_t i = 0; down && i < I; i++)
            q->difference[i] = made[i] - own[i];
        if (down)
            cblas_dgemv(CblasRowMajor, CblasNoTrans, (int)q->samples, (int)I, s->weights[p], down, (int)I,
                        q->difference, 1, 0.0, response, 1);
    }
}

/* What weights of down that are read otherwise add to the samples of one slot. */
static void respond_altered(struct search *q, const struct finding *f, size_t pair, double *response)
{
    const struct stages *s = &q->s;
    const size_t I = s->intermediate;
    struct altered altered;
    const bool good = altered_new(&q->w->trace.arguments.down, f, &altered);
    for (uint32_t j = 0; good && j < q->samples; j++) {
        if (!finding_axis_has(&f->elements, q->column[j]))
            continue;
        altered_row(&altered, (uint32_t)s->ids[pair], q->column[j], q->difference);
        response[j] = s->weights[pair] * cblas_ddot((int)I, q->difference, 1, s->requant + pair * I, 1);
    }
    if (!good)
        q->status = gb_fail(q->error, GB_ENOMEM, "no memory for rows of down_proj");
    altered_free(&altered);
}

/* What pairs make that another expert computes, whose operand is q->operand. */
static void respond_elsewhere(struct search *q, uint32_t token, const struct finding *f)
{
    const struct stages *s = &q->s;
    const int I = (int)s->intermediate, n = (int)q->samples;
    for (uint32_t u = 0; u < s->top_k; u++) {
        size_t p = (size_t)token * s->top_k + u;
        double *response = q->response + (size_t)u * q->samples;
        if (s->ids[p] < 0)
            continue;
        const double *own = search_down_of(q, (uint32_t)s->ids[p]),
                     *other = search_down_of(q, stages_expert(s, f, s->ids[p]));
        if (q->status != GB_OK)
            return;
        cblas_dgemv(CblasRowMajor, CblasNoTrans, n, I, s->weights[p], other, I, q->operand + p * s->intermediate, 1,
                    0.0, response, 1);
        cblas_dgemv(CblasRowMajor, CblasNoTrans, n, I, -s->weights[p], own, I, s->requant + p * s->intermediate, 1, 1.0,
                    response, 1);
    }
}

void search_respond(struct search *q, uint32_t token, const struct finding *f)
{
    const struct stages *s = &q->s;
    uint32_t width, I = s->intermediate;
    const double *rows = stages_array(s, f->stage, &width);
    size_t first = (size_t)token * s->top_k;
    memset(q->response, 0, (size_t)s->top_k * q->samples * sizeof *q->response);
    double products = search_products(q, f->stage, s->top_k, q->samples);
    if (f->operand != FINDING_RESULTS)
        products *= f->elements.kind == AXIS_MODULO ? REREAD * f->elements.count / f->elements.period : REREAD;
    q->work += products;
    bool altered = f->stage == FINDING_DOWN && f->operand != FINDING_RESULTS;
    bool expert = f->stage == FINDING_DOWN && effect_names_expert(f->effect);
    bool operand = f->stage < FINDING_DOWN || expert || (f->stage == FINDING_DOWN && f->k.kind != AXIS_ALL);
    if (operand && f->stage != FINDING_DOWN) {
        memset(q->asked, 0, s->pairs * sizeof *q->asked);
        memset(q->asked + first, true, s->top_k * sizeof *q->asked);
        q->status = stages_operand(s, f, q->asked, q->operand, q->error);
        if (q->status == GB_OK && effect_names_expert(f->effect) && f->stage == FINDING_INPUT)
            respond_elsewhere(q, token, f);
        else if (q->status == GB_OK)
            search_respond_operand(q, token);
        return;
    }
    for (size_t p = first; q->status == GB_OK && p < first + s->top_k; p++) {
        double *response = q->response + (p - first) * q->samples;
        if (s->ids[p] < 0 || !stages_hit(s, f, p))
            continue;
        if (altered) {
            respond_altered(q, f, p, response);
            continue;
        }
        const double *down = operand ? search_down_of(q, (uint32_t)s->ids[p]) : NULL;
        const double *other = expert ? search_down_of(q, stages_expert(s, f, s->ids[p])) : NULL;
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
                sum = s->weights[p] * (stages_effect(s, f, rows, width, p, c) - rows[p * width + c]);
            } else if (f->stage == FINDING_ROUTING_WEIGHT) {
                sum = (stages_effect(s, f, rows, 1, p, 0) - rows[p]) * s->slots[p * s->hidden + c];
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

double search_error(const struct search *q, uint32_t token, uint32_t slot, uint32_t sample)
{
    size_t row = q->w->rows_per_token > 1 ? (size_t)token * q->w->rows_per_token + slot : token;
    return q->w->errors[row * q->w->width + q->column[sample]];
}

bool search_is_linear(const struct finding *f)
{
    return (f->effect == FINDING_FACTOR || f->effect == FINDING_ADD) && f->stage >= FINDING_ACT;
}

double search_regress(struct search *q, uint32_t token, bool linear, double *all)
{
    uint32_t k = q->s.top_k, n = q->samples;
    double gram[MOST_SLOTS * MOST_SLOTS], b[MOST_SLOTS], left = 0.0;
    double *alpha = q->alpha + (size_t)token * k, *weight = q->weight + (size_t)token * k;
    *all = 0.0;
    if (k > MOST_SLOTS)
        return 0.0;
    bool apart = q->w->inner; /* errors of each slot by itself */
    for (uint32_t u = 0; u < k; u++) {
        const double *left_response = q->response + (size_t)u * n;
        b[u] = 0.0;
        for (uint32_t j = 0; j < n; j++)
            b[u] += left_response[j] * search_error(q, token, u, j);
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
            double e = search_error(q, token, row, j), rest = e;
            for (uint32_t u = apart ? row : 0; u < (apart ? row + 1 : k); u++)
                rest -= alpha[u] * q->response[(size_t)u * n + j];
            left += rest * rest;
            *all += e * e;
        }
    return left;
}

double search_fit_token_freely(struct search *q, uint32_t token, const struct finding *f, double *all)
{
    search_respond(q, token, f);
    return search_regress(q, token, true, all);
}

double search_fit_token(struct search *q, uint32_t token, const struct finding *f, double *all)
{
    search_respond(q, token, f);
    return search_regress(q, token, search_is_linear(f), all);
}

bool search_take_pairs(struct search *q, struct finding *f)
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
    if (!search_is_linear(f))
        common = 1.0;
    for (size_t p = 0; good && p < s->pairs; p++) {
        would[p] = q->weight[p] > 1e-6 * most;
        is[p] = would[p] && fabs(q->alpha[p] / common - 1.0) < 0.5;
    }
    if (good && search_is_linear(f)) {
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

double search_rate_seen(const struct search *q)
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

double search_promise(struct search *q, const struct finding *f)
{
    double all, left;
    if (search_late(q) || !q->tokens)
        return 0.0;
    if (q->seen) {
        q->work += search_products(q, f->stage, q->seen->rows, 0.0);
        q->status = stages_operand(&q->s, f, q->seen_pairs, q->operand, q->error);
        return q->status == GB_OK ? search_rate_seen(q) : 0.0;
    }
    left = search_fit_token(q, q->token[0], f, &all);
    return q->status == GB_OK && all > 0.0 && isfinite(left) ? 1.0 - left / all : 0.0;
}
