/* SPDX-License-Identifier: Apache-2.0 */
/* The library of faults: a layer taken apart is the reference's, and every fault changes what it says. */
#include "harness/faults/faults.h"
#include "harness/faults/faults_route.h"
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/fma32.h"
#include "tests/support/problem.h"
#include "tests/support/route_problem.h"

static const enum gb_format formats[] = {GB_BF16, GB_NVFP4, GB_MXFP8, GB_MXFP4, GB_FP8_BLOCK};
static const struct gb_shape shapes[] = {{7, 160, 96, 5, 3}, {1, 32, 32, 1, 1}, {3, 256, 288, 4, 4}};

/* Sanitizers make one problem as long as ten, and every fault still changes one of half of them. */
#if defined(__SANITIZE_ADDRESS__)
enum { SANITISED = 1 };
#else
enum { SANITISED = 0 };
#endif

enum { FORMATS = sizeof formats / sizeof *formats, SHAPES = sizeof shapes / sizeof *shapes };

static size_t outputs(const struct gb_shape *shape)
{
    return (size_t)shape->tokens * shape->hidden;
}

/* Empty slots too. */
static void test_trace_is_the_reference(void **state)
{
    (void)state;
    for (int f = 0; f < FORMATS; f++)
        for (int s = 0; s < SHAPES; s++) {
            struct problem problem;
            struct trace trace;
            struct gb_error error = {""};
            problem_new(&problem, shapes[s], formats[f], DATA_CODES, 11 + (uint64_t)s);
            if (s == 0)
                problem_empty_slots(&problem, 5, 1);
            if (s == 2)
                problem_extend(&problem, GB_SWIGLU_OAI, 7);
            assert_int_equal(fma32_layer(&problem.arguments, &error), GB_OK);
            assert_int_equal(trace_new(gb_contract_of(&problem.arguments, GB_LAYER, GB_ORDER_FMA32), &problem.arguments,
                                       &trace, &error),
                             GB_OK);
            for (size_t i = 0; i < outputs(&shapes[s]); i++)
                assert_same_float(problem.output[i], trace.output[i], "format %d, shape %d, output %zu",
                                  (int)formats[f], s, i);
            trace_free(&trace);
            problem_free(&problem);
        }
}

/* Contracts with quantised activations, as far as a layer taken apart is concerned: every combination there is. */
static const struct {
    enum gb_format weights;
    const char *recipe;
} quantised[] = {{GB_NVFP4, "nvfp4.trtllm/1"},
                 {GB_NVFP4, "nvfp4.modelopt/1"},
                 {GB_MXFP8, "mxfp8.rceil/1"},
                 {GB_MXFP4, "mxfp8.floor/1"},
                 {GB_FP8_BLOCK, "fp8g128.vllm/1"}};

enum { QUANTISED = sizeof quantised / sizeof *quantised };

/* The second has global scales so large that the block scales are subnormal. */
static void problem_quantised(struct problem *p, int n, struct gb_shape shape)
{
    problem_new(p, shape, quantised[n].weights, DATA_GAUSSIAN, 21);
    p->arguments.activation_rules = &gb_recipe_find(quantised[n].recipe)->quantiser;
    p->arguments.x_scale = (n == 1 ? 0x1p15f : 1.0f) * 4.0f / 2688;
    p->arguments.intermediate_scale = (n == 1 ? 0x1p15f : 1.0f) * 3.0f / 2688;
}

static const struct gb_shape shape_quantised = {7, 256, 384, 5, 3};

static void test_quantised_trace_is_the_reference(void **state)
{
    (void)state;
    for (int n = 0; n < QUANTISED; n++) {
        struct problem problem;
        struct trace trace;
        problem_quantised(&problem, n, shape_quantised);
        problem_empty_slots(&problem, 5, 1);
        assert_int_equal(fma32_layer(&problem.arguments, NULL), GB_OK);
        assert_int_equal(
            trace_new(gb_contract_of(&problem.arguments, GB_LAYER, GB_ORDER_FMA32), &problem.arguments, &trace, NULL),
            GB_OK);
        for (size_t i = 0; i < outputs(&shape_quantised); i++)
            assert_same_float(problem.output[i], trace.output[i], "%s, %zu", quantised[n].recipe, i);
        trace_free(&trace);
        problem_free(&problem);
    }
}

