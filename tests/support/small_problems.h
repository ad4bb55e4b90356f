/* SPDX-License-Identifier: Apache-2.0 */
/* Problems of a quantiser and of ranks, for tests that ask for one and not for what is in it. */
#ifndef GB_TESTS_SUPPORT_SMALL_PROBLEMS_H
#define GB_TESTS_SUPPORT_SMALL_PROBLEMS_H

#include <math.h>

#include "fixtures/fixtures.h"
#include "tests/support/check.h"

/* Three rows of 32 values, bf16, to be quantised to NVFP4. */
static inline struct gb_fixture *three_rows(void)
{
    const struct gb_recipe *recipe = gb_recipe_find("nvfp4.trtllm/1");
    const struct gb_quantisation asked = {.size = sizeof asked,
                                          .input = GB_BF16,
                                          .rows = 3,
                                          .columns = 32,
                                          .input_columns = 32,
                                          .quantiser = recipe->quantiser,
                                          .bound = INFINITY,
                                          .global_scale = 1.0f};
    struct gb_fixture *f;
    struct gb_error error = {""};
    if (gb_fixture_new_quantise(GB_QUANTISE, &asked, recipe->name, &f, &error) != GB_OK)
        fail_msg("%s", error.message);
    return f;
}

/* Two ranks of two tokens, [2, 32] bf16 each, to two of four experts each, in NVFP4. */
static inline struct gb_fixture *two_ranks(void)
{
    const struct gb_recipe *recipe = gb_recipe_find("nvfp4.trtllm/1");
    const struct gb_exchange exchange = {.size = sizeof exchange,
                                         .global_scale = 1.0f,
                                         .ranks = 2,
                                         .tokens = 2,
                                         .hidden = 32,
                                         .experts = 4,
                                         .top_k = 2,
                                         .quantiser = recipe->quantiser,
                                         .input = GB_BF16};
    const struct gb_exchange_kinds kinds = {"gaussian/1", "uniform", "blocks", 1, 0};
    struct gb_fixture *f;
    struct gb_error error = {""};
    if (gb_generate_exchange(GB_DISPATCH, &exchange, recipe->name, &kinds, &f, &error) != GB_OK)
        fail_msg("%s", error.message);
    return f;
}

/* The same sizes, to be combined. */
static inline struct gb_fixture *two_ranks_combined(void)
{
    const struct gb_exchange exchange = {.size = sizeof exchange,
                                         .ranks = 2,
                                         .tokens = 2,
                                         .hidden = 32,
                                         .experts = 4,
                                         .top_k = 2,
                                         .input = GB_BF16,
                                         .accumulation = GB_AT_RECEIVER,
                                         .ranks_per_node = 1};
    const struct gb_exchange_kinds kinds = {"gaussian/1", "uniform", "blocks", 1, 0};
    struct gb_fixture *f;
    struct gb_error error = {""};
    if (gb_generate_exchange(GB_COMBINE, &exchange, "bf16", &kinds, &f, &error) != GB_OK)
        fail_msg("%s", error.message);
    return f;
}

#endif
