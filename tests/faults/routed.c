/* SPDX-License-Identifier: Apache-2.0 */
/* Layers that route by themselves, and what may be wrong with their routing, their experts, or both. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/faults/faults.h"
#include "tests/support/fma32.h"

typedef void change_function(const struct gb_arguments *arguments);

/* `route`, `before` on its ids and weights, `layer` on those, `after` on all that was written. */
static enum gb_status run(const struct gb_arguments *arguments, run_function *route, change_function *before,
                          run_function *layer, change_function *after, struct gb_error *error)
{
    enum gb_status status = route(arguments, error);
    if (status != GB_OK)
        return status;
    if (before)
        before(arguments);
    struct gb_arguments a = *arguments;
    a.ids = a.routed_ids;
    a.routing_weights = a.routed_weights;
    status = layer(&a, error);
    if (status == GB_OK && after)
        after(arguments);
    return status;
}

static size_t pairs_of(const struct gb_arguments *a)
{
    return (size_t)a->shape.tokens * a->shape.top_k;
}

static bool has(const int32_t *ids, uint32_t top_k, int32_t expert)
{
    for (uint32_t s = 0; s < top_k; s++)
        if (ids[s] == expert)
            return true;
    return false;
}

/* The last token goes to an expert that it did not choose: the last such one. */
static void exchange_expert(const struct gb_arguments *a)
{
    int32_t *ids = a->routed_ids + pairs_of(a) - a->shape.top_k, other = (int32_t)a->shape.experts - 1;
    while (has(ids, a->shape.top_k, other))
        other--;
    ids[0] = other;
}

static void reverse_slots(const struct gb_arguments *a)
{
    uint32_t top_k = a->shape.top_k;
    for (size_t t = 0; t < a->shape.tokens; t++)
        for (uint32_t low = 0, high = top_k - 1; low < high; low++, high--) {
            int32_t *ids = a->routed_ids + t * top_k, id = ids[low];
            float *weights = a->routed_weights + t * top_k, weight = weights[low];
            ids[low] = ids[high];
            ids[high] = id;
            weights[low] = weights[high];
            weights[high] = weight;
        }
}

static void scale_last_token(const struct gb_arguments *a)
{
    float *row = (float *)a->output + (size_t)(a->shape.tokens - 1) * a->shape.hidden;
    for (uint32_t i = 0; i < a->shape.hidden; i++)
        row[i] *= 1.25f;
}

static void exceed_range(const struct gb_arguments *a)
{
    a->routed_ids[pairs_of(a) - 1] = (int32_t)a->shape.experts;
}

static void repeat_expert(const struct gb_arguments *a)
{
    a->routed_ids[pairs_of(a) - 1] = a->routed_ids[pairs_of(a) - 2];
}

static void write_past_ids(const struct gb_arguments *a)
{
    a->routed_ids[pairs_of(a)] = 0;
}

enum gb_status run_routed(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, NULL, run_unordered, NULL, error);
}

enum gb_status run_routed_tie(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, run_route_tie, NULL, run_unordered, NULL, error);
}

enum gb_status run_routed_backwards(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, reverse_slots, run_unordered, NULL, error);
}

enum gb_status run_routed_wrong_expert(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, exchange_expert, run_unordered, NULL, error);
}

enum gb_status run_routed_wrong_ffn(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, NULL, run_unordered, scale_last_token, error);
}

enum gb_status run_routed_wrong_both(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, exchange_expert, run_unordered, scale_last_token, error);
}

/* Weights over all experts where the recipe has them over the chosen. */
static enum gb_status route_unnormalised(const struct gb_arguments *a, struct gb_error *error)
{
    struct gb_router router = *a->router;
    struct gb_arguments changed = *a;
    router.renormalise = GB_ROUTER_RENORMALISE_NONE;
    if (router.weight == GB_ROUTER_WEIGHT_SOFTMAX_CHOSEN)
        router.weight = GB_ROUTER_WEIGHT_SOFTMAX_ALL;
    changed.router = &router;
    return fma32_router(&changed, error);
}

enum gb_status run_routed_unnormalised(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, route_unnormalised, NULL, run_unordered, NULL, error);
}

enum gb_status run_routed_range(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, NULL, run_unordered, exceed_range, error);
}

enum gb_status run_routed_twice(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, NULL, run_unordered, repeat_expert, error);
}

enum gb_status run_routed_writes_past_ids(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, NULL, run_unordered, write_past_ids, error);
}

/* Before it routes, so that every run routes alike. */
enum gb_status run_routed_changes_router(const struct gb_arguments *a, struct gb_error *error)
{
    ((gb_bf16 *)(uintptr_t)a->router_weights.codes)[0].bits = 0x3F81;
    return run_routed(a, error);
}

