/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/limits.h"

#include <stdio.h>
#include <stdlib.h>

#include "harness/judge/checks.h"
#include "quant/quant.h"

/* limit: scratch, [tokens, hidden]. */
static enum gb_status write_layer(struct gb_results *file, const struct baseline *b, uint32_t layer, uint32_t tokens,
                                  double *limit, struct gb_error *error)
{
    const struct gb_bounds *of = &b->bounds[layer].of;
    const uint64_t dims[] = {tokens, b->fixture->shape.hidden};
    const size_t count = (size_t)dims[0] * dims[1];
    const struct enclosure expected = enclosure_output(of, b->points.accumulator_bits);
    char group[32], path[48];
    snprintf(group, sizeof group, "/layers/%u", layer);
    enum gb_status status = gb_results_group(file, group, error);
    for (size_t i = 0; i < count; i++)
        limit[i] = enclosure_limit(&expected, i, enclosure_deviations(count * b->fixture->layers));
    snprintf(path, sizeof path, "%s/truth", group);
    if (status == GB_OK)
        status = gb_results_put(file, path, 2, dims, "tokens, hidden", of->output_truth, error);
    snprintf(path, sizeof path, "%s/limit", group);
    return status == GB_OK ? gb_results_put(file, path, 2, dims, "tokens, hidden", limit, error) : status;
}

enum gb_status limits_write(const char *path, const struct baseline *b, uint32_t tokens, struct gb_error *error)
{
    double *limit = malloc(sizeof *limit * tokens * b->fixture->shape.hidden); /* [tokens, hidden] */
    struct gb_results *file = NULL;
    enum gb_status status =
        limit ? gb_results_create(path, &file, error) : gb_fail(error, GB_ENOMEM, "no memory for %u tokens", tokens);
    if (status == GB_OK)
        status = gb_results_group(file, "/layers", error);
    for (uint32_t l = 0; status == GB_OK && l < b->fixture->layers; l++)
        status = write_layer(file, b, l, tokens, limit, error);
    free(limit);
    return file ? gb_results_save(file, status, error) : status;
}
