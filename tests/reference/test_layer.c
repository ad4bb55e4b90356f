/* SPDX-License-Identifier: Apache-2.0 */
/* gate_up, down and layer of the reference against the oracle, and what must not change a bit. */
#include "tests/support/check.h"

#include <omp.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/oracle/oracle.h"
#include "tests/support/operator_case.h"
#include "tests/support/problem.h"

/* tokens, hidden, intermediate, experts, top_k */
static const struct gb_shape nvfp4_shapes[] = {
    {1, 16, 16, 1, 1},  {3, 48, 16, 3, 2},   {5, 80, 48, 4, 3}, {7, 32, 112, 9, 4},  {1, 384, 192, 3, 2},
    {1, 528, 16, 2, 2}, {1, 16, 1040, 1, 1}, {9, 64, 32, 2, 1}, {1, 368, 144, 3, 2},
};
static const struct gb_shape mxfp8_shapes[] = {
    {1, 32, 32, 1, 1}, {5, 96, 32, 3, 2}, {2, 160, 96, 4, 3}, {1, 384, 192, 3, 2}, {1, 544, 32, 2, 2},
};
/* Parts of fewer than 128 rows, of 128, and of some more. */
static const struct gb_shape fp8_shapes[] = {
    {1, 1, 1, 1, 1}, {3, 129, 7, 3, 2}, {2, 40, 130, 3, 2}, {2, 264, 128, 2, 1}, {2, 130, 257, 2, 2},
};
static const struct gb_shape bf16_shapes[] = {
    {1, 1, 1, 1, 1}, {3, 13, 7, 3, 2}, {2, 255, 9, 4, 4}, {6, 32, 8, 5, 3}, {1, 264, 263, 2, 2}, {1, 384, 192, 3, 2},
};

struct results {
    gb_bf16 *intermediate;
    float *output;
};

static size_t intermediates(const struct gb_shape *shape)
{
    return (size_t)shape->tokens * shape->top_k * shape->intermediate;
}

static size_t outputs(const struct gb_shape *shape)
{
    return (size_t)shape->tokens * shape->hidden;
}

static struct results results_new(const struct gb_shape *shape)
{
    struct results results = {malloc(intermediates(shape) * sizeof(gb_bf16)), malloc(outputs(shape) * sizeof(float))};
    assert_non_null(results.intermediate);
    assert_non_null(results.output);
    return results;
}

static void results_free(struct results *results)
{
    free(results->intermediate);
    free(results->output);
}

static void expect_intermediate(const struct problem *problem, const gb_bf16 *expected, const char *order,
                                const char *what)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    for (size_t i = 0; i < intermediates(shape); i++)
        if (!same_bf16(expected[i], problem->intermediate[i]))
            fail_msg("%s, %s, %s: intermediate of pair %zu, element %zu: expected %04X, got %04X", order,
                     gb_format_name(problem->arguments.gate_up.format), what, i / shape->intermediate,
                     i % shape->intermediate, expected[i].bits, problem->intermediate[i].bits);
}

static void expect_output(const struct problem *problem, const float *expected, const char *order, const char *what)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    for (size_t i = 0; i < outputs(shape); i++)
        assert_same_float(expected[i], problem->output[i], "%s, %s, %s: output of token %zu, element %zu", order,
                          gb_format_name(problem->arguments.gate_up.format), what, i / shape->hidden,
                          i % shape->hidden);
}

typedef enum gb_status operator(const struct gb_contract *contract, const struct gb_arguments *arguments,
                                struct gb_error *error);

static void run(operator* reference, enum gb_operator operation, const char *order,
                const struct gb_arguments *arguments)
{
    assert_int_equal(reference(gb_contract_of(arguments, operation, order), arguments, NULL), GB_OK);
}

