/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gb_bound_layer with quantised activations: every valid order stays within `worst`, though codes of the intermediate
 * flip, and what is no valid way to compute the layer exceeds it.
 */
#include "tests/support/bounds_case.h"

#include "quant/quant.h"
#include "reference/truth/bounds_requantise.h"
#include "tests/support/check.h"

/* Accumulators so narrow that codes flip often. */
static const struct gb_rounding_points points_narrow = {
    .intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 14};

/* A subject of such a contract, put together from two of bf16's: the numbers of the codes of x, then those of the
 * intermediate, with the weights' global scales times d. */
struct subject {
    struct bounded b;
    const struct gb_quantiser *rules;
    const struct gb_rounding_points *points;
    float d[2];
    gb_bf16 *x;      /* [tokens, hidden], numbers */
    float *globals;  /* [experts, 3], gate_up's, then down's */
    double *centre;  /* [tokens, hidden] */
    uint8_t *codes;  /* of one of the two, [count] */
    uint8_t *scales; /* [count] */
    uint8_t *first;  /* [count], the codes of another way to compute the layer */
    size_t flips;
};

/* values [count] become those of their codes, without d; bf16 holds them. */
static void quantise(struct subject *s, enum gb_operator operation, const gb_bf16 *bits, size_t count, double *values)
{
    struct gb_arguments a = s->b.problem.arguments;
    a.activation_rules = s->rules;
    a.x_scale = s->d[0];
    a.intermediate_scale = s->d[1];
    assert_int_equal(gb_reference_quantise_activations(&a, operation, bits, s->codes, s->scales, NULL), GB_OK);
    assert_int_equal(gb_reference_activation_values(&a, operation, s->codes, s->scales, values, NULL), GB_OK);
    for (size_t i = 0; i < count; i++)
        values[i] /= (double)s->d[operation == GB_DOWN];
}

static void requantise(void *context, double *h)
{
    struct subject *s = context;
    size_t count = s->b.intermediates, bytes = s->rules->element == GB_E2M1 ? count / 2 : count;
    gb_bf16 *bits = malloc(count * sizeof *bits);
    assert_non_null(bits);
    for (size_t i = 0; i < count; i++)
        bits[i] = gb_bf16_encode((float)h[i]);
    quantise(s, GB_DOWN, bits, count, h);
    for (size_t i = 0; i < bytes; i++)
        s->flips += s->first[i] != s->codes[i];
    free(bits);
}

static float largest_of(const double *values, size_t count)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fabs(values[i]) > largest ? fabs(values[i]) : largest;
    return (float)largest;
}

static void subject_new(struct subject *s, struct gb_shape shape, enum gb_format format, const char *recipe,
                        enum data data, uint64_t seed)
{
    *s = (struct subject){.rules = &gb_recipe_find(recipe)->quantiser, .points = &points_narrow};
    struct bounded *b = &s->b;
    bounded_new(b, shape, format, data, seed);
    size_t most = b->intermediates > b->outputs ? b->intermediates : b->outputs;
    s->x = malloc(b->outputs * sizeof *s->x);
    s->globals = malloc(3 * shape.experts * sizeof *s->globals);
    s->centre = malloc(b->outputs * sizeof *s->centre);
    s->codes = malloc(most);
    s->scales = malloc(most);
    s->first = malloc(most);
    assert_true(s->x && s->globals && s->centre && s->codes && s->scales && s->first);
    bound(b, &points_bf16_fp32);
    bool global = s->rules->global != GB_GLOBAL_NONE;
    s->d[0] = global ? largest_of(b->problem.truth_x, b->outputs) / 2688.0f : 1;
    s->d[1] = global ? largest_of(b->truth_h, b->intermediates) / 2688.0f : 1;
}

static void subject_free(struct subject *s)
{
    bounded_free(&s->b);
    free(s->x);
    free(s->globals);
    free(s->centre);
    free(s->codes);
    free(s->scales);
    free(s->first);
}

/* The bounds, and the codes that the reference has. */
static void bound_quantised(struct subject *s)
{
    struct bounded *b = &s->b;
    const struct problem *p = &b->problem;
    const struct gb_requantisation requantisation = {s->rules, s->d[1], INFINITY, 0};
    struct gb_rounding_points points = *s->points;
    points.requantisation = &requantisation;
    const struct gb_bounds bounds = {.output_worst = b->worst,
                                     .output_sigma = b->sigma,
                                     .intermediate_worst = b->worst_h,
                                     .output_truth = s->centre};
    double *x = malloc(b->outputs * sizeof *x);
    assert_non_null(x);
    quantise(s, GB_GATE_UP, p->x, b->outputs, x);
    for (size_t i = 0; i < b->outputs; i++) {
        s->x[i] = gb_bf16_encode((float)x[i]);
        assert_true((double)gb_bf16_decode(s->x[i]) == x[i]);
        x[i] *= (double)s->d[0];
    }
    const struct gb_shape *shape = &p->arguments.shape;
    assert_int_equal(gb_bound_layer(shape, x, p->ids, p->truth_routing_weights, &b->weights, &points, &bounds, NULL),
                     GB_OK);
    free(x);
}

