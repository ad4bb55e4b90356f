/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gb_bound_down with codes that are open: what flips make of the output is taken out whole, in any combination, and all
 * else is left: against the projection by its definition.
 */
#include "tests/support/check.h"

#include "quant/quant.h"
#include "reference/reference.h"
#include "tests/support/problem.h"

static const struct gb_shape shape = {4, 96, 64, 4, 2};
static const struct gb_rounding_points points = {.intermediate = GB_BF16, .output = GB_FP32, .accumulator_bits = 24};

struct scene {
    struct problem problem;
    struct gb_truth_quantised weights;
    double *intermediate, *flips; /* [tokens, top_k, intermediate] */
    struct gb_bounds bounds;
    struct gb_covariance covariance;
};

static double *doubles(size_t count)
{
    double *values = calloc(count, sizeof *values);
    assert_non_null(values);
    return values;
}

static size_t inner(void)
{
    return (size_t)shape.tokens * shape.top_k * shape.intermediate;
}

/* Every one_in-th code of the first three tokens is open; nothing of token 3 is. */
static void scene_new(struct scene *s, uint32_t one_in)
{
    size_t outputs = (size_t)shape.tokens * shape.hidden;
    uint64_t random = 5;
    problem_new(&s->problem, shape, GB_NVFP4, DATA_GAUSSIAN, 3);
    s->weights = (struct gb_truth_quantised){s->problem.arguments.gate_up, s->problem.arguments.down, {0}};
    s->intermediate = doubles(inner());
    s->flips = doubles(inner());
    s->bounds = (struct gb_bounds){.output_truth = doubles(outputs),
                                   .output_worst = doubles(outputs),
                                   .output_sigma = doubles(outputs),
                                   .output_bias = doubles(outputs)};
    for (size_t i = 0; i < inner(); i++) {
        s->intermediate[i] = random_gaussian(&random);
        s->flips[i] = i < inner() * 3 / 4 && random_below(&random, one_in) == 0 ? 0.5 : 0;
    }
}

static void bound(struct scene *s)
{
    const struct problem *p = &s->problem;
    assert_int_equal(gb_bound_down(&shape, s->intermediate, s->flips, p->ids, p->truth_routing_weights, &s->weights,
                                   &points, &s->bounds, &s->covariance, NULL),
                     GB_OK);
}

static void scene_free(struct scene *s)
{
    problem_free(&s->problem);
    free(s->intermediate);
    free(s->flips);
    free(s->bounds.output_truth);
    free(s->bounds.output_worst);
    free(s->bounds.output_sigma);
    free(s->bounds.output_bias);
    gb_covariance_free(&s->covariance);
}

/* What a token's flips, [top_k, intermediate], make of its outputs. */
static void flipped(const struct scene *s, uint32_t token, const double *flips, double *output)
{
    double row[64];
    memset(output, 0, sizeof *output * shape.hidden);
    for (uint32_t slot = 0; slot < shape.top_k; slot++) {
        size_t pair = (size_t)token * shape.top_k + slot;
        for (uint32_t o = 0; o < shape.hidden; o++) {
            gb_weights_row(&s->weights.down, (uint32_t)s->problem.ids[pair], o, row);
            for (uint32_t i = 0; i < shape.intermediate; i++)
                output[o] += s->problem.truth_routing_weights[pair] * row[i] * flips[slot * shape.intermediate + i];
        }
    }
}

/* In units of deviation. */
static double length(const struct scene *s, uint32_t token, const double *values)
{
    double sum = 0;
    for (uint32_t o = 0; o < shape.hidden; o++)
        sum += pow(values[o] / s->covariance.deviation[token * shape.hidden + o], 2);
    return sqrt(sum);
}

static void flips_are_taken_out(void **state)
{
    struct scene s;
    uint64_t random = 9;
    (void)state;
    scene_new(&s, 6);
    bound(&s);
    for (uint32_t t = 0; t < shape.tokens; t++) {
        size_t per_token = (size_t)shape.top_k * shape.intermediate, first = t * per_token;
        double flips[128], output[96];
        uint32_t open = 0;
        for (size_t i = 0; i < per_token; i++) {
            open += s.flips[first + i] > 0;
            flips[i] = s.flips[first + i] * (double)((int)random_below(&random, 21) - 10) / 10;
        }
        assert_int_equal(s.covariance.open[t], open);
        flipped(&s, t, flips, output);
        double before = length(&s, t, output);
        gb_covariance_project(&s.covariance, t, output);
        assert_true(t < 3 ? before > 1e3 && length(&s, t, output) < 1e-6 : before == 0);
    }
    scene_free(&s);
}

/* x - Q Q^T x, with Q Q^T = A (A^T A)^-1 A^T from normal equations by Gauss-Jordan. values: [hidden], in units of
 * deviation; columns: [count, hidden]. */
