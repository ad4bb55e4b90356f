/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sums of docs/numerics.md#aggregate-tests are the oracle's: how many there are, their limits, what they can
 * detect, which ones a subject exceeds and where the largest is. Directions and shares are stored in binary32: 2^-20 of
 * each.
 */
#include "harness/judge/aggregate_tests.h"
#include "harness/judge/admissible.h"
#include "harness/judge/check_intermediate.h"
#include "harness/run/contract.h"

#include "quant/quant.h"
#include "tests/oracle/bounds.h"
#include "tests/support/check.h"
#include "tests/support/layer_as_fixture.h"

static const long double tolerance = 0x1p-17L;
static const double probability = 1e-9;

struct scene {
    struct problem problem;
    struct gb_fixture *fixture;
    struct baseline plain, baseline;
    const struct baseline *of; /* one of them */
    double *weights;           /* [tokens, top_k] */
    double *subject;           /* [tokens, hidden] */
    double *error;             /* [tokens, hidden] */
    double *inner, *error_h;   /* [tokens, top_k, intermediate] */
    struct oracle_aggregates expected;
};

static double *doubles(size_t count)
{
    double *values = calloc(count, sizeof *values);
    assert_non_null(values);
    return values;
}

/* Tokens 3 and 4 have the inputs of 1; of the first eight slots one is empty. down: a factor of its global scales. */
static void scene_new(struct scene *s, struct gb_shape shape, enum gb_format format, unsigned bits, const char *recipe,
                      float down)
{
    const struct gb_rounding_points points = {GB_BF16, GB_FP32, bits, {0}, NULL};
    memset(s, 0, sizeof *s);
    problem_new(&s->problem, shape, format, DATA_GAUSSIAN, 1000 + bits);
    for (uint32_t t = 3; t < 5 && t < shape.tokens; t++)
        for (uint32_t c = 0; c < shape.hidden; c++) {
            s->problem.x[t * shape.hidden + c] = s->problem.x[shape.hidden + c];
            s->problem.truth_x[t * shape.hidden + c] = s->problem.truth_x[shape.hidden + c];
        }
    for (uint32_t e = 0; down != 1 && e < shape.experts; e++)
        ((float *)s->problem.arguments.down.global_scales)[e] *= down;
    s->problem.ids[shape.top_k > 1 ? 2 * shape.top_k + 1 : 7] = -1;
    s->fixture = problem_fixture(&s->problem);
    if (recipe) {
        assert_int_equal(gb_fixture_quantise_activations(s->fixture, format, recipe, NULL), GB_OK);
        if (s->fixture->layer[0].activation_scales) {
            s->fixture->layer[0].activation_scales[0] = 4.5f / 2688;
            s->fixture->layer[0].activation_scales[1] = 3.7f / 2688;
        }
    }
    assert_int_equal(
        baseline_new(s->fixture, gb_contract_find(s->fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &s->plain, NULL),
        GB_OK);
    if (recipe)
        assert_int_equal(baseline_new(s->fixture, fixture_contract(s->fixture), &s->plain, &s->baseline, NULL), GB_OK);
    struct baseline *b = recipe ? &s->baseline : &s->plain;
    assert_int_equal(baseline_bounds(b, &points, true, NULL), GB_OK);
    s->of = b;
    size_t outputs = (size_t)shape.tokens * shape.hidden, pairs = (size_t)shape.tokens * shape.top_k;
    s->weights = doubles(pairs);
    s->subject = doubles(outputs);
    s->error = doubles(outputs);
    s->inner = doubles(pairs * shape.intermediate);
    s->error_h = doubles(pairs * shape.intermediate);
    baseline_routing_weights(b, 0, shape.tokens, s->weights);
}

static void scene_free(struct scene *s)
{
    baseline_free(&s->baseline);
    baseline_free(&s->plain);
    gb_fixture_free(s->fixture);
    problem_free(&s->problem);
    free(s->weights);
    free(s->subject);
    free(s->error);
    free(s->inner);
    free(s->error_h);
}

/* A subject whose errors are `noise` standard deviations, and a share `gain` of truth: error = value - truth as doubles
 * have it. */
static void subject_of(const double *truth, const double *sigma, size_t count, double noise, double gain,
                       uint64_t *random, double *subject, double *error)
{
    for (size_t i = 0; i < count; i++) {
        subject[i] = truth[i] + noise * sigma[i] * random_gaussian(random) + gain * truth[i];
        error[i] = subject[i] - truth[i];
    }
}

static void near(const char *name, const char *what, double actual, long double expected)
{
    if (!(fabsl((long double)actual - expected) <= tolerance * (1 + fabsl(expected)) * fabsl(expected)))
        fail_msg("%s: %s is %.9g, by the text %.9Lg", name, what, actual, expected);
}

static void compare(const struct aggregate_tests *s, const struct oracle_aggregates *of)
{
    static const enum oracle_sums kinds[FAMILIES] = {
        [RMS_TOKEN] = ORACLE_RMS_TOKEN,
        [RMS_COLUMNS] = ORACLE_RMS_TILE,
        [RMS_INTERMEDIATE] = ORACLE_RMS_INTERMEDIATE,
        [SCALE_LAYER] = ORACLE_SCALE_ALL,
        [SCALE_TOKEN] = ORACLE_SCALE_TOKEN,
        [SCALE_COLUMN] = ORACLE_SCALE_COLUMN,
        [SCALE_EXPERT] = ORACLE_SCALE_EXPERT,
        [SCALE_SLOT] = ORACLE_SCALE_SLOT,
        [SCALE_INTERMEDIATE] = ORACLE_SCALE_INTERMEDIATE,
    };
    struct oracle_sum sums[ORACLE_SUMS];
    long double direction = oracle_aggregate(of, sums);
    if (!(direction > 0.95L && direction < 1.05L))
        fail_msg("a direction is %Lg times as sensitive as C^-1 t", direction);
    for (int f = 0; f < FAMILIES; f++) {
        const struct family_result *r = &s->family[f];
        const struct oracle_sum *e = &sums[kinds[f]];
        const char *name = family_name((enum family)f);
        if (r->count != e->count || r->exceeding != e->above || r->zero_exceeding != e->zeros_above)
            fail_msg("%s: %llu sums, %llu above their limit, %llu for zeros; by the text %u, %u, %u", name,
                     (unsigned long long)r->count, (unsigned long long)r->exceeding,
                     (unsigned long long)r->zero_exceeding, e->count, e->above, e->zeros_above);
        near(name, "the largest sum over its limit", r->limit_ratio, e->ratio);
        near(name, "the least detection limit", r->detection_smallest, e->least);
        near(name, "the largest detection limit", r->detection_worst, e->most);
        if (r->layer || r->first != e->first || r->second != e->second)
            fail_msg("%s: the largest is at %u, %u, by the text at %u, %u", name, r->first, r->second, e->first,
                     e->second);
    }
}

/* Columns of a tile, by the text. */
static uint32_t tile_of(const struct gb_shape *shape)
{
    double most = fmin(0x1p34 / ((double)shape->top_k * shape->intermediate), 0x1p22) / shape->tokens / shape->hidden;
    return most < 1 ? 1 : most < shape->hidden ? (uint32_t)most : shape->hidden;
}

/* What the whole layer is held against. */
static void expect_layer(struct scene *s, bool inner)
{
    const struct layer_bounds *b = &s->of->bounds[0];
    const struct gb_bounds *y = s->of->plain ? &b->down : &b->of;
    s->expected = (struct oracle_aggregates){.arguments = &s->problem.arguments,
                                             .x = s->problem.x,
                                             .weights = s->weights,
                                             .h = s->of->plain ? b->of.requantised : b->of.intermediate_truth,
                                             .sigma_h = s->of->plain ? NULL : b->of.intermediate_sigma,
                                             .error_h = inner ? s->error_h : NULL,
                                             .bias_h = b->of.intermediate_bias,
                                             .y = y->output_truth,
                                             .sigma_y = y->output_sigma,
                                             .bias_y = y->output_bias,
                                             .underflow_h = b->of.intermediate_underflow,
                                             .underflow_y = y->output_underflow,
                                             .error = s->error,
                                             .width = s->of->plain ? b->of.flips : NULL,
                                             .direction = b->covariance.direction,
                                             .tile = s->of->plain ? s->problem.arguments.shape.hidden
                                                                  : tile_of(&s->problem.arguments.shape),
                                             .probability = (long double)probability};
}

/* Errors within the limits and beyond them, noise and wrong scales. */
static void judge_scene(struct scene *s, bool inner)
{
    static const double noise[] = {0.9, 1.7, 0.5}, gain[] = {0, 0, 1e-4};
    const struct gb_shape *shape = &s->problem.arguments.shape;
    size_t outputs = (size_t)shape->tokens * shape->hidden;
    size_t inners = (size_t)shape->tokens * shape->top_k * shape->intermediate;
    uint64_t random = 5;
    expect_layer(s, inner);
    for (int n = 0; n < (shape->tokens > 50 ? 1 : 3); n++) {
        const struct layer_bounds *b = &s->of->bounds[0];
        struct aggregate_tests statistics;
        subject_of(s->expected.y, s->expected.sigma_y, outputs, noise[n], gain[n], &random, s->subject, s->error);
        subject_of(b->of.intermediate_truth, b->of.intermediate_sigma, inners, noise[n], gain[n], &random, s->inner,
                   s->error_h);
        aggregate_start(&statistics, s->of, shape->tokens, true, inner, probability);
        assert_int_equal(aggregate_output(&statistics, s->of, 0, s->subject, NULL), GB_OK);
        if (inner)
            aggregate_intermediate(&statistics, s->of, 0, shape->tokens, s->inner);
        compare(&statistics, &s->expected);
    }
}

static void sums_of_layers_are_the_texts(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, (struct gb_shape){7, 96, 64, 5, 3}, GB_NVFP4, 24, NULL, 1);
    judge_scene(&s, true);
    judge_scene(&s, false);
    scene_free(&s);
    scene_new(&s, (struct gb_shape){6, 64, 96, 4, 2}, GB_MXFP8, 14, NULL, 1);
    judge_scene(&s, true);
    scene_free(&s);
}

