/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in how the inputs are read: the reference on a copy of the inputs with the mistake injected in it. */
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/faults/faults.h"
#include "tests/support/fma32.h"

/* One projection's buffers, to be changed freely. */
struct projection {
    uint8_t *codes;       /* [code_bytes] */
    uint8_t *scales;      /* [scale_bytes] */
    float *global_scales; /* [experts, halves] */
    size_t code_bytes, scale_bytes;
    size_t row_code_bytes, row_scale_bytes, rows; /* rows: of all experts */
};

struct copy {
    const struct gb_shape *shape;
    size_t pairs;           /* tokens * top_k */
    int32_t *ids;           /* [tokens, top_k] */
    float *routing_weights; /* [tokens, top_k] */
    struct projection gate_up;
    struct projection down;
};

typedef void plant_function(struct copy *copy);

static void *duplicate(const void *bytes, size_t count)
{
    void *copy = malloc(count);
    if (copy)
        memcpy(copy, bytes, count);
    return copy;
}

static enum gb_status projection_new(const struct gb_weights *weights, struct projection *copy, struct gb_error *error)
{
    size_t global_bytes;
    enum gb_status status = gb_weights_bytes(weights, &copy->code_bytes, &copy->scale_bytes, &global_bytes, error);
    if (status != GB_OK)
        return status;
    copy->codes = duplicate(weights->codes, copy->code_bytes);
    copy->scales = duplicate(weights->scales, copy->scale_bytes);
    copy->global_scales = duplicate(weights->global_scales, global_bytes);
    copy->row_code_bytes = gb_row_code_bytes(weights->format, weights->columns);
    copy->row_scale_bytes = gb_row_scale_bytes(weights->format, weights->columns);
    copy->rows = (size_t)weights->experts * weights->rows;
    if (!copy->codes || !copy->scales || !copy->global_scales)
        return gb_fail(error, GB_ENOMEM, "no memory for a copy of the weights");
    return GB_OK;
}

static void projection_free(struct projection *copy)
{
    free(copy->codes);
    free(copy->scales);
    free(copy->global_scales);
}

static struct gb_weights projection_weights(const struct projection *copy, struct gb_weights weights)
{
    weights.codes = copy->codes;
    weights.scales = copy->scales;
    weights.global_scales = copy->global_scales;
    return weights;
}

static enum gb_status run_injected(const struct gb_arguments *arguments, plant_function *plant, struct gb_error *error)
{
    size_t pairs = (size_t)arguments->shape.tokens * arguments->shape.top_k;
    struct copy copy = {
        .shape = &arguments->shape,
        .pairs = pairs,
        .ids = duplicate(arguments->ids, pairs * sizeof(int32_t)),
        .routing_weights = duplicate(arguments->routing_weights, pairs * sizeof(float)),
    };
    enum gb_status status =
        copy.ids && copy.routing_weights ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for a copy of the routing");
    if (status == GB_OK)
        status = projection_new(&arguments->gate_up, &copy.gate_up, error);
    if (status == GB_OK)
        status = projection_new(&arguments->down, &copy.down, error);
    if (status == GB_OK) {
        struct gb_arguments injected = *arguments;
        plant(&copy);
        injected.ids = copy.ids;
        injected.routing_weights = copy.routing_weights;
        injected.gate_up = projection_weights(&copy.gate_up, arguments->gate_up);
        injected.down = projection_weights(&copy.down, arguments->down);
        status = fma32_layer(&injected, error);
    }
    projection_free(&copy.gate_up);
    projection_free(&copy.down);
    free(copy.ids);
    free(copy.routing_weights);
    return status;
}

static void swap_nibbles(struct projection *projection)
{
    for (size_t i = 0; i < projection->code_bytes; i++)
        projection->codes[i] = (uint8_t)(projection->codes[i] << 4 | projection->codes[i] >> 4);
}

static void plant_nibble_order(struct copy *copy)
{
    swap_nibbles(&copy->gate_up);
    swap_nibbles(&copy->down);
}

static void shift_scales(struct projection *projection)
{
    memmove(projection->scales, projection->scales + 1, projection->scale_bytes - 1);
}

