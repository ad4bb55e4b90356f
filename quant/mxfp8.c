/* SPDX-License-Identifier: Apache-2.0 */
/* MXFP8 by the rule of NVIDIA Transformer Engine; every step is numbered as in docs/numerics.md. */
#include <math.h>

#include "quant/blocks.h"

enum { BLOCK = 32 };

static const float reciprocal_of_max = 1.0f / 448.0f; /* RN(1 / 448) = 0x3B124925 */

static void quantise_block(const float *values, gb_e4m3 *codes, gb_e8m0 *scale)
{
    *scale = gb_e8m0_encode(gb_amax(values, BLOCK) * reciprocal_of_max); /* step 1 */
    float inverse = ldexpf(1.0f, 127 - scale->bits);                     /* step 2 */
    for (int i = 0; i < BLOCK; i++)
        codes[i] = gb_e4m3_encode(values[i] * inverse);
}

enum gb_status gb_mxfp8_quantise(const float *values, uint32_t rows, uint32_t columns, gb_e4m3 *codes, gb_e8m0 *scales,
                                 struct gb_error *error)
{
    if (columns % BLOCK)
        return gb_fail(error, GB_EINVAL, "%u columns are no multiple of the MXFP8 block of %d", columns, BLOCK);
    for (size_t i = 0; i < (size_t)rows * columns; i += BLOCK)
        quantise_block(values + i, codes + i, scales + i / BLOCK);
    return GB_OK;
}
