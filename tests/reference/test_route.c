/* SPDX-License-Identifier: Apache-2.0 */
/* fma32_route against the oracle: gaussian logits, equal logits, huge ones, NaN and infinities. */
#include "tests/support/check.h"

#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/oracle/oracle.h"
#include "tests/support/problem.h"
#include "tests/support/kept_explanation.h"

struct router {
    struct gb_shape shape;
    struct gb_weights weights;
    gb_bf16 *x;
};

static void router_new(struct router *router, struct gb_shape shape, enum data data, uint64_t seed)
{
    uint64_t random = seed;

    router->shape = shape;
    router->x = malloc((size_t)shape.tokens * shape.hidden * sizeof(gb_bf16));
    assert_non_null(router->x);
    problem_weights(&router->weights, GB_BF16, 1, shape.experts, shape.hidden, 1, data, &random);
    problem_activations(router->x, (size_t)shape.tokens * shape.hidden, data, &random);
}

static void router_free(struct router *router)
{
    problem_weights_free(&router->weights);
    free(router->x);
}

static gb_bf16 *router_row(struct router *router, uint32_t expert)
{
    return (gb_bf16 *)router->weights.codes + (size_t)expert * router->shape.hidden;
}

static void check_one(const struct router *router, bool renormalise)
{
    const struct gb_shape *shape = &router->shape;
    size_t pairs = (size_t)shape->tokens * shape->top_k;
    int32_t *expected_ids = malloc(pairs * sizeof(int32_t)), *ids = malloc(pairs * sizeof(int32_t));
    float *expected = malloc(pairs * sizeof(float)), *weights = malloc(pairs * sizeof(float));

    assert_true(expected_ids && ids && expected && weights);
    memset(ids, 0xA5, pairs * sizeof(int32_t));
    memset(weights, 0xA5, pairs * sizeof(float));
    oracle_route(shape, router->x, &router->weights, renormalise, expected_ids, expected);
    assert_int_equal(fma32_route(shape, router->x, &router->weights, renormalise, ids, weights, NULL), GB_OK);
    for (size_t i = 0; i < pairs; i++) {
        if (ids[i] != expected_ids[i])
            fail_msg("token %zu, slot %zu: expected expert %d, got %d", i / shape->top_k, i % shape->top_k,
                     expected_ids[i], ids[i]);
        assert_same_float(expected[i], weights[i], "token %zu, slot %zu", i / shape->top_k, i % shape->top_k);
    }
    free(expected_ids);
    free(ids);
    free(expected);
    free(weights);
}

static void check(const struct router *router)
{
    check_one(router, true);
    check_one(router, false);
}

/* tokens, hidden, intermediate (not used), experts, top_k */
static const struct gb_shape shapes[] = {
    {1, 8, 1, 1, 1}, {4, 48, 1, 8, 2}, {9, 384, 1, 16, 4}, {3, 265, 1, 33, 33}, {2, 64, 1, 128, 8}, {3, 13, 1, 6, 5},
};

static void every_shape(void **state)
{
    static const enum data kinds[] = {DATA_GAUSSIAN, DATA_CODES, DATA_WIDE, DATA_SUBNORMAL, DATA_NONFINITE};

    (void)state;
    for (unsigned i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            struct router router;
            router_new(&router, shapes[i], kinds[k], 10 * i + k);
            check(&router);
            router_free(&router);
        }
}

/* Experts 1, 4, 5 and 7 have the same row, then all have. */
static void equal_logits(void **state)
{
    struct router router;
    const size_t row = 48 * sizeof(gb_bf16);

    (void)state;
    router_new(&router, (struct gb_shape){20, 48, 1, 8, 3}, DATA_GAUSSIAN, 90);
    memcpy(router_row(&router, 4), router_row(&router, 1), row);
    memcpy(router_row(&router, 5), router_row(&router, 1), row);
    memcpy(router_row(&router, 7), router_row(&router, 1), row);
    check(&router);
    for (uint32_t e = 1; e < 8; e++)
        memcpy(router_row(&router, e), router_row(&router, 0), row);
    check(&router);
    int32_t ids[60];
    float weights[60];
    assert_int_equal(fma32_route(&router.shape, router.x, &router.weights, true, ids, weights, NULL), GB_OK);
    for (int i = 0; i < 60; i++)
        assert_int_equal(ids[i], i % 3);
    router_free(&router);
}

