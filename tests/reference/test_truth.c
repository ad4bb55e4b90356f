/* SPDX-License-Identifier: Apache-2.0 */
/* float64 truth against plain loops in long double over the oracle's codebooks. */
#include "tests/support/check.h"

#include "reference/reference.h"
#include "tests/oracle/oracle.h"
#include "tests/support/problem.h"

/* Relative to the sum of the magnitudes of all terms, so that cancellation excuses nothing else. */
static const long double tolerance = 1e-13L;

/* A value, and what 1e-13 is relative to. */
struct measured {
    long double value, magnitude;
};

static long double weight_at(const struct gb_weights *weights, uint32_t expert, uint32_t row, uint32_t column)
{
    size_t index = ((size_t)expert * weights->rows + row) * weights->columns + column;

    if (weights->format == GB_MXFP8)
        return (long double)oracle_decode(ORACLE_E4M3, ((const uint8_t *)weights->codes)[index]) *
               (long double)oracle_e8m0_decode(((const uint8_t *)weights->scales)[index / 32]);
    if (weights->format == GB_BF16)
        return (long double)oracle_decode(ORACLE_BF16, ((const gb_bf16 *)weights->codes)[index].bits);
    uint32_t part_rows = weights->rows / weights->halves, part = row / part_rows;
    if (weights->format == GB_FP8_BLOCK) {
        size_t down = (part_rows + 127) / 128, across = (weights->columns + 127) / 128;
        size_t block = ((expert * weights->halves + part) * down + row % part_rows / 128) * across + column / 128;
        return (long double)oracle_decode(ORACLE_E4M3, ((const uint8_t *)weights->codes)[index]) *
               (long double)((const float *)weights->scales)[block];
    }
    unsigned pair = ((const uint8_t *)weights->codes)[index / 2];
    unsigned code = index % 2 ? pair / 16 : pair % 16;
    if (weights->format == GB_MXFP4)
        return (long double)oracle_decode(ORACLE_E2M1, code) *
               (long double)oracle_e8m0_decode(((const uint8_t *)weights->scales)[index / 32]);
    return (long double)oracle_decode(ORACLE_E2M1, code) *
           (long double)oracle_decode(ORACLE_E4M3, ((const uint8_t *)weights->scales)[index / 16]) *
           (long double)weights->global_scales[expert * weights->halves + part];
}

static struct measured dot(const struct gb_weights *weights, uint32_t expert, uint32_t row, const double *x)
{
    struct measured sum = {0, 0};

    for (uint32_t i = 0; i < weights->columns; i++) {
        long double term = weight_at(weights, expert, row, i) * (long double)x[i];
        sum.value += term;
        sum.magnitude += fabsl(term);
    }
    return sum;
}

static struct measured intermediate(const struct problem *problem, uint32_t expert, uint32_t i, const double *x)
{
    const struct gb_weights *weights = &problem->arguments.gate_up;
    struct measured gate = dot(weights, expert, i, x), up = dot(weights, expert, weights->rows / 2 + i, x);
    if (problem->gate_up_bias) {
        long double gate_bias = (long double)problem->gate_up_bias[expert * weights->rows + i];
        long double up_bias = (long double)problem->gate_up_bias[expert * weights->rows + weights->rows / 2 + i];
        gate = (struct measured){gate.value + gate_bias, gate.magnitude + fabsl(gate_bias)};
        up = (struct measured){up.value + up_bias, up.magnitude + fabsl(up_bias)};
    }
    if (problem->arguments.activation == GB_SWIGLU_OAI) {
        long double g = fminl(gate.value, 7), u = fmaxl(fminl(up.value, 7), -7) + 1;
        long double f = g / (1 + expl(-1.702L * g));
        return (struct measured){f * u, 1.1L * gate.magnitude * fabsl(u) + fabsl(f) * up.magnitude};
    }
    long double silu = gate.value / (1 + expl(-gate.value));

    return (struct measured){silu * up.value, 1.1L * gate.magnitude * fabsl(up.value) + fabsl(silu) * up.magnitude};
}

/* h: [top_k, intermediate] of token t. */
static struct measured output(const struct problem *problem, uint32_t t, uint32_t row, const struct measured *h)
{
    const struct gb_shape *shape = &problem->arguments.shape;
    struct measured sum = {0, 0};

    for (uint32_t j = 0; j < shape->top_k; j++) {
        int32_t expert = problem->ids[t * shape->top_k + j];
        long double routing = (long double)problem->truth_routing_weights[t * shape->top_k + j];
        for (uint32_t i = 0; expert >= 0 && i < shape->intermediate; i++) {
            const struct measured *element = &h[j * shape->intermediate + i];
            long double weight = weight_at(&problem->arguments.down, (uint32_t)expert, row, i);
            sum.value += routing * weight * element->value;
            sum.magnitude += fabsl(routing * weight) * (fabsl(element->value) + element->magnitude);
        }
        if (expert >= 0 && problem->down_bias) {
            long double bias = (long double)problem->down_bias[(uint32_t)expert * shape->hidden + row];
            sum.value += routing * bias;
            sum.magnitude += fabsl(routing * bias);
        }
    }
    return sum;
}