/* Each operator alone on the oracle's inputs, and the layer, with and without the stage output. */
static void check_order(struct problem *problem, const char *order)
{
    struct gb_arguments *arguments = &problem->arguments;
    struct results expected = results_new(&arguments->shape);

    oracle_gate_up(arguments, order, expected.intermediate);
    oracle_down(arguments, order, expected.intermediate, expected.output);

    problem_poison(problem);
    arguments->output = NULL;
    run(gb_reference_gate_up, GB_GATE_UP, order, arguments);
    expect_intermediate(problem, expected.intermediate, order, "gate_up");

    arguments->output = problem->output;
    problem_poison(problem);
    arguments->x = NULL;
    memcpy(problem->intermediate, expected.intermediate, intermediates(&arguments->shape) * sizeof(gb_bf16));
    run(gb_reference_down, GB_DOWN, order, arguments);
    expect_output(problem, expected.output, order, "down");
    expect_intermediate(problem, expected.intermediate, order, "down's input");

    arguments->x = problem->x;
    problem_poison(problem);
    run(gb_reference_layer, GB_LAYER, order, arguments);
    expect_intermediate(problem, expected.intermediate, order, "layer");
    expect_output(problem, expected.output, order, "layer");

    problem_poison(problem);
    arguments->intermediate = NULL;
    run(gb_reference_layer, GB_LAYER, order, arguments);
    expect_output(problem, expected.output, order, "layer without stage output");
    arguments->intermediate = problem->intermediate;
    results_free(&expected);
}

/* In every order that has a contract of the weights' format. */
static void check_operators(struct problem *problem)
{
    const enum gb_format format = problem->arguments.gate_up.format;

    check_order(problem, GB_ORDER_FMA32);
    if (format == GB_NVFP4 || format == GB_MXFP4 || format == GB_MXFP8)
        check_order(problem, GB_ORDER_MMA16_SM90);
}

static void check_shape(struct gb_shape shape, enum gb_format format, enum data data, uint64_t seed)
{
    struct problem problem;

    problem_new(&problem, shape, format, data, seed);
    problem_empty_slots(&problem, 4, seed);
    check_operators(&problem);
    problem_free(&problem);
}

/* Without the whole sweep all shapes have codes, MXFP4's every other one, and a fifth of them, another each time, the
 * other kinds of data. */
static unsigned sparse = 5;

static void check_shapes(enum data data)
{
    static const struct {
        enum gb_format format;
        const struct gb_shape *shapes;
        unsigned count;
        uint64_t seed;
    } formats[] = {
        {GB_NVFP4, nvfp4_shapes, sizeof nvfp4_shapes / sizeof *nvfp4_shapes, 40},
        {GB_MXFP8, mxfp8_shapes, sizeof mxfp8_shapes / sizeof *mxfp8_shapes, 50},
        {GB_MXFP4, mxfp8_shapes, sizeof mxfp8_shapes / sizeof *mxfp8_shapes, 70},
        {GB_FP8_BLOCK, fp8_shapes, sizeof fp8_shapes / sizeof *fp8_shapes, 80},
        {GB_BF16, bf16_shapes, sizeof bf16_shapes / sizeof *bf16_shapes, 60},
    };
    for (unsigned f = 0; f < sizeof formats / sizeof *formats; f++)
        for (unsigned i = 0; i < formats[f].count; i++)
            if ((data == DATA_CODES && (sparse == 1 || formats[f].format != GB_MXFP4 || i % 2 == 0)) ||
                (i + f + (unsigned)data) % sparse == 0)
                check_shape(formats[f].shapes[i], formats[f].format, data, formats[f].seed + i);
}

