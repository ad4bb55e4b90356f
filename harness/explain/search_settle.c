/* SPDX-License-Identifier: Apache-2.0 */
/* Which effects there are to try, and how one becomes a finding: what it promises, which slots have it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/search.h"
#include "quant/quant.h"

/* How far a fitted amount is from what it stands for, and how many bits behind the point a factor is written with. */
#define NEARLY 1e-3
enum { WRITTEN_BITS = 6 };
/* Scales are swizzled in tiles of 4 x 4 and of 8 x 8. */
enum { LARGEST_SCALE_TILE = 8 };

/* An effect that makes what was seen of some rows: with the elements that have it, in all tokens of the diagnosis. */
static void settle_seen(struct search *q, const struct finding *effect)
{
    const struct observed *seen = q->seen;
    struct finding f = *effect;
    double *made = malloc(seen->rows * seen->width * sizeof *made);
    for (uint32_t r = 0; made && r < seen->rows; r++)
        memcpy(made + r * seen->width, q->operand + seen->row[r] * seen->width, seen->width * sizeof *made);
    if (made && effect_fits(seen, made, &f)) {
        q->seen = NULL;
        search_settle(q, &f);
        q->seen = seen;
    }
    free(made);
}

/* What a fitted amount may stand for: zeros, and a factor that somebody writes. */
static void verify_simpler(struct search *q, const struct finding *effect)
{
    struct finding f = *effect;
    double written = ldexp(round(ldexp(f.amount, WRITTEN_BITS)), -WRITTEN_BITS);
    bool zero = f.effect == FINDING_FLUSH ||
                ((f.effect == FINDING_FACTOR || f.effect == FINDING_SATURATE) && fabs(f.amount) < NEARLY);
    if (f.effect == FINDING_FACTOR && written != f.amount && fabs(written - f.amount) < NEARLY * fabs(f.amount)) {
        f.amount = written;
        search_verify_places(q, &f);
    } else if (zero) {
        f.effect = FINDING_CONSTANT;
        f.amount = 0.0;
        search_verify_places(q, &f);
    }
}

/* A first look at an effect on what a projection reads, everywhere: whether one row in SCREENED makes about that share
 * of the error. Chance makes a slot's share of the samples. */
static bool screened_out(struct search *q, const struct finding *effect)
{
    struct finding f = *effect;
    const uint32_t rows = f.stage == FINDING_DOWN ? q->s.hidden : q->s.intermediate;
    double all, left;
    if (f.operand == FINDING_RESULTS || f.elements.kind != AXIS_ALL || rows < MANY_ROWS ||
        q->samples < 8 * SCREENED * q->s.top_k)
        return false;
    f.elements = (struct finding_axis){.kind = AXIS_MODULO, .count = 1, .period = SCREENED};
    if (q->seen)
        return search_promise(q, &f) < 0.25 / SCREENED;
    left = search_fit_token_freely(q, q->token[0], &f, &all);
    return q->status == GB_OK && !(all > 0.0 && 1.0 - left / all > 0.5 / SCREENED);
}

void search_settle(struct search *q, const struct finding *effect)
{
    struct finding f = *effect;
    double all = 0.0, left = 0.0, one;
    if (search_done(q) || (f.stage == FINDING_DOWN && f.effect == FINDING_ADD) || screened_out(q, &f) ||
        search_promise(q, &f) < PROMISING)
        return;
    if (q->seen) {
        settle_seen(q, &f);
        return;
    }
    for (uint32_t t = 0; t < q->s.tokens && !search_late(q); t++) {
        left += search_fit_token(q, t, &f, &one);
        all += one;
    }
    if (search_late(q) || !(1.0 - left / all >= PROMISING) || !search_take_pairs(q, &f))
        return;
    verify_simpler(q, &f);
    search_verify_places(q, &f);
}

/* Rows and experts whose weights, codes or scales are taken. */
static void each_other_row(struct search *q, struct finding *f, void (*try)(struct search *, const struct finding *))
{
    uint32_t rows = f->stage == FINDING_DOWN ? q->s.hidden : 2 * q->s.intermediate;
    for (int sign = -1; sign <= 1; sign += 2) {
        f->offset = sign;
        f->effect = FINDING_EXPERT;
        try(q, f);
    }
    f->effect = FINDING_HALF;
    f->offset = 0;
    if (f->stage != FINDING_DOWN)
        try(q, f);
    f->effect = FINDING_ROW_XOR;
    for (uint32_t d = 1; d <= MOST_TILED && d < rows; d *= 2) {
        f->offset = (int32_t)d;
        try(q, f);
    }
    f->effect = FINDING_ROW;
    for (int sign = -1; sign <= 1; sign += 2) {
        f->offset = sign;
        try(q, f);
    }
}

