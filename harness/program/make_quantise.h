/* SPDX-License-Identifier: Apache-2.0 */
/* gaugeblock make --operator: problems of quantisers. */
#ifndef GB_HARNESS_PROGRAM_MAKE_QUANTISE_H
#define GB_HARNESS_PROGRAM_MAKE_QUANTISE_H

#include <argp.h>

#include "harness/run/operators.h"

/* As the options have them; 0 or NULL: not given. */
struct make_quantise {
    const struct operator_row *operator;
    const struct gb_recipe *recipe;
    const char *shape; /* ROWS,COLUMNS */
    enum gb_format input, activated, product;
    enum gb_silu_form silu;
    enum gb_scale_layout layout;
    float bound, global_scale;
    const char *first; /* the first of its options that was given */
};

enum {
    MAKE_OPERATOR = 512,
    MAKE_RECIPE,
    MAKE_INPUT,
    MAKE_SILU,
    MAKE_ACTIVATED,
    MAKE_PRODUCT,
    MAKE_LAYOUT,
    MAKE_BOUND,
    MAKE_GLOBAL_SCALE
};

/* For the list of options of make. */
#define MAKE_QUANTISE_OPTIONS                                                                                          \
    {"operator", MAKE_OPERATOR, "NAME", 0, "a problem of quantise, silu_mul_quantise, dispatch or combine", 0},        \
        {"recipe",                                                                                                     \
         MAKE_RECIPE,                                                                                                  \
         "RECIPE",                                                                                                     \
         0,                                                                                                            \
         "of a quantiser, and of the rows of dispatch: its rules (gaugeblock list recipes)",                           \
         0},                                                                                                           \
        {"input", MAKE_INPUT, "FORMAT", 0, "of a quantiser: its values are bf16 (default) or fp16", 0},                \
        {"silu", MAKE_SILU, "FORM", 0, "of silu_mul_quantise: exact (default), divide or reciprocal", 0},              \
        {"activated",                                                                                                  \
         MAKE_ACTIVATED,                                                                                               \
         "FORMAT",                                                                                                     \
         0,                                                                                                            \
         "of silu_mul_quantise: what silu(gate) is rounded to, fp32 (default) or the format of --input",               \
         0},                                                                                                           \
        {"product",                                                                                                    \
         MAKE_PRODUCT,                                                                                                 \
         "FORMAT",                                                                                                     \
         0,                                                                                                            \
         "of silu_mul_quantise: what silu(gate) * up is rounded to, fp32 (default) or the format of --input",          \
         0},                                                                                                           \
        {"layout", MAKE_LAYOUT, "LAYOUT", 0, "of a quantiser: its scales are linear (default) or transposed", 0},      \
        {"bound", MAKE_BOUND, "X", 0, "of a quantiser: the bound of recipes that take one; none by default", 0},       \
    {                                                                                                                  \
        "global-scale", MAKE_GLOBAL_SCALE, "X", 0,                                                                     \
            "of a quantiser: the global scale of recipes that have one; what fits the values by default", 0            \
    }

/* As a parser of argp does. */
error_t make_quantise_parse(int key, char *argument, struct argp_state *state, struct make_quantise *options);
/* What goes together; after the last option. */
void make_quantise_check(struct argp_state *state, const struct make_quantise *options);

/* data: a kind, with or without its version. */
enum gb_status make_quantise(const struct make_quantise *options, const char *data, uint64_t seed,
                             struct gb_fixture **fixture, struct gb_error *error);

#endif
