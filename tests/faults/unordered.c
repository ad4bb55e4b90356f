/* SPDX-License-Identifier: Apache-2.0 */
/* A correct layer that claims no order: weights decoded by table, sums in double from the last column to the first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "tests/faults/faults.h"

static const double e2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

static double e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    return exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
}

static double bf16(gb_bf16 code)
{
    uint32_t bits = (uint32_t)code.bits << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static gb_bf16 to_bf16(double value)
{
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    return (gb_bf16){(uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

/* Row `row` of all experts' rows, times x. */
static double dot(const struct gb_weights *weights, size_t row, const gb_bf16 *x)
{
    const uint8_t *codes = (const uint8_t *)weights->codes + row * weights->columns / 2;
    const uint8_t *scales = (const uint8_t *)weights->scales + row * weights->columns / 16;
    double sum = 0;
    for (uint32_t i = weights->columns; i-- > 0;)
        sum += e2m1[i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15] * e4m3(scales[i / 16]) * bf16(x[i]);
    return sum * (double)weights->global_scales[row / (weights->rows / weights->halves)];
}

/* One token and slot: h [intermediate], then its share of sums [hidden]. */
static void slot(const struct gb_arguments *a, size_t expert, const gb_bf16 *x, double routing_weight, gb_bf16 *h,
                 double *sums)
{
    uint32_t hidden = a->shape.hidden, intermediate = a->shape.intermediate;
    for (uint32_t i = 0; i < intermediate; i++) {
        double gate = dot(&a->gate_up, expert * 2 * intermediate + i, x);
        double up = dot(&a->gate_up, (expert * 2 + 1) * intermediate + i, x);
        h[i] = to_bf16(gate / (1 + exp(-gate)) * up);
    }
    for (uint32_t r = 0; r < hidden; r++)
        sums[r] += routing_weight * dot(&a->down, expert * hidden + r, h);
}

enum gb_status run_unordered(const struct gb_arguments *arguments, struct gb_error *error)
{
    const struct gb_shape *shape = &arguments->shape;
    double *sums = malloc(shape->hidden * sizeof(double)); /* [hidden] */
    if (!sums)
        return gb_fail(error, GB_ENOMEM, "no memory for %u sums", shape->hidden);
    for (uint32_t t = 0; t < shape->tokens; t++) {
        for (uint32_t r = 0; r < shape->hidden; r++)
            sums[r] = 0;
        for (uint32_t j = 0; j < shape->top_k; j++) {
            size_t pair = (size_t)t * shape->top_k + j;
            gb_bf16 *h = arguments->intermediate + pair * shape->intermediate;
            if (arguments->ids[pair] < 0)
                memset(h, 0, shape->intermediate * sizeof *h);
            else
                slot(arguments, (size_t)arguments->ids[pair], arguments->x + (size_t)t * shape->hidden,
                     (double)arguments->routing_weights[pair], h, sums);
        }
        for (uint32_t r = 0; r < shape->hidden; r++)
            ((float *)arguments->output)[(size_t)t * shape->hidden + r] = (float)sums[r];
    }
    free(sums);
    return GB_OK;
}
