/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/bounds_case.h"

#include <math.h>

#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/fma32.h"

static double *doubles(size_t count)
{
    double *values = malloc(count * sizeof(double));
    assert_non_null(values);
    memset(values, 0xA5, count * sizeof(double));
    return values;
}

void bounded_new(struct bounded *b, struct gb_shape shape, enum gb_format format, enum data data, uint64_t seed)
{
    problem_new(&b->problem, shape, format, data, seed);
    b->weights = (struct gb_truth_quantised){b->problem.arguments.gate_up, b->problem.arguments.down, {0}};
    b->source = gb_truth_from_quantised(&b->weights);
    b->outputs = (size_t)shape.tokens * shape.hidden;
    b->intermediates = (size_t)shape.tokens * shape.top_k * shape.intermediate;
    b->truth = doubles(b->outputs);
    b->worst = doubles(b->outputs);
    b->sigma = doubles(b->outputs);
    b->output = doubles(b->outputs);
    b->truth_h = doubles(b->intermediates);
    b->worst_h = doubles(b->intermediates);
    b->sigma_h = doubles(b->intermediates);
    b->intermediate = doubles(b->intermediates);
}

void bounded_free(struct bounded *b)
{
    problem_free(&b->problem);
    free(b->truth);
    free(b->worst);
    free(b->sigma);
    free(b->output);
    free(b->truth_h);
    free(b->worst_h);
    free(b->sigma_h);
    free(b->intermediate);
}

void bound(struct bounded *b, const struct gb_rounding_points *points)
{
    const struct problem *p = &b->problem;
    const struct gb_shape *shape = &p->arguments.shape;
    const struct gb_bounds bounds = {.output_worst = b->worst,
                                     .output_sigma = b->sigma,
                                     .intermediate_worst = b->worst_h,
                                     .intermediate_sigma = b->sigma_h,
                                     .output_truth = doubles(b->outputs),
                                     .intermediate_truth = doubles(b->intermediates)};
    size_t pairs = (size_t)shape->tokens * shape->top_k;
    double *routing_weights = doubles(pairs);

    for (size_t i = 0; i < pairs; i++)
        routing_weights[i] = points->stages.routing_weight == GB_BF16
                                 ? (double)gb_bf16_decode(gb_bf16_encode(p->routing_weights[i]))
                                 : p->truth_routing_weights[i];
    assert_int_equal(gb_truth_layer(shape, p->truth_x, p->ids, routing_weights, &b->source, b->truth, b->truth_h, NULL),
                     GB_OK);
    assert_int_equal(gb_bound_layer(shape, p->truth_x, p->ids, routing_weights, &b->weights, points, &bounds, NULL),
                     GB_OK);
    /* Both truths are float64's: within 2^-20 of what FP32 may be off, whose unit roundoff is 2^29 times as large. */
    for (size_t i = 0; i < b->outputs; i++)
        assert_true(fabs(bounds.output_truth[i] - b->truth[i]) <= 0x1p-20 * b->worst[i]);
    for (size_t i = 0; i < b->intermediates; i++)
        assert_true(fabs(bounds.intermediate_truth[i] - b->truth_h[i]) <= 0x1p-20 * b->worst_h[i]);
    free(bounds.output_truth);
    free(bounds.intermediate_truth);
    free(routing_weights);
}

void run_reference(struct bounded *b)
{
    problem_poison(&b->problem);
    assert_int_equal(fma32_layer(&b->problem.arguments, NULL), GB_OK);
    for (size_t i = 0; i < b->outputs; i++)
        b->output[i] = (double)b->problem.output[i];
    for (size_t i = 0; i < b->intermediates; i++)
        b->intermediate[i] = (double)gb_bf16_decode(b->problem.intermediate[i]);
}

void bounded_extend(struct bounded *b, enum gb_activation activation, uint64_t seed)
{
    problem_extend(&b->problem, activation, seed);
    b->source.extension = b->weights.extension =
        (struct gb_extension){activation, b->problem.gate_up_bias, b->problem.down_bias};
}

double largest_ratio(const double *values, const double *truth, const double *limit, size_t count)
{
    double largest = 0;

    for (size_t i = 0; i < count; i++) {
        double error = fabs(values[i] - truth[i]);
        assert_true(limit[i] >= 0 && isfinite(values[i]) && isfinite(truth[i]));
        double ratio = error == 0 ? 0 : error / limit[i];
        largest = ratio > largest ? ratio : largest;
    }
    return largest;
}

void expect_within(const struct bounded *b, const char *what, struct ratios *largest)
{
    double h = largest_ratio(b->intermediate, b->truth_h, b->worst_h, b->intermediates);
    double y = largest_ratio(b->output, b->truth, b->worst, b->outputs);

    if (!(h <= 1))
        fail_msg("%s: intermediate at %g of the bound", what, h);
    if (!(y <= 1))
        fail_msg("%s: output at %g of the bound", what, y);
    largest->intermediate = h > largest->intermediate ? h : largest->intermediate;
    largest->output = y > largest->output ? y : largest->output;
}

void check_every_order(struct bounded *b, const struct gb_rounding_points *points, uint64_t seed,
                       struct ratios *largest)
{
    bound(b, points);
    for (unsigned way = 0; way < VALID_WAYS; way++) {
        struct valid_kernel valid = valid_way(way, seed + way);
        char what[80];
        snprintf(what, sizeof what, "order %u, way %u, seed %u", way / 16, way % 16, (unsigned)seed);
        valid_layer(&b->problem, &valid, points, b->output, b->intermediate);
        expect_within(b, what, largest);
    }
}
