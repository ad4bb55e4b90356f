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
                uint32_t rank, const uint64_t *dims, enum study_merge merge, double **values)
{
    struct study_array *a = &arrays[(*count)++];
    *a = (struct study_array){.rank = rank, .axes = axes, .values = values, .merge = merge};
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
            add(arrays, &count, group, "error2", "layers, paths, samples", 3, by_sample, STUDY_BY_SAMPLE, &of->error2);
            add(arrays, &count, group, "dot", "layers, paths, samples", 3, by_sample, STUDY_BY_SAMPLE, &of->dot);
            add(arrays, &count, group, "self2", "layers, paths, samples", 3, by_sample, STUDY_BY_SAMPLE, &of->self2);
            add(arrays, &count, group, "max_abs", "layers, paths", 2, by_sample, STUDY_LARGEST, &of->max_abs);
            add(arrays, &count, group, "max_ulp", "layers, paths", 2, by_sample, STUDY_LARGEST, &of->max_ulp);
            add(arrays, &count, group, "ulps", "layers, paths, bins", 3, by_ulp, STUDY_SUM, &of->ulps);
            if (m != STUDY_OPEN_LOOP)
                continue;
            add(arrays, &count, group, "carried2", "layers, paths, samples", 3, by_sample, STUDY_BY_SAMPLE,
                &of->carried2);
            add(arrays, &count, group, "changed", "layers, paths, samples", 3, by_sample, STUDY_BY_SAMPLE,
                &of->changed);
        }
    for (int t = 0; t < STUDY_TRUTHS; t++) {
        char group[32];
        snprintf(group, sizeof group, "truth/%s", study_truth_name((enum study_truth)t));
        add(arrays, &count, group, "stream2", "layers, samples", 2, of_truth, STUDY_BY_SAMPLE, &c->stream2[t]);
        add(arrays, &count, group, "layer2", "layers, samples", 2, of_truth, STUDY_BY_SAMPLE, &c->layer2[t]);
    }
    const uint64_t of_word[] = {c->paths, c->samples};
    add(arrays, &count, "truth", "model_layer", "layers", 1, of_truth, STUDY_SAME, &c->model_layer);
    for (int a = 0; c->vocabulary && a < STUDY_AGAINST; a++) {
        char group[32];
        snprintf(group, sizeof group, "head/%s", study_against_name((enum study_against)a));
        add(arrays, &count, group, "kl", "paths, samples", 2, of_word, STUDY_BY_SAMPLE, &c->head[a].kl);
        add(arrays, &count, group, "same_top", "paths, samples", 2, of_word, STUDY_BY_SAMPLE, &c->head[a].same_top);
    }
    return count;
}

size_t study_array_elements(const struct study_array *a)
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
        double *values = malloc(sizeof *values * study_array_elements(&arrays[i]));
        good &= values != NULL;
        for (size_t j = 0; values && j < study_array_elements(&arrays[i]); j++)
            values[j] = (double)NAN;
        *arrays[i].values = values;
    }
    c->layers_done = calloc(c->seeds, sizeof *c->layers_done);
    c->state = calloc(c->seeds, sizeof *c->state);
    return good && c->layers_done && c->state
               ? GB_OK
               : gb_fail(error, GB_ENOMEM, "no memory for the figures of %u layers", c->layers);
}

void study_case_free(struct study_case *c)
{
    struct study_array arrays[STUDY_ARRAYS];
    uint32_t count = study_case_arrays(c, arrays);
    for (uint32_t i = 0; i < count; i++)
        free(*arrays[i].values);
    for (uint32_t s = 0; c->state && s < c->seeds; s++)
        free(c->state[s]);
    free(c->state);
    free(c->layers_done);
}

size_t study_case_streams(const struct study_case *c)
{
    return (size_t)(c->paths + STUDY_TRUTHS) * c->shape.tokens * c->shape.hidden;
}

struct study_case study_case_part(const struct study_case *c)
{
    return (struct study_case){
        .shape = c->shape, .layers = 1, .seeds = 1, .paths = c->paths, .samples = c->shape.tokens};
}

/* One layer of one seed into an array of all; first: no other seed has that layer. */
static void merge(const struct study_array *to, const struct study_array *from, uint32_t layer, uint32_t seed,
                  bool first)
{
    size_t count = study_array_elements(from);
    double *all = *to->values + layer * (study_array_elements(to) / to->dims[0]); /* of the layer */
    const double *own = *from->values;
    if (to->merge == STUDY_BY_SAMPLE) {
        uint64_t samples = to->dims[to->rank - 1], tokens = from->dims[from->rank - 1];
        for (size_t i = 0; i < count; i++)
            all[i / tokens * samples + seed * tokens + i % tokens] = own[i];
        return;
    }
    for (size_t i = 0; i < count; i++)
        if (first || to->merge == STUDY_SAME)
            all[i] = own[i];
        else if (to->merge == STUDY_SUM)
            all[i] += own[i];
        else if (own[i] > all[i] || isnan(own[i]))
            all[i] = own[i];
}

enum gb_status study_case_add(struct study_case *c, uint32_t seed, const struct study_case *layer, const double *state,
                              struct gb_error *error)
{
    struct study_array to[STUDY_ARRAYS], from[STUDY_ARRAYS];
    struct study_case own = *layer;
    uint32_t count = study_case_arrays(&own, from), at = c->layers_done[seed];
    bool first = true;
    for (uint32_t s = 0; s < c->seeds; s++)
        first &= c->layers_done[s] <= at;
    study_case_arrays(c, to); /* and logits, which no layer has */
    for (uint32_t i = 0; i < count; i++)
        merge(&to[i], &from[i], at, seed, first);
    c->layers_done[seed]++;
    c->done++;
    if (c->layers_done[seed] == c->layers) {
        free(c->state[seed]);
        c->state[seed] = NULL;
        return GB_OK;
    }
    if (!c->state[seed])
        c->state[seed] = malloc(sizeof *state * study_case_streams(c));
    if (!c->state[seed])
        return gb_fail(error, GB_ENOMEM, "no memory for the streams of %u tokens", c->shape.tokens);
    memcpy(c->state[seed], state, sizeof *state * study_case_streams(c));
    return GB_OK;
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
