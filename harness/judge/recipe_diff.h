/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a recipe by name, and recipes that differ in one of them. */
#ifndef GB_HARNESS_JUDGE_RECIPE_DIFF_H
#define GB_HARNESS_JUDGE_RECIPE_DIFF_H

#include "quant/quant.h"

struct rule_change {
    const char *rule;          /* the field of struct gb_quantiser */
    char from[32], to[32];     /* its values: names of choices, or numbers */
    struct gb_quantiser rules; /* with the change */
};

/* Change number `index` of the rules, one rule at a time, among those that the block format has; false after the
 * last. */
bool rule_change_next(const struct gb_quantiser *rules, unsigned index, struct rule_change *change);

#endif
