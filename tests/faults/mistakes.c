/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A subject library of mistakes that an explanation must name: mistakes/NAME.FORMAT for every format of weights, and
 * mistakes/NAME.FORMAT.gate_up and .down. Each is the reference on inputs that a few lines here change, or with some of
 * its outputs changed, none of which the harness shares. None claims an order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"

/* One projection's buffers, to be changed freely; codes NULL where the operation has none. */
struct projection {
    const struct gb_weights *clean;
    uint8_t *codes, *scales;
    float *global_scales; /* [experts, parts] */
    size_t code_bytes, scale_bytes, row_code_bytes, row_scale_bytes;
    uint32_t block; /* columns of a scale; 16 for bf16 */
};

struct problem {
    struct gb_arguments arguments; /* of the buffers below */
    int32_t *ids;                  /* [tokens, top_k] */
    float *routing_weights;        /* [tokens, top_k] */
    struct projection gate_up, down;
};

static void *duplicate(const void *bytes, size_t count)
{
    void *copy = bytes && count ? malloc(count) : NULL;
    if (bytes && count && !copy)
        abort();
    return copy ? memcpy(copy, bytes, count) : NULL;
}

static void projection_new(struct gb_weights *weights, const struct gb_weights *clean, struct projection *p)
{
    size_t globals;
    *p = (struct projection){.clean = clean};
    if (!clean->codes || gb_weights_bytes(clean, &p->code_bytes, &p->scale_bytes, &globals, NULL) != GB_OK)
        return;
    weights->codes = p->codes = duplicate(clean->codes, p->code_bytes);
    weights->scales = p->scales = duplicate(clean->scales, p->scale_bytes);
    weights->global_scales = p->global_scales = duplicate(clean->global_scales, globals);
    p->row_code_bytes = gb_row_code_bytes(clean->format, clean->columns);
    p->row_scale_bytes = clean->format == GB_FP8_BLOCK ? 0 : gb_row_scale_bytes(clean->format, clean->columns);
    p->block = gb_format_block(clean->format) > 1 ? gb_format_block(clean->format) : 16;
}

static void projection_free(struct projection *p)
{
    free(p->codes);
    free(p->scales);
    free(p->global_scales);
}

static size_t rows_of(const struct projection *p)
{
    return (size_t)p->clean->experts * p->clean->rows;
}

static void drop_block(struct projection *p, uint32_t block)
{
    size_t bytes = p->codes ? gb_row_code_bytes(p->clean->format, p->block) : 0;
    for (size_t row = 0; p->codes && row < rows_of(p); row++)
        memset(p->codes + row * p->row_code_bytes + block * bytes, 0, bytes);
}

static void last_block_dropped(struct problem *p)
{
    if (p->gate_up.codes)
        drop_block(&p->gate_up, p->gate_up.clean->columns / p->gate_up.block - 1);
    if (p->down.codes)
        drop_block(&p->down, p->down.clean->columns / p->down.block - 1);
}

static void second_block_of_gate_up_dropped(struct problem *p)
{
    drop_block(&p->gate_up, 1);
}

static void first_block_of_down_dropped(struct problem *p)
{
    drop_block(&p->down, 0);
}

/* The sign bit of each of the column's codes: the highest, of the high nibble where the column is odd. */
static void negate(struct projection *p, uint32_t column)
{
    size_t bits = p->codes ? 8 * p->row_code_bytes / p->clean->columns : 0;
    size_t sign = (column + 1) * bits - 1;
    for (size_t row = 0; p->codes && row < rows_of(p); row++)
        p->codes[row * p->row_code_bytes + sign / 8] ^= (uint8_t)(1u << sign % 8);
}

/* From column 13 on, about half of them. */
static void columns_of_down_negated(struct problem *p)
{
    uint32_t columns = p->down.codes ? p->down.clean->columns : 0;
    for (uint32_t column = 13; column < columns && column < 13 + columns * 11 / 24; column++)
        negate(&p->down, column);
}

static void columns_of_down_negated_in_every_eight(struct problem *p)
{
    for (uint32_t column = 3; p->down.codes && column < p->down.clean->columns; column += column % 8 == 3 ? 1 : 7)
        negate(&p->down, column);
}

