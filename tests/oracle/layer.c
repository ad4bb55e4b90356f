/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of docs/numerics.md, one element at a time. */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static size_t row_start(const struct gb_weights *weights, uint32_t expert, uint32_t row)
{
    return ((size_t)expert * weights->rows + row) * weights->columns;
}

/* Element `index` of the codes, without scales. */
static float weight_at(const struct gb_weights *weights, size_t index)
{
    const uint8_t *bytes = weights->codes;

    switch (weights->format) {
    case GB_NVFP4:
    case GB_MXFP4:
        return (float)oracle_decode(ORACLE_E2M1, index % 2 == 0 ? bytes[index / 2] % 16 : bytes[index / 2] / 16);
    case GB_MXFP8:
    case GB_FP8_BLOCK:
        return (float)oracle_decode(ORACLE_E4M3, bytes[index]);
    default:
        return (float)oracle_decode(ORACLE_BF16, ((const gb_bf16 *)weights->codes)[index].bits);
    }
}

/* The scale of the 128 x 128 block: blocks start anew in each part, and the last ones may be smaller. */
static float tile_scale(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t column)
{
    const float *scales = weights->scales;
    uint32_t part_rows = weights->rows / weights->halves;
    uint32_t down = part_rows / 128 + (part_rows % 128 != 0),
             across = weights->columns / 128 + (weights->columns % 128 != 0);
    uint32_t matrix = expert * weights->halves + row / part_rows;

    return scales[((size_t)matrix * down + row % part_rows / 128) * across + column / 128];
}

float oracle_weight_code(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t column)
{
    return weight_at(weights, row_start(weights, expert, row) + column);
}

float oracle_weight_scale(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t column)
{
    const uint8_t *scales = weights->scales;
    size_t index = row_start(weights, expert, row) + column;

    switch (weights->format) {
    case GB_NVFP4:
        return (float)oracle_decode(ORACLE_E4M3, scales[index / 16]);
    case GB_MXFP4:
    case GB_MXFP8:
        return (float)oracle_e8m0_decode(scales[index / 32]);
    case GB_FP8_BLOCK:
        return tile_scale(weights, expert, row, column);
    default:
        return 1;
    }
}

float oracle_global_scale(const struct gb_weights *weights, uint32_t expert, uint32_t row)
{
    if (weights->format != GB_NVFP4)
        return 1;
    uint32_t part = row / (weights->rows / weights->halves);
    return weights->global_scales[expert * weights->halves + part];
}

/* Halves the number of lanes: after step m, lanes l and l xor m hold the same sum. */
static float butterfly(const float lanes[32])
{
    float sums[32];

    memcpy(sums, lanes, sizeof sums);
    for (unsigned m = 16; m >= 1; m /= 2)
        for (unsigned lane = 0; lane < m; lane++)
            sums[lane] = oracle_add(sums[lane], sums[lane + m]);
    return sums[0];
}

float oracle_dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x)
{
    return oracle_dot_scaled(weights, expert, row, x, NULL);
}

float oracle_dot_scaled(const struct gb_weights *weights, uint32_t expert, uint32_t row, const gb_bf16 *x,
                        const float *x_scales)
{
    /* chunk: elements in 16 bytes. run: what of a chunk shares a scale. */
    static const uint32_t chunks[] = {
        [GB_BF16] = 8, [GB_NVFP4] = 32, [GB_MXFP4] = 32, [GB_MXFP8] = 16, [GB_FP8_BLOCK] = 16};
    uint32_t chunk = chunks[weights->format], run = weights->format == GB_NVFP4 ? 16 : chunk;
    size_t start = row_start(weights, expert, row);
    float lanes[32] = {0};
    float partial = 0;

    for (uint32_t i = 0; i < weights->columns; i++) {
        partial = oracle_fma(weight_at(weights, start + i), (float)oracle_decode(ORACLE_BF16, x[i].bits), partial);
        bool run_ends = (i + 1) % run == 0 || i + 1 == weights->columns;
        if (run_ends) {
            float *lane = &lanes[i / chunk % 32];
            float scale = oracle_weight_scale(weights, expert, row, i);
            if (x_scales)
                scale = oracle_multiply(scale, x_scales[i / 128]);
            *lane = oracle_fma(scale, partial, *lane);
            partial = 0;
        }
    }
    return oracle_multiply(butterfly(lanes), oracle_global_scale(weights, expert, row));
}

