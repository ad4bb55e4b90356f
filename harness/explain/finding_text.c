/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/finding_text.h"

#include "harness/explain/gate_functions.h"

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

static const char *const operands[] = {[FINDING_RESULTS] = "",
                                       [FINDING_WEIGHTS] = "weights of ",
                                       [FINDING_CODES] = "codes of ",
                                       [FINDING_BLOCKS] = "scales of "};

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

/* What an effect moves: elements of the array, columns of K, or blocks of them. */
static const char *element_of(const struct finding *f)
{
    return f->operand == FINDING_RESULTS ? stages[f->stage].element : f->operand == FINDING_BLOCKS ? "block" : "column";
}

static void add_place(struct words *w, const struct finding *f)
{
    const struct {
        const struct finding_axis *axis;
        const char *what;
    } axes[] = {{&f->experts, "expert"}, {&f->slots, "slot"}, {&f->tokens, "token"}, {&f->list, "place"}};
    size_t begin = w->used;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (axes[i].axis->kind != AXIS_ALL) {
            add(w, w->used == begin ? "of " : ", ");
            add_axis(w, axes[i].axis, axes[i].what);
        }
    if (f->list.kind != AXIS_ALL)
        add(w, " in the expert's list of tokens");
    if (f->elements.kind != AXIS_ALL) {
        add(w, w->used == begin ? "" : ", ");
        add_axis(w, &f->elements, stages[f->stage].element);
    }
    if (f->k.kind != AXIS_ALL) {
        add(w, w->used == begin ? "" : ", ");
        add_axis(w, &f->k, "column");
        add(w, " of K");
    }
}

static void add_offset(struct words *w, const struct finding *f, const char *what)
{
    if (f->offset == 1 || f->offset == -1)
        add(w, "those of the %s %s", f->offset > 0 ? "next" : "previous", what);
    else
        add(w, "those of the %s %d %s", what, abs(f->offset), f->offset > 0 ? "further on" : "before");
}

static void add_effect(struct words *w, const struct finding *f, const struct finding_frame *frame)
{
    uint32_t width = frame->width;
    static const char *const types[] = {"rounded to bf16",
                                        "truncated to bf16",
                                        "rounded to FP16",
                                        "rounded to E4M3",
                                        "rounded to E5M2",
                                        "rounded to TF32",
                                        "rounded to INT8 with a scale for each row",
                                        "rounded to INT8 with a scale for each 128 elements"};
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
        else if (f->operand == FINDING_BLOCKS)
            add(w, "taken as %.7g", f->amount);
        else if (f->stage == FINDING_ROUTING_WEIGHT && f->amount == 1.0)
            add(w, "missing");
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
    case FINDING_CAP:
        add(w, "at most %.7g", f->amount);
        break;
    case FINDING_SLOT_OF:
        add(w, "those of slot %d", f->offset);
        break;
    case FINDING_TOKEN_OF:
        add(w, "those of the token whose number is this one's mod %d", f->offset);
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
            add_offset(w, f, element_of(f));
        break;
    case FINDING_XOR:
        if ((uint32_t)f->offset * 2 == width)
            add(w, "halves of a row exchanged");
        else
            add(w, "%ss exchanged in %s of %d (index xor %d)", element_of(f), f->offset == 1 ? "pairs" : "runs",
                f->offset, f->offset);
        break;
    case FINDING_REVERSE:
        add(w, "%ss in reverse", element_of(f));
        break;
    case FINDING_TOKEN:
        if (f->tokens.kind == AXIS_RANGE && f->tokens.count == 1)
            add(w, "those of token %lld",
                (long long)frame->first_token +
                    ((int64_t)f->tokens.first - frame->first_token + f->offset + frame->tokens) %
                        (int64_t)frame->tokens);
        else
            add_offset(w, f, "token");
        break;
    case FINDING_SLOT:
        add_offset(w, f, "slot");
        break;
    case FINDING_EXPERT:
        if (f->offset == 1 || f->offset == -1)
            add(w, "with the weights of the %s expert", f->offset == 1 ? "next" : "previous");
        else
            add(w, "with the weights of the expert %d %s", abs(f->offset), f->offset > 0 ? "further on" : "before");
        break;
    case FINDING_EXPERT_OF:
        add(w, "with the weights of expert %d", f->offset);
        break;
    case FINDING_EXCHANGED:
        add(w, "with each other's weights");
        break;
    case FINDING_WEIGHTED:
        add(w, f->stage == FINDING_ROUTING_WEIGHT ? "applied twice" : "multiplied by the routing weight");
        break;
    case FINDING_LARGEST:
        add(w, "divided by the token's largest");
        break;
    case FINDING_RANKED:
        add(w, "in descending order");
        break;
    case FINDING_FUNCTION:
        add(w, "%s", gate_function_name(f->function));
        break;
    case FINDING_FLOOR:
        add(w, "at least %.7g", f->amount);
        break;
    case FINDING_TOKEN_XOR:
        add(w, "those of the token with index xor %d", f->offset);
        break;
    case FINDING_LISTED_XOR:
        add(w, "those of the token of the same expert with place xor %d", f->offset);
        break;
    case FINDING_SQUARE:
        add(w, "applied twice");
        break;
    case FINDING_ROW:
        add_offset(w, f, "row");
        break;
    case FINDING_TRANSPOSED:
        add(w, "tiles of %d x %d transposed", f->offset, f->offset);
        break;
    case FINDING_SCALES:
        add(w, "scales of the %s block", f->offset > 0 ? "next" : "previous");
        break;
    case FINDING_SWAPPED:
        add(w, "gate and up exchanged");
        break;
    case FINDING_SHARED:
        add(w, "one %s for every %d", element_of(f), f->offset + 1);
        break;
    case FINDING_TILED:
        add(w, "tiles of %d x %d %ss transposed", f->offset, f->columns, element_of(f));
        break;
    case FINDING_LISTED:
        add_offset(w, f, "token of the same expert");
        break;
    case FINDING_CLAMPED:
        add(w, "those of place %d in the expert's list of tokens", f->offset);
        break;
    case FINDING_HALF:
        if (f->operand == FINDING_RESULTS)
            add(w, "those of %s", f->stage == FINDING_GATE ? "up_proj" : "gate_proj");
        else
            add(w, "those of the other half of gate_up");
        break;
    case FINDING_ROW_XOR:
        add(w, "those of the row with index xor %d", f->offset);
        break;
    case FINDING_READ:
        add(w, "read as %s", f->type == FINDING_FP16 ? "FP16" : f->type == FINDING_E5M2 ? "E5M2" : "integers");
        break;
    default:
        add(w, "rounded down to a power of two");
        break;
    }
}

