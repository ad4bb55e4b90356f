/* SPDX-License-Identifier: Apache-2.0 */
/* gb_covariance: against the covariance matrix of the whole row, summed up term by term. */
#include "tests/support/check.h"

#include <sys/mman.h>
#include <unistd.h>

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/problem.h"

static const struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};

struct expected {
    struct problem problem;
    struct gb_truth_quantised weights;
    struct gb_truth_source source;
    struct gb_bounds bounds;
    struct gb_covariance moments;
    double *truth, *intermediate; /* [tokens, hidden], [tokens, top_k, intermediate] */
    double *covariance;           /* [hidden, hidden], of one token */
    double *share;                /* [top_k + 1, hidden] */
};

static double *doubles(size_t count)
{
    double *values = calloc(count, sizeof *values);
    assert_non_null(values);
    return values;
}

static void expected_new(struct expected *e, struct gb_shape shape, enum gb_format format, uint32_t one_in_empty)
{
    size_t outputs = (size_t)shape.tokens * shape.hidden;
    size_t inner = (size_t)shape.tokens * shape.top_k * shape.intermediate;
    struct problem *p = &e->problem;

    problem_new(p, shape, format, DATA_GAUSSIAN, 7);
    if (one_in_empty)
        problem_empty_slots(p, one_in_empty, 8);
    e->weights = (struct gb_truth_quantised){p->arguments.gate_up, p->arguments.down, {0}};
    e->source = gb_truth_from_quantised(&e->weights);
    e->bounds = (struct gb_bounds){.output_sigma = doubles(outputs), .intermediate_sigma = doubles(inner)};
    e->truth = doubles(outputs);
    e->intermediate = doubles(inner);
    e->covariance = doubles((size_t)shape.hidden * shape.hidden);
    e->share = doubles((size_t)(shape.top_k + 1) * shape.hidden);
    assert_int_equal(
        gb_bound_layer(&shape, p->truth_x, p->ids, p->truth_routing_weights, &e->weights, &points, &e->bounds, NULL),
        GB_OK);
    assert_int_equal(gb_truth_layer(&shape, p->truth_x, p->ids, p->truth_routing_weights, &e->source, e->truth,
                                    e->intermediate, NULL),
                     GB_OK);
    assert_int_equal(gb_covariance_new(&shape, p->ids, p->truth_routing_weights, e->intermediate, &e->weights,
                                       &e->bounds, &e->moments, NULL),
                     GB_OK);
}

static void expected_free(struct expected *e)
{
    gb_covariance_free(&e->moments);
    free(e->bounds.output_sigma);
    free(e->bounds.intermediate_sigma);
    free(e->truth);
    free(e->intermediate);
    free(e->covariance);
    free(e->share);
    problem_free(&e->problem);
}

/* One token's covariance and shares from their definition. */
static void token_moments(struct expected *e, uint32_t token)
{
    const struct gb_shape *shape = &e->problem.arguments.shape;
    uint32_t hidden = shape->hidden, inner = shape->intermediate;
    double *matrix = doubles((size_t)hidden * inner); /* [hidden, intermediate] */

    memset(e->covariance, 0, sizeof(double) * hidden * hidden);
    memset(e->share, 0, sizeof(double) * (shape->top_k + 1) * hidden);
    for (uint32_t j = 0; j < shape->top_k; j++) {
        size_t pair = (size_t)token * shape->top_k + j;
        double weight = e->problem.truth_routing_weights[pair];
        if (e->problem.ids[pair] < 0)
            continue;
        e->source.down(e->source.context, (uint32_t)e->problem.ids[pair], matrix, NULL);
        for (uint32_t o = 0; o < hidden; o++)
            for (uint32_t i = 0; i < inner; i++) {
                double sigma = e->bounds.intermediate_sigma[pair * inner + i];
                double share = weight * matrix[(size_t)o * inner + i];
                e->share[(size_t)j * hidden + o] += share * e->intermediate[pair * inner + i];
                e->share[(size_t)shape->top_k * hidden + o] += share * e->intermediate[pair * inner + i];
                for (uint32_t q = 0; q <= o; q++)
                    e->covariance[(size_t)o * hidden + q] +=
                        share * weight * matrix[(size_t)q * inner + i] * sigma * sigma;
            }
    }
    for (uint32_t o = 0; o < hidden; o++) {
        double sigma = e->bounds.output_sigma[(size_t)token * hidden + o];
        e->covariance[(size_t)o * hidden + o] = sigma * sigma;
        for (uint32_t q = 0; q < o; q++)
            e->covariance[(size_t)q * hidden + o] = e->covariance[(size_t)o * hidden + q];
    }
    free(matrix);
}

static void expect_near(const char *what, size_t at, double got, double expected, double scale)
{
    if (!(fabs(got - expected) <= 1e-6 * scale))
        fail_msg("%s %zu: %.12g, expected %.12g", what, at, got, expected);
}

