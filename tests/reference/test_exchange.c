/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch, combine and the layer over ranks: against the oracle, and what must not change a bit. */
#include "tests/support/check.h"

#include <float.h>
#include <omp.h>
#include <pthread.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/oracle/oracle.h"
#include "tests/support/problem.h"
#include "tests/support/kept_explanation.h"

enum placement { BLOCKS, ROUND_ROBIN, RANDOM, ALL_TO_ONE, PLACEMENTS };
static const char *const placement_names[] = {"blocks", "round robin", "random", "all to one"};
static const uint32_t rank_counts[] = {1, 2, 4, 8, 64};
enum { RANK_COUNTS = sizeof rank_counts / sizeof *rank_counts };

/* What is exchanged over so many ranks. Outputs are poisoned. */
struct exchange {
    struct gb_exchange asked;
    struct gb_arguments arguments;
    gb_bf16 *x;      /* [ranks * tokens, hidden] */
    int32_t *ids;    /* [ranks * tokens, top_k] */
    float *weights;  /* [ranks * tokens, top_k] */
    int32_t *placed; /* [experts] */
    int32_t *counts, *routes;
    uint8_t *codes, *scales;
    void *values; /* [rows, hidden], bf16 or FP32 */
    float *output;
    size_t tokens; /* of all ranks */
};

static void *fresh(size_t bytes)
{
    void *buffer = malloc(bytes + 64);
    assert_non_null(buffer);
    return memset(buffer, 0xA5, bytes + 64);
}

static void place(enum placement placement, uint32_t experts, uint32_t ranks, uint64_t *random, int32_t *placed)
{
    for (uint32_t e = 0; e < experts; e++)
        placed[e] = (int32_t)(placement == BLOCKS        ? (uint64_t)e * ranks / experts
                              : placement == ROUND_ROBIN ? e % ranks
                              : placement == RANDOM      ? random_below(random, ranks)
                                                         : ranks / 2);
}

/* Different experts per token; every fifth slot, and all of the third rank, are empty. Route 0 is not. */
static void route(struct exchange *e, uint64_t *random)
{
    const struct gb_exchange *x = &e->asked;
    size_t of_rank = (size_t)x->tokens * x->top_k;
    for (size_t s = 0; s < e->tokens * x->top_k; s++) {
        bool again = true;
        while (again) {
            e->ids[s] = (int32_t)random_below(random, x->experts);
            again = false;
            for (size_t before = s - s % x->top_k; before < s; before++)
                again |= e->ids[before] == e->ids[s];
        }
        e->weights[s] = (float)(0.05 + random_uniform(random));
    }
    for (size_t s = 1; s < e->tokens * x->top_k; s++)
        if (random_below(random, 5) == 0 || s / of_rank == 2)
            e->ids[s] = -1;
    e->asked.rows = 0;
    for (size_t s = 0; s < e->tokens * x->top_k; s++)
        e->asked.rows += e->ids[s] >= 0;
}

static void exchange_new(struct exchange *e, uint32_t ranks, uint32_t tokens, uint32_t hidden, uint32_t experts,
                         uint32_t top_k, enum placement placement, uint64_t seed)
{
    uint64_t random = seed;
    *e = (struct exchange){.asked = {.size = sizeof e->asked,
                                     .ranks = ranks,
                                     .tokens = tokens,
                                     .hidden = hidden,
                                     .experts = experts,
                                     .top_k = top_k,
                                     .global_scale = 1.0f,
                                     .input = GB_BF16,
                                     .accumulation = GB_AT_RECEIVER,
                                     .ranks_per_node = 1},
                           .tokens = (size_t)ranks * tokens};
    size_t values = e->tokens * hidden, slots = e->tokens * top_k;
    e->x = fresh(values * sizeof *e->x);
    e->ids = fresh(slots * sizeof *e->ids);
    e->weights = fresh(slots * sizeof *e->weights);
    e->placed = fresh(experts * sizeof *e->placed);
    problem_activations(e->x, values, DATA_CODES, &random);
    place(placement, experts, ranks, &random, e->placed);
    route(e, &random);
    e->counts = fresh(sizeof *e->counts * ranks * experts);
    e->routes = fresh(sizeof *e->routes * e->asked.rows);
    e->codes = fresh((size_t)e->asked.rows * hidden * sizeof(gb_bf16));
    e->scales = fresh((size_t)e->asked.rows * hidden * sizeof(float));
    e->values = fresh((size_t)e->asked.rows * hidden * sizeof(float));
    e->output = fresh(values * sizeof *e->output);
    e->arguments = (struct gb_arguments){.size = sizeof e->arguments,
                                         .x = e->x,
                                         .ids = e->ids,
                                         .routing_weights = e->weights,
                                         .output = e->output,
                                         .exchange = &e->asked,
                                         .placement = e->placed,
                                         .counts = e->counts,
                                         .routes = e->routes,
                                         .codes = e->codes,
                                         .scales = e->scales,
                                         .values = e->values};
}

