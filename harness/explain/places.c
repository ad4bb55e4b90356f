/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "harness/explain/places.h"

enum { MOST_LISTED = 4, LARGEST_PERIOD = 128 };

uint32_t axis_cost(const struct finding_axis *axis)
{
    switch (axis->kind) {
    case AXIS_ALL:
        return 0;
    case AXIS_RANGE:
        return axis->count == 1 ? 1 : 2;
    case AXIS_MODULO:
        return axis->count == 1 ? 2 : 3;
    default:
        return 2 + axis->count;
    }
}

static bool holds(const struct finding_axis *axis, const bool *is, const bool *would, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++) {
        bool has = finding_axis_has(axis, i);
        if ((is[i] && !has) || (has && would[i] && !is[i]))
            return false;
    }
    return true;
}

/* A range whose ends may grow, as long as it holds, to where a tile would end. */
static bool describe_range(const bool *is, const bool *would, uint32_t size, struct finding_axis *axis)
{
    uint32_t first = 0, last = size - 1;
    while (first < size && !is[first])
        first++;
    while (last > first && !is[last])
        last--;
    if (first == size)
        return false;
    *axis = (struct finding_axis){.kind = AXIS_RANGE, .first = first, .count = last - first + 1};
    if (!holds(axis, is, would, size))
        return false;
    for (uint32_t tile = 128; first != last && tile > 1; tile /= 2) {
        uint32_t from = first / tile * tile, to = (last / tile + 1) * tile;
        struct finding_axis wider = {.kind = AXIS_RANGE, .first = from, .count = (to < size ? to : size) - from};
        if (first - from < tile / 2 && to - 1 - last < tile / 2 && holds(&wider, is, would, size)) {
            *axis = wider;
            break;
        }
    }
    return true;
}

static bool describe_modulo(const bool *is, const bool *would, uint32_t size, struct finding_axis *axis)
{
    for (uint32_t period = 2; period <= LARGEST_PERIOD && period <= size / 2; period *= 2) {
        uint32_t low = period, high = 0;
        for (uint32_t i = 0; i < size; i++)
            if (is[i]) {
                low = i % period < low ? i % period : low;
                high = i % period > high ? i % period : high;
            }
        *axis = (struct finding_axis){.kind = AXIS_MODULO, .first = low, .count = high - low + 1, .period = period};
        if (low <= high && axis->count < period && holds(axis, is, would, size))
            return true;
    }
    return false;
}

bool axis_describe(const bool *is, const bool *would, uint32_t size, struct finding_axis *axis)
{
    uint32_t members = 0;
    *axis = (struct finding_axis){.kind = AXIS_ALL};
    for (uint32_t i = 0; i < size; i++)
        members += is[i];
    if (holds(axis, is, would, size))
        return true;
    if (describe_range(is, would, size, axis) || describe_modulo(is, would, size, axis))
        return true;
    if (members > MOST_LISTED)
        return false;
    *axis = (struct finding_axis){.kind = AXIS_LIST};
    for (uint32_t i = 0; i < size; i++)
        if (is[i])
            axis->list[axis->count++] = i;
    return true;
}

enum coordinate { BY_SLOT, BY_EXPERT, BY_TOKEN, BY_LIST, COORDINATES };

static uint32_t coordinate_of(const struct stages *s, enum coordinate c, size_t pair)
{
    return c == BY_SLOT     ? (uint32_t)(pair % s->top_k)
           : c == BY_EXPERT ? (uint32_t)s->ids[pair]
           : c == BY_LIST   ? s->diagnosis->list[pair]
                            : (uint32_t)(pair / s->top_k) + s->diagnosis->first;
}

/* A token is once in an expert's list, which is no longer than the tokens so far. */
static uint32_t size_of(const struct stages *s, enum coordinate c)
{
    return c == BY_SLOT ? s->top_k : c == BY_EXPERT ? s->experts : s->tokens + s->diagnosis->first;
}

