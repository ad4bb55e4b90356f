/* SPDX-License-Identifier: Apache-2.0 */
/* Shares no arithmetic with the library: weights are decoded here, and activations quantised by the oracle. */
#include "tests/support/valid_kernels.h"

#include "tests/oracle/oracle.h"
#include "tests/support/check.h"
#include "tests/support/enclosed.h"

/* Bits of bf16 are the upper half of binary32's. */
static float bf16_value(gb_bf16 code)
{
    return bits_float((uint32_t)code.bits << 16);
}

static gb_bf16 bf16_code(float value)
{
    uint32_t bits = float_bits(value);
    if (isnan(value))
        return (gb_bf16){0x7FC0};
    return (gb_bf16){(uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

/* Of each code. */
static const double e2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

/* Of each code, before main. */
static double e4m3[256];

__attribute__((constructor)) static void fill_e4m3(void)
{
    for (unsigned code = 0; code < 256; code++) {
        unsigned exponent = code >> 3 & 15, mantissa = code & 7;
        double unit = power_of_two((int)(exponent ? exponent : 1) - 10);
        double value = (exponent ? 8 + mantissa : mantissa) * unit;
        e4m3[code] = (code & 0x7F) == 0x7F ? (double)NAN : code & 0x80 ? -value : value;
    }
}

static double e8m0_value(unsigned code)
{
    return code == 0xFF ? (double)NAN : power_of_two((int)code - 127);
}

/* The scale of an element, without the global one. */
static double scale_value(const struct gb_weights *w, uint32_t expert, uint32_t row, uint32_t column)
{
    size_t at = ((size_t)expert * w->rows + row) * w->columns + column;
    uint32_t rows = w->rows / w->halves, across = (w->columns + 127) / 128;
    size_t matrix = (size_t)expert * w->halves + row / rows;
    switch (w->format) {
    case GB_NVFP4:
        return e4m3[((const uint8_t *)w->scales)[at / 16]];
    case GB_MXFP4:
    case GB_MXFP8:
        return e8m0_value(((const uint8_t *)w->scales)[at / 32]);
    case GB_FP8_BLOCK:
        return (double)((const float *)
                            w->scales)[(matrix * ((rows + 127) / 128) + row % rows / 128) * across + column / 128];
    default:
        return 1;
    }
}

/* values: [columns], with all scales, the global one as it is given. */
static void decode_row(const struct gb_weights *w, uint32_t expert, uint32_t row, double global, double *values)
{
    size_t first = ((size_t)expert * w->rows + row) * w->columns;
    const uint8_t *bytes = w->codes;
    for (uint32_t block = 0; block < w->columns; block += 16) {
        uint32_t end = w->columns - block < 16 ? w->columns : block + 16;
        double scale = scale_value(w, expert, row, block) * global;
        if (w->format == GB_BF16)
            for (uint32_t c = block; c < end; c++)
                values[c] = (double)bf16_value(((const gb_bf16 *)w->codes)[first + c]);
        else if (w->format == GB_NVFP4 || w->format == GB_MXFP4)
            for (uint32_t c = block; c < end; c++)
                values[c] = scale * e2m1[bytes[(first + c) / 2] >> ((first + c) % 2 * 4) & 15];
        else
            for (uint32_t c = block; c < end; c++)
                values[c] = scale * e4m3[bytes[first + c]];
    }
}

/* The terms of one sum: weights[i] * values[i]. */
struct terms {
    uint32_t count;
    const float *weights;  /* [count] */
    const float *values;   /* [count] */
    const uint32_t *order; /* [count], a permutation */
    const struct valid_kernel *valid;
    uint32_t bits; /* of the accumulator */
};

/* To the accumulator's significand bits: to nearest, ties to even, or toward zero. What is added to the binary64
 * number's bits carries into its exponent where rounding does. */
static float narrow(const struct terms *terms, double value)
{
    unsigned dropped = 53 - terms->bits;
    uint64_t bits;

    if (!isfinite(value) || (terms->bits >= 24 && !terms->valid->truncate))
        return (float)value;
    memcpy(&bits, &value, sizeof bits);
    if (!terms->valid->truncate)
        bits += (1ull << (dropped - 1)) - 1 + (bits >> dropped & 1);
    bits = bits >> dropped << dropped;
    memcpy(&value, &bits, sizeof value);
    return (float)value;
}

static float term(const struct terms *terms, uint32_t n)
{
    uint32_t i = terms->order[n];
    return terms->weights[i] * terms->values[i];
}

static float add_term(const struct terms *terms, uint32_t n, float sum)
{
    uint32_t i = terms->order[n];

    if (terms->bits < 24 || terms->valid->truncate)
        return narrow(terms, (double)terms->weights[i] * (double)terms->values[i] + (double)sum);
    return terms->valid->fma ? fmaf(terms->weights[i], terms->values[i], sum) : sum + term(terms, n);
}

static float pairwise(const struct terms *terms, uint32_t first, uint32_t count)
{
    if (count == 1)
        return narrow(terms, (double)term(terms, first));
    float low = pairwise(terms, first, count / 2), high = pairwise(terms, first + count / 2, count - count / 2);
    return narrow(terms, (double)low + (double)high);
}

static float sum(const struct terms *terms, float start)
{
    if (terms->valid->order == VALID_PAIRWISE)
        return start + pairwise(terms, 0, terms->count);
    if (terms->valid->order == VALID_SPLIT) {
        for (uint32_t part = 0; part < 4; part++) {
            float share = 0;
            for (uint32_t n = part * terms->count / 4; n < (part + 1) * terms->count / 4; n++)
                share = add_term(terms, n, share);
            start = narrow(terms, (double)start + (double)share);
        }
        return start;
    }
    for (uint32_t n = 0; n < terms->count; n++)
        start = add_term(terms, n, start);
    return start;
}

struct scratch {
    double *row;        /* [columns] */
    float *weights;     /* [columns] */
    uint32_t *order;    /* [columns], of which `ordered` are filled */
    float *x;           /* [tokens, hidden]: what gate_up takes, without `late` */
    float *h;           /* [tokens, top_k, intermediate]: the same for down */
    float late_x, late; /* what is left to multiply a product with: d_x and d_h, or 1 */
    uint32_t ordered;
};

/* The sequence of a sum's terms, [count], which is the same for all sums of one length. */
static const uint32_t *order_of(const struct valid_kernel *valid, struct scratch *scratch, uint32_t count)
{
    uint64_t random = valid->seed;
    uint32_t *order = scratch->order;

    if (scratch->ordered == count)
        return order;
    scratch->ordered = count;
    for (uint32_t i = 0; i < count; i++)
        order[i] = valid->order == VALID_REVERSED ? count - 1 - i : i;
    for (uint32_t i = count; valid->order == VALID_SHUFFLED && i > 1; i--) {
        uint32_t other = random_below(&random, i), swap = order[i - 1];
        order[i - 1] = order[other];
        order[other] = swap;
    }
    return order;
}

static float global_scale(const struct gb_weights *weights, uint32_t expert, uint32_t row)
{
    return weights->global_scales
               ? weights->global_scales[expert * weights->halves + row / (weights->rows / weights->halves)]
               : 1;
}

/* Row . values * late, added to start. Folded sums have the factors inside each term. */
static float dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const float *values, float late,
                 const struct valid_kernel *valid, uint32_t bits, float start, float factor, struct scratch *scratch)
{
    float global = global_scale(weights, expert, row);
    bool inside = valid->scales_first || factor != 1 || start != 0;

    decode_row(weights, expert, row, inside ? (double)global : 1, scratch->row);
    for (uint32_t i = 0; i < weights->columns; i++)
        scratch->weights[i] = inside ? (float)scratch->row[i] * factor * late : (float)scratch->row[i];
    struct terms terms = {
        weights->columns, scratch->weights, values, order_of(valid, scratch, weights->columns), valid, bits};
    float result = sum(&terms, start);
    if (inside)
        return result;
    return valid->fma ? result * (global * late) : result * global * late;
}

static float rounded(enum gb_format format, float value)
{
    return format == GB_BF16 ? bf16_value(bf16_code(value)) : value;
}

/* With a bias, or NULL: the sum starts there, or it is added to the sum as stored in `format`. */
static float biased(const struct gb_weights *weights, uint32_t expert, uint32_t row, const float *biases,
                    const float *values, float late, const struct valid_kernel *valid, uint32_t bits,
                    enum gb_format format, struct scratch *scratch)
{
    float bias = biases ? biases[(size_t)expert * weights->rows + row] : 0;

    if (!biases || valid->scales_first)
        return rounded(format, dot(weights, expert, row, values, late, valid, bits, bias, 1, scratch));
    return rounded(format, rounded(format, dot(weights, expert, row, values, late, valid, bits, 0, 1, scratch)) + bias);
}

/* x * sigmoid(alpha x) */
static float gate_of(float x, float alpha, const struct valid_kernel *valid)
{
    float e = expf(valid->clamp ? fminf(-alpha * x, 88.376f) : -alpha * x);
    return valid->reciprocal ? x * (1 / (1 + e)) : x / (1 + e);
}

static float activated(enum gb_activation activation, float gate, float up, enum gb_format format,
                       const struct valid_kernel *valid)
{
    if (activation == GB_SILU)
        return rounded(format, gate_of(gate, 1, valid)) * up;
    return rounded(format, gate_of(fminf(gate, 7), 1.702f, valid)) * (fmaxf(-7, fminf(up, 7)) + 1);
}

static void gate_up(const struct problem *problem, size_t pair, const struct valid_kernel *valid,
                    const struct gb_rounding_points *points, struct scratch *scratch, double *h)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    const float *values = scratch->x + pair / shape->top_k * shape->hidden;
    float late = scratch->late_x;
    int32_t expert = problem->ids[pair];

    for (uint32_t i = 0; i < shape->intermediate; i++) {
        h[i] = 0;
        if (expert < 0)
            continue;
        float gate = biased(&problem->arguments.gate_up, (uint32_t)expert, i, problem->gate_up_bias, values, late,
                            valid, points->accumulator_bits, points->stages.gate_up, scratch);
        float up = biased(&problem->arguments.gate_up, (uint32_t)expert, shape->intermediate + i, problem->gate_up_bias,
                          values, late, valid, points->accumulator_bits, points->stages.gate_up, scratch);
        float product = activated(problem->arguments.activation, gate, up, points->stages.silu, valid);
        h[i] = (double)rounded(points->intermediate, product);
    }
}

static float combine(const struct problem *problem, uint32_t token, uint32_t row, const struct valid_kernel *valid,
                     const struct gb_rounding_points *points, struct scratch *scratch)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    float y = 0;

    for (uint32_t n = 0; n < shape->top_k; n++) {
        uint32_t slot = valid->order == VALID_REVERSED ? shape->top_k - 1 - n : n;
        size_t pair = (size_t)token * shape->top_k + slot;
        int32_t expert = problem->ids[pair];
        float routing = rounded(points->stages.routing_weight, problem->routing_weights[pair]);
        if (expert < 0)
            continue;
        const float *values = scratch->h + pair * shape->intermediate;
        if (valid->fold) {
            y = dot(&problem->arguments.down, (uint32_t)expert, row, values, scratch->late, valid,
                    points->accumulator_bits, y, routing, scratch);
            if (problem->down_bias)
                y += routing * problem->down_bias[(uint32_t)expert * shape->hidden + row];
            continue;
        }
        bool after = points->stages.slot == GB_BF16 && points->stages.weighted != GB_BF16 && valid->fma;
        float share = biased(&problem->arguments.down, (uint32_t)expert, row, problem->down_bias, values, scratch->late,
                             valid, points->accumulator_bits, after ? GB_FP32 : points->stages.slot, scratch);
        if (after || points->stages.weighted == GB_BF16)
            y += rounded(GB_BF16, routing * share);
        else
            y = valid->fma ? fmaf(routing, share, y) : y + routing * share;
    }
    return rounded(points->output, y);
}