/* gpt-oss: g * sigmoid(1.702 g) * (u + 1), every step rounded; comparisons with NaN are false. */
static float swiglu(float gate, float up)
{
    float g = gate > 7 ? 7 : gate, u = up > 7 ? 7 : up < -7 ? -7 : up;
    float sigmoid = oracle_sigmoid(oracle_multiply(1.702f, g));
    return oracle_multiply(oracle_multiply(g, sigmoid), oracle_add(u, 1));
}

static const float *scales_of_row(const float *scales, size_t row, uint32_t columns)
{
    return scales ? scales + row * (columns / 128) : NULL;
}

/* One element of what the expert of a slot gets. */
static gb_bf16 expert_input(const struct gb_arguments *arguments, uint32_t token, size_t slot, uint32_t column)
{
    gb_bf16 x = arguments->x[(size_t)token * arguments->shape.hidden + column];
    if (arguments->apply_router_weight_on_input) {
        float value = (float)oracle_decode(ORACLE_BF16, x.bits);
        x.bits = (uint16_t)oracle_encode(ORACLE_BF16, oracle_multiply(arguments->routing_weights[slot], value));
    }
    return x;
}

/* A dot product in `order`; x_scales as oracle_dot_scaled, fma32/1 only. */
static float dot_in(const char *order, const struct gb_weights *weights, uint32_t expert, uint32_t row,
                    const gb_bf16 *x, const float *x_scales)
{
    if (strcmp(order, GB_ORDER_FMA32) == 0)
        return oracle_dot_scaled(weights, expert, row, x, x_scales);
    if (strcmp(order, GB_ORDER_MMA16_SM90) == 0 && !x_scales)
        return oracle_dot_mma16(weights, expert, row, x);
    abort();
}

static void gate_up(const struct gb_arguments *arguments, const char *order, const float *x_scales,
                    gb_bf16 *intermediate)
{
    const struct gb_shape *shape = &arguments->shape;

    for (uint32_t t = 0; t < shape->tokens; t++)
        for (uint32_t j = 0; j < shape->top_k; j++)
            for (uint32_t i = 0; i < shape->intermediate; i++) {
                size_t slot = (size_t)t * shape->top_k + j;
                int32_t expert = arguments->ids[slot];
                gb_bf16 x[4096];
                uint16_t code = 0;
                for (uint32_t c = 0; c < shape->hidden; c++)
                    x[c] = expert_input(arguments, t, slot, c);
                if (expert >= 0) {
                    const float *scales = scales_of_row(x_scales, t, shape->hidden);
                    float gate = dot_in(order, &arguments->gate_up, expert, i, x, scales);
                    float up = dot_in(order, &arguments->gate_up, expert, shape->intermediate + i, x, scales);
                    const float *bias = arguments->gate_up_bias;
                    if (bias) {
                        bias += (size_t)expert * 2 * shape->intermediate + i;
                        gate = oracle_add(gate, bias[0]);
                        up = oracle_add(up, bias[shape->intermediate]);
                    }
                    float h = arguments->activation == GB_SWIGLU_OAI ? swiglu(gate, up)
                                                                     : oracle_multiply(oracle_silu(gate), up);
                    code = (uint16_t)oracle_encode(ORACLE_BF16, h);
                }
                intermediate[slot * shape->intermediate + i].bits = code;
            }
}

