/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/study/truth.h"

#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"

/* Weights before quantisation, generated. */
struct generated {
    const struct gb_fixture *fixture;
    uint32_t layer;
    float *values; /* [hidden * intermediate] */
};

static enum gb_status widen(struct generated *g, uint32_t expert, enum gb_projection projection, double *matrix,
                            struct gb_error *error)
{
    size_t count = (size_t)g->fixture->shape.hidden * g->fixture->shape.intermediate;
    enum gb_status status = gb_generate_matrix(g->fixture, g->layer, expert, projection, g->values, error);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        matrix[i] = (double)g->values[i];
    return status;
}

static enum gb_status generated_gate_up(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    struct generated *g = context;
    size_t count = (size_t)g->fixture->shape.hidden * g->fixture->shape.intermediate;
    enum gb_status status = widen(g, expert, GB_GATE_PROJ, matrix, error);
    return status == GB_OK ? widen(g, expert, GB_UP_PROJ, matrix + count, error) : status;
}

static enum gb_status generated_down(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    return widen(context, expert, GB_DOWN_PROJ, matrix, error);
}

/* Share s. ids: scratch, [tokens, top_k] */
static enum gb_status share(const struct gb_fixture *f, uint32_t layer, enum study_truth truth,
                            const struct study_truth_inputs *in, uint32_t s, int32_t *ids, double *output,
                            struct gb_error *error)
{
    const struct gb_layer *l = &f->layer[layer];
    struct gb_shape shape = f->shape;
    shape.tokens = in->tokens;
    size_t pairs = (size_t)shape.tokens * shape.top_k;
    struct gb_truth_quantised weights = {l->gate_up, l->down, {f->activation, l->gate_up_bias, l->down_bias}};
    struct generated g = {f, layer, NULL};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    if (truth == STUDY_ORIGINAL) {
        g.values = malloc(sizeof *g.values * f->shape.hidden * f->shape.intermediate);
        if (!g.values)
            return gb_fail(error, GB_ENOMEM, "no memory for an expert");
        source = (struct gb_truth_source){&g, generated_gate_up, generated_down, weights.extension};
    }
    for (size_t i = 0; i < pairs; i++)
        ids[i] = in->ids[i] >= 0 && (uint32_t)in->ids[i] % STUDY_TRUTH_SHARES == s ? in->ids[i] : -1;
    enum gb_status status = gb_truth_layer(&shape, in->x, ids, in->weights, &source, output, NULL, error);
    free(g.values);
    return status;
}

enum gb_status study_truth_shares(const struct gb_fixture *f, uint32_t layer, enum study_truth truth,
                                  const struct study_truth_inputs *in, const bool mine[STUDY_TRUTH_SHARES],
                                  double *shares, struct gb_error *error)
{
    size_t count = (size_t)in->tokens * f->shape.hidden, pairs = (size_t)in->tokens * f->shape.top_k;
    int32_t *ids = malloc(sizeof *ids * pairs * STUDY_TRUTH_SHARES);
    enum gb_status status = ids ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for the truth of %u tokens", in->tokens);
    if (status == GB_OK) {
#pragma omp parallel for schedule(dynamic)
        for (uint32_t s = 0; s < STUDY_TRUTH_SHARES; s++) {
            struct gb_error own;
            enum gb_status got =
                mine[s] ? share(f, layer, truth, in, s, ids + s * pairs, shares + s * count, &own) : GB_OK;
            if (got != GB_OK)
#pragma omp critical
                status = gb_fail(error, got, "%s", own.message);
        }
    }
    free(ids);
    return status;
}

void study_truth_sum(const double *shares, size_t count, double *output)
{
    memcpy(output, shares, sizeof *output * count);
    for (uint32_t s = 1; s < STUDY_TRUTH_SHARES; s++)
        for (size_t i = 0; i < count; i++)
            output[i] += shares[s * count + i];
}
