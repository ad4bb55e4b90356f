/* SPDX-License-Identifier: Apache-2.0 */
/* gb_bound_down: every valid order stays within, on the intermediate that it computed itself; truth and covariance are
 * those of the definition; something missing in down exceeds the bound by far. */
#include "quant/quant.h"
#include "tests/support/bounds_case.h"
#include "tests/support/check.h"

/* What gb_bound_down makes of a subject's intermediate. */
struct down {
    double *weights; /* [tokens, top_k]: what kernels get */
    struct gb_bounds bounds;
    struct gb_covariance covariance;
};

static double *doubles(size_t count)
{
    double *values = calloc(count, sizeof *values);
    assert_non_null(values);
    return values;
}

static void down_new(const struct bounded *b, const struct gb_rounding_points *points, struct down *d)
{
    const struct problem *p = &b->problem;
    const struct gb_shape *shape = &p->arguments.shape;
    size_t pairs = (size_t)shape->tokens * shape->top_k;
    *d = (struct down){.weights = doubles(pairs),
                       .bounds = {.output_truth = doubles(b->outputs),
                                  .output_worst = doubles(b->outputs),
                                  .output_sigma = doubles(b->outputs),
                                  .output_bias = doubles(b->outputs)}};
    for (size_t i = 0; i < pairs; i++)
        d->weights[i] = (double)p->routing_weights[i];
    assert_int_equal(gb_bound_down(shape, b->intermediate, NULL, p->ids, d->weights, &b->weights, points, &d->bounds,
                                   &d->covariance, NULL),
                     GB_OK);
}

static void down_free(struct down *d)
{
    free(d->bounds.output_truth);
    free(d->weights);
    free(d->bounds.output_worst);
    free(d->bounds.output_sigma);
    free(d->bounds.output_bias);
    gb_covariance_free(&d->covariance);
}

static void every_order_stays_within(void **state)
{
    static const struct gb_rounding_points points[] = {{GB_BF16, GB_FP32, 24, {0}, NULL},
                                                       {GB_BF16, GB_BF16, 24, {0}, NULL},
                                                       {GB_BF16, GB_FP32, 12, {0}, NULL},
                                                       {GB_BF16, GB_BF16, 24, {GB_BF16, GB_BF16, GB_BF16, 0, 0}, NULL}};
    static const double least[] = {2e-3, 0.9, 2e-3, 0.1}; /* of the bound, so that it is not idle */
    (void)state;
    for (unsigned i = 0; i < sizeof points / sizeof *points; i++) {
        double largest = 0.0;
        for (unsigned way = 0; way < VALID_WAYS; way++) {
            struct valid_kernel valid = valid_way(way, way);
            valid.fold &= !points[i].stages.slot;
            struct bounded b;
            struct down d;
            bounded_new(&b, (struct gb_shape){3, 96, 64, 3, 3}, way % 3 ? GB_NVFP4 : GB_BF16,
                        way % 2 ? DATA_GAUSSIAN : DATA_CODES, 40 + way);
            problem_empty_slots(&b.problem, 7, way);
            if (way % 4 == 3)
                bounded_extend(&b, GB_SWIGLU_OAI, way);
            valid_layer(&b.problem, &valid, &points[i], b.output, b.intermediate);
            down_new(&b, &points[i], &d);
            largest = fmax(largest, largest_ratio(b.output, d.bounds.output_truth, d.bounds.output_worst, b.outputs));
            down_free(&d);
            bounded_free(&b);
        }
        if (!(largest <= 1.0 && largest >= least[i]))
            fail_msg("points %u: %g of the bound", i, largest);
    }
}

