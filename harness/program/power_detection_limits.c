/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest errors that a policy sees, by bisection: every error is made of the reference's outputs. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/to_json.h"
#include "harness/program/power.h"
#include "quant/quant.h"

/* One row of the outputs. */
struct row {
    float *values; /* [hidden] */
    double squares;
};

struct search {
    struct power *power; /* with one policy */
    struct row *rows;    /* [layers * tokens], the faintest first, rows of zeros left out */
    size_t row_count;
    uint64_t elements;
};

static int fainter(const void *a, const void *b)
{
    double left = ((const struct row *)a)->squares, right = ((const struct row *)b)->squares;
    return (left > right) - (left < right);
}

static void reset(struct power *p)
{
    const struct gb_fixture *f = p->baseline->fixture;
    for (uint32_t l = 0; l < f->layers; l++)
        memcpy(p->outputs->layer[l].output, p->baseline->reference->layer[l].output,
               sizeof(float) * f->shape.tokens * f->shape.hidden);
}

static enum gb_status search_new(struct power *p, struct search *s, struct gb_error *error)
{
    const struct gb_fixture *f = p->baseline->fixture;
    uint32_t hidden = f->shape.hidden;
    *s = (struct search){p, calloc((size_t)f->layers * f->shape.tokens, sizeof *s->rows), 0,
                         (uint64_t)f->layers * f->shape.tokens * hidden};
    if (!s->rows)
        return gb_fail(error, GB_ENOMEM, "no memory for the rows of %u layers", f->layers);
    reset(p);
    for (uint32_t l = 0; l < f->layers; l++)
        for (uint32_t t = 0; t < f->shape.tokens; t++) {
            struct row row = {(float *)p->outputs->layer[l].output + (size_t)t * hidden, 0.0};
            for (uint32_t i = 0; i < hidden; i++)
                row.squares += (double)row.values[i] * (double)row.values[i];
            if (row.squares > 0.0)
                s->rows[s->row_count++] = row;
        }
    qsort(s->rows, s->row_count, sizeof *s->rows, fainter);
    return GB_OK;
}

static void scale(struct search *s, size_t rows, double factor)
{
    for (size_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < s->power->baseline->fixture->shape.hidden; i++)
            s->rows[r].values[i] = (float)((double)s->rows[r].values[i] * factor);
}

/* Errors by their size. */
static void scale_all(struct search *s, double size)
{
    scale(s, s->row_count, 1.0 + size);
}

static void scale_row(struct search *s, double size)
{
    scale(s, s->row_count ? 1 : 0, 1.0 + size);
}

static void add_noise(struct search *s, double size)
{
    const struct gb_fixture *f = s->power->baseline->fixture;
    for (uint32_t l = 0; l < f->layers; l++) {
        float *output = s->power->outputs->layer[l].output;
        const float *noise = s->power->noise->layer[l].output;
        for (size_t i = 0; i < (size_t)f->shape.tokens * f->shape.hidden; i++)
            output[i] = (float)((double)output[i] + size * (double)noise[i]);
    }
}

static void lose_rows(struct search *s, double size)
{
    scale(s, (size_t)size, 0.0);
}

/* Spread evenly. */
static void lose_elements(struct search *s, double size)
{
    const struct gb_fixture *f = s->power->baseline->fixture;
    uint64_t per_layer = (uint64_t)f->shape.tokens * f->shape.hidden;
    for (uint64_t n = 0; n < (uint64_t)size; n++) {
        uint64_t at = (uint64_t)((double)s->elements * ((double)n + 0.5) / size);
        ((float *)s->power->outputs->layer[at / per_layer].output)[at % per_layer] = 0.0f;
    }
}

static enum gb_status seen(struct search *s, void (*make)(struct search *, double), double size, bool *caught,
                           struct gb_error *error)
{
    struct detection detection;
    reset(s->power);
    make(s, size);
    enum gb_status status = power_look(s->power, &detection, error);
    *caught = status == GB_OK && detection_caught(&detection);
    return status;
}

/* The smallest size seen: between low, not seen, and high; sizes are whole or, if not, found to within a tenth. */
static enum gb_status bisect(struct search *s, void (*make)(struct search *, double), double low, double high,
                             bool whole, double *smallest, struct gb_error *error)
{
    bool caught;
    enum gb_status status = seen(s, make, high, &caught, error);
    *smallest = status == GB_OK && caught ? high : NAN;
    while (status == GB_OK && caught && (whole ? high - low > 1.0 : high / low > 1.1)) {
        double middle = whole ? floor((low + high) / 2.0) : sqrt(low * high);
        bool here;
        status = seen(s, make, middle, &here, error);
        if (here)
            high = middle;
        else
            low = middle;
        *smallest = high;
    }
    return status;
}

enum gb_status power_detection_limits(struct power *power, uint32_t policy, json_t *object, struct gb_error *error)
{
    struct search s;
    struct power one = {.baseline = power->baseline,
                        .codes = power->codes,
                        .policy_count = 1,
                        .outputs = power->outputs,
                        .noise = power->noise};
    double all = NAN, row = NAN, noise = NAN, rows = NAN, elements = NAN, down = NAN, down_row = NAN;
    one.policies[0] = power->policies[policy];
    enum gb_status status = search_new(&one, &s, error);
    if (status == GB_OK)
        status = bisect(&s, scale_all, 0x1p-26, 0x1p4, false, &all, error);
    if (status == GB_OK)
        status = bisect(&s, scale_row, 0x1p-26, 0x1p4, false, &row, error);
    if (status == GB_OK)
        status = bisect(&s, add_noise, 0x1p-26, 0x1p4, false, &noise, error);
    if (status == GB_OK)
        status = bisect(&s, lose_rows, 0.0, (double)s.row_count, true, &rows, error);
    if (status == GB_OK)
        status = bisect(&s, lose_elements, 0.0, (double)s.elements, true, &elements, error);
    power_stages_reset(power);
    one.staged = one.policies[0].bound || one.policies[0].rms || one.policies[0].scale;
    if (status == GB_OK && one.staged)
        status = bisect(&s, scale_all, 0x1p-26, 0x1p4, false, &down, error);
    if (status == GB_OK && one.staged)
        status = bisect(&s, scale_row, 0x1p-26, 0x1p4, false, &down_row, error);
    json_object_set_new(object, "detection_limits",
                        json_pack("{s:o, s:o, s:o, s:o, s:I, s:o, s:I, s:o, s:o}", "scale", number_to_json(all),
                                  "scale_of_a_row", number_to_json(row), "noise_of_the_intermediate",
                                  number_to_json(noise), "lost_rows", number_to_json(rows), "rows",
                                  (json_int_t)s.row_count, "lost_elements", number_to_json(elements), "elements",
                                  (json_int_t)s.elements, "scale_given_the_intermediate", number_to_json(down),
                                  "scale_of_a_row_given_the_intermediate", number_to_json(down_row)));
    free(s.rows);
    return status;
}
