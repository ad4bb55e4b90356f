/* SPDX-License-Identifier: Apache-2.0 */
/* The order mma16-sm90/1 in plain C; every step is numbered as in docs/numerics.md#mma16-sm90. */
#include <math.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/mma.h"
#include "reference/mma16.h"

static uint32_t block_of(enum gb_format format)
{
    return format == GB_NVFP4 ? 16 : 32;
}

/* What an NVFP4 operand is divided by, so that a product with the codes' fields stays below 2^128 on a GPU. */
static const float nvfp4_factor = 256.0f;

static uint32_t padded(enum gb_format format, uint32_t columns)
{
    const uint32_t step = gb_mma16_step(format);
    return (columns + step - 1) / step * step;
}

size_t gb_mma16_arranged_floats(enum gb_format format, uint32_t columns)
{
    return 2 * (size_t)padded(format, columns) + 16;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void gb_mma16_arrange(enum gb_format format, uint32_t columns, const float *x, float *arranged)
{
    const uint32_t all = padded(format, columns), exponent = 0x7F800000u;
    const uint32_t most = (127u + 20) << 23;
    uint32_t ordinary = 1;
    memmove(arranged, x, sizeof *x * columns);
    memset(arranged + columns, 0, sizeof *x * (all - columns));
    for (uint32_t i = 0; i < all; i++) {
        const uint32_t field = bits_of(arranged[i]) & exponent;
        memcpy(arranged + all + i, &field, sizeof field);
        ordinary &= field < most;
    }
    memset(arranged + 2 * (size_t)all, 0, 16 * sizeof *x);
    memcpy(arranged + 2 * (size_t)all, &ordinary, sizeof ordinary);
}

/* Step 2: the operand of a column, bf16 bits. */
static uint16_t operand(const struct gb_weights *weights, const uint8_t *codes, const uint8_t *scales, uint32_t column)
{
    const uint8_t scale = scales[column / block_of(weights->format)];
    float code;
    if (weights->format == GB_MXFP8)
        code = gb_e4m3_decode((gb_e4m3){codes[column]});
    else
        code = gb_e2m1_decode((gb_e2m1){codes[column / 2] >> column % 2 * 4 & 15});
    const float s = weights->format == GB_NVFP4 ? gb_e4m3_decode((gb_e4m3){scale}) / nvfp4_factor
                                                : gb_e8m0_decode((gb_e8m0){scale});
    return gb_bf16_encode(code * s).bits;
}

float gb_mma16_finish(const struct gb_weights *weights, uint32_t expert, uint32_t row, const float *chains)
{
    float sum = (chains[0] + chains[1]) + (chains[2] + chains[3]); /* step 4 */
    if (weights->format == GB_NVFP4)
        sum = sum * nvfp4_factor; /* step 5 */
    sum = sum * gb_weights_global(weights, expert, row);
    return isnan(sum) ? NAN : sum;
}

static float dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const float *x)
{
    const enum gb_format format = weights->format;
    const uint32_t step = gb_mma16_step(format), columns = weights->columns;
    const size_t index = (size_t)expert * weights->rows + row;
    const uint8_t *codes = (const uint8_t *)weights->codes + index * (format == GB_MXFP8 ? columns : columns / 2);
    const uint8_t *scales = (const uint8_t *)weights->scales + index * (columns / block_of(format));
    const struct gb_mma_unit *unit = gb_mma_unit_find("sm_90");
    float chains[GB_MMA16_CHAINS] = {0};
    for (uint32_t s = 0; s * step < columns; s++) /* steps 1 and 3 */
        for (uint32_t i = 0; i < step / GB_MMA16_COLUMNS; i++) {
            uint16_t a[GB_MMA16_COLUMNS] = {0}, b[GB_MMA16_COLUMNS] = {0};
            for (uint32_t place = 0; place < GB_MMA16_COLUMNS; place++) {
                const uint32_t column = s * step + gb_mma16_column(format, i, place);
                if (column < columns) {
                    a[place] = operand(weights, codes, scales, column);
                    b[place] = (uint16_t)(bits_of(x[column]) >> 16);
                }
            }
            float *chain = &chains[s % GB_MMA16_CHAINS];
            *chain = gb_mma(unit, GB_BF16, a, b, GB_MMA16_COLUMNS, *chain);
        }
    return gb_mma16_finish(weights, expert, row, chains);
}

void gb_mma16_dots(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t rows, uint32_t count,
                   const float *const *x, float *out)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < count; i++)
            out[(size_t)r * count + i] = dot(weights, expert, row + r, x[i]);
}
