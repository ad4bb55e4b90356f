/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the quantising operators: data, a run on poisoned buffers, and the oracle's codes beside it. */
#ifndef GB_TESTS_SUPPORT_OPERATOR_CASE_H
#define GB_TESTS_SUPPORT_OPERATOR_CASE_H

#include "tests/support/check.h"

enum operator_data {
    OPERATOR_GAUSSIAN,
    OPERATOR_TIES, /* products and values on ties of the element, the scale a power of two */
    OPERATOR_EDGE, /* any 16 bits: NaN, Inf, subnormals; blocks of zeros of either sign */
    OPERATOR_KINDS
};

/* Of a recipe, which must exist. */
const struct gb_quantiser *operator_rules(const char *recipe);

/* rows x columns of `rules`, bf16, EXACT, nothing rounded, linear, no bound, global scale 1; gated or plain. */
struct gb_quantisation operator_question(const struct gb_quantiser *rules, bool gated, uint32_t rows, uint32_t columns);

/* Freshly allocated: [rows, input_columns] of q->input. */
uint16_t *operator_input(const struct gb_quantisation *q, enum operator_data kind, uint64_t seed);

/* The codes and scales that are right for values [columns] of one row, one byte a code or two codes a byte. */
typedef void (*operator_oracle)(const struct gb_quantisation *q, const float *values, uint8_t *codes, void *scales);

/* Runs the operator twice, on outputs poisoned differently, and fails the test at the first code or scale that is not
 * the oracle's, at a byte written outside, and at an input changed. Returns how many codes are not zero. */
size_t expect_operator(const struct gb_quantisation *q, const uint16_t *input, operator_oracle oracle,
                       const char *label);

#endif