static void exchange_free(struct exchange *e)
{
    void *const all[] = {e->x,      e->ids,   e->weights, e->placed, e->counts,
                         e->routes, e->codes, e->scales,  e->values, e->output};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* The rows that experts return: of any magnitude, not finite for `data` DATA_NONFINITE. */
static void fill_rows(struct exchange *e, enum data data, uint64_t seed)
{
    uint64_t random = seed;
    size_t count = (size_t)e->asked.rows * e->asked.hidden;
    if (e->asked.input == GB_BF16)
        problem_activations(e->values, count, data, &random);
    else
        for (size_t i = 0; i < count; i++)
            ((float *)e->values)[i] = (float)random_gaussian(&random);
}

static void check_counts(const struct exchange *e, const char *what)
{
    const struct gb_exchange *x = &e->asked;
    for (uint32_t s = 0; s < x->ranks; s++)
        for (uint32_t expert = 0; expert < x->experts; expert++) {
            int32_t count = 0;
            for (uint32_t i = 0; i < x->tokens * x->top_k; i++)
                count += e->ids[(size_t)s * x->tokens * x->top_k + i] == (int32_t)expert;
            if (e->counts[(size_t)s * x->experts + expert] != count)
                fail_msg("%s: rank %u, expert %u: expected %d routes, got %d", what, s, expert, count,
                         e->counts[(size_t)s * x->experts + expert]);
        }
}

/* The row of a token as the oracle has it. */
static void check_row(const struct exchange *e, uint32_t row, const char *what)
{
    const struct gb_exchange *x = &e->asked;
    const struct gb_quantiser *rules = &x->quantiser;
    const gb_bf16 *token = e->x + (size_t)e->routes[row] / x->top_k * x->hidden;
    if (!rules->element) {
        assert_memory_equal(e->codes + (size_t)row * x->hidden * 2, token, x->hidden * sizeof *token);
        return;
    }
    uint32_t blocks = x->hidden / rules->block_columns;
    float *values = fresh(x->hidden * sizeof *values), *scales = fresh(blocks * sizeof *scales);
    uint8_t *codes = fresh(x->hidden), *bits = fresh(blocks);
    for (uint32_t i = 0; i < x->hidden; i++)
        values[i] = (float)oracle_decode(ORACLE_BF16, token[i].bits);
    oracle_quantise(rules, values, 1, x->hidden, x->global_scale, INFINITY, codes, bits, scales);
    for (uint32_t i = 0; i < x->hidden; i++) {
        size_t at = (size_t)row * x->hidden + i;
        unsigned got = rules->element == GB_E2M1 ? e->codes[at / 2] >> (at % 2 * 4) & 15u : e->codes[at];
        if (got != codes[i])
            fail_msg("%s: row %u, code %u: expected %02X, got %02X", what, row, i, codes[i], got);
    }
    for (uint32_t b = 0; b < blocks; b++)
        if (rules->scale == GB_SCALE_FP32)
            assert_same_float(scales[b], ((float *)(void *)e->scales)[(size_t)row * blocks + b], "%s: row %u, scale %u",
                              what, row, b);
        else
            assert_int_equal(e->scales[(size_t)row * blocks + b], bits[b]);
    free(values);
    free(scales);
    free(codes);
    free(bits);
}

static void check_dispatch(struct exchange *e, const char *what)
{
    int32_t *routes = fresh(e->tokens * e->asked.top_k * sizeof *routes);
    struct gb_error error;
    if (gb_reference_dispatch(&e->arguments, &error) != GB_OK)
        fail_msg("%s: %s", what, error.message);
    assert_int_equal(oracle_routes(&e->asked, e->placed, e->ids, routes), e->asked.rows);
    check_counts(e, what);
    for (uint32_t row = 0; row < e->asked.rows; row++) {
        if (routes[row] != e->routes[row])
            fail_msg("%s: row %u: expected route %d, got %d", what, row, routes[row], e->routes[row]);
        check_row(e, row, what);
    }
    free(routes);
}

static void test_dispatch(void **state)
{
    static const char *const recipes[] = {NULL, "fp8g128.deepseek/1", "fp8g128.vllm/1", "nvfp4.trtllm/1",
                                          "mxfp8.rceil/1"};
    (void)state;
    for (int n = 0; n < RANK_COUNTS; n++)
        for (int p = 0; p < PLACEMENTS; p++)
            for (size_t r = 0; r < (p == RANDOM ? sizeof recipes / sizeof *recipes : 1); r++) {
                struct exchange e;
                char what[128];
                uint32_t ranks = rank_counts[n];
                exchange_new(&e, ranks, ranks > 8 ? 1 : 4, 128, 70, 4, (enum placement)p, 7 + r);
                if (recipes[r])
                    e.asked.quantiser = gb_recipe_find(recipes[r])->quantiser;
                snprintf(what, sizeof what, "%u ranks, %s, %s", ranks, placement_names[p],
                         recipes[r] ? recipes[r] : "bf16");
                check_dispatch(&e, what);
                exchange_free(&e);
            }
}

/* The reference's output of this accumulation, compared with the oracle's. */
static void check_combine(struct exchange *e, enum gb_accumulation accumulation, uint32_t ranks_per_node,
                          const char *what)
{
    size_t count = e->tokens * e->asked.hidden;
    float *expected = fresh(count * sizeof *expected);
    struct gb_error error;
    e->asked.accumulation = accumulation;
    e->asked.ranks_per_node = ranks_per_node;
    memset(e->output, 0xA5, count * sizeof *e->output);
    if (gb_reference_combine(&e->arguments, &error) != GB_OK)
        fail_msg("%s: %s", what, error.message);
    oracle_combine(&e->arguments, expected);
    for (size_t i = 0; i < count; i++)
        assert_same_float(expected[i], e->output[i], "%s, accumulation %d, %u ranks a node: token %zu, element %zu",
                          what, (int)accumulation, ranks_per_node, i / e->asked.hidden, i % e->asked.hidden);
    free(expected);
}

static void test_combine(void **state)
{
    static const enum data data[] = {DATA_CODES, DATA_WIDE, DATA_NONFINITE};
    (void)state;
    for (int n = 0; n < RANK_COUNTS; n++)
        for (int p = 0; p < PLACEMENTS; p++)
            for (int d = (n + p) % 2; d < 4; d += 2) {
                struct exchange e;
                char what[128];
                uint32_t ranks = rank_counts[n];
                exchange_new(&e, ranks, ranks > 8 ? 1 : 3, 13, 70, 6, (enum placement)p, 90 + (uint64_t)d);
                e.asked.input = d == 3 ? GB_FP32 : GB_BF16;
                fill_rows(&e, d == 3 ? DATA_CODES : data[d], 5);
                snprintf(what, sizeof what, "%u ranks, %s, data %d", ranks, placement_names[p], d);
                check_combine(&e, GB_AT_RECEIVER, 1, what);
                check_combine(&e, GB_AT_SENDER, 1, what);
                for (uint32_t size = 1; size <= 8; size += size < 3 ? 1 : 5)
                    check_combine(&e, GB_AT_SENDER_NODE, size, what);
                exchange_free(&e);
            }
}

static void combine(struct exchange *e, enum gb_accumulation accumulation, uint32_t ranks_per_node, float *output)
{
    e->asked.accumulation = accumulation;
    e->asked.ranks_per_node = ranks_per_node;
    e->arguments.output = output;
    assert_int_equal(gb_reference_combine(&e->arguments, NULL), GB_OK);
    e->arguments.output = e->output;
}

static size_t differing(const float *a, const float *b, size_t count)
{
    size_t differences = 0;
    for (size_t i = 0; i < count; i++)
        differences += !same_float(a[i], b[i]);
    return differences;
}

/* What docs/numerics.md says is the same, and that the rest is not. */
static void test_accumulations(void **state)
{
    struct exchange e;
    (void)state;
    exchange_new(&e, 8, 4, 64, 32, 8, RANDOM, 3);
    fill_rows(&e, DATA_CODES, 8);
    size_t count = e.tokens * e.asked.hidden;
    float *receiver = fresh(count * sizeof *receiver), *sender = fresh(count * sizeof *sender),
          *node = fresh(count * sizeof *node);
    combine(&e, GB_AT_RECEIVER, 1, receiver);
    combine(&e, GB_AT_SENDER, 1, sender);
    combine(&e, GB_AT_SENDER_NODE, 1, node);
    assert_int_equal(differing(sender, node, count), 0);
    assert_true(differing(sender, receiver, count) > count / 2);
    combine(&e, GB_AT_SENDER_NODE, 8, node);
    for (size_t i = 0; i < count; i++)
        assert_same_float(gb_bf16_decode(gb_bf16_encode(sender[i])) + 0.0f, node[i], "one node, element %zu", i);
    combine(&e, GB_AT_SENDER_NODE, 2, node);
    assert_true(differing(sender, node, count) > 0);
    free(receiver);
    free(sender);
    free(node);
    exchange_free(&e);
}

/* A kernel that adds up where the problem says, and otherwise as it likes: products rounded apart, slots and ranks
 * backwards. */
struct other_kernel {
    const struct exchange *e;
    const int32_t *row; /* [slots] */
    uint32_t token, h;
};

static float other_slots(const struct other_kernel *k, int64_t rank, bool *any)
{
    const struct gb_exchange *x = &k->e->asked;
    float y = 0.0f;
    for (uint32_t j = x->top_k; j-- > 0;) {
        uint32_t slot = k->token * x->top_k + j;
        if (k->e->ids[slot] < 0 || (rank >= 0 && k->e->placed[k->e->ids[slot]] != rank))
            continue;
        float product =
            k->e->weights[slot] * gb_bf16_decode(((gb_bf16 *)k->e->values)[(size_t)k->row[slot] * x->hidden + k->h]);
        y = y + product;
        *any = true;
    }
    return y;
}

/* Ranks first .. end - 1, from the last one. */
static float other_ranks(const struct other_kernel *k, uint32_t first, uint32_t end, bool *any)
{
    float y = 0.0f;
    for (uint32_t rank = end; rank-- > first;) {
        bool sends = false;
        float p = other_slots(k, rank, &sends);
        y = sends ? y + gb_bf16_decode(gb_bf16_encode(p)) : y;
        *any |= sends;
    }
    return y;
}

static float other_sum(const struct other_kernel *k)
{
    const struct gb_exchange *x = &k->e->asked;
    bool any = false;
    float y = 0.0f;
    if (x->accumulation != GB_AT_SENDER_NODE)
        return x->accumulation == GB_AT_RECEIVER ? other_slots(k, -1, &any) : other_ranks(k, 0, x->ranks, &any);
    for (uint32_t first = 0; first < x->ranks; first += x->ranks_per_node) {
        bool sends = false;
        uint32_t end = first + x->ranks_per_node;
        float n = other_ranks(k, first, end < x->ranks ? end : x->ranks, &sends);
        y = sends ? y + gb_bf16_decode(gb_bf16_encode(n)) : y;
    }
    return y;
}

/* The largest error of such a kernel over its bound; every element without a slot of its own is outside it. */
static double largest_ratio(struct exchange *e, enum gb_accumulation accumulation, enum gb_format output)
{
    size_t slots = e->tokens * e->asked.top_k, count = e->tokens * e->asked.hidden, seen = 0;
    int32_t *routes = fresh(e->asked.rows * sizeof *routes), *row = fresh(slots * sizeof *row);
    double *truth = fresh(count * sizeof *truth), *worst = fresh(count * sizeof *worst), largest = 0.0;
    e->asked.accumulation = accumulation;
    e->asked.ranks_per_node = 3;
    oracle_routes(&e->asked, e->placed, e->ids, routes);
    for (uint32_t r = 0; r < e->asked.rows; r++)
        row[routes[r]] = (int32_t)r;
    assert_int_equal(gb_bound_exchange(&e->arguments, output, 24, truth, worst, NULL), GB_OK);
    for (uint32_t t = 0; t < e->tokens; t++)
        for (uint32_t h = 0; h < e->asked.hidden; h++) {
            size_t i = (size_t)t * e->asked.hidden + h;
            long double exact = 0.0L, lost = 0.0L;
            for (uint32_t s = t * e->asked.top_k; s < (t + 1) * e->asked.top_k; s++)
                if (e->ids[s] >= 0) {
                    lost = (long double)e->weights[s] *
                           (long double)gb_bf16_decode(((gb_bf16 *)e->values)[(size_t)row[s] * e->asked.hidden + h]);
                    exact += lost;
                }
            float y = other_sum(&(struct other_kernel){e, row, t, h});
            double error = fabs((double)(output == GB_BF16 ? gb_bf16_decode(gb_bf16_encode(y)) : y) - truth[i]);
            if (!(fabsl(exact - (long double)truth[i]) <= 0x1p-24L * (long double)worst[i]) || !(error <= worst[i]))
                fail_msg("accumulation %d, token %u, element %u: %.9g, truth %.17g, bound %.3g", (int)accumulation, t,
                         h, (double)y, truth[i], worst[i]);
            largest = error > largest * worst[i] ? error / worst[i] : largest;
            seen += fabsl(lost) > (long double)worst[i];
        }
    assert_true(seen > count / 2); /* the bound sees a slot that is lost */
    free(routes);
    free(row);
    free(truth);
    free(worst);
    return largest;
}

static void test_bounds(void **state)
{
    static const enum gb_accumulation all[] = {GB_AT_RECEIVER, GB_AT_SENDER, GB_AT_SENDER_NODE};
    (void)state;
    for (int n = 0; n < RANK_COUNTS; n++)
        for (int a = 0; a < 3; a++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                struct exchange e;
                exchange_new(&e, rank_counts[n], rank_counts[n] > 8 ? 2 : 8, 64, 70, 6, RANDOM, 31);
                fill_rows(&e, DATA_CODES, 4);
                double largest = largest_ratio(&e, all[a], bf16 ? GB_BF16 : GB_FP32);
                if (largest < 0.2)
                    fail_msg("%u ranks, accumulation %d: at most %.3g of the bound, which is too wide", rank_counts[n],
                             a, largest);
                exchange_free(&e);
            }
}

/* Of a sum: its value, that of the terms' magnitudes, how far it may be off, how many terms it has. */
struct total {
    long double value, magnitude, error;
    int terms;
};

static void plus(struct total *to, struct total term)
{
    to->value += term.value;
    to->magnitude += fabsl(term.value);
    to->error += term.error;
    to->terms++;
}

/* With the roundings of the sum, if it has terms; and, `to_bf16`, that of its end. */
static struct total added_up(struct total s, long double u, bool to_bf16)
{
    if (s.terms)
        s.error += (powl(1.0L + u, s.terms + 1) - 1.0L) * (s.magnitude + s.error) + 2 * s.terms * 0x1p-149L;
    if (to_bf16)
        s.error += 0x1p-8L * (fabsl(s.value) + s.error) + 0x1p-134L;
    return s;
}

/* Bounds as docs/numerics.md#rank-sums has them. */
static void expect_bounds(struct exchange *e, uint32_t bits, enum gb_format output)
{
    const struct gb_exchange *x = &e->asked;
    const long double u = bits < 24 ? ldexpl(2.0L, -(int)bits) : 0x1p-24L;
    const uint32_t of_node = x->accumulation == GB_AT_SENDER_NODE ? x->ranks_per_node : x->ranks;
    size_t count = e->tokens * x->hidden;
    int32_t *routes = fresh(x->rows * sizeof *routes);
    double *truth = fresh(count * sizeof *truth), *worst = fresh(count * sizeof *worst);
    oracle_routes(x, e->placed, e->ids, routes);
    assert_int_equal(gb_bound_exchange(&e->arguments, output, bits, truth, worst, NULL), GB_OK);
    for (size_t i = 0; i < count; i++) {
        struct total all = {0}, node = {0};
        for (uint32_t rank = 0; rank < x->ranks; rank++) {
            struct total own = {0};
            for (uint32_t r = 0; r < x->rows; r++) {
                size_t slot = (size_t)routes[r], at = (size_t)r * x->hidden + i % x->hidden;
                if (slot / x->top_k == i / x->hidden && e->placed[e->ids[slot]] == (int32_t)rank) {
                    long double y = x->input == GB_FP32 ? (long double)((float *)e->values)[at]
                                                        : (long double)gb_bf16_decode(((gb_bf16 *)e->values)[at]);
                    struct total term = {.value = (long double)e->weights[slot] * y};
                    plus(x->accumulation == GB_AT_RECEIVER ? &all : &own, term);
                }
            }
            if (own.terms)
                plus(x->accumulation == GB_AT_SENDER ? &all : &node, added_up(own, u, true));
            if (node.terms && ((rank + 1) % of_node == 0 || rank + 1 == x->ranks)) {
                plus(&all, added_up(node, u, true));
                node = (struct total){0};
            }
        }
        all = added_up(all, u, output == GB_BF16);
        long double bound = all.magnitude + all.error < 0.99L * FLT_MAX ? all.error : INFINITY;
        if (!((long double)worst[i] == bound || fabsl((long double)worst[i] - bound) <= 1e-11L * bound) ||
            !(fabsl((long double)truth[i] - all.value) <= 1e-12L * all.magnitude))
            fail_msg(
                "accumulation %d, %u bits, element %zu: truth %.17g, %.17Lg expected; bound %.17g, %.17Lg expected",
                (int)x->accumulation, bits, i, truth[i], all.value, worst[i], bound);
    }
    free(routes);
    free(truth);
    free(worst);
}

/* Of terms of any magnitude, so small that subnormals count, and about as large as sums may be. */
static void bounds_are_as_written(void **state)
{
    static const enum gb_accumulation all[] = {GB_AT_RECEIVER, GB_AT_SENDER, GB_AT_SENDER_NODE};
    static const float scales[] = {1.0f, 0x1p-115f};
    (void)state;
    for (int n = 0; n < 24; n++) {
        struct exchange e;
        exchange_new(&e, 8, 3, 8, 40, 6, RANDOM, 41 + (uint64_t)n);
        e.asked.accumulation = all[n % 3];
        e.asked.ranks_per_node = 3;
        e.asked.input = n / 12 ? GB_FP32 : GB_BF16;
        fill_rows(&e, DATA_GAUSSIAN, 5);
        for (size_t s = 0; s < e.tokens * e.asked.top_k; s++)
            e.weights[s] *= scales[n / 6 % 2];
        expect_bounds(&e, n % 2 ? 24 : 14, n / 3 % 2 ? GB_BF16 : GB_FP32);
        for (size_t i = 0; n / 12 && i < (size_t)e.asked.rows * e.asked.hidden; i++)
            ((float *)e.values)[i] = FLT_MAX * (0.15f + 0.1f * (float)(i * 7919 % 1000) / 1000.0f);
        for (size_t s = 0; n / 12 && s < e.tokens * e.asked.top_k; s++)
            e.weights[s] = 1.0f;
        expect_bounds(&e, 24, GB_FP32);
        exchange_free(&e);
    }
}

/* How a layer's rows go between ranks; how many there are is left open. */
static struct gb_exchange exchange_of_layer(const struct gb_shape *shape, uint32_t ranks, enum gb_format rows,
                                            enum gb_accumulation accumulation, uint32_t ranks_per_node)
{
    return (struct gb_exchange){.size = sizeof(struct gb_exchange),
                                .ranks = ranks,
                                .tokens = shape->tokens / ranks,
                                .hidden = shape->hidden,
                                .experts = shape->experts,
                                .top_k = shape->top_k,
                                .input = rows,
                                .accumulation = accumulation,
                                .ranks_per_node = ranks_per_node};
}

/* A layer over ranks. rows: their format. */
static void run_over_ranks(struct problem *problem, const char *order, uint32_t ranks, enum placement placement,
                           enum gb_format rows, enum gb_accumulation accumulation, float *output)
{
    struct gb_arguments a = problem->arguments;
    struct gb_exchange x = exchange_of_layer(&a.shape, ranks, rows, accumulation, 2);
    int32_t *placed = fresh(a.shape.experts * sizeof *placed);
    uint64_t random = 11;
    struct gb_error error;
    place(placement, a.shape.experts, ranks, &random, placed);
    for (size_t s = 0; s < (size_t)a.shape.tokens * a.shape.top_k; s++)
        x.rows += a.ids[s] >= 0;
    a.exchange = &x;
    a.placement = placed;
    a.output = output;
    if (gb_reference_layer_over_ranks(gb_contract_of(&a, GB_LAYER, order), &a, &error) != GB_OK)
        fail_msg("%u ranks, %s: %s", ranks, placement_names[placement], error.message);
    free(placed);
}

struct layer {
    enum gb_format weights;
    const char *recipe; /* of the activations; NULL: bf16 */
    const char *order;
};

static const struct layer layers[] = {
    {GB_NVFP4, NULL, GB_ORDER_FMA32},
    {GB_NVFP4, NULL, GB_ORDER_MMA16_SM90},
    {GB_BF16, NULL, GB_ORDER_FMA32},
    {GB_NVFP4, "nvfp4.trtllm/1", GB_ORDER_FMA32},
    {GB_MXFP8, "mxfp8.rceil/1", GB_ORDER_FMA32},
    {GB_FP8_BLOCK, "fp8g128.deepseek/1", GB_ORDER_FMA32},
};

static void layer_new(const struct layer *layer, struct problem *problem)
{
    const uint32_t inner = layer->weights == GB_FP8_BLOCK ? 128 : 64;
    const struct gb_shape shape = {64, 2 * inner, inner, 64, 4};
    problem_new(problem, shape, layer->weights, DATA_GAUSSIAN, 21);
    problem_empty_slots(problem, 7, 2);
    if (layer->recipe) {
        problem->arguments.activation_rules = &gb_recipe_find(layer->recipe)->quantiser;
        problem->arguments.x_scale = 0.00173f;
        problem->arguments.intermediate_scale = 0.00291f;
    }
}

static void test_layer(void **state)
{
    (void)state;
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        struct problem problem;
        layer_new(&layers[l], &problem);
        const struct gb_arguments *a = &problem.arguments;
        size_t count = (size_t)a->shape.tokens * a->shape.hidden;
        float *whole = fresh(count * sizeof *whole), *bf16_rows = fresh(count * sizeof *whole),
              *output = fresh(count * sizeof *output);
        problem.arguments.output = whole;
        assert_int_equal(gb_reference_layer(gb_contract_of(a, GB_LAYER, layers[l].order), a, NULL), GB_OK);
        run_over_ranks(&problem, layers[l].order, 1, BLOCKS, GB_BF16, GB_AT_RECEIVER, bf16_rows);
        assert_true(differing(whole, bf16_rows, count) > 0);
        /* placements in turns; of layers behind the first one some ranks, at random */
        for (int n = l ? (int)l % 2 : 0; n < RANK_COUNTS; n += l ? 3 : 1)
            for (int p = l ? RANDOM : n % 2; p < PLACEMENTS; p += 2) {
                run_over_ranks(&problem, layers[l].order, rank_counts[n], (enum placement)p, GB_FP32, GB_AT_RECEIVER,
                               output);
                for (size_t i = 0; i < count; i++)
                    assert_same_float(whole[i], output[i], "layer %zu, %u ranks, %s, FP32 rows: token %zu, element %zu",
                                      l, rank_counts[n], placement_names[p], i / a->shape.hidden, i % a->shape.hidden);
                run_over_ranks(&problem, layers[l].order, rank_counts[n], (enum placement)p, GB_BF16, GB_AT_RECEIVER,
                               output);
                for (size_t i = 0; i < count; i++)
                    assert_same_float(bf16_rows[i], output[i],
                                      "layer %zu, %u ranks, %s, bf16 rows: token %zu, element %zu", l, rank_counts[n],
                                      placement_names[p], i / a->shape.hidden, i % a->shape.hidden);
            }
        free(whole);
        free(bf16_rows);
        free(output);
        problem.arguments.output = problem.output;
        problem_free(&problem);
    }
}

