/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/layout_probe.h"
#include "quant/quant.h"
#include "reference/reference.h"

/* Where gate_up's row r lies among the `rows` as they were read. */
typedef uint32_t row_order(uint32_t r, uint32_t rows);

static uint32_t same(uint32_t r, uint32_t rows)
{
    (void)rows;
    return r;
}

static uint32_t up_first(uint32_t r, uint32_t rows)
{
    return (r + rows / 2) % rows;
}

/* Stored in halves, but read in turns. */
static uint32_t halves(uint32_t r, uint32_t rows)
{
    return r % 2 * (rows / 2) + r / 2;
}

/* Another way in which the same bytes could have been meant. */
struct reading {
    const char *name;
    bool nibbles; /* the odd element in the low nibble */
    row_order *rows;
    enum gb_layout scales; /* where block scales lie */
};

static const struct reading readings[] = {
    {"even and odd elements swapped", true, same, GB_LAYOUT_LINEAR},
    {"gate and up swapped", false, up_first, GB_LAYOUT_LINEAR},
    {"even and odd elements and gate and up swapped", true, up_first, GB_LAYOUT_LINEAR},
    {"gate and up in halves", false, halves, GB_LAYOUT_LINEAR},
    {"gate and up in halves and even and odd elements swapped", true, halves, GB_LAYOUT_LINEAR},
    {"scales transposed", false, same, GB_LAYOUT_TRANSPOSED},
    {"scales swizzled-128x4", false, same, GB_LAYOUT_SWIZZLED_128X4},
    {"scales swizzled-8x4", false, same, GB_LAYOUT_SWIZZLED_8X4},
    {"scales packed", false, same, GB_LAYOUT_PACKED},
};

/* The layer's weights as that reading has them. */
struct reread {
    struct gb_truth_source as_read;
    const struct gb_shape *shape;
    const struct reading *reading;
    double *rows; /* [2 * intermediate, hidden], as they were read */
    float *bias;  /* [experts, 2 * intermediate], as the reading has it */
};

static void swap_pairs(double *matrix, size_t count)
{
    for (size_t i = 0; i + 1 < count; i += 2) {
        double even = matrix[i];
        matrix[i] = matrix[i + 1];
        matrix[i + 1] = even;
    }
}

static enum gb_status gate_up(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    const struct reread *r = context;
    uint32_t rows = 2 * r->shape->intermediate;
    size_t hidden = r->shape->hidden;
    enum gb_status status = r->as_read.gate_up(r->as_read.context, expert, r->rows, error);
    for (uint32_t row = 0; status == GB_OK && row < rows; row++)
        memcpy(matrix + row * hidden, r->rows + r->reading->rows(row, rows) * hidden, sizeof(double) * hidden);
    if (status == GB_OK && r->reading->nibbles)
        swap_pairs(matrix, rows * hidden);
    return status;
}

static enum gb_status down(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    const struct reread *r = context;
    enum gb_status status = r->as_read.down(r->as_read.context, expert, matrix, error);
    if (status == GB_OK && r->reading->nibbles)
        swap_pairs(matrix, (size_t)r->shape->hidden * r->shape->intermediate);
    return status;
}

static const float *reread_bias(const struct reread *r, const float *bias)
{
    uint32_t rows = 2 * r->shape->intermediate;
    for (size_t i = 0; bias && i < (size_t)r->shape->experts * rows; i++)
        r->bias[i] = bias[i / rows * rows + r->reading->rows((uint32_t)(i % rows), rows)];
    return bias ? r->bias : NULL;
}

static double cosine_of(const double *a, const double *b, size_t count)
{
    double product = 0, left = 0, right = 0;
    for (size_t i = 0; i < count; i++) {
        product += a[i] * b[i];
        left += a[i] * a[i];
        right += b[i] * b[i];
    }
    return product / sqrt(left * right);
}

struct work {
    double *x, *output, *wanted, *delta, *next; /* [tokens, hidden] each */
    double *rows;                               /* [2 * intermediate, hidden] */
    float *bias;                                /* [experts, 2 * intermediate] */
};

