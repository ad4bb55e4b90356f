/* SPDX-License-Identifier: Apache-2.0 */
/* Private: the arithmetic of tensor cores' 16-bit matrix instructions, bit for bit: docs/numerics.md#mma. */
#ifndef GB_REFERENCE_MMA_H
#define GB_REFERENCE_MMA_H

#include <stdbool.h>
#include <stdint.h>

#include "gaugeblock.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How an architecture adds up. */
struct gb_mma_unit {
    const char *name;
    uint32_t fraction_bits; /* kept of every term below the largest exponent */
    uint32_t products;      /* that are added in one go */
    int32_t least_exponent; /* the largest exponent counts as at least this */
    bool checked;           /* against the hardware: docs/results/; otherwise as published */
};

/* [*count] rows: sm_80, sm_89, sm_90, sm_100. */
const struct gb_mma_unit *gb_mma_units(uint32_t *count);
/* NULL if there is no such row. */
const struct gb_mma_unit *gb_mma_unit_find(const char *name);

/* c + the sum of a[i] * b[i], as one output element of mma.sync with FP32 accumulators. format: of a and b, GB_BF16 or
 * GB_FP16, bits. a, b: [count]. */
float gb_mma(const struct gb_mma_unit *unit, enum gb_format format, const uint16_t *a, const uint16_t *b,
             uint32_t count, float c);

#ifdef __cplusplus
}
#endif

#endif
