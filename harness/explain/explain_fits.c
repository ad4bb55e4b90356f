/* SPDX-License-Identifier: Apache-2.0 */
/* What an error may look like beside the injected faults: wrong scales, rows of other tokens, ids with an offset. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/hypothesis.h"
#include "quant/quant.h"

/* error = (factor - 1) * the part of the reference's result that these slots are, by least squares.
 * slots: [tokens, top_k]. */
static void try_gain(struct diagnosis *w, const char *what, const char *kind, const bool *slots)
{
    double dot = 0.0, squares = 0.0, all = 0.0;
    char name[160], general[160];
    for (size_t i = 0; i < (size_t)w->rows * w->width; i++) {
        double share = 0.0;
        size_t first = i / w->width * w->slots_of_row;
        if (!isfinite(w->errors[i]))
            return;
        for (size_t pair = first; pair < first + w->slots_of_row; pair++)
            share += slots[pair] ? (double)w->share[pair * w->width + i % w->width] : 0.0;
        dot += share * w->errors[i];
        squares += share * share;
        all += w->errors[i] * w->errors[i];
    }
    double factor = 1.0 + dot / squares;
    bool everything = !strcmp(what, kind), named = w->count && w->candidates[0].rank == RANK_NOTHING;
    if (!(squares > 0.0) || !(all > 0.0) || (everything && named)) /* zeros have a name */
        return;
    const char *form = fabs(factor) < SAME ? "%s left out" : fabs(factor - 2.0) < SAME ? "%s added twice" : NULL;
    snprintf(name, sizeof name, form ? form : "%s scaled by %.7g", what, factor);
    snprintf(general, sizeof general, form ? form : "%s scaled", kind);
    diagnosis_add(w, RANK_COORDINATE, general, name, dot * dot / (squares * all));
}

/* Whether there is a slot in use that is not in the set. */
static bool some(const struct diagnosis *w, const bool *set)
{
    uint32_t top_k = w->trace.arguments.shape.top_k;
    bool in = false, out = false;
    for (size_t pair = 0; pair < (size_t)w->tokens * top_k; pair++)
        if (w->ids[pair] >= 0)
            *(set[pair] ? &in : &out) = true;
    return in && out;
}

void try_gains(struct diagnosis *w)
{
    const struct gb_shape *shape = &w->trace.arguments.shape;
    size_t pairs = (size_t)w->tokens * shape->top_k;
    char what[64];
    bool *set = malloc(pairs * sizeof *set); /* [tokens, top_k] */
    if (!set)
        return;
    memset(set, true, pairs * sizeof *set);
    try_gain(w, "the output", "the output", set);
    for (uint32_t e = 0; e < shape->experts; e++) {
        for (size_t pair = 0; pair < pairs; pair++)
            set[pair] = w->ids[pair] == (int32_t)e;
        snprintf(what, sizeof what, "expert %u", e);
        if (w->trace.used[e] && some(w, set))
            try_gain(w, what, "an expert", set);
    }
    for (uint32_t k = 0; k < shape->top_k; k++) {
        for (size_t pair = 0; pair < pairs; pair++)
            set[pair] = pair % shape->top_k == k;
        snprintf(what, sizeof what, "slot %u", k);
        if (some(w, set))
            try_gain(w, what, "a slot", set);
    }
    free(set);
}

/* What a row would still be wrong by if it were that of another row of the reference. */
static double distance(const struct diagnosis *w, const struct gb_layer_outputs *subject, uint32_t row,
                       const struct gb_layer_outputs *reference, uint32_t other)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < w->width; i++) {
        double right = diagnosis_value(w, reference, (size_t)other * w->width + i);
        if (subject->format == GB_BF16 && !w->inner)
            right = (double)gb_bf16_decode(gb_bf16_encode((float)right));
        double d = diagnosis_difference(diagnosis_value(w, subject, (size_t)row * w->width + i), right);
        sum += d * d;
    }
    return sum;
}

/* "token 3 and token 7 exchanged"; "token 3 has the output of token 7, token 4 that of token 9 and 2 more".
 * from: [rows], rows of the layer. */
static void name_rows(const struct diagnosis *w, const int64_t *from, char *name, size_t bytes)
{
    int64_t first_row = (int64_t)w->first * w->rows_per_token;
    size_t used = 0;
    uint32_t shown = 0, moved = 0, first = 0;
    char here[64], there[64];
    for (uint32_t t = w->rows; t-- > 0;) {
        moved += from[t] >= 0;
        first = from[t] >= 0 ? t : first;
    }
    int64_t other = from[first] - first_row;
    if (moved == 2 && other >= 0 && other < w->rows && from[other] == first_row + first) {
        diagnosis_row_name(w, first_row + first, here, sizeof here);
        diagnosis_row_name(w, first_row + other, there, sizeof there);
        snprintf(name, bytes, "%s and %s exchanged", here, there);
        return;
    }
    for (uint32_t t = 0; t < w->rows && shown < 3 && used < bytes; t++)
        if (from[t] >= 0) {
            diagnosis_row_name(w, first_row + t, here, sizeof here);
            diagnosis_row_name(w, from[t], there, sizeof there);
            used += (size_t)snprintf(name + used, bytes - used, "%s%s %s %s", shown ? ", " : "", here,
                                     shown ? "that of" : "has the output of", there);
            shown++;
        }
    if (moved > shown && used < bytes)
        snprintf(name + used, bytes - used, " and %u more", moved - shown);
}

