/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/make_quantise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/command.h"
#include "quant/quant.h"

/* A row's own name of an option, for messages. */
static void note(struct make_quantise *o, const char *name)
{
    o->first = o->first ? o->first : name;
}

static enum gb_format value_format(struct argp_state *state, const char *option, const char *text, bool wide)
{
    if (!strcmp(text, "bf16"))
        return GB_BF16;
    if (!strcmp(text, "fp16"))
        return GB_FP16;
    if (!wide || strcmp(text, "fp32"))
        usage_error(state, "--%s %s: there are bf16 and fp16%s", option, text, wide ? ", and fp32" : "");
    return GB_FP32;
}

static float above_zero(struct argp_state *state, const char *option, const char *text)
{
    char *end;
    float value = strtof(text, &end);
    if (end == text || *end || !(value > 0.0f) || !isfinite(value))
        usage_error(state, "--%s %s: give a number above zero", option, text);
    return value;
}

static enum gb_silu_form silu_form(struct argp_state *state, const char *text)
{
    for (enum gb_silu_form form = GB_SILU_EXACT; form <= GB_SILU_RECIPROCAL; form++)
        if (!strcmp(text, gb_silu_form_name(form)))
            return form;
    usage_error(state, "--silu %s: there are exact, divide and reciprocal", text);
}

error_t make_quantise_parse(int key, char *argument, struct argp_state *state, struct make_quantise *o)
{
    switch (key) {
    case MAKE_OPERATOR:
        o->operator= operator_named(argument);
        if (!o->operator|| o->operator->layers)
            usage_error(
                state,
                "--operator %s: there are quantise, silu_mul_quantise, dispatch and combine; without it a problem of layers "
                "is made",
                argument);
        return 0;
    case MAKE_RECIPE:
        note(o, "recipe");
        o->recipe = gb_recipe_find(argument);
        if (!o->recipe || !o->recipe->quantiser.element)
            usage_error(state, "--recipe %s: %s; see gaugeblock list recipes", argument,
                        o->recipe ? "has no scales" : "unknown");
        return 0;
    case MAKE_INPUT:
        note(o, "input");
        o->input = value_format(state, "input", argument, false);
        return 0;
    case MAKE_SILU:
        note(o, "silu");
        o->silu = silu_form(state, argument);
        return 0;
    case MAKE_ACTIVATED:
        note(o, "activated");
        o->activated = value_format(state, "activated", argument, true);
        return 0;
    case MAKE_PRODUCT:
        note(o, "product");
        o->product = value_format(state, "product", argument, true);
        return 0;
    case MAKE_LAYOUT:
        note(o, "layout");
        if (!strcmp(argument, "transposed"))
            o->layout = GB_SCALES_TRANSPOSED;
        else if (strcmp(argument, "linear"))
            usage_error(state, "--layout %s: there are linear and transposed", argument);
        return 0;
    case MAKE_BOUND:
        note(o, "bound");
        o->bound = above_zero(state, "bound", argument);
        return 0;
    case MAKE_GLOBAL_SCALE:
        note(o, "global-scale");
        o->global_scale = above_zero(state, "global-scale", argument);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void make_quantise_check(struct argp_state *state, const struct make_quantise *o)
{
    bool ranks = o->operator&& o->operator->over_ranks;
    if ((!o->operator&& o->first) || (ranks && o->first && strcmp(o->first, "recipe")))
        usage_error(state, "--%s goes with --operator quantise or silu_mul_quantise", o->first);
    if (ranks)
        return;
    if (o->operator&& !o->recipe)
        usage_error(state, "--operator goes with --recipe, the rules of the quantiser (gaugeblock list recipes)");
    if (o->operator&& !(o->operator->flags & GB_OPEN_SILU) && (o->silu || o->activated || o->product))
        usage_error(state, "--silu, --activated and --product go with --operator silu_mul_quantise");
    if (o->operator&& o->global_scale> 0.0f && o->recipe->quantiser.global == GB_GLOBAL_NONE)
        usage_error(state, "--global-scale: %s has none", o->recipe->name);
}

static enum gb_status parse_shape(const char *text, struct gb_quantisation *q, struct gb_error *error)
{
    char rows[32];
    const char *comma = strchr(text, ',');
    uint64_t r, c;
    snprintf(rows, sizeof rows, "%.*s", comma ? (int)(comma - text) : 0, text);
    if (!comma || comma - text >= (long)sizeof rows || !parse_number(rows, 1, 1 << 20, &r) ||
        !parse_number(comma + 1, 1, 1 << 20, &c))
        return gb_fail(error, GB_EINVAL, "--shape %s: give rows,columns, each from 1 to %d", text, 1 << 20);
    q->rows = (uint32_t)r;
    q->columns = (uint32_t)c;
    return GB_OK;
}

/* The generator of this name that makes values of quantisers. */
static const struct gb_generator *find_generator(const char *data)
{
    static const char *const names[] = {"gaussian/1", "ties/1", "edge/1", "nonfinite/1"};
    size_t count, length = strlen(data);
    const struct gb_generator *all = gb_generators(&count);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (size_t i = 0; i < count; i++)
            if (!strcmp(all[i].name, names[n]) && !strncmp(names[n], data, length) &&
                (names[n][length] == '/' || !names[n][length]))
                return &all[i];
    return NULL;
}

enum gb_status make_quantise(const struct make_quantise *o, const char *data, uint64_t seed,
                             struct gb_fixture **fixture, struct gb_error *error)
{
    const struct gb_generator *generator = find_generator(data);
    struct gb_quantisation q = {.size = sizeof q,
                                .input = o->input ? o->input : GB_BF16,
                                .rows = 64,
                                .columns = 512,
                                .quantiser = o->recipe->quantiser,
                                .layout = o->layout,
                                .bound = o->bound > 0.0f ? o->bound : INFINITY,
                                .global_scale = 1.0f};
    if (!generator)
        return gb_fail(error, GB_EINVAL, "--data %s: of quantisers there are gaussian, ties, edge and nonfinite", data);
    enum gb_status status = o->shape ? parse_shape(o->shape, &q, error) : GB_OK;
    q.input_columns = q.columns;
    if (o->operator->flags & GB_OPEN_SILU) { /* gate and up */
        q.input_columns = 2 * q.columns;
        q.silu = o->silu ? o->silu : GB_SILU_EXACT;
        q.activated = o->activated ? o->activated : GB_FP32;
        q.product = o->product ? o->product : GB_FP32;
    }
    if (status == GB_OK)
        status = gb_fixture_new_quantise(o->operator->operation, &q, o->recipe->name, fixture, error);
    if (status != GB_OK)
        return status;
    struct gb_fixture *f = *fixture;
    f->seed = seed;
    snprintf(f->generator, sizeof f->generator, "%s", generator->name);
    snprintf(f->source, sizeof f->source, "--operator %s --shape %u,%u", o->operator->name, q.rows, q.columns);
    status = gb_generate_values(f, error);
    if (o->global_scale > 0.0f)
        f->quantisation.global_scale = o->global_scale;
    return status;
}