/* Biases, gpt-oss's activation, and both; a caller that does not know the fields has neither. */
static void extensions(void **state)
{
    static const enum data kinds[] = {DATA_CODES, DATA_GAUSSIAN, DATA_NONFINITE};
    static const enum gb_activation activations[] = {GB_SILU, GB_SWIGLU_OAI};
    static const enum gb_format formats[] = {GB_MXFP4, GB_NVFP4, GB_FP8_BLOCK, GB_BF16};

    (void)state;
    for (unsigned k = 0; k < 3; k++)
        for (unsigned f = 0; f < 4; f++)
            for (unsigned a = 0; a < 2; a++) {
                struct problem problem;
                if (sparse > 1 && (k + f + a) % 2)
                    continue; /* each pair of these three is there */
                problem_new(&problem, (struct gb_shape){2, 64, 32, 3, 2}, formats[f], kinds[k], 90 + k);
                problem_empty_slots(&problem, 4, k);
                problem_extend(&problem, activations[a], 91 + k);
                check_operators(&problem);
                problem.arguments.gate_up_bias = NULL;
                check_operators(&problem);
                problem_free(&problem);
            }

    struct problem problem;
    problem_new(&problem, (struct gb_shape){2, 32, 32, 3, 2}, GB_MXFP4, DATA_CODES, 95);
    struct results expected = results_new(&problem.arguments.shape);
    oracle_gate_up(&problem.arguments, GB_ORDER_FMA32, expected.intermediate);
    oracle_down(&problem.arguments, GB_ORDER_FMA32, expected.intermediate, expected.output);
    problem_extend(&problem, GB_SWIGLU_OAI, 96);
    problem.arguments.size = offsetof(struct gb_arguments, activation);
    assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
    expect_output(&problem, expected.output, GB_ORDER_FMA32, "an older caller");
    problem.arguments.size = sizeof problem.arguments;
    problem.arguments.activation = (enum gb_activation)2;
    assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_EINVAL);
    results_free(&expected);
    problem_free(&problem);
}

/* Weights of another shape are refused, and which they are and should be is said. */
static void weights_of_another_shape(void **state)
{
    (void)state;
    struct problem problem;
    struct gb_error error;
    problem_new(&problem, (struct gb_shape){2, 64, 32, 3, 2}, GB_BF16, DATA_CODES, 97);
    problem.arguments.gate_up.rows = 16;
    assert_int_equal(fma32_layer(&problem.arguments, &error), GB_EINVAL);
    assert_string_equal(error.message, "gate_up is 3 x 16 x 64 in 2 parts; the shape needs 3 x 64 x 64 in 2");
    problem.arguments.gate_up.rows = 64;
    problem.arguments.down.columns = 16;
    problem.arguments.down.experts = 4;
    assert_int_equal(fma32_layer(&problem.arguments, &error), GB_EINVAL);
    assert_string_equal(error.message, "down is 4 x 64 x 16 in 1 parts; the shape needs 3 x 64 x 32 in 1");
    problem_free(&problem);
}

/* The routing weight on the input, where a token has one expert; with more it is refused. */
static void weighed_inputs(void **state)
{
    static const enum data kinds[] = {DATA_CODES, DATA_GAUSSIAN, DATA_NONFINITE};
    static const enum gb_format formats[] = {GB_MXFP4, GB_NVFP4, GB_MXFP8, GB_FP8_BLOCK, GB_BF16};

    (void)state;
    for (unsigned k = 0; k < 3; k++)
        for (unsigned f = 0; f < 5; f++) {
            struct problem problem;
            problem_new(&problem, (struct gb_shape){3, 64, 32, 3, 1}, formats[f], kinds[k], 190 + k);
            problem_empty_slots(&problem, 4, k);
            for (unsigned t = 0; t < 3; t++)
                problem.routing_weights[t] *= t % 2 ? -3.7f : 1; /* no power of two, and either sign */
            problem.arguments.apply_router_weight_on_input = 1;
            check_operators(&problem);
            problem_free(&problem);
        }

    struct problem problem;
    problem_new(&problem, (struct gb_shape){2, 32, 32, 3, 2}, GB_BF16, DATA_CODES, 195);
    problem.arguments.apply_router_weight_on_input = 1;
    assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_EINVAL);
    problem.arguments.size =
        offsetof(struct gb_arguments, apply_router_weight_on_input); /* an older caller has no such field */
    assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
    problem_free(&problem);
}

