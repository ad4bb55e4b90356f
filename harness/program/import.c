/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/judge/baseline.h"
#include "harness/run/compute_truth.h"
#include "harness/program/captured.h"
#include "harness/program/command.h"
#include "harness/explain/layout_probe.h"
#include "harness/run/output_guard.h"
#include "harness/run/verdict.h"
#include "quant/quant.h"
#include "reference/reference.h"

struct import_options {
    const char *directory, *path, *capture, *map;
    enum gb_format format; /* 0: the checkpoint's, or NVFP4 if it holds values */
    enum gb_format activations;
    const char *activation_recipe; /* NULL: the default of activations */
    bool trust;                    /* whatever the codes look like */
    bool round_router;             /* to bf16 */
    bool has_layers;
    uint32_t first, last; /* layers of the model */
    uint32_t tokens;      /* without a capture */
    uint64_t seed;
};

/* The checkpoint's experts as a source of weights. */
struct imported {
    const struct gb_checkpoint *checkpoint;
    struct gb_fixture *fixture;
    bool trust;
    uint32_t static_scales; /* layers that were published with global scales of activations */
};

enum {
    OPTION_FORMAT = 256,
    OPTION_ACTIVATIONS,
    OPTION_ACTIVATION_RECIPE,
    OPTION_LAYERS,
    OPTION_CAPTURE,
    OPTION_TOKENS,
    OPTION_SEED,
    OPTION_TRUST,
    OPTION_MAP,
    OPTION_ROUND_ROUTER
};

static const struct argp_option options[] = {
    {"format", OPTION_FORMAT, "FORMAT", 0,
     "weight format (gaugeblock list formats); nvfp4 by default; codes are taken over in their own", 0},
    {"activations", OPTION_ACTIVATIONS, "FORMAT", 0,
     "what activations are multiplied as: bf16 (default), or quantised to nvfp4, mxfp8 or fp8", 0},
    {"activation-recipe", OPTION_ACTIVATION_RECIPE, "RECIPE", 0,
     "with --activations: the rule that quantises them (gaugeblock list recipes); nvfp4.trtllm/1, "
     "mxfp8.rceil/1 or fp8g128.vllm/1 by default",
     0},
    {"layers", OPTION_LAYERS, "A-B", 0, "layers of the model, all by default; those without experts are left out", 0},
    {"map", OPTION_MAP, "FILE", 0, "names of tensors and the router of a model that is not known (docs/importing.md)",
     0},
    {"round-router", OPTION_ROUND_ROUTER, NULL, 0, "round a router's FP32 weights to bf16, which contracts route with",
     0},
    {"capture", OPTION_CAPTURE, "FILE", 0,
     "activations of real tokens (docs/fixtures.md); without it they are generated", 0},
    {"tokens", OPTION_TOKENS, "T", 0, "tokens: the capture's first T, or generated ones (16 by default)", 0},
    {"trust", OPTION_TRUST, NULL, 0, "take codes over even if they look misread (docs/importing.md)", 0},
    {"seed", OPTION_SEED, "N", 0, "seed of generated activations, 1 by default", 0},
    {0},
};

