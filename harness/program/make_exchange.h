/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock make --operator dispatch or combine: problems over ranks. */
#ifndef GB_HARNESS_PROGRAM_MAKE_EXCHANGE_H
#define GB_HARNESS_PROGRAM_MAKE_EXCHANGE_H

#include <argp.h>

#include "harness/run/operators.h"

/* As the options have them; 0 or NULL: not given. */
struct make_exchange {
    uint32_t ranks, ranks_per_node, empty;
    const char *placement;
    enum gb_accumulation accumulation;
    const char *first; /* the first of its options that was given */
};

enum { MAKE_RANKS = 768, MAKE_PLACEMENT, MAKE_ACCUMULATION, MAKE_RANKS_PER_NODE, MAKE_EMPTY_RANKS };

/* For the list of options of make. */
#define MAKE_EXCHANGE_OPTIONS                                                                                          \
    {"ranks",                                                                                                          \
     MAKE_RANKS,                                                                                                       \
     "N",                                                                                                              \
     0,                                                                                                                \
     "of dispatch and combine: ranks, 2 by default. --tokens is of each rank, E of --shape E,K,H of all",              \
     0},                                                                                                               \
        {"placement",                                                                                                  \
         MAKE_PLACEMENT,                                                                                               \
         "KIND",                                                                                                       \
         0,                                                                                                            \
         "of dispatch and combine, where experts are: blocks (default), round-robin, random, or one: all on one rank", \
         0},                                                                                                           \
        {"empty-ranks",                                                                                                \
         MAKE_EMPTY_RANKS,                                                                                             \
         "N",                                                                                                          \
         0,                                                                                                            \
         "of dispatch and combine: the last N ranks have no tokens; 0 by default",                                     \
         0},                                                                                                           \
        {"accumulation",                                                                                               \
         MAKE_ACCUMULATION,                                                                                            \
         "PLACE",                                                                                                      \
         0,                                                                                                            \
         "of combine: sums are formed at the receiver (default), the sender, or the sender and its node",              \
         0},                                                                                                           \
    {                                                                                                                  \
        "ranks-per-node", MAKE_RANKS_PER_NODE, "N", 0, "with --accumulation node: ranks of a node, 8 by default", 0    \
    }

/* As a parser of argp does. */
error_t make_exchange_parse(int key, char *argument, struct argp_state *state, struct make_exchange *options);
/* What goes together; after the last option. row: of --operator, or NULL. */
void make_exchange_check(struct argp_state *state, const struct operator_row *row, const struct make_exchange *options);

/* What --operator and the options of other problems say. */
struct make_exchange_problem {
    const struct operator_row *row;
    const struct gb_recipe *recipe; /* NULL: bf16 rows */
    struct gb_shape shape;          /* tokens: of a rank */
    const char *data, *routing;     /* the former with or without its version */
    uint64_t seed;
};
enum gb_status make_exchange(const struct make_exchange_problem *problem, const struct make_exchange *options,
                             struct gb_fixture **fixture, struct gb_error *error);

#endif
