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
/* Overflows to infinity; NaN keeps its sign and becomes quiet (0x7FC0 | sign). */
GB_API gb_bf16 gb_bf16_encode(float value);

/* 0x7C is infinity, 0x7D to 0x7F are NaN, with either sign. OCP OFP8 v1.0 section 5. */
GB_API float gb_e5m2_decode(gb_e5m2 code);
/* Saturates at +-57344, infinities too; NaN -> 0x7F with the sign dropped, as CUDA's float conversion does. */
GB_API gb_e5m2 gb_e5m2_encode(float value);

/* 2^(code - 127); 0xFF is NaN. OCP MX v1.0 section 5.4.1. */
GB_API float gb_e8m0_decode(gb_e8m0 code);
/* The sign is ignored; rounds up to a power of two, from 2^-127 (zero too) to 2^127 (infinity too); NaN -> 0xFF. As
 * cvt.rp.satfinite.ue8m0x2.f32. */
GB_API gb_e8m0 gb_e8m0_encode(float value);

/* IEEE binary16 bits. Decoding is exact; encoding overflows to infinity, NaN -> 0x7E00 | sign. */
GB_API float gb_fp16_decode(uint16_t bits);
GB_API uint16_t gb_fp16_encode(float value);

/* Formats of weights. */

/* "fp32", "bf16", "nvfp4", "mxfp8", "mxfp4", "fp8"; NULL for an unknown one. */
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
/* Bytes of the codes, scales and global scales of all experts; GB_EINVAL on overflow, on rows that the parts do not
 * divide, or a row that is no whole number of blocks. */
GB_API enum gb_status gb_weights_bytes(const struct gb_weights *weights, size_t *codes, size_t *scales,
                                       size_t *global_scales, struct gb_error *error);

/* Which global scale a row uses: 0 .. parts-1. */
GB_API uint32_t gb_weights_part(const struct gb_weights *weights, uint32_t row);
/* One row's codes as numbers without any scale, and its block scales. codes: [columns]; scales: [columns / block],
 * rounded up, all 1 where the format has none. Both exact. */
GB_API void gb_weights_codes(const struct gb_weights *weights, uint32_t expert, uint32_t row, float *codes,
                             float *scales);
/* The global scale of one row; 1 where the format has none. */
GB_API float gb_weights_global(const struct gb_weights *weights, uint32_t expert, uint32_t row);
/* One row's values, exact in float64. values: [columns]. */
GB_API void gb_weights_row(const struct gb_weights *weights, uint32_t expert, uint32_t row, double *values);

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

/*
 * Quantises one matrix that shares one global scale. values: [rows, columns], all finite.
 * BF16: codes [rows, columns]; NVFP4: codes [rows, columns / 2], scales [rows, columns / 16], global [1];
 * MXFP8: codes [rows, columns], scales [rows, columns / 32].
 * GB_EINVAL names the first value that is not finite or does not fit the format.
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

/*
 * Steps 2 to 6. values: [rows, columns], bf16 and fp16 ones decoded, of any kind, NaN too; global: as the rules want it
 * (encoding or decoding), ignored where they have none; bound: INFINITY for none.
 * codes: one or two a byte, see enum gb_element_format; scales: [blocks down, blocks across] of gb_e4m3, gb_e8m0 or
 * float.
 */
GB_API enum gb_status gb_quantiser_run(const struct gb_quantiser *rules, const float *values, uint32_t rows,
                                       uint32_t columns, float global, float bound, void *codes, void *scales,
                                       struct gb_error *error);

#ifdef __cplusplus
}
#endif
#endif
