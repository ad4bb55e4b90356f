/* SPDX-License-Identifier: Apache-2.0 */
/* Every router recipe, and recipes at random, against the oracle; what published rules do where they differ. */
#include "tests/support/check.h"

#include <float.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/oracle/oracle.h"
#include "tests/support/route_problem.h"
#include "tests/support/kept_explanation.h"

static void route(struct route_problem *p, const struct gb_router *router)
{
    struct gb_error error = {""};
    p->arguments.router = router;
    if (fma32_router(&p->arguments, &error) != GB_OK)
        fail_msg("%s", error.message);
}

static void check(struct route_problem *p, const struct gb_router *router, const char *name, enum route_kind kind)
{
    const struct gb_shape *s = &p->arguments.shape;
    route(p, router);
    oracle_router(&p->arguments, p->expected_ids, p->expected);
    for (size_t i = 0; i < (size_t)s->tokens * s->top_k; i++) {
        if (p->ids[i] != p->expected_ids[i])
            fail_msg("%s, data %d, top %u of %u, token %zu, slot %zu: expected expert %d, got %d", name, kind, s->top_k,
                     s->experts, i / s->top_k, i % s->top_k, p->expected_ids[i], p->ids[i]);
        assert_same_float(p->expected[i], p->weights[i], "%s, data %d, top %u of %u, token %zu, slot %zu", name, kind,
                          s->top_k, s->experts, i / s->top_k, i % s->top_k);
    }
}

/* tokens, hidden, intermediate (not used), experts, top_k */
static const struct gb_shape shapes[] = {
    {5, 10, 1, 1, 1},  {4, 24, 1, 16, 3}, {3, 12, 1, 24, 24}, {6, 33, 1, 33, 5},  {9, 16, 1, 8, 1},
    {3, 16, 1, 64, 8}, {2, 9, 1, 384, 8}, {2, 9, 1, 512, 10}, {3, 10, 1, 256, 8},
};

static void every_recipe(void **state)
{
    size_t count;
    const struct gb_router_recipe *recipes = gb_router_recipes(&count);
    unsigned checked = 0;
    (void)state;
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < ROUTE_KINDS; kind++) {
            struct route_problem p;
            route_problem_new(&p, shapes[i], (enum route_kind)kind, 100 * i + (unsigned)kind);
            for (size_t r = 0; r < count; r++)
                if ((i + (unsigned)kind + r) % 2 == 0 && shapes[i].experts % recipes[r].router.groups == 0) {
                    check(&p, &recipes[r].router, recipes[r].name, (enum route_kind)kind);
                    checked++;
                }
            route_problem_free(&p);
        }
    assert_true(checked >= count * ROUTE_KINDS * 3);
}

/* Recipes that no system has: all values of all fields meet. */
static void random_recipes(void **state)
{
    static const float masks[] = {0.0f, -INFINITY, FLT_MIN, NAN, 0.25f}, epsilons[] = {0.0f, 1e-20f, 0.125f};
    uint64_t seed = 7;
    (void)state;
    for (int n = 0; n < 1000; n++) {
        const uint32_t experts = 24, groups = (uint32_t[]){1, 2, 4, 6, 8, 12, 24}[random_below(&seed, 7)];
        struct gb_shape shape = {2, 6, 1, experts, 1 + random_below(&seed, experts)};
        struct gb_router router = {
            .size = sizeof router,
            .logits = random_below(&seed, 2) ? GB_FP32 : GB_BF16,
            .bias = (enum gb_router_bias)(1 + random_below(&seed, GB_ROUTER_BIAS_LOSSY)),
            .score = (enum gb_router_score)(1 + random_below(&seed, GB_ROUTER_SCORE_SIGMOID)),
            .nonfinite = (enum gb_router_nonfinite)(1 + random_below(&seed, GB_ROUTER_NONFINITE_BIASED)),
            .replacement = masks[random_below(&seed, 5)],
            .groups = groups,
            .kept_groups = 1 + random_below(&seed, groups),
            .group_terms = random_below(&seed, 5),
            .masked = masks[random_below(&seed, 5)],
            .weight = (enum gb_router_weight)(1 + random_below(&seed, GB_ROUTER_WEIGHT_SIGMOID)),
            .renormalise = (enum gb_router_renormalise)(1 + random_below(&seed, GB_ROUTER_RENORMALISE_SCALED_DIVIDE)),
            .renormalise_from = 1 + random_below(&seed, 3),
            .zero_sum_is_one = random_below(&seed, 2),
            .epsilon = epsilons[random_below(&seed, 3)],
            .scale = (float[]){1.0f, 2.5f, 2.827f}[random_below(&seed, 3)],
            .weights = random_below(&seed, 2) ? GB_FP32 : GB_BF16,
            .side = GB_ROUTER_ON_OUTPUT,
        };
        char name[32];
        struct route_problem p;
        snprintf(name, sizeof name, "random recipe %d", n);
        route_problem_new(&p, shape, (enum route_kind)(n % ROUTE_KINDS), (uint64_t)n);
        check(&p, &router, name, (enum route_kind)(n % ROUTE_KINDS));
        route_problem_free(&p);
    }
}

