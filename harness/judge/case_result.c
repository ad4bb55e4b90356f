/* SPDX-License-Identifier: Apache-2.0 */
/* Results put together: verdicts, figures of layers, lists of cases. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/judge/case_result.h"
#include "harness/run/hash.h"

static void worsen(struct case_result *j, enum verdict verdict, const char *format, va_list list)
{
    if (verdict_graver(verdict, j->verdict) == j->verdict)
        return;
    j->verdict = verdict;
    vsnprintf(j->reason, sizeof j->reason, format, list);
}

void case_worsen(struct case_result *j, enum verdict verdict, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    j->wrong |= verdict == VERDICT_FAIL;
    worsen(j, verdict, format, list);
    va_end(list);
}

/* Of how the subject behaved. */
static void misbehaved(struct case_result *j, enum verdict verdict, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void misbehaved(struct case_result *j, enum verdict verdict, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    worsen(j, verdict, format, list);
    va_end(list);
}

void case_of_sums(struct case_result *j, const struct aggregate_tests *sums, const char *of, bool rms, bool scale)
{
    for (enum family f = 0; f < FAMILIES; f++) {
        const struct family_result *r = &sums->family[f];
        if ((family_is_scale(f) ? scale : rms) && r->exceeding)
            case_worsen(
                j, VERDICT_FAIL,
                "%s%s: %llu of %llu aggregate tests exceed their limit (false-alarm probability %g); largest at layer "
                "%u, %s: %.3g times the limit",
                of, family_name(f), (unsigned long long)r->exceeding, (unsigned long long)r->count, sums->probability,
                r->layer, family_place(f, r, (char[64]){0}, 64), r->limit_ratio);
    }
}

void case_watch(struct case_result *j, const struct gb_kernel *kernel, const struct worker_checks *checks)
{
    if (checks->differing && !(kernel->flags & GB_NONDETERMINISTIC))
        misbehaved(j, VERDICT_NONDETERMINISTIC, "%llu elements differ between two runs on the same inputs; first: %s",
                   (unsigned long long)checks->differing, checks->where);
    if (checks->canary_broken)
        misbehaved(j, VERDICT_FAIL, "wrote outside a buffer: %s", checks->where);
    if (checks->input_changed)
        misbehaved(j, VERDICT_FAIL, "changed an input: %s", checks->where);
    if (checks->unwritten)
        case_worsen(j, VERDICT_FAIL, "%llu elements were never written; first: %s",
                    (unsigned long long)checks->unwritten, checks->where);
}

enum gb_status case_result_layers(struct case_result *r, const struct gb_fixture *f, struct gb_error *error)
{
    r->layer = calloc(f->layers, sizeof *r->layer);
    if (!r->layer)
        return gb_fail(error, GB_ENOMEM, "no memory for the results of %u layers", f->layers);
    r->layers = f->layers;
    for (uint32_t l = 0; l < f->layers; l++) {
        r->layer[l].layer = l;
        r->layer[l].model_layer = f->layer[l].index;
    }
    return GB_OK;
}

void case_result_free(struct case_result *r)
{
    free(r->layer);
    free(r->drift);
    r->layer = NULL;
    r->drift = NULL;
}

bool exact_violated(const struct exact_result *check)
{
    return !check->why && check->mismatching;
}

bool codes_violated(const struct codes_result *check)
{
    return check->codes && (check->inadmissible || (check->beyond && check->differences_binding));
}

bool sums_violated(const struct aggregate_tests *s, bool scale)
{
    uint64_t exceeding = 0;
    for (enum family f = 0; f < FAMILIES; f++)
        if (family_is_scale(f) == scale)
            exceeding += s->family[f].exceeding;
    return exceeding;
}

bool down_violated(const struct down_result *check)
{
    return check->bound.exceeding ||
           (!check->why && (sums_violated(&check->aggregate, false) || sums_violated(&check->aggregate, true)));
}

void layer_add_bits(struct layer_result *layer, const char *stage, enum gb_format format, size_t per_token,
                    const struct difference *d)
{
    if (layer->bits_count < MOST_STAGE_BITS)
        layer->bits[layer->bits_count++] = (struct stage_bits){stage, format, per_token, *d};
}

void layer_add_bound(struct layer_result *layer, const char *stage, size_t per_token, const struct bound_result *r)
{
    if (layer->bound_count < MOST_STAGE_BOUNDS)
        layer->bound[layer->bound_count++] = (struct stage_bound){stage, per_token, *r};
}

void layer_add_hash(struct layer_result *layer, const char *name, const void *data, size_t bytes)
{
    if (layer->hash_count == MOST_STAGE_HASHES)
        return;
    struct stage_hash *hash = &layer->hash[layer->hash_count++];
    snprintf(hash->name, sizeof hash->name, "%s", name);
    hash_sha256(data, bytes, hash->sha256);
}

void layer_add_hashes(struct layer_result *layer, const struct gb_layer_outputs *outputs, const struct gb_shape *shape,
                      const struct gb_quantiser *rules, bool with_output)
{
    size_t output = (size_t)shape->tokens * shape->hidden * (outputs->format == GB_FP32 ? 4 : 2);
    size_t inner = (size_t)shape->tokens * shape->top_k * shape->intermediate * sizeof(gb_bf16);
    if (with_output)
        layer_add_hash(layer, "output_sha256", outputs->output, output);
    if (outputs->intermediate)
        layer_add_hash(layer, "intermediate_sha256", outputs->intermediate, inner);
    for (int p = 0; p < GB_ACTIVATION_PARTS; p++)
        if (rules && outputs->activations[p]) {
            struct gb_activation_array a = gb_activation_array(rules, shape, (enum gb_activation_part)p);
            char name[48];
            snprintf(name, sizeof name, "%s_sha256", a.name);
            layer_add_hash(layer, name, outputs->activations[p], (size_t)shape->tokens * a.slots * a.width * a.bytes);
        }
}

void explanation_free(struct explanation *e)
{
    if (e)
        free(e->also);
    free(e);
}

struct case_entry *case_list_add(struct case_list *list, const char *subject, const char *library,
                                 const struct gb_kernel *kernel, uint32_t batch, const char *repro)
{
    struct case_entry *more = realloc(list->of, sizeof *more * (list->count + 1));
    if (!more)
        return NULL;
    list->of = more;
    struct case_entry *entry = &more[list->count];
    *entry = (struct case_entry){.subject = strdup(subject), .library = library, .batch = batch, .contract = ""};
    if (kernel) {
        entry->kernel = *kernel;
        entry->known = true;
    }
    entry->repro = strdup(repro);
    if (!entry->subject || !entry->repro) {
        free(entry->subject);
        free(entry->repro);
        return NULL;
    }
    list->count++;
    return entry;
}

void case_list_free(struct case_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        struct case_entry *e = &list->of[i];
        free(e->subject);
        free(e->repro);
        case_result_free(&e->result);
        explanation_free(e->explanation);
        if (e->minimal)
            free(e->minimal->repro);
        free(e->minimal);
    }
    free(list->of);
    *list = (struct case_list){0};
}