/* Scales applied twice or not at all, or read from another place of a tile. */
static void each_of_scales(struct search *q, struct finding *f, void (*try)(struct search *, const struct finding *))
{
    f->effect = FINDING_SQUARE;
    try(q, f);
    f->effect = FINDING_CONSTANT;
    f->amount = 1.0;
    try(q, f);
    f->amount = 0.0;
    f->effect = FINDING_TRANSPOSED;
    for (f->offset = 2; f->offset <= LARGEST_SCALE_TILE; f->offset *= 2)
        try(q, f);
    f->offset = 0;
}

/* Codes read as another type's, or by a decoder whose largest magnitude is too small. */
static void each_misreading(struct search *q, struct finding *f, enum gb_format format,
                            void (*try)(struct search *, const struct finding *))
{
    static const double e2m1[] = {4.0, 3.0, 2.0, 1.5, 1.0, 0.0}, e4m3[] = {240.0, 256.0, 128.0, 64.0, 32.0, 16.0, 0.0},
                        bf16[] = {0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625, 0.0};
    const bool nibbles = gb_row_code_bytes(format, 2) == 1;
    f->effect = FINDING_READ;
    f->type = nibbles ? FINDING_INTEGER : format == GB_BF16 ? FINDING_FP16 : FINDING_E5M2;
    try(q, f);
    f->type = FINDING_BF16;
    f->effect = FINDING_SATURATE;
    for (const double *most = nibbles ? e2m1 : format == GB_BF16 ? bf16 : e4m3; *most > 0.0; most++) {
        f->amount = *most;
        try(q, f);
    }
    f->amount = 0.0;
}

void search_each_operand(struct search *q, enum finding_stage stage,
                         void (*try)(struct search *, const struct finding *))
{
    const struct gb_arguments *a = &q->w->trace.arguments;
    const struct gb_weights *w = stage == FINDING_DOWN ? &a->down : &a->gate_up;
    uint32_t block = gb_format_block(w->format);
    for (int operand = FINDING_BLOCKS; operand >= FINDING_WEIGHTS && !search_done(q); operand--) {
        struct finding f = {.stage = stage, .operand = (enum finding_operand)operand};
        uint32_t width = operand == FINDING_BLOCKS ? (w->columns + block - 1) / block : w->columns;
        if (operand == FINDING_BLOCKS && block == 1)
            continue;
        if (operand != FINDING_WEIGHTS) {
            each_other_row(q, &f, try);
            f.effect = FINDING_POWER;
            try(q, &f);
        }
        f.effect = FINDING_NEGATIVE;
        if (operand == FINDING_CODES)
            try(q, &f);
        if (operand == FINDING_BLOCKS)
            each_of_scales(q, &f, try);
        f.effect = FINDING_FACTOR;
        for (uint32_t odd = 0; operand == FINDING_BLOCKS && width > 1 && odd < 2; odd++) {
            f.k = (struct finding_axis){.kind = AXIS_MODULO, .first = odd * block, .count = block, .period = 2 * block};
            for (f.amount = 0.5; f.amount <= 2.0; f.amount *= 4.0)
                try(q, &f);
        }
        f.k = (struct finding_axis){.kind = AXIS_ALL};
        f.amount = 0.0;
        if (operand == FINDING_CODES)
            each_misreading(q, &f, w->format, try);
        for (uint32_t d = 1; d < width && d <= (operand == FINDING_WEIGHTS ? 128 : MOST_TILED); d *= 2) {
            f.effect = FINDING_XOR;
            f.offset = (int32_t)d;
            try(q, &f);
            f.effect = FINDING_SHARED;
            f.offset = (int32_t)(2 * d - 1);
            if (operand == FINDING_BLOCKS && 2 * d <= width)
                try(q, &f);
            f.effect = FINDING_ELEMENT;
            for (int sign = -1; sign <= 1; sign += 2) {
                f.offset = sign * (int32_t)d;
                try(q, &f);
            }
        }
    }
}

