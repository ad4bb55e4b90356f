/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/quantised.h"

#include "harness/run/compute_truth.h"
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/oracle/oracle.h"

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK)
        fail_msg("%s", error ? error->message : gb_status_name(status));
}

static enum gb_status matrix(void *fixture, uint32_t layer, uint32_t expert, enum gb_projection projection,
                             float *values, struct gb_error *error)
{
    return gb_generate_matrix(fixture, layer, expert, projection, values, error);
}

static enum gb_status expert_of(void *fixture, uint32_t layer, uint32_t expert, struct gb_error *error)
{
    return gb_generate_expert(fixture, layer, expert, error);
}

struct gb_shape quantised_shape(struct gb_shape shape, const struct contract *c)
{
    const uint32_t block = gb_format_block(c->activations);
    shape.hidden = (shape.hidden + block - 1) / block * block;
    shape.intermediate = (shape.intermediate + block - 1) / block * block;
    return shape;
}

struct gb_fixture *quantised_fixture(const struct gb_shape *shape, const struct contract *c, const char *routing,
                                     uint64_t seed)
{
    struct gb_fixture *f;
    struct gb_error error;
    const struct gb_shape blocks = quantised_shape(*shape, c);
    ok(gb_fixture_new(&blocks, 1, c->weights, false, false, false, &f, &error), &error);
    struct weight_source source = {.context = f, .matrix = matrix, .expert = expert_of};
    strcpy(f->generator, "exact/2");
    f->seed = seed;
    f->norm_topk_prob = true;
    ok(activations_choose(f, c->activations, NULL, &error), &error);
    ok(gb_generate_inputs(f, &error), &error);
    ok(gb_generate_routing(f, routing, &error), &error);
    ok(build_fixture(f, &source, true, &error), &error);
    return f;
}

const char *const mistake_names[MISTAKES] = {"nothing",
                                             "ties away from zero",
                                             "ties to zero",
                                             "codes truncated",
                                             "scales rounded up",
                                             "scales down",
                                             "next block's amax",
                                             "one scale for two blocks",
                                             "next scale",
                                             "nibbles swapped",
                                             "subnormal scales flushed",
                                             "d left out",
                                             "the other d",
                                             "not quantised",
                                             "divided",
                                             "quantised from FP32"};

/* Nearest of `count` ascending magnitudes; ties as the mistake has them. */
static uint32_t nearest(const double *grid, uint32_t count, double v, enum mistake m)
{
    uint32_t low = 0, high = count - 1;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (grid[middle] <= v)
            low = middle;
        else
            high = middle;
    }
    double down = v - grid[low], up = grid[high] - v;
    if (up <= 0.0)
        return high;
    if (m == TRUNCATED)
        return low;
    if (down == up)
        return m == TIES_AWAY ? high : m == TIES_TO_ZERO ? low : low % 2 ? high : low;
    return down < up ? low : high;
}

void quantised_new(struct quantised *layer, const struct gb_fixture *f)
{
    struct quantiser *q = &layer->quantiser;
    *layer = (struct quantised){.late = false};
    *q = (struct quantiser){.format = f->activations, .block = gb_format_block(f->activations), .d = {1.0, 1.0}};
    q->element_count = q->format == GB_NVFP4 ? 8 : 127;
    for (uint32_t i = 0; i < q->element_count; i++)
        q->elements[i] = oracle_decode(q->format == GB_NVFP4 ? ORACLE_E2M1 : ORACLE_E4M3, i);
    for (uint32_t i = 0; i < 127; i++)
        q->scales[i] = oracle_decode(ORACLE_E4M3, i);
    for (int i = 0; i < 2 && f->layer[0].activation_scales; i++)
        q->d[i] = (double)f->layer[0].activation_scales[i];
}

static double scale_of(const struct quantiser *q, double amax, double d, enum mistake m)
{
    if (q->format == GB_NVFP4) {
        double ratio = amax / 6.0 / d;
        uint32_t code = nearest(q->scales, 127, ratio, NOTHING);
        if (m == SCALE_UP && q->scales[code] < ratio)
            code++;
        if (m == SCALE_DOWN && q->scales[code] > ratio)
            code--;
        return m == FLUSHED && q->scales[code] < 0x1p-6 ? 0.0 : q->scales[code];
    }
    if (q->format == GB_FP8_BLOCK)
        return (double)(float)(amax / 448.0);
    int exponent;
    double significand = frexp(amax / 448.0, &exponent);
    if (amax == 0.0)
        return 0x1p-127;
    return ldexp(1.0, exponent - (significand == 0.5) - (m == SCALE_DOWN && significand != 0.5) + (m == SCALE_UP));
}

