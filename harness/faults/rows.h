/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the files that plant faults: a row of each fault stands below its function, in the table of its stage. faults.c
 * puts the tables behind each other.
 */
#ifndef GB_HARNESS_FAULTS_ROWS_H
#define GB_HARNESS_FAULTS_ROWS_H

#include "harness/faults/faults.h"

struct fault_table {
    const struct fault *rows;
    size_t count;
};

extern const struct fault_table faults_inputs, faults_codes, faults_weights, faults_projections, faults_activated,
    faults_requantised, faults_slots, faults_outputs;

/* What a format has, of which a fault needs one. */
enum {
    E2M1 = 1,        /* codes */
    E4M3 = 2,        /* codes */
    BF16 = 4,        /* codes */
    SCALES_E4M3 = 8, /* with a global scale */
    SCALES_E8M0 = 16,
    SCALES_FP32 = 32, /* of weights: for blocks of rows */
    ROW_SCALES = SCALES_E4M3 | SCALES_E8M0,
    SCALES = ROW_SCALES | SCALES_FP32
};

/* Behind the amount: what it modelled_on, then fields that few rows have, such as .must_catch = true. */
#define PLANT(NAME, STAGE, FUNCTION, AMOUNT, ...)                                                                      \
    {                                                                                                                  \
        .name = NAME, .stage = STAGE_##STAGE, .plant = plant_##FUNCTION, .amount = AMOUNT, .modelled_on = __VA_ARGS__  \
    }
#define EDIT(NAME, STAGE, FORMATS, FUNCTION, RESEMBLES)                                                                \
    {                                                                                                                  \
        .name = NAME, .stage = STAGE_##STAGE, .formats = FORMATS, .edit = edit_##FUNCTION, .modelled_on = RESEMBLES    \
    }

/* Of the codes of x, and of the intermediate. */
#define CODES(NAME, FORMATS, FUNCTION, AMOUNT, RESEMBLES)                                                              \
    {.name = "x: " NAME,                                                                                               \
     .stage = STAGE_ACT_QUANT,                                                                                         \
     .formats = FORMATS,                                                                                               \
     .plant = plant_##FUNCTION,                                                                                        \
     .amount = AMOUNT,                                                                                                 \
     .modelled_on = RESEMBLES},                                                                                        \
    {                                                                                                                  \
        .name = "intermediate: " NAME, .stage = STAGE_REQUANT, .formats = FORMATS, .plant = plant_##FUNCTION,          \
        .amount = AMOUNT, .modelled_on = RESEMBLES                                                                     \
    }

uint8_t *editable_codes(const struct editable *weights, uint32_t expert, uint32_t row);
uint8_t *editable_scales(const struct editable *weights, uint32_t expert, uint32_t row);
/* What the dot products of gate_up read, scales included: x [tokens, hidden]; or those of down: the intermediate
 * [pairs, intermediate]. NULL: no memory. */
double *injected_operand(struct injected *p, bool of_down);

#endif