static void every_code_and_scale(void **state)
{
    (void)state;
    check_shapes(DATA_CODES);
}

static void gaussian_weights(void **state)
{
    (void)state;
    check_shapes(DATA_GAUSSIAN);
}

static void subnormal_sums(void **state)
{
    (void)state;
    check_shapes(DATA_SUBNORMAL);
}

static void nan_and_infinity(void **state)
{
    (void)state;
    check_shapes(DATA_NONFINITE);
}

static void all_slots_empty(void **state)
{
    struct problem problem;

    (void)state;
    problem_new(&problem, (struct gb_shape){3, 32, 16, 4, 2}, GB_NVFP4, DATA_CODES, 80);
    problem_empty_slots(&problem, 1, 0);
    assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
    for (size_t i = 0; i < 3 * 32; i++)
        assert_same_float(0.0f, problem.output[i], "element %zu", i);
    for (size_t i = 0; i < 3 * 2 * 16; i++)
        assert_int_equal(problem.intermediate[i].bits, 0);
    problem_free(&problem);
}

/* An expert may be chosen twice by one token, and weights may be negative or zero. */
static void unusual_routing(void **state)
{
    static const float weights[] = {-0.5f, 0, 1.75f, -0.0f, 3, 0x1p-140f};
    struct problem problem;

    (void)state;
    problem_new(&problem, (struct gb_shape){2, 48, 32, 3, 3}, GB_NVFP4, DATA_CODES, 81);
    for (unsigned i = 0; i < 6; i++) {
        problem.ids[i] = (int32_t)(i / 2 % 3);
        problem.routing_weights[i] = weights[i];
    }
    check_operators(&problem);
    problem_free(&problem);
}

/* The first tokens of a batch give the bits they give alone; a permuted batch gives permuted rows. */
static void batch_invariance(void **state)
{
    enum { TOKENS = 13 };
    const struct gb_shape shape = {TOKENS, 80, 48, 4, 3};
    struct problem problem;

    (void)state;
    problem_new(&problem, shape, GB_NVFP4, DATA_CODES, 82);
    problem_empty_slots(&problem, 5, 1);
    assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
    struct results whole = results_new(&shape);
    memcpy(whole.output, problem.output, outputs(&shape) * sizeof(float));
    memcpy(whole.intermediate, problem.intermediate, intermediates(&shape) * sizeof(gb_bf16));

    for (uint32_t tokens = 1; tokens < TOKENS; tokens++) {
        problem_poison(&problem);
        problem.arguments.shape.tokens = tokens;
        assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
        expect_output(&problem, whole.output, GB_ORDER_FMA32, "prefix");
        expect_intermediate(&problem, whole.intermediate, GB_ORDER_FMA32, "prefix");
        assert_int_equal(float_bits(problem.output[tokens * shape.hidden]), 0xA5A5A5A5);
        assert_int_equal(problem.intermediate[tokens * shape.top_k * shape.intermediate].bits, 0xA5A5);
    }
    problem.arguments.shape.tokens = 1;
    for (uint32_t t = 0; t < TOKENS; t++) {
        problem_poison(&problem);
        problem.arguments.x = problem.x + t * shape.hidden;
        problem.arguments.ids = problem.ids + t * shape.top_k;
        problem.arguments.routing_weights = problem.routing_weights + t * shape.top_k;
        assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
        expect_output(&problem, whole.output + t * shape.hidden, GB_ORDER_FMA32, "one token");
    }
    results_free(&whole);
    problem_free(&problem);
}

