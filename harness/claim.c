/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "harness/claim.h"
#include "quant/quant.h"

static const char *const stages[] = {"gate_up", "silu", "slot"};
enum { STAGES = sizeof stages / sizeof stages[0] };

static enum gb_status take(struct gb_stage_roundings *roundings, const char *word, size_t length,
                           struct gb_error *error)
{
    enum gb_format *fields[STAGES] = {&roundings->gate_up, &roundings->silu, &roundings->slot};
    const char *equals = memchr(word, '=', length);
    size_t stage = equals ? (size_t)(equals - word) : length;
    char name[8] = "";
    enum gb_format format = GB_FP32;
    uint32_t i = 0;
    while (i < STAGES && (strlen(stages[i]) != stage || memcmp(word, stages[i], stage)))
        i++;
    if (i == STAGES)
        return gb_fail(error, GB_EINVAL, "--rounding %.*s: no such stage; there are gate_up, silu and slot",
                       (int)length, word);
    if (equals && length - stage - 1 < sizeof name)
        memcpy(name, equals + 1, length - stage - 1);
    if (!strcmp(name, gb_format_name(GB_BF16)))
        format = GB_BF16;
    else if (strcmp(name, gb_format_name(GB_FP32)))
        return gb_fail(error, GB_EINVAL, "--rounding %.*s: give %s=fp32 or %s=bf16", (int)length, word, stages[i],
                       stages[i]);
    if (*fields[i])
        return gb_fail(error, GB_EINVAL, "--rounding: %s is given twice", stages[i]);
    *fields[i] = format;
    return GB_OK;
}

enum gb_status claim_roundings(struct claim *claim, const char *text, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    claim->roundings_text = text;
    for (const char *word = text; status == GB_OK; word += strcspn(word, ",") + 1) {
        status = take(&claim->roundings, word, strcspn(word, ","), error);
        if (!word[strcspn(word, ",")])
            break;
    }
    return status;
}
