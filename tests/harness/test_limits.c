/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is within a limit passes, and what is beyond it by little does not: of values around truth (bound_compare), of
 * values of a quantised intermediate (check_activations.c) and of a router's experts and weights (check_route.c). Each
 * limit is computed here from docs/numerics.md#bounds, or by its oracle.
 */
#include "harness/judge/check_activations.h"
#include "harness/judge/checks.h"
#include "harness/judge/judge.h"
#include "harness/run/contract.h"

#include "quant/quant.h"
#include "tests/oracle/bounds.h"
#include "tests/support/check.h"
#include "tests/support/layer_as_fixture.h"
#include "tests/support/route_problem.h"

static const double probability = 1e-9;

/* lambda(N) */
static double deviations(double count)
{
    return sqrt(2 * log(2 * count / probability));
}

/* The least of the worst case and of likely errors decides; the bias of rounding toward zero and underflow count in
 * the latter. */
static void values_have_a_limit(void **state)
{
    enum { COUNT = 12, ELEMENTS = 5000 };
    static const double factors[] = {0.9999, 1.0001};
    (void)state;
    for (int with_bias = 0; with_bias < 2; with_bias++)
        for (int f = 0; f < 2; f++) {
            double truth[COUNT], worst[COUNT], sigma[COUNT], underflow[COUNT], bias[COUNT], subject[COUNT];
            struct bound_result r;
            for (int i = 0; i < COUNT; i++) {
                truth[i] = (i % 2 ? -1 : 1) * (1000.0 + i);
                sigma[i] = 0.25 + 0.01 * i;
                bias[i] = (i % 4 < 2 ? -1 : 1) * 0.5;
                underflow[i] = 0.125;
                double likely = deviations(ELEMENTS) * sigma[i] + (with_bias ? fabs(bias[i]) + underflow[i] : 0);
                worst[i] = i % 3 ? 2 * likely : 0.75 * likely;
                subject[i] = truth[i] + (i % 4 ? 1 : -1) * factors[f] * fmin(worst[i], likely);
            }
            const struct enclosure expected = {truth, worst, sigma, with_bias ? underflow : NULL,
                                               with_bias ? bias : NULL};
            bound_compare(subject, &expected, 3, COUNT / 3, ELEMENTS, &r);
            assert_int_equal(r.exceeding, f ? COUNT : 0);
            assert_int_equal(r.zero_exceeding, COUNT);
            assert_true(fabs(r.limit_ratio - factors[f]) < 1e-9 && fabs(r.worst_ratio - factors[f]) < 1e-9);
        }
}

/* Codes of an E4M3 block of 32 with E8M0 scales. */
struct codes {
    struct problem problem;
    struct gb_fixture *fixture;
    struct baseline plain, baseline;
    struct gb_outputs *outputs;
};

static void codes_new(struct codes *c)
{
    const struct gb_shape shape = {6, 128, 64, 4, 2};
    const struct gb_rounding_points points = {GB_BF16, GB_FP32, 15, {0}, NULL};
    problem_new(&c->problem, shape, GB_MXFP8, DATA_GAUSSIAN, 3);
    c->fixture = problem_fixture(&c->problem);
    assert_int_equal(gb_fixture_quantise_activations(c->fixture, GB_MXFP8, "mxfp8.rceil/1", NULL), GB_OK);
    assert_int_equal(
        baseline_new(c->fixture, gb_contract_find(GB_MXFP8, GB_BF16, GB_ORDER_FMA32), NULL, &c->plain, NULL), GB_OK);
    assert_int_equal(baseline_new(c->fixture, fixture_contract(c->fixture), &c->plain, &c->baseline, NULL), GB_OK);
    assert_int_equal(baseline_bounds(&c->baseline, &points, true, NULL), GB_OK);
    assert_int_equal(gb_outputs_new(&shape, 1, GB_FP32, false, false, &c->outputs, NULL), GB_OK);
    const struct gb_quantiser *rules = gb_fixture_activation_rules(c->fixture);
    for (int p = GB_INTERMEDIATE_CODES; p <= GB_INTERMEDIATE_SCALES; p++)
        assert_int_equal(gb_outputs_add_activations(c->outputs, rules, (enum gb_activation_part)p, NULL), GB_OK);
}

