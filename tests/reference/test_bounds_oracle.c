/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every bound of the library is that of the oracle, element by element: of layers, of down by itself, of codes of a
 * quantised intermediate and of routers. Both compute in more precision than the data have, so that what is left is the
 * rounding of double sums: 2^-44 of a bound, 2^9 ulp of a double.
 */
#include "tests/oracle/bounds.h"

#include "quant/quant.h"
#include "tests/support/bounds_case.h"
#include "tests/support/check.h"
#include "tests/support/route_problem.h"

static const long double tolerance = 0x1p-44L;

static double *doubles(size_t count)
{
    double *values = malloc(count * sizeof *values);
    assert_non_null(values);
    memset(values, 0xA5, count * sizeof *values);
    return values;
}

static struct oracle_error *errors_new(size_t count)
{
    struct oracle_error *errors = malloc(count * sizeof *errors);
    assert_non_null(errors);
    return errors;
}

/* scale: what the difference is relative to, if that is more than the values. */
static void same(const char *what, size_t at, double actual, long double expected, long double scale)
{
    long double magnitude = fmaxl(fabsl(expected), fabsl(scale));
    if (isinf(expected) ? (long double)actual != expected
                        : !(fabsl((long double)actual - expected) <= tolerance * magnitude))
        fail_msg("%s, element %zu: %.17g, by the text %.17Lg", what, at, actual, expected);
}

static struct oracle_declared declared_of(const struct gb_rounding_points *points)
{
    return (struct oracle_declared){.bits = points->accumulator_bits,
                                    .gate_up = points->stages.gate_up == GB_BF16,
                                    .silu = points->stages.silu == GB_BF16,
                                    .slot = points->stages.slot == GB_BF16,
                                    .weighted = points->stages.weighted == GB_BF16,
                                    .intermediate = points->intermediate == GB_BF16,
                                    .output = points->output == GB_BF16,
                                    .recipe = points->requantisation ? points->requantisation->rules : NULL,
                                    .d_h = points->requantisation ? points->requantisation->global : 1,
                                    .d_x = points->requantisation ? points->requantisation->x_global : 1,
                                    .lambda = points->requantisation ? points->requantisation->deviations : 0};
}

/* Everything that gb_bound_layer and gb_bound_down compute. */
struct computed {
    struct gb_bounds layer, down;
    struct gb_covariance moments;
    double *weights;      /* [tokens, top_k] */
    double *intermediate; /* [tokens, top_k, intermediate]: what down gets by itself */
};

static void computed_new(struct computed *c, const struct bounded *b)
{
    *c = (struct computed){
        .layer = {.output_worst = doubles(b->outputs),
                  .output_sigma = doubles(b->outputs),
                  .output_bias = doubles(b->outputs),
                  .output_underflow = doubles(b->outputs),
                  .output_truth = doubles(b->outputs),
                  .intermediate_worst = doubles(b->intermediates),
                  .intermediate_sigma = doubles(b->intermediates),
                  .intermediate_bias = doubles(b->intermediates),
                  .intermediate_underflow = doubles(b->intermediates),
                  .intermediate_truth = doubles(b->intermediates),
                  .unrounded_worst = doubles(b->intermediates),
                  .unrounded_sigma = doubles(b->intermediates),
                  .unrounded_typical = doubles(b->intermediates),
                  .requantised = doubles(b->intermediates),
                  .flips = doubles(b->intermediates)},
        .down = {.output_worst = doubles(b->outputs),
                 .output_sigma = doubles(b->outputs),
                 .output_bias = doubles(b->outputs),
                 .output_underflow = doubles(b->outputs),
                 .output_truth = doubles(b->outputs)},
        .weights = doubles(b->intermediates),
        .intermediate = doubles(b->intermediates),
    };
    for (size_t i = 0; i < (size_t)b->problem.arguments.shape.tokens * b->problem.arguments.shape.top_k; i++)
        c->weights[i] = b->problem.truth_routing_weights[i] * (i % 5 == 3 ? -1 : 1);
}

static void computed_free(struct computed *c)
{
    struct gb_bounds *of[] = {&c->layer, &c->down};
    for (int i = 0; i < 2; i++) {
        free(of[i]->output_worst);
        free(of[i]->output_sigma);
        free(of[i]->output_bias);
        free(of[i]->output_underflow);
        free(of[i]->intermediate_underflow);
        free(of[i]->output_truth);
        free(of[i]->intermediate_worst);
        free(of[i]->intermediate_sigma);
        free(of[i]->intermediate_bias);
        free(of[i]->intermediate_truth);
        free(of[i]->unrounded_worst);
        free(of[i]->unrounded_sigma);
        free(of[i]->unrounded_typical);
        free(of[i]->requantised);
        free(of[i]->flips);
    }
    free(c->weights);
    free(c->intermediate);
    gb_covariance_free(&c->moments);
}

