/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/captured.h"

#include <math.h>
#include <stdlib.h>

#include "quant/quant.h"

/* Weights that the model's code dequantised to bf16 are 2^-9 off each, three of them in a product; another activation,
 * order of rows or router is off by a tenth and more. */
static const double captured_limit = 0x1p-7;

static bool holds(const int32_t *ids, uint32_t count, int32_t id)
{
    for (uint32_t j = 0; j < count; j++)
        if (ids[j] == id)
            return true;
    return false;
}

static enum gb_status check_ids(const struct gb_fixture *f, const struct gb_layer *l, const int32_t *wanted,
                                struct gb_error *error)
{
    uint32_t top_k = f->shape.top_k, wrong = 0, first = 0;
    int32_t theirs = 0;
    for (uint32_t t = 0; t < f->shape.tokens; t++) {
        bool same = true;
        for (uint32_t j = 0; j < top_k && same; j++) {
            same = holds(l->ids + (size_t)t * top_k, top_k, wanted[(size_t)t * top_k + j]);
            if (!same && !wrong)
                theirs = wanted[(size_t)t * top_k + j];
        }
        first = !same && !wrong ? t : first;
        wrong += !same;
    }
    if (!wrong)
        return GB_OK;
    return gb_fail(error, GB_EFORMAT,
                   "layer %u: the captured block chose other experts than %s does, for %u of %u tokens, the first one "
                   "token %u (expert %d); does the model route otherwise? (--trust takes it over)",
                   l->index, gb_fixture_router(f) ? f->router : "the router", wrong, f->shape.tokens, first, theirs);
}

static enum gb_status check_output(const struct gb_layer *l, const double *wanted, size_t count, double *distance,
                                   struct gb_error *error)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        off += (l->truth_original[i] - wanted[i]) * (l->truth_original[i] - wanted[i]);
        all += wanted[i] * wanted[i];
    }
    double own = sqrt(off / all);
    *distance = own > *distance ? own : *distance;
    if (own <= captured_limit)
        return GB_OK;
    return gb_fail(error, GB_EFORMAT,
                   "layer %u: the captured block's output differs from the imported layer's by %.3g of its size "
                   "(relative L2; at most %.3g is expected): is the capture of this checkpoint, and is its activation "
                   "the model's? (--trust takes it over)",
                   l->index, own, captured_limit);
}

enum gb_status captured_check(const struct gb_fixture *f, const struct gb_capture *capture, struct captured *result,
                              struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden, pairs = (size_t)f->shape.tokens * f->shape.top_k;
    double *output = malloc(sizeof *output * count); /* [tokens, hidden] */
    int32_t *ids = malloc(sizeof *ids * pairs);      /* [tokens, top_k] */
    enum gb_status status =
        output && ids ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %u tokens", f->shape.tokens);
    *result = (struct captured){0};
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        const struct gb_layer *layer = &f->layer[l];
        bool present;
        status = gb_capture_ids(capture, layer->index, &f->shape, ids, &present, error);
        if (status == GB_OK && present)
            status = check_ids(f, layer, ids, error);
        if (status == GB_OK)
            status = gb_capture_output(capture, layer->index, &f->shape, output, &present, error);
        if (status == GB_OK && present) {
            result->layers++;
            status = check_output(layer, output, count, &result->distance, error);
        }
    }
    free(output);
    free(ids);
    return status;
}
