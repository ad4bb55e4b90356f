/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds of routers: what any order of summation and any form of the divisions routes lies within them, swaps of
 * near-equal experts included, and what a wrong router does lies outside. Another order is the reference on columns
 * that are permuted and spread among columns of zeros, which changes no sum but in its roundings.
 */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/fma32.h"
#include "tests/support/route_problem.h"

static const struct gb_shape shape = {12, 320, 1, 64, 5};
static uint64_t orders = 6; /* of each recipe on each kind of data */

/* Bounds of a problem under one recipe, and what was found against them. */
struct bounds {
    double *x;              /* [tokens, hidden] */
    double *low, *high;     /* [tokens, experts] */
    double *relative;       /* [tokens] */
    double *truth;          /* [tokens, top_k], of a subject's experts */
    unsigned same, swapped; /* tokens with the reference's set of experts, and with another possible one */
    unsigned impossible, weights_outside;
    double largest; /* error of a weight / bound */
};

static void bounds_new(struct bounds *b, const struct route_problem *p)
{
    size_t inputs = (size_t)shape.tokens * shape.hidden, choices = (size_t)shape.tokens * shape.experts;
    struct gb_error error;
    *b = (struct bounds){.x = malloc(sizeof(double) * inputs),
                         .low = malloc(sizeof(double) * choices),
                         .high = malloc(sizeof(double) * choices),
                         .relative = malloc(sizeof(double) * shape.tokens),
                         .truth = malloc(sizeof(double) * shape.tokens * shape.top_k)};
    for (size_t i = 0; i < inputs; i++)
        b->x[i] = (double)gb_bf16_decode(p->x[i]);
    assert_int_equal(gb_bound_router(&p->arguments, b->x, 24, 8.0, b->low, b->high, b->relative, &error), GB_OK);
}

static void bounds_free(struct bounds *b)
{
    free(b->x);
    free(b->low);
    free(b->high);
    free(b->relative);
    free(b->truth);
}

static bool has(const int32_t *ids, uint32_t expert)
{
    for (uint32_t j = 0; j < shape.top_k; j++)
        if (ids[j] == (int32_t)expert)
            return true;
    return false;
}

/* No expert that was left out must rank before one that was chosen. */
static bool possible(const struct bounds *b, uint32_t t, const int32_t *ids)
{
    const double *low = b->low + (size_t)t * shape.experts, *high = b->high + (size_t)t * shape.experts;
    for (uint32_t in = 0; in < shape.experts; in++)
        for (uint32_t out = 0; out < shape.experts; out++)
            if (has(ids, in) && !has(ids, out) && low[out] > high[in])
                return false;
    return true;
}

/* Adds what a subject routed; p has the reference's. ids, weights: [tokens, top_k] */
static void compare(struct bounds *b, const struct route_problem *p, int32_t *ids, const float *weights)
{
    struct gb_error error;
    assert_int_equal(gb_truth_routing_weights(&p->arguments, b->x, ids, b->truth, &error), GB_OK);
    for (uint32_t t = 0; t < shape.tokens; t++) {
        bool same = true;
        size_t first = (size_t)t * shape.top_k;
        for (uint32_t j = 0; j < shape.top_k; j++)
            same &= has(p->ids + first, (uint32_t)ids[first + j]);
        if (!possible(b, t, ids + first))
            b->impossible++;
        else if (same)
            b->same++;
        else
            b->swapped++;
        for (size_t i = first; i < first + shape.top_k; i++) {
            double ratio = fabs((double)weights[i] - b->truth[i]) / (b->relative[t] * fabs(b->truth[i]) + 0x1p-120);
            b->weights_outside += !(ratio <= 1);
            b->largest = ratio > b->largest ? ratio : b->largest;
        }
    }
}

static void route(struct route_problem *p, const struct gb_router *router)
{
    struct gb_error error = {""};
    p->arguments.router = router;
    if (fma32_router(&p->arguments, &error) != GB_OK)
        fail_msg("%s", error.message);
}

