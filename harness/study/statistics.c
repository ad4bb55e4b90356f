/* SPDX-License-Identifier: Apache-2.0 */
/* Intervals and fits, by GSL. docs/study.md#intervals, #growth. */
#include <gsl/gsl_cdf.h>
#include <gsl/gsl_fit.h>
#include <gsl/gsl_rng.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/study/study.h"

enum { DRAWS = 1000 };
static const double tail = 0.975; /* of a 95 % interval */

enum gb_status study_resamples_new(uint32_t layers, uint32_t seeds, uint32_t tokens, struct study_resamples *r,
                                   struct gb_error *error)
{
    size_t samples = (size_t)seeds * tokens, most = seeds > DRAWS ? seeds : DRAWS;
    gsl_rng *generator = gsl_rng_alloc(gsl_rng_mt19937);
    *r = (struct study_resamples){seeds,
                                  tokens,
                                  DRAWS,
                                  calloc(DRAWS * samples, sizeof *r->count),
                                  calloc(most + 2 * samples + 2 * (size_t)layers, sizeof *r->logs),
                                  NULL,
                                  NULL};
    if (!generator || !r->count || !r->logs) {
        gsl_rng_free(generator);
        study_resamples_free(r);
        return gb_fail(error, GB_ENOMEM, "no memory to resample %u tokens", tokens);
    }
    r->sums = r->logs + most;
    r->lines = r->sums + 2 * samples;
    gsl_rng_set(generator, 1);
    for (size_t d = 0; d < DRAWS; d++)
        for (uint32_t s = 0; s < seeds; s++)
            for (uint32_t t = 0; t < tokens; t++)
                r->count[d * samples + (size_t)s * tokens + gsl_rng_uniform_int(generator, tokens)]++;
    gsl_rng_free(generator);
    return GB_OK;
}

void study_resamples_free(struct study_resamples *r)
{
    free(r->count);
    free(r->logs);
    r->count = NULL;
    r->logs = NULL;
}

