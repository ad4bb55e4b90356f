/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private: the order mma16-sm90/1 on rows of weights: docs/numerics.md#mma16-sm90.
 *
 * The vector paths have a row in every lane: 16 rows (AVX-512) or 8 (AVX2) run through the same instructions, so that
 * an activation is a broadcast. What they leave to the plain definition, because FP32 does not hold it: operands and
 * sums far from one, infinities and NaN.
 */
#ifndef GB_REFERENCE_MMA16_H
#define GB_REFERENCE_MMA16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gaugeblock.h"

enum { GB_MMA16_CHAINS = 4, GB_MMA16_CHUNKS = 4, GB_MMA16_COLUMNS = 16 };

/* What a step of the order takes: 4 chunks of 16 bytes of codes. */
static inline uint32_t gb_mma16_chunk(enum gb_format format)
{
    return format == GB_MXFP8 ? 16 : 32;
}
static inline uint32_t gb_mma16_step(enum gb_format format)
{
    return GB_MMA16_CHUNKS * gb_mma16_chunk(format);
}

/* The column, counted from the step's first, of an instruction's place: 0 .. 15. */
static inline uint32_t gb_mma16_column(enum gb_format format, uint32_t instruction, uint32_t place)
{
    return place / 4 * gb_mma16_chunk(format) + instruction * 4 + place % 4;
}

/* Floats that gb_mma16_arrange writes for an activation of so many columns. */
size_t gb_mma16_arranged_floats(enum gb_format format, uint32_t columns);

/* An activation [columns], numbers of bf16, which may lie in `arranged` itself, as every path reads it: [columns] as
 * they are and then +0 up to a whole step; their exponents' bits; whether the vector paths take it. 64-byte aligned if
 * `arranged` is. */
void gb_mma16_arrange(enum gb_format format, uint32_t columns, const float *x, float *arranged);

/* Rows row .. row + rows - 1 of an expert times `count` arranged activations, complete with the global scale. The same
 * bits on every path. out: [rows, count]. */
void gb_mma16_dots(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t rows, uint32_t count,
                   const float *const *x, float *out);
void gb_mma16_dots_avx2(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t rows, uint32_t count,
                        const float *const *x, float *out);
void gb_mma16_dots_avx512(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t rows,
                          uint32_t count, const float *const *x, float *out);

/* What is left after the chains: steps 4 and 5 of the order. chains: [GB_MMA16_CHAINS]. */
float gb_mma16_finish(const struct gb_weights *weights, uint32_t expert, uint32_t row, const float *chains);

#endif
