/* SPDX-License-Identifier: Apache-2.0 */
/* Which effects there are to try, and how one becomes a finding: what it promises, which slots have it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/search.h"

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

void search_settle(struct search *q, const struct finding *effect)
{
    struct finding f = *effect;
    double all = 0.0, left = 0.0, one;
    if (search_done(q) || (f.stage == FINDING_DOWN && f.effect == FINDING_ADD) || search_promise(q, &f) < PROMISING)
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
    if (f.effect == FINDING_FACTOR && fabs(f.amount) < 1e-6)
        f = (struct finding){.stage = f.stage,
                             .effect = FINDING_CONSTANT,
                             .tokens = f.tokens,
                             .slots = f.slots,
                             .experts = f.experts,
                             .elements = f.elements,
                             .k = f.k};
    search_verify_places(q, &f);
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
