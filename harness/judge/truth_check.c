/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/run/text.h"
#include "harness/run/progress.h"
#include "harness/run/residual_stream.h"
#include "harness/judge/truth_check.h"
#include "quant/quant.h"

/*
 * Rounding to nearest leaves zero or, from half a step to a whole one, at most doubles a weight; the next code is
 * within a third, and saturation takes a quarter at most. Three weights are multiplied on the way to an output, which
 * so grows eightfold at most, but for what cancels: twice that is no quantisation. Between the truths of all kinds of
 * data in all formats there is a factor of 1.5 at most.
 */
static const double largest_factor = 16.0;

/* Whether truth/original has a distance to measure, and may be of the weights that truth/quantised has rounded, over
 * elements that are numbers in both truths: [count]. */
static enum gb_status check_distance(const char *path, const char *group, const double *original,
                                     const double *quantised, size_t count, struct gb_error *error)
{
    double squares = 0.0, other_squares = 0.0;
    for (size_t i = 0; i < count; i++) {
        if (isnan(original[i]) || isnan(quantised[i]))
            continue;
        squares += original[i] * original[i];
        other_squares += quantised[i] * quantised[i];
    }
    if (!isfinite(squares))
        return gb_fail(error, GB_EFORMAT,
                       "%s: %s/truth/original: is so large that no distance from it can be computed; make the "
                       "fixture again, of smaller inputs or weights",
                       path_end(path), group);
    if (squares == 0.0 && other_squares > 0.0)
        return gb_fail(error, GB_EFORMAT,
                       "%s: %s/truth/original: is all zeros, but truth/quantised is not; write the truth of the "
                       "weights before quantisation",
                       path_end(path), group);
    double factor = sqrt(squares / other_squares);
    if (isfinite(other_squares) && other_squares > 0.0 && !(factor <= largest_factor && factor >= 1.0 / largest_factor))
        return gb_fail(error, GB_EFORMAT,
                       "%s: %s/truth/original: is %.3g times as large as truth/quantised, which no quantisation makes "
                       "of it; write the truth of the weights before quantisation",
                       path_end(path), group, factor);
    return GB_OK;
}

/*
 * Sums of n terms in float64 are within n 2^-53 of the sum of the terms' magnitudes in any order, so those of two
 * machines differ by far less than this, 2^-32 of the largest element that a layer adds to a token: n is below 2^18,
 * and the roundings of a sum of many terms cancel. The stream itself is added to with one rounding, 2^-53 of it.
 */
static const double largest_difference = 0x1p-32, last_rounding = 0x1p-51;

/* before: the stream ahead of the layer; stored, own: after it; [tokens, hidden]. */
static enum gb_status compare_stream(const struct gb_shape *shape, const char *path, uint32_t layer,
                                     const double *before, const double *stored, const double *own,
                                     struct gb_error *error)
{
    const size_t hidden = shape->hidden;
    for (uint32_t t = 0; t < shape->tokens; t++, before += hidden, stored += hidden, own += hidden) {
        double largest = 0.0;
        for (uint32_t i = 0; i < hidden; i++)
            largest = fmax(largest, fabs(own[i] - before[i]));
        for (uint32_t i = 0; i < hidden; i++)
            if (!(fabs(stored[i] - own[i]) <= largest_difference * largest + last_rounding * fabs(own[i])))
                return gb_fail(error, GB_EFORMAT,
                               "%s: /stack/truth/quantised: is not that of its inputs: after layer %u, token %u, "
                               "element %u is %.9g, computed again from the stream before it %.9g; make the fixture "
                               "again",
                               path_end(path), layer, t, i, stored[i], own[i]);
    }
    return GB_OK;
}

static enum gb_status check_stack(const struct gb_fixture *f, const char *path, double *own, struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    enum gb_status status = GB_OK;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        const struct gb_layer *layer = &f->layer[l];
        const double *stored = f->stack.truth_quantised + l * count;
        struct gb_truth_quantised weights = {
            layer->gate_up, layer->down, {f->activation, layer->gate_up_bias, layer->down_bias}};
        struct gb_truth_source source = gb_truth_from_quantised(&weights);
        progress_item("checking truth", l, f->layers);
        const double *before = l ? stored - count : f->stack.residual;
        status = stack_truth(f, l, &source, before, own, error);
        if (status == GB_OK)
            status = compare_stream(&f->shape, path, l, before, stored, own, error);
        if (status == GB_OK)
            status = check_distance(path, "/stack", f->stack.truth_original + l * count, stored, count, error);
    }
    return status;
}

/* Otherwise no drift from it can be computed. */
static enum gb_status check_reference(const struct baseline *b, const char *path, struct gb_error *error)
{
    const struct gb_shape *shape = &b->fixture->shape;
    size_t count = (size_t)shape->tokens * shape->hidden;
    for (size_t i = 0; i < b->fixture->layers * count; i++)
        if (!isfinite(b->reference->stack[i]))
            return gb_fail(error, GB_EFORMAT,
                           "%s: /stack/residual: the reference's stream is not finite after layer %zu, token %zu; make "
                           "the fixture of smaller residual, norm or weights, or without a stack",
                           path_end(path), i / count, i % count / shape->hidden);
    return GB_OK;
}

enum gb_status truth_check(const struct baseline *b, const char *path, struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    enum gb_status status = GB_OK;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        char group[24];
        snprintf(group, sizeof group, "/layers/%u", l);
        status = check_distance(path, group, f->layer[l].truth_original, f->layer[l].truth_quantised, count, error);
    }
    if (status != GB_OK || !f->stack.residual)
        return status;
    double *own = malloc(sizeof *own * count); /* [tokens, hidden] */
    status = own ? check_stack(f, path, own, error)
                 : gb_fail(error, GB_ENOMEM, "no memory for the truth of %u tokens", f->shape.tokens);
    free(own);
    return status == GB_OK ? check_reference(b, path, error) : status;
}
