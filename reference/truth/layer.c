/* SPDX-License-Identifier: Apache-2.0 */
/* Truth: the layer in float64: docs/numerics.md#truth. */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/operators.h"

static enum gb_status rows_of(const struct gb_weights *weights, uint32_t expert, double *matrix)
{
#pragma omp parallel for schedule(static)
    for (uint32_t r = 0; r < weights->rows; r++)
        gb_weights_row(weights, expert, r, matrix + (size_t)r * weights->columns);
    return GB_OK;
}

static enum gb_status quantised_gate_up(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    (void)error;
    return rows_of(&((struct gb_truth_quantised *)context)->gate_up, expert, matrix);
}

static enum gb_status quantised_down(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    (void)error;
    return rows_of(&((struct gb_truth_quantised *)context)->down, expert, matrix);
}

struct gb_truth_source gb_truth_from_quantised(struct gb_truth_quantised *weights)
{
    return (struct gb_truth_source){weights, quantised_gate_up, quantised_down, weights->extension};
}

void gb_truth_threads(int threads)
{
    openblas_set_num_threads(threads);
}

/* c [m, n] = a [m, k] . b [n, k]^T */
static void product(uint32_t m, uint32_t n, uint32_t k, const double *a, const double *b, double *c)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)n, (int)k, 1.0, a, (int)k, b, (int)k, 0.0, c,
                (int)n);
}

/* Buffers for one expert and up to `pairs` (token, slot) pairs. */
struct scratch {
    double *matrix;  /* [2 * intermediate, hidden], then [hidden, intermediate] */
    double *x;       /* [pairs, hidden], gathered */
    double *gate_up; /* [pairs, 2 * intermediate] */
    double *h;       /* [pairs, intermediate] */
    double *dots;    /* [pairs, hidden] */
};

static void scratch_free(struct scratch *s)
{
    free(s->matrix);
    free(s->x);
    free(s->gate_up);
    free(s->h);
    free(s->dots);
}

static enum gb_status scratch_new(const struct gb_shape *shape, size_t pairs, struct scratch *s, struct gb_error *error)
{
    *s = (struct scratch){
        .matrix = malloc(sizeof(double) * 2 * shape->intermediate * shape->hidden),
        .x = malloc(sizeof(double) * pairs * shape->hidden),
        .gate_up = malloc(sizeof(double) * pairs * 2 * shape->intermediate),
        .h = malloc(sizeof(double) * pairs * shape->intermediate),
        .dots = malloc(sizeof(double) * pairs * shape->hidden),
    };
    if (s->matrix && s->x && s->gate_up && s->h && s->dots)
        return GB_OK;
    scratch_free(s);
    return gb_fail(error, GB_ENOMEM, "no memory for the truth of %zu (token, slot) pairs", pairs);
}

static double bias_at(const float *bias, uint32_t i)
{
    return bias ? (double)bias[i] : 0.0;
}

static double gated(const struct gb_activation_row *row, double gate, double up)
{
    double g = gate > row->limit ? row->limit : gate, u = up > row->limit ? row->limit : up;
    u = up < -row->limit ? -row->limit : u;
    return g / (1.0 + exp(-row->alpha * g)) * (row->offset != 0.0 ? u + row->offset : u);
}

/* Adds one expert's share to output [tokens, hidden]; fills its rows of intermediate (if not NULL). */
static enum gb_status one_expert(const struct gb_shape *shape, uint32_t expert, const uint32_t *pairs, uint32_t count,
                                 const double *x, const double *routing_weights, const struct gb_truth_source *source,
                                 struct scratch *s, double *output, double *intermediate, struct gb_error *error)
{
    uint32_t hidden = shape->hidden, inner = shape->intermediate;
    const struct gb_activation_row *activation = gb_activation_find(source->extension.activation);
    const float *up_bias = gb_bias_of(source->extension.gate_up_bias, expert, 2 * inner);
    const float *down_bias = gb_bias_of(source->extension.down_bias, expert, hidden);
    for (uint32_t n = 0; n < count; n++)
        memcpy(s->x + (size_t)n * hidden, x + (size_t)(pairs[n] / shape->top_k) * hidden, sizeof(double) * hidden);
    enum gb_status status = source->gate_up(source->context, expert, s->matrix, error);
    if (status != GB_OK)
        return status;
    product(count, 2 * inner, hidden, s->x, s->matrix, s->gate_up);
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t i = 0; i < inner; i++) {
            const double *row = s->gate_up + (size_t)n * 2 * inner;
            double h = gated(activation, row[i] + bias_at(up_bias, i), row[inner + i] + bias_at(up_bias, inner + i));
            s->h[(size_t)n * inner + i] = h;
            if (intermediate)
                intermediate[(size_t)pairs[n] * inner + i] = h;
        }
    status = source->down(source->context, expert, s->matrix, error);
    if (status != GB_OK)
        return status;
    product(count, hidden, inner, s->h, s->matrix, s->dots);
    for (uint32_t n = 0; n < count; n++)
        for (uint32_t i = 0; i < hidden; i++)
            output[(size_t)(pairs[n] / shape->top_k) * hidden + i] +=
                routing_weights[pairs[n]] * (s->dots[(size_t)n * hidden + i] + bias_at(down_bias, i));
    return GB_OK;
}

enum gb_status gb_truth_layer(const struct gb_shape *shape, const double *x, const int32_t *ids,
                              const double *routing_weights, const struct gb_truth_source *source, double *output,
                              double *intermediate, struct gb_error *error)
{
    struct gb_groups groups;
    struct scratch s;
    enum gb_status status = gb_groups_new(shape, ids, &groups, error);
    if (status != GB_OK)
        return status;
    status = scratch_new(shape, groups.most + 1, &s, error);
    if (status != GB_OK) {
        gb_groups_free(&groups);
        return status;
    }
    memset(output, 0, sizeof(double) * shape->tokens * shape->hidden);
    if (intermediate)
        memset(intermediate, 0, sizeof(double) * shape->tokens * shape->top_k * shape->intermediate);
    for (uint32_t g = 0; status == GB_OK && g < groups.active; g++)
        status =
            one_expert(shape, groups.expert[g], groups.pair + groups.start[g], groups.start[g + 1] - groups.start[g], x,
                       routing_weights, source, &s, output, intermediate, error);
    scratch_free(&s);
    gb_groups_free(&groups);
    return status;
}
