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

/* Exact. */
float gb_code_value(enum gb_element_format element, uint8_t code);

#endif