/* Logits 0, -0 and multiples of the first element: ties of zeros, differences that underflow e^x. */
static void chosen_logits(void **state)
{
    static const uint16_t logits[12] = {0x0000, 0x8000, 0x3F80, 0xBF80, 0xC2D0, 0x4000, /* 0, -0, 1, -1, -104, 2 */
                                        0xC2AF, 0x3F80, 0x8000, 0xC2CE, 0x0000, 0x4000};
    struct router router;

    (void)state;
    router_new(&router, (struct gb_shape){3, 8, 1, 12, 12}, DATA_GAUSSIAN, 91);
    memset((void *)router.weights.codes, 0, 12 * 8 * sizeof(gb_bf16));
    for (uint32_t e = 0; e < 12; e++)
        router_row(&router, e)[0].bits = logits[e];
    memset(router.x, 0, 3 * 8 * sizeof(gb_bf16));
    router.x[0].bits = 0x3F80;
    router.x[8].bits = 0xBF80;
    router.x[16].bits = 0x7F00; /* 2^127: infinite logits */
    check(&router);
    for (uint32_t top_k = 1; top_k < 12; top_k++) {
        router.shape.top_k = top_k;
        check(&router);
    }
    router_free(&router);
}

/* NaN is smaller than everything, -Inf included; among NaNs the lower id comes first. */
static void nan_comes_last(void **state)
{
    struct router router;
    int32_t ids[4];
    float weights[4];

    (void)state;
    router_new(&router, (struct gb_shape){1, 8, 1, 4, 4}, DATA_GAUSSIAN, 92);
    memset((void *)router.weights.codes, 0, 4 * 8 * sizeof(gb_bf16));
    memset(router.x, 0, 8 * sizeof(gb_bf16));
    router.x[0].bits = 0x3F80;
    router_row(&router, 0)[0].bits = 0x7FC0;
    router_row(&router, 1)[0].bits = 0xFF80;
    router_row(&router, 2)[0].bits = 0xFFC0;
    router_row(&router, 3)[0].bits = 0x3F80;
    check(&router);
    assert_int_equal(fma32_route(&router.shape, router.x, &router.weights, true, ids, weights, NULL), GB_OK);
    assert_true(ids[0] == 3 && ids[1] == 1 && ids[2] == 0 && ids[3] == 2);
    router_free(&router);
}

static void bad_routers_are_refused(void **state)
{
    struct router router;
    struct gb_weights good;
    int32_t ids[8];
    float weights[8];

    (void)state;
    router_new(&router, (struct gb_shape){2, 48, 1, 8, 3}, DATA_GAUSSIAN, 93);
    good = router.weights;
    for (unsigned change = 0; change < 5; change++) {
        struct gb_weights bad = good;
        struct gb_error error = {""};
        bad.rows -= change == 0;
        bad.columns -= change == 1;
        bad.experts += change == 2;
        bad.format = change == 3 ? GB_NVFP4 : bad.format;
        bad.codes = change == 4 ? NULL : bad.codes;
        assert_int_equal(fma32_route(&router.shape, router.x, &bad, true, ids, weights, &error), GB_EINVAL);
        kept_message(error.message, NULL);
        assert_non_null(strstr(error.message, "router"));
    }
    struct gb_error error = {""};
    const struct gb_shape few = {2, 48, 1, 8, 9};
    assert_int_equal(fma32_route(&few, router.x, &good, true, ids, weights, &error), GB_EINVAL);
    assert_string_equal(error.message, "2 tokens to the top 9 of 8 experts cannot be routed");
#ifndef __SANITIZE_ADDRESS__ /* which ends where malloc is asked for so much */
    const struct gb_shape huge = {UINT32_MAX, 48, 1, 1 << 28, 3};
    good.rows = huge.experts;
    assert_int_equal(fma32_route(&huge, router.x, &good, true, ids, weights, &error), GB_ENOMEM);
    assert_string_equal(error.message, "no memory to route 4294967295 tokens");
#endif
    router_free(&router);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape),
        cmocka_unit_test(equal_logits),
        cmocka_unit_test(chosen_logits),
        cmocka_unit_test(nan_comes_last),
        cmocka_unit_test(bad_routers_are_refused),
        KEPT_AS("test_route"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