/* values [count], as bf16 holds them, become those of their codes. Returns what is left to multiply products with. */
static float quantised(const struct problem *problem, enum gb_operator operation, size_t count,
                       const struct valid_kernel *valid, float *values)
{
    const struct gb_arguments *a = &problem->arguments;
    const struct gb_quantiser *rules = a->activation_rules;
    if (!rules)
        return 1;
    float d = rules->global == GB_GLOBAL_NONE ? 1 : operation == GB_DOWN ? a->intermediate_scale : a->x_scale;
    float late = valid->early ? 1 : d;
    gb_bf16 *bits = calloc(count, sizeof *bits);
    uint8_t *codes = malloc(count), *scale_codes = malloc(count);
    float *scales = malloc(count * sizeof *scales);
    if (!bits || !codes || !scale_codes || !scales)
        abort();
    for (size_t i = 0; i < count; i++)
        bits[i] = bf16_code(values[i]);
    oracle_quantise_activations(a, operation == GB_DOWN, bits, codes, scale_codes, scales);
    for (size_t i = 0; i < count; i++) {
        double code = rules->element == GB_E2M1 ? e2m1[codes[i]] : e4m3[codes[i]];
        values[i] = (float)(code * (double)scales[i / rules->block_columns] * (double)d / (double)late);
    }
    free(bits);
    free(codes);
    free(scale_codes);
    free(scales);
    return late;
}

