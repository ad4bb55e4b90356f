/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "harness/reading.h"
#include "quant/quant.h"
#include "reference/reference.h"

/* Another way in which the same bytes could have been meant. */
struct reading {
    const char *name;
    bool nibbles; /* the odd element in the low nibble */
    bool halves;  /* up rows first */
};

static const struct reading readings[] = {
    {"even and odd elements swapped", true, false},
    {"gate and up swapped", false, true},
    {"even and odd elements and gate and up swapped", true, true},
};

/* The layer's weights as that reading has them. */
struct reread {
    struct gb_truth_source as_read;
    const struct gb_shape *shape;
    const struct reading *reading;
};

static void swap(double *a, double *b)
{
    double value = *a;
    *a = *b;
    *b = value;
}

static void swap_pairs(double *matrix, size_t count)
{
    for (size_t i = 0; i + 1 < count; i += 2)
        swap(&matrix[i], &matrix[i + 1]);
}

static enum gb_status gate_up(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    const struct reread *r = context;
    size_t half = (size_t)r->shape->intermediate * r->shape->hidden;
    enum gb_status status = r->as_read.gate_up(r->as_read.context, expert, matrix, error);
    if (status == GB_OK && r->reading->nibbles)
        swap_pairs(matrix, 2 * half);
    for (size_t i = 0; status == GB_OK && r->reading->halves && i < half; i++)
        swap(&matrix[i], &matrix[half + i]);
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
};

/* What the model's MoE block added to the residual stream, into w->wanted. */
static enum gb_status implied(const struct gb_fixture *f, const struct gb_capture *capture, uint32_t layer,
                              struct work *w, bool *present, struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    uint32_t index = f->layer[layer].index;
    enum gb_status status = gb_capture_residual(capture, index, &f->shape, w->wanted, w->delta, present, error);
    for (size_t i = 0; status == GB_OK && *present && i < count; i++)
        w->wanted[i] = -(w->wanted[i] + w->delta[i]);
    if (status == GB_OK && *present)
        status = gb_capture_residual(capture, index + 1, &f->shape, w->next, w->delta, present, error);
    for (size_t i = 0; status == GB_OK && *present && i < count; i++)
        w->wanted[i] += w->next[i];
    return status;
}

static enum gb_status check_layer(const struct gb_fixture *f, uint32_t layer, struct work *w, double *cosine,
                                  struct gb_error *error)
{
    struct gb_layer *l = &f->layer[layer];
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    struct gb_truth_quantised weights = {l->gate_up, l->down, {f->activation, l->gate_up_bias, l->down_bias}};
    double taken = cosine_of(l->truth_quantised, w->wanted, count);
    *cosine = isnan(*cosine) || taken < *cosine ? taken : *cosine;
    for (size_t i = 0; i < count; i++)
        w->x[i] = (double)gb_bf16_decode(l->x[i]);
    enum gb_status status = GB_OK;
    for (size_t r = 0; status == GB_OK && r < sizeof readings / sizeof *readings; r++) {
        struct reread reread = {gb_truth_from_quantised(&weights), &f->shape, &readings[r]};
        struct gb_truth_source source = {&reread, gate_up, down, weights.extension};
        if (readings[r].nibbles && gb_row_code_bytes(f->weights, 64) != 32)
            continue;
        status = gb_truth_layer(&f->shape, w->x, l->ids, l->truth_routing_weights, &source, w->output, NULL, error);
        double other = cosine_of(w->output, w->wanted, count);
        if (status == GB_OK && !(taken >= other))
            status = gb_fail(error, GB_EFORMAT,
                             "layer %u: the captured output fits the codes with %s (cosine %.3f) better than as they "
                             "were read (%.3f)",
                             l->index, readings[r].name, other, taken);
    }
    return status;
}

enum gb_status reading_check(const struct gb_fixture *f, const struct gb_capture *capture, double *cosine,
                             struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    double *values = malloc(5 * sizeof(double) * count);
    struct work w = {values, values + count, values + 2 * count, values + 3 * count, values + 4 * count};
    enum gb_status status = values ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %u tokens", f->shape.tokens);
    *cosine = (double)NAN;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        bool present;
        status = implied(f, capture, l, &w, &present, error);
        if (status == GB_OK && present)
            status = check_layer(f, l, &w, cosine, error);
    }
    free(values);
    return status;
}