/* open: NULL, or how many codes of a token are ambiguous. */
static void compare_outputs(const char *what, const struct gb_bounds *actual, const struct oracle_error *expected,
                            const long double *above, bool quantised, const uint32_t *open, const struct bounded *b)
{
    char text[120];
    for (size_t i = 0; i < b->outputs; i++) {
        if (open && open[i / b->problem.arguments.shape.hidden] == GB_LEFT_OUT)
            continue;
        snprintf(text, sizeof text, "%s: W_y", what);
        same(text, i, actual->output_worst[i], expected[i].worst, 0);
        snprintf(text, sizeof text, "%s: sqrt(V_y)", what);
        same(text, i, actual->output_sigma[i], sqrtl(expected[i].variance) + (quantised ? above[i] / 6 : 0), 0);
        snprintf(text, sizeof text, "%s: y", what);
        same(text, i, actual->output_truth[i], expected[i].value, 0x1p10L * expected[i].worst);
        snprintf(text, sizeof text, "%s: b_y", what);
        same(text, i, actual->output_bias[i], expected[i].bias, expected[i].scale);
        snprintf(text, sizeof text, "%s: U_y", what);
        same(text, i, actual->output_underflow[i], expected[i].underflow, 0);
    }
}

static void compare_intermediate(const char *what, const struct gb_bounds *actual, const struct oracle_error *unrounded,
                                 const struct oracle_error *rounded, size_t count)
{
    char text[120];
    for (size_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s: W_h before rounding", what);
        same(text, i, actual->unrounded_worst[i], unrounded[i].worst, 0);
        snprintf(text, sizeof text, "%s: sqrt(V_h) before rounding", what);
        same(text, i, actual->unrounded_sigma[i], sqrtl(unrounded[i].variance), 0);
        snprintf(text, sizeof text, "%s: sqrt(V*_h)", what);
        same(text, i, actual->unrounded_typical[i], sqrtl(unrounded[i].typical), 0);
        snprintf(text, sizeof text, "%s: b_h", what);
        same(text, i, actual->intermediate_bias[i], unrounded[i].bias, unrounded[i].scale);
        snprintf(text, sizeof text, "%s: U_h", what);
        same(text, i, actual->intermediate_underflow[i], unrounded[i].underflow, 0);
        snprintf(text, sizeof text, "%s: W_h", what);
        same(text, i, actual->intermediate_worst[i], rounded[i].worst, 0);
        snprintf(text, sizeof text, "%s: sqrt(V_h)", what);
        same(text, i, actual->intermediate_sigma[i], sqrtl(rounded[i].variance), 0);
        snprintf(text, sizeof text, "%s: h", what);
        same(text, i, actual->intermediate_truth[i], rounded[i].value, 0x1p10L * rounded[i].worst);
    }
}

/* With quantised activations: codes that are ambiguous and that are not, tokens whose down was compared. */
struct reached {
    size_t ambiguous, known, tokens;
};

