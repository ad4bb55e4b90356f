/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/study_sensitivity.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/run/output_guard.h"
#include "harness/run/probe.h"
#include "harness/run/verdict.h"
#include "harness/study/sensitivity.h"

static const double enough = 0.2; /* of the error, at which the greedy list ends */

/* Weights before quantisation. */
struct originals {
    const struct gb_checkpoint *checkpoint;
    const struct gb_fixture *fixture;
};

static enum gb_status matrix(void *context, uint32_t layer, uint32_t expert, enum gb_projection projection,
                             float *values, struct gb_error *error)
{
    const struct originals *o = context;
    return gb_checkpoint_expert(o->checkpoint, o->fixture->layer[layer].index, expert, projection, values, error);
}

/* One expert's scales of activations, the larger one of gate and up; NaN where it has none. scales: [2] */
static enum gb_status read_expert(const struct gb_checkpoint *c, uint32_t layer, uint32_t expert, float *scales,
                                  uint32_t *there, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    scales[0] = scales[1] = NAN;
    for (int p = GB_GATE_PROJ; status == GB_OK && p <= GB_DOWN_PROJ; p++) {
        float scale = NAN, *at = &scales[p == GB_DOWN_PROJ];
        bool found;
        status = gb_checkpoint_activation_scale(c, layer, expert, (enum gb_projection)p, &scale, &found, error);
        if (status != GB_OK || !found)
            continue;
        *at = isnan(*at) || scale > *at ? scale : *at;
        ++*there;
    }
    return status;
}

/* The scales of activations that a checkpoint was published with. scales: [layers, experts, 2] */
static enum gb_status read_scales(const char *folder, const struct gb_fixture *f, float **scales,
                                  struct gb_error *error)
{
    const uint32_t experts = f->shape.experts;
    struct gb_checkpoint *c = NULL;
    uint32_t there = 0;
    enum gb_status status = gb_checkpoint_open(folder, &c, error);
    if (status == GB_OK && (c->shape.experts != experts || c->format != GB_NVFP4))
        status = gb_fail(error, GB_EINVAL,
                         "--input-scales %s: has %u experts with %s weights; name an NVFP4 checkpoint of these %u",
                         folder, c->shape.experts, c->layout ? gb_format_name(c->format) : "unquantised", experts);
    *scales = status == GB_OK ? malloc(sizeof **scales * 2 * f->layers * experts) : NULL;
    if (status == GB_OK && !*scales)
        status = gb_fail(error, GB_ENOMEM, "no memory for the scales of %u layers", f->layers);
    for (size_t i = 0; status == GB_OK && i < (size_t)f->layers * experts; i++)
        status = read_expert(c, f->layer[i / experts].index, (uint32_t)(i % experts), *scales + 2 * i, &there, error);
    if (status == GB_OK && !there)
        status =
            gb_fail(error, GB_EFORMAT, "%s: has no input_scale or input_global_scale of this model's experts", folder);
    gb_checkpoint_close(c);
    return status;
}

static const char *const remedies[] = {"bf16", "mxfp8", "dynamic"};
static const char *const remedied[] = {"left in bf16", "left in MXFP8", "with dynamic scales of activations"};

/* A layer and what remedying it takes away. */
struct ranked {
    uint32_t layer;
    double takes;
};

static int by_takes(const void *a, const void *b)
{
    const struct ranked *one = a, *other = b;
    return one->takes > other->takes ? -1 : one->takes < other->takes ? 1 : one->layer > other->layer ? 1 : -1;
}

/* The fewest whole layers that take as much away as the greedy list is to, the most harmful one first. layers:
 * [fixture's layers]; the number of them. *share: what they take away together. */
static uint32_t whole_layers(const struct study_sensitivity *s, struct ranked *layers, double *share)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < s->fixture->layers; l++)
        layers[l] = (struct ranked){l, s->layer_takes[l]};
    qsort(layers, s->fixture->layers, sizeof *layers, by_takes);
    for (*share = 0.0; count < s->fixture->layers && *share < 1.0 - s->enough && layers[count].takes > 0.0; count++)
        *share += layers[count].takes;
    return count;
}