/* The problem with its columns at random places among `hidden` ones, the rest zeros. */
static void spread(const struct route_problem *p, uint32_t hidden, uint64_t seed, struct route_problem *to)
{
    struct gb_shape wide = shape;
    wide.hidden = hidden;
    route_problem_new(to, wide, ROUTE_GAUSSIAN, 0);
    uint32_t *place = malloc(sizeof *place * hidden);
    for (uint32_t i = 0; i < hidden; i++)
        place[i] = i;
    for (uint32_t i = hidden; i > 1; i--) {
        uint32_t other = random_below(&seed, i), swap = place[i - 1];
        place[i - 1] = place[other];
        place[other] = swap;
    }
    memset(to->x, 0, sizeof(gb_bf16) * shape.tokens * hidden);
    memset(to->router, 0, sizeof(gb_bf16) * shape.experts * hidden);
    for (uint32_t i = 0; i < shape.hidden; i++) {
        for (uint32_t t = 0; t < shape.tokens; t++)
            to->x[(size_t)t * hidden + place[i]] = p->x[(size_t)t * shape.hidden + i];
        for (uint32_t e = 0; e < shape.experts; e++)
            to->router[(size_t)e * hidden + place[i]] = p->router[(size_t)e * shape.hidden + i];
    }
    memcpy(to->bias, p->bias, sizeof(float) * shape.experts);
    free(place);
}

/* The upper half of the experts are the lower half but for an ulp in a column where x is small: logits, and with equal
 * biases choices, that differ by their last bits. */
static void make_near(struct route_problem *p)
{
    uint32_t half = shape.experts / 2;
    for (uint32_t e = 0; e < half; e++) {
        gb_bf16 *row = p->router + (size_t)e * shape.hidden;
        row[0] = gb_bf16_encode(1.0f);
        memcpy(p->router + (size_t)(e + half) * shape.hidden, row, sizeof(gb_bf16) * shape.hidden);
        p->router[(size_t)(e + half) * shape.hidden].bits++;
        p->bias[e + half] = p->bias[e];
    }
    for (uint32_t t = 0; t < shape.tokens; t++)
        p->x[(size_t)t * shape.hidden] = gb_bf16_encode(0x1p-17f);
}

/* The same rule with another division: by the reciprocal of a sum or by the sum, the scale before, after or in it. */
static struct gb_router other_form(const struct gb_router *router, uint64_t form)
{
    static const enum gb_router_renormalise divisions[] = {
        GB_ROUTER_RENORMALISE_DIVIDE, GB_ROUTER_RENORMALISE_RECIPROCAL, GB_ROUTER_RENORMALISE_SCALE,
        GB_ROUTER_RENORMALISE_SCALED_DIVIDE};
    struct gb_router other = *router;
    if (router->renormalise != GB_ROUTER_RENORMALISE_NONE)
        other.renormalise = divisions[form % (sizeof divisions / sizeof *divisions)];
    if (router->score == GB_ROUTER_SCORE_SOFTMAX && form % 2)
        other.score = GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL;
    if (router->score == GB_ROUTER_SCORE_SOFTMAX_RECIPROCAL && form % 2)
        other.score = GB_ROUTER_SCORE_SOFTMAX;
    return other;
}

static void any_order_and_form_is_within(void **state)
{
    size_t count;
    const struct gb_router_recipe *recipes = gb_router_recipes(&count);
    unsigned swapped = 0, runs = 0;
    double largest = 0;
    (void)state;
    for (size_t r = 0; r < count; r++)
        for (int kind = 0; kind <= ROUTE_KINDS; kind++) {
            struct route_problem p, other;
            struct bounds b;
            if (kind == ROUTE_EDGE) /* not finite: bounds say nothing */
                continue;
            route_problem_new(&p, shape, kind == ROUTE_KINDS ? ROUTE_GAUSSIAN : (enum route_kind)kind, r);
            if (kind == ROUTE_KINDS)
                make_near(&p);
            route(&p, &recipes[r].router);
            bounds_new(&b, &p);
            compare(&b, &p, p.ids, p.weights);
            for (uint64_t seed = 1; seed <= orders; seed++) {
                const struct gb_router form = other_form(&recipes[r].router, seed / 2);
                spread(&p, shape.hidden * (uint32_t)(seed % 3 + 1), seed, &other);
                route(&other, &form);
                compare(&b, &p, other.ids, other.weights);
                route_problem_free(&other);
                runs++;
            }
            if (b.impossible || b.weights_outside)
                fail_msg("%s, data %d: %u sets of experts are impossible, %u weights outside the bound, ratio %g",
                         recipes[r].name, kind, b.impossible, b.weights_outside, b.largest);
            swapped += b.swapped;
            largest = b.largest > largest ? b.largest : largest;
            bounds_free(&b);
            route_problem_free(&p);
        }
    print_message(
        "%u routers, 0 outside; %u sets of experts swapped within the bound, largest error of a weight %.3f of it\n",
        runs, swapped, largest);
    assert_true(swapped > 100);
    assert_true(largest > 0.02);
}

/* Routers that are wrong, by FP32 recipes: each is outside in most of its tokens. */
enum wrong { A_COLUMN_LOST, LOGITS_IN_BF16, SCALE_OFF, NEXT_EXPERT, X_ROUNDED, WRONGS };