static void plant_scale_index(struct copy *copy)
{
    shift_scales(&copy->gate_up);
    shift_scales(&copy->down);
}

/* Each row's last block keeps its own scale. */
static void shift_within_rows(struct projection *projection)
{
    for (size_t row = 0; row < projection->rows; row++) {
        uint8_t *scales = projection->scales + row * projection->row_scale_bytes;
        memmove(scales, scales + 1, projection->row_scale_bytes - 1);
    }
}

static void plant_scale_clamped(struct copy *copy)
{
    shift_within_rows(&copy->gate_up);
    shift_within_rows(&copy->down);
}

/* Exchanges the first and the second half of each expert's bytes. */
static void swap_halves(void *bytes, size_t count, uint32_t experts)
{
    size_t half = count / experts / 2;
    for (uint32_t e = 0; e < experts; e++) {
        uint8_t *first = (uint8_t *)bytes + 2 * e * half, *second = first + half;
        for (size_t i = 0; i < half; i++) {
            uint8_t byte = first[i];
            first[i] = second[i];
            second[i] = byte;
        }
    }
}

static void plant_gate_up_swapped(struct copy *copy)
{
    uint32_t experts = copy->shape->experts;
    swap_halves(copy->gate_up.codes, copy->gate_up.code_bytes, experts);
    swap_halves(copy->gate_up.scales, copy->gate_up.scale_bytes, experts);
    swap_halves(copy->gate_up.global_scales, 2 * experts * sizeof(float), experts);
}

/* The expert of the first slot in use is left out wherever it is chosen. */
static void plant_expert_dropped(struct copy *copy)
{
    int32_t dropped = -1;
    for (size_t i = 0; i < copy->pairs; i++) {
        if (dropped < 0)
            dropped = copy->ids[i];
        if (copy->ids[i] == dropped)
            copy->ids[i] = -1;
    }
}

static void plant_routing_weight_missing(struct copy *copy)
{
    for (size_t i = 0; i < copy->pairs; i++)
        copy->routing_weights[i] = 1;
}

static void plant_routing_weight_bf16(struct copy *copy)
{
    for (size_t i = 0; i < copy->pairs; i++)
        copy->routing_weights[i] = gb_bf16_decode(gb_bf16_encode(copy->routing_weights[i]));
}

static void plant_routing_weight_truncated(struct copy *copy)
{
    for (size_t i = 0; i < copy->pairs; i++) {
        uint32_t bits;
        memcpy(&bits, &copy->routing_weights[i], sizeof bits);
        bits &= 0xFFFF0000u;
        memcpy(&copy->routing_weights[i], &bits, sizeof bits);
    }
}

static void zero_last_scale(struct projection *projection)
{
    for (size_t row = 1; row <= projection->rows; row++)
        projection->scales[row * projection->row_scale_bytes - 1] = 0;
}

static void plant_last_block_dropped(struct copy *copy)
{
    zero_last_scale(&copy->gate_up);
    zero_last_scale(&copy->down);
}

static void plant_last_block_of_x_dropped(struct copy *copy)
{
    zero_last_scale(&copy->gate_up);
}

enum gb_status run_nibble_order(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_nibble_order, error);
}

enum gb_status run_scale_index(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_scale_index, error);
}

enum gb_status run_scale_clamped(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_scale_clamped, error);
}

enum gb_status run_gate_up_swapped(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_gate_up_swapped, error);
}

enum gb_status run_expert_dropped(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_expert_dropped, error);
}

enum gb_status run_routing_weight_missing(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_routing_weight_missing, error);
}

enum gb_status run_routing_weight_bf16(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_routing_weight_bf16, error);
}

enum gb_status run_routing_weight_truncated(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_routing_weight_truncated, error);
}

enum gb_status run_last_block_dropped(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_last_block_dropped, error);
}

enum gb_status run_last_block_of_x_dropped(const struct gb_arguments *arguments, struct gb_error *error)
{
    return run_injected(arguments, plant_last_block_of_x_dropped, error);
}
