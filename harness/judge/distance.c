/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/distance.h"

#include <stdlib.h>

#include "quant/quant.h"

enum gb_status widen(enum gb_format format, const void *output, size_t count, struct widened *w, struct gb_error *error)
{
    w->value = malloc(sizeof(double) * count);
    w->stored = malloc(sizeof(double) * count);
    if (!w->value || !w->stored)
        return gb_fail(error, GB_ENOMEM, "no memory to judge %zu values", count);
    for (size_t i = 0; i < count; i++) {
        float v = format == GB_FP32 ? ((const float *)output)[i] : gb_bf16_decode(((const gb_bf16 *)output)[i]);
        w->value[i] = (double)v;
        w->stored[i] = (double)gb_bf16_decode(gb_bf16_encode(v));
    }
    return GB_OK;
}

void widened_free(struct widened *w)
{
    free(w->value);
    free(w->stored);
}

void distances_start(struct distances *sum)
{
    metrics_start(&sum->reference_quantised);
    metrics_start(&sum->reference_original);
    metrics_start(&sum->subject_quantised);
    metrics_start(&sum->subject_original);
    metrics_start(&sum->stored_quantised);
}

enum gb_status distances_add(struct distances *sum, const struct gb_fixture *f, uint32_t layer,
                             const struct gb_outputs *outputs, const struct gb_outputs *reference,
                             struct layer_result *result, struct gb_error *error)
{
    const struct gb_layer *l = &f->layer[layer];
    const struct gb_layer_outputs *out = &outputs->layer[layer];
    uint32_t tokens = outputs->shape.tokens, hidden = f->shape.hidden;
    struct widened subject = {0}, ours = {0};
    enum gb_status status = widen(out->format, out->output, (size_t)tokens * hidden, &subject, error);
    if (status == GB_OK)
        status = widen(GB_FP32, reference->layer[layer].output, (size_t)tokens * hidden, &ours, error);
    if (status == GB_OK) {
        const struct {
            const char *group, *name;
            const double *values, *truth;
            struct metrics *total;
        } rows[] = {
            {"reference_truth", "quantised", ours.value, l->truth_quantised, &sum->reference_quantised},
            {"reference_truth", "original", ours.value, l->truth_original, &sum->reference_original},
            {"subject_truth", "quantised", subject.value, l->truth_quantised, &sum->subject_quantised},
            {"subject_truth", "original", subject.value, l->truth_original, &sum->subject_original},
            {"subject_truth", "quantised_bf16_store", subject.stored, l->truth_quantised, &sum->stored_quantised},
        };
        _Static_assert(sizeof rows / sizeof *rows <= MOST_STAGE_DISTANCES, "a layer's result has room for them");
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct metrics m;
            if (!rows[i].truth) /* under a routing that nobody quantised weights for */
                continue;
            metrics_start(&m);
            metrics_add(&m, rows[i].values, rows[i].truth, tokens, hidden);
            metrics_add(rows[i].total, rows[i].values, rows[i].truth, tokens, hidden);
            result->distance[result->distance_count++] = (struct stage_distance){rows[i].group, rows[i].name, m};
        }
    }
    widened_free(&subject);
    widened_free(&ours);
    return status;
}
