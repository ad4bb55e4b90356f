/* SPDX-License-Identifier: Apache-2.0 */
/* Stage by stage: what a subject hands out is judged by itself. */
#include "harness/judge/judge.h"
#include "harness/report/to_json.h"

#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/fma32.h"
#include "tests/support/layer_as_fixture.h"

/* The reference as a subject without an order, which hands out its intermediate. */
struct scene {
    struct problem problem;
    struct gb_fixture *fixture;
    struct baseline baseline;
    struct gb_outputs *subject;
    struct gb_kernel kernel;
    struct case_result result;
    json_t *checks; /* of the result */
};

static const struct gb_shape shape = {12, 256, 128, 6, 2};

static void scene_new(struct scene *s, uint32_t accumulator_bits)
{
    memset(s, 0, sizeof *s);
    problem_new(&s->problem, shape, GB_NVFP4, DATA_GAUSSIAN, 31);
    s->fixture = problem_fixture(&s->problem);
    assert_int_equal(baseline_new(s->fixture, gb_contract_find(s->fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL,
                                  &s->baseline, NULL),
                     GB_OK);
    assert_int_equal(gb_outputs_new(&shape, 1, GB_FP32, true, false, &s->subject, NULL), GB_OK);
    s->kernel = (struct gb_kernel){.name = "subject",
                                   .operation = GB_LAYER,
                                   .weights = GB_NVFP4,
                                   .activations = GB_BF16,
                                   .output = GB_FP32,
                                   .accumulator_bits = accumulator_bits};
    struct gb_layer_outputs *to = &s->subject->layer[0], *from = &s->baseline.reference->layer[0];
    memcpy(to->output, from->output, sizeof(float) * shape.tokens * shape.hidden);
    memcpy(to->intermediate, from->intermediate, sizeof(gb_bf16) * shape.tokens * shape.top_k * shape.intermediate);
}

static void scene_free(struct scene *s)
{
    case_result_free(&s->result);
    json_decref(s->checks);
    baseline_free(&s->baseline);
    gb_outputs_free(s->subject);
    gb_fixture_free(s->fixture);
    problem_free(&s->problem);
}

/* The default gate's result. */
static void look(struct scene *s)
{
    struct policy gate;
    struct gb_error error = {""};
    policy_preset(0, &gate);
    case_result_free(&s->result);
    json_decref(s->checks);
    if (judge(&s->baseline, &s->kernel, s->subject, NULL, &gate, &s->result, &error) != GB_OK)
        fail_msg("%s", error.message);
    s->checks = checks_to_json(&s->result);
}

static json_int_t codes(const struct scene *s, const char *what)
{
    return json_integer_value(json_object_get(json_object_get(s->checks, "codes"), what));
}

/* Down, by the reference, from the subject's own codes. */
static void complete(struct scene *s)
{
    struct gb_arguments a = gb_layer_arguments(s->fixture, 0, shape.tokens);
    a.intermediate = s->subject->layer[0].intermediate;
    a.output = s->subject->layer[0].output;
    assert_int_equal(fma32_down(&a, NULL), GB_OK);
}

static void the_reference_has_its_own_codes(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, 24);
    look(&s);
    assert_int_equal(s.result.verdict, VERDICT_PASS);
    assert_int_equal(codes(&s, "codes"), 12 * 2 * 128);
    assert_int_equal(codes(&s, "same"), 12 * 2 * 128);
    assert_true(codes(&s, "allowed_differences") < 12 * 2 * 128 / 10);
    scene_free(&s);
}

/* One code beside the right one, where nothing reaches over the tie between them: no other check sees it. */
static void an_inadmissible_code_is_named(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, 24);
    s.subject->layer[0].intermediate[(7 * 2 + 1) * 128 + 93].bits ^= 1;
    complete(&s);
    look(&s);
    assert_int_equal(s.result.verdict, VERDICT_FAIL);
    assert_int_equal(codes(&s, "inadmissible"), 1);
    assert_non_null(strstr(s.result.reason, "first at token 7, slot 1, column 93: 0x"));
    assert_non_null(strstr(s.result.reason, "is possible before rounding"));
    scene_free(&s);
}

/* With accumulators of 20 bits many intervals reach over a tie. One such flip is legal, all of them are too many. */
static void too_many_flips_are_seen(void **state)
{
    struct scene s;
    json_int_t legal = 0;
    (void)state;
    scene_new(&s, 20);
    look(&s);
    assert_int_equal(s.result.verdict, VERDICT_PASS);
    gb_bf16 *h = s.subject->layer[0].intermediate;
    for (size_t i = 0; i < (size_t)shape.tokens * shape.top_k * shape.intermediate; i++) {
        const struct layer_bounds *b = &s.baseline.bounds[0];
        double error = (double)gb_bf16_decode(h[i]) - b->of.intermediate_truth[i];
        gb_bf16 other = {(uint16_t)(h[i].bits + ((error < 0) == (h[i].bits >> 15 == 0) ? 1 : -1))};
        if (fabs(0.5 * (double)(gb_bf16_decode(h[i]) + gb_bf16_decode(other)) - b->of.intermediate_truth[i]) <
            0.9 * b->of.unrounded_sigma[i]) {
            h[i] = other;
            if (!legal++) {
                look(&s);
                assert_int_equal(s.result.verdict, VERDICT_PASS);
                assert_int_equal(codes(&s, "admissible_differences"), 1);
            }
        }
    }
    complete(&s);
    look(&s);
    assert_int_equal(codes(&s, "inadmissible"), 0);
    assert_int_equal(codes(&s, "admissible_differences"), legal);
    assert_true(legal > codes(&s, "allowed_differences"));
    assert_int_equal(s.result.verdict, VERDICT_FAIL);
    assert_non_null(strstr(s.result.reason, "each admissible, but rounding explains"));
    scene_free(&s);
}