/* By the definition: a slot's share is r (W h + b), its direction share / sigma^2 up to a factor. */
static void covariance_are_those_of_independent_errors(void **state)
{
    const struct gb_shape shape = {4, 96, 64, 5, 3};
    struct bounded b;
    struct down d;
    (void)state;
    bounded_new(&b, shape, GB_MXFP8, DATA_GAUSSIAN, 3);
    problem_empty_slots(&b.problem, 6, 2);
    bounded_extend(&b, GB_SILU, 5);
    run_reference(&b);
    down_new(&b, &points_bf16_fp32, &d);
    double *row = doubles(shape.intermediate), *share = doubles((shape.top_k + 1) * shape.hidden);
    for (uint32_t t = 0; t < shape.tokens; t++) {
        memset(share, 0, sizeof *share * (shape.top_k + 1) * shape.hidden);
        for (uint32_t k = 0; k < shape.top_k; k++)
            for (uint32_t o = 0; o < shape.hidden; o++) {
                size_t pair = (size_t)t * shape.top_k + k;
                if (b.problem.ids[pair] < 0)
                    continue;
                uint32_t expert = (uint32_t)b.problem.ids[pair];
                double value = (double)b.problem.down_bias[(size_t)expert * shape.hidden + o];
                gb_weights_row(&b.problem.arguments.down, expert, o, row);
                for (uint32_t i = 0; i < shape.intermediate; i++)
                    value += row[i] * b.intermediate[pair * shape.intermediate + i];
                share[k * shape.hidden + o] = d.weights[pair] * value;
                share[shape.top_k * shape.hidden + o] += d.weights[pair] * value;
            }
        for (uint32_t k = 0; k <= shape.top_k; k++) {
            size_t at = (size_t)t * d.covariance.directions + k;
            double signal = 0.0, variance = 0.0, best = 0.0;
            for (uint32_t o = 0; o < shape.hidden; o++) {
                double u = (double)d.covariance.direction[at * shape.hidden + o], s = share[k * shape.hidden + o];
                double sigma = d.bounds.output_sigma[(size_t)t * shape.hidden + o];
                signal += u * s;
                variance += u * u * sigma * sigma;
                best += s * s / (sigma * sigma);
            }
            assert_true(fabs(d.covariance.signal[at] - signal) <= 1e-5 * fabs(signal));
            assert_true(fabs(d.covariance.variance[at] - variance) <= 1e-5 * variance);
            assert_true(variance == 0.0 ? best == 0.0 : signal * signal / variance > 0.9999 * best);
        }
        for (uint32_t o = 0; o < shape.hidden; o++) {
            double sum = share[shape.top_k * shape.hidden + o],
                   truth = d.bounds.output_truth[(size_t)t * shape.hidden + o];
            assert_true(fabs(truth - sum) <= 1e-12 * (1.0 + fabs(sum)));
        }
        double *values = doubles(shape.hidden);
        for (uint32_t o = 0; o < shape.hidden; o++)
            values[o] = 3.0 * d.bounds.output_sigma[(size_t)t * shape.hidden + o];
        gb_covariance_whiten(&d.covariance, t, 0, shape.hidden, values);
        for (uint32_t o = 0; o < shape.hidden; o++)
            assert_true(fabs(values[o] - 3.0) < 1e-12);
        free(values);
    }
    free(row);
    free(share);
    down_free(&d);
    bounded_free(&b);
}

/* A layer whose slots are rounded to bf16 passes the layer's bound, which the intermediate's rounding makes wide. */
static void slots_in_bf16_are_seen(void **state)
{
    const struct gb_rounding_points does = {GB_BF16, GB_FP32, 24, {.slot = GB_BF16}, NULL};
    struct valid_kernel valid = {.order = VALID_FORWARD};
    struct bounded b;
    struct down d;
    (void)state;
    bounded_new(&b, (struct gb_shape){2, 96, 64, 3, 3}, GB_NVFP4, DATA_GAUSSIAN, 5);
    bound(&b, &points_bf16_fp32);
    valid_layer(&b.problem, &valid, &does, b.output, b.intermediate);
    assert_true(largest_ratio(b.output, b.truth, b.worst, b.outputs) < 1.0);
    down_new(&b, &points_bf16_fp32, &d);
    assert_true(largest_ratio(b.output, d.bounds.output_truth, d.bounds.output_worst, b.outputs) > 10.0);
    down_free(&d);
    bounded_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_stays_within),
        cmocka_unit_test(covariance_are_those_of_independent_errors),
        cmocka_unit_test(slots_in_bf16_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