static void thread_invariance(void **state)
{
    const struct gb_shape shape = {6, 112, 64, 5, 3};
    struct problem problem;
    int threads = omp_get_max_threads();

    (void)state;
    problem_new(&problem, shape, GB_NVFP4, DATA_CODES, 83);
    struct results alone = results_new(&shape);
    omp_set_num_threads(1);
    assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
    memcpy(alone.output, problem.output, outputs(&shape) * sizeof(float));
    memcpy(alone.intermediate, problem.intermediate, intermediates(&shape) * sizeof(gb_bf16));
    for (int n = 2; n <= 7; n++) {
        omp_set_num_threads(n);
        problem_poison(&problem);
        assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
        expect_output(&problem, alone.output, GB_ORDER_FMA32, "threads");
        expect_intermediate(&problem, alone.intermediate, GB_ORDER_FMA32, "threads");
    }
    omp_set_num_threads(threads);
    results_free(&alone);
    problem_free(&problem);
}

/* Codes and scales of quantised activations, one a byte, on the way to what they make. */
static void expect_quantised(const struct gb_arguments *arguments, struct results *expected)
{
    const struct gb_shape *shape = &arguments->shape;
    const size_t count = outputs(shape) + intermediates(shape);
    uint8_t *codes = malloc(count), *scale_codes = malloc(count);
    float *scales = malloc(count * sizeof *scales);

    assert_true(codes && scale_codes && scales);
    oracle_quantise_activations(arguments, false, arguments->x, codes, scale_codes, scales);
    oracle_quantised_gate_up(arguments, codes, scales, expected->intermediate);
    oracle_quantise_activations(arguments, true, expected->intermediate, codes, scale_codes, scales);
    oracle_quantised_down(arguments, codes, scales, expected->output);
    free(codes);
    free(scale_codes);
    free(scales);
}

/* What the kernel's contract makes of the problem, by the oracle. A kernel that routes has a router to read, and no ids
 * or weights but those that it makes itself. */
static void check_kernel(const struct gb_kernel *kernel, struct problem *problem)
{
    struct gb_arguments *arguments = &problem->arguments, asked;
    const struct gb_shape *shape = &arguments->shape;
    const size_t pairs = (size_t)shape->tokens * shape->top_k;
    struct results expected = results_new(shape);
    struct gb_weights router = {0};
    int32_t *ids = calloc(pairs, sizeof *ids);
    float *weights = calloc(pairs, sizeof *weights);
    uint64_t random = 87;

    assert_true(ids && weights);
    if (kernel->activations != GB_BF16) {
        arguments->activation_rules = &gb_recipe_default_activations(kernel->activations)->quantiser;
        arguments->x_scale = 0.00187654f;
        arguments->intermediate_scale = 0.00345678f;
    }
    asked = *arguments;
    if (kernel->flags & GB_ROUTES) {
        problem_weights(&router, GB_BF16, 1, shape->experts, shape->hidden, 1, DATA_CODES, &random);
        asked.router = &gb_router_recipe_default(true)->router;
        asked.router_weights = router;
        oracle_router(&asked, problem->ids, problem->routing_weights);
        asked.ids = NULL;
        asked.routing_weights = NULL;
        asked.routed_ids = ids;
        asked.routed_weights = weights;
    }
    if (kernel->activations != GB_BF16) {
        expect_quantised(arguments, &expected);
    } else {
        oracle_gate_up(arguments, kernel->order, expected.intermediate);
        oracle_down(arguments, kernel->order, expected.intermediate, expected.output);
    }
    problem_poison(problem);
    if (kernel->operation == GB_DOWN)
        memcpy(problem->intermediate, expected.intermediate, intermediates(shape) * sizeof(gb_bf16));
    assert_int_equal(kernel->run(&asked, NULL), GB_OK);
    expect_intermediate(problem, expected.intermediate, kernel->order, kernel->name);
    if (kernel->operation != GB_GATE_UP)
        expect_output(problem, expected.output, kernel->order, kernel->name);
    for (size_t i = 0; kernel->flags & GB_ROUTES && i < pairs; i++) {
        assert_int_equal(ids[i], problem->ids[i]);
        assert_same_float(problem->routing_weights[i], weights[i], "%s: weight %zu", kernel->name, i);
    }
    free(ids);
    free(weights);
    problem_weights_free(&router);
    results_free(&expected);
}

