/* SPDX-License-Identifier: Apache-2.0 */
/* explain on layers with quantised activations: faults are tried in the contract that the subject is judged by. */
#include "harness/explain/explain.h"

#include "harness/faults/faults.h"
#include "tests/support/check.h"
#include "tests/support/kept_explanation.h"
#include "tests/support/layer_as_fixture.h"

static const struct {
    enum gb_format weights, activations;
} contracts[] = {{GB_NVFP4, GB_NVFP4}, {GB_MXFP8, GB_MXFP8}, {GB_FP8_BLOCK, GB_FP8_BLOCK}};

/* Their names, or of others that make the same error. */
static const char *const names[] = {"scales of the next block in down",
                                    "intermediate: scales of the next block",
                                    "intermediate: last block zero",
                                    "x: scales of the next row",
                                    "x: codes rounded toward zero",
                                    "x: not quantised",
                                    "gate and up swapped",
                                    "routing weight missing"};

/* Of each contract every so manieth fault is run, from this one on. */
static size_t stride = 13;
static const size_t first[] = {2, 1, 6};

static const struct fault *find(const char *name)
{
    const size_t count = fault_count();
    for (size_t i = 0; i < count; i++)
        if (!strcmp(fault_at(i)->name, name))
            return fault_at(i);
    fail_msg("no fault '%s'", name);
    return NULL;
}

static void faults_of_quantised_layers_are_named(void **state)
{
    const struct gb_shape shape = {stride > 1 ? 5 : 10, stride > 1 ? 128 : 256, 256, 6, 2};
    static const struct gb_rounding_points points = {
        .intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};
    (void)state;
    for (size_t c = 0; c < sizeof contracts / sizeof *contracts; c++) {
        struct problem problem;
        struct baseline plain, baseline;
        struct trace trace;
        struct gb_outputs *subject;
        problem_new(&problem, shape, contracts[c].weights, DATA_GAUSSIAN, 23);
        struct gb_fixture *fixture = problem_fixture(&problem);
        assert_int_equal(gb_fixture_quantise_activations(fixture, contracts[c].activations, NULL, NULL), GB_OK);
        for (int i = 0; fixture->layer[0].activation_scales && i < 2; i++)
            fixture->layer[0].activation_scales[i] = 4.5f / 2688;
        assert_int_equal(
            baseline_new(fixture, gb_contract_find(fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &plain, NULL),
            GB_OK);
        assert_int_equal(baseline_new(plain.fixture, fixture_contract(plain.fixture), &plain, &baseline, NULL), GB_OK);
        assert_int_equal(baseline_bounds(&baseline, &points, false, NULL), GB_OK);
        struct gb_arguments a = baseline_arguments(&baseline, 0);
        assert_int_equal(trace_new(gb_contract_of(&a, GB_LAYER, GB_ORDER_FMA32), &a, &trace, NULL), GB_OK);
        assert_int_equal(gb_outputs_new(&shape, 1, GB_FP32, false, false, &subject, NULL), GB_OK);
        for (size_t n = stride > 1 ? first[c] : 0; n < sizeof names / sizeof *names; n += stride) {
            struct explanation *explanation;
            assert_int_equal(fault_run(find(names[n]), &trace, NULL, subject->layer[0].output, NULL), GB_OK);
            assert_int_equal(explain(&baseline, GB_LAYER, subject, &explanation, NULL), GB_OK);
            assert_non_null(explanation);
            kept_explanation(explanation);
            const char *name = explanation->best.name;
            if (strcmp(name, names[n]))
                fail_msg("%d, %s: %s", (int)c, names[n], explanation->text);
            assert_true(explanation->best.explains > 0.999);
            explanation_free(explanation);
        }
        gb_outputs_free(subject);
        trace_free(&trace);
        baseline_free(&baseline);
        baseline_free(&plain);
        gb_fixture_free(fixture);
        problem_free(&problem);
    }
}

static void explanations_are_those_kept(void **state)
{
    (void)state;
    if (stride > 1)
        expect_kept_explanations("test_explain_activations");
}

int main(int argc, char **argv)
{
    if (sweeps_are_whole(argc, argv))
        stride = 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_of_quantised_layers_are_named),
        cmocka_unit_test(explanations_are_those_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
