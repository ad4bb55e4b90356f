/* SPDX-License-Identifier: Apache-2.0 */
/* What an error may look like beside the planted faults: wrong scales, rows of other tokens, ids with an offset. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/window.h"
#include "quant/quant.h"

static void enter_gain(struct window *w, const char *what, double dot, double squares, double all)
{
    char name[128];
    if (!(squares > 0.0) || !(all > 0.0))
        return;
    double factor = 1.0 + dot / squares;
    if (fabs(factor) < SAME)
        snprintf(name, sizeof name, "%s left out", what);
    else if (fabs(factor - 2.0) < SAME)
        snprintf(name, sizeof name, "%s added twice", what);
    else
        snprintf(name, sizeof name, "%s scaled by %.7g", what, factor);
    window_enter(w, name, "", dot * dot / (squares * all));
}

/* error = (factor - 1) * the slot's share of the output, of all slots for -1, by least squares. */
static void try_gain(struct window *w, const char *what, int32_t slot)
{
    const struct gb_arguments *a = &w->trace.arguments;
    double dot = 0.0, squares = 0.0, all = 0.0;
    for (size_t i = 0; i < (size_t)w->tokens * w->hidden; i++) {
        double share = 0.0;
        if (!isfinite(w->errors[i]))
            return;
        for (uint32_t k = 0; k < a->shape.top_k; k++) {
            size_t pair = i / w->hidden * a->shape.top_k + k;
            if (a->ids[pair] >= 0 && (slot < 0 || k == (uint32_t)slot))
                share += (double)a->routing_weights[pair] * (double)w->trace.slots[pair * w->hidden + i % w->hidden];
        }
        dot += share * w->errors[i];
        squares += share * share;
        all += w->errors[i] * w->errors[i];
    }
    enter_gain(w, what, dot, squares, all);
}

/* An expert's share of the window's outputs: its product with the errors, and its square. */
struct share {
    double dot, squares;
};

static struct share share_of(const struct window *w, int32_t expert)
{
    const struct gb_arguments *a = &w->trace.arguments;
    struct share s = {0};
    for (size_t pair = 0; pair < (size_t)w->tokens * a->shape.top_k; pair++)
        for (uint32_t i = 0; a->ids[pair] == expert && i < w->hidden; i++) {
            double value = (double)a->routing_weights[pair] * (double)w->trace.slots[pair * w->hidden + i];
            s.dot += value * w->errors[pair / a->shape.top_k * w->hidden + i];
            s.squares += value * value;
        }
    return s;
}

int32_t window_suspect(const struct window *w)
{
    double largest = 0.0, all = 0.0;
    int32_t suspect = -1;
    for (size_t i = 0; i < (size_t)w->tokens * w->hidden; i++)
        all += w->errors[i] * w->errors[i];
    for (uint32_t e = 0; isfinite(all) && e < w->trace.arguments.shape.experts; e++) {
        struct share s = w->trace.used[e] ? share_of(w, (int32_t)e) : (struct share){0};
        if (s.squares > 0.0 && s.dot * s.dot / s.squares > largest) {
            largest = s.dot * s.dot / s.squares;
            suspect = (int32_t)e;
        }
    }
    return largest > 0.25 * all ? suspect : -1;
}

void try_gains(struct window *w, int32_t expert)
{
    const struct gb_shape *shape = &w->trace.arguments.shape;
    char what[64];
    double all = 0.0;
    try_gain(w, "the output", -1);
    for (uint32_t k = 0; shape->top_k > 1 && k < shape->top_k && k < 32; k++) {
        snprintf(what, sizeof what, "slot %u", k);
        try_gain(w, what, (int32_t)k);
    }
    for (size_t i = 0; i < (size_t)w->tokens * w->hidden; i++)
        all += w->errors[i] * w->errors[i];
    if (expert < 0 || !isfinite(all))
        return;
    struct share s = share_of(w, expert);
    snprintf(what, sizeof what, "expert %d", expert);
    enter_gain(w, what, s.dot, s.squares, all);
}

static double distance(const struct gb_layer_outputs *subject, uint32_t token, const struct gb_layer_outputs *reference,
                       uint32_t other, uint32_t hidden)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < hidden; i++) {
        double right = window_value(reference, (size_t)other * hidden + i);
        if (subject->format == GB_BF16)
            right = (double)gb_bf16_decode(gb_bf16_encode((float)right));
        double d = window_difference(window_value(subject, (size_t)token * hidden + i), right);
        sum += d * d;
    }
    return sum;
}

