/* SPDX-License-Identifier: Apache-2.0 */
/* What a quantiser's wrong codes and scales are: those of another recipe, of a known bug, or of one rule changed. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/operators.h"
#include "harness/faults/faults_quantise.h"
#include "harness/judge/recipe_diff.h"
#include "harness/faults/quantise_as.h"
#include "quant/quant.h"

/* Named where every bit is the same; or, of those that explain at least half of the differences, the closest. */
enum { MOST_NAMED = 3 };
static const double least_explained = 0.5;

struct search {
    const struct gb_fixture *fixture;
    const struct gb_outputs *outputs;
    uint64_t differences; /* from the reference */
    char named[MOST_NAMED][160];
    uint32_t count;
    char closest[160];
    uint64_t left; /* differences from the closest */
};

static void take(struct search *s, const struct gb_outputs *theirs, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What a hypothesis makes of the fixture, and what to call it. */
static void take(struct search *s, const struct gb_outputs *made, const char *format, ...)
{
    uint64_t left = quantise_differences(made, s->outputs);
    bool exact = left == 0 && s->count < MOST_NAMED, closer = left < s->left;
    va_list list;
    va_start(list, format);
    if (exact)
        vsnprintf(s->named[s->count++], sizeof s->named[0], format, list);
    else if (closer)
        vsnprintf(s->closest, sizeof s->closest, format, list);
    va_end(list);
    s->left = closer ? left : s->left;
}

static enum gb_status try_recipes(struct search *s, struct gb_error *error)
{
    size_t count;
    const struct gb_recipe *recipes = gb_recipes(&count);
    const struct gb_quantiser *asked = &s->fixture->quantisation.quantiser;
    enum gb_status status = GB_OK;
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        const struct gb_quantiser *rules = &recipes[i].quantiser;
        struct gb_quantisation q = gb_fixture_quantisation(s->fixture, s->outputs->shape.tokens);
        struct gb_outputs *made;
        if (rules->element != asked->element || rules->scale != asked->scale ||
            rules->block_rows != asked->block_rows || rules->block_columns != asked->block_columns ||
            !strcmp(recipes[i].name, s->fixture->recipe))
            continue;
        bool decodes = asked->global == GB_GLOBAL_DECODE, others = rules->global == GB_GLOBAL_DECODE;
        q.quantiser = *rules;
        q.global_scale = decodes == others ? q.global_scale : 1.0f / q.global_scale;
        status = quantise_as(&q, s->fixture->values, &made, error);
        if (status == GB_EINVAL) {
            status = GB_OK; /* it takes no bound, for instance */
            continue;
        }
        if (status == GB_OK)
            take(s, made, "the recipe %s, not %s", recipes[i].name, s->fixture->recipe);
        gb_outputs_free(made);
    }
    return status;
}

static enum gb_status try_bugs(struct search *s, struct gb_error *error)
{
    size_t count;
    const struct quantise_fault *all = quantise_faults(&count);
    enum gb_status status = GB_OK;
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        struct gb_outputs *made;
        status = quantise_fault_run(&all[i], s->fixture, s->outputs->shape.tokens, &made, error);
        if (status == GB_OK && made)
            take(s, made, "%s, but %s", s->fixture->recipe, all[i].name);
        gb_outputs_free(made);
    }
    return status;
}

static enum gb_status try_rules(struct search *s, struct gb_error *error)
{
    struct rule_change change;
    enum gb_status status = GB_OK;
    for (unsigned i = 0; status == GB_OK && rule_change_next(&s->fixture->quantisation.quantiser, i, &change); i++) {
        struct gb_quantisation q = gb_fixture_quantisation(s->fixture, s->outputs->shape.tokens);
        struct gb_outputs *made;
        q.quantiser = change.rules;
        status = quantise_as(&q, s->fixture->values, &made, error);
        if (status == GB_EINVAL) {
            status = GB_OK;
            continue;
        }
        if (status == GB_OK)
            take(s, made, "%s with another %s: %s instead of %s", s->fixture->recipe, change.rule, change.to,
                 change.from);
        gb_outputs_free(made);
    }
    return status;
}

static enum gb_status describe(const struct search *s, struct explanation **explanation, struct gb_error *error)
{
    struct explanation *e = calloc(1, sizeof *e);
    size_t used;
    *explanation = e;
    if (!e)
        return gb_fail(error, GB_ENOMEM, "no memory for an explanation");
    double explains = s->count ? 1.0 : 1.0 - (double)s->left / (double)s->differences;
    e->expert = -1;
    e->best.explains = explains;
    snprintf(e->best.name, sizeof e->best.name, "%s", s->count ? s->named[0] : s->closest);
    strcpy(e->kind, e->best.name);
    for (uint32_t i = 0; i < s->count || i == 0; i++) {
        e->shown[i].explains = explains;
        strcpy(e->shown[i].name, s->count ? s->named[i] : s->closest);
        e->shown_count++;
    }
    if (s->count)
        used = (size_t)snprintf(e->text, sizeof e->text, "looks like: %s", s->named[0]);
    else
        used = (size_t)snprintf(e->text, sizeof e->text, "looks like: %s (%.1f %% of the differences)", s->closest,
                                100.0 * explains);
    for (uint32_t i = 1; i < s->count && used < sizeof e->text; i++)
        used += (size_t)snprintf(e->text + used, sizeof e->text - used, "; or %s", s->named[i]);
    return GB_OK;
}

enum gb_status explain_quantise(const struct gb_fixture *f, const struct gb_outputs *outputs,
                                struct explanation **explanation, struct gb_error *error)
{
    struct search s = {.fixture = f, .outputs = outputs};
    struct gb_outputs *reference;
    *explanation = NULL;
    enum gb_status status = quantise_reference(f, outputs->shape.tokens, &reference, error);
    if (status != GB_OK)
        return status;
    s.differences = s.left = quantise_differences(reference, outputs);
    gb_outputs_free(reference);
    status = try_recipes(&s, error);
    if (status == GB_OK)
        status = try_bugs(&s, error);
    if (status == GB_OK)
        status = try_rules(&s, error);
    if (status != GB_OK || (!s.count && (double)s.left > least_explained * (double)s.differences))
        return status;
    return describe(&s, explanation, error);
}