/* x and the global scales as the subject takes them. */
static void take_codes(struct subject *s)
{
    struct problem *p = &s->b.problem;
    struct gb_arguments *a = &p->arguments;
    memcpy(p->x, s->x, s->b.outputs * sizeof *s->x);
    if (s->rules->global == GB_GLOBAL_NONE)
        return;
    size_t experts = a->shape.experts;
    for (size_t i = 0; i < 3 * experts; i++)
        s->globals[i] =
            i < 2 * experts ? a->gate_up.global_scales[i] * s->d[0] : a->down.global_scales[i - 2 * experts] * s->d[1];
    memcpy((float *)(uintptr_t)a->gate_up.global_scales, s->globals, 2 * experts * sizeof(float));
    memcpy((float *)(uintptr_t)a->down.global_scales, s->globals + 2 * experts, experts * sizeof(float));
}

/* The largest |output - centre| / worst. */
static double run(struct subject *s, const struct valid_kernel *valid)
{
    struct bounded *b = &s->b;
    valid_layer_changed(&b->problem, valid, s->points, requantise, s, b->output, b->intermediate);
    return largest_ratio(b->output, s->centre, b->worst, b->outputs);
}

/* All ways to compute one problem: the largest ratio, and how many codes flipped against the first of them. */
static double every_way(struct subject *s, uint64_t seed, size_t *flips)
{
    double largest = 0;
    for (unsigned way = 0; way < VALID_WAYS; way++) {
        struct valid_kernel valid = valid_way(way, seed + way);
        s->flips = 0;
        double ratio = run(s, &valid);
        if (!(ratio <= 1))
            fail_msg("order %u, way %u, seed %u: %g of the bound", way / 16, way % 16, (unsigned)seed, ratio);
        largest = ratio > largest ? ratio : largest;
        *flips += way ? s->flips : 0;
        if (!way)
            memcpy(s->first, s->codes, s->rules->element == GB_E2M1 ? s->b.intermediates / 2 : s->b.intermediates);
    }
    return largest;
}

/* Enough that codes do flip, and that bounds are not far from what is seen. */
static void valid_orders_stay_within(void **state)
{
    static const struct {
        enum gb_format format;
        const char *recipe;
    } contracts[] = {{GB_NVFP4, "nvfp4.trtllm/1"},
                     {GB_NVFP4, "nvfp4.modelopt/1"},
                     {GB_MXFP8, "mxfp8.rceil/1"},
                     {GB_MXFP4, "mxfp8.even/1"}};
    static const enum data kinds[] = {DATA_GAUSSIAN, DATA_CODES, DATA_CANCEL};

    (void)state;
    for (size_t c = 0; c < sizeof contracts / sizeof *contracts; c++) {
        double largest = 0;
        size_t flips = 0;
        for (uint64_t seed = 0; seed < 6; seed++) {
            struct subject s;
            subject_new(&s, (struct gb_shape){1, 96, 64, 3, 2}, contracts[c].format, contracts[c].recipe,
                        kinds[seed % 3], seed);
            bound_quantised(&s);
            take_codes(&s);
            double ratio = every_way(&s, seed, &flips);
            largest = ratio > largest ? ratio : largest;
            subject_free(&s);
        }
        print_message("%s: %zu flips, at most %.3g of the bound\n", contracts[c].recipe, flips, largest);
        assert_true(flips > 0 && largest > 0.01);
    }
}

/* An intermediate that is not quantised, or with another block's scale, is beyond the bound in most outputs. */
static void faults_exceed(void **state)
{
    struct subject s;
    size_t beyond = 0;

    (void)state;
    subject_new(&s, (struct gb_shape){4, 256, 128, 4, 3}, GB_NVFP4, "nvfp4.trtllm/1", DATA_GAUSSIAN, 5);
    s.points = &points_bf16_fp32;
    bound_quantised(&s);
    take_codes(&s);
    struct valid_kernel valid = {.order = VALID_FORWARD};
    assert_true(run(&s, &valid) <= 1);
    for (size_t i = 0; i < s.b.problem.arguments.shape.experts; i++) /* d is in them: the codes' part is undone */
        ((float *)(uintptr_t)s.b.problem.arguments.down.global_scales)[i] /= s.d[1];
    valid_layer(&s.b.problem, &valid, s.points, s.b.output, s.b.intermediate);
    for (size_t i = 0; i < s.b.outputs; i++)
        beyond += fabs(s.b.output[i] - s.centre[i]) > s.b.worst[i];
    assert_true(beyond > s.b.outputs / 2);
    subject_free(&s);
}

enum { COLUMNS = 128 };

/* One row of values from anywhere in their intervals, as bf16 stores them: the largest distance of the codes' values
 * from the centre, as a share of what is allowed. */
