/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers <-> bits, blocks <-> values, recipes. Every rule is in docs/numerics.md under the same name. */
#ifndef GB_QUANT_QUANT_H
#define GB_QUANT_QUANT_H

#include <stdbool.h>

#include "gaugeblock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the message into *error (if not NULL) and returns status. */
GB_API enum gb_status gb_fail(struct gb_error *error, enum gb_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* a * b * c elements of `size` bytes; false if that is more than half of the address space. */
GB_API bool gb_bytes(uint64_t a, uint64_t b, uint64_t c, uint64_t size, size_t *bytes);

/* Element codecs. Encoders round to nearest, ties to even. */

/* All 16 codes are exact. OCP MX v1.0 section 5.3.3 (E2M1). */
GB_API float gb_e2m1_decode(gb_e2m1 code);
/* Saturates at +-6; +-Inf -> +-6; NaN -> +6 (code 7); the sign of zero and of underflow is kept. */
GB_API gb_e2m1 gb_e2m1_encode(float value);
/* Even element in the low nibble, odd element in the high nibble. */
GB_API gb_e2m1x2 gb_e2m1_pack(gb_e2m1 even, gb_e2m1 odd);
GB_API gb_e2m1 gb_e2m1_even(gb_e2m1x2 pair);
GB_API gb_e2m1 gb_e2m1_odd(gb_e2m1x2 pair);

/* 0x7F and 0xFF are NaN, there is no infinity. OCP OFP8 v1.0 section 5. */
GB_API float gb_e4m3_decode(gb_e4m3 code);
/* Saturates at +-448, infinities too; NaN -> 0x7F with the sign dropped, as CUDA's float conversion does. */
GB_API gb_e4m3 gb_e4m3_encode(float value);

GB_API float gb_bf16_decode(gb_bf16 code);
/* codes, values: [count]; codes may lie at any address. */
GB_API void gb_bf16_decode_all(const void *codes, size_t count, float *values);
/* Overflows to infinity; NaN keeps its sign and becomes quiet (0x7FC0 | sign). */
GB_API gb_bf16 gb_bf16_encode(float value);
/* values, codes: [count] */
GB_API void gb_bf16_encode_all(const float *values, size_t count, gb_bf16 *codes);

/* 0x7C is infinity, 0x7D to 0x7F are NaN, with either sign. OCP OFP8 v1.0 section 5. */
GB_API float gb_e5m2_decode(gb_e5m2 code);
/* Saturates at +-57344, infinities too; NaN -> 0x7F with the sign dropped, as CUDA's float conversion does. */
GB_API gb_e5m2 gb_e5m2_encode(float value);

/* 2^(code - 127); 0xFF is NaN. OCP MX v1.0 section 5.4.1. */
GB_API float gb_e8m0_decode(gb_e8m0 code);
/* The sign is ignored; rounds up to a power of two, from 2^-127 (zero too) to 2^127 (infinity too); NaN -> 0xFF. As
 * cvt.rp.satfinite.ue8m0x2.f32. */
GB_API gb_e8m0 gb_e8m0_encode(float value);

/* 0x80 is the only NaN, there is no infinity and no -0. ml_dtypes float8_e4m3fnuz; arXiv 2206.02915. */
GB_API float gb_e4m3fnuz_decode(gb_e4m3fnuz code);
/* Saturates at +-240, infinities too; NaN -> 0x80; zero and values that round to zero -> 0x00. */
GB_API gb_e4m3fnuz gb_e4m3fnuz_encode(float value);

/* All 64 codes are finite. OCP MX v1.0 section 5.3.2. */
GB_API float gb_e3m2_decode(gb_e3m2 code);
GB_API float gb_e2m3_decode(gb_e2m3 code);
/* Saturate at +-28 and +-7.5, infinities too; NaN -> the positive largest (0x1F); the sign of zero and of underflow is
 * kept. As CUDA's conversions do. */
GB_API gb_e3m2 gb_e3m2_encode(float value);
GB_API gb_e2m3 gb_e2m3_encode(float value);

/* IEEE binary16 bits. Decoding is exact; encoding overflows to infinity, NaN -> 0x7E00 | sign. */
GB_API float gb_fp16_decode(uint16_t bits);
GB_API uint16_t gb_fp16_encode(float value);

/*
 * Conversions: what a format and a direction of rounding leave open, as data. docs/numerics.md#conversions.
 * The encoders above are the rows "<format>.cuda-satfinite" (E4M3, E5M2), "e2m1.cuda", "e3m2.cuda", "e2m3.cuda",
 * "e4m3fnuz.saturate", "e8m0.cuda-rp-satfinite", "bf16.ieee" and "fp16.ieee".
 */

enum gb_codec {
    GB_CODEC_E2M1 = 1,
    GB_CODEC_E3M2 = 2,
    GB_CODEC_E2M3 = 3,
    GB_CODEC_E4M3 = 4,
    GB_CODEC_E4M3FNUZ = 5,
    GB_CODEC_E5M2 = 6,
    GB_CODEC_E8M0 = 7,
    GB_CODEC_BF16 = 8,
    GB_CODEC_FP16 = 9
};

/* Of the magnitude. */
enum gb_conversion_rounding {
    GB_CONVERT_TIES_TO_EVEN = 1, /* nearest, ties to the even code */
    GB_CONVERT_TIES_TO_ZERO = 2, /* nearest, ties to the smaller magnitude */
    GB_CONVERT_TOWARD_ZERO = 3,
    GB_CONVERT_AWAY_FROM_ZERO = 4
};

/* What becomes of a magnitude that rounds beyond the largest code, or of an infinity; always with its sign, if the
 * result has one. */
enum gb_overflow { GB_TO_LARGEST = 1, GB_TO_INFINITY = 2, GB_TO_NAN = 3 };

enum gb_nan_sign {
    GB_NAN_POSITIVE = 1, /* the NaN code as it stands */
    GB_NAN_SIGNED = 2,   /* with the sign bit of the input */
    GB_NAN_INVERTED = 3  /* with the opposite of the input's sign bit */
};

enum gb_conversion_zero {
    GB_CONVERT_ZERO_SIGNED = 1,   /* zero and what rounds to zero keep their sign */
    GB_CONVERT_ZERO_UNSIGNED = 2, /* both become +0; the only choice where there is no -0 */
    GB_CONVERT_ZERO_SIGNED_UNDERFLOW =
        3,                        /* -0 becomes +0, a negative value that rounds to zero -0: the sign of x < 0 */
    GB_CONVERT_ZERO_NEGATIVE = 4, /* a zero of either sign becomes -0; what rounds to zero keeps its sign */
    GB_CONVERT_ZERO_NAN = 5       /* E8M0: zero and negative values, which it lacks, become NaN */
};

struct gb_conversion {
    const char *name; /* "e4m3.torch-2.13" */
    enum gb_codec codec;
    enum gb_conversion_rounding rounding;
    uint16_t largest; /* code of the largest magnitude that comes out */
    enum gb_overflow overflow, infinity;
    uint16_t nan; /* code of NaN, with the sign that nan_sign says */
    enum gb_nan_sign nan_sign;
    enum gb_conversion_zero zero;
    const char *source; /* the library that does so, and where it says so */
};

GB_API const struct gb_conversion *gb_conversions(size_t *count);
/* NULL if none has this name. */
GB_API const struct gb_conversion *gb_conversion_find(const char *name);
/* The code, in the low bits, by the conversion's rules alone. Any float. */
GB_API uint16_t gb_convert(const struct gb_conversion *conversion, float value);
/* values, codes: [count] */
GB_API void gb_convert_array(const struct gb_conversion *conversion, const float *values, size_t count,
                             uint16_t *codes);

/* "e2m1", "e4m3fnuz", ...; NULL for an unknown one. */
GB_API const char *gb_codec_name(enum gb_codec codec);
/* Bits of a code: 4, 6, 8 or 16. Codes are 0 .. 2^bits - 1. */
GB_API unsigned gb_codec_bits(enum gb_codec codec);
/* Exact; NaN for a code that is one. */
GB_API float gb_codec_decode(enum gb_codec codec, uint16_t code);

/* Layouts of the scales of one matrix, docs/numerics.md#scale-layouts. Several matrices follow each other, each padded.
 */

enum gb_layout {
    GB_LAYOUT_LINEAR = 1,             /* [rows, columns] */
    GB_LAYOUT_TRANSPOSED = 2,         /* [columns, rows] */
    GB_LAYOUT_TRANSPOSED_ALIGNED = 3, /* the same, rows padded to a multiple of 16 bytes */
    GB_LAYOUT_SWIZZLED_128X4 = 4,
    GB_LAYOUT_SWIZZLED_8X4 = 5,
    GB_LAYOUT_PACKED = 6 /* [columns / 4, rows] of four bytes, rows padded to a multiple of 4 */
};

struct gb_scales {
    enum gb_layout layout;
    uint32_t rows;    /* blocks down */
    uint32_t columns; /* blocks across */
    uint32_t bytes;   /* of one scale: 1 (E4M3, E8M0) or 4 (FP32) */
};

/* "linear", "transposed", "transposed-aligned", "swizzled-128x4", "swizzled-8x4", "packed"; NULL for an unknown one. */
GB_API const char *gb_layout_name(enum gb_layout layout);
/* False if no layout has this name. */
GB_API bool gb_layout_parse(const char *name, enum gb_layout *layout);
/* Bytes with padding; GB_EINVAL if a size is 0 or too large, or the layout is not for scales of this size. */
GB_API enum gb_status gb_layout_bytes(const struct gb_scales *scales, size_t *bytes, struct gb_error *error);
/* Where a scale begins, in bytes; row < rows, column < columns, of scales that gb_layout_bytes accepts. */
GB_API size_t gb_layout_offset(const struct gb_scales *scales, uint32_t row, uint32_t column);
/* linear: [rows, columns] of `bytes`; packed: gb_layout_bytes() of them, padding written as 0. */
GB_API enum gb_status gb_layout_pack(const struct gb_scales *scales, const void *linear, void *packed,
                                     struct gb_error *error);
/* Padding is not read. */
GB_API enum gb_status gb_layout_unpack(const struct gb_scales *scales, const void *packed, void *linear,
                                       struct gb_error *error);

/* Formats of weights. */

/* What a format's codes and scales are. */
struct gb_format_row {
    enum gb_format format;
    const char *name;     /* "nvfp4" */
    bool weights;         /* whether weights may have it */
    enum gb_codec codes;  /* 0: FP32 */
    enum gb_scale scales; /* 0: it has none */
    uint32_t block;       /* columns that share a scale; 1 where there are none */
    uint32_t block_rows;  /* rows of a part that share a scale */
    bool edges;           /* whether the last blocks of a matrix may be smaller */
    bool global;          /* whether halves have a global scale */
    float full_code;      /* the largest code of a block that is not zero is at least this, by every published scale
                             rule; 0: without scales */
};
/* NULL for an unknown one. */
GB_API const struct gb_format_row *gb_format_find(enum gb_format format);
/* Those of weights. */
GB_API const struct gb_format_row *gb_weight_formats(size_t *count);
/* 0 for none. */
GB_API size_t gb_scale_bytes(enum gb_scale scale);

/* Its name; NULL for an unknown one. */
GB_API const char *gb_format_name(enum gb_format format);
/* False if no weight format has this name. */
GB_API bool gb_format_parse(const char *name, enum gb_format *format);
/* Columns that share a scale: 16 for NVFP4, 32 for MXFP4 and MXFP8, 128 for FP8, 1 where there are no scales. */
GB_API uint32_t gb_format_block(enum gb_format format);
/* Rows of a part that share a scale: 128 for FP8, otherwise 1. */
GB_API uint32_t gb_format_block_rows(enum gb_format format);
/* Rows must be a multiple of it long: of the block, but 1 for FP8, whose last block may be smaller. */
GB_API uint32_t gb_format_multiple(enum gb_format format);
/* Bytes of the codes of one row; bytes of its scales (0 where there are none; FP8: of the row's block of rows). */
GB_API size_t gb_row_code_bytes(enum gb_format format, uint32_t columns);
GB_API size_t gb_row_scale_bytes(enum gb_format format, uint32_t columns);
/* Bytes of the scales of one part of `rows` rows. */
GB_API size_t gb_part_scale_bytes(enum gb_format format, uint32_t rows, uint32_t columns);
/* Bytes of the codes, scales and global scales of all experts; GB_EINVAL on overflow, on rows that the halves do not
 * divide, or a row that is no whole number of blocks. */
GB_API enum gb_status gb_weights_bytes(const struct gb_weights *weights, size_t *codes, size_t *scales,
                                       size_t *global_scales, struct gb_error *error);

/* Which global scale a row uses: 0 .. halves-1. */
GB_API uint32_t gb_weights_part(const struct gb_weights *weights, uint32_t row);
/* One row's codes as numbers without any scale, and its block scales. codes: [columns]; scales: [columns / block],
 * rounded up, all 1 where the format has none. Both exact. */
GB_API void gb_weights_codes(const struct gb_weights *weights, uint32_t expert, uint32_t row, float *codes,
                             float *scales);
/* The largest magnitudes among one row's codes and among its block scales, NaN not counted; of scales 1 where the
 * format has none. */
GB_API void gb_weights_largest(const struct gb_weights *weights, uint32_t expert, uint32_t row, float *code,
                               float *scale);
/* The global scale of one row; 1 where the format has none. */
GB_API float gb_weights_global(const struct gb_weights *weights, uint32_t expert, uint32_t row);
/* One row's values, exact in float64. values: [columns]. */
GB_API void gb_weights_row(const struct gb_weights *weights, uint32_t expert, uint32_t row, double *values);

/* Activations: what gate and up become, act(g) * (u + offset), with g = min(gate, limit) and u = up within -limit ..
 * limit. */

/* act */
enum gb_gate_kind {
    GB_GATE_SILU = 1,   /* silu(g), correctly rounded */
    GB_GATE_SIGMOID = 2 /* g * sigmoid(alpha * g), every step rounded */
};

struct gb_activation_row {
    enum gb_activation activation;
    const char *name; /* "silu" */
    enum gb_gate_kind gate;
    double alpha;  /* to be rounded to FP32; SiLU: 1 */
    double limit;  /* exact in FP32; infinity: none */
    double offset; /* exact in FP32; 0: nothing is added */
    bool in_turns; /* checkpoints that have it hold rows of gate and up in turns, or in halves */
};

GB_API const struct gb_activation_row *gb_activation_rows(size_t *count);
/* NULL for an unknown one. */
GB_API const struct gb_activation_row *gb_activation_find(enum gb_activation activation);
GB_API const char *gb_activation_name(enum gb_activation activation);
/* GB_EINVAL names those known. */
GB_API enum gb_status gb_activation_parse(const char *name, enum gb_activation *activation, struct gb_error *error);

/* Recipes: every choice by which values become codes and scales. */

struct gb_recipe {
    const char *name;              /* "nvfp4.modelopt/1" */
    enum gb_format format;         /* the weight format it quantises to; 0: none, it is for activations */
    const char *source;            /* the system whose rule this is, with file and revision */
    const char *summary;           /* the rule in one line; docs/recipes.md has it in full */
    struct gb_quantiser quantiser; /* the rule as data; element 0 for bf16.rne/1 alone, which has no scales */
};

GB_API const struct gb_recipe *gb_recipes(size_t *count);
/* The recipe of this name; NULL if there is none. */
GB_API const struct gb_recipe *gb_recipe_find(const char *name);
/* The recipe used for a weight format where none is named; NULL if none makes it. */
GB_API const struct gb_recipe *gb_recipe_default(enum gb_format format);

/* The recipe that quantises activations to a format where none is named; NULL if none does. */
GB_API const struct gb_recipe *gb_recipe_default_activations(enum gb_format format);
/* What rules make of activations: GB_NVFP4, GB_MXFP8, GB_FP8_BLOCK (1 x 128, FP32 scales); 0: none of these. */
GB_API enum gb_format gb_quantiser_activations(const struct gb_quantiser *rules);
/* Whether the values of a row are those of gate, then those of up. */
GB_API bool gb_quantisation_gated(const struct gb_quantisation *quantisation);

/*
 * Quantises one matrix that shares one global scale. values: [rows, columns], all finite.
 * BF16: codes [rows, columns]; NVFP4: codes [rows, columns / 2], scales [rows, columns / 16], global [1];
 * MXFP8: codes [rows, columns], scales [rows, columns / 32].
 * GB_EINVAL names the first value that is not finite or does not fit the format; GB_ENOMEM.
 */
GB_API enum gb_status gb_quantise(const struct gb_recipe *recipe, const float *values, uint32_t rows, uint32_t columns,
                                  void *codes, void *scales, float *global_scale, struct gb_error *error);

/* The generic quantiser: docs/recipes.md#the-quantiser. */

/* Bytes of the codes and of the scales of a matrix; GB_EINVAL if its columns are no whole number of blocks. */
GB_API enum gb_status gb_quantiser_bytes(const struct gb_quantiser *rules, uint32_t rows, uint32_t columns,
                                         size_t *codes, size_t *scales, struct gb_error *error);

/* Step 1 from A, the largest magnitude of a matrix; GB_EINVAL where the rules refuse it. *global is 1 without one. */
GB_API enum gb_status gb_quantiser_global(const struct gb_quantiser *rules, float amax, float *global,
                                          struct gb_error *error);

/* A block's scale, and what its elements are multiplied with or divided by. */
struct gb_quantiser_step {
    uint32_t code; /* of an E4M3 or E8M0 scale; 0 for FP32 */
    float scale;   /* decoded */
    float operand;
    bool divides; /* x / operand; otherwise x * operand */
    bool zero;    /* every code is 0 (four-over-six) */
};

/* Steps 3 to 5 for a block whose amax step 2 found; of four-over-six, the candidate that maps it to 6. */
GB_API struct gb_quantiser_step gb_quantiser_find_step(const struct gb_quantiser *rules, float amax, float global,
                                                       float bound);

/* Step 6: the number that x's code stands for, without any scale. */
GB_API float gb_quantiser_element(const struct gb_quantiser *rules, const struct gb_quantiser_step *step, float x);

/*
 * Steps 2 to 6. values: [rows, columns], bf16 and fp16 ones decoded, of any kind, NaN too; global: as the rules want it
 * (encoding or decoding), ignored where they have none; bound: INFINITY for none.
 * codes: one or two a byte, see enum gb_element_format; scales: [blocks down, blocks across] of gb_e4m3, gb_e8m0 or
 * float.
 */
GB_API enum gb_status gb_quantiser_run(const struct gb_quantiser *rules, const float *values, uint32_t rows,
                                       uint32_t columns, float global, float bound, void *codes, void *scales,
                                       struct gb_error *error);

/* Router recipes: how logits become experts and weights. docs/numerics.md#route. */

struct gb_router_recipe {
    const char *name; /* "transformers.qwen3-moe/1" */
    struct gb_router router;
    const char *source;  /* the system whose rule this is, with file and revision */
    const char *summary; /* the rule in one line */
};

GB_API const struct gb_router_recipe *gb_router_recipes(size_t *count);
/* NULL if there is no recipe of this name. A model's own groups, kept groups, terms and scale may follow a row's name:
 * "transformers.deepseek-v3/2;groups=1;kept=1;scale=2.446" (docs/numerics.md#route). */
GB_API const struct gb_router_recipe *gb_router_recipe_find(const char *name);
enum { GB_ROUTER_NAME = 64 }; /* bytes of a recipe's name */
/* The name of the row with the router's groups, kept groups, terms and scale. false: no such row, no rule, no room. */
GB_API bool gb_router_recipe_name(const char *row, const struct gb_router *router, char name[GB_ROUTER_NAME]);
/* The recipe where none is named. renormalise: whether the chosen experts' weights sum to one. */
GB_API const struct gb_router_recipe *gb_router_recipe_default(bool renormalise);

#ifdef __cplusplus
}
#endif
#endif