/* Outputs near and below the normal range, where underflow is as large as rounding. */
static void sums_near_underflow_are_the_texts(void **state)
{
    const char *const recipes[] = {NULL, NULL, "nvfp4.trtllm/1"};
    (void)state;
    for (int n = 0; n < 3; n++) {
        struct scene s;
        double most = 0;
        scene_new(&s, (struct gb_shape){6, 96, 64, 4, 2}, GB_NVFP4, n == 1 ? 23 : 24, recipes[n], 0x1p-114f);
        const struct gb_bounds *of = n == 2 ? &s.of->bounds[0].down : &s.of->bounds[0].of;
        for (int i = 0; i < 6 * 96; i++)
            most = of->output_sigma[i] > 0 ? fmax(most, of->output_underflow[i] / of->output_sigma[i]) : most;
        print_message("underflow is up to %.3g standard deviations\n", most);
        assert_true(most > 0.1);
        judge_scene(&s, !recipes[n]);
        scene_free(&s);
    }
}

/* 300 tokens of 128 columns: tiles of 109 and 19; and where each tile has an underflow of its own. */
static void sums_of_tiles_are_the_texts(void **state)
{
    (void)state;
    for (int small = 0; small < 2; small++) {
        struct scene s;
        scene_new(&s, (struct gb_shape){300, 128, 16, 3, 1}, small ? GB_NVFP4 : GB_BF16, 24, NULL,
                  small ? 0x1p-114f : 1);
        assert_int_equal(tile_of(&s.problem.arguments.shape), 109);
        judge_scene(&s, small);
        scene_free(&s);
    }
}