static void check_factor(const struct expected *e, uint32_t token)
{
    const struct gb_covariance *m = &e->moments;
    uint32_t hidden = e->problem.arguments.shape.hidden;

    for (uint32_t k = 0; k < m->tiles; k++) {
        const double *l = m->factor + ((size_t)token * m->tiles + k) * m->tile * (m->tile + 1) / 2;
        for (uint32_t r = 0; r < m->tile && k * m->tile + r < hidden; r++)
            for (uint32_t c = 0; c <= r; c++) {
                double sum = 0;
                const double *row = e->covariance + (size_t)(k * m->tile + r) * hidden + k * m->tile;
                for (uint32_t i = 0; i <= c; i++)
                    sum += l[r * (r + 1) / 2 + i] * l[c * (c + 1) / 2 + i];
                expect_near("covariance", c, sum, row[c],
                            sqrt(row[r] * e->covariance[(size_t)(k * m->tile + c) * (hidden + 1)]));
            }
    }
}

static void check_directions(const struct expected *e, uint32_t token)
{
    const struct gb_covariance *m = &e->moments;
    uint32_t hidden = e->problem.arguments.shape.hidden;

    for (uint32_t d = 0; d < m->directions; d++) {
        size_t at = (size_t)token * m->directions + d;
        const float *u = m->direction + at * hidden;
        double signal = 0, variance = 0;
        for (uint32_t o = 0; o < hidden; o++) {
            signal += (double)u[o] * e->share[(size_t)d * hidden + o];
            for (uint32_t q = 0; q < hidden; q++)
                variance += (double)u[o] * (double)u[q] * e->covariance[(size_t)o * hidden + q];
        }
        expect_near("signal", d, m->signal[at], signal, signal);
        expect_near("variance", d, m->variance[at], variance, variance);
        /* The best direction there is has signal^2 / variance = share . C^-1 share; none may seem better. */
        assert_true(variance == 0 || m->tiles > 1 || signal * signal / variance > 1e4);
    }
}

static void check_shape(struct gb_shape shape, enum gb_format format, uint32_t one_in_empty, uint32_t tiles)
{
    struct expected e;

    expected_new(&e, shape, format, one_in_empty);
    assert_int_equal(e.moments.tiles, tiles);
    assert_int_equal(e.moments.tokens, shape.tokens);
    for (uint32_t t = 0; t < shape.tokens; t += (shape.tokens + 3) / 4) {
        token_moments(&e, t);
        check_factor(&e, t);
        check_directions(&e, t);
    }
    expected_free(&e);
}

static void whole_rows(void **state)
{
    (void)state;
    check_shape((struct gb_shape){4, 96, 64, 5, 3}, GB_NVFP4, 0, 1);
    check_shape((struct gb_shape){4, 96, 32, 5, 2}, GB_MXFP8, 0, 1); /* fewer errors than outputs */
}

static void rows_in_tiles(void **state)
{
    (void)state;
    check_shape((struct gb_shape){64, 272, 32, 4, 2}, GB_BF16, 0, 2);
}

/* A token without a slot in use has neither errors nor directions, and whitening leaves nothing of it. */
static void empty_slots(void **state)
{
    const struct gb_shape shape = {6, 64, 32, 4, 2};
    struct expected e;
    double values[64];
    uint32_t empty = 0;

    (void)state;
    check_shape(shape, GB_NVFP4, 2, 1);
    expected_new(&e, shape, GB_NVFP4, 2);
    for (uint32_t t = 0; t < shape.tokens; t++) {
        if (e.problem.ids[2 * t] >= 0 || e.problem.ids[2 * t + 1] >= 0)
            continue;
        empty++;
        assert_true(e.moments.signal[3 * t + 2] == 0 && e.moments.variance[3 * t + 2] == 0);
        for (unsigned i = 0; i < 64; i++)
            values[i] = i;
        gb_covariance_whiten(&e.moments, t, 0, 64, values);
        for (unsigned i = 0; i < 64; i++)
            assert_true(values[i] == 0);
    }
    assert_true(empty > 0);
    expected_free(&e);
}

/* The rows of down_proj end where the process may not read on. */
static void no_row_past_the_last(void **state)
{
    static const struct gb_shape shape = {64, 272, 32, 4, 2}; /* its second tile is no whole one */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct expected e;
    struct gb_covariance again;

    (void)state;
    expected_new(&e, shape, GB_BF16, 0);
    const size_t bytes = sizeof(gb_bf16) * shape.experts * shape.hidden * shape.intermediate;
    const size_t mapped = (bytes + page - 1) / page * page;
    char *map = mmap(NULL, mapped + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + mapped, page, PROT_NONE), 0);
    struct gb_truth_quantised edge = e.weights;
    edge.down.codes = memcpy(map + mapped - bytes, e.weights.down.codes, bytes);
    assert_int_equal(gb_covariance_new(&shape, e.problem.ids, e.problem.truth_routing_weights, e.intermediate, &edge,
                                       &e.bounds, &again, NULL),
                     GB_OK);
    const size_t factors = (size_t)again.tokens * again.tiles * again.tile * (again.tile + 1) / 2;
    assert_memory_equal(again.factor, e.moments.factor, sizeof *again.factor * factors);
    gb_covariance_free(&again);
    munmap(map, mapped + page);
    expected_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_rows),
        cmocka_unit_test(rows_in_tiles),
        cmocka_unit_test(empty_slots),
        cmocka_unit_test(no_row_past_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
