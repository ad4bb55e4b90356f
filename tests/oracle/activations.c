/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised activations, docs/numerics.md#quantised-activations. */
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>

/* Rows and columns of x, or of the intermediate. */
struct matrix {
    uint32_t rows, columns;
};

static struct matrix matrix_of(const struct gb_shape *shape, bool down)
{
    if (down)
        return (struct matrix){shape->tokens * shape->top_k, shape->intermediate};
    return (struct matrix){shape->tokens, shape->hidden};
}

void oracle_quantise_activations(const struct gb_arguments *a, bool down, const gb_bf16 *values, uint8_t *codes,
                                 uint8_t *scale_codes, float *scales)
{
    struct matrix m = matrix_of(&a->shape, down);
    size_t count = (size_t)m.rows * m.columns;
    float *wide = malloc(count * sizeof *wide), d = down ? a->intermediate_scale : a->x_scale;
    if (!wide)
        abort();
    for (size_t i = 0; i < count; i++)
        wide[i] = (float)oracle_decode(ORACLE_BF16, values[i].bits);
    if (a->activation_rules->global != GB_GLOBAL_DECODE)
        d = oracle_divide(1, d);
    oracle_quantise(a->activation_rules, wide, m.rows, m.columns, d, INFINITY, codes, scale_codes, scales);
    free(wide);
}

/* bf16 [rows, columns]: code times scale, or the code alone where the dot product takes the scale. */
static gb_bf16 *numbers_of(const struct gb_quantiser *rules, struct matrix m, const uint8_t *codes, const float *scales)
{
    size_t count = (size_t)m.rows * m.columns;
    gb_bf16 *numbers = malloc(count * sizeof *numbers);
    if (!numbers)
        abort();
    for (size_t i = 0; i < count; i++) {
        float value = (float)oracle_decode(rules->element == GB_E2M1 ? ORACLE_E2M1 : ORACLE_E4M3, codes[i]);
        if (rules->scale != GB_SCALE_FP32)
            value = oracle_multiply(value, scales[i / rules->block_columns]);
        numbers[i].bits = (uint16_t)oracle_encode(ORACLE_BF16, value);
    }
    return numbers;
}

/* The weights' global scales times that of the activations. */
static float *globals_of(const struct gb_weights *weights, float d)
{
    size_t count = (size_t)weights->experts * weights->halves;
    float *globals = malloc(count * sizeof *globals);
    if (!globals)
        abort();
    for (size_t i = 0; i < count; i++)
        globals[i] = oracle_multiply(weights->global_scales ? weights->global_scales[i] : 1, d);
    return globals;
}

void oracle_quantised_gate_up(const struct gb_arguments *arguments, const uint8_t *codes, const float *scales,
                              gb_bf16 *intermediate)
{
    struct gb_arguments a = *arguments;
    const struct gb_quantiser *rules = a.activation_rules;
    gb_bf16 *numbers = numbers_of(rules, matrix_of(&a.shape, false), codes, scales);
    float *globals = globals_of(&a.gate_up, a.x_scale);
    a.x = numbers;
    if (rules->global)
        a.gate_up.global_scales = globals;
    oracle_gate_up_scaled(&a, rules->scale == GB_SCALE_FP32 ? scales : NULL, intermediate);
    free(numbers);
    free(globals);
}

void oracle_quantised_down(const struct gb_arguments *arguments, const uint8_t *codes, const float *scales,
                           float *output)
{
    struct gb_arguments a = *arguments;
    const struct gb_quantiser *rules = a.activation_rules;
    gb_bf16 *numbers = numbers_of(rules, matrix_of(&a.shape, true), codes, scales);
    float *globals = globals_of(&a.down, a.intermediate_scale);
    if (rules->global)
        a.down.global_scales = globals;
    oracle_down_scaled(&a, numbers, rules->scale == GB_SCALE_FP32 ? scales : NULL, output);
    free(numbers);
    free(globals);
}