/* "tokens 3 and 7 exchanged"; "token 3 has the output of token 7, token 4 that of 9 and 2 more" */
static void name_rows(const struct window *w, const int64_t *from, char *name, size_t bytes)
{
    size_t used = 0;
    uint32_t shown = 0, moved = 0, first = 0;
    for (uint32_t t = w->tokens; t-- > 0;) {
        moved += from[t] >= 0;
        first = from[t] >= 0 ? t : first;
    }
    int64_t other = from[first] - w->first;
    if (moved == 2 && other >= 0 && other < w->tokens && from[other] == (int64_t)w->first + first) {
        snprintf(name, bytes, "tokens %u and %u exchanged", w->first + first, w->first + (uint32_t)other);
        return;
    }
    for (uint32_t t = 0; t < w->tokens && shown < 3 && used < bytes; t++)
        if (from[t] >= 0) {
            used += (size_t)snprintf(name + used, bytes - used, "%stoken %u %s %lld", shown ? ", " : "", w->first + t,
                                     shown ? "that of" : "has the output of token", (long long)from[t]);
            shown++;
        }
    if (moved > shown && used < bytes)
        snprintf(name + used, bytes - used, " and %u more", moved - shown);
}

enum gb_status try_rows(struct window *w, const struct gb_layer_outputs *subject,
                        const struct gb_layer_outputs *reference, uint32_t tokens, struct gb_error *error)
{
    double left = 0.0, all = 0.0;
    uint32_t moved = 0;
    char name[128] = "";
    int64_t *from = malloc(sizeof *from * w->tokens); /* [tokens]: whose output a token has; -1: its own, or nobody's */
    if (!from)
        return gb_fail(error, GB_ENOMEM, "no memory to compare %u rows", w->tokens);
    for (uint32_t t = 0; t < w->tokens; t++) {
        double own = distance(subject, w->first + t, reference, w->first + t, w->hidden), nearest = own;
        from[t] = -1;
        for (uint32_t other = 0; w->place.token[t] && isfinite(own) && other < tokens; other++) {
            double d = distance(subject, w->first + t, reference, other, w->hidden);
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
        window_enter(w, name, "", 1.0 - left / all);
    }
    free(from);
    return GB_OK;
}

/* Whether every expert that the window needs has its weights. */
static bool shifted(const struct window *w, const struct gb_fixture *f, uint32_t offset, int32_t *ids)
{
    const struct gb_arguments *a = &w->trace.arguments;
    for (size_t p = 0; p < (size_t)w->tokens * a->shape.top_k; p++) {
        ids[p] = a->ids[p] < 0 ? -1 : (int32_t)(((uint32_t)a->ids[p] + offset) % a->shape.experts);
        if (ids[p] >= 0 && f->generated && !gb_layer_touches(f, w->layer, (uint32_t)ids[p]))
            return false;
    }
    return true;
}

enum gb_status try_offsets(struct window *w, const struct gb_fixture *f, struct gb_error *error)
{
    const uint32_t experts = w->trace.arguments.shape.experts;
    /* One, and the experts of a rank if there are 2, 4, 8 or 16 of them; each to either side. */
    const uint32_t sizes[] = {1, experts / 2, experts / 4, experts / 8, experts / 16};
    struct gb_arguments a = w->trace.arguments;
    int32_t *ids = malloc(sizeof *ids * w->tokens * a.shape.top_k); /* [tokens, top_k] */
    enum gb_status status = ids ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for the ids of %u tokens", w->tokens);
    a.ids = ids;
    a.output = w->faulty;
    a.intermediate = NULL;
    for (size_t i = 0; status == GB_OK && i < 2 * sizeof sizes / sizeof *sizes; i++) {
        uint32_t size = sizes[i / 2], offset = i % 2 ? experts - size : size;
        char name[64];
        bool repeated = size == 0 || (i / 2 > 0 && size == 1) || (i % 2 && 2 * size == experts);
        if (repeated || offset >= experts || !shifted(w, f, offset, ids))
            continue;
        status = gb_reference_layer(&a, error);
        snprintf(name, sizeof name, "experts' ids off by %s%u", i % 2 ? "-" : "", size);
        if (status == GB_OK)
            window_enter(w, name, "", window_explained(w, NULL));
    }
    free(ids);
    return status;
}