static uint32_t chosen_experts(const struct study_sensitivity *s)
{
    uint32_t chosen = 0;
    while (chosen < s->units && s->unit[chosen].rank)
        chosen++;
    return chosen;
}

static uint32_t layers_of(const struct study_sensitivity *s, uint32_t chosen)
{
    uint32_t count = 0;
    for (uint32_t l = 0; l < s->fixture->layers; l++)
        for (uint32_t u = 0; u < chosen; u++)
            if (s->unit[u].layer == l) {
                count++;
                break;
            }
    return count;
}

static void print_layers(FILE *stream, const struct study_sensitivity *s)
{
    const struct gb_fixture *f = s->fixture;
    struct ranked *layers = malloc(sizeof *layers * f->layers);
    double share;
    fprintf(stream, "\n  layer  share of squared error\n");
    if (!layers)
        fprintf(stream, "  no memory to find whole layers\n");
    for (uint32_t l = 0; l < f->layers; l++)
        fprintf(stream, "  %5u  %6.1f %%\n", f->layer[l].index, 100.0 * s->by_layer[l]);
    uint32_t count = layers ? whole_layers(s, layers, &share) : 0;
    if (count)
        fprintf(stream, "\n%u of %u whole layers %s take %.0f %% of it away:", count, f->layers, remedied[s->remedy],
                100.0 * share);
    for (uint32_t l = 0; l < count; l++)
        fprintf(stream, "%s %u", l ? "," : "", f->layer[layers[l].layer].index);
    free(layers);
}

/* What is strange about the input scales that experts were published with. */
static void print_scales(FILE *stream, const struct study_sensitivity *s)
{
    /* E4M3's normal block scales span 448 / 2^-6, 14.8 binades; half of them are lost at this range. */
    const double wide = 128.0;
    for (uint32_t u = 0; u < s->units; u++) {
        const struct study_unit *one = &s->unit[u];
        if (!one->unset && (one->range == 0.0 || (one->range <= 1.01 && one->range * wide >= 1.0)))
            continue;
        fprintf(stream, "layer %u, expert %u: ", s->fixture->layer[one->layer].index, one->expert);
        if (one->unset)
            fprintf(stream, "an input scale is 1, as before any calibration\n");
        else if (one->range > 1.0)
            fprintf(stream, "its largest input is %.3g times what its input scale can hold; was it calibrated?\n",
                    one->range);
        else
            fprintf(stream, "its input scale can hold %.3g times its largest input; was it calibrated?\n",
                    1.0 / one->range);
    }
}

static void print(FILE *stream, const struct study_sensitivity *s)
{
    const struct gb_fixture *f = s->fixture;
    uint32_t chosen = chosen_experts(s);
    fprintf(stream, "%s, %s weights, %s activations: %u tokens\n", f->source, gb_format_name(f->weights),
            s->recipe ? s->recipe->name : "bf16", f->shape.tokens);
    fprintf(stream, "error of all layers: %.3e of the residual stream (relative L2)\n", sqrt(s->error));
    if (s->remedy != STUDY_IN_BF16)
        fprintf(stream, "all experts %s: %.3e\n", remedied[s->remedy], sqrt(s->remedied));
    print_layers(stream, s);
    fprintf(stream,
            "\n%u of %u experts that have tokens, in %u of %u layers, %s take %.0f %% of it away, in this sequence:\n",
            chosen, s->units, layers_of(s, chosen), f->layers, remedied[s->remedy],
            chosen ? 100.0 * (1.0 - s->unit[chosen - 1].left) : 0.0);
    fprintf(stream,
            "  layer  expert  tokens  takes away  adds by itself  weights alone  activations alone  left of all\n");
    for (uint32_t u = 0; u < chosen; u++) {
        const struct study_unit *one = &s->unit[u];
        double weights = one->part[STUDY_GATE_WEIGHTS] + one->part[STUDY_UP_WEIGHTS] + one->part[STUDY_DOWN_WEIGHTS];
        fprintf(stream, "  %5u  %6u  %6u  %8.2f %%  %12.2f %%  %11.2f %%  %15.2f %%  %9.2f %%\n",
                f->layer[one->layer].index, one->expert, one->tokens, 100.0 * one->takes[STUDY_PARTS] / s->error,
                100.0 * one->adds / s->error, 100.0 * weights / s->error,
                100.0 * (one->part[STUDY_X] + one->part[STUDY_INTERMEDIATE]) / s->error, 100.0 * one->left);
    }
    print_scales(stream, s);
}