/* Right experts, and an output that is right for them, but no ids. */
enum gb_status run_routed_unwritten(const struct gb_arguments *arguments, struct gb_error *error)
{
    struct gb_arguments elsewhere = *arguments;
    int32_t *ids = malloc(pairs_of(arguments) * sizeof *ids); /* [tokens, top_k] */
    if (!ids)
        return gb_fail(error, GB_ENOMEM, "no memory for the experts of %u tokens", arguments->shape.tokens);
    elsewhere.routed_ids = ids;
    enum gb_status status = run_routed(&elsewhere, error);
    free(ids);
    return status;
}

/* Of equal experts now the lower id first, now the higher. */
enum gb_status run_routed_restless(const struct gb_arguments *a, struct gb_error *error)
{
    static uint32_t runs;
    return run(a, runs++ % 2 ? run_route_tie : fma32_router, NULL, run_unordered, NULL, error);
}

/* The higher id first in the last run alone, where ids begin on a page and are what they are in the second. */
enum gb_status run_routed_restless_last(const struct gb_arguments *a, struct gb_error *error)
{
    const bool last = (uintptr_t)a->routed_ids % 4096 == 0 && a->routed_ids[0] == 0x5A5A5A5A;
    return run(a, last ? run_route_tie : fma32_router, NULL, run_unordered, NULL, error);
}

/* Slots in another order in all runs but the first five, which are those that are not timed. */
enum gb_status run_routed_restless_later(const struct gb_arguments *a, struct gb_error *error)
{
    enum { USUAL_RUNS = 5 };
    static uint32_t runs;
    return runs++ < USUAL_RUNS ? run_routed(a, error) : run_routed_backwards(a, error);
}

/* The lower id first in the first run alone, and what it makes of that run is wrong. */
enum gb_status run_routed_restless_lower(const struct gb_arguments *a, struct gb_error *error)
{
    static uint32_t runs;
    return runs++ ? run(a, run_route_tie, NULL, run_unordered, NULL, error)
                  : run(a, fma32_router, NULL, run_unordered, scale_last_token, error);
}

/* What it makes of all others. */
enum gb_status run_routed_restless_higher(const struct gb_arguments *a, struct gb_error *error)
{
    static uint32_t runs;
    return runs++ ? run(a, run_route_tie, NULL, run_unordered, scale_last_token, error)
                  : run(a, fma32_router, NULL, run_unordered, NULL, error);
}

/* Reads weights from copies that prepare made. */
struct copies {
    void *part[6]; /* codes, scales, global scales of gate_up, then of down */
};

static void *copy_of(const void *bytes, size_t count)
{
    void *copy = malloc(count);
    return copy ? memcpy(copy, bytes, count) : NULL;
}

enum gb_status prepare_copies(const struct gb_arguments *a, void **prepared, struct gb_error *error)
{
    const struct gb_weights *weights[2] = {&a->gate_up, &a->down};
    struct copies *copies = calloc(1, sizeof *copies);
    bool good = copies != NULL;
    for (int w = 0; good && w < 2; w++) {
        size_t codes, scales, global_scales;
        enum gb_status status = gb_weights_bytes(weights[w], &codes, &scales, &global_scales, error);
        if (status != GB_OK)
            return status;
        good = (copies->part[3 * w] = copy_of(weights[w]->codes, codes)) &&
               (copies->part[3 * w + 1] = copy_of(weights[w]->scales, scales)) &&
               (copies->part[3 * w + 2] = copy_of(weights[w]->global_scales, global_scales));
    }
    *prepared = copies;
    return good ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for a copy of the weights");
}

void release_copies(void *prepared)
{
    struct copies *copies = prepared;
    for (int i = 0; i < 6; i++)
        free(copies->part[i]);
    free(copies);
}

/* Sends the last token to an expert of its own choice. */
enum gb_status run_routed_prepared(const struct gb_arguments *arguments, struct gb_error *error)
{
    const struct copies *copies = arguments->prepared;
    struct gb_arguments a = *arguments;
    a.gate_up.codes = copies->part[0];
    a.gate_up.scales = copies->part[1];
    a.gate_up.global_scales = copies->part[2];
    a.down.codes = copies->part[3];
    a.down.scales = copies->part[4];
    a.down.global_scales = copies->part[5];
    return run_routed_wrong_expert(&a, error);
}

enum gb_status run_routed_quantised(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, reverse_slots, run_quantised, NULL, error);
}

enum gb_status run_routed_quantised_wrong_both(const struct gb_arguments *a, struct gb_error *error)
{
    return run(a, fma32_router, exchange_expert, run_quantised_next_scale, NULL, error);
}