/* Codes that nothing was done to make the reference's bits. */
static void test_codes_make_the_output(void **state)
{
    (void)state;
    for (int n = 0; n < 2 * QUANTISED; n++) {
        struct fault none = {.name = "none", .stage = n % 2 ? STAGE_ACT_QUANT : STAGE_REQUANT};
        struct problem problem;
        struct trace trace;
        problem_quantised(&problem, n / 2, shape_quantised);
        problem_empty_slots(&problem, 5, 2);
        assert_int_equal(
            trace_new(gb_contract_of(&problem.arguments, GB_LAYER, GB_ORDER_FMA32), &problem.arguments, &trace, NULL),
            GB_OK);
        assert_int_equal(fault_run(&none, &trace, NULL, problem.output, NULL), GB_OK);
        for (size_t i = 0; i < outputs(&shape_quantised); i++)
            assert_same_float(trace.output[i], problem.output[i], "%s, %s, %zu", quantised[n / 2].recipe,
                              fault_stage_name(none.stage), i);
        trace_free(&trace);
        problem_free(&problem);
    }
}

static bool changes(const struct fault *fault, const struct trace *trace, float *output)
{
    struct gb_error error = {""};
    size_t count = outputs(&trace->arguments.shape);
    memset(output, 0xA5, count * sizeof *output);
    if (fault_run(fault, trace, NULL, output, &error) != GB_OK)
        fail_msg("%s: %s", fault->name, error.message);
    return memcmp(output, trace->output, count * sizeof *output) != 0;
}

/* changed: [faults], set for those that change the problem's output. */
static void note_changes(const struct problem *problem, bool *changed)
{
    struct trace trace;
    const size_t count = fault_count();
    assert_int_equal(
        trace_new(gb_contract_of(&problem->arguments, GB_LAYER, GB_ORDER_FMA32), &problem->arguments, &trace, NULL),
        GB_OK);
    float *output = malloc(outputs(&problem->arguments.shape) * sizeof *output); /* [tokens, hidden] */
    assert_non_null(output);
    for (size_t i = 0; i < count; i++)
        if (fault_applies(fault_at(i), &trace.arguments))
            changed[i] |= changes(fault_at(i), &trace, output);
    free(output);
    trace_free(&trace);
}

/* On values from recipes, with several blocks, experts and tokens; no fault without an effect somewhere. */
static void test_every_fault_changes_the_output(void **state)
{
    (void)state;
    const size_t count = fault_count();
    bool *changed = calloc(count, sizeof *changed);
    assert_non_null(changed);
    for (int f = 0; f < FORMATS; f++)
        for (int s = 0; s < SHAPES; s++)
            for (int d = 0; d < 2; d++) {
                struct problem problem;
                if (SANITISED && (f + s + d) % 2)
                    continue;
                problem_new(&problem, shapes[s], formats[f], d ? DATA_CODES : DATA_GAUSSIAN, 3 + (uint64_t)s);
                if (s == 0 && d)
                    problem_extend(&problem, GB_SWIGLU_OAI, 7);
                note_changes(&problem, changed);
                problem_free(&problem);
            }
    for (int n = 0; n < QUANTISED; n++) {
        struct problem problem;
        problem_quantised(&problem, n, shape_quantised);
        note_changes(&problem, changed);
        problem_free(&problem);
    }
    for (size_t i = 0; i < count; i++)
        if (!changed[i])
            fail_msg("'%s' changes nothing anywhere", fault_at(i)->name);
    free(changed);
}