static void move_scales(struct projection *p, int by)
{
    size_t one = p->scale_bytes && p->clean->format == GB_FP8_BLOCK ? sizeof(float) : 1;
    if (!p->scale_bytes)
        return;
    if (by > 0)
        memmove(p->scales, (const uint8_t *)p->clean->scales + one, p->scale_bytes - one);
    else
        memmove(p->scales + one, p->clean->scales, p->scale_bytes - one);
}

static void scales_next(struct problem *p)
{
    move_scales(&p->gate_up, 1);
    move_scales(&p->down, 1);
}

static void scales_previous(struct problem *p)
{
    move_scales(&p->gate_up, -1);
    move_scales(&p->down, -1);
}

static void scales_next_row(struct problem *p)
{
    size_t bytes = p->down.row_scale_bytes;
    if (p->down.scale_bytes)
        memcpy(p->down.scales, (const uint8_t *)p->down.clean->scales + bytes, p->down.scale_bytes - bytes);
}

/* Each expert's scales are put into the 128x4 layout, and read as if they were not. */
static void scales_swizzled(struct problem *p)
{
    const struct projection *g = &p->gate_up;
    uint32_t rows = g->clean->rows, blocks = (uint32_t)g->row_scale_bytes;
    for (size_t e = 0; e < g->clean->experts; e++)
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t b = 0; b < blocks; b++) {
                uint32_t tile = r / 128 * ((blocks + 3) / 4) + b / 4;
                size_t at = (size_t)tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + b % 4;
                if (at < (size_t)rows * blocks)
                    g->scales[e * rows * blocks + at] =
                        ((const uint8_t *)g->clean->scales)[(e * rows + r) * blocks + b];
            }
}

static void exchange(uint8_t *to, const void *from, size_t bytes, uint32_t experts)
{
    size_t half = bytes / experts / 2;
    for (size_t e = 0; e < experts; e++) {
        memcpy(to + 2 * e * half, (const uint8_t *)from + (2 * e + 1) * half, half);
        memcpy(to + (2 * e + 1) * half, (const uint8_t *)from + 2 * e * half, half);
    }
}

static void gate_up_swapped(struct problem *p)
{
    const struct projection *g = &p->gate_up;
    uint32_t experts = g->clean->experts;
    exchange(g->codes, g->clean->codes, g->code_bytes, experts);
    if (g->scale_bytes)
        exchange(g->scales, g->clean->scales, g->scale_bytes, experts);
    if (g->global_scales)
        exchange((uint8_t *)g->global_scales, g->clean->global_scales, 2 * experts * sizeof(float), experts);
}

/* Of the expert in the first slot alone. */
static void nibbles_of_one_expert(struct problem *p)
{
    size_t each = p->down.code_bytes / p->down.clean->experts;
    uint8_t *codes = p->down.codes + (size_t)p->ids[0] * each;
    for (size_t i = 0; i < each; i++)
        codes[i] = (uint8_t)(codes[i] << 4 | codes[i] >> 4);
}

static size_t pairs_of(const struct problem *p)
{
    return (size_t)p->arguments.shape.tokens * p->arguments.shape.top_k;
}

static void weight_missing(struct problem *p)
{
    for (size_t i = 0; i < pairs_of(p); i++)
        p->routing_weights[i] = 1.0f;
}

static void weight_missing_in_one_token(struct problem *p)
{
    for (uint32_t k = 0; k < p->arguments.shape.top_k; k++)
        p->routing_weights[pairs_of(p) - 1 - k] = 1.0f;
}

static void weight_twice(struct problem *p)
{
    for (size_t i = 0; i < pairs_of(p); i++)
        p->routing_weights[i] *= p->routing_weights[i];
}

static void expert_left_out(struct problem *p)
{
    int32_t expert = p->ids[0];
    for (size_t i = 0; i < pairs_of(p); i++)
        p->ids[i] = p->ids[i] == expert ? -1 : p->ids[i];
}

static void slot_left_out(struct problem *p)
{
    for (size_t i = 1; i < pairs_of(p); i += p->arguments.shape.top_k)
        p->ids[i] = -1;
}