static void add_change(struct words *w, const struct finding *f, const struct finding_frame *frame)
{
    add_effect(w, f, frame);
    if (f->added)
        add(w, " added");
}

bool finding_is_everywhere(const struct finding *f)
{
    return f->tokens.kind == AXIS_ALL && f->slots.kind == AXIS_ALL && f->experts.kind == AXIS_ALL &&
           f->list.kind == AXIS_ALL && f->elements.kind == AXIS_ALL && f->k.kind == AXIS_ALL;
}

void finding_words(const struct finding *f, const struct finding_frame *frame, struct finding_words *words)
{
    struct words place = {words->place, 0, sizeof words->place}, effect = {words->effect, 0, sizeof words->effect};
    snprintf(words->stage, sizeof words->stage, "%s", stages[f->stage].stage);
    snprintf(words->array, sizeof words->array, "%s%s", operands[f->operand], stages[f->stage].array);
    words->place[0] = '\0';
    add_place(&place, f);
    add_change(&effect, f, frame);
}

/* Of scales that a projection reads everywhere. */
static const char *listed_name_of_scales(const struct finding *f)
{
    const bool down = f->stage == FINDING_DOWN;
    if (f->effect == FINDING_ROW && f->offset == 1)
        return down ? "scales of the next row in down" : "scales of the next row in gate and up";
    if (f->effect == FINDING_ELEMENT && f->offset == 1)
        return down ? "scales of the next block in down" : "scales of the next block in gate and up";
    if (f->effect == FINDING_ELEMENT && f->offset == -1)
        return down ? "scales of the previous block in down" : "scales of the previous block in gate and up";
    if (f->effect == FINDING_POWER)
        return down ? "scales without significand in down" : "scales without significand in gate and up";
    return NULL;
}

