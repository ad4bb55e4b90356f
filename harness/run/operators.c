/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/operators.h"

#include "quant/quant.h"

static size_t bytes_of_values(const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    *element = sizeof *f->values;
    return (size_t)tokens * f->quantisation.input_columns * *element;
}

static size_t bytes_of_codes(const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    struct gb_quantisation q = gb_fixture_quantisation(f, tokens);
    *element = 1;
    return gb_code_arrays(&q).codes;
}

static size_t bytes_of_scales(const struct gb_fixture *f, uint32_t tokens, size_t *element)
{
    struct gb_quantisation q = gb_fixture_quantisation(f, tokens);
    struct gb_code_arrays a = gb_code_arrays(&q);
    *element = a.scale_bytes;
    return a.scales;
}

static void ask_quantise(const struct gb_fixture *f, uint32_t tokens, struct gb_quantisation *q,
                         struct gb_problem *problem, struct gb_arguments *arguments)
{
    *q = gb_fixture_quantisation(f, tokens);
    *problem = (struct gb_problem){.size = sizeof *problem, .quantise = q};
    *arguments = (struct gb_arguments){.size = sizeof *arguments, .quantise = q};
}

static enum gb_status new_codes(const struct gb_fixture *f, uint32_t tokens, struct gb_outputs **outputs,
                                struct gb_error *error)
{
    struct gb_quantisation q = gb_fixture_quantisation(f, tokens);
    return gb_outputs_new_codes(&q, outputs, error);
}

#define READ(NAME, BYTES)                                                                                              \
    {                                                                                                                  \
#NAME, offsetof(struct gb_arguments, NAME), false, offsetof(struct gb_fixture, NAME), BYTES                    \
    }
#define WRITTEN(NAME, BYTES)                                                                                           \
    {                                                                                                                  \
#NAME, offsetof(struct gb_arguments, NAME), true, offsetof(struct gb_outputs, NAME), BYTES                     \
    }

static const struct operator_array of_quantisers[] = {
    READ(values, bytes_of_values),
    WRITTEN(codes, bytes_of_codes),
    WRITTEN(scales, bytes_of_scales),
};

#define LAYERED(OPERATION, NAME)                                                                                       \
    {                                                                                                                  \
        .operation = OPERATION, .name = NAME, .tokens = "tokens"                                                       \
    }
#define QUANTISER(OPERATION, NAME, REFERENCE)                                                                          \
    {                                                                                                                  \
        OPERATION, NAME, "rows", REFERENCE, of_quantisers, sizeof of_quantisers / sizeof *of_quantisers, ask_quantise, \
            new_codes                                                                                                  \
    }

static const struct operator_row rows[] = {
    LAYERED(GB_LAYER, "layer"),
    LAYERED(GB_GATE_UP, "gate_up"),
    LAYERED(GB_DOWN, "down"),
    LAYERED(GB_ROUTE, "route"),
    QUANTISER(GB_QUANTISE, "quantise", "cpu/quantise"),
    QUANTISER(GB_SILU_MUL_QUANTISE, "silu_mul_quantise", "cpu/silu-mul-quantise"),
};

const struct operator_row *operator_find(enum gb_operator operation)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].operation == operation)
            return &rows[i];
    return NULL;
}

const struct operator_row *operator_of(const struct gb_fixture *fixture)
{
    return operator_find(fixture->operation ? fixture->operation : GB_LAYER);
}

const char *operator_name(enum gb_operator operation)
{
    const struct operator_row *row = operator_find(operation);
    return row ? row->name : "unknown";
}
