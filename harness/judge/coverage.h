/* SPDX-License-Identifier: Apache-2.0 */
/* What a fixture exercises: codes, scales, ties, regions of the activation, loads of experts. docs/gates.md#coverage.
 */
#ifndef GB_HARNESS_JUDGE_COVERAGE_H
#define GB_HARNESS_JUDGE_COVERAGE_H

#include <stdbool.h>

#include "fixtures/fixtures.h"

/* Of the codes of gate, up and down each. */
enum coverage_weight {
    COVER_CODES,
    COVER_SCALES,
    COVER_ZERO_BLOCKS,
    COVER_ZERO_SCALES,
    COVER_SUBNORMAL_SCALES,
    COVER_SMALLEST_SCALES,
    COVER_LARGEST,
    COVER_SUBNORMALS,
    COVER_ZEROS,
    COVER_NEGATIVE_ZEROS,
    COVERAGE_WEIGHTS
};

enum coverage_item {
    COVER_GATE = 0,
    COVER_UP = COVER_GATE + COVERAGE_WEIGHTS,
    COVER_DOWN = COVER_UP + COVERAGE_WEIGHTS,
    COVER_X_SUBNORMALS = COVER_DOWN + COVERAGE_WEIGHTS,
    COVER_X_ZEROS,
    COVER_X_NEGATIVE_ZEROS,
    COVER_X_REPEATED,
    COVER_X_SHARED_PREFIX,
    COVER_SILU_UNDERFLOW,
    COVER_SILU_EXP_OVERFLOW,
    COVER_SILU_TAIL,
    COVER_SILU_INTERIOR,
    COVER_SILU_HALF,
    COVER_SILU_LINEAR,
    COVER_CLAMP_GATE,
    COVER_CLAMP_UP,
    COVER_TIES,
    COVER_NEAR_TIES,
    COVER_INTERMEDIATE_SUBNORMALS,
    COVER_INTERMEDIATE_ZEROS,
    COVER_INTERMEDIATE_NEGATIVE_ZEROS,
    COVER_EXPERTS_IDLE,
    COVER_EXPERTS_ONE,
    COVER_EXPERTS_SEVERAL,
    COVER_EXPERTS_ALL,
    COVER_LOAD_7,
    COVER_LOAD_8,
    COVER_LOAD_9,
    COVER_LOAD_16,
    COVER_LOAD_17,
    COVER_IDS_128,
    COVER_IDS_256,
    COVER_IDS_32768,
    COVER_IDS_65536,
    COVER_SLOTS_EMPTY,
    COVER_EQUAL_WEIGHTS,
    COVER_NEAR_WEIGHTS,
    COVER_HIDDEN_64,
    COVER_HIDDEN_128,
    COVER_HIDDEN_256,
    COVER_INTERMEDIATE_64,
    COVER_INTERMEDIATE_128,
    COVER_INTERMEDIATE_256,
    COVER_LAYERS_FURTHER,
    COVER_LAYERS_ROUTED,
    COVERAGE_ITEMS
};

struct coverage_count {
    bool applies;      /* to this fixture's format and activation */
    uint64_t seen;     /* how many, or, of a set, how many different ones */
    uint64_t possible; /* size of the set; 0: no set */
};

struct coverage {
    uint32_t tokens; /* the first so many of the fixture */
    struct coverage_count of[COVERAGE_ITEMS];
};

/* "gate_proj.codes"; name: scratch. */
const char *coverage_name(enum coverage_item item, char name[32]);

/* Counts over all layers and their first `tokens` tokens. GB_ENOMEM. */
enum gb_status coverage_measure(const struct gb_fixture *fixture, uint32_t tokens, struct coverage *coverage,
                                struct gb_error *error);
/* The weights' part of it, from the experts that these tokens use. */
enum gb_status coverage_measure_weights(const struct gb_fixture *fixture, uint32_t tokens, struct coverage *coverage,
                                        struct gb_error *error);

/* What --require-coverage asks for. */
struct coverage_demand {
    const char *text; /* as given; NULL: nothing is asked for */
    struct {
        bool named, all;  /* by its own name; as one of all, if it applies */
        uint64_t minimum; /* 0: every one of a set, otherwise 1 */
    } of[COVERAGE_ITEMS];
};

/* NAME[=MINIMUM],... or `all` among them; what stands later holds. GB_EINVAL: one line. `text` is kept. */
enum gb_status coverage_demand_parse(const char *text, struct coverage_demand *demand, struct gb_error *error);
/* "gate_proj.codes 15 of 16, ...": what falls short of the demand, cut to `bytes`. False: nothing does. */
bool coverage_short(const struct coverage *coverage, const struct coverage_demand *demand, char *text, size_t bytes);

#endif
