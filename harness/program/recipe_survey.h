/* SPDX-License-Identifier: Apache-2.0 */
/* Private to `list differences`: how often recipes of one format disagree. */
#ifndef GB_HARNESS_PROGRAM_RECIPE_SURVEY_H
#define GB_HARNESS_PROGRAM_RECIPE_SURVEY_H

#include <stdbool.h>

#include "quant/quant.h"

enum { SURVEY_RECIPES = 32, SURVEY_MATRICES = 128 };

/* Rows of the table, and for each pair how often two differ; the first index is the smaller one. */
struct recipe_comparison {
    size_t count;
    const struct gb_recipe *recipe[SURVEY_RECIPES];
    uint64_t scales[SURVEY_RECIPES][SURVEY_RECIPES];
    uint64_t codes[SURVEY_RECIPES][SURVEY_RECIPES];
};

/* Of the recipes that `belongs` holds for: how many of the positive normal bf16 block maxima get different
 * scales, without amax_start. */
struct recipe_comparison survey_maxima(bool (*belongs)(const struct gb_recipe *));
/* Of every NVFP4 recipe on the blocks of the sweep that `list differences` prints, for the matrices `first` to `end` -
 * 1 of SURVEY_MATRICES: the largest magnitude of one is 1 + its number / 128. */
struct recipe_comparison survey_nvfp4(uint32_t first, uint32_t end);

#endif