/* What the oracle and the library make of one layer. x: [tokens, hidden] */
static void compare_layer(const char *what, const struct bounded *b, const double *x,
                          const struct gb_rounding_points *points, struct reached *reached)
{
    const struct gb_arguments *a = &b->problem.arguments;
    const struct oracle_declared declared = declared_of(points);
    struct oracle_error *unrounded = errors_new(b->intermediates), *rounded = errors_new(b->intermediates),
                        *output = errors_new(b->outputs);
    long double *above = malloc(sizeof *above * b->outputs);
    struct computed c;
    assert_non_null(above);
    computed_new(&c, b);
    assert_int_equal(gb_bound_layer(&a->shape, x, a->ids, c.weights, &b->weights, points, &c.layer, NULL), GB_OK);
    oracle_bound_intermediate(a, x, &declared, unrounded, rounded);
    compare_intermediate(what, &c.layer, unrounded, rounded, b->intermediates);
    if (declared.recipe) {
        oracle_bound_codes(a, &declared, unrounded, rounded);
        for (size_t i = 0; i < b->intermediates; i++) {
            if (isinf(rounded[i].worst))
                fail_msg("%s: element %zu has no bound", what, i);
            same("c'", i, c.layer.requantised[i], rounded[i].value, 0);
            same("W of a code", i, c.layer.flips[i], rounded[i].worst, 0);
            reached->ambiguous += rounded[i].worst > 0;
            reached->known += rounded[i].worst == 0;
        }
    }
    oracle_bound_output(a, c.weights, &declared, rounded, false, output, above);
    compare_outputs(what, &c.layer, output, above, declared.recipe, NULL, b);

    for (size_t i = 0; i < b->intermediates; i++) {
        c.intermediate[i] =
            declared.recipe ? c.layer.requantised[i] : (double)gb_bf16_decode(gb_bf16_encode((float)rounded[i].value));
        rounded[i].value = (long double)c.intermediate[i];
        rounded[i].worst = declared.recipe ? rounded[i].worst : 0;
    }
    assert_int_equal(gb_bound_down(&a->shape, c.intermediate, declared.recipe ? c.layer.flips : NULL, a->ids, c.weights,
                                   &b->weights, points, &c.down, &c.moments, NULL),
                     GB_OK);
    for (uint32_t t = 0; declared.recipe && t < a->shape.tokens; t++)
        reached->tokens += c.moments.open[t] != GB_LEFT_OUT;
    oracle_bound_output(a, c.weights, &declared, rounded, true, output, above);
    compare_outputs("down by itself", &c.down, output, above, declared.recipe, c.moments.open, b);
    computed_free(&c);
    free(unrounded);
    free(rounded);
    free(output);
    free(above);
}

static const struct gb_rounding_points points[] = {
    {GB_BF16, GB_FP32, 24, {0}, NULL},
    {GB_FP32, GB_BF16, 24, {0}, NULL},
    {GB_BF16, GB_FP32, 14, {.gate_up = GB_BF16}, NULL},
    {GB_FP32, GB_FP32, 23, {.silu = GB_BF16, .slot = GB_BF16}, NULL},
    {GB_BF16, GB_BF16, 24, {.gate_up = GB_BF16, .weighted = GB_BF16}, NULL},
    {GB_BF16, GB_FP32, 13, {GB_BF16, GB_BF16, GB_BF16, 0, GB_BF16}, NULL},
};
enum { POINTS = sizeof points / sizeof *points };

/* Shapes, formats and data at random; every rounding point with a bias and without, both activations. */
static void layers_are_the_texts(void **state)
{
    static const enum gb_format formats[] = {GB_NVFP4, GB_MXFP8, GB_MXFP4, GB_FP8_BLOCK, GB_BF16};
    static const enum data kinds[] = {DATA_GAUSSIAN, DATA_CODES, DATA_CANCEL, DATA_SUBNORMAL};
    uint64_t random = 20261122;
    (void)state;
    for (unsigned n = 0; n < 4 * POINTS; n++) {
        struct gb_shape shape = {.tokens = 1 + random_below(&random, 3),
                                 .hidden = 32 * (1 + random_below(&random, 3)),
                                 .intermediate = 32 * (1 + random_below(&random, 2)),
                                 .experts = 3 + random_below(&random, 3),
                                 .top_k = 1 + random_below(&random, 3)};
        struct bounded b;
        char what[100];
        enum gb_activation activation = n / POINTS % 2 ? GB_SWIGLU_OAI : GB_SILU;
        bounded_new(&b, shape, formats[n % 5], kinds[random_below(&random, 4)], random_bits(&random));
        if (n / POINTS >= 2)
            problem_empty_slots(&b.problem, 5, n);
        if (n / POINTS % 2 || n / POINTS == 2)
            bounded_extend(&b, activation, random_bits(&random));
        snprintf(what, sizeof what, "layer %u, points %u, %u x %u", n, n % POINTS, shape.hidden, shape.intermediate);
        compare_layer(what, &b, b.problem.truth_x, &points[n % POINTS], NULL);
        bounded_free(&b);
    }
}

