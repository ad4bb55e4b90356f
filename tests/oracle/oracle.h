/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A third opinion on docs/numerics.md, written from its text alone: it shares no code and no method with quant/,
 * reference/ or gpu/. Formats are codebooks enumerated from their definitions and searched, binary32 arithmetic is
 * integers with explicit rounding, e^x, silu and sigmoid are MPFR. Slow and plain; no hardware float operation decides
 * a bit.
 */
#ifndef GB_TESTS_ORACLE_ORACLE_H
#define GB_TESTS_ORACLE_ORACLE_H

#include <stdbool.h>

#include "gaugeblock.h"

/* Formats. A NaN code decodes to NaN; every other value is exact. oracle.c */
enum oracle_format {
    ORACLE_E2M1,
    ORACLE_E4M3,
    ORACLE_E5M2,
    ORACLE_BF16,
    ORACLE_FP16,
    ORACLE_E4M3FNUZ,
    ORACLE_E3M2,
    ORACLE_E2M3
};
double oracle_decode(enum oracle_format element, unsigned code);
unsigned oracle_encode(enum oracle_format element, float value);
double oracle_e8m0_decode(unsigned code);
unsigned oracle_e8m0_encode(float value);

/* A conversion as docs/numerics.md#conversions describes one. oracle_convert.c */
struct oracle_policy {
    enum { ORACLE_EVEN, ORACLE_TIES_DOWN, ORACLE_TRUNCATE, ORACLE_UP } rounding;
    unsigned largest; /* magnitude code */
    enum { ORACLE_LARGEST, ORACLE_INFINITY, ORACLE_NAN } overflow, infinity;
    unsigned nan; /* code */
    enum { ORACLE_NAN_AS_IS, ORACLE_NAN_SIGNED, ORACLE_NAN_INVERTED } nan_sign;
    enum { ORACLE_ZERO_SIGNED, ORACLE_ZERO_PLUS, ORACLE_ZERO_BY_COMPARISON, ORACLE_ZERO_MINUS, ORACLE_ZERO_NAN } zero;
};
unsigned oracle_convert(enum oracle_format element, const struct oracle_policy *policy, float value);
unsigned oracle_e8m0_convert(const struct oracle_policy *policy, float value);
/* Bits of a code; where 0 <= magnitude <= oracle_finite(), the value it would have if none were reserved. */
unsigned oracle_bits(enum oracle_format element);
unsigned oracle_finite(enum oracle_format element);
double oracle_magnitude(enum oracle_format element, unsigned magnitude);

/* binary32, round to nearest even, subnormals kept; any NaN operand or invalid operation gives a NaN.
 * oracle_float.c */
float oracle_fma(float a, float b, float c);
float oracle_add(float a, float b);
float oracle_multiply(float a, float b);
float oracle_divide(float a, float b);

/* Correctly rounded by MPFR, of the version that is linked. oracle_functions.c */
const char *oracle_mpfr_version(void);
float oracle_exp(float x);
float oracle_silu(float x);
float oracle_sigmoid(float x);

/* A weight's parts: its code without scales, its block's scale, and its row's global scale (1 where the format has
 * none). oracle_layer.c */
float oracle_weight_code(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t column);
float oracle_weight_scale(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t column);
float oracle_global_scale(const struct gb_weights *weights, uint32_t expert, uint32_t row);

/* The operators. oracle_layer.c */

/* In the order fma32/1 */
float oracle_dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x);
/* In the order mma16-sm90/1: NVFP4, MXFP4, MXFP8. oracle_mma16.c */
float oracle_dot_mma16(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x);
/* An output element of the instruction that it is made of, c plus the products. a, b [16]: bf16 numbers. */
float oracle_mma_sm90(float c, const float *a, const float *b);
/* arguments->x, ids -> intermediate [tokens, top_k, intermediate]; order: GB_ORDER_... */
void oracle_gate_up(const struct gb_arguments *arguments, const char *order, gb_bf16 *intermediate);
/* arguments->ids, routing_weights and intermediate -> output [tokens, hidden] */
void oracle_down(const struct gb_arguments *arguments, const char *order, const gb_bf16 *intermediate, float *output);
/* x [tokens, hidden]; router BF16 [experts, hidden] -> ids, routing_weights [tokens, top_k] */
void oracle_route(const struct gb_shape *shape, const gb_bf16 *x, const struct gb_weights *router, bool renormalise,
                  int32_t *ids, float *routing_weights);