static void write_csv(FILE *stream, const struct study_sensitivity *s)
{
    fprintf(stream, "layer,expert,tokens,rank,left,adds");
    for (int p = 0; p < STUDY_PARTS; p++)
        fprintf(stream, ",%s", study_part_name((enum study_part)p));
    fprintf(stream, ",takes");
    for (int p = 0; p < STUDY_PARTS; p++)
        fprintf(stream, ",takes of %s", study_part_name((enum study_part)p));
    fprintf(stream, ",range\n");
    for (uint32_t u = 0; u < s->units; u++) {
        const struct study_unit *one = &s->unit[u];
        fprintf(stream, "%u,%u,%u,", s->fixture->layer[one->layer].index, one->expert, one->tokens);
        if (one->rank)
            fprintf(stream, "%u,%.9g", one->rank, one->left);
        else
            fprintf(stream, ",");
        fprintf(stream, ",%.9g", one->adds);
        for (int p = 0; p < STUDY_PARTS; p++)
            fprintf(stream, ",%.9g", one->part[p]);
        fprintf(stream, ",%.9g", one->takes[STUDY_PARTS]);
        for (int p = 0; p < STUDY_PARTS; p++)
            fprintf(stream, ",%.9g", one->takes[p]);
        fprintf(stream, ",%.9g\n", one->range);
    }
}

/* Lists in the words of those who read them. */
struct exclusion {
    json_t *modules, *ignore, *quantisers;
};

static json_t *exclusion_done(const struct exclusion *e)
{
    return json_pack("{s:o, s:o, s:o}", "exclude_modules", e->modules, "ignore", e->ignore, "quant_cfg", e->quantisers);
}

static void disable(struct exclusion *e, json_t *pattern)
{
    json_array_append_new(e->quantisers, json_pack("{s:o, s:b}", "quantizer_name", pattern, "enable", 0));
}

/* A module's name with dots that mean dots, as a regular expression: "model." becomes "model[.]". */
static void escape(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (; *text && used + 4 < size; text++)
        used += (size_t)snprintf(out + used, size - used, *text == '.' ? "[.]" : "%c", *text);
    out[used] = 0;
}

/* The greedy list as quantisers take it: patterns of Model Optimizer's exclude_modules and entries of its quant_cfg,
 * where experts are modules or quantisers in a list, and regular expressions of llm-compressor's ignore. Between the
 * layer and its experts stands any name, as it is another one in a checkpoint than in memory. */
