/* SPDX-License-Identifier: Apache-2.0 */
/* rms and scale of whole layers with quantised activations: a admissible difference of a code passes, a wrong scale
 * does not. */
#include "harness/judge/judge.h"
#include "harness/report/to_json.h"

#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/layer_as_fixture.h"

static const struct gb_shape shape = {8, 256, 128, 6, 2};

struct scene {
    struct problem problem;
    struct gb_fixture *fixture;
    struct baseline plain, baseline;
    struct gb_outputs *subject;
    struct gb_kernel kernel;
    struct case_result result;
    json_t *checks; /* of the result */
};

static void scene_new(struct scene *s, enum gb_format format, enum gb_format activations, const char *recipe)
{
    memset(s, 0, sizeof *s);
    problem_new(&s->problem, shape, format, DATA_GAUSSIAN, 47);
    s->fixture = problem_fixture(&s->problem);
    assert_int_equal(gb_fixture_quantise_activations(s->fixture, activations, recipe, NULL), GB_OK);
    if (s->fixture->layer[0].activation_scales) {
        s->fixture->layer[0].activation_scales[0] = 4.5f / 2688;
        s->fixture->layer[0].activation_scales[1] = 3.7f / 2688;
    }
    assert_int_equal(
        baseline_new(s->fixture, gb_contract_find(s->fixture->weights, GB_BF16, GB_ORDER_FMA32), NULL, &s->plain, NULL),
        GB_OK);
    assert_int_equal(baseline_new(s->plain.fixture, fixture_contract(s->plain.fixture), &s->plain, &s->baseline, NULL),
                     GB_OK);
    assert_int_equal(gb_outputs_new(&shape, 1, GB_FP32, false, false, &s->subject, NULL), GB_OK);
    s->kernel = (struct gb_kernel){.name = "subject",
                                   .operation = GB_LAYER,
                                   .weights = format,
                                   .activations = activations,
                                   .output = GB_FP32,
                                   .accumulator_bits = 24};
    memcpy(s->subject->layer[0].output, s->baseline.reference->layer[0].output,
           sizeof(float) * shape.tokens * shape.hidden);
}

static void scene_free(struct scene *s)
{
    case_result_free(&s->result);
    json_decref(s->checks);
    baseline_free(&s->baseline);
    baseline_free(&s->plain);
    gb_outputs_free(s->subject);
    gb_fixture_free(s->fixture);
    problem_free(&s->problem);
}

static void look(struct scene *s, const char *preset)
{
    struct policy gate;
    struct gb_error error = {""};
    assert_int_equal(policy_read(preset, &gate, &error), GB_OK);
    case_result_free(&s->result);
    json_decref(s->checks);
    if (judge(&s->baseline, &s->kernel, s->subject, NULL, &gate, &s->result, &error) != GB_OK)
        fail_msg("%s", error.message);
    s->checks = checks_to_json(&s->result);
}

static const json_t *check(const struct scene *s, const char *name)
{
    return json_object_get(s->checks, name);
}

/* Where the largest sum of a family is. */
static const char *place(const struct scene *s, const char *of, const char *family)
{
    const json_t *families = json_object_get(check(s, of), "families"), *one;
    size_t i;
    json_array_foreach(families, i, one) if (!strcmp(json_string_value(json_object_get(one, "name")),
                                                     family)) return json_string_value(json_object_get(one, "at"));
    return "";
}

static const struct {
    enum gb_format format, activations;
    const char *recipe;
} contracts[] = {{GB_NVFP4, GB_NVFP4, "nvfp4.trtllm/1"},
                 {GB_MXFP8, GB_MXFP8, "mxfp8.rceil/1"},
                 {GB_MXFP4, GB_MXFP8, "mxfp8.floor/1"},
                 {GB_FP8_BLOCK, GB_FP8_BLOCK, "fp8g128.vllm/1"}};

