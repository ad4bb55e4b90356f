/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/identification.h"

#include <string.h>

/* Where a block's elements and its scale lie. */
struct block {
    uint32_t c;
    uint32_t row, rows, column, columns;
    size_t scale; /* byte */
};

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static struct block block_at(const struct gb_vectors *v, uint32_t c, uint32_t down, uint32_t across)
{
    uint32_t length = v->format.block_columns ? v->format.block_columns : v->columns;
    struct block b = {.c = c, .row = down * v->format.block_rows, .column = across * length};
    b.rows = smaller(v->format.block_rows, v->rows - b.row);
    b.columns = smaller(length, v->columns - b.column);
    b.scale = (((size_t)c * gb_vectors_down(v) + down) * gb_vectors_across(v) + across) * gb_vectors_scale_bytes(v);
    return b;
}

static uint16_t input(const struct gb_vectors *v, uint32_t c, uint32_t row, uint32_t column)
{
    return v->values[((size_t)c * v->rows + row) * v->columns + column].bits;
}

static enum block_class class_of_block(const struct gb_vectors *v, const struct block *b)
{
    uint16_t largest = 0;
    for (uint32_t row = b->row; row < b->row + b->rows; row++)
        for (uint32_t column = b->column; column < b->column + b->columns; column++) {
            uint16_t magnitude = input(v, b->c, row, column) & 0x7FFF;
            largest = magnitude > largest ? magnitude : largest;
        }
    if (largest >= 0x7F80)
        return BLOCK_NONFINITE;
    if (largest == 0)
        return BLOCK_ZERO;
    return largest < 0x0080 ? BLOCK_SUBNORMAL : BLOCK_ORDINARY;
}

static bool is_zero(enum gb_element_format element, uint8_t bits)
{
    uint8_t sign = element == GB_E2M1 ? 8 : element == GB_E3M2 || element == GB_E2M3 ? 0x20 : 0x80;
    return bits == 0 || (bits == sign && element != GB_INT8 && element != GB_E4M3FNUZ);
}

static enum element_class class_of_element(enum gb_element_format element, uint16_t bits, uint8_t ours, uint8_t theirs)
{
    if ((bits & 0x7FFF) > 0x7F80)
        return ELEMENT_NAN;
    if ((bits & 0x7FFF) == 0x7F80)
        return ELEMENT_INFINITE;
    if ((bits & 0x7FFF) == 0)
        return ELEMENT_ZERO;
    return is_zero(element, ours) || is_zero(element, theirs) ? ELEMENT_UNDERFLOW : ELEMENT_ORDINARY;
}

/* NaN of an FP32 scale is a class. */
static bool same_scale(const struct gb_vectors *v, const uint8_t *a, const uint8_t *b)
{
    float x, y;
    if (gb_vectors_scale_bytes(v) == 1)
        return *a == *b;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return !memcmp(a, b, sizeof x) || (x != x && y != y);
}

static void compare_block(const struct gb_vectors *v, const struct gb_vector_outputs *ours,
                          const struct gb_vector_outputs *theirs, const struct block *b, struct quantiser_difference *d)
{
    enum block_class class = class_of_block(v, b);
    bool scale_differs = !same_scale(v, ours->scales + b->scale, theirs->scales + b->scale);
    uint32_t count = 0, first_row = b->row, first_column = b->column;
    d->scales[class] += scale_differs;
    for (uint32_t row = b->row; row < b->row + b->rows; row++)
        for (uint32_t column = b->column; column < b->column + b->columns; column++) {
            size_t at = (size_t)b->c * v->rows + row;
            uint8_t x = gb_vectors_code(v, ours, at, column), y = gb_vectors_code(v, theirs, at, column);
            if (x == y)
                continue;
            d->codes[class_of_element(v->format.element, input(v, b->c, row, column), x, y)]++;
            if (count++ == 0) {
                first_row = row;
                first_column = column;
            }
        }
    if (count == 0 && !scale_differs)
        return;
    bool only_nonfinite = d->blocks == d->nonfinite_blocks;
    if (d->blocks == 0 || (only_nonfinite && class != BLOCK_NONFINITE)) {
        d->first_case = b->c;
        d->first_row = first_row;
        d->first_column = first_column;
    }
    d->blocks++;
    d->nonfinite_blocks += class == BLOCK_NONFINITE;
}

void difference_between(const struct gb_vectors *v, const struct gb_vector_outputs *ours,
                        const struct gb_vector_outputs *theirs, struct quantiser_difference *d)
{
    memset(d, 0, sizeof *d);
    for (uint32_t c = 0; c < v->cases; c++) {
        if (ours->globals && theirs->globals)
            d->globals += memcmp(&ours->globals[c], &theirs->globals[c], sizeof(float)) != 0;
        for (uint32_t down = 0; down < gb_vectors_down(v); down++)
            for (uint32_t across = 0; across < gb_vectors_across(v); across++) {
                struct block b = block_at(v, c, down, across);
                compare_block(v, ours, theirs, &b, d);
            }
    }
}