static void write_exclude(FILE *stream, const struct study_sensitivity *s)
{
    const struct gb_fixture *f = s->fixture;
    const struct originals *originals = s->context;
    const char *prefix = gb_checkpoint_prefix(originals->checkpoint);
    struct ranked *layers = malloc(sizeof *layers * f->layers);
    struct exclusion one = {json_array(), json_array(), json_array()},
                     whole = {json_array(), json_array(), json_array()};
    char escaped[512] = "";
    double share;
    escape(prefix, escaped, sizeof escaped);
    for (uint32_t u = 0; u < chosen_experts(s); u++) {
        unsigned layer = f->layer[s->unit[u].layer].index, expert = s->unit[u].expert;
        json_array_append_new(one.modules, json_sprintf("%slayers.%u.*.experts.%u.*", prefix, layer, expert));
        json_array_append_new(one.ignore,
                              json_sprintf("re:^%slayers[.]%u[.].*[.]experts[.]%u[.].*", escaped, layer, expert));
        disable(&one, json_sprintf("%slayers.%u.*.experts.%u.*", prefix, layer, expert));
        disable(&one, json_sprintf("%slayers.%u.*.experts.*_quantizers.%u", prefix, layer, expert));
    }
    for (uint32_t l = 0, count = layers ? whole_layers(s, layers, &share) : 0; l < count; l++) {
        unsigned layer = f->layer[layers[l].layer].index;
        json_array_append_new(whole.modules, json_sprintf("%slayers.%u.*.experts*", prefix, layer));
        json_array_append_new(whole.ignore, json_sprintf("re:^%slayers[.]%u[.].*[.]experts([.].*)?$", escaped, layer));
        disable(&whole, json_sprintf("%slayers.%u.*.experts.*", prefix, layer));
    }
    json_t *all = exclusion_done(&one);
    json_object_set_new(all, "whole_layers", exclusion_done(&whole));
    json_dumpf(all, stream, JSON_INDENT(2));
    fputc('\n', stream);
    json_decref(all);
    free(layers);
}

typedef void writer(FILE *stream, const struct study_sensitivity *s);

static enum gb_status write_file(const char *path, writer *write, const struct study_sensitivity *s,
                                 struct gb_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream)
        write(stream, s);
    bool good = stream && !fclose(stream);
    enum gb_status status =
        good ? gb_file_write(path, text, bytes, error) : gb_fail(error, GB_ENOMEM, "no memory for %s", path);
    free(text);
    return status;
}

/* The fixture has what is measured, and the checkpoint is of its shape. */
static enum gb_status check(const struct gb_fixture *f, const struct gb_checkpoint *c, struct gb_error *error)
{
    if (!f->stack.residual || f->generated)
        return gb_fail(error, GB_EINVAL,
                       "has no residual stream or no weights; import it from a checkpoint, with a "
                       "capture");
    if (f->activation != GB_SILU || f->layer[0].gate_up_bias || f->apply_router_weight_on_input)
        return gb_fail(error, GB_EUNSUPPORTED,
                       "has biases, a weighed input or another activation than silu, which "
                       "sensitivity does not measure");
    if (c->shape.hidden != f->shape.hidden || c->shape.intermediate != f->shape.intermediate ||
        c->shape.experts != f->shape.experts || c->layout)
        return gb_fail(error, GB_EINVAL,
                       "--original is of another shape, or holds codes; name the folder of the "
                       "checkpoint that this was quantised from");
    for (uint32_t l = 0; l < f->layers; l++)
        if (f->layer[l].index >= c->layers)
            return gb_fail(error, GB_EINVAL, "--original has no layer %u", f->layer[l].index);
    return GB_OK;
}

/* The recipe of activations; *recipe NULL: they stay bf16. */
static enum gb_status choose(const struct sensitivity_options *o, const struct gb_fixture *f,
                             const struct gb_recipe **recipe, struct gb_error *error)
{
    char path[64];
    struct study_path paths[STUDY_PATHS];
    uint32_t count;
    const char *name = o->activations              ? o->activations
                       : f->activations != GB_BF16 ? gb_format_name(f->activations)
                                                   : "nvfp4";
    snprintf(path, sizeof path, "%.40s.fma32", name);
    enum gb_status status = study_paths(path, f->weights, &f->shape, paths, &count, error);
    *recipe = status == GB_OK ? paths[count - 1].recipe : NULL;
    return status;
}

