/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "harness/generate.h"
#include "quant/quant.h"

/* Trained activations have a few channels far larger than the rest: every 128th from 37 on, by a factor of 8. */
enum { OUTLIER_PERIOD = 128, OUTLIER_FIRST = 37 };
static const float outlier_factor = 8.0f;

/* The power of two next to 1 / sqrt(columns), so that a product of that length keeps the scale of its input. */
static float weight_scale(uint32_t columns)
{
    return ldexpf(1.0f, -(int)lround(0.5 * log2(columns)));
}

/* count values of bf16, rows of `width` with outlier channels if asked for. */
static enum gb_status bf16_values(const struct gb_fixture *f, enum gb_stream stream, uint32_t layer, uint64_t count,
                                  float scale, uint32_t outliers_in_rows_of, gb_bf16 *out, struct gb_error *error)
{
    float *values = malloc(sizeof(float) * count);
    if (!values)
        return gb_fail(error, GB_ENOMEM, "no memory for %llu values", (unsigned long long)count);
    gb_generate_gaussian(f->seed, stream, layer, 0, 0, count, scale, values);
    for (uint64_t i = 0; i < count; i++) {
        bool outlier = outliers_in_rows_of && i % outliers_in_rows_of % OUTLIER_PERIOD == OUTLIER_FIRST;
        out[i] = gb_bf16_encode(outlier ? values[i] * outlier_factor : values[i]);
    }
    free(values);
    return GB_OK;
}

enum gb_status generate_x(struct gb_fixture *f, struct gb_error *error)
{
    uint64_t count = (uint64_t)f->shape.tokens * f->shape.hidden;
    enum gb_status status = GB_OK;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++)
        status = bf16_values(f, GB_STREAM_X, l, count, 1.0f, f->shape.hidden, f->layer[l].x, error);
    return status;
}

enum gb_status generate_residual(struct gb_fixture *f, struct gb_error *error)
{
    uint64_t count = (uint64_t)f->shape.tokens * f->shape.hidden;
    float *values = malloc(sizeof(float) * count); /* [tokens, hidden] */
    if (!values)
        return gb_fail(error, GB_ENOMEM, "no memory for %llu values", (unsigned long long)count);
    gb_generate_gaussian(f->seed, GB_STREAM_RESIDUAL, 0, 0, 0, count, 1.0f, values);
    for (uint64_t i = 0; i < count; i++)
        f->stack.residual[i] = (double)values[i];
    free(values);
    return GB_OK;
}

enum gb_status generate_inputs(struct gb_fixture *f, struct gb_error *error)
{
    enum gb_status status = generate_x(f, error);
    if (status == GB_OK)
        status = generate_residual(f, error);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        struct gb_layer *layer = &f->layer[l];
        layer->index = l;
        gb_generate_gaussian(f->seed, GB_STREAM_NORM, l, 0, 0, f->shape.hidden, 0.125f, layer->norm);
        for (uint32_t i = 0; i < f->shape.hidden; i++)
            layer->norm[i] += 1.0f;
        /* Twice the neutral scale: logits of a standard deviation near 2, as trained routers have. */
        status = bf16_values(f, GB_STREAM_ROUTER, l, (uint64_t)f->shape.experts * f->shape.hidden,
                             2.0f * weight_scale(f->shape.hidden), 0, (gb_bf16 *)layer->router.codes, error);
    }
    return status;
}

static enum gb_status matrix(void *context, uint32_t layer, uint32_t expert, enum gb_projection projection,
                             float *values, struct gb_error *error)
{
    static const enum gb_stream streams[] = {
        [GB_GATE_PROJ] = GB_STREAM_GATE, [GB_UP_PROJ] = GB_STREAM_UP, [GB_DOWN_PROJ] = GB_STREAM_DOWN};
    const struct gb_fixture *f = context;
    uint32_t rows = projection == GB_DOWN_PROJ ? f->shape.hidden : f->shape.intermediate;
    uint32_t columns = projection == GB_DOWN_PROJ ? f->shape.intermediate : f->shape.hidden;
    (void)error;
#pragma omp parallel for schedule(static)
    for (uint32_t r = 0; r < rows; r++)
        gb_generate_gaussian(f->seed, streams[projection], layer, expert, (uint64_t)r * columns, columns,
                             weight_scale(columns), values + (size_t)r * columns);
    return GB_OK;
}

struct weight_source generate_weights(struct gb_fixture *fixture)
{
    return (struct weight_source){fixture, matrix};
}