/* Arguments that no layer has are refused over ranks, too, before anything is sent. */
static void test_bad_layer(void **state)
{
    struct problem problem;
    struct gb_error error = {""};
    (void)state;
    layer_new(&layers[0], &problem);
    struct gb_arguments a = problem.arguments;
    const struct gb_contract *contract = gb_contract_of(&a, GB_LAYER, GB_ORDER_FMA32);
    assert_int_equal(gb_reference_layer_over_ranks(contract, &a, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    assert_non_null(strstr(error.message, "no struct gb_exchange"));
    struct gb_exchange x = exchange_of_layer(&a.shape, 2, GB_BF16, GB_AT_RECEIVER, 2);
    for (size_t s = 0; s < (size_t)a.shape.tokens * a.shape.top_k; s++)
        x.rows += a.ids[s] >= 0;
    int32_t *placed = fresh(a.shape.experts * sizeof *placed);
    memset(placed, 0, a.shape.experts * sizeof *placed);
    a.exchange = &x;
    a.placement = placed;
    assert_int_equal(gb_reference_layer_over_ranks(contract, &a, &error), GB_OK);
    a.routing_weights = NULL;
    error.message[0] = 0;
    assert_int_equal(gb_reference_layer_over_ranks(contract, &a, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    if (!strstr(error.message, "is NULL"))
        fail_msg("'%s'", error.message);
    a.routing_weights = problem.arguments.routing_weights;
    for (size_t s = 0; s < (size_t)a.shape.tokens * a.shape.top_k; s++) /* no rank has anything to compute */
        problem.ids[s] = -1;
    x.rows = 0;
    assert_int_equal(gb_reference_layer_over_ranks(contract, &a, &error), GB_OK);
    a.down.scales = NULL;
    assert_int_equal(gb_reference_layer_over_ranks(contract, &a, &error), GB_EINVAL);
    kept_message(error.message, NULL);
    if (!strstr(error.message, "down"))
        fail_msg("'%s'", error.message);
    free(placed);
    problem_free(&problem);
}

static void refuse(struct exchange *e, bool dispatch, const char *message)
{
    struct gb_error error = {""};
    enum gb_status status = (dispatch ? gb_reference_dispatch : gb_reference_combine)(&e->arguments, &error);
    assert_int_equal(status, GB_EINVAL);
    kept_message(error.message, NULL);
    if (!strstr(error.message, message))
        fail_msg("expected '%s', got '%s'", message, error.message);
    if (dispatch || !e->arguments.output)
        return;
    struct gb_error by_truth = {""}, by_bound = {""}; /* in the same words, before anything is written */
    assert_int_equal(gb_truth_exchange(&e->arguments, NULL, &by_truth), GB_EINVAL);
    assert_string_equal(by_truth.message, error.message);
    assert_int_equal(gb_bound_exchange(&e->arguments, GB_FP32, 24, NULL, NULL, &by_bound), GB_EINVAL);
    assert_string_equal(by_bound.message, error.message);
}

static void test_bad_arguments(void **state)
{
    struct exchange e;
    (void)state;
    exchange_new(&e, 2, 3, 64, 8, 2, BLOCKS, 1);
    const struct gb_exchange good = e.asked;
    e.asked.size = 8;
    refuse(&e, true, "no struct gb_exchange");
    e.asked = good;
    e.asked.ranks = 0;
    refuse(&e, true, "at least 1");
    e.asked = good;
    uint32_t *const sizes[] = {&e.asked.tokens, &e.asked.hidden, &e.asked.experts, &e.asked.top_k};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *sizes[i] = 0;
        refuse(&e, true, "at least 1");
        e.asked = good;
    }
    e.asked.top_k = 9;
    refuse(&e, true, "at most the number of experts");
    e.asked = good;
    e.asked.tokens = UINT32_MAX;
    refuse(&e, false, "do not fit in memory");
    e.asked = good;
    e.asked.tokens = 1u << 29; /* 2^31 routes, one more than there are */
    refuse(&e, true, "do not fit in memory");
    e.asked = good;
    e.asked.rows++;
    refuse(&e, true, "slots have an expert");
    e.asked = good;
    e.asked.quantiser = gb_recipe_find("fp8g128.vllm/1")->quantiser;
    refuse(&e, true, "hidden 64 is no multiple of the block of 128");
    e.asked = good;
    e.asked.accumulation = (enum gb_accumulation)4;
    refuse(&e, false, "accumulation 4");
    e.asked = good;
    e.asked.accumulation = GB_AT_SENDER_NODE;
    e.asked.ranks_per_node = 0;
    refuse(&e, false, "at least one rank");
    e.asked = good;
    e.asked.input = GB_FP16;
    refuse(&e, false, "rows of format");
    e.asked = good;
    e.asked.one_rank = e.asked.rank = 1;
    refuse(&e, true, "the arrays of rank 1 alone");
    e.asked = good;
    e.placed[3] = 2;
    refuse(&e, true, "expert 3 is on rank 2, out of 0..1");
    e.placed[3] = 0;
    int32_t routes[12]; /* of a dispatch, or of sums where there is an accumulation */
    assert_int_equal(gb_reference_routes(&e.arguments, routes, NULL), GB_OK);
    e.asked.accumulation = (enum gb_accumulation)4;
    assert_int_equal(gb_reference_routes(&e.arguments, routes, NULL), GB_EINVAL);
    e.asked = good;
    e.ids[11] = 8;
    refuse(&e, true, "expert id 8 of rank 1, token 2, slot 1 is out of range");
    assert_int_equal(gb_reference_routes(&e.arguments, NULL, NULL), GB_EINVAL);
    e.ids[11] = -2;
    refuse(&e, false, "expert id -2");
    e.arguments.placement = NULL;
    refuse(&e, true, "is NULL");
    exchange_free(&e);
}

/* Every token goes to every expert. */
static void test_all_experts(void **state)
{
    struct exchange e;
    (void)state;
    exchange_new(&e, 2, 3, 16, 4, 4, BLOCKS, 1);
    check_dispatch(&e, "top 4 of 4");
    exchange_free(&e);
}

/* Each buffer that dispatch or combine needs, alone missing. */
static void test_missing_buffers(void **state)
{
    struct exchange e;
    (void)state;
    exchange_new(&e, 2, 3, 128, 8, 2, BLOCKS, 1);
    struct gb_arguments *a = &e.arguments;
    const struct gb_arguments good = *a;
#define MISSING(dispatch, buffer) (a->buffer = NULL, refuse(&e, dispatch, "is NULL"), *a = good)
    MISSING(true, ids), MISSING(true, placement), MISSING(true, x), MISSING(true, counts), MISSING(true, routes),
        MISSING(true, codes);
    MISSING(false, ids), MISSING(false, placement), MISSING(false, values), MISSING(false, routing_weights),
        MISSING(false, output);
    a->scales = NULL; /* rows of bf16 have none */
    assert_int_equal(gb_reference_dispatch(a, NULL), GB_OK);
    e.asked.quantiser = gb_recipe_find("fp8g128.vllm/1")->quantiser;
    refuse(&e, true, "is NULL");
#undef MISSING
    exchange_free(&e);
}

/* Processes as threads: what each has for each. */
struct post {
    pthread_barrier_t barrier;
    uint32_t count;
    const struct gb_parcel *to[8];
    enum gb_status status[8];
    struct gb_error error[8];
    uint32_t calls[8];
    uint32_t spoilt; /* in this call process 0 receives something else from process 1; 0: in none */
    void (*spoil)(struct gb_parcel *parcel);
};

static enum gb_status carry(const struct gb_processes *p, enum gb_status mine, const struct gb_parcel *to,
                            struct gb_parcel *from, struct gb_error *error)
{
    struct post *post = p->context;
    uint32_t bad = 0;
    post->to[p->process] = to;
    post->status[p->process] = mine;
    post->error[p->process] = *error;
    pthread_barrier_wait(&post->barrier);
    while (bad < p->count && post->status[bad] == GB_OK)
        bad++;
    for (uint32_t q = 0; bad == p->count && q < p->count; q++) {
        const struct gb_parcel *parcel = &post->to[q][p->process];
        from[q] = (struct gb_parcel){malloc(parcel->size + 1), parcel->size};
        if (parcel->size)
            memcpy(from[q].bytes, parcel->bytes, parcel->size);
    }
    if (++post->calls[p->process] == post->spoilt && p->process == 0 && bad == p->count)
        post->spoil(&from[1]);
    enum gb_status status = bad < p->count ? post->status[bad] : GB_OK;
    if (bad < p->count)
        *error = post->error[bad];
    pthread_barrier_wait(&post->barrier);
    return status;
}

/* One of them, with its ranks' part of the exchange. */
struct process {
    pthread_t thread;
    struct gb_processes self;
    struct gb_exchange asked;
    struct gb_arguments arguments;
    const struct gb_contract *contract; /* of a layer; otherwise NULL */
    enum gb_status status;
    struct gb_error error;
};

static void *run_process(void *argument)
{
    struct process *p = argument;
    omp_set_num_threads(1);
    p->status = p->contract ? gb_reference_layer_over_processes(&p->self, p->contract, &p->arguments, &p->error)
                : p->arguments.values ? gb_reference_combine_over_processes(&p->self, &p->arguments, &p->error)
                                      : gb_reference_dispatch_over_processes(&p->self, &p->arguments, &p->error);
    return NULL;
}

static size_t bytes_of_scales(const struct gb_exchange *x)
{
    size_t codes, scales = 0;
    if (x->quantiser.element)
        assert_int_equal(gb_quantiser_bytes(&x->quantiser, 1, x->hidden, &codes, &scales, NULL), GB_OK);
    return scales;
}

static size_t bytes_of_codes(const struct gb_exchange *x)
{
    size_t codes = x->hidden * sizeof(gb_bf16), scales;
    if (x->quantiser.element)
        assert_int_equal(gb_quantiser_bytes(&x->quantiser, 1, x->hidden, &codes, &scales, NULL), GB_OK);
    return codes;
}

/* The part of e of one process, whose first row is `row`; returns how many rows its ranks have. */
static uint32_t cut(const struct exchange *e, bool sums, struct post *post, uint32_t process, uint32_t row,
                    struct process *p)
{
    const struct gb_exchange *x = &e->asked;
    const uint32_t first = gb_processes_first(x->ranks, post->count, process),
                   end = gb_processes_first(x->ranks, post->count, process + 1);
    const size_t token = (size_t)first * x->tokens;
    *p = (struct process){.self = {process, post->count, post, carry}, .asked = *x, .arguments = e->arguments};
    p->asked.rows = 0;
    for (size_t s = 0; s < e->tokens * x->top_k; s++)
        p->asked.rows +=
            e->ids[s] >= 0 && e->placed[e->ids[s]] >= (int32_t)first && e->placed[e->ids[s]] < (int32_t)end;
    struct gb_arguments *a = &p->arguments;
    a->exchange = &p->asked;
    a->x += token * x->hidden;
    a->ids += token * x->top_k;
    a->routing_weights += token * x->top_k;
    a->routes += row;
    a->codes = e->codes + row * bytes_of_codes(x);
    a->scales = e->scales + row * bytes_of_scales(x);
    a->counts = process ? fresh(sizeof *a->counts * x->ranks * x->experts) : e->counts;
    a->values = sums ? (const char *)e->values + row * x->hidden * (x->input == GB_FP32 ? 4 : 2) : NULL;
    a->output = e->output + token * x->hidden;
    if (first == end) /* a process without ranks has no slots */
        a->ids = NULL;
    return p->asked.rows;
}

/* All of them. spoil: of process 1 it changes something first; or NULL. */
static void run_through(struct post *post, struct exchange *e, bool sums, void (*spoil)(struct process *),
                        struct process *processes)
{
    const uint32_t count = post->count;
    uint32_t row = 0;
    pthread_barrier_init(&post->barrier, NULL, count);
    for (uint32_t q = 0; q < count; q++)
        row += cut(e, sums, post, q, row, &processes[q]);
    assert_int_equal(row, e->asked.rows);
    if (spoil)
        spoil(&processes[1]);
    for (uint32_t q = 0; q < count; q++)
        pthread_create(&processes[q].thread, NULL, run_process, &processes[q]);
    for (uint32_t q = 0; q < count; q++)
        pthread_join(processes[q].thread, NULL);
    for (uint32_t q = 0; q < count; q++) {
        if (!spoil && processes[q].status == GB_OK && !sums)
            assert_memory_equal(processes[q].arguments.counts, e->counts,
                                sizeof(int32_t) * e->asked.ranks * e->asked.experts);
        if (q)
            free(processes[q].arguments.counts);
    }
    pthread_barrier_destroy(&post->barrier);
}

static void run_processes(struct exchange *e, bool sums, uint32_t count, void (*spoil)(struct process *),
                          struct process *processes)
{
    struct post post = {.count = count};
    run_through(&post, e, sums, spoil, processes);
}

static void run_well(struct exchange *e, bool sums, uint32_t count, const char *what)
{
    struct process processes[8];
    run_processes(e, sums, count, NULL, processes);
    for (uint32_t q = 0; q < count; q++)
        if (processes[q].status != GB_OK)
            fail_msg("%s, process %u of %u: %s", what, q, count, processes[q].error.message);
}

/* An array of `bytes`, as the reference and then the processes wrote it. */
struct both {
    void *at, *reference;
    size_t bytes;
};

static struct both keep(void *at, size_t bytes)
{
    struct both b = {at, fresh(bytes), bytes};
    memcpy(b.reference, at, bytes);
    memset(at, 0x5A, bytes);
    return b;
}

static void compare(struct both *b, const char *name, const char *what, uint32_t count)
{
    if (memcmp(b->at, b->reference, b->bytes))
        fail_msg("%s: %s by %u processes is not the reference's", what, name, count);
    free(b->reference);
}

static const uint32_t process_counts[] = {1, 2, 3, 8};
enum { PROCESS_COUNTS = sizeof process_counts / sizeof *process_counts };

static void test_dispatch_over_processes(void **state)
{
    static const char *const recipes[] = {NULL, "fp8g128.deepseek/1", "nvfp4.trtllm/1"};
    (void)state;
    for (int n = 0; n < RANK_COUNTS - 1; n++)
        for (int p = 0; p < PLACEMENTS; p++)
            for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++)
                for (int c = (n + p + (int)r) % 2; c < PROCESS_COUNTS; c += 2) {
                    struct exchange e;
                    char what[128];
                    exchange_new(&e, rank_counts[n], 3, 128, 30, 4, (enum placement)p, 17 + r);
                    if (recipes[r])
                        e.asked.quantiser = gb_recipe_find(recipes[r])->quantiser;
                    snprintf(what, sizeof what, "%u ranks, %s, %s", rank_counts[n], placement_names[p],
                             recipes[r] ? recipes[r] : "bf16");
                    assert_int_equal(gb_reference_dispatch(&e.arguments, NULL), GB_OK);
                    struct both counts = keep(e.counts, sizeof *e.counts * e.asked.ranks * e.asked.experts),
                                routes = keep(e.routes, sizeof *e.routes * e.asked.rows),
                                codes = keep(e.codes, e.asked.rows * bytes_of_codes(&e.asked)),
                                scales = keep(e.scales, e.asked.rows * bytes_of_scales(&e.asked));
                    run_well(&e, false, process_counts[c], what);
                    compare(&counts, "counts", what, process_counts[c]);
                    compare(&routes, "routes", what, process_counts[c]);
                    compare(&codes, "codes", what, process_counts[c]);
                    compare(&scales, "scales", what, process_counts[c]);
                    exchange_free(&e);
                }
}

static void test_combine_over_processes(void **state)
{
    static const enum data data[] = {DATA_CODES, DATA_WIDE, DATA_NONFINITE};
    static const struct {
        enum gb_accumulation accumulation;
        uint32_t ranks_per_node;
    } all[] = {
        {GB_AT_RECEIVER, 1}, {GB_AT_SENDER, 1}, {GB_AT_SENDER_NODE, 1}, {GB_AT_SENDER_NODE, 3}, {GB_AT_SENDER_NODE, 8}};
    (void)state;
    for (int n = 0; n < RANK_COUNTS - 1; n++)
        for (int d = 0; d < 4; d++)
            for (size_t i = 0; i < sizeof all / sizeof *all; i++)
                for (int c = (n + d + (int)i) % 2; c < PROCESS_COUNTS; c += 2) {
                    struct exchange e;
                    char what[128];
                    exchange_new(&e, rank_counts[n], 3, 13, 30, 6, RANDOM, 40 + i);
                    e.asked.input = d == 3 ? GB_FP32 : GB_BF16;
                    fill_rows(&e, d == 3 ? DATA_CODES : data[d], 5);
                    for (uint32_t row = 0; d == 3 && row < e.asked.rows;
                         row++) /* sums that are NaN of the CPU's kind */
                        ((float *)e.values)[(size_t)row * e.asked.hidden] = row % 2 ? INFINITY : -INFINITY;
                    combine(&e, all[i].accumulation, all[i].ranks_per_node, e.output);
                    struct both output = keep(e.output, e.tokens * e.asked.hidden * sizeof *e.output);
                    snprintf(what, sizeof what, "%u ranks, data %d, accumulation %d of %u", rank_counts[n], d,
                             (int)all[i].accumulation, all[i].ranks_per_node);
                    run_well(&e, true, process_counts[c], what);
                    compare(&output, "output", what, process_counts[c]);
                    exchange_free(&e);
                }
}

/* The weights of `count` experts from `first` on. */
static struct gb_weights some_experts(const struct gb_weights *w, uint32_t first, uint32_t count)
{
    struct gb_weights some = *w;
    size_t codes, scales, globals;
    assert_int_equal(gb_weights_bytes(w, &codes, &scales, &globals, NULL), GB_OK);
    some.experts = count;
    some.codes = (const char *)w->codes + codes / w->experts * first;
    some.scales = scales ? (const char *)w->scales + scales / w->experts * first : NULL;
    some.global_scales = globals ? w->global_scales + globals / sizeof(float) / w->experts * first : NULL;
    return some;
}

/* The part of a layer over ranks of one process, with experts in blocks. whole: of all ranks. */
static void cut_layer(const struct gb_arguments *whole, struct post *post, uint32_t process, const char *order,
                      struct process *p)
{
    const struct gb_exchange *x = whole->exchange;
    const uint32_t first = gb_processes_first(x->ranks, post->count, process),
                   end = gb_processes_first(x->ranks, post->count, process + 1);
    uint32_t expert = 0, experts = 0;
    *p = (struct process){.self = {process, post->count, post, carry}, .asked = *x, .arguments = *whole};
    for (uint32_t e = 0; e < x->experts; e++) {
        expert += whole->placement[e] < (int32_t)first;
        experts += whole->placement[e] >= (int32_t)first && whole->placement[e] < (int32_t)end;
    }
    p->asked.rows = 0;
    for (size_t s = 0; s < (size_t)whole->shape.tokens * x->top_k; s++)
        p->asked.rows += whole->ids[s] >= (int32_t)expert && whole->ids[s] < (int32_t)(expert + experts);
    struct gb_arguments *a = &p->arguments;
    const size_t token = (size_t)first * x->tokens;
    a->exchange = &p->asked;
    a->shape.tokens = (end - first) * x->tokens;
    a->gate_up = some_experts(&whole->gate_up, expert, experts);
    a->down = some_experts(&whole->down, expert, experts);
    a->x += token * x->hidden;
    a->ids += token * x->top_k;
    a->routing_weights += token * x->top_k;
    a->output = (float *)whole->output + token * x->hidden;
    p->contract = gb_contract_of(a, GB_LAYER, order);
}

/* A layer over so many ranks by so many processes. */
static void run_layer_over_processes(struct problem *problem, const char *order, uint32_t ranks, uint32_t count,
                                     float *output)
{
    struct process processes[8];
    struct post post = {.count = count};
    struct gb_arguments a = problem->arguments;
    struct gb_exchange x = exchange_of_layer(&a.shape, ranks, GB_FP32, GB_AT_RECEIVER, 1);
    int32_t *placed = fresh(a.shape.experts * sizeof *placed);
    place(BLOCKS, a.shape.experts, ranks, NULL, placed);
    a.exchange = &x;
    a.placement = placed;
    a.output = output;
    pthread_barrier_init(&post.barrier, NULL, count);
    for (uint32_t q = 0; q < count; q++)
        cut_layer(&a, &post, q, order, &processes[q]);
    for (uint32_t q = 0; q < count; q++)
        pthread_create(&processes[q].thread, NULL, run_process, &processes[q]);
    for (uint32_t q = 0; q < count; q++)
        pthread_join(processes[q].thread, NULL);
    for (uint32_t q = 0; q < count; q++)
        if (processes[q].status != GB_OK)
            fail_msg("process %u of %u: %s", q, count, processes[q].error.message);
    pthread_barrier_destroy(&post.barrier);
    free(placed);
}

static void test_layer_over_processes(void **state)
{
    (void)state;
    for (size_t l = 0; l < sizeof layers / sizeof *layers; l++) {
        struct problem problem;
        layer_new(&layers[l], &problem);
        const struct gb_arguments *a = &problem.arguments;
        size_t count = (size_t)a->shape.tokens * a->shape.hidden;
        float *whole = fresh(count * sizeof *whole), *output = fresh(count * sizeof *output);
        problem.arguments.output = whole;
        assert_int_equal(gb_reference_layer(gb_contract_of(a, GB_LAYER, layers[l].order), a, NULL), GB_OK);
        for (int c = (int)l % 2; c < PROCESS_COUNTS; c += 2) {
            memset(output, 0xA5, count * sizeof *output);
            run_layer_over_processes(&problem, layers[l].order, 4, process_counts[c], output);
            for (size_t i = 0; i < count; i++)
                assert_same_float(whole[i], output[i], "layer %zu, %u processes: token %zu, element %zu", l,
                                  process_counts[c], i / a->shape.hidden, i % a->shape.hidden);
        }
        free(whole);
        free(output);
        problem.arguments.output = problem.output;
        problem_free(&problem);
    }
}

static int32_t no_expert[] = {99, -1, -1, -1, -1, -1};

static void spoil_ids(struct process *p)
{
    p->arguments.ids = no_expert;
}

static void spoil_rows(struct process *p)
{
    p->asked.rows++;
}

static void spoil_buffer(struct process *p)
{
    p->arguments.placement = NULL;
}

/* What is wrong in one process, all of them say. */
static void test_bad_process(void **state)
{
    static const struct {
        void (*spoil)(struct process *);
        const char *message;
    } all[] = {{spoil_ids, "expert id 99 of rank 1, token 0, slot 0"},
               {spoil_rows, "ranks 1 to 2 receive"},
               {spoil_buffer, "is NULL"}};
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int sums = 0; sums < 2; sums++) {
            struct exchange e;
            struct process processes[3];
            exchange_new(&e, 3, 3, 64, 8, 2, BLOCKS, 1);
            fill_rows(&e, DATA_CODES, 5);
            run_processes(&e, sums, 3, all[i].spoil, processes);
            for (int q = 0; q < 3; q++) {
                assert_int_equal(processes[q].status, GB_EINVAL);
                kept_message(processes[q].error.message, NULL);
                if (!strstr(processes[q].error.message, all[i].message))
                    fail_msg("process %d: expected '%s', got '%s'", q, all[i].message, processes[q].error.message);
            }
            exchange_free(&e);
        }
}

/* What process 0 receives from process 1 instead. */
static void half_an_item(struct gb_parcel *parcel)
{
    parcel->size--;
}

static void a_count_less(struct gb_parcel *parcel)
{
    parcel->size -= sizeof(int32_t);
}

static void less_than_none(struct gb_parcel *parcel)
{
    ((int32_t *)parcel->bytes)[0] = -1;
}

static void more_than_all(struct gb_parcel *parcel)
{
    ((int32_t *)parcel->bytes)[7] = 13;
}

/* Items begin with four numbers of 4 bytes: row, route, rank and weight, or token, rank, place and weight. */
static void put_number(struct gb_parcel *parcel, size_t at, int32_t number)
{
    assert_true(parcel->size >= 2 * 16);
    ((int32_t *)parcel->bytes)[at] = number;
}

static void row_behind(struct gb_parcel *parcel)
{
    put_number(parcel, 0, 1000);
}

static void row_before(struct gb_parcel *parcel)
{
    put_number(parcel, 0, -1);
}

static void row_twice(struct gb_parcel *parcel)
{
    assert_true(parcel->size >= 2 * (16 + 64 * sizeof(gb_bf16)));
    put_number(parcel, 4, ((int32_t *)parcel->bytes)[0]);
}

static void row_less(struct gb_parcel *parcel)
{
    parcel->size -= 16 + 64 * sizeof(gb_bf16);
}

static void no_route(struct gb_parcel *parcel)
{
    put_number(parcel, 1, -1);
}

static void far_route(struct gb_parcel *parcel)
{
    put_number(parcel, 1, 3 * 6 * 2);
}

static void far_rank(struct gb_parcel *parcel)
{
    put_number(parcel, 2, 3);
}

static void token_behind(struct gb_parcel *parcel)
{
    put_number(parcel, 0, 6);
}

static void nothing_first(struct process *p)
{
    (void)p;
}

/* What cannot be is told by the process that receives it. Counts are what is sent first: of 3 ranks with 6 tokens, 2
 * slots and 8 experts each. */
static void test_bad_parcel(void **state)
{
    static const struct {
        uint32_t call;
        void (*spoil)(struct gb_parcel *);
        bool sums;
        const char *begins, *ends;
    } all[] = {
        {1, a_count_less, false, "process 1 sent 28 bytes of counts, and not 32", ""},
        {1, less_than_none, false, "counts: rank 1 has -1 routes to expert 0", ""},
        {1, more_than_all, false, "counts: rank 1 has 13 routes to expert 7", ""},
        {2, half_an_item, false, "process 1 sent ", " bytes, no whole number of items of 144"},
        {2, half_an_item, true, "process 1 sent ", " bytes, no whole number of items of 16"},
        {2, row_behind, false, "row 1000, of route ", ", is for another process"},
        {2, row_before, false, "row -1, of route ", ", is for another process"},
        {2, row_twice, false, "row ", ", has arrived twice"},
        {2, row_less, false, "", " rows have arrived of "},
        {2, row_behind, true, "row 1000, of route ", ", is for another process"},
        {2, row_before, true, "row -1, of route ", ", is for another process"},
        {2, no_route, true, "row ", ", of route -1, is for another process"},
        {2, far_route, true, "token 18 of rank 0 does not exist", ""},
        {2, far_rank, true, "token ", " of rank 3 does not exist"},
        {3, token_behind, true, "token 6 is another process's", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct exchange e;
        struct post post = {.count = 3, .spoilt = all[i].call, .spoil = all[i].spoil};
        struct process processes[3];
        exchange_new(&e, 3, 6, 64, 8, 2, BLOCKS, 1);
        fill_rows(&e, DATA_CODES, 5);
        run_through(&post, &e, all[i].sums, nothing_first, processes);
        const char *said = processes[0].error.message;
        kept_message(said, NULL);
        if (processes[0].status != GB_EFORMAT || strncmp(said, all[i].begins, strlen(all[i].begins)) ||
            !strstr(said, all[i].ends))
            fail_msg("case %zu: status %d, expected '%s...%s', got '%s'", i, (int)processes[0].status, all[i].begins,
                     all[i].ends, said);
        exchange_free(&e);
    }
}

int main(void)
{
    omp_set_num_threads(1); /* many small runs */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dispatch),
        cmocka_unit_test(test_combine),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(bounds_are_as_written),
        cmocka_unit_test(test_accumulations),
        cmocka_unit_test(test_layer),
        cmocka_unit_test(test_bad_layer),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_all_experts),
        cmocka_unit_test(test_missing_buffers),
        cmocka_unit_test(test_dispatch_over_processes),
        cmocka_unit_test(test_combine_over_processes),
        cmocka_unit_test(test_layer_over_processes),
        cmocka_unit_test(test_bad_process),
        cmocka_unit_test(test_bad_parcel),
        KEPT_AS("test_exchange"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