static void codes_free(struct codes *c)
{
    gb_outputs_free(c->outputs);
    baseline_free(&c->baseline);
    baseline_free(&c->plain);
    gb_fixture_free(c->fixture);
    problem_free(&c->problem);
}

static enum verdict verdict_of_codes(struct codes *c)
{
    struct case_result j = {0};
    struct layer_result of_layer = {0};
    struct check_result check = {0};
    assert_int_equal(check_activations(&c->baseline, 0, c->outputs, false, &of_layer, &check, &j, NULL), GB_OK);
    return j.verdict;
}

/* Every value that a code may have at the scale of truth's, up to the limit, is admissible, and the next one is not. */
static void values_of_codes_have_a_limit(void **state)
{
    struct codes c;
    (void)state;
    codes_new(&c);
    const struct gb_bounds *of = &c.baseline.bounds[0].of;
    const struct gb_shape *shape = &c.fixture->shape;
    uint8_t *codes = c.outputs->layer[0].activations[GB_INTERMEDIATE_CODES];
    uint8_t *scales = c.outputs->layer[0].activations[GB_INTERMEDIATE_SCALES];
    size_t count = (size_t)shape->tokens * shape->top_k * shape->intermediate, at_limit = 0, beyond = 0;
    for (size_t i = 0; i < count; i++) { /* the reference's scales, and truth's codes at them */
        const uint8_t *right = c.baseline.reference->layer[0].activations[GB_INTERMEDIATE_SCALES];
        scales[i / 32] = right[i / 32];
        codes[i] = gb_e4m3_encode((float)ldexp(of->requantised[i], 127 - scales[i / 32])).bits;
    }
    assert_int_equal(verdict_of_codes(&c), VERDICT_PASS);
    for (size_t i = 0; i < count; i++) {
        uint8_t truth = codes[i], magnitude = truth & 0x7F;
        if (magnitude < 3 || magnitude > 0x7A || of->flips[i] > 0x1p100)
            continue;
        for (int step = -2; step <= 2; step++) {
            codes[i] = (uint8_t)(truth + step);
            double off =
                fabs(ldexp((double)gb_e4m3_decode((gb_e4m3){codes[i]}), scales[i / 32] - 127) - of->requantised[i]);
            bool within = off <= of->flips[i];
            at_limit += within && off > 0.98 * of->flips[i] && step != 0;
            beyond += !within && off < 3.5 * of->flips[i];
            if (i % 7 == 0 || of->flips[i] > 0)
                assert_int_equal(verdict_of_codes(&c), within ? VERDICT_PASS : VERDICT_FAIL);
        }
        codes[i] = truth;
    }
    print_message("%zu values at their limit, %zu less than 3.5 times beyond it\n", at_limit, beyond);
    assert_true(at_limit > 10 && beyond > 10);
    codes_free(&c);
}

/* A fixture with the router of `p`, by the default recipe. */
static struct gb_fixture *router_fixture(const struct route_problem *p)
{
    const struct gb_shape *shape = &p->arguments.shape;
    struct gb_fixture *f;
    assert_int_equal(gb_fixture_new(shape, 1, GB_BF16, true, false, false, &f, NULL), GB_OK);
    f->norm_topk_prob = true;
    snprintf(f->contract, sizeof f->contract, "bf16.bf16.fma32/1");
    memcpy(f->layer[0].x, p->x, sizeof *p->x * shape->tokens * shape->hidden);
    memcpy((void *)(uintptr_t)f->layer[0].router.codes, p->router, sizeof *p->router * shape->experts * shape->hidden);
    return f;
}