static void expect_close(struct measured expected, double actual, const char *what, size_t token, size_t element)
{
    if (!(fabsl((long double)actual - expected.value) <= tolerance * expected.magnitude))
        fail_msg("%s of token %zu, element %zu: expected %.17Lg, got %.17g", what, token, element, expected.value,
                 actual);
}

enum extended { PLAIN, BIASED, SWIGLU };

static void check_extended(struct gb_shape shape, enum gb_format format, enum data data, uint64_t seed,
                           enum extended extended)
{
    struct problem problem;
    size_t pairs = (size_t)shape.tokens * shape.top_k, outputs = (size_t)shape.tokens * shape.hidden;
    double *truth = malloc(outputs * sizeof(double)), *again = malloc(outputs * sizeof(double));
    double *truth_h = malloc(pairs * shape.intermediate * sizeof(double));
    struct measured *h = calloc((size_t)shape.top_k * shape.intermediate, sizeof *h);

    assert_true(truth && again && truth_h && h);
    problem_new(&problem, shape, format, data, seed);
    problem_empty_slots(&problem, 5, seed);
    memset(truth, 0xA5, outputs * sizeof(double));
    memset(truth_h, 0xA5, pairs * shape.intermediate * sizeof(double));
    if (extended != PLAIN)
        problem_extend(&problem, extended == SWIGLU ? GB_SWIGLU_OAI : GB_SILU, seed);
    const struct gb_arguments *a = &problem.arguments;
    struct gb_truth_quantised weights = {a->gate_up, a->down, {a->activation, a->gate_up_bias, a->down_bias}};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    assert_int_equal(gb_truth_layer(&shape, problem.truth_x, problem.ids, problem.truth_routing_weights, &source, truth,
                                    truth_h, NULL),
                     GB_OK);
    assert_int_equal(
        gb_truth_layer(&shape, problem.truth_x, problem.ids, problem.truth_routing_weights, &source, again, NULL, NULL),
        GB_OK);
    assert_memory_equal(truth, again, outputs * sizeof(double));

    for (uint32_t t = 0; t < shape.tokens; t++) {
        for (size_t n = 0; n < (size_t)shape.top_k * shape.intermediate; n++) {
            size_t pair = (size_t)t * shape.top_k + n / shape.intermediate, i = n % shape.intermediate;
            int32_t expert = problem.ids[pair];
            h[n] = expert < 0 ? (struct measured){0, 0}
                              : intermediate(&problem, (uint32_t)expert, (uint32_t)i,
                                             problem.truth_x + (size_t)t * shape.hidden);
            expect_close(h[n], truth_h[pair * shape.intermediate + i], "intermediate", t, n);
        }
        for (uint32_t row = 0; row < shape.hidden; row++)
            expect_close(output(&problem, t, row, h), truth[(size_t)t * shape.hidden + row], "output", t, row);
    }
    problem_free(&problem);
    free(truth);
    free(again);
    free(truth_h);
    free(h);
}

static void check_layer(struct gb_shape shape, enum gb_format format, enum data data, uint64_t seed)
{
    check_extended(shape, format, data, seed, PLAIN);
}

static void layers_with_extensions(void **state)
{
    (void)state;
    check_extended((struct gb_shape){7, 96, 64, 4, 3}, GB_MXFP4, DATA_CODES, 41, SWIGLU);
    check_extended((struct gb_shape){7, 80, 48, 4, 3}, GB_NVFP4, DATA_CODES, 42, BIASED);
}

/* tokens, hidden, intermediate, experts, top_k; the last leaves experts without tokens */
static void layers_of_nvfp4(void **state)
{
    (void)state;
    check_layer((struct gb_shape){1, 16, 16, 1, 1}, GB_NVFP4, DATA_CODES, 1);
    check_layer((struct gb_shape){7, 80, 48, 4, 3}, GB_NVFP4, DATA_CODES, 2);
    check_layer((struct gb_shape){9, 384, 192, 6, 4}, GB_NVFP4, DATA_GAUSSIAN, 3);
    check_layer((struct gb_shape){3, 48, 32, 40, 2}, GB_NVFP4, DATA_CANCEL, 4);
}

static void layers_of_mxfp4(void **state)
{
    (void)state;
    check_layer((struct gb_shape){4, 96, 64, 3, 2}, GB_MXFP4, DATA_CODES, 31);
}

