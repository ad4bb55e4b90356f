/* SPDX-License-Identifier: Apache-2.0 */
/* Private: elements of every type behind one pair of functions. */
#ifndef GB_QUANT_CODES_H
#define GB_QUANT_CODES_H

#include "quant/quant.h"

/* Step 6 of docs/recipes.md#the-quantiser, from the quotient of x on; the code lies in the low bits. */
uint8_t gb_code_of(const struct gb_quantiser *rules, float quotient, float x);

enum { GB_CODES_AT_ONCE = 128 };
/* The same of a run of `count` elements, at most GB_CODES_AT_ONCE, whose quotients are x / operand or x * operand:
 * codes [count], one a byte. False, and nothing done, where the rules are not those of most systems, or a quotient is
 * NaN. */
bool gb_codes_of(const struct gb_quantiser *rules, const float *x, uint32_t count, float operand, bool divides,
                 uint8_t *codes);

/* Blocks of `columns` elements in a row, and at most so many elements at once: what most recipes ask for. */
enum { GB_BLOCKS_AT_ONCE = 2048 };
bool gb_blocks_are_common(const struct gb_quantiser *rules, uint32_t columns);
/* The largest magnitude, a NaN if there is any. */
float gb_largest_magnitude(const float *x, size_t count);
/* The same of each block. columns: a multiple of 16. maxima: [blocks]. */
void gb_block_maxima(const float *x, size_t blocks, uint32_t columns, float *maxima);
/* The steps of blocks, as of struct gb_quantiser_step. */
enum { GB_LEAST_BLOCK = 16, GB_MOST_BLOCKS = GB_BLOCKS_AT_ONCE / GB_LEAST_BLOCK };
struct gb_block_steps {
    uint32_t code[GB_MOST_BLOCKS];
    float scale[GB_MOST_BLOCKS], operand[GB_MOST_BLOCKS];
    uint32_t divides[GB_MOST_BLOCKS]; /* 1 or 0, as wide as the others */
};
/* The codes of blocks that are common and whose quotients are numbers, each by its step; in pairs if they are E2M1. */
void gb_block_codes(const struct gb_quantiser *rules, const float *x, uint32_t blocks, uint32_t columns,
                    const struct gb_block_steps *steps, uint8_t *codes);

/* gb_quantiser_run. maxima: of the blocks, which are common, or NULL. */
enum gb_status gb_quantiser_run_with(const struct gb_quantiser *rules, const float *values, const float *maxima,
                                     uint32_t rows, uint32_t columns, float global, float bound, void *codes,
                                     void *scales, struct gb_error *error);

/* Exact. */
float gb_code_value(enum gb_element_format element, uint8_t code);

#endif