static double ratio(const struct scene *s, const char *check, const char *part)
{
    const json_t *of = json_object_get(s->checks, check);
    return json_number_value(json_object_get(part ? json_object_get(of, part) : of, "limit_ratio"));
}

/* An error that hides behind the rounding of the intermediate is seen where the intermediate is handed out, and named
 * as down's. */
static void expect_seen_by_down(struct scene *s, const char *says)
{
    gb_bf16 *kept = s->subject->layer[0].intermediate;
    s->subject->layer[0].intermediate = NULL;
    look(s);
    assert_int_equal(s->result.verdict, VERDICT_PASS);
    assert_null(json_object_get(s->checks, "down"));
    s->subject->layer[0].intermediate = kept;
    look(s);
    assert_int_equal(s->result.verdict, VERDICT_FAIL);
    if (!strstr(s->result.reason, says))
        fail_msg("%s", s->result.reason);
}

static void down_is_judged_on_its_own_input(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, 24);
    float *output = s.subject->layer[0].output;
    look(&s);
    assert_int_equal(s.result.verdict, VERDICT_PASS);
    assert_true(ratio(&s, "down", "bound") > 0 && ratio(&s, "down", "bound") < ratio(&s, "bound", NULL) / 10);
    assert_true(ratio(&s, "down", "rms") < ratio(&s, "rms", NULL) / 10);
    float right = output[5 * 256 + 77];
    output[5 * 256 + 77] += (float)(0.15 * s.baseline.bounds[0].of.output_sigma[5 * 256 + 77]);
    expect_seen_by_down(&s, "down of layer 0: 1 of 3072 elements exceed the error bound");
    output[5 * 256 + 77] = right;
    for (int i = 0; i < 256; i++)
        output[9 * 256 + i] *= 1.00003f;
    expect_seen_by_down(&s, "down of layer 0: ");
    scene_free(&s);
}

/* A kernel that rounds in down is held to the bound alone. */
static void sums_of_rounded_outputs_are_not_judged(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, 24);
    look(&s);
    assert_null(json_object_get(json_object_get(s.checks, "down"), "aggregate_tests_not_run"));
    s.kernel.roundings.slot = GB_BF16;
    look(&s);
    assert_int_equal(s.result.verdict, VERDICT_PASS);
    assert_non_null(json_object_get(json_object_get(s.checks, "down"), "aggregate_tests_not_run"));
    assert_null(json_object_get(json_object_get(s.checks, "down"), "scale"));
    scene_free(&s);
}

/* The same of a kernel that is down alone: its input is the reference's intermediate. */
static void down_alone_has_the_references_input(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, 24);
    s.kernel.operation = GB_DOWN;
    gb_bf16 *kept = s.subject->layer[0].intermediate;
    s.subject->layer[0].intermediate = NULL;
    look(&s);
    assert_int_equal(s.result.verdict, VERDICT_PASS);
    float *output = s.subject->layer[0].output;
    output[77] += (float)(2.0 * s.baseline.bounds[0].of.output_sigma[77]);
    look(&s);
    assert_int_equal(s.result.verdict, VERDICT_FAIL);
    assert_non_null(strstr(s.result.reason, "down of layer 0: 1 of 3072"));
    s.subject->layer[0].intermediate = kept;
    scene_free(&s);
}

/* With an order the reference's down, on the subject's codes, says which stage is at fault. */
static void bits_say_which_stage_is_wrong(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, 24);
    s.kernel.order = "fma32/1";
    s.subject->layer[0].intermediate[3].bits ^= 1;
    complete(&s);
    look(&s);
    assert_int_equal(s.result.verdict, VERDICT_FAIL);
    assert_non_null(strstr(s.result.reason,
                           "; from this intermediate, the down projection of layer 0 is the reference's in every bit"));
    ((uint32_t *)s.subject->layer[0].output)[700] ^= 1;
    look(&s);
    assert_non_null(strstr(s.result.reason, "; from this intermediate, the down projection of layer 0 is wrong too"));
    scene_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(down_is_judged_on_its_own_input),
        cmocka_unit_test(down_alone_has_the_references_input),
        cmocka_unit_test(sums_of_rounded_outputs_are_not_judged),
        cmocka_unit_test(bits_say_which_stage_is_wrong),
        cmocka_unit_test(the_reference_has_its_own_codes),
        cmocka_unit_test(an_inadmissible_code_is_named),
        cmocka_unit_test(too_many_flips_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