static void parse_layers(struct argp_state *state, const char *text, struct import_options *o)
{
    unsigned first, last;
    int end = 0;
    if (sscanf(text, "%5u-%5u%n", &first, &last, &end) != 2 || text[end] || first > last) {
        if (sscanf(text, "%5u%n", &first, &end) != 1 || text[end])
            usage_error(state, "--layers %s: give a range such as 0-3, or one number", text);
        last = first;
    }
    o->has_layers = true;
    o->first = first;
    o->last = last;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct import_options *o = state->input;
    uint64_t value;
    switch (key) {
    case OPTION_FORMAT:
        if (!gb_format_parse(argument, &o->format))
            usage_error(state, "--format %s: gaugeblock list formats prints those known", argument);
        return 0;
    case OPTION_ACTIVATIONS:
        if (!gb_format_parse(argument, &o->activations))
            usage_error(state, "--activations %s: there are bf16, nvfp4, mxfp8 and fp8", argument);
        return 0;
    case OPTION_ACTIVATION_RECIPE:
        o->activation_recipe = argument;
        return 0;
    case OPTION_LAYERS:
        parse_layers(state, argument, o);
        return 0;
    case OPTION_CAPTURE:
        o->capture = argument;
        return 0;
    case OPTION_TOKENS:
        if (!parse_number(argument, 1, 1 << 16, &value))
            usage_error(state, "--tokens %s: give a whole number from 1 to %d", argument, 1 << 16);
        o->tokens = (uint32_t)value;
        return 0;
    case OPTION_TRUST:
        o->trust = true;
        return 0;
    case OPTION_MAP:
        o->map = argument;
        return 0;
    case OPTION_ROUND_ROUTER:
        o->round_router = true;
        return 0;
    case OPTION_SEED:
        if (!parse_number(argument, 0, UINT64_MAX, &o->seed))
            usage_error(state, "--seed %s: give a whole number", argument);
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 1)
            usage_error(state, "give one checkpoint folder and one file to write");
        *(state->arg_num == 0 ? &o->directory : &o->path) = argument;
        return 0;
    case ARGP_KEY_END:
        if (!o->path)
            usage_error(state, "give a checkpoint folder and the file to write");
        if (o->activations == GB_BF16 && o->activation_recipe)
            usage_error(state, "--activation-recipe goes with --activations nvfp4, mxfp8 or fp8");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static enum gb_status matrix(void *context, uint32_t layer, uint32_t expert, enum gb_projection projection,
                             float *values, struct gb_error *error)
{
    const struct imported *i = context;
    return gb_checkpoint_expert(i->checkpoint, i->fixture->layer[layer].index, expert, projection, values, error);
}

static enum gb_status expert(void *context, uint32_t layer, uint32_t e, struct gb_error *error)
{
    const struct imported *i = context;
    return gb_fixture_quantise(i->fixture, layer, e, matrix, context, error);
}

/* Codes as the checkpoint has them. */
static enum gb_status codes(void *context, uint32_t layer, uint32_t e, struct gb_error *error)
{
    const struct imported *i = context;
    struct gb_layer *l = &i->fixture->layer[layer];
    struct gb_error reason;
    enum gb_status status = gb_checkpoint_codes(i->checkpoint, l->index, e, l, error);
    if (status != GB_OK || i->trust)
        return status;
    status = gb_codes_plausible(&l->gate_up, e, &reason);
    if (status == GB_OK)
        status = gb_codes_plausible(&l->down, e, &reason);
    if (status != GB_OK)
        gb_fail(error, status, "layer %u, expert %u: %s (--trust takes them over)", l->index, e, reason.message);
    return status;
}

/* Static scales of activations as the checkpoint has them. */
static enum gb_status scales(void *context, uint32_t layer, float *both, bool *found, struct gb_error *error)
{
    struct imported *i = context;
    enum gb_status status =
        gb_checkpoint_activation_scales(i->checkpoint, i->fixture->layer[layer].index, both, found, error);
    i->static_scales += status == GB_OK && *found;
    return status;
}

/* The format of the fixture: a checkpoint's codes are never quantised again. */
static enum gb_status choose_format(const struct import_options *o, const struct gb_checkpoint *checkpoint,
                                    enum gb_format *format, struct gb_error *error)
{
    *format = o->format ? o->format : checkpoint->layout ? checkpoint->format : GB_NVFP4;
    if (checkpoint->layout && *format != checkpoint->format)
        return gb_fail(error, GB_EINVAL,
                       "--format %s: %s holds %s codes (%s), which are taken over and never quantised again; leave "
                       "--format out",
                       gb_format_name(*format), o->directory, gb_format_name(checkpoint->format), checkpoint->layout);
    return GB_OK;
}

/* Router, norm and activations of every layer. */
static enum gb_status fill_inputs(struct gb_fixture *f, const struct gb_checkpoint *checkpoint,
                                  const struct gb_capture *capture, struct gb_error *error)
{
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    enum gb_status status = GB_OK;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        uint32_t index = f->layer[l].index;
        bool present;
        status = gb_checkpoint_router(checkpoint, index, &f->layer[l], error);
        if (status == GB_OK && checkpoint->biased)
            status = gb_checkpoint_biases(checkpoint, index, &f->layer[l], error);
        if (status == GB_OK && capture)
            status = gb_capture_inputs(capture, index, &f->shape, f->layer[l].x, error);
        if (status == GB_OK && capture && f->stack.residual && l == 0)
            status = gb_capture_residual(capture, index, &f->shape, f->stack.residual, f->stack.attention_delta,
                                         &present, error);
        else if (status == GB_OK && capture && f->stack.residual)
            status = gb_capture_between(capture, f->layer[l - 1].index, index, &f->shape,
                                        f->stack.attention_delta + l * count, &present, error);
    }
    if (status == GB_OK && !capture)
        status = gb_generate_x(f, error);
    if (status == GB_OK && !capture && f->stack.residual)
        status = gb_generate_residual(f, error);
    return status;
}