/* What is done to experts that are not quantised as the rest, and whether all that was asked for goes with it. */
static enum gb_status choose_remedy(const struct sensitivity_options *o, const struct gb_fixture *f,
                                    const struct gb_checkpoint *checkpoint, struct study_sensitivity *s,
                                    struct gb_error *error)
{
    struct study_path paths[STUDY_PATHS];
    uint32_t count;
    bool global = s->recipe && s->recipe->quantiser.global != GB_GLOBAL_NONE;
    enum gb_status status = GB_OK;
    while (o->remedy && strcmp(o->remedy, remedies[s->remedy]))
        if (s->remedy++ == STUDY_DYNAMIC)
            return gb_fail(error, GB_EINVAL, "--remedy %s: there are bf16, mxfp8 and dynamic", o->remedy);
    if (!global && (s->remedy == STUDY_DYNAMIC || o->input_scales))
        return gb_fail(error, GB_EINVAL, "--%s goes with activations that have a global scale, nvfp4",
                       o->input_scales ? "input-scales" : "remedy dynamic");
    if (o->exclude && s->remedy == STUDY_DYNAMIC)
        return gb_fail(error, GB_EINVAL, "--exclude: with --remedy dynamic no expert is left out");
    if (o->exclude && !gb_checkpoint_prefix(checkpoint))
        return gb_fail(error, GB_EUNSUPPORTED,
                       "--exclude: this model's experts are one tensor, of which no quantiser "
                       "leaves one out");
    if (s->remedy == STUDY_IN_MXFP8)
        status = study_paths("mxfp8.fma32", f->weights, &f->shape, paths, &count, error);
    if (status == GB_OK && s->remedy == STUDY_IN_MXFP8)
        s->mxfp8 = paths[count - 1].recipe;
    return status;
}

static enum gb_status run(const struct sensitivity_options *o, struct gb_fixture *f,
                          const struct gb_checkpoint *checkpoint, struct gb_error *error)
{
    struct originals originals = {checkpoint, f};
    struct study_sensitivity s = {.fixture = f, .original = matrix, .context = &originals, .enough = enough};
    float *scales = NULL;
    enum gb_status status = check(f, checkpoint, error);
    if (status != GB_OK)
        input_name(o->fixture, error);
    if (status == GB_OK)
        status = choose(o, f, &s.recipe, error);
    if (status == GB_OK)
        status = choose_remedy(o, f, checkpoint, &s, error);
    if (status == GB_OK && o->input_scales)
        status = read_scales(o->input_scales, f, &scales, error);
    s.input_scales = scales;
    if (status == GB_OK)
        status = study_sensitivity_run(&s, error);
    if (status == GB_OK && !(s.error > 0.0))
        status = gb_fail(error, GB_EINVAL,
                         "%s: nothing is quantised: its weights are the original ones, and activations "
                         "stay bf16",
                         o->fixture);
    if (status == GB_OK)
        print(stdout, &s);
    if (status == GB_OK && o->csv)
        status = write_file(o->csv, write_csv, &s, error);
    if (status == GB_OK && o->exclude)
        status = write_file(o->exclude, write_exclude, &s, error);
    study_sensitivity_free(&s);
    free(scales);
    return status;
}

int study_sensitivity(const struct sensitivity_options *o)
{
    struct gb_fixture *fixture = NULL;
    struct gb_checkpoint *checkpoint = NULL;
    struct gb_error error;
    const char *const written[] = {o->csv, o->exclude};
    enum gb_status status = GB_OK;
    for (int i = 0; status == GB_OK && i < 2; i++)
        if (written[i])
            status = output_guard(written[i], &o->fixture, 1, &error);
    if (status == GB_OK)
        status = output_guard_each(written, 2, &error);
    for (int i = 0; status == GB_OK && i < 2; i++)
        status = output_guard_writable(written[i], &error);
    if (status == GB_OK && input_fixture(o->fixture, INPUT_TIMEOUT_S, &fixture, &error) != EXIT_PASS)
        status = GB_EFORMAT;
    if (status == GB_OK)
        status = gb_checkpoint_open(o->original, &checkpoint, &error);
    if (status == GB_OK)
        status = run(o, fixture, checkpoint, &error);
    gb_fixture_free(fixture);
    gb_checkpoint_close(checkpoint);
    return status == GB_OK ? EXIT_PASS : command_error("study", "%s", error.message);
}
