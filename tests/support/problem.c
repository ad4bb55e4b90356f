/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/problem.h"

#include "quant/quant.h"
#include "tests/support/check.h"

static void *allocate(size_t count, size_t size)
{
    void *pointer = malloc(count * size);

    if (!pointer)
        abort();
    return pointer;
}

/* E4M3 without a sign: 0 .. 0x7E. */
static uint8_t random_scale(enum data data, uint64_t *random)
{
    if (data == DATA_NONFINITE && random_below(random, 400) == 0)
        return 0x7F;
    return (uint8_t)random_below(random, 0x7F);
}

/* Uniform codes have a root mean square of 2.93, uniform finite scale codes of 92. */
static float random_global(uint32_t columns, enum data data, uint64_t *random)
{
    double global = (0.75 + 0.75 * random_uniform(random)) / (2.93 * 92 * sqrt(columns));

    return (float)(data == DATA_SUBNORMAL ? global * 0x1p-116 : global);
}

static void fill_nvfp4(struct gb_weights *weights, enum data data, uint64_t *random)
{
    size_t elements = (size_t)weights->experts * weights->rows * weights->columns;
    uint8_t *codes = (uint8_t *)weights->codes, *scales = (uint8_t *)weights->scales;
    float *globals = (float *)weights->global_scales;

    for (size_t i = 0; i < elements / 2; i++)
        codes[i] = (uint8_t)random_below(random, 256);
    for (size_t block = 0; block < elements / 16; block++)
        scales[block] = random_scale(data, random);
    for (uint32_t i = 0; i < weights->experts * weights->halves; i++)
        globals[i] = random_global(weights->columns, data, random);
    for (size_t block = 1; data == DATA_CANCEL && block < elements / 16; block += 2) {
        for (unsigned i = 0; i < 8; i++)
            codes[8 * block + i] = codes[8 * block - 8 + i] ^ 0x88;
        scales[block] = scales[block - 1];
    }
}

/* Uniform finite E4M3 codes have a root mean square of 92, about 2^7. */
static void fill_mxfp8(struct gb_weights *weights, enum data data, uint64_t *random)
{
    size_t elements = (size_t)weights->experts * weights->rows * weights->columns;
    uint8_t *codes = (uint8_t *)weights->codes, *scales = (uint8_t *)weights->scales;
    uint32_t one = 127 - 7 - (uint32_t)ceil(log2(sqrt(weights->columns)));

    for (size_t i = 0; i < elements; i++)
        codes[i] = (uint8_t)(random_below(random, 0x7F) | random_below(random, 2) << 7);
    for (size_t block = 0; block < elements / 32; block++) {
        scales[block] = (uint8_t)(data == DATA_SUBNORMAL ? random_below(random, 3) : one - random_below(random, 6));
        if (data == DATA_NONFINITE && random_below(random, 400) == 0)
            scales[block] = 0xFF;
    }
    for (size_t i = 0; data == DATA_CANCEL && i < elements; i++)
        if (i % 32 >= 16)
            codes[i] = codes[i - 16] ^ 0x80;
}

static void fill_bf16(struct gb_weights *weights, enum data data, uint64_t *random)
{
    size_t elements = (size_t)weights->experts * weights->rows * weights->columns;
    gb_bf16 *codes = (gb_bf16 *)weights->codes;
    double spread = (data == DATA_SUBNORMAL ? 0x1p-116 : 1) / sqrt(weights->columns);

    for (size_t i = 0; i < elements; i++) {
        double value = spread * random_gaussian(random) * exp2(-(double)random_below(random, 4));
        codes[i] = gb_bf16_encode((float)value);
        if (data == DATA_CANCEL && i % 32 >= 16)
            codes[i].bits = codes[i - 16].bits ^ 0x8000;
    }
}

/* Uniform codes have a root mean square of 2.93, scales one of about 2^-2.6 of the largest. */
static void fill_mxfp4(struct gb_weights *weights, enum data data, uint64_t *random)
{
    size_t elements = (size_t)weights->experts * weights->rows * weights->columns;
    uint8_t *codes = (uint8_t *)weights->codes, *scales = (uint8_t *)weights->scales;
    uint32_t one = 127 - (uint32_t)ceil(log2(sqrt(weights->columns)));

    for (size_t i = 0; i < elements / 2; i++)
        codes[i] = (uint8_t)random_below(random, 256);
    for (size_t block = 0; block < elements / 32; block++) {
        scales[block] = (uint8_t)(data == DATA_SUBNORMAL ? random_below(random, 3) : one - random_below(random, 6));
        if (data == DATA_NONFINITE && random_below(random, 400) == 0)
            scales[block] = 0xFF;
    }
    for (size_t block = 1; data == DATA_CANCEL && block < elements / 32; block += 2) {
        for (unsigned i = 0; i < 16; i++)
            codes[16 * block + i] = codes[16 * block - 16 + i] ^ 0x88;
        scales[block] = scales[block - 1];
    }
}

