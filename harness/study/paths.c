/* SPDX-License-Identifier: Apache-2.0 */
/* The paths by name, and one layer by one of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/study/study.h"

/* Of activations: format, and recipes by width of block, the widest first that divides hidden and intermediate. */
static const struct {
    const char *name;
    enum gb_format format; /* of contracts; 0: none has it */
    const char *recipes[2];
} activations[] = {
    {"bf16", GB_BF16, {NULL}},
    {"mxfp8", GB_MXFP8, {"mxfp8.rceil/1"}},
    {"fp8", GB_FP8_BLOCK, {"fp8g128.vllm/1", "fp8g64.vllm/1"}},
    {"int8", (enum gb_format)0, {"int8g128.vllm/1", "int8g64.vllm/1"}},
    {"nvfp4", GB_NVFP4, {"nvfp4.trtllm/1"}},
    {"mxfp4", (enum gb_format)0, {"mxfp4.rceil/1"}},
};
enum { ACTIVATIONS = sizeof activations / sizeof *activations };

/* What is compared where nothing is named. */
static const char *const usual[] = {"bf16.fma32",  "bf16.mma16-sm90", "bf16.fma32.prereduced4",
                                    "mxfp8.fma32", "fp8.fma32",       "int8.fma32",
                                    "nvfp4.fma32", "mxfp4.fma32"};

/* The order of this name without its version, of those that contracts have; NULL if there is none. */
static const char *order_of(const char *name, size_t length)
{
    size_t count;
    const struct gb_contract *contracts = gb_contracts(&count);
    for (size_t i = 0; i < count; i++) {
        const char *order = gb_order_name(contracts[i].order);
        if (strlen(order) > length && !strncmp(order, name, length) && order[length] == '/')
            return order;
    }
    return NULL;
}

/* The recipe whose block divides both sizes; NULL if none does. */
static const struct gb_recipe *recipe_for(const char *const names[2], const struct gb_shape *shape)
{
    for (int i = 0; i < 2 && names[i]; i++) {
        const struct gb_recipe *recipe = gb_recipe_find(names[i]);
        uint32_t block = recipe->quantiser.block_columns;
        if (shape->hidden % block == 0 && shape->intermediate % block == 0)
            return recipe;
    }
    return NULL;
}

/* Contract and recipe of activations and order; false if there is none. */
static bool choose(struct study_path *path, int a, const char *order, enum gb_format weights,
                   const struct gb_shape *shape)
{
    path->contract = NULL;
    path->recipe = recipe_for(activations[a].recipes, shape);
    if (activations[a].format != GB_BF16 && !path->recipe)
        return false;
    bool native = activations[a].format &&
                  (!path->recipe || gb_quantiser_activations(&path->recipe->quantiser) == activations[a].format);
    if (native)
        path->contract = gb_contract_find(weights, activations[a].format, order);
    path->dequantised = !path->contract;
    if (path->dequantised)
        path->contract = gb_contract_find(weights, GB_BF16, order);
    return path->contract != NULL;
}

/* The path called `name`. */
static enum gb_status path_of(const char *name, size_t length, enum gb_format weights, const struct gb_shape *shape,
                              struct study_path *path, struct gb_error *error)
{
    const char *dot = memchr(name, '.', length), *last;
    size_t format = dot ? (size_t)(dot - name) : length, tail;
    unsigned ranks = 0;
    int a = 0;
    *path = (struct study_path){.ranks = 0};
    snprintf(path->name, sizeof path->name, "%.*s", (int)length, name);
    while (a < ACTIVATIONS && (strlen(activations[a].name) != format || strncmp(activations[a].name, name, format)))
        a++;
    if (!dot || a == ACTIVATIONS || length >= sizeof path->name)
        return gb_fail(error, GB_EINVAL,
                       "path '%.*s': give activations and order, as in mxfp8.fma32; activations are bf16, mxfp8, fp8, "
                       "int8, nvfp4 and mxfp4",
                       (int)length, name);
    tail = length - format - 1;
    last = memmem(dot + 1, tail, ".prereduced", 11);
    if (last) {
        int end = 0;
        if (sscanf(last, ".prereduced%3u%n", &ranks, &end) != 1 || last + end != name + length || ranks < 2)
            return gb_fail(error, GB_EINVAL, "path '%.*s': prereduced needs 2 to 999 ranks, as in prereduced4",
                           (int)length, name);
        tail = (size_t)(last - dot - 1);
    }
    path->ranks = ranks;
    const char *order = order_of(dot + 1, tail);
    if (!order)
        return gb_fail(error, GB_EINVAL, "path '%.*s': orders are fma32 and mma16-sm90", (int)length, name);
    if (!choose(path, a, order, weights, shape))
        return gb_fail(error, GB_EUNSUPPORTED,
                       "path '%.*s': no contract has %s weights in this order, or no block of %s"
                       " divides hidden %u and intermediate %u",
                       (int)length, name, gb_format_name(weights), activations[a].name, shape->hidden,
                       shape->intermediate);
    return GB_OK;
}

