/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "harness/run/declared_precision.h"
#include "quant/quant.h"

static const struct {
    const char *name;
    size_t offset; /* in struct gb_stage_roundings */
} stages[ROUNDED_STAGES] = {
    {"gate_up", offsetof(struct gb_stage_roundings, gate_up)},
    {"silu", offsetof(struct gb_stage_roundings, silu)},
    {"slot", offsetof(struct gb_stage_roundings, slot)},
    {"routing_weight", offsetof(struct gb_stage_roundings, routing_weight)},
    {"weighted", offsetof(struct gb_stage_roundings, weighted)},
};

const char *stage_name(uint32_t i)
{
    return stages[i].name;
}

static enum gb_format *stage_at(struct gb_stage_roundings *roundings, uint32_t i)
{
    return (enum gb_format *)((char *)roundings + stages[i].offset);
}

enum gb_format stage_rounding(const struct gb_stage_roundings *roundings, uint32_t i)
{
    struct gb_stage_roundings copy = *roundings;
    return *stage_at(&copy, i);
}

void stage_round(struct gb_stage_roundings *roundings, uint32_t i, enum gb_format format)
{
    *stage_at(roundings, i) = format;
}

static enum gb_status take(struct gb_stage_roundings *roundings, const char *word, size_t length,
                           struct gb_error *error)
{
    const char *equals = memchr(word, '=', length);
    size_t stage = equals ? (size_t)(equals - word) : length;
    char name[8] = "";
    enum gb_format format = GB_FP32;
    uint32_t i = 0;
    while (i < ROUNDED_STAGES && (strlen(stages[i].name) != stage || memcmp(word, stages[i].name, stage)))
        i++;
    if (i == ROUNDED_STAGES)
        return gb_fail(error, GB_EINVAL,
                       "--rounding %.*s: no such stage; there are gate_up, silu, slot, routing_weight and weighted",
                       (int)length, word);
    if (equals && length - stage - 1 < sizeof name)
        memcpy(name, equals + 1, length - stage - 1);
    if (!strcmp(name, gb_format_name(GB_BF16)))
        format = GB_BF16;
    else if (strcmp(name, gb_format_name(GB_FP32)))
        return gb_fail(error, GB_EINVAL, "--rounding %.*s: give %s=fp32 or %s=bf16", (int)length, word, stages[i].name,
                       stages[i].name);
    if (*stage_at(roundings, i))
        return gb_fail(error, GB_EINVAL, "--rounding: %s is given twice", stages[i].name);
    *stage_at(roundings, i) = format;
    return GB_OK;
}

enum gb_status declare_roundings(struct declared_precision *declared, const char *text, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    declared->roundings_text = text;
    for (const char *word = text; status == GB_OK; word += strcspn(word, ",") + 1) {
        status = take(&declared->roundings, word, strcspn(word, ","), error);
        if (!word[strcspn(word, ",")])
            break;
    }
    return status;
}
