/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/study_sensitivity.h"

#include <dirent.h>
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

/* The scale that one tensor gives, entered where it belongs; of gate and up, the larger one. scales: [layers, experts,
 * 2] */
static void enter(const struct gb_fixture *f, const struct gb_tensor *t, float *scales)
{
    unsigned layer, expert;
    char projection[8], kind[24];
    int end = 0;
    if (sscanf(t->name, "model.layers.%5u.mlp.experts.%5u.%7[a-z]_proj.%23[a-z_]%n", &layer, &expert, projection, kind,
               &end) != 4 ||
        t->name[end] || t->count != 1 || expert >= f->shape.experts)
        return;
    bool decoding = !strcmp(kind, "input_scale"), encoding = !strcmp(kind, "input_global_scale");
    for (uint32_t l = 0; (decoding || encoding) && l < f->layers; l++) {
        if (f->layer[l].index != layer)
            continue;
        double value = gb_tensor_get(t, 0);
        float scale = (float)(encoding ? 1.0 / value : value);
        float *at = &scales[2 * ((size_t)l * f->shape.experts + expert) + !strcmp(projection, "down")];
        *at = isnan(*at) || scale > *at ? scale : *at;
    }
}

static bool ends_in(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && !strcmp(name + length - tail, end);
}

/* All scales of activations in a folder's safetensors files; NaN where there is none. */
static enum gb_status read_scales(const char *folder, const struct gb_fixture *f, float **scales,
                                  struct gb_error *error)
{
    size_t count = 2 * (size_t)f->layers * f->shape.experts, found = 0;
    DIR *directory = opendir(folder);
    enum gb_status status = directory ? GB_OK : gb_fail(error, GB_EIO, "%s: cannot open the folder", folder);
    *scales = malloc(sizeof **scales * count);
    if (status == GB_OK && !*scales)
        status = gb_fail(error, GB_ENOMEM, "no memory for %zu scales", count);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        (*scales)[i] = NAN;
    for (struct dirent *entry; status == GB_OK && (entry = readdir(directory));) {
        char path[4096];
        struct gb_safetensors *file;
        if (!ends_in(entry->d_name, ".safetensors"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        status = gb_safetensors_open(path, &file, error);
        for (size_t i = 0; status == GB_OK && i < gb_safetensors_count(file); i++)
            enter(f, gb_safetensors_at(file, i), *scales);
        if (status == GB_OK)
            gb_safetensors_close(file);
    }
    if (directory)
        closedir(directory);
    for (size_t i = 0; status == GB_OK && i < count; i++) {
        found += !isnan((*scales)[i]);
        if (!isnan((*scales)[i]) && (!isnormal((*scales)[i]) || !isnormal(1.0f / (*scales)[i])))
            status = gb_fail(error, GB_EFORMAT,
                             "%s: an input scale of layer %zu, expert %zu is %g; it and its reciprocal "
                             "must be normal",
                             folder, i / 2 / f->shape.experts, i / 2 % f->shape.experts, (double)(*scales)[i]);
    }
    if (status == GB_OK && !found)
        status =
            gb_fail(error, GB_EFORMAT, "%s: has no input_scale or input_global_scale of this model's experts", folder);
    return status;
}

static void print(FILE *stream, const struct study_sensitivity *s)
{
    const struct gb_fixture *f = s->fixture;
    uint32_t chosen = 0;
    while (chosen < s->units && s->unit[chosen].rank)
        chosen++;
    fprintf(stream, "%s, %s weights, %s activations: %u tokens\n", f->source, gb_format_name(f->weights),
            s->recipe ? s->recipe->name : "bf16", f->shape.tokens);
    fprintf(stream,
            "error of all layers: %.3e of the residual stream (relative L2)\n\n  layer  share of squared error\n",
            sqrt(s->error));
    for (uint32_t l = 0; l < f->layers; l++)
        fprintf(stream, "  %5u  %6.1f %%\n", f->layer[l].index, 100.0 * s->by_layer[l]);
    fprintf(stream, "\n%u of %u experts carry %.0f %% of it; left in bf16, in this sequence:\n", chosen, s->units,
            chosen ? 100.0 * (1.0 - s->unit[chosen - 1].left) : 0.0);
    fprintf(stream, "  layer  expert  tokens  adds by itself  weights alone  activations alone  left of all\n");
    for (uint32_t u = 0; u < chosen; u++) {
        const struct study_unit *one = &s->unit[u];
        double weights = one->part[STUDY_GATE_WEIGHTS] + one->part[STUDY_UP_WEIGHTS] + one->part[STUDY_DOWN_WEIGHTS];
        fprintf(stream, "  %5u  %6u  %6u  %12.2f %%  %11.2f %%  %15.2f %%  %9.2f %%\n", f->layer[one->layer].index,
                one->expert, one->tokens, 100.0 * one->adds / s->error, 100.0 * weights / s->error,
                100.0 * (one->part[STUDY_X] + one->part[STUDY_INTERMEDIATE]) / s->error, 100.0 * one->left);
    }
    for (uint32_t u = 0; u < s->units; u++)
        if (s->unit[u].clipped > 0.0)
            fprintf(stream,
                    "layer %u, expert %u: its largest input is %.0f times what its input scale can hold; was it "
                    "calibrated?\n",
                    f->layer[s->unit[u].layer].index, s->unit[u].expert, s->unit[u].clipped);
}

static void write_csv(FILE *stream, const struct study_sensitivity *s)
{
    fprintf(stream, "layer,expert,tokens,rank,left,adds");
    for (int p = 0; p < STUDY_PARTS; p++)
        fprintf(stream, ",%s", study_part_name((enum study_part)p));
    fprintf(stream, ",clipped\n");
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
        fprintf(stream, ",%.9g\n", one->clipped);
    }
}

/* The greedy list as quantisers take it: patterns of Model Optimizer's exclude_modules, regular expressions of
 * llm-compressor's ignore. */
static void write_exclude(FILE *stream, const struct study_sensitivity *s)
{
    json_t *modules = json_array(), *ignore = json_array();
    for (uint32_t u = 0; u < s->units && s->unit[u].rank; u++) {
        unsigned layer = s->fixture->layer[s->unit[u].layer].index, expert = s->unit[u].expert;
        json_array_append_new(modules, json_sprintf("model.layers.%u.mlp.experts.%u.*", layer, expert));
        json_array_append_new(ignore, json_sprintf("re:^model[.]layers[.]%u[.]mlp[.]experts[.]%u[.].*", layer, expert));
    }
    json_t *all = json_pack("{s:o, s:o}", "exclude_modules", modules, "ignore", ignore);
    json_dumpf(all, stream, JSON_INDENT(2));
    fputc('\n', stream);
    json_decref(all);
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
    if (gb_fixture_quantises(f) || !f->stack.residual || f->generated)
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
    if (status == GB_OK && o->input_scales)
        status = read_scales(o->input_scales, f, &scales, error);
    s.input_scales = scales;
    if (status == GB_OK)
        status = study_sensitivity_run(&s, error);
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