/* One token with logits and biases as given: x = (1, 0), row e = (logit, 0). */
static void one_token(struct route_problem *p, uint32_t experts, uint32_t top_k, float logit, float bias)
{
    route_problem_new(p, (struct gb_shape){1, 2, 1, experts, top_k}, ROUTE_GAUSSIAN, 1);
    p->x[0] = gb_bf16_encode(1.0f);
    p->x[1] = gb_bf16_encode(0.0f);
    for (uint32_t e = 0; e < experts; e++) {
        p->router[2 * e] = gb_bf16_encode(logit);
        p->router[2 * e + 1] = gb_bf16_encode(0.0f);
        p->bias[e] = bias;
    }
}

static void route_by(struct route_problem *p, const char *name)
{
    const struct gb_router_recipe *recipe = gb_router_recipe_find(name);
    assert_non_null(recipe);
    check(p, &recipe->router, name, ROUTE_GAUSSIAN);
}

static void assert_chosen(const struct route_problem *p, const int32_t *expected)
{
    for (uint32_t j = 0; j < p->arguments.shape.top_k; j++)
        if (p->ids[j] != expected[j])
            fail_msg("slot %u: expected expert %d, got %d", j, expected[j], p->ids[j]);
}

/* 32 experts, groups of 4; groups 4 .. 7 are kept, but only experts 16 and 20 have a choice above zero. */
static void dropped_groups_at_zero_win(void **state)
{
    struct route_problem p;
    (void)state;
    one_token(&p, 32, 4, 0.0f, -1.0f); /* choice -0.5 */
    for (uint32_t e = 16; e < 32; e += 4)
        p.bias[e] = e == 16 ? 0.5f : e == 20 ? 0.25f : -0.6f; /* 1, 0.75, -0.1, -0.1 */
    route_by(&p, "vllm.grouped-topk/1");
    assert_chosen(&p, (const int32_t[]){16, 20, 24, 28});
    route_by(&p, "flashinfer.deepseek-v3/1");
    assert_chosen(&p, (const int32_t[]){16, 20, 24, 28});
    route_by(&p, "transformers.deepseek-v3/1"); /* 0.0 is above -0.1: experts 0 and 1, of group 0, which was dropped */
    assert_chosen(&p, (const int32_t[]){16, 20, 0, 1});
    route_problem_free(&p);
}

/* One group of one expert with a NaN logit; all other choices are negative. */
static void nan_at_flt_min_wins(void **state)
{
    struct route_problem p;
    (void)state;
    one_token(&p, 8, 3, 0.0f, -1.0f);
    p.router[2 * 6].bits = 0x7FC0;
    for (uint32_t e = 0; e < 8; e++)
        p.bias[e] -= 0.125f * (float)e;
    route_by(&p, "vllm.grouped-topk/1");
    assert_chosen(&p, (const int32_t[]){0, 1, 2});
    route_by(&p, "moonshotai.kimi-k2/1");
    assert_chosen(&p, (const int32_t[]){0, 1, 2});
    struct gb_router kept_all = gb_router_recipe_find("vllm.grouped-topk-flt-min/1")->router;
    kept_all.kept_groups = 8;
    kept_all.group_terms = 1;
    check(&p, &kept_all, "flt-min", ROUTE_GAUSSIAN);
    assert_chosen(&p, (const int32_t[]){6, 0, 1});
    assert_true(isnan(p.weights[0]));
    route_problem_free(&p);
}

/* A bias of 1024 leaves 14 bits of the score. */
static void lossy_bias_loses(void **state)
{
    struct route_problem p;
    (void)state;
    one_token(&p, 8, 2, 1.0f, 1024.0f);
    p.router[2 * 3] = gb_bf16_encode(2.0f);
    struct gb_router lossy = gb_router_recipe_find("te.sigmoid/1")->router, exact = lossy;
    exact.bias = GB_ROUTER_BIAS_CHOICE;
    lossy.renormalise = exact.renormalise = GB_ROUTER_RENORMALISE_NONE;
    lossy.scale = exact.scale = 1.0f;
    check(&p, &exact, "exact", ROUTE_GAUSSIAN);
    assert_same_float(oracle_sigmoid(2.0f), p.weights[0], "expert %d", p.ids[0]);
    check(&p, &lossy, "lossy", ROUTE_GAUSSIAN);
    assert_same_float(oracle_add(oracle_add(oracle_sigmoid(2.0f), 1024.0f), -1024.0f), p.weights[0], "expert %d",
                      p.ids[0]);
    assert_true(float_bits(p.weights[0]) != float_bits(oracle_sigmoid(2.0f)));
    route_problem_free(&p);
}

