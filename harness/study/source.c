/* SPDX-License-Identifier: Apache-2.0 */
/* Layers from a fixture, or generated one at a time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness/study/study.h"

enum gb_status study_source_fixture(struct gb_fixture *f, struct study_source *source, struct gb_error *error)
{
    *source = (struct study_source){.fixture = f, .borrowed = true};
    if (gb_fixture_quantises(f))
        return gb_fail(error, GB_EINVAL, "is a problem of a quantiser; a study needs layers");
    if (!f->stack.residual)
        return gb_fail(error, GB_EINVAL,
                       "has no residual stream; make it without --generated, --data and --routing, or import it with a "
                       "capture that has one");
    return GB_OK;
}

void study_source_free(struct study_source *source)
{
    if (source->generated && source->fixture)
        free(source->fixture->stack.residual);
    if (source->generated && source->fixture)
        source->fixture->stack.residual = NULL;
    if (!source->borrowed)
        gb_fixture_free(source->fixture);
    source->fixture = NULL;
}

/* Factors of the norm's channels and of the router's rows. */
static void shape_statistics(struct gb_fixture *f, const struct study_generation *g)
{
    enum { PERIOD = 128, FIRST = 37 };
    for (uint32_t l = 0; l < f->layers; l++) {
        gb_bf16 *router = (gb_bf16 *)f->layer[l].router.codes; /* [experts, hidden] */
        for (uint32_t i = FIRST; i < f->shape.hidden; i += PERIOD)
            f->layer[l].norm[i] *= g->outlier_factor;
        for (uint32_t e = 0; g->routing_skew != 1.0f && e < f->shape.experts; e++) {
            double place = f->shape.experts > 1 ? (double)e / (f->shape.experts - 1) - 0.5 : 0.0;
            float factor = (float)pow((double)g->routing_skew, -place);
            for (uint32_t i = 0; i < f->shape.hidden; i++) {
                gb_bf16 *value = &router[(size_t)e * f->shape.hidden + i];
                *value = gb_bf16_encode(gb_bf16_decode(*value) * factor);
            }
        }
    }
}

enum gb_status study_source_generate(const struct study_generation *g, struct study_source *source,
                                     struct gb_error *error)
{
    struct gb_fixture *f = NULL;
    *source = (struct study_source){.generated = true};
    uint32_t block = gb_format_multiple(g->weights);
    if (g->shape.hidden % block || g->shape.intermediate % block)
        return gb_fail(error, GB_EINVAL, "hidden %u and intermediate %u must be multiples of %u for %s",
                       g->shape.hidden, g->shape.intermediate, block, gb_format_name(g->weights));
    enum gb_status status = gb_fixture_new_generated(&g->shape, g->layers, g->weights, &f, error);
    if (status != GB_OK)
        return status;
    source->fixture = f;
    f->norm_topk_prob = true;
    f->rms_norm_epsilon = 1e-6;
    f->seed = g->seed;
    snprintf(f->router, sizeof f->router, "%s", g->router);
    snprintf(f->recipe, sizeof f->recipe, "%s", gb_recipe_default(g->weights)->name);
    snprintf(f->generator, sizeof f->generator, "gaussian/1");
    const struct gb_router *router = gb_fixture_router(f);
    if (router->side == GB_ROUTER_ON_INPUT)
        return gb_fail(error, GB_EINVAL, "%s weighs its experts' input, which a residual stream's layers do not",
                       g->name);
    if (router->bias != GB_ROUTER_BIAS_NONE)
        status = gb_fixture_add(f, GB_EXTRA_ROUTER_BIAS, error);
    f->stack.residual = malloc(sizeof(double) * g->shape.tokens * g->shape.hidden);
    if (status == GB_OK && !f->stack.residual)
        status = gb_fail(error, GB_ENOMEM, "no memory for %u tokens", g->shape.tokens);
    if (status == GB_OK)
        status = gb_generate_inputs(f, error);
    if (status == GB_OK)
        shape_statistics(f, g);
    return status;
}

enum gb_status study_source_load(struct study_source *source, uint32_t layer, const bool *experts,
                                 struct gb_error *error)
{
    struct gb_fixture *f = source->fixture;
    enum gb_status status = GB_OK;
    if (!source->generated)
        return GB_OK;
#pragma omp parallel for schedule(dynamic)
    for (uint32_t e = 0; e < f->shape.experts; e++) {
        struct gb_error own;
        enum gb_status got = experts[e] ? gb_generate_expert(f, layer, e, &own) : GB_OK;
        if (got != GB_OK)
#pragma omp critical
            status = gb_fail(error, got, "%s", own.message);
    }
    return status;
}

/* The whole pages of a buffer. */
static void give_back(const void *values, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)values + page - 1) / page * page, to = ((uintptr_t)values + bytes) / page * page;
    if (values && to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

void study_source_unload(struct study_source *source, uint32_t layer)
{
    const struct gb_weights *const both[] = {&source->fixture->layer[layer].gate_up,
                                             &source->fixture->layer[layer].down};
    for (int i = 0; source->generated && i < 2; i++) {
        size_t codes, scales, globals;
        if (gb_weights_bytes(both[i], &codes, &scales, &globals, NULL) != GB_OK)
            continue;
        give_back(both[i]->codes, codes);
        give_back(both[i]->scales, scales);
    }
}