static void sums_beside_ambiguous_codes_are_the_texts(void **state)
{
    static const struct {
        enum gb_format format;
        const char *recipe;
        unsigned bits;
    } cases[] = {{GB_NVFP4, "nvfp4.trtllm/1", 19}, {GB_MXFP8, "mxfp8.rceil/1", 17}};
    unsigned ambiguous = 0;
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct scene s;
        scene_new(&s, (struct gb_shape){6, 128, 64, 4, 2}, cases[n].format, cases[n].bits, cases[n].recipe, 1);
        judge_scene(&s, false);
        for (uint32_t t = 0; t < 6; t++)
            ambiguous += s.of->bounds[0].covariance.open[t];
        scene_free(&s);
    }
    print_message("%u ambiguous codes\n", ambiguous);
    assert_true(ambiguous > 20 && ambiguous < 2000);
}

static void sums_of_down_are_the_texts(void **state)
{
    const struct gb_shape shape = {6, 96, 64, 4, 3};
    const struct gb_rounding_points points = {GB_BF16, GB_FP32, 24, {0}, NULL};
    size_t outputs = (size_t)shape.tokens * shape.hidden;
    uint64_t random = 17;
    struct scene s;
    (void)state;
    scene_new(&s, shape, GB_MXFP4, 24, NULL, 1);
    problem_extend(&s.problem, GB_SILU, 3);
    struct gb_truth_quantised weights = {
        s.problem.arguments.gate_up, s.problem.arguments.down, {GB_SILU, s.problem.gate_up_bias, s.problem.down_bias}};
    struct gb_bounds down = {.output_worst = doubles(outputs),
                             .output_sigma = doubles(outputs),
                             .output_bias = doubles(outputs),
                             .output_underflow = doubles(outputs),
                             .output_truth = doubles(outputs)};
    struct gb_covariance moments;
    for (size_t i = 0; i < (size_t)shape.tokens * shape.top_k * shape.intermediate; i++)
        s.inner[i] = (double)gb_bf16_decode(s.plain.reference->layer[0].intermediate[i]);
    assert_int_equal(
        gb_bound_down(&shape, s.inner, NULL, s.problem.ids, s.weights, &weights, &points, &down, &moments, NULL),
        GB_OK);
    s.expected = (struct oracle_aggregates){.arguments = &s.problem.arguments,
                                            .x = s.problem.x,
                                            .weights = s.weights,
                                            .h = s.inner,
                                            .y = down.output_truth,
                                            .sigma_y = down.output_sigma,
                                            .bias_y = down.output_bias,
                                            .underflow_y = down.output_underflow,
                                            .error = s.error,
                                            .direction = moments.direction,
                                            .tile = shape.hidden,
                                            .probability = (long double)probability};
    for (int n = 0; n < 2; n++) {
        const struct prediction prediction = {down.output_truth, &down, &moments};
        struct aggregate_tests statistics;
        subject_of(down.output_truth, down.output_sigma, outputs, n ? 1.5 : 0.7, 0, &random, s.subject, s.error);
        aggregate_start_down(&statistics, &s.plain, &moments, probability);
        assert_int_equal(aggregate_down(&statistics, &s.plain, 0, &prediction, s.subject, NULL), GB_OK);
        compare(&statistics, &s.expected);
    }
    gb_covariance_free(&moments);
    free(down.output_worst);
    free(down.output_sigma);
    free(down.output_bias);
    free(down.output_underflow);
    free(down.output_truth);
    scene_free(&s);
}