enum gb_status study_paths(const char *list, enum gb_format weights, const struct gb_shape *shape,
                           struct study_path *paths, uint32_t *count, struct gb_error *error)
{
    enum gb_status status = path_of(usual[0], strlen(usual[0]), weights, shape, &paths[0], error);
    *count = 1;
    for (size_t i = 1; status == GB_OK && !list && i < sizeof usual / sizeof *usual; i++)
        *count += path_of(usual[i], strlen(usual[i]), weights, shape, &paths[*count], NULL) == GB_OK;
    for (const char *at = list; status == GB_OK && at && *at;) {
        size_t length = strcspn(at, ",");
        bool known = false;
        for (uint32_t p = 0; p < *count; p++)
            known |= strlen(paths[p].name) == length && !strncmp(paths[p].name, at, length);
        if (*count == STUDY_PATHS && !known)
            return gb_fail(error, GB_EINVAL, "--paths: more than %d", (int)STUDY_PATHS);
        if (!known)
            status = path_of(at, length, weights, shape, &paths[*count], error);
        *count += status == GB_OK && !known;
        at += length + (at[length] == ',');
    }
    return status;
}

/* The number that a code stands for. */
static float decoded(const struct gb_quantiser *rules, const uint8_t *codes, size_t i)
{
    switch (rules->element) {
    case GB_E2M1:
        return gb_e2m1_decode((gb_e2m1){(uint8_t)(codes[i / 2] >> (i % 2 ? 4 : 0) & 0xF)});
    case GB_INT8:
        return (float)(int8_t)codes[i];
    default:
        return gb_e4m3_decode((gb_e4m3){codes[i]});
    }
}

static float scale_of(const struct gb_quantiser *rules, const void *scales, size_t block)
{
    const uint8_t *bytes = scales;
    return rules->scale == GB_SCALE_FP32   ? ((const float *)scales)[block]
           : rules->scale == GB_SCALE_E4M3 ? gb_e4m3_decode((gb_e4m3){bytes[block]})
                                           : gb_e8m0_decode((gb_e8m0){bytes[block]});
}

enum gb_status study_dequantise(const struct gb_quantiser *rules, const gb_bf16 *values, uint32_t rows,
                                uint32_t columns, float global, double *out, struct gb_error *error)
{
    size_t code_bytes, scale_bytes;
    enum gb_status status = gb_quantiser_bytes(rules, rows, columns, &code_bytes, &scale_bytes, error);
    if (status != GB_OK)
        return status;
    void *codes = malloc(code_bytes), *scales = malloc(scale_bytes);
    struct gb_quantisation q = {.size = sizeof q,
                                .input = GB_BF16,
                                .rows = rows,
                                .columns = columns,
                                .input_columns = columns,
                                .quantiser = *rules,
                                .bound = INFINITY,
                                .global_scale = rules->global == GB_GLOBAL_DECODE ? global : 1.0f / global};
    struct gb_arguments a = {.size = sizeof a, .quantise = &q, .values = values, .codes = codes, .scales = scales};
    status = codes && scales ? gb_reference_quantise(&a, error)
                             : gb_fail(error, GB_ENOMEM, "no memory to quantise %u x %u activations", rows, columns);
    const double factor = rules->global == GB_GLOBAL_NONE ? 1.0 : (double)global;
    for (size_t i = 0; i < (status == GB_OK ? (size_t)rows * columns : 0); i++)
        out[i] = (double)decoded(rules, codes, i) * (double)scale_of(rules, scales, i / rules->block_columns) * factor;
    free(codes);
    free(scales);
    return status;
}

/* The same rounded to bf16. out may be values. */
static enum gb_status dequantised(const struct gb_quantiser *rules, const gb_bf16 *values, uint32_t rows,
                                  uint32_t columns, float global, gb_bf16 *out, struct gb_error *error)
{
    size_t count = (size_t)rows * columns;
    double *numbers = malloc(sizeof *numbers * count); /* [rows, columns] */
    enum gb_status status = numbers ? study_dequantise(rules, values, rows, columns, global, numbers, error)
                                    : gb_fail(error, GB_ENOMEM, "no memory for %u x %u activations", rows, columns);
    for (size_t i = 0; status == GB_OK && i < count; i++)
        out[i] = gb_bf16_encode((float)numbers[i]);
    free(numbers);
    return status;
}