/* Rows of other tokens and slots, in place of the own ones or added to them. */
static void each_other_place(struct search *q, struct finding *f, void (*try)(struct search *, const struct finding *))
{
    const enum finding_stage stage = f->stage;
    for (int n = 0; n < (stage == FINDING_ROUTING_WEIGHT ? 2 : 4); n++) { /* sums of weights are often 1 */
        f->offset = n % 2 ? 1 : -1;
        f->added = n >= 2;
        f->effect = FINDING_TOKEN;
        try(q, f);
        f->effect = FINDING_SLOT;
        if (stage_has_slots(stage) && stage != FINDING_INPUT)
            try(q, f);
        f->effect = FINDING_LISTED;
        if (stage_has_slots(stage))
            try(q, f);
    }
    f->added = false;
    for (f->offset = 1; f->offset <= 4; f->offset *= 2) {
        f->effect = FINDING_TOKEN_XOR;
        try(q, f);
        f->effect = FINDING_LISTED_XOR;
        if (stage_has_slots(stage))
            try(q, f);
    }
    f->effect = FINDING_CLAMPED;
    for (f->offset = 0; f->offset <= 2 && stage_has_slots(stage); f->offset++)
        try(q, f);
    f->effect = FINDING_SLOT_OF;
    for (f->offset = 0;
         stage_has_slots(stage) && stage != FINDING_INPUT && (uint32_t)f->offset < q->s.top_k && f->offset <= 1;
         f->offset++)
        try(q, f);
    f->effect = FINDING_TOKEN_OF;
    for (f->offset = 1; (uint32_t)f->offset < q->s.tokens; f->offset *= 2)
        try(q, f);
    f->offset = 0;
}

/* What the routing weight has to do with it, and other functions of gate and up. */
static void each_function(struct search *q, struct finding *f, void (*try)(struct search *, const struct finding *))
{
    static const enum finding_effect weights[] = {FINDING_LARGEST, FINDING_RANKED};
    const bool projected = f->stage >= FINDING_GATE && f->stage <= FINDING_ACT;
    f->effect = FINDING_WEIGHTED;
    if ((projected || f->stage == FINDING_ROUTING_WEIGHT) && !q->w->inner)
        try(q, f);
    for (size_t i = 0; f->stage == FINDING_ROUTING_WEIGHT && i < sizeof weights / sizeof *weights; i++) {
        f->effect = weights[i];
        try(q, f);
    }
    f->effect = FINDING_HALF;
    if (f->stage == FINDING_GATE || f->stage == FINDING_UP)
        try(q, f);
    f->effect = FINDING_FLOOR;
    if (projected && f->stage != FINDING_GATE_UP)
        try(q, f);
    f->effect = FINDING_FUNCTION;
    for (int function = 0; f->stage == FINDING_ACT && !q->w->given && function < FUNCTIONS; function++) {
        f->function = (enum finding_function)function;
        try(q, f);
    }
    f->function = FUNCTION_PRODUCT;
}

void search_each_effect(struct search *q, enum finding_stage stage, struct finding_axis elements,
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
    const int types = stage == FINDING_ACT || stage == FINDING_INPUT ? FINDING_TYPES : FINDING_ROW_TYPES;
    for (int type = 0; type < types; type++) {
        f.type = (enum finding_type)type;
        try(q, &f);
    }
    f.type = FINDING_BF16;
    f.effect = FINDING_EXPERT;
    for (f.offset = -1; f.offset <= 1; f.offset += 2)
        if ((stage <= FINDING_GATE_UP && (stage != FINDING_INPUT || !q->w->inner)) || stage == FINDING_DOWN)
            try(q, &f);
    each_other_place(q, &f, try);
    each_function(q, &f, try);
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
        f.effect = FINDING_SHARED;
        f.offset = (int32_t)(2 * d - 1);
        if (2 * d < width)
            try(q, &f);
    }
    f.effect = FINDING_TILED;
    for (f.offset = 2; stage >= FINDING_ACT && f.offset <= MOST_TILED; f.offset *= 2)
        for (f.columns = 2; f.columns <= MOST_TILED && width % (uint32_t)(f.offset * f.columns) == 0; f.columns *= 2)
            try(q, &f);
    f.columns = 0;
    f.effect = FINDING_ELEMENT;
    f.offset = (int32_t)(width / 2);
    if (width > 1 && (width & (width - 1)))
        try(q, &f);
}