/* With quantised activations; the accumulators are so narrow that codes are ambiguous. */
static void quantised_layers_are_the_texts(void **state)
{
    static const struct {
        enum gb_format format;
        const char *recipe;
        unsigned bits;
        double deviations;
    } cases[] = {{GB_NVFP4, "nvfp4.trtllm/1", 24, 7},     {GB_NVFP4, "nvfp4.modelopt/1", 15, 6.6},
                 {GB_MXFP8, "mxfp8.rceil/1", 14, 7},      {GB_MXFP4, "mxfp8.even/1", 13, INFINITY},
                 {GB_FP8_BLOCK, "fp8g128.vllm/1", 17, 7}, {GB_MXFP4, "mxfp8.rceil/1", 24, 8}};
    struct reached reached = {0};
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct gb_requantisation codes = {&gb_recipe_find(cases[n].recipe)->quantiser, 1, cases[n].deviations, 0};
        struct gb_rounding_points declared = {GB_BF16, n % 2 ? GB_BF16 : GB_FP32, cases[n].bits, {0}, &codes};
        uint32_t wide = codes.rules->block_columns == 128 ? 128 : 64;
        struct bounded b;
        declared.stages.slot = n % 3 == 2 ? GB_BF16 : GB_FP32;
        bounded_new(&b, (struct gb_shape){2, 2 * wide, wide, 3, 2}, cases[n].format, DATA_GAUSSIAN, 30 + n);
        if (codes.rules->global != GB_GLOBAL_NONE)
            codes.global = 0x1.2cp-12f;
        if (n % 2)
            bounded_extend(&b, GB_SILU, 40 + n);
        compare_layer(cases[n].recipe, &b, b.problem.truth_x, &declared, &reached);
        bounded_free(&b);
    }
    print_message("%zu codes are ambiguous, %zu are not; down of %zu tokens\n", reached.ambiguous, reached.known,
                  reached.tokens);
    assert_true(reached.ambiguous > 100 && reached.known > 100 && reached.tokens > 2);
}

/* Slots that one rounding moves across a power of two, where the next one is twice as large: dot products of 1 - x, x
 * about half an ulp of bf16. */
static void slots_at_powers_of_two_are_the_texts(void **state)
{
    const struct gb_shape shape = {1, 32, 32, 1, 1};
    const struct gb_rounding_points declared = {GB_BF16, GB_FP32, 24, {.slot = GB_BF16, .weighted = GB_BF16}, NULL};
    (void)state;
    for (int biased = 0; biased < 2; biased++) {
        struct bounded b;
        struct computed c;
        struct oracle_error h[32] = {{.value = 1}, {.value = 1}}, output[32];
        long double above[32];
        const struct oracle_declared text = declared_of(&declared);
        bounded_new(&b, shape, GB_BF16, DATA_CODES, 3);
        if (biased)
            bounded_extend(&b, GB_SILU, 4);
        memset((void *)(uintptr_t)b.weights.down.codes, 0, sizeof(gb_bf16) * 32 * 32);
        for (uint32_t r = 0; r < 32; r++) {
            gb_bf16 *row = (gb_bf16 *)(uintptr_t)b.weights.down.codes + (size_t)r * 32;
            row[0] = gb_bf16_encode(1);
            row[1] = gb_bf16_encode(-0x1p-9f * (0.9f + 0.2f * (float)r / 32));
            if (biased)
                b.problem.down_bias[r] = 0;
        }
        computed_new(&c, &b);
        memset(c.intermediate, 0, sizeof(double) * 32);
        c.intermediate[0] = c.intermediate[1] = c.weights[0] = 1;
        assert_int_equal(gb_bound_down(&shape, c.intermediate, NULL, b.problem.ids, c.weights, &b.weights, &declared,
                                       &c.down, &c.moments, NULL),
                         GB_OK);
        oracle_bound_output(&b.problem.arguments, c.weights, &text, h, true, output, above);
        compare_outputs("slots at a power of two", &c.down, output, above, false, NULL, &b);
        computed_free(&c);
        bounded_free(&b);
    }
}

static void compare_router(const char *name, const struct gb_arguments *a, const double *x, unsigned bits,
                           double deviations)
{
    size_t choices = (size_t)a->shape.tokens * a->shape.experts;
    double *low = doubles(choices), *high = doubles(choices), *relative = doubles(a->shape.tokens);
    long double *expected_low = malloc(sizeof *expected_low * choices),
                *expected_high = malloc(sizeof *expected_high * choices),
                *expected = malloc(sizeof *expected * a->shape.tokens);
    assert_true(expected_low && expected_high && expected);
    assert_int_equal(gb_bound_router(a, x, bits, deviations, low, high, relative, NULL), GB_OK);
    oracle_bound_router(a, x, bits, (long double)deviations, expected_low, expected_high, expected);
    for (size_t i = 0; i < choices; i++) {
        /* What is compared is the width: the logit itself is of order 1, and so is the error of computing it. */
        same(name, i, low[i], expected_low[i], 1);
        same(name, i, high[i], expected_high[i], 1);
        if (isfinite(low[i]) && isfinite(high[i]))
            if (!(fabsl((long double)(high[i] - low[i]) - (expected_high[i] - expected_low[i])) <=
                  0x1p-20L * (expected_high[i] - expected_low[i]) + 0x1p-52L * fabsl(expected_high[i])))
                fail_msg("%s, choice %zu: an interval of %.17g, by the text %.17Lg", name, i, high[i] - low[i],
                         expected_high[i] - expected_low[i]);
    }
    for (uint32_t t = 0; t < a->shape.tokens; t++)
        same(name, t, relative[t], expected[t], 0);
    free(low);
    free(high);
    free(relative);
    free(expected_low);
    free(expected_high);
    free(expected);
}

