/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/hypothesis.h"
#include "quant/quant.h"

double diagnosis_value(const struct diagnosis *w, const struct gb_layer_outputs *l, size_t i)
{
    if (w->inner)
        return (double)gb_bf16_decode(l->intermediate[i]);
    return l->format == GB_FP32 ? (double)((const float *)l->output)[i]
                                : (double)gb_bf16_decode(((const gb_bf16 *)l->output)[i]);
}

double diagnosis_difference(double value, double right)
{
    return isnan(value) && isnan(right) ? 0.0 : value - right;
}

double diagnosis_error(const struct diagnosis *w, const struct gb_layer_outputs *subject,
                       const struct gb_layer_outputs *reference, size_t i)
{
    double right = diagnosis_value(w, reference, i);
    if (!w->inner && subject->format == GB_BF16)
        right = (double)gb_bf16_decode(gb_bf16_encode((float)right));
    return diagnosis_difference(diagnosis_value(w, subject, i), right);
}

bool diagnosis_afford(struct diagnosis *w)
{
    const struct gb_shape *s = &w->trace.arguments.shape;
    double products = 3.0 * w->tokens * s->top_k * (double)s->hidden * (double)s->intermediate;
    bool can = products <= w->affordable;
    w->affordable -= can ? products : 0.0;
    w->searched.known_bugs += can;
    w->searched.untried_bugs += !can;
    return can;
}

void diagnosis_add(struct diagnosis *w, enum rank rank, const char *kind, const char *name, double explains)
{
    if (w->count == MOST_CANDIDATES || !(explains > 0.0))
        return;
    for (uint32_t i = 0; i < w->count; i++)
        if (!strcmp(w->candidates[i].name, name)) { /* found in two ways */
            w->candidates[i].explains = fmax(w->candidates[i].explains, explains);
            w->candidates[i].rank = rank < w->candidates[i].rank ? rank : w->candidates[i].rank;
            return;
        }
    struct candidate *c = &w->candidates[w->count++];
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(c->kind, sizeof c->kind, "%s", kind);
    c->explains = explains;
    c->rank = rank;
}

double diagnosis_best(const struct diagnosis *w)
{
    double best = 0.0;
    for (uint32_t i = 0; i < w->count; i++)
        best = fmax(best, w->candidates[i].explains);
    return best;
}

double diagnosis_squares(const struct diagnosis *w)
{
    double all = 0.0;
    for (uint32_t row = 0; row < w->rows; row++)
        all += w->squares[row];
    return all;
}

bool diagnosis_is_enough(const struct diagnosis *w, double explains)
{
    return explains >= EXPLAINS || (explains >= EXPLAINED && (1.0 - explains) * diagnosis_squares(w) <= 2.0 * w->noise);
}

void diagnosis_name_partly(const char *kind, unsigned places, char *name, size_t bytes)
{
    static const char *const suffixes[] = {"", ", in some tokens", ", in some columns", ", in some tokens and columns"};
    snprintf(name, bytes, "%s%s", kind, suffixes[places]);
}

/* Squared errors, and what is left of them without a candidate's. */
struct fit {
    double left, all;
    bool alike; /* what is not finite is so in both */
};

/* false: only one of the two is finite. */
static bool fit_add(struct fit *fit, double error, double candidate)
{
    if (!isfinite(error) != !isfinite(candidate))
        return false;
    if (!isfinite(error)) {
        fit->alike = true;
        return true;
    }
    fit->left += (error - candidate) * (error - candidate);
    fit->all += error * error;
    return true;
}

double diagnosis_explained(const struct diagnosis *w, const bool *rows, const bool *columns)
{
    struct fit fit = {0};
    for (size_t i = 0; i < (size_t)w->rows * w->width; i++) {
        bool asked = (!rows || rows[i / w->width]) && (!columns || columns[i % w->width]);
        double f = asked ? diagnosis_difference((double)w->faulty[i], (double)w->clean[i]) : 0.0;
        if (!fit_add(&fit, w->errors[i], f))
            return 0.0;
    }
    return fit.all > 0.0 ? 1.0 - fit.left / fit.all : (double)fit.alike;
}

void diagnosis_add_faulty(struct diagnosis *w, enum rank rank, const char *kind)
{
    const struct error_location *p = &w->location;
    bool some_rows = p->wrong_tokens < w->rows, some_columns = p->wrong_columns < w->width;
    double most = diagnosis_explained(w, NULL, NULL);
    diagnosis_add(w, rank, kind, kind, most);
    for (unsigned places = 1; places <= (LOCATION_ROWS | LOCATION_COLUMNS); places++) {
        bool rows = places & LOCATION_ROWS, columns = places & LOCATION_COLUMNS;
        char name[160];
        if ((rows && !some_rows) || (columns && !some_columns))
            continue;
        double partly = diagnosis_explained(w, rows ? p->token : NULL, columns ? p->column : NULL);
        if (partly <= most + SAME)
            continue;
        most = partly;
        diagnosis_name_partly(kind, places, name, sizeof name);
        diagnosis_add(w, RANK_PARTLY, kind, name, partly);
    }
}

