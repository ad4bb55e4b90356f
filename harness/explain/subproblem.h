/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a fixture as a fixture of its own: one layer, some tokens, slots, neurons and columns. */
#ifndef GB_HARNESS_EXPLAIN_SUBPROBLEM_H
#define GB_HARNESS_EXPLAIN_SUBPROBLEM_H

#include "fixtures/fixtures.h"

struct part {
    uint32_t layer;
    uint32_t first_token, tokens;
    uint32_t first_slot, slots;
    uint32_t hidden;       /* the first columns of x and gate_up, rows of down */
    uint32_t intermediate; /* the first neurons */
};

/* All of one layer, for its first `tokens` tokens. */
struct part part_whole(const struct gb_fixture *fixture, uint32_t layer, uint32_t tokens);
/* Stored, with the experts in use alone, numbered anew; truth is that of the part. GB_EINVAL: no slot is in use. */
enum gb_status part_new(const struct gb_fixture *fixture, const struct part *part, struct gb_fixture **result,
                        struct gb_error *error);

#endif
