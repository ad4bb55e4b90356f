/* SPDX-License-Identifier: Apache-2.0 */
/* Faults in what is written. */
#include <math.h>
#include <string.h>

#include "harness/faults/faults.h"

static size_t count(const struct planted *p)
{
    return (size_t)p->shape.tokens * p->shape.hidden;
}

static float *row(struct planted *p, uint32_t token)
{
    return p->output + (size_t)token * p->shape.hidden;
}

static const float *clean_row(const struct planted *p, uint32_t token)
{
    return p->clean->output + (size_t)token * p->shape.hidden;
}

void plant_output_zero(struct planted *p)
{
    memset(p->output, 0, count(p) * sizeof *p->output);
}

void plant_output_scaled(struct planted *p)
{
    for (size_t i = 0; i < count(p); i++)
        p->output[i] *= (float)p->fault->amount;
}

void plant_output_row_zero(struct planted *p)
{
    memset(row(p, p->shape.tokens / 2), 0, p->shape.hidden * sizeof *p->output);
}

/* The first token and the next one that differs from it. */
void plant_output_rows_exchanged(struct planted *p)
{
    size_t bytes = p->shape.hidden * sizeof *p->output;
    uint32_t other = 1;
    while (other < p->shape.tokens && !memcmp(clean_row(p, 0), clean_row(p, other), bytes))
        other++;
    if (other >= p->shape.tokens)
        return;
    memcpy(row(p, 0), clean_row(p, other), bytes);
    memcpy(row(p, other), clean_row(p, 0), bytes);
}

void plant_output_row_repeated(struct planted *p)
{
    if (p->shape.tokens > 1)
        memcpy(row(p, p->shape.tokens - 1), clean_row(p, p->shape.tokens - 2), p->shape.hidden * sizeof *p->output);
}

/* The last `amount` columns. */
void plant_output_columns_zero(struct planted *p)
{
    uint32_t tail = (uint32_t)fmin(p->fault->amount, p->shape.hidden);
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        memset(row(p, t) + p->shape.hidden - tail, 0, tail * sizeof *p->output);
}

/* Each even column with the odd one after it. */
void plant_output_columns_exchanged(struct planted *p)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        for (uint32_t i = 0; i + 1 < p->shape.hidden; i += 2) {
            row(p, t)[i] = clean_row(p, t)[i + 1];
            row(p, t)[i + 1] = clean_row(p, t)[i];
        }
}

void plant_output_columns_shifted(struct planted *p)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        memcpy(row(p, t), clean_row(p, t) + 1, (p->shape.hidden - 1) * sizeof *p->output);
}

/* The second half of the columns is the first one again. */
void plant_output_tile_repeated(struct planted *p)
{
    for (uint32_t t = 0; t < p->shape.tokens; t++)
        memcpy(row(p, t) + p->shape.hidden / 2, clean_row(p, t), p->shape.hidden / 2 * sizeof *p->output);
}

/* To the bits of bf16, toward zero. */
void plant_output_truncated(struct planted *p)
{
    for (size_t i = 0; i < count(p); i++) {
        uint32_t bits;
        memcpy(&bits, &p->output[i], sizeof bits);
        bits &= 0xFFFF0000;
        memcpy(&p->output[i], &bits, sizeof bits);
    }
}

/* The largest element of one row. */
static float *peak(struct planted *p)
{
    float *values = row(p, p->shape.tokens / 2), *largest = values;
    for (uint32_t i = 0; i < p->shape.hidden; i++)
        largest = fabsf(values[i]) > fabsf(*largest) ? values + i : largest;
    return largest;
}

void plant_output_sign(struct planted *p)
{
    *peak(p) *= -1.0f;
}

void plant_output_nan(struct planted *p)
{
    *peak(p) = NAN;
}

/* One element is another one's. */
void plant_output_stale(struct planted *p)
{
    *peak(p) = p->clean->output[0];
}
