/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/truth/bounds_requantise.h"

#include <math.h>

#include "quant/quant.h"

enum {
    MOST_COLUMNS = 128, /* of a block */
    MOST_STEPS = 512    /* different scales that one block may have, before its codes are called open */
};

/* Where codes are open: more than any number, and a finite one, so that its product with a zero is none. */
static const double open_limit = 0x1p500;

/* bf16 ends of the intervals of a block, and the number in the middle. */
struct block {
    uint32_t columns;
    float low[MOST_COLUMNS], middle[MOST_COLUMNS], high[MOST_COLUMNS];
};

static float rounded(double value)
{
    return gb_bf16_decode(gb_bf16_encode((float)value));
}

/* Largest magnitudes in bf16 bits: the smallest and the largest that the block may have, and that of the middle. */
struct magnitudes {
    uint16_t least, middle, most;
};

static uint16_t larger(uint16_t magnitude, float value)
{
    uint16_t bits = gb_bf16_encode(fabsf(value)).bits;
    return bits > magnitude ? bits : magnitude;
}

static struct magnitudes magnitudes_of(const struct block *b)
{
    struct magnitudes m = {0, 0, 0};
    for (uint32_t i = 0; i < b->columns; i++) {
        bool around_zero = b->low[i] <= 0.0f && b->high[i] >= 0.0f;
        m.least = around_zero ? m.least : larger(m.least, fminf(fabsf(b->low[i]), fabsf(b->high[i])));
        m.middle = larger(m.middle, b->middle[i]);
        m.most = larger(larger(m.most, b->low[i]), b->high[i]);
    }
    return m;
}

static struct gb_quantiser_step step_of(const struct gb_requantisation *r, uint16_t magnitude)
{
    const struct gb_quantiser *rules = r->rules;
    float global = rules->global == GB_GLOBAL_DECODE ? r->global : 1.0f / r->global;
    float a = fmaxf(rules->amax_start, gb_bf16_decode((gb_bf16){magnitude}));
    return gb_quantiser_find_step(rules, a, global, INFINITY);
}

static bool same_step(const struct gb_quantiser_step *a, const struct gb_quantiser_step *b)
{
    return a->scale == b->scale && a->operand == b->operand && a->divides == b->divides;
}

/* The last magnitude up to `most` that has the step of `from`: scales grow with the magnitude. */
static uint16_t last_of_step(const struct gb_requantisation *r, uint16_t from, const struct gb_quantiser_step *step,
                             uint16_t most)
{
    uint16_t low = from, high = most;
    while (low < high) {
        uint16_t middle = (uint16_t)(low + (high - low + 1) / 2);
        struct gb_quantiser_step other = step_of(r, middle);
        if (same_step(step, &other))
            low = middle;
        else
            high = (uint16_t)(middle - 1);
    }
    return low;
}

static double number(const struct gb_requantisation *r, const struct gb_quantiser_step *step, float x)
{
    double d = r->rules->global == GB_GLOBAL_NONE ? 1.0 : (double)r->global;
    return (double)gb_quantiser_element(r->rules, step, x) * (double)step->scale * d;
}

static void widen(const struct gb_requantisation *r, const struct block *b, const struct gb_quantiser_step *step,
                  const double *value, double *limit)
{
    for (uint32_t i = 0; i < b->columns; i++) {
        double low = number(r, step, b->low[i]), high = number(r, step, b->high[i]);
        limit[i] = fmax(limit[i], fmax(fabs(low - value[i]), fabs(high - value[i])));
    }
}

static void requantise_block(const struct gb_requantisation *r, struct block *b, double *value, double *limit)
{
    bool open = r->rules->four_over_six != GB_SIX;
    for (uint32_t i = 0; i < b->columns; i++) {
        b->low[i] = rounded(value[i] - limit[i]);
        b->middle[i] = rounded(value[i]);
        b->high[i] = rounded(value[i] + limit[i]);
        open |= !isfinite(b->low[i]) || !isfinite(b->high[i]);
    }
    struct magnitudes m = open ? (struct magnitudes){0, 0, 0} : magnitudes_of(b);
    struct gb_quantiser_step step = step_of(r, m.middle);
    for (uint32_t i = 0; i < b->columns; i++) {
        value[i] = open ? (double)b->middle[i] : number(r, &step, b->middle[i]);
        limit[i] = 0.0;
    }
    uint32_t steps = 0;
    for (uint32_t at = m.least; !open && at <= m.most && steps < MOST_STEPS; steps++) {
        step = step_of(r, (uint16_t)at);
        widen(r, b, &step, value, limit);
        at = last_of_step(r, (uint16_t)at, &step, m.most) + 1u;
        open = at <= m.most && steps + 1 == MOST_STEPS;
    }
    for (uint32_t i = 0; i < b->columns && open; i++)
        limit[i] = open_limit;
}

void gb_requantise_intervals(const struct gb_requantisation *r, uint32_t count, double *value, double *limit)
{
    struct block b = {.columns = r->rules->block_columns};
    for (uint32_t first = 0; first < count; first += b.columns)
        requantise_block(r, &b, value + first, limit + first);
}