/* The pairs in `among` by one coordinate. */
static bool describe_by(const struct stages *s, enum coordinate c, const bool *is, const bool *would, const bool *among,
                        struct finding_axis *axis)
{
    uint32_t size = size_of(s, c);
    bool *in = calloc(size, sizeof *in), *out = calloc(size, sizeof *out), good = in && out;
    for (size_t p = 0; good && p < s->pairs; p++) {
        if (s->ids[p] < 0 || !among[p])
            continue;
        uint32_t v = coordinate_of(s, c, p);
        in[v] |= is[p];
        out[v] |= would[p] && !is[p];
    }
    for (uint32_t v = 0; good && v < size; v++)
        good = !(in[v] && out[v]);
    good = good && axis_describe(in, out, size, axis);
    free(in);
    free(out);
    return good;
}

static struct finding_axis *axis_of(struct finding *f, enum coordinate c)
{
    return c == BY_SLOT ? &f->slots : c == BY_EXPERT ? &f->experts : c == BY_LIST ? &f->list : &f->tokens;
}

/* The tokens (or experts) with a wrong pair, and of those the slots or experts. */
static bool describe_product(const struct stages *s, enum coordinate outer, enum coordinate inner, const bool *is,
                             const bool *would, struct finding *f)
{
    uint32_t size = size_of(s, outer);
    struct finding_axis first, second;
    bool *in = calloc(size, sizeof *in), *out = calloc(size, sizeof *out), *among = calloc(s->pairs, sizeof *among);
    bool good = in && out && among;
    for (size_t p = 0; good && p < s->pairs; p++)
        if (s->ids[p] >= 0) {
            in[coordinate_of(s, outer, p)] |= is[p];
            out[coordinate_of(s, outer, p)] |= would[p];
        }
    good = good && axis_describe(in, out, size, &first);
    for (size_t p = 0; good && p < s->pairs; p++)
        among[p] = s->ids[p] >= 0 && finding_axis_has(&first, coordinate_of(s, outer, p));
    good = good && describe_by(s, inner, is, would, among, &second);
    if (good) {
        *axis_of(f, outer) = first;
        *axis_of(f, inner) = second;
    }
    free(in);
    free(out);
    free(among);
    return good;
}

bool pairs_describe(const struct stages *s, const bool *is, const bool *would, struct finding *f)
{
    static const enum coordinate products[][2] = {
        {BY_TOKEN, BY_SLOT}, {BY_TOKEN, BY_EXPERT}, {BY_EXPERT, BY_SLOT}, {BY_EXPERT, BY_LIST}};
    enum { PRODUCTS = sizeof products / sizeof *products };
    bool *all = malloc(s->pairs * sizeof *all), found = false;
    uint32_t least = UINT32_MAX;
    struct finding best = *f;
    if (!all)
        return false;
    memset(all, true, s->pairs * sizeof *all);
    for (int n = 0; n < COORDINATES + PRODUCTS; n++) {
        struct finding one = *f;
        enum coordinate c = n < COORDINATES ? (enum coordinate)n : BY_SLOT;
        one.tokens = one.slots = one.experts = one.list = (struct finding_axis){.kind = AXIS_ALL};
        bool fits = n < COORDINATES ? describe_by(s, c, is, would, all, axis_of(&one, c))
                                    : describe_product(s, products[n - COORDINATES][0], products[n - COORDINATES][1],
                                                       is, would, &one);
        if (fits && finding_cost(&one) < least) {
            least = finding_cost(&one);
            best = one;
            found = true;
        }
    }
    free(all);
    *f = best;
    return found;
}

bool tokens_describe(const struct stages *s, const bool *is, const bool *would, struct finding *f)
{
    bool *in = calloc(s->pairs, sizeof *in), *out = calloc(s->pairs, sizeof *out), found = false;
    for (size_t p = 0; in && out && p < s->pairs; p++) {
        in[p] = is[p / s->top_k];
        out[p] = would[p / s->top_k];
    }
    struct finding_axis axis;
    bool *all = malloc(s->pairs * sizeof *all);
    if (in && out && all) {
        memset(all, true, s->pairs * sizeof *all);
        found = describe_by(s, BY_TOKEN, in, out, all, &axis);
        if (found)
            f->tokens = axis;
    }
    free(in);
    free(out);
    free(all);
    return found;
}

uint32_t finding_cost(const struct finding *f)
{
    return axis_cost(&f->tokens) + axis_cost(&f->slots) + axis_cost(&f->experts) + axis_cost(&f->list) +
           axis_cost(&f->elements) + axis_cost(&f->k);
}