/* down with the sum over each rank's experts rounded to bf16, and their sum in FP32 in the order of the ranks. */
static enum gb_status down_prereduced(const struct study_path *path, const struct gb_arguments *a,
                                      struct gb_error *error)
{
    size_t count = (size_t)a->shape.tokens * a->shape.hidden, pairs = (size_t)a->shape.tokens * a->shape.top_k;
    struct gb_arguments own = *a;
    int32_t *ids = malloc(sizeof *ids * pairs);       /* [tokens, top_k] */
    float *partial = malloc(sizeof *partial * count); /* [tokens, hidden] */
    float *sum = a->output;
    uint32_t share = (a->shape.experts + path->ranks - 1) / path->ranks;
    enum gb_status status = ids && partial ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for partial sums");
    own.ids = ids;
    own.output = partial;
    for (uint32_t r = 0; status == GB_OK && r < path->ranks; r++) {
        for (size_t i = 0; i < pairs; i++)
            ids[i] = a->ids[i] >= 0 && (uint32_t)a->ids[i] / share == r ? a->ids[i] : -1;
        status = gb_reference_down(path->contract, &own, error);
        for (size_t i = 0; status == GB_OK && i < count; i++) {
            float rounded = gb_bf16_decode(gb_bf16_encode(partial[i]));
            sum[i] = r ? sum[i] + rounded : rounded;
        }
    }
    free(ids);
    free(partial);
    return status;
}

static enum gb_status down(const struct study_path *path, const struct gb_arguments *a, struct gb_error *error)
{
    return path->ranks ? down_prereduced(path, a, error) : gb_reference_down(path->contract, a, error);
}

/* Both projections, with what is dequantised in between. h: [tokens, top_k, intermediate], scratch. */
static enum gb_status run_dequantised(const struct study_path *path, struct gb_arguments *a, const float global[2],
                                      gb_bf16 *h, struct gb_error *error)
{
    const struct gb_quantiser *rules = &path->recipe->quantiser;
    const struct gb_shape *s = &a->shape;
    gb_bf16 *x = malloc(sizeof *x * s->tokens * s->hidden); /* [tokens, hidden] */
    enum gb_status status = x ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %u tokens", s->tokens);
    if (status == GB_OK)
        status = dequantised(rules, a->x, s->tokens, s->hidden, global[0], x, error);
    a->x = x;
    if (status == GB_OK)
        status = gb_reference_gate_up(path->contract, a, error);
    if (status == GB_OK)
        status = dequantised(rules, a->intermediate, s->tokens * s->top_k, s->intermediate, global[1], h, error);
    a->intermediate = h;
    if (status == GB_OK)
        status = down(path, a, error);
    free(x);
    return status;
}

enum gb_status study_path_run(const struct study_path *path, const struct gb_fixture *f, uint32_t layer,
                              const struct study_batch *batch, const float global[2], float *output,
                              gb_bf16 *intermediate, struct gb_error *error)
{
    struct gb_arguments a = gb_layer_arguments(f, layer, batch->tokens);
    size_t inner = (size_t)batch->tokens * f->shape.top_k * f->shape.intermediate;
    gb_bf16 *own = malloc(sizeof *own * inner), *h = malloc(sizeof *h * inner); /* [tokens, top_k, intermediate] */
    enum gb_status status =
        own && h ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for the intermediate of %u tokens", batch->tokens);
    a.x = batch->x;
    a.ids = batch->ids;
    a.routing_weights = batch->weights;
    a.output = output;
    a.intermediate = intermediate ? intermediate : own;
    if (path->recipe && !path->dequantised) {
        a.activation_rules = &path->recipe->quantiser;
        bool has_global = path->recipe->quantiser.global != GB_GLOBAL_NONE;
        a.x_scale = has_global ? global[0] : 1.0f;
        a.intermediate_scale = has_global ? global[1] : 1.0f;
    }
    if (status == GB_OK && path->dequantised) {
        status = run_dequantised(path, &a, global, h, error);
    } else if (status == GB_OK) {
        status = gb_reference_gate_up(path->contract, &a, error);
        if (status == GB_OK)
            status = down(path, &a, error);
    }
    free(own);
    free(h);
    return status;
}
