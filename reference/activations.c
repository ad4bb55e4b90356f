/* SPDX-License-Identifier: Apache-2.0 */
/* Activations as the dot products read them, quantised first where asked for: docs/numerics.md#quantised-activations.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/operators.h"
#include "reference/quantise.h"

/* Number i of an array of codes, without any scale. */
static float code_at(const struct gb_quantiser *rules, const void *codes, size_t i)
{
    const uint8_t *bytes = codes;
    if (rules->element == GB_E2M1)
        return gb_e2m1_decode((gb_e2m1){(uint8_t)(bytes[i / 2] >> (i % 2 ? 4 : 0) & 0xF)});
    return gb_e4m3_decode((gb_e4m3){bytes[i]});
}

/* The scale of its block. */
static float scale_at(const struct gb_quantiser *rules, const void *scales, size_t i)
{
    size_t block = i / rules->block_columns;
    if (rules->scale == GB_SCALE_FP32)
        return ((const float *)scales)[block];
    uint8_t bits = ((const uint8_t *)scales)[block];
    return rules->scale == GB_SCALE_E4M3 ? gb_e4m3_decode((gb_e4m3){bits}) : gb_e8m0_decode((gb_e8m0){bits});
}

/* The numbers of codes [rows, columns], without the global scale. FP8's are left without their scales as well. */
static void decode(const struct gb_quantiser *rules, const void *codes, const void *scales, size_t count, gb_bf16 *x)
{
#pragma omp parallel for schedule(static) if (count > 1 << 16)
    for (size_t i = 0; i < count; i++)
        x[i] = gb_bf16_encode(rules->scale == GB_SCALE_FP32 ? code_at(rules, codes, i)
                                                            : code_at(rules, codes, i) * scale_at(rules, scales, i));
}

/* What is quantised: x of gate_up, the intermediate of down. */
struct source {
    const gb_bf16 *values; /* [rows, columns] */
    uint32_t rows, columns;
    float global; /* decoding */
    void *codes, *scales;
    const struct gb_weights *weights;
};

static struct source source_of(const struct gb_arguments *a, enum gb_operator operation)
{
    const struct gb_shape *s = &a->shape;
    if (operation == GB_DOWN)
        return (struct source){a->intermediate,       s->tokens * s->top_k,   s->intermediate, a->intermediate_scale,
                               a->intermediate_codes, a->intermediate_scales, &a->down};
    return (struct source){a->x, s->tokens, s->hidden, a->x_scale, a->x_codes, a->x_scales, &a->gate_up};
}

static enum gb_status allocate(const struct gb_quantiser *rules, const struct source *from, struct gb_operand *o,
                               struct gb_error *error)
{
    size_t codes = 0, scales = 0, numbers = 0;
    enum gb_status status = gb_quantiser_bytes(rules, from->rows, from->columns, &codes, &scales, error);
    if (status != GB_OK)
        return status;
    gb_bytes(from->rows, from->columns, 1, sizeof(gb_bf16), &numbers);
    o->numbers = malloc(numbers);
    o->codes = from->codes ? NULL : malloc(codes);
    o->scales = from->scales ? NULL : malloc(scales);
    o->globals = malloc(sizeof(float) * from->weights->experts * from->weights->halves);
    if (o->numbers && (from->codes || o->codes) && (from->scales || o->scales) && o->globals)
        return GB_OK;
    return gb_fail(error, GB_ENOMEM, "no memory to quantise %u x %u activations", from->rows, from->columns);
}

/* g becomes RN(g * d). */
static void scale_globals(const struct gb_weights *weights, float d, struct gb_operand *o)
{
    for (size_t i = 0; i < (size_t)weights->experts * weights->halves; i++)
        o->globals[i] = weights->global_scales[i] * d;
    o->weights.global_scales = o->globals;
}