static void by_definition(const double *columns, uint32_t count, double *values)
{
    double gram[64][65], *solved = doubles(count);
    assert_true(count < 64);
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t b = 0; b <= count; b++) {
            const double *other = b < count ? columns + (size_t)b * shape.hidden : values;
            gram[a][b] = 0;
            for (uint32_t o = 0; o < shape.hidden; o++)
                gram[a][b] += columns[(size_t)a * shape.hidden + o] * other[o];
        }
    for (uint32_t a = 0; a < count; a++)
        for (uint32_t r = 0; r < count; r++) {
            double factor = r == a ? 0 : gram[r][a] / gram[a][a];
            for (uint32_t b = 0; b <= count; b++)
                gram[r][b] -= factor * gram[a][b];
        }
    for (uint32_t a = 0; a < count; a++) {
        solved[a] = gram[a][count] / gram[a][a];
        for (uint32_t o = 0; o < shape.hidden; o++)
            values[o] -= solved[a] * columns[(size_t)a * shape.hidden + o];
    }
    free(solved);
}

static void all_else_is_left(void **state)
{
    struct scene s;
    uint64_t random = 17;
    (void)state;
    scene_new(&s, 6);
    bound(&s);
    for (uint32_t t = 0; t < shape.tokens; t++) {
        size_t per_token = (size_t)shape.top_k * shape.intermediate;
        const double *sigma = s.covariance.deviation + (size_t)t * shape.hidden;
        double *columns = doubles(per_token * shape.hidden), values[96], expected[96], one[128], kept = 0;
        uint32_t count = 0;
        for (size_t i = 0; i < per_token; i++)
            if (s.flips[t * per_token + i] > 0) {
                memset(one, 0, sizeof one);
                one[i] = 1;
                flipped(&s, t, one, columns + (size_t)count * shape.hidden);
                for (uint32_t o = 0; o < shape.hidden; o++)
                    columns[(size_t)count * shape.hidden + o] /= sigma[o];
                count++;
            }
        for (uint32_t o = 0; o < shape.hidden; o++) {
            expected[o] = random_gaussian(&random);
            values[o] = expected[o] * sigma[o];
        }
        by_definition(columns, count, expected);
        gb_covariance_project(&s.covariance, t, values);
        for (uint32_t o = 0; o < shape.hidden; o++) {
            if (!(fabs(values[o] / sigma[o] - expected[o]) < 1e-9))
                fail_msg("token %u, output %u: %g, expected %g", t, o, values[o] / sigma[o], expected[o]);
            kept += s.covariance.kept[(size_t)t * shape.hidden + o];
        }
        assert_true(fabs(kept - (shape.hidden - count)) < 1e-9);
        free(columns);
    }
    scene_free(&s);
}

/* The sum of magnitudes that roundings are relative to takes flips in. */
static void flips_widen(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, 6);
    bound(&s);
    double with = s.bounds.output_sigma[7], untouched = s.bounds.output_sigma[3 * shape.hidden + 7];
    gb_covariance_free(&s.covariance);
    memset(s.flips, 0, sizeof *s.flips * inner());
    bound(&s);
    assert_true(with > s.bounds.output_sigma[7]);
    assert_true(untouched == s.bounds.output_sigma[3 * shape.hidden + 7]);
    scene_free(&s);
}

/* A column that others span is none: here the second slot of a token is the first one again, with other ids. */
static void columns_may_depend(void **state)
{
    struct scene s;
    double output[96], flips[128] = {0}, left = shape.hidden;
    (void)state;
    scene_new(&s, 6);
    s.problem.ids[1] = s.problem.ids[0];
    for (uint32_t i = 0; i < shape.intermediate; i++) {
        s.flips[shape.intermediate + i] = s.flips[i];
        left -= s.flips[i] > 0;
    }
    bound(&s);
    for (uint32_t o = 0; o < shape.hidden; o++)
        left -= s.covariance.kept[o];
    assert_true(fabs(left) < 1e-9);
    for (uint32_t i = 0; i < 128; i++)
        flips[i] = s.flips[i] * (i % 3 ? 1 : -0.25);
    flipped(&s, 0, flips, output);
    gb_covariance_project(&s.covariance, 0, output);
    assert_true(length(&s, 0, output) < 1e-6);
    scene_free(&s);
}

/* Tokens with a code that may be anything, or with as many open codes as outputs. */
static void some_tokens_are_left_out(void **state)
{
    struct scene s;
    (void)state;
    scene_new(&s, 6);
    s.flips[inner() / 4 + 3] = 0x1p500;
    for (size_t i = inner() / 2; i < inner() / 2 + 96; i++)
        s.flips[i] = 1;
    bound(&s);
    assert_true(s.covariance.open[0] < 96 && s.covariance.open[3] == 0);
    assert_true(s.covariance.open[1] == GB_LEFT_OUT && s.covariance.open[2] == GB_LEFT_OUT);
    scene_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flips_are_taken_out),
        cmocka_unit_test(all_else_is_left),
        cmocka_unit_test(flips_widen),
        cmocka_unit_test(columns_may_depend),
        cmocka_unit_test(some_tokens_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