/* The layers of the model that are imported. */
struct chosen {
    uint32_t *layer; /* [count], ascending */
    uint32_t count;
};

/* Whether the capture has the residual stream from the first of these layers to the last. */
static enum gb_status has_residual(const struct gb_capture *capture, const struct chosen *chosen,
                                   const struct gb_shape *shape, bool *all, struct gb_error *error)
{
    size_t count = (size_t)shape->tokens * shape->hidden;
    double *delta = malloc(sizeof(double) * count); /* [tokens, hidden] */
    enum gb_status status = delta ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %zu values", count);
    *all = true;
    for (uint32_t l = 0; status == GB_OK && *all && l < chosen->count; l++)
        status = l == 0 ? gb_capture_residual(capture, chosen->layer[l], shape, NULL, delta, all, error)
                        : gb_capture_between(capture, chosen->layer[l - 1], chosen->layer[l], shape, delta, all, error);
    free(delta);
    return status;
}

/* Everything about the fixture that is neither an input nor truth. */
static void describe(const struct import_options *o, const struct gb_checkpoint *checkpoint,
                     const struct chosen *chosen, struct gb_fixture *f)
{
    f->apply_router_weight_on_input = checkpoint->apply_router_weight_on_input;
    f->norm_topk_prob = checkpoint->norm_topk_prob;
    f->activation = checkpoint->activation;
    snprintf(f->router, sizeof f->router, "%s", checkpoint->router);
    f->rms_norm_epsilon = checkpoint->rms_norm_epsilon;
    f->seed = o->capture ? 0 : o->seed;
    if (checkpoint->layout)
        snprintf(f->recipe, sizeof f->recipe, "published:%s", checkpoint->layout);
    else
        snprintf(f->recipe, sizeof f->recipe, "%s", gb_recipe_default(f->weights)->name);
    snprintf(f->contract, sizeof f->contract, "%s.bf16." GB_ORDER_FMA32, gb_format_name(f->weights));
    snprintf(f->generator, sizeof f->generator, "import/1");
    snprintf(f->source, sizeof f->source, "%s", checkpoint->name);
    snprintf(f->source_sha256, sizeof f->source_sha256, "%s", checkpoint->sha256);
    for (uint32_t l = 0; l < f->layers; l++)
        f->layer[l].index = chosen->layer[l];
}

/* What the codes show, all experts together. */
static enum gb_status check_order(const struct gb_fixture *f, struct gb_error *error)
{
    struct gb_error reason;
    enum gb_status status = GB_OK;
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        status = gb_order_plausible(&f->layer[l], f->activation, &reason);
        if (status != GB_OK)
            gb_fail(error, status, "layer %u: %s (--trust takes them over)", f->layer[l].index, reason.message);
    }
    return status;
}

/* Weights may be too large for binary32: no kernel could be judged on them. */
static enum gb_status check_range(const struct import_options *o, const struct gb_fixture *f, struct gb_error *error)
{
    struct baseline b;
    size_t count = (size_t)f->shape.tokens * f->shape.hidden;
    enum gb_status status = baseline_new(f, fixture_contract(f), NULL, &b, error);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        const float *output = b.reference->layer[l].output;
        for (size_t i = 0; status == GB_OK && i < count; i++)
            if (!isfinite(output[i]) || !isfinite(f->layer[l].truth_quantised[i]) ||
                !isfinite(f->layer[l].truth_original[i]))
                status = gb_fail(error, GB_EFORMAT,
                                 "%s: layer %u: with these weights its output is beyond binary32's range at token "
                                 "%zu, so that no kernel could be judged; the checkpoint's weights or scales are "
                                 "too large",
                                 path_end(o->directory), f->layer[l].index, i / f->shape.hidden);
    }
    baseline_free(&b);
    return status;
}