/* Every recipe, on logits near and far apart, some beyond what e^x can say. */
static void routers_are_the_texts(void **state)
{
    size_t count;
    const struct gb_router_recipe *recipes = gb_router_recipes(&count);
    const struct gb_shape shape = {6, 96, 1, 64, 5};
    (void)state;
    for (size_t r = 0; r < count; r++)
        for (int kind = 0; kind < ROUTE_KINDS; kind++)
            for (int spread = 0; spread < 2; spread++) {
                struct route_problem p;
                if (kind == ROUTE_EDGE)
                    continue;
                double *x = doubles((size_t)shape.tokens * shape.hidden);
                route_problem_new(&p, shape, (enum route_kind)kind, 100 * r + (unsigned)kind);
                p.arguments.router = &recipes[r].router;
                for (size_t i = 0; i < (size_t)shape.tokens * shape.hidden; i++)
                    x[i] = (double)gb_bf16_decode(p.x[i]) * (spread ? 40 : 1);
                compare_router(recipes[r].name, &p.arguments, x, r % 2 ? 24 : 17, kind ? 8 : INFINITY);
                if (kind == ROUTE_GAUSSIAN && !spread) {
                    x[0] = 0x1p127; /* beyond binary32: nothing is claimed */
                    x[1] = 0x1p127;
                    compare_router(recipes[r].name, &p.arguments, x, 24, 8);
                }
                route_problem_free(&p);
                free(x);
            }
}

/* Logits of zero; the scores of the last 4 of 8 groups are 2 k 2^-31 below the others'. */
static void bias_groups(struct route_problem *p, unsigned k)
{
    for (unsigned e = 0; e < 64; e++)
        p->bias[e] = e < 32 ? 0.0f : -(float)k * 0x1p-31f;
}

/* Groups whose scores are so near that the roundings of their sums decide what is possible: on either side of the
 * place where they begin to, of which 1 % is many steps. */
static void near_groups_are_the_texts(void **state)
{
    enum { FAR = 1 << 13, NEAR = 20 };
    const struct gb_shape shape = {1, 32, 1, 64, 8};
    struct route_problem p;
    double x[32] = {0}, low[64], high[64], relative;
    unsigned open = 0, decided = FAR;
    (void)state;
    route_problem_new(&p, shape, ROUTE_GAUSSIAN, 1);
    p.arguments.router = &gb_router_recipe_find("transformers.deepseek-v3/2")->router;
    while (decided - open > 1) {
        unsigned k = (open + decided) / 2;
        bias_groups(&p, k);
        assert_int_equal(gb_bound_router(&p.arguments, x, 24, 8, low, high, &relative, NULL), GB_OK);
        *(isinf(high[63]) ? &decided : &open) = k;
    }
    assert_in_range(decided, 100 * NEAR / 2, FAR - NEAR);
    for (unsigned k = decided - NEAR; k < decided + NEAR; k++) {
        bias_groups(&p, k);
        compare_router("near groups", &p.arguments, x, 24, 8);
    }
    route_problem_free(&p);
}

/* What judges of SiLU alone ask for, on every finite bf16 gate. */
static void errors_of_silu_are_the_texts(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits <= 0xFFFF; bits++) {
        double gate = (double)gb_bf16_decode((gb_bf16){(uint16_t)bits});
        if (isfinite(gate))
            same("w of silu", bits, gb_silu_error(gate), oracle_silu_error((long double)gate), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_of_silu_are_the_texts),   cmocka_unit_test(layers_are_the_texts),
        cmocka_unit_test(quantised_layers_are_the_texts), cmocka_unit_test(slots_at_powers_of_two_are_the_texts),
        cmocka_unit_test(routers_are_the_texts),          cmocka_unit_test(near_groups_are_the_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
