/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/finding_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct words {
    char *text;
    size_t used, bytes;
};

static void add(struct words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(struct words *w, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int count = w->used < w->bytes ? vsnprintf(w->text + w->used, w->bytes - w->used, format, list) : 0;
    va_end(list);
    w->used += count > 0 ? (size_t)count : 0;
}

static const struct {
    const char *stage, *array, *element;
} stages[] = {
    [FINDING_INPUT] = {"input", "input x", "column"},
    [FINDING_GATE] = {"gate_up", "gate_proj", "row"},
    [FINDING_UP] = {"gate_up", "up_proj", "row"},
    [FINDING_GATE_UP] = {"gate_up", "gate_proj and up_proj", "row"},
    [FINDING_ACT] = {"act", "intermediate", "column"},
    [FINDING_REQUANT] = {"requant", "quantised intermediate", "column"},
    [FINDING_DOWN] = {"down", "down_proj", "row"},
    [FINDING_ROUTING_WEIGHT] = {"combine", "routing weight", ""},
    [FINDING_COMBINE] = {"combine", "output", "column"},
};

const char *finding_stage_name(enum finding_stage stage)
{
    return stages[stage].stage;
}

/* "expert 5", "experts 2-3", "even experts", "experts 1-2 of every 4", "experts 1, 4 and 6" */
static void add_axis(struct words *w, const struct finding_axis *a, const char *what)
{
    uint32_t last = a->first + a->count - 1;
    if (a->kind == AXIS_RANGE && a->count == 1)
        add(w, "%s %u", what, a->first);
    else if (a->kind == AXIS_RANGE)
        add(w, "%ss %u-%u", what, a->first, last);
    else if (a->kind == AXIS_MODULO && a->period == 2)
        add(w, "%s %ss", a->first ? "odd" : "even", what);
    else if (a->kind == AXIS_MODULO && a->count == 1)
        add(w, "%ss %u of every %u", what, a->first, a->period);
    else if (a->kind == AXIS_MODULO)
        add(w, "%ss %u-%u of every %u", what, a->first, last, a->period);
    else
        for (uint32_t i = 0; i < a->count; i++)
            add(w, i == 0 ? "%ss %u" : i + 1 < a->count ? "%s, %u" : "%s and %u", i ? "" : what, a->list[i]);
}

static void add_place(struct words *w, const struct finding *f, bool general)
{
    const struct {
        const struct finding_axis *axis;
        const char *what, *general;
    } axes[] = {{&f->experts, "expert", "some experts"}, {&f->slots, "slot", "some slots"},
                {&f->tokens, "token", "some tokens"}};
    bool first = true;
    for (int i = 0; i < 3; i++) {
        if (axes[i].axis->kind == AXIS_ALL)
            continue;
        add(w, first ? " of " : ", ");
        if (general)
            add(w, "%s", axes[i].general);
        else
            add_axis(w, axes[i].axis, axes[i].what);
        first = false;
    }
    if (f->elements.kind != AXIS_ALL) {
        add(w, general ? ", some %ss" : ", ", stages[f->stage].element);
        if (!general)
            add_axis(w, &f->elements, stages[f->stage].element);
    }
    if (f->k.kind != AXIS_ALL) {
        add(w, general ? ", some columns of K" : ", ");
        if (!general) {
            add_axis(w, &f->k, "column");
            add(w, " of K");
        }
    }
}

static void add_offset(struct words *w, const struct finding *f, const char *what)
{
    if (f->offset == 1 || f->offset == -1)
        add(w, "those of the %s %s", f->offset > 0 ? "next" : "previous", what);
    else
        add(w, "those of the %s %d %s", what, abs(f->offset), f->offset > 0 ? "further on" : "before");
}

static void add_effect(struct words *w, const struct finding *f, uint32_t width)
{
    static const char *const types[] = {"rounded to bf16", "truncated to bf16", "rounded to FP16", "rounded to E4M3",
                                        "rounded to E5M2"};
    switch (f->effect) {
    case FINDING_FACTOR:
        if (f->amount == -1.0)
            add(w, "sign inverted");
        else
            add(w, "multiplied by %.7g", f->amount);
        break;
    case FINDING_ADD:
        add(w, "%.7g added", f->amount);
        break;
    case FINDING_CONSTANT:
        if (f->k.kind != AXIS_ALL)
            add(w, "left out");
        else if (f->amount == 0.0)
            add(w, "zero");
        else if (isnan(f->amount))
            add(w, "NaN");
        else
            add(w, "%.7g everywhere", f->amount);
        break;
    case FINDING_NEGATIVE:
        add(w, "sign lost");
        break;
    case FINDING_SATURATE:
        add(w, "saturated at %.7g", f->amount);
        break;
    case FINDING_FLUSH:
        add(w, "magnitudes below %.7g flushed to zero", f->amount);
        break;
    case FINDING_ROUND:
        add(w, "%s", types[f->type]);
        break;
    case FINDING_ELEMENT:
        if ((uint32_t)abs(f->offset) * 2 == width)
            add(w, "halves of a row exchanged");
        else
            add_offset(w, f, stages[f->stage].element);
        break;
    case FINDING_XOR:
        if ((uint32_t)f->offset * 2 == width)
            add(w, "halves of a row exchanged");
        else
            add(w, "%ss exchanged in %s of %d (index xor %d)", stages[f->stage].element,
                f->offset == 1 ? "pairs" : "runs", f->offset, f->offset);
        break;
    case FINDING_REVERSE:
        add(w, "%ss in reverse", stages[f->stage].element);
        break;
    case FINDING_TOKEN:
        add_offset(w, f, "token");
        break;
    case FINDING_SLOT:
        add_offset(w, f, "slot");
        break;
    case FINDING_EXPERT:
        add(w, "with the weights of the %s expert", f->offset == 1 ? "next" : "previous");
        break;
    default:
        add(w, "gate and up exchanged");
        break;
    }
}

void finding_name(const struct finding *f, uint32_t width, char *text, size_t bytes)
{
    struct words w = {text, 0, bytes};
    add(&w, "%s", stages[f->stage].array);
    add_place(&w, f, false);
    add(&w, ": ");
    add_effect(&w, f, width);
}

const char *finding_effect_name(const struct finding *f)
{
    static const char *const names[] = {"multiplied", "added",      "constant",     "sign lost",   "saturated",
                                        "flushed",    "rounded",    "other column", "other column", "reversed",
                                        "other token", "other slot", "other expert", "exchanged"};
    if (f->effect == FINDING_CONSTANT && f->amount == 0.0)
        return f->k.kind == AXIS_ALL ? "zero" : "left out";
    return names[f->effect];
}

void finding_kind(const struct finding *f, uint32_t width, char *text, size_t bytes)
{
    struct words w = {text, 0, bytes};
    (void)width;
    add(&w, "%s", stages[f->stage].array);
    add_place(&w, f, true);
    add(&w, ": %s", finding_effect_name(f));
}
