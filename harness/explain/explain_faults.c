/* SPDX-License-Identifier: Apache-2.0 */
/* What an error may look like: no result at all, the other contract, a injected fault. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/explain/hypothesis.h"
#include "quant/quant.h"

/* Whether a kernel of the diagnosis's operation can have it. */
static bool possible(const struct diagnosis *w, const struct fault *fault)
{
    if (fault->nothing) /* try_nothing */
        return false;
    switch (fault->stage) {
    case STAGE_INPUT:
        return true;
    case STAGE_ACT_QUANT:
    case STAGE_GATE_UP:
    case STAGE_PROJECTION:
        return !w->given;
    case STAGE_WEIGHTS:
        return !w->given && !w->inner;
    case STAGE_ACTIVATION:
        return true;
    default:
        return !w->inner;
    }
}

/* results: [rows, width] of `trace`, [tokens, top_k, width] of `pairs`. */
static enum gb_status run_fault(struct diagnosis *w, const struct fault *fault, const struct trace *trace,
                                float *results, struct gb_error *error)
{
    const struct gb_shape *s = &trace->arguments.shape;
    size_t count = (size_t)s->tokens * s->top_k * s->intermediate;
    if (!w->inner)
        return fault_run(fault, trace, NULL, results, error);
    gb_bf16 *intermediate = malloc(count * sizeof *intermediate);           /* [tokens, top_k, intermediate] */
    float *output = malloc((size_t)s->tokens * s->hidden * sizeof *output); /* [tokens, hidden] */
    enum gb_status status = intermediate && output
                                ? fault_run_stages(fault, trace, NULL, output, intermediate, error)
                                : gb_fail(error, GB_ENOMEM, "no memory for the injected bug \"%s\"", fault->name);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        results[i] = gb_bf16_decode(intermediate[i]);
    free(intermediate);
    free(output);
    return status;
}

/* Of a fault in the weights each slot by itself, since any of them may have it. */
static enum gb_status try_fault(struct diagnosis *w, const struct fault *fault, struct gb_error *error)
{
    enum gb_status status =
        run_fault(w, fault, fault->edit ? &w->pairs : &w->trace, fault->edit ? w->change : w->faulty, error);
    if (status != GB_OK)
        return status;
    if (!fault->edit) {
        diagnosis_add_faulty(w, fault->particular ? RANK_PARTICULAR : RANK_WHOLE, fault->name);
        return GB_OK;
    }
    for (size_t i = 0; i < (size_t)w->tokens * w->trace.arguments.shape.top_k * w->width; i++)
        w->change[i] = (float)diagnosis_difference((double)w->change[i], (double)w->share[i]);
    diagnosis_add_change(w, RANK_WHOLE, fault->name);
    return GB_OK;
}

enum gb_status try_faults(struct diagnosis *w, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    const struct fault *fault;
    for (size_t i = 0; status == GB_OK && (fault = fault_at(i)); i++)
        if (fault_applies(fault, &w->trace.arguments) && possible(w, fault) && diagnosis_afford(w))
            status = try_fault(w, fault, error);
    return status;
}

/* Whether the subject has `wanted` in all these places; NaN and infinities are of one kind each. */
static bool everywhere(const struct diagnosis *w, double wanted, unsigned places)
{
    for (size_t i = 0; i < (size_t)w->rows * w->width; i++) {
        double value = w->values[i];
        if (((places & LOCATION_ROWS) && !w->location.token[i / w->width]) ||
            ((places & LOCATION_COLUMNS) && !w->location.column[i % w->width]))
            continue;
        if (!(isnan(wanted) ? isnan(value) : isinf(wanted) ? isinf(value) : value == wanted))
            return false;
    }
    return true;
}

void try_nothing(struct diagnosis *w)
{
    static const struct {
        double value;
        const char *kind;
    } all[] = {{0.0, "output zero"}, {NAN, "output NaN"}, {INFINITY, "output infinite"}};
    for (int i = 0; i < 3; i++)
        for (unsigned places = 0; places <= (LOCATION_ROWS | LOCATION_COLUMNS); places++) {
            char name[160];
            if (!everywhere(w, all[i].value, places))
                continue;
            diagnosis_name_partly(all[i].kind, places, name, sizeof name);
            diagnosis_add(w, places ? RANK_PARTLY : RANK_NOTHING, all[i].kind, name, 1.0);
            break;
        }
}

static void enter_contract(struct diagnosis *w, enum gb_format activations)
{
    w->activations = activations;
    snprintf(w->contract, sizeof w->contract, "the contract with %s activations", gb_format_name(activations));
    diagnosis_add(w, RANK_WHOLE, w->contract, w->contract, diagnosis_explained(w, NULL, NULL));
}

enum gb_status try_contract(struct diagnosis *w, const struct baseline *b, struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    struct gb_arguments a = w->trace.given;
    size_t count = (size_t)w->rows * w->width;
    if (b->plain) {
        for (size_t i = 0; i < count; i++)
            w->faulty[i] =
                (float)diagnosis_value(w, &b->plain->reference->layer[w->layer], w->first * (count / w->tokens) + i);
        enter_contract(w, GB_BF16);
        return GB_OK;
    }
    if (f->activations == GB_BF16)
        return GB_OK;
    gb_layer_activations(f, w->layer, f->activations, &a);
    enum gb_status status = diagnosis_run(w, &a, NULL, w->faulty, error);
    if (status == GB_OK)
        enter_contract(w, f->activations);
    return status;
}