enum gb_status try_rows(struct diagnosis *w, const struct gb_layer_outputs *subject,
                        const struct gb_layer_outputs *reference, uint32_t tokens, struct gb_error *error)
{
    double left = 0.0, all = 0.0;
    uint32_t moved = 0, first = w->first * w->rows_per_token;
    char name[160] = "";
    int64_t *from = malloc(sizeof *from * w->rows); /* [rows]: whose result a row has; -1: its own, or nobody's */
    if (!from)
        return gb_fail(error, GB_ENOMEM, "no memory to compare %u rows", w->rows);
    for (uint32_t t = 0; t < w->rows; t++) {
        double own = distance(w, subject, first + t, reference, first + t), nearest = own;
        from[t] = -1;
        for (uint32_t other = 0; w->location.token[t] && isfinite(own) && other < tokens * w->rows_per_token; other++) {
            double d = distance(w, subject, first + t, reference, other);
            if (d < nearest && d <= (1.0 - EXPLAINED) * own) {
                nearest = d;
                from[t] = other;
            }
        }
        moved += from[t] >= 0;
        left += nearest;
        all += own;
    }
    if (moved && all > 0.0 && isfinite(all)) {
        name_rows(w, from, name, sizeof name);
        diagnosis_add(w, RANK_COORDINATE, "outputs of other tokens", name, 1.0 - left / all);
    }
    free(from);
    return GB_OK;
}

/* The share of the error that is left when columns first .. last of the wrong rows are those `offset` further on, the
 * row taken as a ring. */
static double left_by_offset(const struct diagnosis *w, uint32_t first, uint32_t last, uint32_t offset)
{
    double left = 0.0, all = 0.0;
    for (size_t row = 0; row < w->rows; row++) {
        const double *errors = w->errors + row * w->width, *values = w->values + row * w->width;
        const float *clean = w->clean + row * w->width;
        for (uint32_t i = first; w->location.token[row] && i <= last; i++) {
            double d = values[i] - (double)clean[(i + offset) % w->width];
            left += d * d;
            all += errors[i] * errors[i];
        }
    }
    return all > 0.0 && isfinite(left) ? left / all : 1.0;
}

void try_columns(struct diagnosis *w)
{
    uint32_t first = 0, last = w->width - 1, best = 0;
    double least = 1.0;
    char name[160];
    while (first < last && !w->location.column[first])
        first++;
    while (last > first && !w->location.column[last])
        last--;
    if (last == first)
        return;
    for (uint32_t offset = 1; offset < w->width; offset++) {
        double left = left_by_offset(w, first, last, offset);
        if (left < least) {
            least = left;
            best = offset;
        }
    }
    double inside = 0.0, all = 0.0;
    for (size_t i = 0; i < (size_t)w->rows * w->width; i++) {
        bool in = w->location.token[i / w->width] && i % w->width >= first && i % w->width <= last;
        inside += in ? w->errors[i] * w->errors[i] : 0.0;
        all += w->errors[i] * w->errors[i];
    }
    if (!best || !(all > 0.0) || !isfinite(all))
        return;
    uint32_t from = (first + best) % w->width;
    snprintf(name, sizeof name, "columns %u to %u have those from %u on", first, last, from);
    diagnosis_add(w, RANK_COORDINATE, "columns of another place", name, inside * (1.0 - least) / all);
}

/* Whether every expert that the tokens need has its weights. */
static bool shifted(const struct diagnosis *w, const struct gb_fixture *f, uint32_t offset, int32_t *ids)
{
    const struct gb_arguments *a = &w->trace.arguments;
    for (size_t p = 0; p < (size_t)w->tokens * a->shape.top_k; p++) {
        ids[p] = a->ids[p] < 0 ? -1 : (int32_t)(((uint32_t)a->ids[p] + offset) % a->shape.experts);
        if (ids[p] >= 0 && f->generated && !gb_layer_touches(f, w->layer, (uint32_t)ids[p]))
            return false;
    }
    return true;
}

enum gb_status try_offsets(struct diagnosis *w, const struct gb_fixture *f, struct gb_error *error)
{
    const uint32_t experts = w->trace.arguments.shape.experts;
    /* One, and the experts of a rank if there are 2, 4, 8 or 16 of them; each to either side. */
    const uint32_t sizes[] = {1, experts / 2, experts / 4, experts / 8, experts / 16};
    struct gb_arguments a = w->trace.arguments;
    int32_t *ids = malloc(sizeof *ids * w->tokens * a.shape.top_k); /* [tokens, top_k] */
    enum gb_status status = ids ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for the ids of %u tokens", w->tokens);
    a.ids = ids;
    for (size_t i = 0; status == GB_OK && i < 2 * sizeof sizes / sizeof *sizes; i++) {
        uint32_t size = sizes[i / 2], offset = i % 2 ? experts - size : size;
        char name[64];
        bool repeated = size == 0 || (i / 2 > 0 && size == 1) || (i % 2 && 2 * size == experts);
        if (repeated || offset >= experts || !shifted(w, f, offset, ids) || !diagnosis_afford(w))
            continue;
        status = diagnosis_run(w, &a, NULL, w->faulty, error);
        snprintf(name, sizeof name, "experts' ids off by %s%u", i % 2 ? "-" : "", size);
        if (status == GB_OK)
            diagnosis_add_faulty(w, RANK_WHOLE, name);
    }
    free(ids);
    return status;
}