void valid_layer(const struct problem *problem, const struct valid_kernel *valid,
                 const struct gb_rounding_points *points, double *output, double *intermediate)
{
    valid_layer_changed(problem, valid, points, NULL, NULL, output, intermediate);
}

void valid_layer_changed(const struct problem *problem, const struct valid_kernel *valid,
                         const struct gb_rounding_points *points, valid_change *change, void *context, double *output,
                         double *intermediate)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    uint32_t columns = shape->hidden > shape->intermediate ? shape->hidden : shape->intermediate;
    size_t inputs = (size_t)shape->tokens * shape->hidden;
    size_t inner = (size_t)shape->tokens * shape->top_k * shape->intermediate;
    struct scratch scratch = {malloc(columns * sizeof(double)),
                              malloc(columns * sizeof(float)),
                              malloc(columns * sizeof(uint32_t)),
                              malloc(inputs * sizeof(float)),
                              malloc(inner * sizeof(float)),
                              1,
                              1,
                              0};

    if (!scratch.row || !scratch.weights || !scratch.order || !scratch.x || !scratch.h)
        abort();
    for (size_t i = 0; i < inputs; i++)
        scratch.x[i] = bf16_value(problem->x[i]);
    scratch.late_x = quantised(problem, GB_GATE_UP, inputs, valid, scratch.x);
    for (size_t pair = 0; pair < inner / shape->intermediate; pair++)
        gate_up(problem, pair, valid, points, &scratch, intermediate + pair * shape->intermediate);
    if (change)
        change(context, intermediate);
    for (size_t i = 0; i < inner; i++)
        scratch.h[i] = (float)intermediate[i];
    scratch.late = quantised(problem, GB_DOWN, inner, valid, scratch.h);
    for (uint32_t t = 0; t < shape->tokens; t++)
        for (uint32_t row = 0; row < shape->hidden; row++)
            output[(size_t)t * shape->hidden + row] = (double)combine(problem, t, row, valid, points, &scratch);
    free(scratch.row);
    free(scratch.weights);
    free(scratch.order);
    free(scratch.x);
    free(scratch.h);
}

struct valid_kernel valid_way(unsigned way, uint64_t seed)
{
    return (struct valid_kernel){.order = (enum valid_order)(way / 16),
                                 .fma = way & 1,
                                 .scales_first = way & 2,
                                 .reciprocal = way & 4,
                                 .fold = way & 8,
                                 .seed = seed};
}
