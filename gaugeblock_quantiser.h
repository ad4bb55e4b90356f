/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gaugeblock_quantiser.h: a part of gaugeblock.h, under the same version policy.
 *
 * A recipe as data: every choice by which a block of values becomes codes and a scale. docs/recipes.md#the-quantiser
 * states step by step, under these names, what is computed from it, so that two implementations agree in every bit.
 * Every operation is binary32, rounded to nearest even on its own. M = `largest`, C = `reciprocal`; of the matrix:
 * A = its largest magnitude, G = the global scale that encodes, d = the one that decodes; of a block: a = its largest
 * magnitude, r = its ratio to M, s = the decoded scale; x = a value, q = its quotient, m = the block's multiplier.
 * A field that is 0 asks for nothing unless it says otherwise.
 */
#ifndef GAUGEBLOCK_QUANTISER_H
#define GAUGEBLOCK_QUANTISER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Codes: E2M1 two a byte, the even element in the low nibble; every other element one a byte, in its low bits. */
enum gb_element_format {
    GB_E2M1 = 1,
    GB_E4M3 = 2,
    GB_E4M3FNUZ = 3,
    GB_E5M2 = 4,
    GB_E3M2 = 5,
    GB_E2M3 = 6,
    GB_INT8 = 7
};

enum gb_scale { GB_SCALE_E4M3 = 1, GB_SCALE_E8M0 = 2, GB_SCALE_FP32 = 3 };

/* The matrix's global scale. */
enum gb_global {
    GB_GLOBAL_NONE = 0,
    GB_GLOBAL_ENCODE = 1,           /* G = global_largest / A; 1 for A = 0; global_overflow where that is infinite */
    GB_GLOBAL_DECODE = 2,           /* d = A / global_largest; 1 for A = 0 */
    GB_GLOBAL_ENCODE_RECIPROCAL = 3 /* as ENCODE, but G = global_largest * (1 / A), as torch divides a number */
};

/* What a NaN does to a. */
enum gb_amax_nan {
    GB_AMAX_DROPS_NAN = 0,      /* nothing, as fmax does from a start that is a number */
    GB_AMAX_PROPAGATES_NAN = 1, /* a is NaN */
    GB_AMAX_NAN_IF_ALL_ARE = 2  /* nothing, unless every value is NaN: as fmax without a start */
};

/* A bound that the caller gives. */
enum gb_bound {
    GB_BOUND_NONE = 0,
    GB_BOUND_AMAX = 1, /* a is at most the bound */
    GB_BOUND_RATIO = 2 /* r is at most the bound, before ratio_min */
};

/* r from a. */
enum gb_ratio {
    GB_RATIO_POWER = 1,          /* a * 2^-e exactly, 2^e the largest power of two that is at most M */
    GB_RATIO_DIVIDE = 2,         /* a / M */
    GB_RATIO_MULTIPLY = 3,       /* a * C */
    GB_RATIO_ENCODE_FIRST = 4,   /* a * (G * C) */
    GB_RATIO_ENCODE_LAST = 5,    /* G * (a * C) */
    GB_RATIO_DIVIDE_ENCODE = 6,  /* G * (a / M) */
    GB_RATIO_DIVIDE_PRODUCT = 7, /* a / (M * d) */
    GB_RATIO_DIVIDE_TWICE = 8,   /* (a / M) / d */
    GB_RATIO_INVERSE = 9         /* 1 / (M / a) */
};

/* What a value is rounded to on its way. */
enum gb_intermediate { GB_INTERMEDIATE_FP32 = 0, GB_INTERMEDIATE_BF16 = 1, GB_INTERMEDIATE_FP16 = 2 };

/* "4over6": r and 1.5 r are both tried, and the one with the smaller error is kept; docs/recipes.md#four-over-six. */
enum gb_four_over_six { GB_SIX = 0, GB_FOUR_OVER_SIX_ABSOLUTE = 1, GB_FOUR_OVER_SIX_SQUARE = 2 };

/* The scale from r. */
enum gb_scale_rounding {
    GB_SCALE_NEAREST = 1,       /* the scale type's nearest, ties to even, saturating; FP32: r itself */
    GB_SCALE_FLOOR = 2,         /* the power of two at or below r */
    GB_SCALE_CEIL = 3,          /* the power of two at or above r */
    GB_SCALE_EVEN = 4,          /* the power of two at or below r's encoding plus 2^(22 - mantissa_bits) */
    GB_SCALE_CEIL_FRACTION = 5, /* CEIL by r's exponent field, plus one where its fraction is not 0 */
    GB_SCALE_LLAMA_CPP = 6      /* E4M3 as ggml_fp32_to_ue4m3 rounds; docs/recipes.md */
};

