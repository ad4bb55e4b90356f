/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: a finding in words. */
#ifndef GB_HARNESS_EXPLAIN_FINDING_TEXT_H
#define GB_HARNESS_EXPLAIN_FINDING_TEXT_H

#include <stddef.h>

#include "harness/judge/finding.h"

/* What its numbers refer to. */
struct finding_frame {
    uint32_t width;               /* of the stage's rows */
    uint32_t first_token, tokens; /* which are a ring */
};

/* "down_proj of expert 5, rows 128-255: multiplied by 0.5" */
void finding_name(const struct finding *finding, const struct finding_frame *frame, char *text, size_t bytes);
/* The effect, and whether only some elements of a row have it: what a smaller problem keeps. "some rows: multiplied" */
void finding_kind(const struct finding *finding, char *text, size_t bytes);
/* Whether no place is left to choose. */
bool finding_is_everywhere(const struct finding *finding);
void finding_words(const struct finding *finding, const struct finding_frame *frame, struct finding_words *words);

#endif