/* sum of count * values, four sums side by side */
static double weighed(const uint16_t *count, const double *values, size_t samples)
{
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
    size_t i = 0;
    for (; i + 4 <= samples; i += 4)
        for (int k = 0; k < 4; k++)
            sum[k] += count[i + k] * values[i + k];
    for (; i < samples; i++)
        sum[0] += count[i] * values[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static double total(const double *values, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/* An interval of a logarithm from standard errors: of tokens, and of seeds, whichever says more. */
static struct study_interval interval(double value, double tokens, double token_freedom, double seeds,
                                      double seed_freedom)
{
    double by_tokens = tokens * gsl_cdf_tdist_Pinv(tail, token_freedom);
    double by_seeds = seed_freedom > 0.0 && seeds > tokens ? seeds * gsl_cdf_tdist_Pinv(tail, seed_freedom) : 0.0;
    double half = by_seeds > by_tokens ? by_seeds : by_tokens;
    return (struct study_interval){value, value - half, value + half};
}

struct study_interval study_ratio(const struct study_resamples *r, const double *a, const double *b)
{
    size_t samples = (size_t)r->seeds * r->tokens;
    double value = 0.5 * log(total(a, samples) / total(b, samples)), seeds = 0.0;
    double *logs = r->logs;
    if (!isfinite(value) || r->tokens < 2)
        return (struct study_interval){exp(value), (double)NAN, (double)NAN};
    for (uint32_t d = 0; d < r->draws; d++)
        logs[d] = 0.5 * log(weighed(r->count + d * samples, a, samples) / weighed(r->count + d * samples, b, samples));
    /* Draws from n tokens vary by (n - 1) / n of what n tokens of the text do. */
    double tokens = gsl_stats_sd(logs, 1, r->draws) * sqrt(r->tokens / (r->tokens - 1.0));
    for (uint32_t s = 0; s < r->seeds; s++)
        logs[s] = 0.5 * log(total(a + (size_t)s * r->tokens, r->tokens) / total(b + (size_t)s * r->tokens, r->tokens));
    if (r->seeds > 1)
        seeds = gsl_stats_sd(logs, 1, r->seeds) / sqrt(r->seeds);
    struct study_interval i = interval(value, tokens, r->seeds * (r->tokens - 1.0), seeds, r->seeds - 1.0);
    return (struct study_interval){exp(i.value), exp(i.low), exp(i.high)};
}

static const double *errors(const struct study_case *c, enum study_mode mode, enum study_truth truth, uint32_t layer,
                            uint32_t path)
{
    return c->measure[mode][truth].error2 + ((size_t)layer * c->paths + path) * c->samples;
}

struct study_interval study_relative_l2(const struct study_case *c, const struct study_resamples *r,
                                        enum study_mode mode, enum study_truth truth, uint32_t layer, uint32_t path)
{
    const double *right2 = (mode == STUDY_LAYER ? c->layer2 : c->stream2)[truth] + (size_t)layer * c->samples;
    return study_ratio(r, errors(c, mode, truth, layer, path), right2);
}

struct study_interval study_closeness(const struct study_case *c, const struct study_resamples *r,
                                      enum study_truth truth, uint32_t path, uint32_t layer)
{
    double *sums[2] = {r->sums, r->sums + c->samples};
    memset(r->sums, 0, 2 * (size_t)c->samples * sizeof *r->sums);
    uint32_t first = layer < c->layers ? layer : 0, last = layer < c->layers ? layer + 1 : c->layers;
    for (uint32_t l = first; l < last; l++) {
        double size = total(c->layer2[truth] + (size_t)l * c->samples, c->samples);
        for (int k = 0; k < 2; k++)
            for (uint32_t n = 0; n < c->samples; n++)
                sums[k][n] += errors(c, STUDY_LAYER, truth, l, k ? 0 : path)[n] / size;
    }
    return study_ratio(r, sums[0], sums[1]);
}

struct study_interval study_mean_kl(const struct study_case *c, const struct study_resamples *r,
                                    enum study_against against, uint32_t path)
{
    double *ones = r->sums;
    for (uint32_t n = 0; n < c->samples; n++)
        ones[n] = 1.0;
    struct study_interval i =
        study_ratio(r, c->head[against].kl + (size_t)path * c->samples, ones); /* a root of means */
    return (struct study_interval){i.value * i.value, i.low * i.low, i.high * i.high};
}

struct study_interval study_top_agreement(const struct study_case *c, enum study_against against, uint32_t path)
{
    double n = c->samples, same = total(c->head[against].same_top + (size_t)path * c->samples, c->samples);
    return (struct study_interval){same / n, same > 0.0 ? gsl_cdf_beta_Pinv(1.0 - tail, same, n - same + 1.0) : 0.0,
                                   same < n ? gsl_cdf_beta_Pinv(tail, same + 1.0, n - same) : 1.0};
}

/* The line through (ln(layer + 1), logs[layer]). */
static struct study_growth line(const double *depth, const double *logs, uint32_t layers)
{
    double offset, slope, c00, c01, c11, residual;
    gsl_fit_linear(depth, 1, logs, 1, layers, &offset, &slope, &c00, &c01, &c11, &residual);
    return (struct study_growth){{slope, (double)NAN, (double)NAN}, sqrt(c11)};
}

struct study_growth study_growth_of(const struct study_case *c, const struct study_resamples *r, enum study_truth truth,
                                    uint32_t path)
{
    const double nan = (double)NAN;
    struct study_growth g = {{nan, nan, nan}, nan};
    double *depth = r->lines, *logs = r->lines + c->layers, *slopes = r->logs;
    if (c->layers < 3 || r->tokens < 2)
        return g;
    for (uint32_t l = 0; l < c->layers; l++)
        depth[l] = log(l + 1.0);
    for (uint32_t d = 0; d <= r->draws; d++) { /* the last one: all tokens once */
        for (uint32_t l = 0; l < c->layers; l++) {
            const double *e = errors(c, STUDY_OPEN_LOOP, truth, l, path);
            const double *t = c->stream2[truth] + (size_t)l * c->samples;
            const uint16_t *count = r->count + (size_t)d * c->samples;
            logs[l] = 0.5 * log(d < r->draws ? weighed(count, e, c->samples) / weighed(count, t, c->samples)
                                             : total(e, c->samples) / total(t, c->samples));
        }
        g = line(depth, logs, c->layers);
        if (d < r->draws)
            slopes[d] = g.exponent.value;
    }
    double error = gsl_stats_sd(slopes, 1, r->draws) * sqrt(r->tokens / (r->tokens - 1.0));
    g.exponent = interval(g.exponent.value, error, r->seeds * (r->tokens - 1.0), 0.0, 0.0);
    return g;
}

const char *study_interval_text(struct study_interval interval, double times, const char *format,
                                char text[STUDY_INTERVAL_TEXT])
{
    if (isnan(interval.low) || isnan(interval.high))
        return "unknown";
    snprintf(text, STUDY_INTERVAL_TEXT, format, times * interval.low, times * interval.high);
    return text;
}