/* Codes, truth and what the capture says of them; then the file. */
static enum gb_status build(const struct import_options *o, const struct gb_checkpoint *checkpoint,
                            const struct gb_capture *capture, struct gb_fixture *f, struct gb_error *error)
{
    struct imported imported = {checkpoint, f, o->trust, 0};
    struct weight_source values = {&imported, matrix, expert, NULL}, published = {&imported, NULL, codes, scales};
    double cosine = (double)NAN;
    struct captured captured = {0};
    enum gb_status status = build_fixture(f, checkpoint->layout ? &published : &values, false, error);
    if (status == GB_OK && checkpoint->layout && capture && !o->trust)
        status = reading_check(f, capture, &cosine, error);
    if (status == GB_OK && checkpoint->layout && !o->trust)
        status = check_order(f, error);
    if (status == GB_OK)
        status = check_range(o, f, error);
    if (status == GB_OK && capture && !o->trust)
        status = captured_check(f, capture, &captured, error);
    if (status == GB_OK && f->layer[0].activation_scales)
        printf("global scales of activations: %s\n", imported.static_scales == f->layers ? "as published"
                                                     : imported.static_scales
                                                         ? "as published, calibrated in layers that have none"
                                                         : "calibrated on these tokens");
    if (status == GB_OK && captured.layers)
        printf("%u captured layers: the same experts for every token, outputs within %.1e (relative L2)\n",
               captured.layers, captured.distance);
    if (status == GB_OK && !isnan(cosine))
        printf("the codes give the captured output with a cosine of %.6f or more\n", cosine);
    return status == GB_OK ? gb_fixture_write(o->path, f, error) : status;
}

/* "left out: WHAT of layers 0, 2-4 (WHY)"; nothing if it is so in no layer. */
static void print_left_out(const struct gb_checkpoint *checkpoint, uint32_t first, uint32_t last, const char *what,
                           const char *why, bool (*is)(const struct gb_checkpoint *checkpoint, uint32_t layer))
{
    bool any = false;
    for (uint32_t l = first; l <= last; l++) {
        uint32_t from = l;
        if (!is(checkpoint, l))
            continue;
        while (l < last && is(checkpoint, l + 1))
            l++;
        if (any)
            printf(", ");
        else
            printf("left out: %s ", what);
        printf(l > from ? "%u-%u" : "%u", from, l);
        any = true;
    }
    if (any)
        printf(" (%s)\n", why);
}

static bool has_shared(const struct gb_checkpoint *checkpoint, uint32_t layer)
{
    char name[128];
    return gb_checkpoint_has_experts(checkpoint, layer) && gb_checkpoint_shared(checkpoint, layer, name);
}

/* What is taken over otherwise than as it stands, or not at all. */
static void print_words(const struct gb_checkpoint *checkpoint, uint32_t first, uint32_t last)
{
    if (checkpoint->guessed)
        printf("model_type '%s' is not known: by its tensors %u experts of %u x %u, router %s\n", checkpoint->type,
               checkpoint->shape.experts, checkpoint->shape.intermediate, checkpoint->shape.hidden, checkpoint->router);
    print_left_out(checkpoint, first, last, "layers", "no experts", gb_checkpoint_is_dense);
    print_left_out(checkpoint, first, last, "shared experts of layers", "they are not routed to", has_shared);
}

/* The layers of the range, but for those without experts. */
static enum gb_status choose_layers(const struct import_options *o, const struct gb_checkpoint *checkpoint,
                                    struct chosen *chosen, struct gb_error *error)
{
    uint32_t first = o->has_layers ? o->first : 0, last = o->has_layers ? o->last : checkpoint->layers - 1;
    if (last >= checkpoint->layers)
        return gb_fail(error, GB_EINVAL, "--layers %u-%u: %s has layers 0-%u", first, last, o->directory,
                       checkpoint->layers - 1);
    uint32_t count = 0;
    enum gb_status status = GB_OK;
    if (last - first >= gb_checkpoint_tensors(checkpoint)) /* more layers than tensors: none of the checkpoint's */
        status = gb_checkpoint_check_size(checkpoint, last - first + 1, error);
    for (uint32_t l = first; status == GB_OK && l <= last; l++)
        count += !gb_checkpoint_is_dense(checkpoint, l);
    if (status == GB_OK && !count)
        status = gb_fail(error, GB_EFORMAT,
                         "--layers %u-%u: %s has no experts in these layers; is it a "
                         "Mixture-of-Experts model?",
                         first, last, path_end(o->directory));
    if (status == GB_OK)
        status = gb_checkpoint_check_size(checkpoint, count, error);
    if (status != GB_OK)
        return status;
    chosen->layer = malloc(sizeof *chosen->layer * count);
    if (!chosen->layer)
        return gb_fail(error, GB_ENOMEM, "no memory for %u layers", count);
    for (uint32_t l = first; l <= last; l++)
        if (!gb_checkpoint_is_dense(checkpoint, l))
            chosen->layer[chosen->count++] = l;
    print_words(checkpoint, first, last);
    return GB_OK;
}