static enum gb_status try_rules(const struct gb_vectors *v, const struct gb_quantiser *rules,
                                const struct gb_vector_outputs *theirs, struct quantiser_difference *d,
                                struct gb_error *error)
{
    struct gb_vector_outputs *ours;
    enum gb_status status = gb_vector_outputs_run(v, rules, &ours, error);
    if (status != GB_OK)
        return status;
    difference_between(v, ours, theirs, d);
    gb_vector_outputs_free(ours);
    return GB_OK;
}

static bool of_format(const struct gb_vectors *v, const struct gb_recipe *recipe)
{
    struct gb_block_format format = gb_block_format_of(&recipe->quantiser);
    return gb_block_format_same(&format, &v->format);
}

/* A change of one rule of the recipe after which nothing differs. */
static enum gb_status explain(const struct gb_vectors *v, const struct gb_recipe *recipe,
                              const struct gb_vector_outputs *theirs, struct rule_change *change,
                              struct gb_error *error)
{
    enum gb_status status = GB_OK;
    struct quantiser_difference d;
    for (unsigned i = 0; status == GB_OK && rule_change_next(&recipe->quantiser, i, change); i++) {
        status = try_rules(v, &change->rules, theirs, &d, error);
        if (status == GB_OK && d.blocks + d.globals == 0)
            return GB_OK;
    }
    change->rule = NULL;
    return status;
}

/* Whether a change of the rules changes what is made of the inputs. */
static enum gb_status shows(const struct gb_vectors *v, const struct gb_vector_outputs *outputs,
                            const struct rule_change *change, bool *shown, struct gb_error *error)
{
    struct quantiser_difference d = {0};
    enum gb_status status = try_rules(v, &change->rules, outputs, &d, error);
    *shown = d.blocks + d.globals > 0;
    return status;
}

static bool same_inputs(const struct gb_vectors *a, const struct gb_vectors *b)
{
    size_t count = (size_t)a->cases * a->rows * a->columns;
    return a->cases == b->cases && a->rows == b->rows && a->columns == b->columns &&
           !memcmp(a->values, b->values, count * sizeof *a->values) &&
           !memcmp(a->amax, b->amax, a->cases * sizeof(float));
}

enum gb_status identify_unseen(const struct gb_vectors *v, const struct gb_vectors *full,
                               const struct gb_vector_outputs *theirs, struct identification *found,
                               struct gb_error *error)
{
    const struct gb_recipe *recipe = found->equal[0];
    struct gb_vector_outputs *outputs = NULL;
    struct rule_change change;
    if (found->equals != 1 || same_inputs(v, full))
        return GB_OK;
    enum gb_status status = gb_vector_outputs_run(full, &recipe->quantiser, &outputs, error);
    for (unsigned i = 0; status == GB_OK && rule_change_next(&recipe->quantiser, i, &change); i++) {
        bool shown, could_be = false;
        if (found->unseen_count && !strcmp(found->unseen[found->unseen_count - 1], change.rule))
            continue;
        status = shows(v, theirs, &change, &shown, error);
        if (status == GB_OK && !shown)
            status = shows(full, outputs, &change, &could_be, error);
        if (status == GB_OK && could_be && found->unseen_count < MOST_UNSEEN)
            found->unseen[found->unseen_count++] = change.rule;
    }
    if (outputs)
        gb_vector_outputs_free(outputs);
    return status;
}

enum gb_status identify_outputs(const struct gb_vectors *v, const struct gb_vector_outputs *theirs,
                                struct identification *found, struct gb_error *error)
{
    size_t count;
    const struct gb_recipe *recipes = gb_recipes(&count);
    enum gb_status status = GB_OK;
    memset(found, 0, sizeof *found);
    for (size_t i = 0; i < count && status == GB_OK; i++) {
        struct quantiser_difference d;
        if (!of_format(v, &recipes[i]))
            continue;
        status = try_rules(v, &recipes[i].quantiser, theirs, &d, error);
        if (status != GB_OK)
            return status;
        if (d.blocks + d.globals == 0 && found->equals < MOST_EQUAL)
            found->equal[found->equals++] = &recipes[i];
        if (!found->closest || d.blocks + d.globals < found->difference.blocks + found->difference.globals) {
            found->closest = &recipes[i];
            found->difference = d;
        }
    }
    if (found->equals || !found->closest)
        return GB_OK;
    /* The closest recipe first; then any other that one rule separates from the outputs. */
    status = explain(v, found->closest, theirs, &found->change, error);
    for (size_t i = 0; i < count && status == GB_OK && !found->change.rule; i++) {
        if (!of_format(v, &recipes[i]) || &recipes[i] == found->closest)
            continue;
        status = explain(v, &recipes[i], theirs, &found->change, error);
        if (status == GB_OK && found->change.rule) {
            found->closest = &recipes[i];
            status = try_rules(v, &recipes[i].quantiser, theirs, &found->difference, error);
        }
    }
    return status;
}
