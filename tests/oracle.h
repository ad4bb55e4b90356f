/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A third opinion on docs/numerics.md, written from its text alone: it shares no code and no method with quant/,
 * reference/ or gpu/. Formats are codebooks enumerated from their definitions and searched, binary32 arithmetic is
 * integers with explicit rounding, e^x, silu and sigmoid are MPFR. Slow and plain; no hardware float operation decides
 * a bit.
 */
#ifndef GB_TESTS_ORACLE_H
#define GB_TESTS_ORACLE_H

#include <stdbool.h>

#include "gaugeblock.h"

/* Formats. A NaN code decodes to NaN; every other value is exact. oracle.c */
enum oracle_format { ORACLE_E2M1, ORACLE_E4M3, ORACLE_E5M2, ORACLE_BF16, ORACLE_FP16 };
double oracle_decode(enum oracle_format element, unsigned code);
unsigned oracle_encode(enum oracle_format element, float value);
double oracle_e8m0_decode(unsigned code);
unsigned oracle_e8m0_encode(float value);

/* binary32, round to nearest even, subnormals kept; any NaN operand or invalid operation gives a NaN.
 * oracle_float.c */
float oracle_fma(float a, float b, float c);
float oracle_add(float a, float b);
float oracle_multiply(float a, float b);
float oracle_divide(float a, float b);

/* Correctly rounded by MPFR. oracle_functions.c */
float oracle_exp(float x);
float oracle_silu(float x);
float oracle_sigmoid(float x);

/* The operators. oracle_layer.c */
float oracle_dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x);
/* arguments->x, ids -> intermediate [tokens, top_k, intermediate] */
void oracle_gate_up(const struct gb_arguments *arguments, gb_bf16 *intermediate);
/* arguments->ids, routing_weights and intermediate -> output [tokens, hidden] */
void oracle_down(const struct gb_arguments *arguments, const gb_bf16 *intermediate, float *output);
/* x [tokens, hidden]; router BF16 [experts, hidden] -> ids, routing_weights [tokens, top_k] */
void oracle_route(const struct gb_shape *shape, const gb_bf16 *x, const struct gb_weights *router, bool renormalise,
                  int32_t *ids, float *routing_weights);

/* The recipes. oracle_quantise.c */

/* nvfp4.modelopt/1. values [rows, columns] -> codes [rows, columns / 2], scales [rows, columns / 16], global [1];
 * false where the recipe refuses the matrix */
bool oracle_quantise_nvfp4(const float *values, uint32_t rows, uint32_t columns, uint8_t *codes, uint8_t *scales,
                           float *global_scale);
/* mxfp8.rceil/1. codes [rows, columns], scales [rows, columns / 32]. */
bool oracle_quantise_mxfp8(const float *values, uint32_t rows, uint32_t columns, uint8_t *codes, uint8_t *scales);

#endif