static void layers_of_fp8(void **state)
{
    (void)state;
    check_layer((struct gb_shape){4, 130, 70, 3, 2}, GB_FP8_BLOCK, DATA_CODES, 32);
    check_layer((struct gb_shape){3, 40, 257, 3, 2}, GB_FP8_BLOCK, DATA_CODES, 33);
}

static void layers_of_mxfp8(void **state)
{
    (void)state;
    check_layer((struct gb_shape){4, 96, 64, 3, 2}, GB_MXFP8, DATA_CODES, 21);
    check_layer((struct gb_shape){3, 384, 192, 4, 3}, GB_MXFP8, DATA_GAUSSIAN, 22);
}

static void layers_of_bf16(void **state)
{
    (void)state;
    check_layer((struct gb_shape){1, 1, 1, 1, 1}, GB_BF16, DATA_GAUSSIAN, 5);
    check_layer((struct gb_shape){5, 13, 7, 3, 2}, GB_BF16, DATA_CODES, 6);
    check_layer((struct gb_shape){4, 129, 65, 3, 3}, GB_BF16, DATA_GAUSSIAN, 7);
}

static void all_slots_empty(void **state)
{
    const struct gb_shape shape = {3, 32, 16, 4, 2};
    struct problem problem;
    double truth[3 * 32], h[3 * 2 * 16];

    (void)state;
    problem_new(&problem, shape, GB_NVFP4, DATA_CODES, 8);
    problem_empty_slots(&problem, 1, 0);
    struct gb_truth_quantised weights = {problem.arguments.gate_up, problem.arguments.down, {0}};
    struct gb_truth_source source = gb_truth_from_quantised(&weights);
    memset(truth, 0xA5, sizeof truth);
    memset(h, 0xA5, sizeof h);
    assert_int_equal(
        gb_truth_layer(&shape, problem.truth_x, problem.ids, problem.truth_routing_weights, &source, truth, h, NULL),
        GB_OK);
    for (size_t i = 0; i < sizeof truth / sizeof *truth; i++)
        assert_true(truth[i] == 0);
    for (size_t i = 0; i < sizeof h / sizeof *h; i++)
        assert_true(h[i] == 0);
    problem_free(&problem);
}

/* A source of the caller's: gate weights and up weights are all `gate` and `up`, down weights all `down`. */
struct constants {
    struct gb_shape shape;
    double gate, up, down;
    enum gb_status down_status;
};

static enum gb_status constant_gate_up(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    const struct constants *constants = context;
    size_t half = (size_t)constants->shape.intermediate * constants->shape.hidden;

    (void)error;
    for (size_t i = 0; i < 2 * half; i++)
        matrix[i] = (i < half ? constants->gate : constants->up) * (expert + 1);
    return GB_OK;
}

static enum gb_status constant_down(void *context, uint32_t expert, double *matrix, struct gb_error *error)
{
    const struct constants *constants = context;

    (void)expert;
    (void)error;
    for (size_t i = 0; i < (size_t)constants->shape.intermediate * constants->shape.hidden; i++)
        matrix[i] = constants->down;
    return constants->down_status;
}

static void any_source(void **state)
{
    struct constants constants = {{2, 4, 3, 2, 1}, 0.5, 0.25, 2, GB_OK};
    struct gb_truth_source source = {&constants, constant_gate_up, constant_down, {0}};
    const double x[8] = {1, 1, 1, 1, 2, -1, 1, 0};
    const int32_t ids[2] = {1, 0};
    const double routing[2] = {0.5, -1};
    double truth[8];

    (void)state;
    assert_int_equal(gb_truth_layer(&constants.shape, x, ids, routing, &source, truth, NULL, NULL), GB_OK);
    double first = 4 / (1 + exp(-4)) * 2 * 3 * 2 * 0.5, second = 1 / (1 + exp(-1)) * 0.5 * 3 * 2 * -1;
    for (int i = 0; i < 8; i++) {
        double expected = i < 4 ? first : second;
        assert_true(fabs(truth[i] - expected) <= 1e-14 * fabs(expected));
    }
    constants.down_status = GB_EIO;
    assert_int_equal(gb_truth_layer(&constants.shape, x, ids, routing, &source, truth, NULL, NULL), GB_EIO);
    const int32_t bad[2] = {0, 2};
    struct gb_error error = {""};
    assert_int_equal(gb_truth_layer(&constants.shape, x, bad, routing, &source, truth, NULL, &error), GB_EINVAL);
    assert_string_equal(error.message, "expert id 2 of token 1, slot 0 is out of range -1..1");
    /* And by all that judges a layer. */
    const struct gb_truth_quantised weights = {0};
    const struct gb_rounding_points points = {0};
    const struct gb_bounds bounds = {0};
    struct gb_exactness exactness;
    struct gb_covariance covariance;
    struct gb_error errors[4] = {{""}};
    assert_int_equal(gb_exact_layer(&constants.shape, x, bad, routing, &source, &points, &exactness, &errors[0]),
                     GB_EINVAL);
    assert_int_equal(gb_bound_layer(&constants.shape, x, bad, routing, &weights, &points, &bounds, &errors[1]),
                     GB_EINVAL);
    assert_int_equal(gb_covariance_new(&constants.shape, bad, routing, x, &weights, &bounds, &covariance, &errors[2]),
                     GB_EINVAL);
    assert_int_equal(
        gb_bound_down(&constants.shape, x, x, bad, routing, &weights, &points, &bounds, &covariance, &errors[3]),
        GB_EINVAL);
    for (int i = 0; i < 4; i++)
        assert_string_equal(errors[i].message, error.message);
}