/* One value of the intermediate as the library has bounded it. */
static struct oracle_error inner_of(const struct gb_bounds *of, size_t i)
{
    long double sigma = of->unrounded_sigma[i], typical = of->unrounded_typical[i];
    return (struct oracle_error){.value = of->intermediate_truth[i],
                                 .worst = of->unrounded_worst[i],
                                 .variance = sigma * sigma,
                                 .typical = typical * typical,
                                 .bias = of->intermediate_bias[i]};
}

/* Codes in the order of their numbers. */
static gb_bf16 next_code(uint16_t code, bool up)
{
    bool negative = code >> 15, zero = !(code & 0x7FFF);
    if (zero)
        return (gb_bf16){up ? 0x0001 : 0x8001};
    return (gb_bf16){(uint16_t)(negative == up ? code - 1 : code + 1)};
}

static struct codes_result judge_codes(const struct scene *s, const gb_bf16 *subject)
{
    const struct gb_shape *shape = &s->problem.arguments.shape;
    struct codes_result check = {.elements = (uint64_t)shape->tokens * shape->top_k * shape->intermediate};
    struct case_result j = {0};
    assert_int_equal(check_intermediate(&check, s->of, 0, shape->tokens, subject, &j, NULL), GB_OK);
    assert_int_equal(check.codes, check.elements);
    return check;
}

