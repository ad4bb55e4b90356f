/* SPDX-License-Identifier: Apache-2.0 */
/* NVFP4 by the rule of NVIDIA Model-Optimizer; every step is numbered as in docs/numerics.md. */
#include <float.h>
#include <math.h>

#include "quant/blocks.h"

enum { BLOCK = 16 };

static const float e2m1_max = 6.0f;
static const float e4m3_max = 448.0f;
static const float e4m3_min = 0x1p-9f;

float gb_amax(const float *values, size_t count)
{
    float largest = 0.0f;
    for (size_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    return largest;
}

/* The sign comes from quotient < 0, so a zero of either sign becomes code 0. */
static gb_e2m1 encode(float quotient)
{
    return quotient == 0.0f ? (gb_e2m1){0} : gb_e2m1_encode(quotient);
}

static void quantise_block(const float *values, float global, gb_e2m1x2 *codes, gb_e4m3 *scale)
{
    float ratio = gb_amax(values, BLOCK) / (e2m1_max * global); /* step 2 */
    *scale = gb_e4m3_encode(ratio == 0.0f ? 1.0f : fmaxf(ratio, e4m3_min));
    float step = gb_e4m3_decode(*scale) * global; /* step 3 */
    for (int i = 0; i < BLOCK; i += 2)
        codes[i / 2] = gb_e2m1_pack(encode(values[i] / step), encode(values[i + 1] / step));
}

enum gb_status gb_nvfp4_quantise(const float *values, uint32_t rows, uint32_t columns, gb_e2m1x2 *codes,
                                 gb_e4m3 *scales, float *global_scale, struct gb_error *error)
{
    size_t count = (size_t)rows * columns;
    if (columns % BLOCK)
        return gb_fail(error, GB_EINVAL, "%u columns are no multiple of the NVFP4 block of %d", columns, BLOCK);
    float largest = gb_amax(values, count);
    float global = largest == 0.0f ? 1.0f : largest / (e2m1_max * e4m3_max); /* step 1 */
    if (global < FLT_MIN)
        return gb_fail(error, GB_EINVAL, "the largest absolute value %g is too small for NVFP4: %g is subnormal",
                       (double)largest, (double)global);
    for (size_t i = 0; i < count; i += BLOCK)
        quantise_block(values + i, global, codes + i / 2, scales + i / BLOCK);
    *global_scale = global;
    return GB_OK;
}
