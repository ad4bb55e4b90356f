/* SPDX-License-Identifier: Apache-2.0 */
/* Private: recipe nvfp4.modelopt/1, docs/numerics.md#recipe-nvfp4modelopt1. */
#ifndef GB_QUANT_NVFP4_H
#define GB_QUANT_NVFP4_H

#include "quant/quant.h"

/* values: [rows, columns], finite; codes: [rows, columns / 2]; scales: [rows, columns / 16]; global_scale: [1]. */
enum gb_status gb_nvfp4_quantise(const float *values, uint32_t rows, uint32_t columns, gb_e2m1x2 *codes,
                                 gb_e4m3 *scales, float *global_scale, struct gb_error *error);

#endif