static void check_route(struct gb_shape shape, bool renormalise, uint64_t seed)
{
    enum { MOST = 64 };
    uint64_t random = seed;
    struct gb_weights router;
    size_t elements = (size_t)shape.tokens * shape.hidden, pairs = (size_t)shape.tokens * shape.top_k;
    double *x = malloc(elements * sizeof(double)), *weights = malloc((pairs + 1) * sizeof(double));
    int32_t *ids = malloc((pairs + 1) * sizeof(int32_t));

    assert_true(x && weights && ids && shape.experts <= MOST);
    ids[pairs] = -7; /* behind what is asked for */
    weights[pairs] = -7.0;
    problem_weights(&router, GB_BF16, 1, shape.experts, shape.hidden, 1, DATA_GAUSSIAN, &random);
    for (size_t i = 0; i < elements; i++)
        x[i] = 3 * random_gaussian(&random);
    assert_int_equal(gb_truth_route(&shape, x, &router, renormalise, ids, weights, NULL), GB_OK);
    assert_true(ids[pairs] == -7 && weights[pairs] == -7.0);
    for (uint32_t t = 0; t < shape.tokens; t++) {
        long double logit[MOST], sum = 0, chosen = 0;
        for (uint32_t e = 0; e < shape.experts; e++) {
            logit[e] = dot(&router, 0, e, x + (size_t)t * shape.hidden).value;
            sum += expl(logit[e]);
        }
        for (uint32_t j = 0; j < shape.top_k; j++) {
            int32_t id = ids[t * shape.top_k + j];
            uint32_t larger = 0;
            for (uint32_t e = 0; e < shape.experts; e++)
                larger += logit[e] > logit[id];
            assert_int_equal(larger, j);
            chosen += expl(logit[id]);
        }
        for (uint32_t j = 0; j < shape.top_k; j++) {
            long double expected = expl(logit[ids[t * shape.top_k + j]]) / (renormalise ? chosen : sum);
            expect_close((struct measured){expected, 10 * expected}, weights[t * shape.top_k + j], "routing weight", t,
                         j);
        }
    }
    problem_weights_free(&router);
    free(x);
    free(weights);
    free(ids);
}

static void routes(void **state)
{
    (void)state;
    check_route((struct gb_shape){5, 48, 1, 16, 4}, true, 10);
    check_route((struct gb_shape){5, 48, 1, 16, 4}, false, 11);
    check_route((struct gb_shape){3, 384, 1, 64, 64}, false, 12);
    check_route((struct gb_shape){1, 1, 1, 1, 1}, true, 13);
}

/* Rows 0, 2 and 5 are equal, and exact in float64. */
static void equal_logits_go_by_id(void **state)
{
    static const uint16_t rows[6] = {0x4000, 0x3F80, 0x4000, 0xBF80, 0x4040, 0x4000};
    const struct gb_shape shape = {1, 1, 1, 6, 5};
    const struct gb_weights router = {
        .format = GB_BF16, .experts = 1, .rows = 6, .columns = 1, .halves = 1, .codes = rows};
    const double x = 1.5;
    static const int32_t order[5] = {4, 0, 2, 5, 1};
    int32_t ids[5];
    double weights[5];

    (void)state;
    assert_int_equal(gb_truth_route(&shape, &x, &router, true, ids, weights, NULL), GB_OK);
    assert_memory_equal(ids, order, sizeof order);
    assert_true(weights[1] == weights[2] && weights[2] == weights[3] && weights[0] > weights[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_of_nvfp4),        cmocka_unit_test(layers_of_mxfp8), cmocka_unit_test(layers_of_mxfp4),
        cmocka_unit_test(layers_with_extensions), cmocka_unit_test(layers_of_fp8),   cmocka_unit_test(layers_of_bf16),
        cmocka_unit_test(all_slots_empty),        cmocka_unit_test(any_source),      cmocka_unit_test(routes),
        cmocka_unit_test(equal_logits_go_by_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