static void the_kernel_table_runs_the_reference(void **state)
{
    const struct gb_kernel_table *table = gb_reference_kernels();
    unsigned checked = 0, left = 0;
    size_t contracts;

    (void)state;
    gb_contracts(&contracts);
    assert_int_equal(table->abi_version, GB_ABI_VERSION);
    assert_int_equal(table->kernel_size, sizeof(struct gb_kernel));
    for (uint32_t k = 0; k < table->count; k++) {
        const struct gb_kernel *kernel = &table->kernels[k];
        /* FP8's activations have blocks of 128. Without the whole sweep layers that route have two tokens, other
         * layers several blocks in a token, and an intermediate as wide as FP8's those of FP8 alone. */
        const bool whole = sparse == 1, routes = kernel->flags & GB_ROUTES,
                   layer = kernel->operation == GB_LAYER && !routes;
        const struct gb_shape shape = {whole || routes ? 2 : 1, whole || layer ? 256 : 128,
                                       whole || kernel->activations == GB_FP8_BLOCK ? 128 : 64, 3, 2};
        struct gb_problem question = {.size = sizeof question, .shape = shape, .weights = kernel->weights};
        struct problem problem;

        if (kernel->operation > GB_DOWN) { /* of one matrix: test_route_recipes, test_quantise_operator and others */
            left++;
            continue;
        }
        assert_non_null(gb_contract_find(kernel->weights, kernel->activations, kernel->order));
        assert_int_equal(kernel->flags & (GB_DEVICE_POINTERS | GB_NONDETERMINISTIC), 0);
        assert_int_equal(kernel->output, GB_FP32);
        if (kernel->activations != GB_BF16)
            question.activation_rules = &gb_recipe_default_activations(kernel->activations)->quantiser;
        if (kernel->flags & GB_ROUTES)
            question.router = &gb_router_recipe_default(true)->router;
        assert_int_equal(kernel->supports(&question, NULL), GB_OK);
        question.weights = GB_FP32;
        assert_int_equal(kernel->supports(&question, NULL), GB_EUNSUPPORTED);

        problem_new(&problem, shape, kernel->weights, DATA_CODES, 85);
        check_kernel(kernel, &problem);
        problem_free(&problem);
        checked++;
    }
    assert_int_equal(checked, 4 * contracts); /* layer, gate_up, down and routed layer of each */
    assert_int_equal(left, 5);
}

/* A question of a caller whose struct ends with what the kernel needs, and one that ends a byte before: without rules
 * activations are bf16. */