static void make_wrong(enum wrong wrong, struct route_problem *p, struct gb_router *router)
{
    if (wrong == LOGITS_IN_BF16)
        router->logits = GB_BF16;
    if (wrong == SCALE_OFF)
        router->scale *= 1.0f + 0x1p-11f;
    for (uint32_t t = 0; t < shape.tokens; t++) {
        gb_bf16 *x = p->x + (size_t)t * shape.hidden;
        if (wrong == A_COLUMN_LOST)
            x[7] = gb_bf16_encode(0.0f);
        for (uint32_t i = 0; wrong == X_ROUNDED && i < shape.hidden; i++)
            x[i] = gb_bf16_encode(gb_e4m3_decode(gb_e4m3_encode(gb_bf16_decode(x[i]))));
    }
}

static void wrong_routers_are_outside(void **state)
{
    static const char *const names[] = {"gaugeblock.renormalised/1", "moonshotai.kimi-k2/1",
                                        "vllm.topk-softmax-renormalised/1", "transformers.deepseek-v3/1"};
    (void)state;
    for (size_t r = 0; r < sizeof names / sizeof *names; r++)
        for (int wrong = 0; wrong < WRONGS; wrong++) {
            struct gb_router good = gb_router_recipe_find(names[r])->router, bad = good;
            struct route_problem p, other;
            struct bounds b;
            route_problem_new(&p, shape, ROUTE_GAUSSIAN, 70 + r);
            route_problem_new(&other, shape, ROUTE_GAUSSIAN, 70 + r);
            route(&p, &good);
            bounds_new(&b, &p);
            make_wrong((enum wrong)wrong, &other, &bad);
            route(&other, &bad);
            for (uint32_t t = 0; wrong == NEXT_EXPERT && t < shape.tokens; t++)
                for (int32_t *id = other.ids + (size_t)t * shape.top_k; has(p.ids + (size_t)t * shape.top_k, *id);)
                    *id = (*id + 1) % (int32_t)shape.experts;
            compare(&b, &p, other.ids, other.weights);
            if (b.impossible + b.weights_outside / shape.top_k < shape.tokens / 2)
                fail_msg("%s, fault %d passes: %u sets of experts are impossible, %u weights outside the bound",
                         names[r], wrong, b.impossible, b.weights_outside);
            bounds_free(&b);
            route_problem_free(&other);
            route_problem_free(&p);
        }
}

/* Sums of single products are exact in any order: logits have no error, and choices by logits no interval. */
static void exact_logits_have_no_error(void **state)
{
    struct route_problem p;
    struct bounds b;
    (void)state;
    route_problem_new(&p, shape, ROUTE_GAUSSIAN, 11);
    for (uint32_t i = 0; i < shape.tokens * shape.hidden; i++)
        p.x[i] = i % shape.hidden == i / shape.hidden ? gb_bf16_encode(1.5f) : gb_bf16_encode(0.0f);
    p.arguments.router = &gb_router_recipe_find("gaugeblock.softmax/1")->router;
    bounds_new(&b, &p);
    for (uint32_t i = 0; i < shape.tokens * shape.experts; i++)
        assert_true(b.low[i] == b.high[i]);
    assert_true(b.relative[0] > 0 && b.relative[0] < 256 * 0x1p-24);
    bounds_free(&b);
    route_problem_free(&p);
}

/* Whole numbers up to 2^24 are exact in any order, 2^24 itself among them; one more is not. */
static void sums_end_to_be_exact(void **state)
{
    static const float terms[] = {255 * 0x1p16f, 255 * 0x1p8f, 255.0f, 1.0f}; /* 2^24 together */
    (void)state;
    for (int more = 0; more < 2; more++) {
        struct route_problem p;
        struct bounds b;
        route_problem_new(&p, shape, ROUTE_GAUSSIAN, 11);
        for (uint32_t i = 0; i < shape.hidden; i++) {
            p.x[i] = gb_bf16_encode(i < 4 ? terms[i] : i == 4 ? (float)more : 0.0f);
            p.router[i] = gb_bf16_encode(1.0f);
        }
        p.arguments.router = &gb_router_recipe_find("gaugeblock.softmax/1")->router;
        bounds_new(&b, &p);
        assert_true((b.low[0] == b.high[0]) == !more);
        bounds_free(&b);
        route_problem_free(&p);
    }
}

/* Of groups by exact logits, four of them of which two are kept by the sum of their two highest: the only bounds that
 * are no points are those of groups that may be kept or dropped, and what an expert counts as when masked is one end.
 */