static double sampled(const struct gb_requantisation *r, const double *value, const double *limit, const double *centre,
                      const double *allowed, uint64_t *random)
{
    const struct gb_quantiser *rules = r->rules;
    float x[COLUMNS], scales[COLUMNS], global = rules->global == GB_GLOBAL_DECODE ? r->global : 1.0f / r->global;
    uint8_t codes[COLUMNS];
    double largest = 0, d = rules->global == GB_GLOBAL_NONE ? 1 : (double)r->global;

    for (uint32_t i = 0; i < COLUMNS; i++) {
        double at = (double)random_below(random, 9) / 4 - 1; /* both ends and the middle among them */
        x[i] = gb_bf16_decode(gb_bf16_encode((float)(value[i] + at * limit[i])));
    }
    assert_int_equal(gb_quantiser_run(rules, x, 1, COLUMNS, global, INFINITY, codes, scales, NULL), GB_OK);
    for (uint32_t i = 0; i < COLUMNS; i++) {
        uint8_t scale = ((const uint8_t *)scales)[i / rules->block_columns];
        double s = rules->scale == GB_SCALE_FP32   ? (double)scales[i / rules->block_columns]
                   : rules->scale == GB_SCALE_E4M3 ? (double)gb_e4m3_decode((gb_e4m3){scale})
                                                   : (double)gb_e8m0_decode((gb_e8m0){scale});
        double code = rules->element == GB_E2M1
                          ? (double)gb_e2m1_decode((gb_e2m1){(uint8_t)(codes[i / 2] >> (i % 2 * 4) & 15)})
                          : (double)gb_e4m3_decode((gb_e4m3){codes[i]});
        double distance = fabs(code * s * d - centre[i]);
        if (!(distance <= allowed[i]))
            fail_msg("element %u: %g from the centre, %g are allowed", i, distance, allowed[i]);
        largest = distance > 0 && distance / allowed[i] > largest ? distance / allowed[i] : largest;
    }
    return largest;
}

/* No value of an interval gets a code beyond what is allowed, a scale of its own included; and some reach it. */
static void intervals_hold(void **state)
{
    static const char *const recipes[] = {"nvfp4.trtllm/1", "nvfp4.modelopt/1", "nvfp4.llamacpp/1",  "mxfp8.rceil/1",
                                          "mxfp8.floor/1",  "fp8g128.vllm/1",   "fp8g128.deepseek/1"};
    uint64_t random = 11;

    (void)state;
    for (size_t n = 0; n < sizeof recipes / sizeof *recipes; n++) {
        const struct gb_requantisation r = {&gb_recipe_find(recipes[n])->quantiser, 0x1.3p-10f, INFINITY, 0};
        double largest = 0;
        size_t wide = 0;
        for (unsigned row = 0; row < 400; row++) {
            double value[COLUMNS], limit[COLUMNS], centre[COLUMNS], allowed[COLUMNS];
            for (uint32_t i = 0; i < COLUMNS; i++) {
                value[i] = random_gaussian(&random) * (i / 16 == 3 ? 1e-6 : 1);
                limit[i] = (fabs(value[i]) + 1e-7) * ldexp(1, -(int)(row % 12)) * (i / 16 == 5 ? 0 : 1);
                centre[i] = value[i];
                allowed[i] = limit[i];
            }
            gb_requantise_intervals(&r, COLUMNS, centre, allowed);
            for (uint32_t i = 0; i < COLUMNS; i++)
                wide += allowed[i] > 1e100;
            for (unsigned sample = 0; sample < 20; sample++) {
                double ratio = sampled(&r, value, limit, centre, allowed, &random);
                largest = ratio > largest ? ratio : largest;
            }
        }
        assert_true(largest == 1);
        assert_true(wide < 400 * COLUMNS / (r.rules->scale == GB_SCALE_FP32 ? 1 : 100));
    }
}

/* Where the scale is not a matter of the largest magnitude alone, codes are open. */
static void open_codes(void **state)
{
    const struct gb_requantisation r = {&gb_recipe_find("nvfp4.flashinfer-4over6-mae-448/1")->quantiser, 1, INFINITY,
                                        0};
    double value[16] = {1, 2, 3}, limit[16] = {0};

    (void)state;
    gb_requantise_intervals(&r, 16, value, limit);
    for (int i = 0; i < 16; i++)
        assert_true(limit[i] == 0x1p500);

    const struct gb_requantisation six = {&gb_recipe_find("nvfp4.trtllm/1")->quantiser, 1, INFINITY, 0};
    for (int end = 0; end < 3; end++) { /* an end that bf16 does not hold */
        double row[32] = {1, 2, 3}, width[32] = {0};
        row[7] = end == 1 ? -1e39 : end ? 3.3e38 : 1e39;
        width[7] = end == 2 ? 2e37 : 0;
        gb_requantise_intervals(&six, 32, row, width);
        for (int i = 0; i < 32; i++)
            assert_true(width[i] == (i < 16 ? 0x1p500 : 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(intervals_hold),
        cmocka_unit_test(open_codes),
        cmocka_unit_test(valid_orders_stay_within),
        cmocka_unit_test(faults_exceed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