/* Scales of full precision. Every second run of 16 columns cancels within its block. */
static void fill_fp8(struct gb_weights *weights, enum data data, uint64_t *random)
{
    size_t elements = (size_t)weights->experts * weights->rows * weights->columns;
    size_t blocks = weights->experts * weights->halves *
                    gb_part_scale_bytes(GB_FP8_BLOCK, weights->rows / weights->halves, weights->columns) /
                    sizeof(float);
    uint8_t *codes = (uint8_t *)weights->codes;
    float *scales = (float *)weights->scales;

    for (size_t i = 0; i < elements; i++)
        codes[i] = (uint8_t)(random_below(random, 0x7F) | random_below(random, 2) << 7);
    for (size_t i = 0; i < blocks; i++) {
        scales[i] = (float)((0.5 + random_uniform(random)) / (92 * sqrt(weights->columns)));
        if (data == DATA_SUBNORMAL)
            scales[i] *= 0x1p-116f;
        if (data == DATA_NONFINITE && random_below(random, 20) == 0)
            scales[i] = random_below(random, 2) ? NAN : INFINITY;
    }
    for (size_t i = 16; data == DATA_CANCEL && i < elements; i++)
        if (i % 32 >= 16)
            codes[i] = codes[i - 16] ^ 0x80;
}

/* Each part of each expert is a matrix of its own, so with a global scale of its own. */
static void fill_gaussian(struct gb_weights *weights, uint64_t *random)
{
    uint32_t rows = weights->rows / weights->halves;
    size_t count = (size_t)rows * weights->columns;
    size_t code_bytes = rows * gb_row_code_bytes(weights->format, weights->columns);
    size_t scale_bytes = gb_part_scale_bytes(weights->format, rows, weights->columns);
    float *values = allocate(count, sizeof(float));

    for (uint32_t part = 0; part < weights->experts * weights->halves; part++) {
        for (size_t i = 0; i < count; i++)
            values[i] = (float)(random_gaussian(random) / sqrt(weights->columns));
        if (gb_quantise(gb_recipe_default(weights->format), values, rows, weights->columns,
                        (uint8_t *)weights->codes + part * code_bytes,
                        weights->scales ? (uint8_t *)weights->scales + part * scale_bytes : NULL,
                        weights->global_scales ? (float *)weights->global_scales + part : NULL, NULL) != GB_OK)
            abort();
    }
    free(values);
}

void problem_weights(struct gb_weights *weights, enum gb_format format, uint32_t experts, uint32_t rows,
                     uint32_t columns, uint32_t parts, enum data data, uint64_t *random)
{
    size_t elements = (size_t)experts * rows * columns;

    *weights =
        (struct gb_weights){.format = format, .experts = experts, .rows = rows, .columns = columns, .halves = parts};
    if (format == GB_NVFP4) {
        weights->codes = allocate(elements / 2, sizeof(gb_e2m1x2));
        weights->scales = allocate(elements / 16, sizeof(gb_e4m3));
        weights->global_scales = allocate((size_t)experts * parts, sizeof(float));
    } else if (format == GB_MXFP8) {
        weights->codes = allocate(elements, sizeof(gb_e4m3));
        weights->scales = allocate(elements / 32, sizeof(gb_e8m0));
    } else if (format == GB_MXFP4) {
        weights->codes = allocate(elements / 2, sizeof(gb_e2m1x2));
        weights->scales = allocate(elements / 32, sizeof(gb_e8m0));
    } else if (format == GB_FP8_BLOCK) {
        weights->codes = allocate(elements, sizeof(gb_e4m3));
        weights->scales = allocate((size_t)experts * parts, gb_part_scale_bytes(format, rows / parts, columns));
    } else {
        weights->codes = allocate(elements, sizeof(gb_bf16));
    }
    if (data == DATA_GAUSSIAN && gb_recipe_default(format))
        fill_gaussian(weights, random);
    else if (format == GB_NVFP4)
        fill_nvfp4(weights, data, random);
    else if (format == GB_MXFP8)
        fill_mxfp8(weights, data, random);
    else if (format == GB_MXFP4)
        fill_mxfp4(weights, data, random);
    else if (format == GB_FP8_BLOCK)
        fill_fp8(weights, data, random);
    else
        fill_bf16(weights, data, random);
}

void problem_weights_free(struct gb_weights *weights)
{
    free((void *)weights->codes);
    free((void *)weights->scales);
    free((void *)weights->global_scales);
}

/* Gaussian with some zeros of either sign, unless the data's kind says otherwise. */
void problem_activations(gb_bf16 *x, size_t count, enum data data, uint64_t *random)
{
    static const uint16_t special[] = {0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F7F};

    for (size_t i = 0; i < count; i++) {
        x[i] = gb_bf16_encode((float)(random_gaussian(random) * (data == DATA_SUBNORMAL ? 0x1p-12 : 1)));
        if (random_below(random, 64) == 0)
            x[i].bits = random_below(random, 2) ? 0x8000 : 0;
        if (data == DATA_WIDE)
            x[i].bits = (uint16_t)(random_below(random, (127 + 100) << 7) | random_below(random, 2) << 15);
        if (data == DATA_NONFINITE && random_below(random, 500) == 0)
            x[i].bits = special[random_below(random, sizeof special / sizeof *special)];
        if (data == DATA_CANCEL && i % 32 >= 16 && random_below(random, 16) != 0)
            x[i] = x[i - 16];
    }
}