/* The outermost admissible codes are admissible, the next ones are not, and as many as may differ are expected. */
static void check_codes(struct scene *s)
{
    const struct gb_shape *shape = &s->problem.arguments.shape;
    size_t per_token = (size_t)shape->top_k * shape->intermediate, count = shape->tokens * per_token;
    gb_bf16 *within = calloc(count, sizeof *within), *beyond = calloc(count, sizeof *beyond);
    long double lambda = sqrtl(2 * logl(2 * (long double)count / (long double)probability)), mean = 0;
    const gb_bf16 *reference = s->of->reference->layer[0].intermediate;
    uint64_t differing = 0, counted = 0, countable = 0;
    assert_true(within && beyond);
    for (size_t i = 0; i < count; i++) {
        struct oracle_error h = inner_of(&s->of->bounds[0].of, i);
        bool repeats = i / per_token == 3 || i / per_token == 4, up = i % 2;
        uint16_t ends[2];
        oracle_admissible(&h, lambda, &ends[0], &ends[1]);
        within[i].bits = ends[up];
        beyond[i] = next_code(ends[up], up);
        bool differs = gb_bf16_decode(within[i]) != gb_bf16_decode(reference[i]);
        differing += differs;
        counted += differs && !repeats;
        countable += !repeats;
        mean += repeats ? 0 : oracle_difference(&h, reference[i].bits);
    }
    struct codes_result inside = judge_codes(s, within), outside = judge_codes(s, beyond);
    assert_int_equal(outside.inadmissible, count);
    assert_int_equal(inside.inadmissible, 0);
    assert_int_equal(inside.flips, differing);
    assert_int_equal(inside.counted, counted);
    assert_int_equal(inside.allowed, oracle_differences(mean, countable, (long double)probability));
    assert_int_equal(inside.beyond, counted > inside.allowed);
    assert_true(fabsl((long double)inside.expected - mean) <= 0x1p-40L * mean);
    assert_true(mean > 10 && counted > 100);
    free(within);
    free(beyond);
}

static void admissible_codes_are_the_texts(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, (struct gb_shape){7, 256, 192, 5, 3}, GB_NVFP4, 24, NULL, 1);
    check_codes(&s);
    scene_free(&s);
    scene_new(&s, (struct gb_shape){6, 128, 192, 4, 2}, GB_MXFP8, 14, NULL, 1);
    check_codes(&s);
    scene_free(&s);
}

/* "Number of admissible differences" */
static void numbers_of_differences_are_the_texts(void **state)
{
    static const double means[] = {0, 1e-12, 1e-3, 0.4, 1, 2.5, 17.25, 120, 999.5};
    static const double probabilities[] = {1e-9, 2.5e-10, 1e-3};
    (void)state;
    for (size_t m = 0; m < sizeof means / sizeof *means; m++)
        for (size_t p = 0; p < 3; p++)
            for (uint64_t codes = 1; codes <= 4096; codes *= 8)
                if (means[m] <= (double)codes)
                    assert_int_equal(differences_allowed(means[m], codes, probabilities[p]),
                                     oracle_differences((long double)means[m], codes, (long double)probabilities[p]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_layers_are_the_texts),
        cmocka_unit_test(sums_near_underflow_are_the_texts),
        cmocka_unit_test(sums_of_tiles_are_the_texts),
        cmocka_unit_test(sums_beside_ambiguous_codes_are_the_texts),
        cmocka_unit_test(sums_of_down_are_the_texts),
        cmocka_unit_test(admissible_codes_are_the_texts),
        cmocka_unit_test(numbers_of_differences_are_the_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
