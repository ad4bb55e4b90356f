/* SPDX-License-Identifier: Apache-2.0 */
/* The paths by name, and one layer by one of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/study/kernel.h"
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

/* Contract and recipe of activations and order, of a path that has none yet; false if there is none. */
static bool choose(struct study_path *path, int a, const char *order, enum gb_format weights,
                   const struct gb_shape *shape)
{
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

/* A suffix of a path's name: where else it rounds. */
static bool add_suffix(struct study_path *path, const char *suffix, size_t length)
{
    char text[32], again[32];
    snprintf(text, sizeof text, "%.*s", (int)length, suffix);
    if (!strcmp(text, "bf16gateup") && !path->rounded_gate_up)
        return path->rounded_gate_up = true;
    if (!strcmp(text, "fp32intermediate") && !path->fp32_intermediate)
        return path->fp32_intermediate = true;
    if (path->ranks || sscanf(text, "prereduced%3u", &path->ranks) != 1)
        return false;
    snprintf(again, sizeof again, "prereduced%u", path->ranks); /* no sign, no zero in front, three digits */
    return path->ranks > 1 && !strcmp(text, again);
}

/* The path called `name`. */
static enum gb_status path_of(const char *name, size_t length, enum gb_format weights, const struct gb_shape *shape,
                              struct study_path *path, struct gb_error *error)
{
    const char *dot = memchr(name, '.', length), *last = name + length;
    size_t format = dot ? (size_t)(dot - name) : length;
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
    const char *end = memchr(dot + 1, '.', (size_t)(last - dot - 1));
    const char *order = order_of(dot + 1, (size_t)((end ? end : last) - dot - 1));
    if (!order)
        return gb_fail(error, GB_EINVAL, "path '%.*s': orders are fma32 and mma16-sm90", (int)length, name);
    for (const char *next; end; end = next) {
        next = memchr(end + 1, '.', (size_t)(last - end - 1));
        if (!add_suffix(path, end + 1, (size_t)((next ? next : last) - end - 1)))
            return gb_fail(error, GB_EINVAL,
                           "path '%.*s': behind the order may stand bf16gateup, fp32intermediate and prereducedN, N "
                           "from 2 to 999",
                           (int)length, name);
    }
    if (path->fp32_intermediate && activations[a].format != GB_BF16)
        return gb_fail(error, GB_EUNSUPPORTED,
                       "path '%.*s': fp32intermediate goes with bf16 activations; %s ones are "
                       "quantised from bf16",
                       (int)length, name, activations[a].name);
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

/* Both projections of one batch, and what lies between them. */
struct layer_run {
    const struct study_path *path;
    struct gb_arguments a;
    const float *global;   /* [2] */
    gb_bf16 *intermediate; /* [tokens, top_k, intermediate] as gate_up leaves it */
    gb_bf16 *term[3];      /* [tokens, top_k, intermediate] what down multiplies: of an FP32 intermediate three bf16
                              numbers whose sum it is; otherwise the first alone */
    float *values[3];      /* [tokens, top_k, intermediate] gate, up and their product in FP32; NULL: not needed */
    size_t inner;          /* tokens * top_k * intermediate */
};

/* fp32 = its bf16, plus that of what is left, plus that of what is left then: 24 bits in three times 8. */
static void split(struct layer_run *run)
{
    for (size_t i = 0; i < run->inner; i++) {
        float left = run->values[2][i];
        for (int t = 0; t < 3; t++) {
            run->term[t][i] = gb_bf16_encode(left);
            left -= gb_bf16_decode(run->term[t][i]);
        }
    }
}

static enum gb_status gate_up(struct layer_run *run, struct gb_error *error)
{
    const struct study_path *path = run->path;
    struct gb_gate_up_values values = {run->values[0], run->values[1], run->values[2]};
    if (!values.gate)
        return gb_reference_gate_up(path->contract, &run->a, error);
    for (int i = 0; i < 3; i++) /* rows of empty slots are not written */
        memset(run->values[i], 0, sizeof(float) * run->inner);
    enum gb_status status = gb_reference_gate_up_values(path->contract, &run->a, &values, error);
    for (size_t i = 0; status == GB_OK && path->rounded_gate_up && i < run->inner; i++) {
        float gate = gb_bf16_decode(gb_bf16_encode(values.gate[i])), up = gb_bf16_decode(gb_bf16_encode(values.up[i]));
        values.product[i] = gb_gated(run->a.activation, gate, up); /* of an empty slot 0 */
        run->intermediate[i] = gb_bf16_encode(values.product[i]);
    }
    if (status == GB_OK && path->fp32_intermediate)
        split(run);
    return status;
}

/* down of what gate_up left, for these ids; the products of an FP32 intermediate's terms are added from the smallest
 * on. output: [tokens, hidden] */
static enum gb_status down_of(const struct layer_run *run, const int32_t *ids, float *output, struct gb_error *error)
{
    struct gb_arguments a = run->a;
    size_t count = (size_t)a.shape.tokens * a.shape.hidden;
    a.ids = ids;
    a.output = output;
    a.intermediate = run->term[0];
    if (!run->path->fp32_intermediate)
        return gb_reference_down(run->path->contract, &a, error);
    float *part = malloc(sizeof *part * count); /* [tokens, hidden] */
    enum gb_status status = part ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for partial sums");
    for (int t = 2; status == GB_OK && t >= 0; t--) {
        a.intermediate = run->term[t];
        a.output = part;
        status = gb_reference_down(run->path->contract, &a, error);
        for (size_t i = 0; status == GB_OK && i < count; i++)
            output[i] = t == 2 ? part[i] : output[i] + part[i];
    }
    free(part);
    return status;
}

/* down with the sum over each rank's experts rounded to bf16, and their sum in FP32 in the order of the ranks. */
static enum gb_status down_prereduced(const struct layer_run *run, struct gb_error *error)
{
    const struct gb_arguments *a = &run->a;
    size_t count = (size_t)a->shape.tokens * a->shape.hidden, pairs = (size_t)a->shape.tokens * a->shape.top_k;
    int32_t *ids = malloc(sizeof *ids * pairs);       /* [tokens, top_k] */
    float *partial = malloc(sizeof *partial * count); /* [tokens, hidden] */
    float *sum = a->output;
    uint32_t ranks = run->path->ranks, share = (a->shape.experts + ranks - 1) / ranks;
    enum gb_status status = ids && partial ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for partial sums");
    for (uint32_t r = 0; status == GB_OK && r < ranks; r++) {
        for (size_t i = 0; i < pairs; i++)
            ids[i] = a->ids[i] >= 0 && (uint32_t)a->ids[i] / share == r ? a->ids[i] : -1;
        status = down_of(run, ids, partial, error);
        for (size_t i = 0; status == GB_OK && i < count; i++) {
            float rounded = gb_bf16_decode(gb_bf16_encode(partial[i]));
            sum[i] = r ? sum[i] + rounded : rounded;
        }
    }
    free(ids);
    free(partial);
    return status;
}

static enum gb_status down(const struct layer_run *run, struct gb_error *error)
{
    return run->path->ranks ? down_prereduced(run, error) : down_of(run, run->a.ids, run->a.output, error);
}

/* Both projections, with what is dequantised in between. */
static enum gb_status run_dequantised(struct layer_run *run, struct gb_error *error)
{
    const struct gb_quantiser *rules = &run->path->recipe->quantiser;
    const struct gb_shape *s = &run->a.shape;
    gb_bf16 *x = malloc(sizeof *x * s->tokens * s->hidden); /* [tokens, hidden] */
    enum gb_status status = x ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for %u tokens", s->tokens);
    if (status == GB_OK)
        status = dequantised(rules, run->a.x, s->tokens, s->hidden, run->global[0], x, error);
    run->a.x = x;
    if (status == GB_OK)
        status = gate_up(run, error);
    if (status == GB_OK)
        status = dequantised(rules, run->intermediate, s->tokens * s->top_k, s->intermediate, run->global[1],
                             run->term[0], error);
    if (status == GB_OK)
        status = down(run, error);
    free(x);
    return status;
}

static void run_free(struct layer_run *run, const gb_bf16 *kept)
{
    if (run->intermediate != kept)
        free(run->intermediate);
    for (int i = 0; i < 3; i++) {
        if (run->term[i] != run->intermediate)
            free(run->term[i]);
        free(run->values[i]);
    }
}

/* kept: where the intermediate is wanted, or NULL. */
static enum gb_status run_new(struct layer_run *run, gb_bf16 *kept, struct gb_error *error)
{
    const struct study_path *path = run->path;
    bool good = (run->intermediate = kept ? kept : malloc(sizeof(gb_bf16) * run->inner)) != NULL;
    for (int i = 0; i < 3; i++) {
        if (path->fp32_intermediate || (i == 0 && path->dequantised))
            good &= (run->term[i] = malloc(sizeof(gb_bf16) * run->inner)) != NULL;
        if (path->fp32_intermediate || path->rounded_gate_up)
            good &= (run->values[i] = malloc(sizeof(float) * run->inner)) != NULL;
    }
    if (!run->term[0] && good)
        run->term[0] = run->intermediate;
    run->a.intermediate = run->intermediate;
    return good ? GB_OK : gb_fail(error, GB_ENOMEM, "no memory for the intermediate of %u tokens", run->a.shape.tokens);
}

enum gb_status study_path_run(const struct study_path *path, const struct gb_fixture *f, uint32_t layer,
                              const struct study_batch *batch, const float global[2], float *output,
                              gb_bf16 *intermediate, struct gb_error *error)
{
    if (path->kernel.kernel)
        return study_kernel_run(path, f, layer, batch, global, output, intermediate, error);
    struct layer_run run = {.path = path,
                            .a = gb_layer_arguments(f, layer, batch->tokens),
                            .global = global,
                            .inner = (size_t)batch->tokens * f->shape.top_k * f->shape.intermediate};
    run.a.x = batch->x;
    run.a.ids = batch->ids;
    run.a.routing_weights = batch->weights;
    run.a.output = output;
    if (path->recipe && !path->dequantised) {
        run.a.activation_rules = &path->recipe->quantiser;
        bool has_global = path->recipe->quantiser.global != GB_GLOBAL_NONE;
        run.a.x_scale = has_global ? global[0] : 1.0f;
        run.a.intermediate_scale = has_global ? global[1] : 1.0f;
    }
    enum gb_status status = run_new(&run, intermediate, error);
    if (status == GB_OK && path->dequantised) {
        status = run_dequantised(&run, error);
    } else if (status == GB_OK) {
        status = gate_up(&run, error);
        if (status == GB_OK)
            status = down(&run, error);
    }
    run_free(&run, intermediate);
    return status;
}
