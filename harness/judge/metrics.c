/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "harness/judge/metrics.h"

void metrics_start(struct metrics *m)
{
    memset(m, 0, sizeof *m);
    m->cosine_min = NAN;
}

static double cosine(double dot, double a, double b)
{
    return dot / sqrt(a * b);
}

void metrics_add(struct metrics *m, const double *subject, const double *truth, uint32_t tokens, uint32_t width)
{
    for (uint32_t t = 0; t < tokens; t++) {
        double dot = 0.0, a = 0.0, b = 0.0, error = 0.0;
        bool compared = false;
        for (size_t i = (size_t)t * width; i < (size_t)(t + 1) * width; i++) {
            double v = subject[i];
            if (isnan(v) && isnan(truth[i]))
                continue;
            compared = true;
            m->non_finite += !isfinite(v) && isfinite(truth[i]);
            double difference = fabs(v - truth[i]);
            dot += v * truth[i];
            a += v * v;
            b += truth[i] * truth[i];
            error += difference * difference;
            if (!(difference <= m->max_abs) && !isnan(m->max_abs))
                m->max_abs = difference;
        }
        double c = cosine(dot, a, b);
        bool first = !m->tokens;
        m->tokens += compared;
        if (!compared)
            continue;
        if (first || (!(c >= m->cosine_min) && !isnan(m->cosine_min))) {
            m->cosine_min = c;
            m->cosine_token = t;
        }
        m->dot += dot;
        m->subject_squares += a;
        m->truth_squares += b;
        m->error_squares += error;
    }
    m->elements += (uint64_t)tokens * width;
}

double metrics_cosine(const struct metrics *m)
{
    return cosine(m->dot, m->subject_squares, m->truth_squares);
}

double metrics_relative_l2(const struct metrics *m)
{
    return sqrt(m->error_squares / m->truth_squares);
}

double metrics_sqnr(const struct metrics *m)
{
    return 10.0 * log10(m->truth_squares / m->error_squares);
}

/* Encodings on a line: consecutive numbers are consecutive integers, -0 just below +0. */
static int64_t position(uint32_t bits, uint32_t sign)
{
    return bits & sign ? -(int64_t)(bits & ~sign) - 1 : (int64_t)bits;
}

void difference_of(enum gb_format format, const void *subject, const void *reference, uint64_t count,
                   struct difference *d)
{
    bool wide = format == GB_FP32;
    uint32_t sign = wide ? 0x80000000u : 0x8000u;
    uint32_t infinity = wide ? 0x7F800000u : 0x7F80u;
    memset(d, 0, sizeof *d);
    d->compared = count;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t a = wide ? ((const uint32_t *)subject)[i] : ((const uint16_t *)subject)[i];
        uint32_t b = wide ? ((const uint32_t *)reference)[i] : ((const uint16_t *)reference)[i];
        bool a_nan = (a & ~sign) > infinity, b_nan = (b & ~sign) > infinity;
        if (a == b || (a_nan && b_nan))
            continue;
        if (d->mismatching++ == 0) {
            d->first = i;
            d->first_subject = a;
            d->first_reference = b;
        }
        if (a_nan || b_nan) {
            d->nan_mismatching++;
            continue;
        }
        int64_t steps = position(a, sign) - position(b, sign);
        uint64_t ulp = (uint64_t)(steps < 0 ? -steps : steps);
        d->max_ulp = ulp > d->max_ulp ? ulp : d->max_ulp;
    }
}