/* What the changes of some slots explain, [tokens, top_k]: rows without one keep their error. */
static double explained_by(const struct diagnosis *w, const bool *slots)
{
    struct fit fit = {0};
    for (size_t row = 0; row < w->rows; row++) {
        const bool *own = slots + row * w->slots_of_row;
        if (!memchr(own, true, w->slots_of_row * sizeof *own)) {
            fit.left += w->squares[row];
            fit.all += w->squares[row];
            continue;
        }
        for (size_t i = 0; i < w->width; i++) {
            double f = 0.0;
            for (size_t pair = row * w->slots_of_row; pair < (row + 1) * w->slots_of_row; pair++)
                f += slots[pair] ? (double)w->change[pair * w->width + i] : 0.0;
            if (!fit_add(&fit, w->errors[row * w->width + i], f))
                return 0.0;
        }
    }
    return isfinite(fit.all) && fit.all > 0.0 ? 1.0 - fit.left / fit.all : isfinite(fit.all) && fit.alike;
}

/* Of the slots of one expert (or, for -1, those in place `slot`) how much their changes explain: set is scratch,
 * [tokens, top_k]. */
static double explained_by_some(const struct diagnosis *w, int32_t expert, uint32_t slot, bool *set)
{
    uint32_t top_k = w->trace.arguments.shape.top_k;
    for (size_t pair = 0; pair < (size_t)w->tokens * top_k; pair++)
        set[pair] = w->ids[pair] >= 0 && (expert < 0 ? pair % top_k == slot : w->ids[pair] == expert);
    return explained_by(w, set);
}

void diagnosis_add_change(struct diagnosis *w, enum rank rank, const char *kind)
{
    const struct gb_shape *shape = &w->trace.arguments.shape;
    size_t pairs = (size_t)w->tokens * shape->top_k;
    char name[160];
    bool *set = malloc(pairs * sizeof *set);
    if (!set)
        return;
    memset(set, true, pairs * sizeof *set);
    double whole = explained_by(w, set), most = whole + SAME;
    diagnosis_add(w, rank, kind, kind, whole);
    for (size_t pair = 0; pair < pairs; pair++)
        set[pair] = w->location.token[pair / w->slots_of_row];
    double some = w->location.wrong_tokens < w->rows ? explained_by(w, set) : 0.0;
    diagnosis_name_partly(kind, LOCATION_ROWS, name, sizeof name);
    if (some > most)
        diagnosis_add(w, RANK_PARTLY, kind, name, some);
    for (uint32_t k = 0; k < shape->top_k; k++) {
        double explains = explained_by_some(w, -1, k, set);
        snprintf(name, sizeof name, "%s, of slot %u alone", kind, k);
        if (explains > most)
            diagnosis_add(w, RANK_PARTLY, kind, name, explains);
    }
    for (uint32_t e = 0; e < shape->experts; e++) {
        double explains = w->trace.used[e] ? explained_by_some(w, (int32_t)e, 0, set) : 0.0;
        snprintf(name, sizeof name, "%s, of expert %u alone", kind, e);
        if (explains > most)
            diagnosis_add(w, RANK_PARTLY, kind, name, explains);
    }
    free(set);
}

enum gb_status diagnosis_run(struct diagnosis *w, const struct gb_arguments *arguments, const gb_bf16 *intermediate,
                             float *results, struct gb_error *error)
{
    struct gb_arguments a = *arguments;
    size_t count = (size_t)a.shape.tokens * a.shape.top_k * a.shape.intermediate;
    gb_bf16 *inner = malloc(count * sizeof *inner); /* [tokens, top_k, intermediate] */
    if (!inner)
        return gb_fail(error, GB_ENOMEM, "no memory for the intermediate of %u tokens", a.shape.tokens);
    memcpy(inner, intermediate ? intermediate : w->trace.intermediate, count * sizeof *inner);
    a.intermediate = inner;
    a.output = results;
    const struct gb_contract *contract =
        gb_contract_of(&a, GB_LAYER, gb_order_name(w->trace.contract->order)); /* of these activations */
    enum gb_status status = intermediate || w->given ? gb_reference_down(contract, &a, error)
                            : w->inner               ? gb_reference_gate_up(contract, &a, error)
                                                     : gb_reference_layer(contract, &a, error);
    for (size_t i = 0; status == GB_OK && w->inner && i < count; i++)
        results[i] = gb_bf16_decode(inner[i]);
    free(inner);
    return status;
}

void diagnosis_row_name(const struct diagnosis *w, int64_t row, char *name, size_t bytes)
{
    long long token = row / w->rows_per_token, slot = row % w->rows_per_token;
    if (w->rows_per_token > 1)
        snprintf(name, bytes, "slot %lld of token %lld", slot, token);
    else
        snprintf(name, bytes, "token %lld", token);
}