static void ids_off(struct problem *p)
{
    for (size_t i = 0; i < pairs_of(p); i++)
        p->ids[i] = p->ids[i] < 0 ? -1 : (p->ids[i] + 1) % (int32_t)p->arguments.shape.experts;
}

/* Columns 16 to 31 of the first half of the tokens. */
static void tile_missing(struct problem *p)
{
    for (uint32_t t = 0; t < (p->arguments.shape.tokens + 1) / 2; t++)
        memset((float *)p->arguments.output + (size_t)t * p->arguments.shape.hidden + 16, 0, 16 * sizeof(float));
}

static void zero(struct problem *p)
{
    memset(p->arguments.output, 0, (size_t)p->arguments.shape.tokens * p->arguments.shape.hidden * sizeof(float));
}

/* Of tokens whose first routing weight is above 1 half of the outputs, at random, change sign. */
static void marked_token_garbled(struct problem *p)
{
    const uint32_t hidden = p->arguments.shape.hidden, top_k = p->arguments.shape.top_k;
    uint64_t random = 1;
    for (uint32_t t = 0; t < p->arguments.shape.tokens; t++)
        for (uint32_t i = 0; i < hidden && p->routing_weights[(size_t)t * top_k] > 1.0f; i++) {
            float *output = (float *)p->arguments.output + (size_t)t * hidden + i;
            random = random * 6364136223846793005u + 1442695040888963407u;
            *output = random >> 63 ? -*output : *output;
        }
}

static enum gb_status run(const struct gb_arguments *arguments, void (*before)(struct problem *),
                          void (*after)(struct problem *), struct gb_error *error)
{
    struct problem p = {.arguments = *arguments};
    size_t pairs = pairs_of(&p);
    p.arguments.ids = p.ids = duplicate(arguments->ids, pairs * sizeof *p.ids);
    p.arguments.routing_weights = p.routing_weights =
        duplicate(arguments->routing_weights, pairs * sizeof *p.routing_weights);
    projection_new(&p.arguments.gate_up, &arguments->gate_up, &p.gate_up);
    projection_new(&p.arguments.down, &arguments->down, &p.down);
    if (before)
        before(&p);
    enum gb_status status = !p.gate_up.codes ? fma32_down(&p.arguments, error)
                            : !p.down.codes  ? fma32_gate_up(&p.arguments, error)
                                             : fma32_layer(&p.arguments, error);
    if (after)
        after(&p);
    projection_free(&p.gate_up);
    projection_free(&p.down);
    free(p.ids);
    free(p.routing_weights);
    return status;
}

#define BEFORE(NAME)                                                                                                   \
    static enum gb_status run_##NAME(const struct gb_arguments *arguments, struct gb_error *error)                     \
    {                                                                                                                  \
        return run(arguments, NAME, NULL, error);                                                                      \
    }
#define AFTER(NAME)                                                                                                    \
    static enum gb_status run_##NAME(const struct gb_arguments *arguments, struct gb_error *error)                     \
    {                                                                                                                  \
        return run(arguments, NULL, NAME, error);                                                                      \
    }
BEFORE(last_block_dropped)
BEFORE(second_block_of_gate_up_dropped)
BEFORE(first_block_of_down_dropped)
BEFORE(columns_of_down_negated)
BEFORE(columns_of_down_negated_in_every_eight)
BEFORE(scales_next)
BEFORE(scales_previous)
BEFORE(scales_next_row)
BEFORE(scales_swizzled)
BEFORE(gate_up_swapped)
BEFORE(nibbles_of_one_expert)
BEFORE(weight_missing)
BEFORE(weight_missing_in_one_token)
BEFORE(weight_twice)
BEFORE(expert_left_out)
BEFORE(slot_left_out)
BEFORE(ids_off)
AFTER(tile_missing)
AFTER(zero)
AFTER(marked_token_garbled)