/* values [columns] become those of their codes. */
static void quantise_row(const struct quantiser *q, double *values, uint32_t columns, bool x)
{
    enum mistake m = q->of_x == x ? q->mistake : NOTHING;
    const double d = q->d[!x], decoding = m == WITHOUT_GLOBAL ? 1.0 : m == OTHER_GLOBAL ? q->d[x] : d;
    const uint32_t blocks = columns / q->block;
    double scale[64], code[64 * 32];
    assert_true(blocks <= 64);
    for (uint32_t b = 0; b < blocks; b++) {
        double amax = 0.0;
        uint32_t first = m == NEXT_AMAX ? (b + 1) % blocks : m == WIDER ? b / 2 * 2 : b;
        uint32_t last = m == WIDER && first + 1 < blocks ? first + 1 : first;
        for (uint32_t i = first * q->block; i < (last + 1) * q->block; i++)
            amax = fmax(amax, fabs(values[i]));
        scale[b] = scale_of(q, amax, d, m);
        for (uint32_t i = b * q->block; i < (b + 1) * q->block; i++) {
            float s = (float)(scale[b] * d), magnitude = (float)fabs(values[i]);
            double v = s > 0.0f ? (double)(m == DIVIDED ? magnitude / s : magnitude * (1.0f / s)) : 0.0;
            uint32_t n = nearest(q->elements, q->element_count, fmin(v, q->elements[q->element_count - 1]), m);
            code[i] = copysign(q->elements[n], values[i]);
        }
    }
    for (uint32_t i = 0; i < columns && m != UNQUANTISED; i++)
        values[i] = code[m == SWAPPED ? i ^ 1 : i] * scale[(i / q->block + (m == NEXT_SCALE)) % blocks] * decoding;
}

static void requantise(void *context, double *h)
{
    struct quantised *k = context;
    const uint32_t columns = k->problem.arguments.shape.intermediate;
    for (size_t i = 0; i < k->inner; i += columns)
        quantise_row(&k->quantiser, h + i, columns, false);
    for (size_t i = 0; i < k->inner; i++)
        h[i] = k->late ? h[i] / k->quantiser.d[1] : h[i];
}

static float *times(const float *globals, size_t count, double d)
{
    float *copy = malloc(sizeof *copy * count);
    assert_non_null(copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = (float)((double)globals[i] * d);
    return copy;
}

void quantised_layer(struct quantised *k, const struct gb_fixture *f, const struct valid_kernel *valid, double *output,
                     double *intermediate)
{
    const struct gb_shape *s = &f->shape;
    struct quantiser *q = &k->quantiser;
    bool fp32 = q->mistake == UNROUNDED;
    struct gb_rounding_points points = {
        .intermediate = fp32 ? GB_FP32 : GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    double *row = malloc(sizeof *row * s->hidden);
    gb_bf16 *x = malloc(sizeof *x * s->tokens * s->hidden);
    assert_true(row && x);
    k->problem = (struct problem){.arguments = gb_layer_arguments(f, 0, s->tokens),
                                  .ids = f->layer[0].ids,
                                  .routing_weights = f->layer[0].routing_weights,
                                  .x = x};
    k->inner = (size_t)s->tokens * s->top_k * s->intermediate;
    k->late &= f->layer[0].activation_scales != NULL;
    for (uint32_t t = 0; t < s->tokens; t++) {
        for (uint32_t i = 0; i < s->hidden; i++)
            row[i] = (double)gb_bf16_decode(f->layer[0].x[(size_t)t * s->hidden + i]);
        quantise_row(q, row, s->hidden, true);
        for (uint32_t i = 0; i < s->hidden; i++) {
            double value = k->late ? row[i] / q->d[0] : row[i];
            x[(size_t)t * s->hidden + i] = gb_bf16_encode((float)value);
            assert_true((double)gb_bf16_decode(x[(size_t)t * s->hidden + i]) == value);
        }
    }
    struct gb_arguments *a = &k->problem.arguments;
    float *globals[2] = {NULL, NULL};
    if (k->late) {
        a->gate_up.global_scales = globals[0] = times(a->gate_up.global_scales, 2 * s->experts, q->d[0]);
        a->down.global_scales = globals[1] = times(a->down.global_scales, s->experts, q->d[1]);
    }
    valid_layer_changed(&k->problem, valid, &points, requantise, k, output, intermediate);
    free(globals[0]);
    free(globals[1]);
    free(row);
    free(x);
}

void quantised_oracle(const struct gb_fixture *f, float *output)
{
    const struct gb_shape *s = &f->shape;
    const size_t outer = (size_t)s->tokens * s->hidden, inner = (size_t)s->tokens * s->top_k * s->intermediate;
    const size_t most = outer > inner ? outer : inner;
    struct gb_arguments a = gb_layer_arguments(f, 0, s->tokens);
    uint8_t *codes = malloc(most), *scale_codes = malloc(most);
    float *scales = malloc(sizeof *scales * most);
    gb_bf16 *h = malloc(sizeof *h * inner);
    assert_true(codes && scale_codes && scales && h);
    gb_layer_activations(f, 0, f->activations, &a);
    oracle_quantise_activations(&a, false, a.x, codes, scale_codes, scales);
    oracle_quantised_gate_up(&a, codes, scales, h);
    oracle_quantise_activations(&a, true, h, codes, scale_codes, scales);
    oracle_quantised_down(&a, codes, scales, output);
    free(codes);
    free(scale_codes);
    free(scales);
    free(h);
}