/* q from x and s: a division, or x * m. */
enum gb_quotient {
    GB_QUOTIENT_DIVIDE = 1,         /* x / s */
    GB_QUOTIENT_RECIPROCAL = 2,     /* m = 1 / s */
    GB_QUOTIENT_POWER = 3,          /* m = 2^(127 - scale code) */
    GB_QUOTIENT_AMAX = 4,           /* m = M / a */
    GB_QUOTIENT_DIVIDE_PRODUCT = 5, /* x / (s * d) */
    GB_QUOTIENT_DIVIDE_ENCODE = 6,  /* x / (s / G) */
    GB_QUOTIENT_ENCODE_PRODUCT = 7, /* m = 1 / (s * (1 / G)) */
    GB_QUOTIENT_ENCODE = 8,         /* m = G / s */
    GB_QUOTIENT_DECODE = 9          /* m = (1 / d) / s */
};

/* Where m is 0 whatever the formula gives. */
enum gb_zero_multiplier {
    GB_ZERO_NEVER = 0,
    GB_ZERO_IF_AMAX_IS = 1,
    GB_ZERO_IF_RATIO_IS = 2,
    GB_ZERO_IF_SCALE_IS = 3 /* the scale's code is 0; FP32: s = 0 */
};

/* How q, already within -M .. M, becomes a code. */
enum gb_rounding {
    GB_TIES_TO_EVEN = 0,
    GB_TIES_TO_ZERO = 1,
    GB_TRUNCATE = 2 /* the next magnitude at or below */
};

/* The code of a NaN q. */
enum gb_element_nan {
    GB_NAN_IS_NAN = 0,     /* as the element's encoding has it (docs/numerics.md); INT8: 0 */
    GB_NAN_KEEPS_SIGN = 1, /* the element's NaN with the sign of x */
    GB_NAN_IS_LARGEST = 2, /* +M, as fmax(-M, fmin(q, M)) */
    GB_NAN_IS_LOWEST = 3,  /* -M, as fmin(fmax(q, -M), M); INT8: -128 */
    GB_NAN_IS_ZERO = 4
};

/* The sign of a code of magnitude zero. */
enum gb_zero_sign {
    GB_ZERO_KEEPS_SIGN = 0,    /* q's sign bit */
    GB_ZERO_SIGN_OF_VALUE = 1, /* minus where q < 0, so not where q is -0 */
    GB_ZERO_IS_POSITIVE = 2,
    GB_ZERO_NEGATIVE_UNLESS_ABOVE = 3 /* minus where q is not > 0 */
};

struct gb_quantiser {
    enum gb_element_format element;
    enum gb_scale scale;
    uint32_t block_rows;
    uint32_t block_columns; /* 0: the whole row */
    float largest;          /* M */
    float reciprocal;       /* C */

    enum gb_global global;
    float global_largest;
    float global_overflow;

    float amax_start; /* a is at least this */
    enum gb_amax_nan amax_nan;
    enum gb_bound bound;

    enum gb_ratio ratio;
    enum gb_intermediate ratio_intermediate; /* of a / M or a * C, where r has one */
    float ratio_if_zero;                     /* an r of 0 becomes this, before ratio_min */
    float ratio_min;                         /* r is at least this */
    float ratio_max;                         /* r is at most this; 0: any */
    enum gb_four_over_six four_over_six;

    enum gb_scale_rounding scale_rounding;
    uint32_t mantissa_bits; /* of GB_SCALE_EVEN */
    uint8_t scale_min;      /* a smaller code becomes this */
    uint8_t scale_max;      /* a larger finite code becomes this; 0: any */
    uint8_t scale_if_zero;  /* code 0 becomes this */
    uint8_t scale_infinity; /* E8M0: the code of an infinite r; 0: that of 2^128 * 2^-e, at most 0xFE */
    uint8_t scale_nan;      /* the code of a NaN r; 0: the type's NaN */

    enum gb_quotient quotient;
    float multiplier_max;    /* m is at most this, and this where m is NaN; 0: any */
    float multiplier_lowest; /* GB_QUOTIENT_POWER: m of scale code 0; 0: 2^127 */
    enum gb_zero_multiplier zero_multiplier;

    enum gb_intermediate intermediate; /* of q */
    enum gb_rounding rounding;
    enum gb_element_nan element_nan;
    enum gb_zero_sign zero_sign;

    uint32_t flush_subnormals; /* 1: a subnormal operand or result of an operation is a zero of its sign */
};

#ifdef __cplusplus
}
#endif
#endif
