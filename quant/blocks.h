/* SPDX-License-Identifier: Apache-2.0 */
/* Private: the recipes behind gb_quantise; docs/numerics.md has each under its name. */
#ifndef GB_QUANT_BLOCKS_H
#define GB_QUANT_BLOCKS_H

#include "quant/quant.h"

/* Largest absolute value; count values, all finite. */
float gb_amax(const float *values, size_t count);

/* nvfp4.modelopt/1. values: [rows, columns], finite; codes: [rows, columns / 2]; scales: [rows, columns / 16];
 * global_scale: [1]. */
enum gb_status gb_nvfp4_quantise(const float *values, uint32_t rows, uint32_t columns, gb_e2m1x2 *codes,
                                 gb_e4m3 *scales, float *global_scale, struct gb_error *error);

/* mxfp8.rceil/1. values: [rows, columns], finite; codes: [rows, columns]; scales: [rows, columns / 32]. */
enum gb_status gb_mxfp8_quantise(const float *values, uint32_t rows, uint32_t columns, gb_e4m3 *codes, gb_e8m0 *scales,
                                 struct gb_error *error);

#endif