static void test_table(void **state)
{
    (void)state;
    const size_t count = fault_count();
    for (size_t i = 0; i < count; i++) {
        const struct fault *fault = fault_at(i);
        bool weights = fault->stage >= STAGE_GATE_UP && fault->stage <= STAGE_WEIGHTS;
        if (!fault->modelled_on || !*fault->modelled_on || (fault->edit != NULL) != weights || !fault->plant != weights)
            fail_msg("row of '%s'", fault->name);
        for (size_t other = 0; other < i; other++)
            if (!strcmp(fault_at(other)->name, fault->name))
                fail_msg("two faults named '%s'", fault->name);
    }
    for (int f = 0; f < FORMATS + QUANTISED; f++) {
        size_t stages[STAGE_OUTPUT + 1] = {0}, applies = 0;
        const struct gb_arguments a = {
            .gate_up.format = f < FORMATS ? formats[f] : quantised[f - FORMATS].weights,
            .activation_rules = f < FORMATS ? NULL : &gb_recipe_find(quantised[f - FORMATS].recipe)->quantiser};
        for (size_t i = 0; i < count; i++)
            if (fault_applies(fault_at(i), &a)) {
                stages[fault_at(i)->stage]++;
                applies++;
            }
        assert_true(applies >= 60);
        for (int s = 0; s <= STAGE_OUTPUT; s++)
            assert_true((stages[s] > 0) == (f >= FORMATS || (s != STAGE_ACT_QUANT && s != STAGE_REQUANT)));
        assert_true(f < FORMATS || stages[STAGE_ACT_QUANT] + stages[STAGE_REQUANT] >= 24);
    }
}

/* In every recipe that can have it a fault changes ids or weights; every fault is one of some recipe. */
static void test_every_fault_of_a_router_changes_it(void **state)
{
    (void)state;
    size_t count, recipes;
    const struct route_fault *all = route_faults(&count);
    const struct gb_router_recipe *recipe = gb_router_recipes(&recipes);
    const struct gb_shape shape = {24, 96, 64, 64, 6};
    assert_true(count >= 20);
    for (size_t i = 0; i < count; i++) {
        uint32_t applied = 0;
        assert_true(all[i].modelled_on && *all[i].modelled_on && !all[i].change != !all[i].spoil);
        for (size_t other = 0; other < i; other++)
            assert_string_not_equal(all[other].name, all[i].name);
        for (size_t r = 0; r < recipes; r++) {
            struct route_problem p;
            bool applies;
            size_t pairs = (size_t)shape.tokens * shape.top_k;
            route_problem_new(&p, shape, ROUTE_GAUSSIAN, 5 + r);
            p.arguments.router = &recipe[r].router;
            if (recipe[r].router.bias == GB_ROUTER_BIAS_NONE)
                p.arguments.router_bias = NULL;
            if (fma32_router(&p.arguments, NULL) == GB_OK) { /* as many experts go with it */
                memcpy(p.expected_ids, p.ids, sizeof *p.ids * pairs);
                memcpy(p.expected, p.weights, sizeof *p.weights * pairs);
                struct gb_error error = {""};
                if (route_fault_run(&all[i], gb_contract_of(&p.arguments, GB_ROUTE, GB_ORDER_FMA32), &p.arguments,
                                    &applies, &error) != GB_OK)
                    fail_msg("%s, %s: %s", all[i].name, recipe[r].name, error.message);
                if (applies && !memcmp(p.expected_ids, p.ids, sizeof *p.ids * pairs) &&
                    !memcmp(p.expected, p.weights, sizeof *p.weights * pairs))
                    fail_msg("'%s' changes nothing of %s", all[i].name, recipe[r].name);
                applied += applies;
            }
            route_problem_free(&p);
        }
        if (!applied)
            fail_msg("'%s' is none of any recipe", all[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_is_the_reference),
        cmocka_unit_test(test_quantised_trace_is_the_reference),
        cmocka_unit_test(test_codes_make_the_output),
        cmocka_unit_test(test_every_fault_changes_the_output),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_every_fault_of_a_router_changes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
