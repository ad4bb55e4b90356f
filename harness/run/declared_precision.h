/* SPDX-License-Identifier: Apache-2.0 */
/* What a file of outputs, which has no kernel table, is said to claim of the kernel that wrote it. */
#ifndef GB_HARNESS_RUN_DECLARED_PRECISION_H
#define GB_HARNESS_RUN_DECLARED_PRECISION_H

#include <stdbool.h>

#include "gaugeblock.h"

enum { FP32_SIGNIFICAND_BITS = 24, ROUNDED_STAGES = 5 };

struct declared_precision {
    enum gb_operator operation; /* GB_DOWN: down alone, on the reference's intermediate; 0: what the file holds */
    const char *order;          /* NULL: none */
    enum gb_format activations; /* GB_BF16, or the fixture's; 0: not said, the fixture's */
    uint32_t accumulator_bits;  /* significand bits of the narrowest accumulator */
    struct gb_stage_roundings roundings;
    const char *roundings_text; /* as given; NULL: none */
    bool open_silu;             /* of silu_mul_quantise: GB_OPEN_SILU */
    const char *scales;         /* of a quantiser: their file, where its codes are in a .npy; NULL */
};

/* The members of struct gb_stage_roundings: their names, and what is in them. i: below ROUNDED_STAGES. */
const char *stage_name(uint32_t i);
enum gb_format stage_rounding(const struct gb_stage_roundings *roundings, uint32_t i);
void stage_round(struct gb_stage_roundings *roundings, uint32_t i, enum gb_format format);

/* Takes "STAGE=FORMAT,...": stages by name, each fp32 or bf16, each at most once. GB_EINVAL: says what is wrong. */
enum gb_status declare_roundings(struct declared_precision *declared, const char *text, struct gb_error *error);

#endif