/* arguments->x, router, router_weights, router_bias -> ids, routing_weights [tokens, top_k]. oracle_route.c */
void oracle_router(const struct gb_arguments *arguments, int32_t *ids, float *routing_weights);

/* The quantiser of docs/recipes.md, steps 2 to 6. values [rows, columns] -> codes [rows, columns], one a byte;
 * scale_codes [blocks] (0 for FP32 scales) and scale_values [blocks]. oracle_quantiser.c */
void oracle_quantise(const struct gb_quantiser *rules, const float *values, uint32_t rows, uint32_t columns,
                     float global, float bound, uint8_t *codes, uint8_t *scale_codes, float *scale_values);

/* The scale of a block whose largest magnitude is A, and the value, code * scale * d, of a number v with that scale; d
 * is the decoding global scale. */
double oracle_quantised_scale(const struct gb_quantiser *rules, float A, float d);
double oracle_quantised_number(const struct gb_quantiser *rules, float A, float v, float d);

/*
 * gate_up and down with arguments->activation_rules. values [rows, columns]: x, or the intermediate; codes [rows,
 * columns], one a byte; scales [rows, blocks], their values. oracle_activations.c
 */
void oracle_quantise_activations(const struct gb_arguments *arguments, bool down, const gb_bf16 *values, uint8_t *codes,
                                 uint8_t *scale_codes, float *scales);
void oracle_quantised_gate_up(const struct gb_arguments *arguments, const uint8_t *codes, const float *scales,
                              gb_bf16 *intermediate);
void oracle_quantised_down(const struct gb_arguments *arguments, const uint8_t *codes, const float *scales,
                           float *output);
/* As oracle_dot and so on, with the scales of FP8 activations, [columns / 128] of x or [rows, columns / 128], or NULL.
 */
float oracle_dot_scaled(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x,
                        const float *x_scales);
void oracle_gate_up_scaled(const struct gb_arguments *arguments, const float *x_scales, gb_bf16 *intermediate);
void oracle_down_scaled(const struct gb_arguments *arguments, const gb_bf16 *intermediate, const float *x_scales,
                        float *output);

/* The recipes. oracle_quantise.c */

/* nvfp4.modelopt/1. values [rows, columns] -> codes [rows, columns / 2], scales [rows, columns / 16], global [1];
 * false where the recipe refuses the matrix */
bool oracle_quantise_nvfp4(const float *values, uint32_t rows, uint32_t columns, uint8_t *codes, uint8_t *scales,
                           float *global_scale);
/* mxfp8.rceil/1. codes [rows, columns], scales [rows, columns / 32]. */
bool oracle_quantise_mxfp8(const float *values, uint32_t rows, uint32_t columns, uint8_t *codes, uint8_t *scales);

/* The quantising operators. oracle_groups.c */

float oracle_silu_as(enum gb_silu_form form, float x);
/* What is quantised: input [rows, input_columns], bits of q->input -> values [rows, columns] */
void oracle_operator_values(const struct gb_quantisation *q, const uint16_t *input, float *values);
/* One group by the rules of vLLM's fused kernel, E4M3, E4M3FNUZ or INT8: x / s, s = amax / M, at most bound (INFINITY:
 * any), at least a floor. codes: [group]. */
void oracle_quantise_group(enum gb_element_format element, float bound, const float *values, uint32_t group,
                           uint8_t *codes, float *scale);

/* Over ranks. exchange.c */

/* The route of each row, as dispatch orders them; how many there are. routes: [rows] */
uint32_t oracle_routes(const struct gb_exchange *exchange, const int32_t *placement, const int32_t *ids,
                       int32_t *routes);
/* arguments->values, ids, routing_weights, placement -> output [ranks * tokens, hidden] */
void oracle_combine(const struct gb_arguments *arguments, float *output);

#endif
