/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "harness/judge/checks.h"

/* The larger of the two; NaN wins and stays. */
static double larger(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

/* Where truth is NaN, so is every way to compute it. */
static void enter_nan(double subject, size_t i, struct bound_result *r)
{
    if (isnan(subject))
        return;
    r->exceeding++;
    r->worst_ratio = larger(r->worst_ratio, INFINITY);
    if (r->limit_ratio < INFINITY) {
        r->limit_ratio = INFINITY;
        r->at = i;
    }
}

struct enclosure enclosure_output(const struct gb_bounds *of, uint32_t accumulator_bits)
{
    return (struct enclosure){of->output_truth, of->output_worst, of->output_sigma, of->output_underflow,
                              gb_may_truncate(accumulator_bits) ? of->output_bias : NULL};
}

struct enclosure enclosure_intermediate(const struct gb_bounds *of, uint32_t accumulator_bits)
{
    return (struct enclosure){of->intermediate_truth, of->intermediate_worst, of->intermediate_sigma,
                              of->intermediate_underflow,
                              gb_may_truncate(accumulator_bits) ? of->intermediate_bias : NULL};
}

double enclosure_deviations(uint64_t elements)
{
    return sqrt(2.0 * log(2.0 * (double)elements / FALSE_ALARM_PROBABILITY));
}

double enclosure_limit(const struct enclosure *e, size_t i, double deviations)
{
    double underflow = e->underflow ? e->underflow[i] : 0.0, bias = e->bias ? fabs(e->bias[i]) : 0.0;
    return fmin(e->worst[i], deviations * e->sigma[i] + underflow + bias);
}

void bound_compare(const double *subject, const struct enclosure *e, uint32_t tokens, size_t per_token,
                   uint64_t elements_of_case, struct bound_result *r)
{
    double deviations = enclosure_deviations(elements_of_case);
    memset(r, 0, sizeof *r);
    r->elements = tokens * per_token;
    for (uint32_t t = 0; t < tokens; t++) {
        double squares = 0.0, predicted = 0.0;
        for (size_t i = t * per_token; i < (t + 1) * per_token; i++) {
            if (isnan(e->truth[i])) { /* and says nothing about zeros */
                enter_nan(subject[i], i, r);
                continue;
            }
            double error = fabs(subject[i] - e->truth[i]), limit = enclosure_limit(e, i, deviations);
            double ratio = error == 0.0 ? 0.0 : error / limit;
            r->exceeding += !(error <= limit);
            r->zero_exceeding += !(fabs(e->truth[i]) <= limit);
            r->worst_ratio = larger(r->worst_ratio, error == 0.0 ? 0.0 : error / e->worst[i]);
            if (!(ratio <= r->limit_ratio) && !isnan(r->limit_ratio)) {
                r->limit_ratio = ratio;
                r->at = i;
            }
            squares += error * error;
            predicted += e->sigma[i] * e->sigma[i] + (e->underflow ? e->underflow[i] * e->underflow[i] : 0.0);
        }
        r->rms_ratio = larger(r->rms_ratio, squares == 0.0 ? 0.0 : sqrt(squares / predicted));
    }
}

void check_add_bits(struct check_result *check, const struct difference *d)
{
    check->compared += d->compared;
    check->mismatching += d->mismatching;
    check->max_ulp = d->max_ulp > check->max_ulp ? d->max_ulp : check->max_ulp;
}

void check_add_bound(struct check_result *check, const struct bound_result *r)
{
    check->elements += r->elements;
    check->exceeding += r->exceeding;
    check->worst_ratio = larger(check->worst_ratio, r->worst_ratio);
    check->limit_ratio = larger(check->limit_ratio, r->limit_ratio);
    check->rms_ratio = larger(check->rms_ratio, r->rms_ratio);
}

bool check_vacuous(const struct check_result *check)
{
    return check->elements == 0;
}