/* The largest error over its limit is the oracle's; so is every set of experts that is impossible. */
static void routing_has_a_limit(void **state)
{
    enum { TOKENS = 40, EXPERTS = 16, TOP_K = 3 };
    const struct gb_shape shape = {TOKENS, 96, 32, EXPERTS, TOP_K};
    static long double low[TOKENS * EXPERTS], high[TOKENS * EXPERTS], relative[TOKENS];
    static double x[TOKENS * 96], truth[TOKENS * TOP_K];
    struct gb_kernel kernel = {.name = "subject", .operation = GB_ROUTE, .weights = GB_BF16, .activations = GB_BF16};
    struct route_problem p;
    struct gb_outputs *outputs;
    struct policy policy;
    (void)state;
    kernel.accumulator_bits = 10;
    route_problem_new(&p, shape, ROUTE_GAUSSIAN, 5);
    struct gb_fixture *f = router_fixture(&p);
    struct baselines baselines = {.fixture = f};
    struct baseline *b;
    assert_int_equal(baselines_of_kernel(&baselines, &kernel, TOKENS, &b, NULL), GB_OK);
    assert_int_equal(gb_outputs_new_routing(&shape, 1, &outputs, NULL), GB_OK);
    assert_int_equal(policy_preset(0, &policy), true);
    struct gb_arguments a = gb_route_arguments(f, 0, TOKENS);
    for (size_t i = 0; i < TOKENS * 96; i++)
        x[i] = (double)gb_bf16_decode(p.x[i]);
    oracle_bound_router(&a, x, 10, (long double)deviations(TOKENS * EXPERTS), low, high, relative);
    int32_t *ids = outputs->layer[0].ids;
    a.routed_ids = ids;
    a.routed_weights = outputs->layer[0].routing_weights;
    assert_int_equal(gb_reference_router(gb_contract_router(b->contract), &a, NULL), GB_OK);
    int32_t right_ids[TOKENS * TOP_K];
    float right[TOKENS * TOP_K];
    memcpy(right_ids, ids, sizeof right_ids);
    memcpy(right, a.routed_weights, sizeof right);
    unsigned wrong = 0, swapped = 0;
    for (unsigned t = 0; t < TOKENS; t++) { /* the last expert in turn another */
        int32_t *own = ids + t * TOP_K, other = (int32_t)(t % EXPERTS);
        if (own[0] != other && own[1] != other && own[2] != other) {
            long double lowest =
                fminl(fminl(high[t * EXPERTS + own[0]], high[t * EXPERTS + own[1]]), high[t * EXPERTS + other]);
            bool impossible = false;
            for (int e = 0; e < EXPERTS; e++)
                impossible |= e != own[0] && e != own[1] && e != other && low[t * EXPERTS + e] > lowest;
            own[2] = other;
            wrong += impossible;
            swapped += !impossible;
        }
    }
    assert_int_equal(gb_truth_routing_weights(&a, x, ids, truth, NULL), GB_OK);
    for (unsigned i = 0; i < TOKENS * TOP_K; i++)
        a.routed_weights[i] = (float)(truth[i] * (1 + (i == 50 ? 0.9 : 0.7) * (double)relative[i / TOP_K]));
    struct case_result j;
    assert_int_equal(judge(b, &kernel, outputs, NULL, &policy, &j, NULL), GB_OK);
    unsigned differing = 0;
    for (unsigned i = 0; i < TOKENS * TOP_K; i++)
        differing += (ids[i] != right_ids[i]) + (memcmp(&a.routed_weights[i], &right[i], sizeof *right) != 0);
    assert_int_equal(j.bits.compared, 2 * TOKENS * TOP_K);
    assert_int_equal(j.bits.mismatching, differing);
    assert_int_equal(j.layer[0].tokens.wrong, wrong);
    assert_int_equal(j.layer[0].tokens.swapped, swapped);
    assert_true(wrong > 5 && swapped > 2);
    long double limit = relative[50 / TOP_K] * fabsl((long double)truth[50]) + 0x1p-120L;
    long double ratio = fabsl((long double)a.routed_weights[50] - (long double)truth[50]) / limit;
    assert_int_equal(j.bound.exceeding, 0);
    if (!(fabsl((long double)j.bound.limit_ratio - ratio) < 1e-9L))
        fail_msg("the largest error is %.12g of its limit, by the text %.12Lg", j.bound.limit_ratio, ratio);
    case_result_free(&j);
    gb_outputs_free(outputs);
    baselines_free(&baselines);
    gb_fixture_free(f);
    route_problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_a_limit),
        cmocka_unit_test(values_of_codes_have_a_limit),
        cmocka_unit_test(routing_has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