/* The parts that this checkpoint's layers have beside those that all have. */
static enum gb_status add_parts(const struct gb_checkpoint *checkpoint, struct gb_fixture *f, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    if (gb_checkpoint_encodes(checkpoint))
        status = gb_fixture_add(f, GB_EXTRA_ENCODE_SCALES, error);
    if (status == GB_OK && checkpoint->biased)
        status = gb_fixture_add(f, GB_EXTRA_BIASES, error);
    if (status == GB_OK && checkpoint->router_biased)
        status = gb_fixture_add(f, GB_EXTRA_ROUTER_BIAS, error);
    return status;
}

static enum gb_status import(const struct import_options *o, const struct gb_checkpoint *checkpoint,
                             const struct gb_capture *capture, struct chosen *chosen, struct gb_fixture **fixture,
                             struct gb_error *error)
{
    struct gb_shape shape = checkpoint->shape;
    bool residual = !checkpoint->streamless;
    shape.tokens = o->tokens ? o->tokens : capture ? gb_capture_tokens(capture) : 16;
    if (capture && shape.tokens > gb_capture_tokens(capture))
        return gb_fail(error, GB_EINVAL, "--tokens %u: %s has %u", shape.tokens, o->capture,
                       gb_capture_tokens(capture));
    enum gb_format format;
    enum gb_status status = choose_format(o, checkpoint, &format, error);
    if (status != GB_OK)
        return status;
    uint32_t block = gb_format_multiple(format);
    if (shape.hidden % block || shape.intermediate % block)
        return gb_fail(error, GB_EINVAL, "%s: hidden %u and intermediate %u must be multiples of %u for %s",
                       o->directory, shape.hidden, shape.intermediate, block, gb_format_name(format));
    status = choose_layers(o, checkpoint, chosen, error);
    if (status == GB_OK && capture && residual)
        status = has_residual(capture, chosen, &shape, &residual, error);
    if (status == GB_OK)
        status = gb_fixture_new(&shape, chosen->count, format, true, residual, residual && capture, fixture, error);
    if (status == GB_OK)
        status = add_parts(checkpoint, *fixture, error);
    if (status != GB_OK)
        return status;
    describe(o, checkpoint, chosen, *fixture);
    if (o->activations != GB_BF16)
        status = activations_choose(*fixture, o->activations, o->activation_recipe, error);
    if (status == GB_OK)
        status = fill_inputs(*fixture, checkpoint, capture, error);
    return status == GB_OK ? build(o, checkpoint, capture, *fixture, error) : status;
}

static const struct argp argp = {
    .options = options,
    .parser = parse,
    .args_doc = "CHECKPOINT_DIR OUT.h5",
    .doc = "Make a problem from a safetensors checkpoint in Hugging Face naming.\v"
           "Example:\n"
           "  gaugeblock import fixtures/data/tiny-qwen3-moe tiny.h5 --format nvfp4 \\\n"
           "      --capture fixtures/data/tiny-qwen3-moe/capture.safetensors",
};

static int run_import(int argc, char **argv)
{
    struct import_options o = {.activations = GB_BF16, .seed = 1};
    struct gb_checkpoint *checkpoint = NULL;
    struct gb_capture *capture = NULL;
    struct gb_fixture *fixture = NULL;
    struct chosen chosen = {0};
    struct gb_error error;
    command_parse(&argp, argc, argv, &o);
    enum gb_status status = output_guard_checkpoint(o.path, o.directory, &error);
    if (status == GB_OK)
        status = output_guard(o.path, (const char *[]){o.capture, o.map}, 2, &error);
    if (status == GB_OK)
        status = gb_checkpoint_open_mapped(o.directory, o.map, &checkpoint, &error);
    if (status == GB_OK)
        checkpoint->round_router = o.round_router;
    if (status == GB_OK && o.capture)
        status = gb_capture_open(o.capture, &capture, &error);
    if (status == GB_OK)
        status = import(&o, checkpoint, capture, &chosen, &fixture, &error);
    if (status == GB_OK)
        printf("%s: %u layers of %s, %s, sha256 %s\n", o.path, fixture->layers, fixture->source, fixture->contract,
               fixture->sha256);
    free(chosen.layer);
    gb_fixture_free(fixture);
    gb_capture_close(capture);
    gb_checkpoint_close(checkpoint);
    return status == GB_OK ? EXIT_PASS : command_error("import", "%s", error.message);
}

const struct command command_import = {"import", run_import, &argp, "make a problem from a checkpoint"};
