/* SPDX-License-Identifier: Apache-2.0 */
/* Private: rows of values become codes and scales; shared by quantise and silu_mul_quantise. */
#ifndef GB_REFERENCE_QUANTISE_H
#define GB_REFERENCE_QUANTISE_H

#include "reference/reference.h"

/* Row `row` as binary32, as the operator quantises it. values: [columns]. */
typedef void (*gb_row_function)(const struct gb_quantisation *q, const void *input, uint32_t row, float *values);

/* Of GB_QUANTISE, and of GB_SILU_MUL_QUANTISE. */
void gb_plain_row(const struct gb_quantisation *q, const void *input, uint32_t row, float *values);
void gb_gated_row(const struct gb_quantisation *q, const void *input, uint32_t row, float *values);

/* One bf16 or fp16 number of an array. */
float gb_input_value(enum gb_format input, const void *array, size_t index);
/* Rounded to bf16 or fp16; unchanged for GB_FP32. */
float gb_rounded_to(enum gb_format format, float value);

/* Whether the operator is defined for what is asked. GB_EINVAL with the reason. */
enum gb_status gb_quantise_check(const struct gb_quantisation *q, enum gb_operator operation, struct gb_error *error);

/* Checks, then quantises every row that row_of gives. */
enum gb_status gb_quantise_rows(const struct gb_arguments *arguments, enum gb_operator operation,
                                gb_row_function row_of, struct gb_error *error);

#endif
