/* SPDX-License-Identifier: Apache-2.0 */
/* Times as JSON: samples, and the figures that follow from them. */
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>

#include "harness/report/to_json.h"

/* Median, quartiles and the samples themselves, which are sorted. */
static json_t *samples_to_json(double *values, size_t count)
{
    json_t *samples = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(samples, json_real(values[i]));
    gsl_sort(values, 1, count);
    return json_pack("{s:f, s:f, s:f, s:o}", "median", gsl_stats_median_from_sorted_data(values, 1, count),
                     "quartile_1", gsl_stats_quantile_from_sorted_data(values, 1, count, 0.25), "quartile_3",
                     gsl_stats_quantile_from_sorted_data(values, 1, count, 0.75), "samples", samples);
}

json_t *timing_to_json(const struct timing *t, bool copied)
{
    double run[MOST_TIMES], read[MOST_TIMES], large[MOST_TIMES];
    for (uint32_t i = 0; i < t->samples; i++) {
        run[i] = 1e6 * t->sample[i].run_s / t->runs;
        read[i] = 1e6 * t->sample[i].read_s / t->runs;
        large[i] = 1e-9 * (double)t->large_bytes / t->sample[i].large_s;
    }
    json_t *timing =
        json_pack("{s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:f}", "samples", (int)t->samples, "copies", (int)t->copies,
                  "runs", (int)t->runs, "graph_launches", (int)t->launches, "weights", (json_int_t)t->weights, "bytes",
                  (json_int_t)t->bytes, "cache_bytes", (json_int_t)t->cache_bytes, "large_bytes",
                  (json_int_t)t->large_bytes, "prepare_us", 1e6 * t->prepare_s);
    json_object_set_new(timing, "us", samples_to_json(run, t->samples));
    json_object_set_new(timing, copied ? "copy_us" : "read_us", samples_to_json(read, t->samples));
    json_object_set_new(timing, copied ? "large_copy_gb_per_s" : "large_read_gb_per_s",
                        samples_to_json(large, t->samples));
    json_object_set_new(timing, "beyond_cache", json_boolean(t->copies * t->bytes > t->cache_bytes));
    double us = gsl_stats_median_from_sorted_data(run, 1, t->samples);
    double read_us = gsl_stats_median_from_sorted_data(read, 1, t->samples);
    json_object_set_new(timing, "gb_per_s", number_to_json(1e-3 * (double)t->bytes / us));
    json_object_set_new(timing, "gweights_per_s", number_to_json(1e-3 * (double)t->weights / us));
    json_object_set_new(timing, "ceiling_share", number_to_json(read_us / us));
    return timing;
}
