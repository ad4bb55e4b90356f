/* SPDX-License-Identifier: Apache-2.0 */
/* A quantiser's outputs against those of each recipe of the block format. */
#ifndef GB_HARNESS_JUDGE_IDENTIFICATION_H
#define GB_HARNESS_JUDGE_IDENTIFICATION_H

#include "fixtures/fixtures.h"
#include "harness/judge/recipe_diff.h"

/* What a block's inputs are, the first that fits. */
enum block_class { BLOCK_NONFINITE, BLOCK_ZERO, BLOCK_SUBNORMAL, BLOCK_ORDINARY, BLOCK_CLASSES };
/* What an input is. ELEMENT_UNDERFLOW: it is rounded to zero by both, or by one of them. */
enum element_class {
    ELEMENT_NAN,
    ELEMENT_INFINITE,
    ELEMENT_ZERO,
    ELEMENT_UNDERFLOW,
    ELEMENT_ORDINARY,
    ELEMENT_CLASSES
};

struct quantiser_difference {
    size_t blocks;                 /* with another scale or another code */
    size_t scales[BLOCK_CLASSES];  /* of another value, by what the block is */
    size_t codes[ELEMENT_CLASSES]; /* by what the input is */
    size_t nonfinite_blocks;       /* of `blocks` */
    size_t globals;
    /* Of the first block that differs, a finite one if there is one: its first code that differs, or its first code. */
    uint32_t first_case, first_row, first_column;
};

/* Of `theirs` from `ours`. Global scales are compared where both have them. */
void difference_between(const struct gb_vectors *vectors, const struct gb_vector_outputs *ours,
                        const struct gb_vector_outputs *theirs, struct quantiser_difference *difference);

struct identification {
    enum { MOST_EQUAL = 64 } most;
    const struct gb_recipe *equal[MOST_EQUAL]; /* recipes whose every output is the same */
    size_t equals;
    const struct gb_recipe *closest; /* where there is none; NULL if the table has no recipe of the block format */
    struct quantiser_difference difference; /* from the closest */
    struct rule_change change;              /* rule NULL: no change of one rule explains the outputs */
    enum { MOST_UNSEEN = 32 } room;
    const char *unseen[MOST_UNSEEN]; /* by identify_unseen */
    size_t unseen_count;
};

/* GB_ENOMEM; GB_EINVAL if a recipe refuses the inputs. */
enum gb_status identify_outputs(const struct gb_vectors *vectors, const struct gb_vector_outputs *theirs,
                                struct identification *found, struct gb_error *error);
/* Of a recipe that equals alone: its rules that could be others for all that these inputs show, though `full`, the
 * block format's own (gb_vectors_make), would show it. */
enum gb_status identify_unseen(const struct gb_vectors *vectors, const struct gb_vectors *full,
                               const struct gb_vector_outputs *theirs, struct identification *found,
                               struct gb_error *error);

#endif