/* In the process that makes the file GB_MISTAKES_FIRST the routing weight is missing; in others the output is zero. */
static enum gb_status run_weight_missing_at_first(const struct gb_arguments *arguments, struct gb_error *error)
{
    static int first = -1;
    if (first < 0) {
        const char *path = getenv("GB_MISTAKES_FIRST");
        FILE *file = path ? fopen(path, "wx") : NULL;
        first = file && fclose(file) == 0;
    }
    return run(arguments, first ? weight_missing : NULL, first ? NULL : zero, error);
}

/* The last one supports two tokens and more. */
static const struct {
    const char *name;
    enum gb_status (*run)(const struct gb_arguments *arguments, struct gb_error *error);
} mistakes[] = {
    {"last-block-dropped", run_last_block_dropped},
    {"second-block-of-gate-up-dropped", run_second_block_of_gate_up_dropped},
    {"first-block-of-down-dropped", run_first_block_of_down_dropped},
    {"columns-of-down-negated", run_columns_of_down_negated},
    {"columns-of-down-negated-in-every-eight", run_columns_of_down_negated_in_every_eight},
    {"scales-next", run_scales_next},
    {"scales-previous", run_scales_previous},
    {"scales-next-row", run_scales_next_row},
    {"scales-swizzled", run_scales_swizzled},
    {"gate-up-swapped", run_gate_up_swapped},
    {"nibbles-of-one-expert", run_nibbles_of_one_expert},
    {"weight-missing", run_weight_missing},
    {"weight-missing-in-one-token", run_weight_missing_in_one_token},
    {"weight-twice", run_weight_twice},
    {"expert-left-out", run_expert_left_out},
    {"slot-left-out", run_slot_left_out},
    {"ids-off", run_ids_off},
    {"tile-missing", run_tile_missing},
    {"zero", run_zero},
    {"weight-missing-at-first", run_weight_missing_at_first},
    {"marked-token-garbled", run_marked_token_garbled},
    {"marked-token-garbled-of-two", run_marked_token_garbled},
};

static enum gb_status supports_two(const struct gb_problem *problem, struct gb_error *error)
{
    return problem->shape.tokens < 2 ? gb_fail(error, GB_EUNSUPPORTED, "one token is too few") : GB_OK;
}

static enum gb_status supports(const struct gb_problem *problem, struct gb_error *error)
{
    if (problem->shape.hidden % 16 || problem->shape.intermediate % 16)
        return gb_fail(error, GB_EUNSUPPORTED, "hidden and intermediate must be multiples of 16");
    return GB_OK;
}

enum {
    MISTAKES = sizeof mistakes / sizeof *mistakes,
    FORMATS = 5,
    OPERATIONS = 3,
    KERNELS = MISTAKES * FORMATS * OPERATIONS
};

static struct gb_kernel kernels[KERNELS];
static char names[KERNELS][80];

static const struct gb_kernel_table table = {
    .abi_version = GB_ABI_VERSION,
    .kernel_size = sizeof(struct gb_kernel),
    .count = KERNELS,
    .kernels = kernels,
};

GB_API const struct gb_kernel_table *gb_kernels(void);

const struct gb_kernel_table *gb_kernels(void)
{
    static const enum gb_format formats[FORMATS] = {GB_NVFP4, GB_MXFP4, GB_MXFP8, GB_FP8_BLOCK, GB_BF16};
    static const enum gb_operator operations[OPERATIONS] = {GB_LAYER, GB_GATE_UP, GB_DOWN};
    static const char *const suffixes[OPERATIONS] = {"", ".gate_up", ".down"};
    for (size_t i = 0; i < KERNELS; i++) {
        size_t mistake = i / (FORMATS * OPERATIONS), format = i / OPERATIONS % FORMATS, operation = i % OPERATIONS;
        snprintf(names[i], sizeof names[i], "mistakes/%s.%s%s", mistakes[mistake].name, gb_format_name(formats[format]),
                 suffixes[operation]);
        kernels[i] = (struct gb_kernel){.name = names[i],
                                        .operation = operations[operation],
                                        .weights = formats[format],
                                        .activations = GB_BF16,
                                        .output = GB_FP32,
                                        .accumulator_bits = 24,
                                        .supports = mistake + 1 < MISTAKES ? supports : supports_two,
                                        .run = mistakes[mistake].run};
    }
    return &table;
}