void oracle_gate_up(const struct gb_arguments *arguments, const char *order, gb_bf16 *intermediate)
{
    gate_up(arguments, order, NULL, intermediate);
}

void oracle_gate_up_scaled(const struct gb_arguments *arguments, const float *x_scales, gb_bf16 *intermediate)
{
    gate_up(arguments, GB_ORDER_FMA32, x_scales, intermediate);
}

static void down(const struct gb_arguments *arguments, const char *order, const gb_bf16 *intermediate,
                 const float *x_scales, float *output)
{
    const struct gb_shape *shape = &arguments->shape;

    for (uint32_t t = 0; t < shape->tokens; t++)
        for (uint32_t h = 0; h < shape->hidden; h++) {
            float y = 0;
            for (uint32_t j = 0; j < shape->top_k; j++) {
                size_t slot = (size_t)t * shape->top_k + j;
                int32_t expert = arguments->ids[slot];
                if (expert < 0)
                    continue;
                float dot = dot_in(order, &arguments->down, expert, h, intermediate + slot * shape->intermediate,
                                   scales_of_row(x_scales, slot, shape->intermediate));
                if (arguments->down_bias)
                    dot = oracle_add(dot, arguments->down_bias[(size_t)expert * shape->hidden + h]);
                y = oracle_fma(arguments->apply_router_weight_on_input ? 1 : arguments->routing_weights[slot], dot, y);
            }
            output[(size_t)t * shape->hidden + h] = y;
        }
}

void oracle_down(const struct gb_arguments *arguments, const char *order, const gb_bf16 *intermediate, float *output)
{
    down(arguments, order, intermediate, NULL, output);
}

void oracle_down_scaled(const struct gb_arguments *arguments, const gb_bf16 *intermediate, const float *x_scales,
                        float *output)
{
    down(arguments, GB_ORDER_FMA32, intermediate, x_scales, output);
}

static bool ranks_before(const float *logits, uint32_t a, uint32_t b)
{
    if (isnan(logits[a]) || isnan(logits[b]))
        return isnan(logits[a]) == isnan(logits[b]) ? a < b : !isnan(logits[a]);
    return logits[a] == logits[b] ? a < b : logits[a] > logits[b];
}

/* An expert's slot is the number of experts that rank before it. */
static void choose(const struct gb_shape *shape, const float *logits, int32_t *ids)
{
    for (uint32_t e = 0; e < shape->experts; e++) {
        uint32_t slot = 0;
        for (uint32_t other = 0; other < shape->experts; other++)
            slot += ranks_before(logits, other, e);
        if (slot < shape->top_k)
            ids[slot] = (int32_t)e;
    }
}

void oracle_route(const struct gb_shape *shape, const gb_bf16 *x, const struct gb_weights *router, bool renormalise,
                  int32_t *ids, float *routing_weights)
{
    float *logits = malloc(shape->experts * sizeof(float)); /* [experts] */
    if (!logits)
        abort();

    for (uint32_t t = 0; t < shape->tokens; t++) {
        int32_t *chosen = ids + (size_t)t * shape->top_k;
        float sum = 0;

        for (uint32_t e = 0; e < shape->experts; e++)
            logits[e] = oracle_dot(router, 0, e, x + (size_t)t * shape->hidden);
        choose(shape, logits, chosen);
        float largest = logits[chosen[0]];
        uint32_t terms = renormalise ? shape->top_k : shape->experts;
        for (uint32_t n = 0; n < terms; n++) {
            float logit = logits[renormalise ? (uint32_t)chosen[n] : n];
            sum = oracle_add(sum, oracle_exp(oracle_add(logit, -largest)));
        }
        for (uint32_t j = 0; j < shape->top_k; j++) {
            float q = oracle_exp(oracle_add(logits[chosen[j]], -largest));
            routing_weights[(size_t)t * shape->top_k + j] = oracle_divide(q, sum);
        }
    }
    free(logits);
}