static void fill_ids(struct problem *problem, uint64_t *random)
{
    const struct gb_shape *shape = &problem->arguments.shape;

    for (uint32_t t = 0; t < shape->tokens; t++) {
        int32_t *ids = problem->ids + (size_t)t * shape->top_k;
        for (uint32_t j = 0; j < shape->top_k; j++) {
            bool taken = true;
            while (taken) {
                ids[j] = (int32_t)random_below(random, shape->experts);
                taken = false;
                for (uint32_t i = 0; i < j; i++)
                    taken |= ids[i] == ids[j];
            }
        }
    }
}

void problem_new(struct problem *problem, struct gb_shape shape, enum gb_format format, enum data data, uint64_t seed)
{
    uint64_t random = seed;
    size_t pairs = (size_t)shape.tokens * shape.top_k, outputs = (size_t)shape.tokens * shape.hidden;

    *problem = (struct problem){
        .arguments = {.size = sizeof(struct gb_arguments), .shape = shape},
        .output = allocate(outputs, sizeof(float)),
        .intermediate = allocate(pairs * shape.intermediate, sizeof(gb_bf16)),
        .ids = allocate(pairs, sizeof(int32_t)),
        .routing_weights = allocate(pairs, sizeof(float)),
        .x = allocate(outputs, sizeof(gb_bf16)),
        .truth_x = allocate(outputs, sizeof(double)),
        .truth_routing_weights = allocate(pairs, sizeof(double)),
    };
    problem_activations(problem->x, outputs, data, &random);
    fill_ids(problem, &random);
    for (size_t i = 0; i < outputs; i++)
        problem->truth_x[i] = (double)gb_bf16_decode(problem->x[i]);
    for (size_t i = 0; i < pairs; i++) {
        problem->routing_weights[i] = (float)((0.5 + random_uniform(&random)) / shape.top_k);
        problem->truth_routing_weights[i] = (double)problem->routing_weights[i];
    }
    struct gb_arguments *arguments = &problem->arguments;
    problem_weights(&arguments->gate_up, format, shape.experts, 2 * shape.intermediate, shape.hidden, 2, data, &random);
    problem_weights(&arguments->down, format, shape.experts, shape.hidden, shape.intermediate, 1, data, &random);
    arguments->x = problem->x;
    arguments->ids = problem->ids;
    arguments->routing_weights = problem->routing_weights;
    arguments->intermediate = problem->intermediate;
    arguments->output = problem->output;
    problem_poison(problem);
}

void problem_extend(struct problem *problem, enum gb_activation activation, uint64_t seed)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    size_t ups = (size_t)shape->experts * 2 * shape->intermediate, downs = (size_t)shape->experts * shape->hidden;
    uint64_t random = seed;

    problem->gate_up_bias = allocate(ups, sizeof(float));
    problem->down_bias = allocate(downs, sizeof(float));
    for (size_t i = 0; i < ups; i++) /* some beyond the clamps */
        problem->gate_up_bias[i] = (float)(random_gaussian(&random) * (random_below(&random, 4) ? 1 : 8));
    for (size_t i = 0; i < downs; i++)
        problem->down_bias[i] = (float)random_gaussian(&random);
    problem->arguments.activation = activation;
    problem->arguments.gate_up_bias = problem->gate_up_bias;
    problem->arguments.down_bias = problem->down_bias;
}

void problem_free(struct problem *problem)
{
    free(problem->gate_up_bias);
    free(problem->down_bias);
    problem_weights_free(&problem->arguments.gate_up);
    problem_weights_free(&problem->arguments.down);
    free(problem->output);
    free(problem->intermediate);
    free(problem->ids);
    free(problem->routing_weights);
    free(problem->x);
    free(problem->truth_x);
    free(problem->truth_routing_weights);
}

void problem_poison(struct problem *problem)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    size_t pairs = (size_t)shape->tokens * shape->top_k;

    memset(problem->output, 0xA5, sizeof(float) * shape->tokens * shape->hidden);
    memset(problem->intermediate, 0xA5, sizeof(gb_bf16) * pairs * shape->intermediate);
}

void problem_empty_slots(struct problem *problem, uint32_t one_in, uint64_t seed)
{
    uint64_t random = seed;
    size_t pairs = (size_t)problem->arguments.shape.tokens * problem->arguments.shape.top_k;

    for (size_t i = 0; i < pairs; i++)
        if (random_below(&random, one_in) == 0)
            problem->ids[i] = -1;
}
