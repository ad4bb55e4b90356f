/* SPDX-License-Identifier: Apache-2.0 */
/* The arrays of a case. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/study/study.h"

const char *study_truth_name(enum study_truth truth)
{
    return truth == STUDY_QUANTISED ? "quantised" : "original";
}

const char *study_mode_name(enum study_mode mode)
{
    return mode == STUDY_OPEN_LOOP ? "open_loop" : mode == STUDY_LAYER ? "layer" : "teacher_forced";
}

static void add(struct study_array *arrays, uint32_t *count, const char *group, const char *name, const char *axes,
                uint32_t rank, const uint64_t *dims, double **values)
{
    struct study_array *a = &arrays[(*count)++];
    *a = (struct study_array){.rank = rank, .axes = axes, .values = values};
    snprintf(a->name, sizeof a->name, "%s/%s", group, name);
    memcpy(a->dims, dims, sizeof *dims * rank);
}

uint32_t study_case_arrays(struct study_case *c, struct study_array *arrays)
{
    const uint64_t by_sample[] = {c->layers, c->paths, c->samples}, of_truth[] = {c->layers, c->samples},
                   by_ulp[] = {c->layers, c->paths, STUDY_BINS};
    uint32_t count = 0;
    for (int m = 0; m < STUDY_MODES; m++)
        for (int t = 0; t < STUDY_TRUTHS; t++) {
            struct study_measure *of = &c->measure[m][t];
            char group[32];
            snprintf(group, sizeof group, "%s/%s", study_mode_name((enum study_mode)m),
                     study_truth_name((enum study_truth)t));
            add(arrays, &count, group, "error2", "layers, paths, samples", 3, by_sample, &of->error2);
            add(arrays, &count, group, "dot", "layers, paths, samples", 3, by_sample, &of->dot);
            add(arrays, &count, group, "self2", "layers, paths, samples", 3, by_sample, &of->self2);
            add(arrays, &count, group, "max_abs", "layers, paths", 2, by_sample, &of->max_abs);
            add(arrays, &count, group, "max_ulp", "layers, paths", 2, by_sample, &of->max_ulp);
            add(arrays, &count, group, "ulps", "layers, paths, bins", 3, by_ulp, &of->ulps);
            if (m != STUDY_OPEN_LOOP)
                continue;
            add(arrays, &count, group, "carried2", "layers, paths, samples", 3, by_sample, &of->carried2);
            add(arrays, &count, group, "changed", "layers, paths, samples", 3, by_sample, &of->changed);
        }
    for (int t = 0; t < STUDY_TRUTHS; t++) {
        char group[32];
        snprintf(group, sizeof group, "truth/%s", study_truth_name((enum study_truth)t));
        add(arrays, &count, group, "stream2", "layers, samples", 2, of_truth, &c->stream2[t]);
        add(arrays, &count, group, "layer2", "layers, samples", 2, of_truth, &c->layer2[t]);
    }
    add(arrays, &count, "truth", "model_layer", "layers", 1, of_truth, &c->model_layer);
    return count;
}

static size_t elements(const struct study_array *a)
{
    size_t count = 1;
    for (uint32_t i = 0; i < a->rank; i++)
        count *= a->dims[i];
    return count;
}

enum gb_status study_case_new(struct study_case *c, struct gb_error *error)
{
    struct study_array arrays[STUDY_ARRAYS];
    uint32_t count = study_case_arrays(c, arrays);
    bool good = true;
    for (uint32_t i = 0; i < count; i++) {
        double *values = malloc(sizeof *values * elements(&arrays[i]));
        good &= values != NULL;
        for (size_t j = 0; values && j < elements(&arrays[i]); j++)
            values[j] = (double)NAN;
        *arrays[i].values = values;
    }
    c->state = calloc((size_t)(c->paths + STUDY_TRUTHS) * c->shape.tokens * c->shape.hidden, sizeof *c->state);
    return good && c->state ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for the figures of %u layers", c->layers);
}

void study_case_free(struct study_case *c)
{
    struct study_array arrays[STUDY_ARRAYS];
    uint32_t count = study_case_arrays(c, arrays);
    for (uint32_t i = 0; i < count; i++)
        free(*arrays[i].values);
    free(c->state);
}

void study_free(struct study *study)
{
    for (uint32_t i = 0; study->of && i < study->cases; i++)
        study_case_free(&study->of[i]);
    free(study->of);
    study->of = NULL;
}

bool study_finished(const struct study *study)
{
    bool finished = true;
    for (uint32_t i = 0; i < study->cases; i++)
        finished &= study->of[i].done == study->of[i].seeds * study->of[i].layers;
    return finished;
}
