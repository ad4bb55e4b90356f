/* SPDX-License-Identifier: Apache-2.0 */
/* What all orders share: rows of weights, activations in the layout of an order's path, and how rows are shared out. */
#include <omp.h>
#include <stdlib.h>

#include "reference/operators.h"

const char *gb_order_name(const struct gb_order *order)
{
    return order->name;
}

enum gb_status gb_row_new(const struct gb_weights *weights, struct gb_row *row, struct gb_error *error)
{
    uint32_t block = gb_format_block(weights->format);
    row->columns = weights->columns;
    row->block = block > 1 ? block : 0;
    row->codes = malloc(sizeof(float) * weights->columns);
    row->scales = malloc(sizeof(float) * weights->columns);
    if (!row->codes || !row->scales) {
        gb_row_free(row);
        return gb_fail(error, GB_ENOMEM, "no memory for a row of %u weights", weights->columns);
    }
    return GB_OK;
}

void gb_row_free(struct gb_row *row)
{
    free(row->codes);
    free(row->scales);
    row->codes = NULL;
    row->scales = NULL;
}

void gb_row_decode(const struct gb_weights *weights, uint32_t expert, uint32_t index, struct gb_row *row)
{
    gb_weights_codes(weights, expert, index, row->codes, row->scales);
    row->global = gb_weights_global(weights, expert, index);
}

enum gb_status gb_activations_new(const struct gb_order *order, const struct gb_operand *operand, size_t count,
                                  const struct gb_groups *groups, uint32_t share, struct gb_activations *activations,
                                  struct gb_error *error)
{
    const struct gb_weights *weights = &operand->weights;
    enum gb_cpu_path path = order->path(weights->format);
    size_t stride = order->bytes(path, weights->format, weights->columns), bytes;
    size_t vectors = groups ? groups->start[groups->active] : count;
    bool fits = gb_bytes(count, stride, 1, 1, &bytes);
    activations->path = path;
    activations->values = fits ? aligned_alloc(64, bytes) : NULL;
    activations->vector = malloc(sizeof(void *) * (vectors ? vectors : 1));
    activations->scales = operand->x_scales ? malloc(sizeof(float *) * (vectors ? vectors : 1)) : NULL;
    if (!activations->values || !activations->vector || (operand->x_scales && !activations->scales)) {
        gb_activations_free(activations);
        return gb_fail(error, GB_ENOMEM, "no memory for %zu x %u activations", count, weights->columns);
    }
#pragma omp parallel for schedule(static) if (count > 1)
    for (size_t n = 0; n < count; n++)
        order->arrange(path, weights->format, operand->x + n * weights->columns, weights->columns,
                       (char *)activations->values + n * stride);
    for (size_t n = 0; n < vectors; n++) {
        size_t from = groups ? groups->pair[n] / share : n;
        activations->vector[n] = (char *)activations->values + from * stride;
        if (activations->scales)
            activations->scales[n] = operand->x_scales + from * (weights->columns / gb_format_block(weights->format));
    }
    return GB_OK;
}

void gb_activations_free(struct gb_activations *activations)
{
    free(activations->values);
    free(activations->vector);
    free(activations->scales);
    *activations = (struct gb_activations){0};
}

uint32_t gb_rows_at_once(uint32_t rows, uint32_t experts, size_t dots)
{
    enum { FEWEST = 16, CACHE_BYTES = 1 << 17, SHARES = 4 /* of a thread, for balance */ };
    size_t fit = CACHE_BYTES / sizeof(float) / (dots + 1);
    size_t share = (size_t)rows * experts / (SHARES * (size_t)omp_get_max_threads());
    size_t at_once = fit < share ? fit : share;
    at_once = at_once > FEWEST ? at_once : FEWEST;
    return at_once < rows ? (uint32_t)at_once : rows;
}

float gb_dot(const struct gb_order *order, const struct gb_weights *weights, uint32_t expert, uint32_t row,
             const gb_bf16 *x)
{
    struct gb_operand operand = {.x = x, .weights = *weights};
    struct gb_activations activations;
    struct gb_row decoded;
    float result = NAN;
    if (gb_activations_new(order, &operand, 1, NULL, 1, &activations, NULL) != GB_OK)
        return result;
    if (gb_row_new(weights, &decoded, NULL) == GB_OK) {
        struct gb_product product = {weights, expert, row, 1, 1, activations.path, activations.vector, NULL, NULL};
        order->dots(&product, &decoded, &result);
        gb_row_free(&decoded);
    }
    gb_activations_free(&activations);
    return result;
}