/* Softmax, top-k, division rounds otherwise than top-k, softmax: equal in exact arithmetic, not in binary32. */
static void recipes_differ_in_bits(void **state)
{
    const char *const names[] = {"gaugeblock.renormalised/1", "transformers.qwen3-moe/1",
                                 "vllm.topk-softmax-renormalised/1"};
    struct route_problem p;
    float bits[3][32 * 8];
    (void)state;
    route_problem_new(&p, (struct gb_shape){32, 64, 1, 128, 8}, ROUTE_GAUSSIAN, 11);
    for (int i = 0; i < 3; i++) {
        route(&p, &gb_router_recipe_find(names[i])->router);
        memcpy(bits[i], p.weights, sizeof bits[i]);
    }
    assert_true(memcmp(bits[0], bits[1], sizeof bits[0]) && memcmp(bits[0], bits[2], sizeof bits[0]));
    for (size_t i = 0; i < 32 * 8; i++)
        assert_true(fabsf(bits[0][i] - bits[2][i]) <= 64 * FLT_EPSILON * bits[0][i]);
    route_problem_free(&p);
}

/* By the truth and the bounds, too, in the same words, which come before anything is read or written. */
static void refused_by_all(const struct gb_arguments *a)
{
    struct gb_error errors[4] = {{""}};
    double x[2 * 16] = {0}, values[3][2 * 16];
    int32_t ids[2 * 3] = {0};
    assert_int_equal(fma32_router(a, &errors[0]), GB_EINVAL);
    assert_int_equal(gb_truth_router(a, x, ids, values[0], &errors[1]), GB_EINVAL);
    assert_int_equal(gb_truth_routing_weights(a, x, ids, values[0], &errors[2]), GB_EINVAL);
    assert_int_equal(gb_bound_router(a, x, 24, 6.0, values[0], values[1], values[2], &errors[3]), GB_EINVAL);
    kept_message(errors[0].message, NULL);
    for (int i = 1; i < 4; i++)
        assert_string_equal(errors[i].message, errors[0].message);
}

/* What no recipe has, field by field: below the first value and behind the last. */
static void unknown_values(const struct gb_arguments *good)
{
    for (int field = 0; field < 8; field++)
        for (int behind = 0; behind < 2; behind++) {
            struct gb_router bad = *good->router;
            struct gb_arguments a = *good;
            a.router = &bad;
            if (field == 0)
                bad.logits = behind ? GB_NVFP4 : (enum gb_format)0;
            if (field == 1)
                bad.weights = behind ? GB_NVFP4 : (enum gb_format)0;
            if (field == 2)
                bad.bias = behind ? GB_ROUTER_BIAS_LOSSY + 1 : 0;
            if (field == 3)
                bad.score = behind ? GB_ROUTER_SCORE_SIGMOID + 1 : 0;
            if (field == 4)
                bad.nonfinite = behind ? GB_ROUTER_NONFINITE_BIASED + 1 : 0;
            if (field == 5)
                bad.weight = behind ? GB_ROUTER_WEIGHT_SIGMOID + 1 : 0;
            if (field == 6)
                bad.renormalise = behind ? GB_ROUTER_RENORMALISE_SCALED_DIVIDE + 1 : 0;
            if (field == 7)
                bad.side = behind ? GB_ROUTER_ON_INPUT + 1 : 0;
            refused_by_all(&a);
        }
}

static void bad_recipes_are_refused(void **state)
{
    const struct gb_router good = gb_router_recipe_find("transformers.deepseek-v3/1")->router;
    struct route_problem p;
    (void)state;
    route_problem_new(&p, (struct gb_shape){2, 16, 1, 16, 3}, ROUTE_GAUSSIAN, 12);
    route(&p, &good);
    for (int change = 0; change < 13; change++) {
        struct gb_router bad = good;
        struct gb_arguments a = p.arguments;
        struct gb_error error = {""};
        a.router = change == 0 ? NULL : &bad;
        bad.size -= change == 1;
        bad.groups = change == 2 ? 0 : change == 3 ? 3 : bad.groups;
        bad.kept_groups = change == 4 ? 0 : change == 5 ? 9 : bad.kept_groups;
        bad.score = change == 6 ? (enum gb_router_score)9 : bad.score;
        bad.logits = change == 7 ? GB_NVFP4 : bad.logits;
        a.router_bias = change == 8 ? NULL : a.router_bias;
        a.routed_ids = change == 9 ? NULL : a.routed_ids;
        a.x = change == 10 ? NULL : a.x;
        a.shape.top_k = change == 11 ? 17 : a.shape.top_k;
        a.size = change == 12 ? GB_ARGUMENTS_LEAST : a.size;
        if (change < 9)
            refused_by_all(&a);
        assert_int_equal(fma32_router(&a, &error), GB_EINVAL);
        kept_message(error.message, NULL);
        if (change == 3)
            assert_string_equal(error.message, "router: 4 of 3 groups of 16 experts; groups must divide the experts");
    }
    unknown_values(&p.arguments);
    route_problem_free(&p);
}

