/* SPDX-License-Identifier: Apache-2.0 */
/* A whole Mixture-of-Experts layer on MXFP4 weights, as a kernel that gaugeblock judges: README.md has the commands. */
#include <math.h>
#include <stdlib.h>

#include "gaugeblock.h"

static float from_bf16(gb_bf16 value)
{
    union {
        uint32_t bits;
        float number;
    } u = {(uint32_t)value.bits << 16};
    return u.number;
}

/* Rounded to nearest, ties to even. */
static gb_bf16 to_bf16(float value)
{
    union {
        float number;
        uint32_t bits;
    } u = {value};
    return (gb_bf16){(uint16_t)((u.bits + 0x7FFF + (u.bits >> 16 & 1)) >> 16)};
}

/* A row of weights times x. A weight is an E2M1 code, two of which share a byte, times the E8M0 scale of its block of
 * 32 columns. */
static float dot(const struct gb_weights *w, uint32_t expert, uint32_t row, const gb_bf16 *x)
{
    static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    size_t r = (size_t)expert * w->rows + row;
    const uint8_t *codes = (const uint8_t *)w->codes + r * (w->columns / 2);
    const uint8_t *scales = (const uint8_t *)w->scales + r * (w->columns / 32);
    float sum = 0;
    for (uint32_t block = 0; block < w->columns / 32; block++, codes += 16, x += 32) {
        float part = 0;
        for (uint32_t i = 0; i < 16; i++) {
            uint8_t low = codes[i] & 15, high = codes[i] >> 4;
            part += e2m1[low] * from_bf16(x[2 * i]) + e2m1[high] * from_bf16(x[2 * i + 1]);
        }
        sum += part * (scales[block] == 255 ? NAN : ldexpf(1, scales[block] - 127));
    }
    return sum;
}

/* y += weight * down(silu(gate(x)) * up(x)), for one token and one of its experts. */
static void expert(const struct gb_arguments *a, uint32_t e, const gb_bf16 *x, float routing_weight, gb_bf16 *h,
                   float *y)
{
    for (uint32_t i = 0; i < a->shape.intermediate; i++) {
        float gate = dot(&a->gate_up, e, i, x);
        float up = dot(&a->gate_up, e, a->shape.intermediate + i, x);
        h[i] = to_bf16(gate / (1 + expf(-gate)) * up);
    }
    for (uint32_t i = 0; i < a->shape.hidden; i++)
        y[i] += routing_weight * dot(&a->down, e, i, h);
}

static enum gb_status run(const struct gb_arguments *a, struct gb_error *error)
{
    gb_bf16 *h = malloc(a->shape.intermediate * sizeof *h);
    float *output = a->output;
    (void)error;
    if (!h)
        return GB_ENOMEM;
    for (size_t t = 0; t < a->shape.tokens; t++) {
        float *y = output + t * a->shape.hidden;
        for (uint32_t i = 0; i < a->shape.hidden; i++)
            y[i] = 0;
        for (size_t slot = t * a->shape.top_k; slot < (t + 1) * a->shape.top_k; slot++)
            if (a->ids[slot] >= 0)
                expert(a, (uint32_t)a->ids[slot], a->x + t * a->shape.hidden, a->routing_weights[slot], h, y);
    }
    free(h);
    return GB_OK;
}

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    (void)problem, (void)error;
    return GB_OK;
}

/* What the harness looks for: what the kernels are, and what they claim. This one claims no order of its sums. */
const struct gb_kernel_table *gb_kernels(void)
{
    static const struct gb_kernel kernel = {.name = "first/layer",
                                            .operation = GB_LAYER,
                                            .weights = GB_MXFP4,
                                            .activations = GB_BF16,
                                            .output = GB_FP32,
                                            .accumulator_bits = 24,
                                            .supports = supports,
                                            .run = run};
    static const struct gb_kernel_table table = {GB_ABI_VERSION, sizeof kernel, 1, &kernel};
    return &table;
}