static enum gb_status quantise(const struct gb_quantiser *rules, const struct source *from, struct gb_error *error)
{
    struct gb_quantisation q = {.size = sizeof q,
                                .input = GB_BF16,
                                .rows = from->rows,
                                .columns = from->columns,
                                .input_columns = from->columns,
                                .quantiser = *rules,
                                .layout = GB_SCALES_LINEAR,
                                .bound = INFINITY,
                                .global_scale = rules->global == GB_GLOBAL_DECODE ? from->global : 1.0f / from->global};
    struct gb_arguments asked = {
        .size = sizeof asked, .quantise = &q, .values = from->values, .codes = from->codes, .scales = from->scales};
    return gb_reference_quantise(&asked, error);
}

enum gb_status gb_reference_quantise_activations(const struct gb_arguments *a, enum gb_operator operation,
                                                 const gb_bf16 *values, void *codes, void *scales,
                                                 struct gb_error *error)
{
    struct source from = source_of(a, operation);
    from.values = values;
    from.codes = codes;
    from.scales = scales;
    return quantise(a->activation_rules, &from, error);
}

enum gb_status gb_operand_new(const struct gb_arguments *a, enum gb_operator operation, bool given,
                              struct gb_operand *o, struct gb_error *error)
{
    struct source from = source_of(a, operation);
    *o = (struct gb_operand){.x = from.values, .weights = *from.weights};
    if (!a->activation_rules)
        return GB_OK;
    const struct gb_quantiser *rules = a->activation_rules;
    enum gb_status status = allocate(rules, &from, o, error);
    from.codes = from.codes ? from.codes : o->codes;
    from.scales = from.scales ? from.scales : o->scales;
    if (status == GB_OK && !given)
        status = quantise(rules, &from, error);
    if (status != GB_OK) {
        gb_operand_free(o);
        return status;
    }
    decode(rules, from.codes, from.scales, (size_t)from.rows * from.columns, o->numbers);
    o->x = o->numbers;
    o->x_scales = rules->scale == GB_SCALE_FP32 ? from.scales : NULL;
    if (rules->global != GB_GLOBAL_NONE)
        scale_globals(from.weights, from.global, o);
    return GB_OK;
}

void gb_operand_free(struct gb_operand *o)
{
    free(o->numbers);
    free(o->codes);
    free(o->scales);
    free(o->globals);
    *o = (struct gb_operand){0};
}

enum gb_status gb_reference_activation_values(const struct gb_arguments *a, enum gb_operator operation,
                                              const void *codes, const void *scales, double *values,
                                              struct gb_error *error)
{
    struct source from = source_of(a, operation);
    const struct gb_quantiser *rules = a->activation_rules;
    double d = rules->global == GB_GLOBAL_NONE ? 1.0 : (double)from.global;
    if (!gb_quantiser_activations(rules))
        return gb_fail(error, GB_EINVAL, "no contract has activations of this recipe");
    for (size_t i = 0; i < (size_t)from.rows * from.columns; i++)
        values[i] = (double)code_at(rules, codes, i) * (double)scale_at(rules, scales, i) * d;
    return GB_OK;
}

/* Whether d and RN(1 / d) are normal numbers. */
static bool global_fits(float d)
{
    return isnormal(d) && d > 0.0f && isnormal(1.0f / d);
}

enum gb_status gb_activations_check(const struct gb_contract *contract, const struct gb_arguments *a,
                                    enum gb_operator operation, struct gb_error *error)
{
    const struct gb_quantiser *rules = a->activation_rules;
    if (!contract || gb_quantiser_activations(rules) != contract->activations)
        return gb_fail(error, GB_EINVAL, "no contract has %s weights and activations of this recipe",
                       gb_format_name(operation == GB_DOWN ? a->down.format : a->gate_up.format));
    uint32_t block = rules->block_columns;
    if (a->shape.hidden % block || a->shape.intermediate % block)
        return gb_fail(error, GB_EINVAL, "hidden %u or intermediate %u is no multiple of %u, the block of activations",
                       a->shape.hidden, a->shape.intermediate, block);
    if (rules->global != GB_GLOBAL_NONE && ((operation != GB_DOWN && !global_fits(a->x_scale)) ||
                                            (operation != GB_GATE_UP && !global_fits(a->intermediate_scale))))
        return gb_fail(error, GB_EINVAL,
                       "global scales of activations %g, %g: they and their reciprocals must be normal",
                       (double)a->x_scale, (double)a->intermediate_scale);
    return GB_OK;
}