/* What the model's MoE block added to the residual stream, into w->wanted. */
static enum gb_status implied(const struct gb_fixture *f, const struct gb_capture *capture, uint32_t layer,
                              struct work *w, bool *present, struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    uint32_t index = f->layer[layer].index;
    bool shared = false;
    enum gb_status status = gb_capture_residual(capture, index, &f->shape, w->wanted, w->delta, present, error);
    for (size_t i = 0; status == GB_OK && *present && i < count; i++)
        w->wanted[i] = -(w->wanted[i] + w->delta[i]);
    if (status == GB_OK && *present)
        status = gb_capture_residual(capture, index + 1, &f->shape, w->next, w->delta, present, error);
    for (size_t i = 0; status == GB_OK && *present && i < count; i++)
        w->wanted[i] += w->next[i];
    if (status == GB_OK && *present)
        status = gb_capture_shared(capture, index, &f->shape, w->next, &shared, error);
    for (size_t i = 0; status == GB_OK && shared && i < count; i++)
        w->wanted[i] -= w->next[i];
    return status;
}

/* Whether codes and layout leave room for the reading at all. */
static bool possible(const struct gb_fixture *f, const struct reading *reading,
                     const struct gb_rescaled_layout *rescaled)
{
    return !(reading->nibbles && gb_row_code_bytes(f->weights, 64) != 32) &&
           !(reading->rows == halves && !gb_activation_find(f->activation)->in_turns) &&
           !(reading->scales != GB_LAYOUT_LINEAR && !rescaled->scales[0] && !rescaled->scales[1]);
}

/* The cosine of the layer's output by another reading; NaN if there is none. */
static enum gb_status try(const struct gb_fixture *f, const struct gb_layer *l, const struct reading *reading,
                          struct work *w, double *cosine, struct gb_error *error)
{
    struct gb_rescaled_layout rescaled = {.layer = *l};
    enum gb_status status = GB_OK;
    *cosine = (double)NAN;
    if (reading->scales != GB_LAYOUT_LINEAR)
        status = gb_rescale_layout(l, reading->scales, f->shape.experts, &rescaled, error);
    if (status == GB_OK && possible(f, reading, &rescaled)) {
        struct gb_truth_quantised weights = {
            rescaled.layer.gate_up, rescaled.layer.down, {f->activation, l->gate_up_bias, l->down_bias}};
        struct reread reread = {gb_truth_from_quantised(&weights), &f->shape, reading, w->rows, w->bias};
        struct gb_truth_source source = {&reread, gate_up, down, weights.extension};
        source.extension.gate_up_bias = reread_bias(&reread, l->gate_up_bias);
        status = gb_truth_layer(&f->shape, w->x, l->ids, l->truth_routing_weights, &source, w->output, NULL, error);
        if (status == GB_OK)
            *cosine = cosine_of(w->output, w->wanted, (size_t)f->shape.tokens * f->shape.hidden);
    }
    gb_rescaled_layout_free(&rescaled);
    return status;
}

static enum gb_status check_layer(const struct gb_fixture *f, uint32_t layer, struct work *w, double *cosine,
                                  struct gb_error *error)
{
    struct gb_layer *l = &f->layer[layer];
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    double taken = cosine_of(l->truth_quantised, w->wanted, count), best_cosine = taken;
    const struct reading *best = NULL;
    enum gb_status status = GB_OK;
    *cosine = isnan(*cosine) || taken < *cosine ? taken : *cosine;
    for (size_t i = 0; i < count; i++)
        w->x[i] = (double)gb_bf16_decode(l->x[i]);
    for (size_t r = 0; status == GB_OK && r < sizeof readings / sizeof *readings; r++) {
        double other;
        status = try(f, l, &readings[r], w, &other, error);
        if (!(best_cosine >= other) && !isnan(other)) {
            best = &readings[r];
            best_cosine = other;
        }
    }
    if (status == GB_OK && best)
        status = gb_fail(error, GB_EFORMAT,
                         "layer %u: the captured output fits the codes with %s (cosine %.3f) better than as they "
                         "were read (%.3f)",
                         l->index, best->name, best_cosine, taken);
    return status;
}

enum gb_status reading_check(const struct gb_fixture *f, const struct gb_capture *capture, double *cosine,
                             struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    size_t rows = 2 * (size_t)f->shape.intermediate;
    double *values = malloc(sizeof(double) * (5 * count + rows * f->shape.hidden));
    float *bias = malloc(sizeof(float) * f->shape.experts * rows);
    struct work w = {
        values, values + count, values + 2 * count, values + 3 * count, values + 4 * count, values + 5 * count, bias};
    enum gb_status status =
        values && bias ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %u tokens", f->shape.tokens);
    *cosine = (double)NAN;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        bool present;
        status = implied(f, capture, l, &w, &present, error);
        if (status == GB_OK && present)
            status = check_layer(f, l, &w, cosine, error);
    }
    free(values);
    free(bias);
    return status;
}