/* Names are unique, rows complete, and the defaults are where fixtures without a router expect them. */
static void the_table(void **state)
{
    size_t count;
    const struct gb_router_recipe *recipes = gb_router_recipes(&count);
    (void)state;
    assert_true(count >= 12);
    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(gb_router_recipe_find(recipes[i].name), &recipes[i]);
        assert_true(recipes[i].source[0] && recipes[i].summary[0] && strlen(recipes[i].name) < 64);
        assert_int_equal(recipes[i].router.size, sizeof(struct gb_router));
    }
    assert_null(gb_router_recipe_find("no such router"));
    assert_string_equal(gb_router_recipe_default(true)->name, "gaugeblock.renormalised/1");
    assert_string_equal(gb_router_recipe_default(false)->name, "gaugeblock.softmax/1");
}

/* A row with a model's own groups and factor: one name for one rule, and no other text is one. */
static void names_with_parameters(void **state)
{
    (void)state;
    static const char row[] = "transformers.deepseek-v3/2";
    const struct gb_router base = gb_router_recipe_find(row)->router;
    struct gb_router router = base;
    char name[GB_ROUTER_NAME];
    assert_true(gb_router_recipe_name(row, &router, name));
    assert_string_equal(name, row);
    router.groups = router.kept_groups = 1;
    router.scale = 2.446f;
    assert_true(gb_router_recipe_name(row, &router, name));
    assert_string_equal(name, "transformers.deepseek-v3/2;groups=1;kept=1;scale=2.446");
    const struct gb_router_recipe *found = gb_router_recipe_find(name);
    assert_non_null(found);
    assert_int_equal(found->router.groups, 1);
    assert_int_equal(found->router.kept_groups, 1);
    assert_int_equal(found->router.group_terms, base.group_terms);
    assert_true(found->router.scale == 2.446f && found->router.bias == base.bias);
    assert_string_equal(found->name, name);
    assert_ptr_equal(gb_router_recipe_find(name), found);
    router.scale = nextafterf(2.446f, 3.0f);
    assert_true(gb_router_recipe_name(row, &router, name));
    assert_true(gb_router_recipe_find(name)->router.scale == router.scale);
    router = base;
    router.group_terms = 3;
    assert_true(gb_router_recipe_name(row, &router, name));
    assert_int_equal(gb_router_recipe_find("transformers.deepseek-v3/2;terms=3")->router.group_terms, 3);
    found = gb_router_recipe_find("transformers.deepseek-v3/2;groups=16;kept=10");
    assert_int_equal(found->router.groups, 16);
    assert_int_equal(found->router.kept_groups, 10);
    router.kept_groups = 9; /* of 8 */
    assert_false(gb_router_recipe_name(row, &router, name));
    router = base;
    router.groups = router.kept_groups = router.group_terms = 1000000000;
    router.scale = 16.0000019f; /* no room */
    assert_false(gb_router_recipe_name(row, &router, name));
    assert_false(gb_router_recipe_name("no/1", &base, name));
    static const char *const wrong[] = {
        ";",
        ";groups=8",         /* what the row says */
        ";groups=01",        /* other numbers than the shortest */
        ";groups=+1;kept=1", /* a sign */
        ";groups= 1;kept=1", /* a blank */
        ";kept=1;groups=1",  /* another sequence */
        ";groups=1",         /* 4 of 1 groups */
        ";groups=0;kept=0",  /* none */
        ";groups=4294967297;kept=1",
        ";scale=1.0",
        ";scale=0",
        ";scale=-1",
        ";scale=inf",
        ";scale=nan",
        ";scale=1e60",
        ";scale=",
        ";scale=2 ",
        ";other=1",
        ";groups=1;kept=1;groups=1",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s%s", row, wrong[i]);
        if (gb_router_recipe_find(text))
            fail_msg("'%s' is no recipe's name", text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_recipe),
        cmocka_unit_test(names_with_parameters),
        cmocka_unit_test(random_recipes),
        cmocka_unit_test(dropped_groups_at_zero_win),
        cmocka_unit_test(nan_at_flt_min_wins),
        cmocka_unit_test(lossy_bias_loses),
        cmocka_unit_test(recipes_differ_in_bits),
        cmocka_unit_test(bad_recipes_are_refused),
        cmocka_unit_test(the_table),
        KEPT_AS("test_route_recipes"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