static void groups_that_may_be_dropped(void **state)
{
    enum { GROUPS = 4 };
    enum place { KEPT, DROPPED, EITHER };
    static const struct {
        float highest[GROUPS][2];
        enum place place[GROUPS];
    } cases[] = {
        {{{0, 0}, {0, 0}, {0, 0}, {0, 0}}, {EITHER, EITHER, EITHER, EITHER}}, /* level to the last bit */
        {{{4, 4}, {5, 2}, {3, 2}, {5, -3}}, {KEPT, KEPT, DROPPED, DROPPED}},
        {{{5, 1}, {3, 3}, {8, 1}, {1, 0.5f}}, {EITHER, EITHER, KEPT, DROPPED}},
        {{{1, 0x1p-22f}, {1, 0}, {8, 1}, {0, 0}},
         {EITHER, EITHER, KEPT, DROPPED}}, /* two additions' roundings of each */
        {{{1, 0x1.04p-22f}, {1, 0}, {8, 1}, {0, 0}}, {KEPT, DROPPED, KEPT, DROPPED}},
        {{{1, 1}, {1, 1}, {1, 1}, {2, 2}}, {EITHER, EITHER, EITHER, KEPT}},
        {{{1, 1}, {2, 2}, {2, 2}, {2, 2}}, {DROPPED, EITHER, EITHER, EITHER}},
    };
    const uint32_t size = shape.experts / GROUPS;
    struct gb_router router = gb_router_recipe_find("gaugeblock.softmax/1")->router;
    struct route_problem p;
    struct bounds b;
    (void)state;
    router.score = GB_ROUTER_SCORE_LOGIT;
    router.groups = GROUPS;
    router.kept_groups = router.group_terms = 2;
    router.masked = -1.0f;
    route_problem_new(&p, shape, ROUTE_GAUSSIAN, 11);
    p.arguments.router = &router;
    for (uint32_t t = 0; t < shape.tokens; t++)
        for (uint32_t i = 0; i < shape.hidden; i++)
            p.x[(size_t)t * shape.hidden + i] = gb_bf16_encode(i == t ? 1.0f : 0.0f);
    for (uint32_t e = 0; e < shape.experts; e++)
        for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) { /* the two highest stand within their group */
            uint32_t place = e % size;
            float logit = place == 3 || place == 9 ? cases[n].highest[e / size][place == 3] : -9.0f;
            p.router[(size_t)e * shape.hidden + n] = gb_bf16_encode(logit);
        }
    bounds_new(&b, &p);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (uint32_t e = 0; e < shape.experts; e++) {
            enum place place = cases[n].place[e / size];
            double logit = (double)gb_bf16_decode(p.router[(size_t)e * shape.hidden + n]);
            double low = place == KEPT || (place == EITHER && logit < -1.0) ? logit : -1.0;
            double high = place == KEPT || (place == EITHER && logit > -1.0) ? logit : -1.0;
            if (b.low[n * shape.experts + e] != low || b.high[n * shape.experts + e] != high)
                fail_msg("case %zu, expert %u: %g .. %g, expected %g .. %g", n, e, b.low[n * shape.experts + e],
                         b.high[n * shape.experts + e], low, high);
        }
    bounds_free(&b);
    route_problem_free(&p);
}

/* Where FP32 may overflow, and of NaN, the bounds are infinite, not wrong. */
static void overflow_is_unbounded(void **state)
{
    struct route_problem p;
    struct bounds b;
    (void)state;
    route_problem_new(&p, shape, ROUTE_GAUSSIAN, 9);
    for (uint32_t i = 0; i < 2; i++) {
        p.x[i] = gb_bf16_encode(0x1p120f);
        p.router[i] = gb_bf16_encode(0x1p8f);
    }
    p.arguments.router = &gb_router_recipe_find("transformers.qwen3-moe/1")->router;
    bounds_new(&b, &p);
    assert_true(isinf(b.relative[0]) && !isinf(b.relative[1]));
    assert_true(b.low[0] < 0 && isinf(b.low[0]));
    bounds_free(&b);
    p.x[0].bits = 0x7FC0;
    bounds_new(&b, &p);
    assert_true(isinf(b.relative[0]));
    bounds_free(&b);
    route_problem_free(&p);
}

int main(int argc, char **argv)
{
    orders = sweeps_are_whole(argc, argv) ? 120 : orders;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_and_form_is_within), cmocka_unit_test(wrong_routers_are_outside),
        cmocka_unit_test(exact_logits_have_no_error),   cmocka_unit_test(sums_end_to_be_exact),
        cmocka_unit_test(groups_that_may_be_dropped),   cmocka_unit_test(overflow_is_unbounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