/* Findings everywhere that the list of injected bugs has under a name of their own; NULL: it has none. */
static const char *listed_name(const struct finding *f)
{
    const bool of_scales = finding_is_everywhere(f) && f->operand == FINDING_BLOCKS;
    if (of_scales && (f->stage == FINDING_DOWN || f->stage == FINDING_GATE_UP))
        return listed_name_of_scales(f);
    const bool plain = finding_is_everywhere(f) && f->operand == FINDING_RESULTS && !f->added;
    if (plain && f->stage == FINDING_GATE_UP && f->effect == FINDING_SWAPPED)
        return "gate and up swapped";
    if (plain && f->stage == FINDING_UP && f->effect == FINDING_ADD && f->amount == 1.0)
        return "up plus one";
    if (plain && f->stage == FINDING_DOWN && f->effect == FINDING_ROUND && f->type == FINDING_BF16)
        return "slots rounded to bf16";
    if (plain && f->stage == FINDING_ROUTING_WEIGHT && f->effect == FINDING_CONSTANT && f->amount == 1.0)
        return "routing weight missing";
    if (plain && f->stage == FINDING_ROUTING_WEIGHT && f->effect == FINDING_ROUND && f->type == FINDING_BF16)
        return "routing weight in bf16";
    if (plain && f->stage == FINDING_ROUTING_WEIGHT && f->effect == FINDING_WEIGHTED)
        return "routing weight applied twice";
    if (plain && f->effect == FINDING_FUNCTION)
        return gate_function_name(f->function);
    return NULL;
}

/* Whether whole rows of down are missing from the sum over slots. */
static bool loses_slots(const struct finding *f)
{
    return f->stage == FINDING_DOWN && f->operand == FINDING_RESULTS && f->effect == FINDING_CONSTANT &&
           f->amount == 0.0 && f->elements.kind == AXIS_ALL && f->k.kind == AXIS_ALL && !finding_is_everywhere(f);
}

void finding_name(const struct finding *f, const struct finding_frame *frame, char *text, size_t bytes)
{
    struct finding_words words;
    bool of;
    finding_words(f, frame, &words);
    if (listed_name(f) || loses_slots(f)) {
        snprintf(text, bytes, "%s%s", listed_name(f) ? listed_name(f) : words.place + strlen("of "),
                 listed_name(f) ? "" : " left out");
        return;
    }
    of = !strncmp(words.place, "of ", 3);
    snprintf(text, bytes, "%s%s%s: %s", words.array, of ? " " : words.place[0] ? ", " : "", words.place, words.effect);
}

void finding_kind(const struct finding *f, char *text, size_t bytes)
{
    static const char *const names[] = {[FINDING_FACTOR] = "multiplied",      [FINDING_ADD] = "added",
                                        [FINDING_CONSTANT] = "constant",      [FINDING_NEGATIVE] = "sign lost",
                                        [FINDING_SATURATE] = "saturated",     [FINDING_FLUSH] = "flushed",
                                        [FINDING_ROUND] = "rounded",          [FINDING_ELEMENT] = "other column",
                                        [FINDING_XOR] = "other column",       [FINDING_REVERSE] = "reversed",
                                        [FINDING_TOKEN] = "other token",      [FINDING_SLOT] = "other slot",
                                        [FINDING_EXPERT] = "other expert",    [FINDING_SCALES] = "other scales",
                                        [FINDING_SWAPPED] = "exchanged",      [FINDING_SHARED] = "shared",
                                        [FINDING_TILED] = "transposed",       [FINDING_LISTED] = "other token",
                                        [FINDING_CLAMPED] = "other token",    [FINDING_SLOT_OF] = "other slot",
                                        [FINDING_TOKEN_OF] = "other token",   [FINDING_CAP] = "capped",
                                        [FINDING_HALF] = "other half",        [FINDING_ROW_XOR] = "other row",
                                        [FINDING_READ] = "misread",           [FINDING_POWER] = "power of two",
                                        [FINDING_FLOOR] = "floored",          [FINDING_TOKEN_XOR] = "other token",
                                        [FINDING_LISTED_XOR] = "other token", [FINDING_EXPERT_OF] = "other expert",
                                        [FINDING_WEIGHTED] = "weighted",      [FINDING_LARGEST] = "by the largest",
                                        [FINDING_RANKED] = "sorted",          [FINDING_FUNCTION] = "other function",
                                        [FINDING_SQUARE] = "applied twice",   [FINDING_ROW] = "other row",
                                        [FINDING_TRANSPOSED] = "transposed",  [FINDING_EXCHANGED] = "other expert"};
    const char *name = names[f->effect];
    struct finding everywhere = *f;
    everywhere.tokens = everywhere.slots = everywhere.experts = (struct finding_axis){.kind = AXIS_ALL};
    everywhere.list = everywhere.elements = everywhere.k = (struct finding_axis){.kind = AXIS_ALL};
    if (listed_name(&everywhere)) {
        snprintf(text, bytes, "%s", listed_name(&everywhere));
        return;
    }
    if (f->effect == FINDING_CONSTANT && f->amount == 0.0)
        name = f->k.kind == AXIS_ALL ? "zero" : "left out";
    snprintf(text, bytes, "%s%s%s", operands[f->operand], f->elements.kind == AXIS_ALL ? "" : "some elements: ", name);
}