static void questions_may_end_early(void **state)
{
    const struct gb_kernel_table *table = gb_reference_kernels();
    const struct gb_quantiser *rules = &gb_recipe_find("nvfp4.te/1")->quantiser;
    (void)state;
    for (uint32_t k = 0; k < table->count; k++) {
        const struct gb_kernel *kernel = &table->kernels[k];
        const bool gated = kernel->operation == GB_SILU_MUL_QUANTISE;
        struct gb_quantisation quantisation = operator_question(rules, gated, 3, 128);
        struct gb_exchange sums = {.size = sizeof sums,
                                   .ranks = 2,
                                   .tokens = 4,
                                   .hidden = 128,
                                   .experts = 8,
                                   .top_k = 2,
                                   .rows = 5,
                                   .input = GB_BF16,
                                   .accumulation =
                                       kernel->operation == GB_COMBINE ? GB_AT_SENDER : (enum gb_accumulation)0};
        struct gb_problem question = {.shape = {2, 256, 128, 3, 2},
                                      .weights = kernel->operation == GB_ROUTE ? GB_BF16 : kernel->weights,
                                      .router = &gb_router_recipe_default(true)->router,
                                      .quantise = &quantisation,
                                      .exchange = &sums};
#define UP_TO(FIELD) (offsetof(struct gb_problem, FIELD) + sizeof question.FIELD)
        size_t needed = kernel->operation == GB_QUANTISE || gated                             ? UP_TO(quantise)
                        : kernel->operation == GB_DISPATCH || kernel->operation == GB_COMBINE ? UP_TO(exchange)
                        : kernel->operation <= GB_DOWN && kernel->activations != GB_BF16      ? UP_TO(activation_rules)
                        : kernel->operation == GB_ROUTE || kernel->flags & GB_ROUTES          ? UP_TO(router)
                                                                                              : 0;
        if (kernel->operation <= GB_DOWN && kernel->activations != GB_BF16)
            question.activation_rules = &gb_recipe_default_activations(kernel->activations)->quantiser;
        quantisation.silu = gated ? GB_SILU_DIVIDE : quantisation.silu;
        question.size = needed ? needed : GB_PROBLEM_LEAST;
        struct gb_error error = {""};
        if (kernel->supports(&question, &error) != GB_OK)
            fail_msg("%s: %s", kernel->name, error.message);
        question.size--;
        if (needed && !question.activation_rules && kernel->supports(&question, &error) == GB_OK)
            fail_msg("%s: takes %zu bytes", kernel->name, question.size);
    }
}

/* Rules of activations behind the end of a question are none; at the end they are: they have their own blocks, and no
 * contract of mma16. */
static void rules_of_activations_end_the_question(void **state)
{
    const struct gb_kernel_table *table = gb_reference_kernels();
    uint32_t asked = 0;
    (void)state;
    for (uint32_t k = 0; k < table->count; k++) {
        const struct gb_kernel *kernel = &table->kernels[k];
        const bool mma16 = kernel->order && !strcmp(kernel->order, GB_ORDER_MMA16_SM90);
        if (kernel->operation > GB_DOWN || (kernel->activations == GB_BF16 && !mma16))
            continue;
        const struct gb_quantiser *rules =
            &gb_recipe_default_activations(mma16 ? GB_MXFP8 : kernel->activations)->quantiser;
        struct gb_problem question = {.shape = {2, 256, mma16 ? 128 : 128 + rules->block_columns / 2, 3, 2},
                                      .weights = kernel->weights,
                                      .router = &gb_router_recipe_default(true)->router,
                                      .activation_rules = rules};
        const char *says = mma16 ? "no contract for this weight format" : "the block of activations";
        const size_t known = UP_TO(activation_rules), sizes[] = {known - 1, known, sizeof question};
        for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct gb_error error = {""};
            question.size = sizes[i];
            enum gb_status status = kernel->supports(&question, &error);
            if ((i > 0) != (status == GB_EUNSUPPORTED && strstr(error.message, says) != NULL) ||
                (mma16 && i == 0 && status != GB_OK))
                fail_msg("%s, %zu bytes: status %d, '%s'", kernel->name, sizes[i], (int)status, error.message);
        }
        asked++;
    }
    assert_true(asked >= 16);
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        sparse = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_another_shape),
        cmocka_unit_test(weighed_inputs),
        cmocka_unit_test(extensions),
        cmocka_unit_test(every_code_and_scale),
        cmocka_unit_test(gaussian_weights),
        cmocka_unit_test(subnormal_sums),
        cmocka_unit_test(nan_and_infinity),
        cmocka_unit_test(all_slots_empty),
        cmocka_unit_test(unusual_routing),
        cmocka_unit_test(batch_invariance),
        cmocka_unit_test(thread_invariance),
        cmocka_unit_test(the_kernel_table_runs_the_reference),
        cmocka_unit_test(questions_may_end_early),
        cmocka_unit_test(rules_of_activations_end_the_question),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