static void a_wrong_scale_is_seen(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof contracts / sizeof *contracts; c++) {
        struct scene s;
        scene_new(&s, contracts[c].format, contracts[c].activations, contracts[c].recipe);
        look(&s, "default");
        assert_int_equal(s.result.verdict, VERDICT_PASS);
        assert_true(json_is_true(json_object_get(check(&s, "scale"), "binding")));
        assert_int_equal(json_integer_value(json_object_get(check(&s, "scale"), "tokens_left_out")), 0);
        float *row = (float *)s.subject->layer[0].output + 5 * shape.hidden;
        for (uint32_t i = 0; i < shape.hidden; i++)
            row[i] *= 1.00002f;
        look(&s, "default");
        assert_int_equal(s.result.verdict, VERDICT_FAIL);
        assert_string_equal(json_string_value(json_object_get(check(&s, "scale"), "result")), "FAIL");
        assert_string_equal(place(&s, "scale", "scale of a token"), "token 5");
        scene_free(&s);
    }
}

/* Another value of the interval of a code that is open, in the layer of everything else: far more than rounding makes,
 * and valid. The same for a code that is not open is seen. */
static void flips_are_told_from_errors(void **state)
{
    size_t open = 0;
    (void)state;
    for (size_t c = 0; c < sizeof contracts / sizeof *contracts; c++) {
        struct scene s;
        scene_new(&s, contracts[c].format, contracts[c].activations, contracts[c].recipe);
        look(&s, "default");
        const struct gb_bounds *b = &s.baseline.bounds[0].of;
        float *output = s.subject->layer[0].output;
        size_t count = (size_t)shape.tokens * shape.top_k * shape.intermediate, shut = 0;
        double row[128];
        while (b->flips[shut] > 0 || b->requantised[shut] == 0)
            shut++;
        for (size_t i = 0; i < count; i++) {
            if (b->flips[i] == 0 && i != shut)
                continue;
            double flip = b->flips[i] > 0 ? b->flips[i] : 0.01 * b->requantised[i];
            size_t pair = i / shape.intermediate, token = pair / shape.top_k;
            float kept[256];
            memcpy(kept, output + token * shape.hidden, sizeof kept);
            for (uint32_t o = 0; o < shape.hidden; o++) {
                gb_weights_row(&s.fixture->layer[0].down, (uint32_t)s.problem.ids[pair], o, row);
                output[token * shape.hidden + o] = (float)((double)kept[o] + (double)s.problem.routing_weights[pair] *
                                                                                 row[i % shape.intermediate] * flip);
            }
            look(&s, "default");
            if (s.result.verdict != (i == shut ? VERDICT_FAIL : VERDICT_PASS))
                fail_msg("%s, code %zu: %s", contracts[c].recipe, i, s.result.reason);
            memcpy(output + token * shape.hidden, kept, sizeof kept);
            open += i != shut;
            if (open > 40 * (c + 1))
                break;
        }
        scene_free(&s);
    }
    assert_true(open > 10);
}

/* Sums that a kernel's roundings leave nothing to say of are NOT_RUN, with the reason; the bound binds in their place.
 */
static void what_is_not_judged_is_said(void **state)
{
    static const char *const checks[] = {"rms", "scale"};
    struct scene s;
    (void)state;
    scene_new(&s, GB_NVFP4, GB_NVFP4, "nvfp4.trtllm/1");
    s.kernel.roundings.slot = GB_BF16;
    look(&s, "default");
    assert_int_equal(s.result.verdict, VERDICT_PASS);
    for (int l = 0; l < 2; l++) {
        assert_string_equal(json_string_value(json_object_get(check(&s, checks[l]), "result")), "NOT_RUN");
        assert_non_null(strstr(json_string_value(json_object_get(check(&s, checks[l]), "reason")), "are correlated"));
    }
    scene_free(&s);
    scene_new(&s, GB_NVFP4, GB_NVFP4, "nvfp4.flashinfer-4over6-mae-448/1");
    look(&s, "default");
    assert_int_equal(s.result.verdict, VERDICT_VACUOUS);
    assert_string_equal(json_string_value(json_object_get(check(&s, "scale"), "reason")),
                        "too many codes of the intermediate are ambiguous");
    scene_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_scale_is_seen),
        cmocka_unit_test(flips_are_told_from_errors),
        cmocka_unit_test(what_is_not_judged_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
