/* SPDX-License-Identifier: Apache-2.0 */
/* How places are put into few words: the simplest axis that holds, against all axes; how many elements may differ; and
 * which effects rows are told to have, by the definitions in finding.h and all of them as tests/harness/kept holds
 * them.
 */
#include "harness/explain/effects.h"
#include "harness/explain/hypothesis.h"
#include "harness/explain/places.h"
#include "tests/support/check.h"
#include "tests/support/kept_explanation.h"

#include <math.h>

enum state { WRONG, RIGHT, UNKNOWN, STATES }; /* of an index: is and would; not, but would be; neither */
enum { SIZE = 9, COMBINATIONS = 19683, NONE = 1000 };

/* Whether the indices that a rule takes have every wrong one, and no right one. */
static bool fits(const bool *taken, const enum state *of, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++)
        if (of[i] == (taken[i] ? RIGHT : WRONG))
            return false;
    return true;
}

/* What the simplest rule costs, found by trying every range, every residue and every list. */
static uint32_t least_cost(const enum state *of)
{
    uint32_t least = NONE, wrong = 0;
    bool taken[SIZE];
    for (uint32_t i = 0; i < SIZE; i++)
        wrong += of[i] == WRONG;
    if (wrong <= 4)
        least = 2 + wrong;
    for (uint32_t period = 1; period <= 4; period *= 2)
        for (uint32_t first = 0; first < (period > 1 ? period : SIZE); first++)
            for (uint32_t last = first; last < (period > 1 ? period : SIZE); last++) {
                uint32_t cost = (period > 1) + (first == last ? 1 : 2);
                if (period > 1 && last - first + 1 == period)
                    continue;
                for (uint32_t i = 0; i < SIZE; i++)
                    taken[i] = (period > 1 ? i % period : i) >= first && (period > 1 ? i % period : i) <= last;
                least = fits(taken, of, SIZE) && cost < least ? cost : least;
            }
    memset(taken, true, sizeof taken);
    return fits(taken, of, SIZE) ? 0 : least;
}

static void the_simplest_axis_is_found(void **state)
{
    (void)state;
    for (int n = 0; n < COMBINATIONS; n++) {
        bool is[SIZE], would[SIZE], taken[SIZE];
        enum state of[SIZE];
        struct finding_axis axis;
        for (int i = 0, rest = n; i < SIZE; i++, rest /= STATES) {
            of[i] = (enum state)(rest % STATES);
            is[i] = of[i] == WRONG;
            would[i] = of[i] != UNKNOWN;
        }
        uint32_t least = least_cost(of), wrong = 0;
        for (int i = 0; i < SIZE; i++)
            wrong += is[i];
        if (!wrong)
            continue;
        bool found = axis_describe(is, would, SIZE, &axis);
        for (uint32_t i = 0; found && i < SIZE; i++)
            taken[i] = finding_axis_has(&axis, i);
        if (found != (least != NONE) || (found && (axis_cost(&axis) > least || !fits(taken, of, SIZE))))
            fail_msg("combination %d: found %d, costs %u of %u", n, found, axis_cost(&axis), least);
    }
}

/* Wrong: first .. last, every step; right: one index, and all others between, or all others at all. */
static void expect_axis(uint32_t size, uint32_t first, uint32_t last, uint32_t step, uint32_t right, bool others,
                        struct finding_axis expected)
{
    bool is[1024] = {false}, would[1024] = {false};
    struct finding_axis axis;
    for (uint32_t i = 0; i < size; i++) {
        is[i] = i >= first && i <= last && (i - first) % step == 0;
        would[i] = is[i] || others || i == right;
    }
    bool found = axis_describe(is, would, size, &axis);
    if (!found || axis.kind != expected.kind || axis.first != expected.first || axis.count != expected.count ||
        (axis.kind == AXIS_MODULO && axis.period != expected.period))
        fail_msg("%u .. %u of %u, step %u: found %d, kind %d, %u elements from %u on, period %u", first, last, size,
                 step, found, axis.kind, axis.count, axis.first, axis.period);
}

/* A range grows to where a tile ends, by less than half a tile; periods reach 128; four at most are listed. */
static void tiles_and_periods(void **state)
{
    (void)state;
    expect_axis(300, 17, 30, 1, 200, false, (struct finding_axis){.kind = AXIS_RANGE, .first = 16, .count = 16});
    expect_axis(300, 17, 30, 1, 16, false, (struct finding_axis){.kind = AXIS_RANGE, .first = 17, .count = 14});
    expect_axis(300, 3, 125, 1, 200, false, (struct finding_axis){.kind = AXIS_RANGE, .first = 0, .count = 128});
    expect_axis(300, 130, 297, 1, 0, false, (struct finding_axis){.kind = AXIS_RANGE, .first = 128, .count = 172});
    expect_axis(300, 100, 199, 1, 299, false, (struct finding_axis){.kind = AXIS_RANGE, .first = 100, .count = 100});
    expect_axis(300, 17, 17, 1, 200, false, (struct finding_axis){.kind = AXIS_RANGE, .first = 17, .count = 1});
    expect_axis(300, 5, 299, 128, 0, true,
                (struct finding_axis){.kind = AXIS_MODULO, .first = 5, .count = 1, .period = 128});
    expect_axis(255, 5, 254, 128, 0, true, (struct finding_axis){.kind = AXIS_LIST, .count = 2});
    expect_axis(1024, 5, 1023, 256, 0, true, (struct finding_axis){.kind = AXIS_LIST, .count = 4});
    bool is[1024] = {false}, would[1024];
    struct finding_axis axis;
    memset(would, true, sizeof would);
    for (uint32_t i = 0; i < 5; i++)
        is[7 + 150 * i] = true;
    assert_false(axis_describe(is, would, 1024, &axis));
}

/* Of the wrong elements one in 200 may be another than the effect makes; without a wrong element there is no effect. */
static void one_in_200_may_differ(void **state)
{
    enum { WIDTH = 400 };
    static const uint32_t row[] = {0};
    double clean[WIDTH], values[WIDTH], made[WIDTH];
    (void)state;
    for (uint32_t wrong = 0; wrong <= WIDTH; wrong++)
        for (uint32_t missed = 0; missed < 3 && missed <= wrong; missed++) {
            struct observed o = {.clean = clean,
                                 .count = 1,
                                 .per_token = 1,
                                 .width = WIDTH,
                                 .rows = 1,
                                 .row = row,
                                 .values = values,
                                 .tolerance = 1e-6,
                                 .relative = 1e-6};
            struct finding f = {0};
            for (uint32_t i = 0; i < WIDTH; i++) {
                clean[i] = 1.0 + i;
                values[i] = i < wrong ? -clean[i] : clean[i];
                made[i] = i >= wrong - missed && i < wrong ? 0.5 * values[i] : values[i];
            }
            assert_int_equal(effect_fits(&o, made, &f), wrong > 0 && 200 * missed <= wrong);
        }
}

/* Of the columns one in 200 may have a row that is right where the effect would make it wrong. */
static void one_column_in_200_may_contradict(void **state)
{
    enum { WIDTH = 400 };
    static const uint32_t row[] = {0, 1};
    double clean[2 * WIDTH], values[2 * WIDTH], made[2 * WIDTH];
    (void)state;
    for (uint32_t right = 0; right < 5; right++) {
        struct observed o = {.clean = clean,
                             .count = 2,
                             .per_token = 1,
                             .width = WIDTH,
                             .rows = 2,
                             .row = row,
                             .values = values,
                             .tolerance = 1e-6,
                             .relative = 1e-6};
        struct finding f = {0};
        for (uint32_t i = 0; i < 2 * WIDTH; i++) {
            clean[i] = 1.0 + i;
            made[i] = -clean[i];
            values[i] = i >= 2 * WIDTH - right ? clean[i] : made[i];
        }
        assert_int_equal(effect_fits(&o, made, &f), right <= 2);
    }
}

enum { TOKENS = 4, SLOTS = 3, COLUMNS = 64, KNOWN = 3 };

static uint32_t ring(uint32_t i, int32_t offset, uint32_t size)
{
    return (uint32_t)((int32_t)(i + size) + offset) % size;
}

/* What the effect makes of element i of a row, by its definition in finding.h. clean: [TOKENS * SLOTS, COLUMNS] */
static double defined(const struct finding *f, const double *clean, uint32_t row, uint32_t i)
{
    const uint32_t bits = (uint32_t)f->offset, tile = bits * (uint32_t)f->columns;
    const double value = clean[row * COLUMNS + i];
    uint32_t token = row / SLOTS, slot = row % SLOTS;
    switch ((int)f->effect) {
    case FINDING_FACTOR:
        return f->amount * value;
    case FINDING_ADD:
        return value + f->amount;
    case FINDING_CONSTANT:
        return f->amount;
    case FINDING_NEGATIVE:
        return fabs(value);
    case FINDING_SATURATE:
        return fmin(fmax(value, -f->amount), f->amount);
    case FINDING_CAP:
        return fmin(value, f->amount);
    case FINDING_FLOOR:
        return fmax(value, f->amount);
    case FINDING_FLUSH:
        return fabs(value) < f->amount ? 0.0 : value;
    case FINDING_ELEMENT:
        i = ring(i, f->offset, COLUMNS);
        break;
    case FINDING_XOR:
        i ^= bits;
        break;
    case FINDING_SHARED:
        i &= ~bits;
        break;
    case FINDING_TILED:
        i = i / tile * tile + i % (uint32_t)f->columns * bits + i % tile / (uint32_t)f->columns;
        break;
    case FINDING_REVERSE:
        i = COLUMNS - 1 - i;
        break;
    case FINDING_TOKEN:
        token = ring(token, f->offset, TOKENS);
        break;
    case FINDING_TOKEN_XOR:
        token ^= bits;
        break;
    default:
        slot = ring(slot, f->offset, SLOTS);
    }
    return clean[(token * SLOTS + slot) * COLUMNS + i] + (f->added ? value : 0.0);
}

/* All that rows are told to have, with the elements. */
static void keep_told(const struct finding *told, uint32_t count)
{
    char line[256];
    for (uint32_t t = 0; t < count; t++) {
        const struct finding *f = &told[t];
        const struct finding_axis *e = &f->elements;
        snprintf(line, sizeof line, "%s%d %.6g %d %d %d %d; %d %u+%u%%%u", t ? " | " : "", (int)f->effect, f->amount,
                 f->offset, f->columns, f->added, (int)f->type, (int)e->kind, e->first, e->count,
                 e->kind == AXIS_MODULO ? e->period : 0);
        kept_text(line);
    }
    kept_text("\n");
}

/* Everywhere or in some elements, an effect is among those that rows are told from, with what it has of numbers. */
static void effects_are_told(void **state)
{
    static const struct finding planted[] = {
        {.effect = FINDING_FACTOR, .amount = 1.5},
        {.effect = FINDING_FACTOR, .amount = -1.0},
        {.effect = FINDING_ADD, .amount = 0.25},
        {.effect = FINDING_CONSTANT},
        {.effect = FINDING_CONSTANT, .amount = 3.5},
        {.effect = FINDING_CONSTANT, .amount = NAN},
        {.effect = FINDING_NEGATIVE},
        {.effect = FINDING_SATURATE, .amount = 0.5},
        {.effect = FINDING_CAP, .amount = 0.25},
        {.effect = FINDING_FLOOR, .amount = -0.25},
        {.effect = FINDING_FLUSH, .amount = 0.5},
        {.effect = FINDING_ELEMENT, .offset = 1},
        {.effect = FINDING_ELEMENT, .offset = -5},
        {.effect = FINDING_ELEMENT, .offset = COLUMNS / 2},
        {.effect = FINDING_XOR, .offset = 1},
        {.effect = FINDING_XOR, .offset = COLUMNS / 2},
        {.effect = FINDING_SHARED, .offset = 1},
        {.effect = FINDING_SHARED, .offset = 7},
        {.effect = FINDING_TILED, .offset = 2, .columns = 4},
        {.effect = FINDING_TILED, .offset = 4, .columns = 2},
        {.effect = FINDING_TILED, .offset = 32, .columns = 2},
        {.effect = FINDING_TILED, .offset = 2, .columns = 32},
        {.effect = FINDING_REVERSE},
        {.effect = FINDING_TOKEN, .offset = 2},
        {.effect = FINDING_TOKEN, .offset = -1},
        {.effect = FINDING_TOKEN, .offset = 1, .added = true},
        {.effect = FINDING_SLOT, .offset = 1},
        {.effect = FINDING_SLOT, .offset = -1, .added = true},
        {.effect = FINDING_TOKEN_XOR, .offset = 1},
        {.effect = FINDING_TOKEN_XOR, .offset = 2},
    };
    static const uint32_t row[KNOWN] = {4, 0, 11};
    static const double tolerance = 1e-12;
    double clean[TOKENS * SLOTS * COLUMNS], values[KNOWN * COLUMNS];
    uint64_t random = 3;
    (void)state;
    for (size_t i = 0; i < sizeof clean / sizeof *clean; i++)
        clean[i] = ldexp((double)(random_bits(&random) >> 32), -31) - 1.0;
    struct observed o = {FINDING_DOWN, clean, TOKENS * SLOTS, SLOTS, COLUMNS, KNOWN, row, values, tolerance, tolerance};
    for (uint32_t first = 0; first <= 16; first += 16)
        for (size_t n = 0; n < sizeof planted / sizeof *planted; n++) {
            enum { MOST = 8 };
            struct finding told[MOST];
            for (uint32_t i = 0; i < KNOWN * COLUMNS; i++) {
                const bool in = i % COLUMNS >= first && i % COLUMNS < COLUMNS - first;
                values[i] = in ? defined(&planted[n], clean, row[i / COLUMNS], i % COLUMNS)
                               : clean[row[i / COLUMNS] * COLUMNS + i % COLUMNS];
            }
            const uint32_t count = effects_infer(&o, told, MOST);
            bool found = false;
            keep_told(told, count);
            for (uint32_t t = 0; t < count; t++) {
                const struct finding *f = &told[t];
                bool same = f->stage == FINDING_DOWN && f->effect == planted[n].effect &&
                            f->offset == planted[n].offset && f->columns == planted[n].columns &&
                            f->added == planted[n].added;
                for (uint32_t i = 0; same && i < KNOWN * COLUMNS; i++) {
                    const double right = clean[row[i / COLUMNS] * COLUMNS + i % COLUMNS];
                    const double made = finding_axis_has(&f->elements, i % COLUMNS)
                                            ? defined(f, clean, row[i / COLUMNS], i % COLUMNS)
                                            : right;
                    same = isnan(made) ? isnan(values[i]) : fabs(made - values[i]) <= 4.0 * tolerance;
                }
                found |= same;
            }
            if (!found)
                fail_msg("effect %zu from element %u: none of %u findings is it", n, first, count);
        }
}

/* Elements that have each other's values, but for one far behind, which is nobody's. */
static void moves_are_told_beside_another_error(void **state)
{
    enum { ROWS = 6, MOST = 8 };
    static const uint32_t rows[ROWS] = {0, 1, 2, 3, 4, 5};
    static const double tolerance = 1e-12;
    static const struct finding moved[] = {{.effect = FINDING_ELEMENT, .offset = 5},
                                           {.effect = FINDING_XOR, .offset = 4}};
    double clean[ROWS * COLUMNS], values[ROWS * COLUMNS];
    uint64_t random = 11;
    (void)state;
    for (size_t i = 0; i < ROWS * COLUMNS; i++)
        clean[i] = ldexp((double)(random_bits(&random) >> 32), -31) - 1.0;
    const struct observed o = {FINDING_DOWN, clean, ROWS, SLOTS, COLUMNS, ROWS, rows, values, tolerance, tolerance};
    for (size_t n = 0; n < sizeof moved / sizeof *moved; n++) {
        struct finding told[MOST];
        bool found = false;
        static const uint32_t other[] = {ROWS * COLUMNS - 1, 16, 15, 0};
        for (size_t e = 0; e < sizeof other / sizeof *other; e++, found = false) {
            for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
                values[i] = defined(&moved[n], clean, i / COLUMNS, i % COLUMNS);
            values[other[e]] = 7.0;
            const uint32_t count = effects_infer(&o, told, MOST);
            for (uint32_t t = 0; t < count; t++)
                found |= told[t].effect == moved[n].effect && told[t].offset == moved[n].offset;
            assert_int_equal(found, other[e] >= 16); /* so many are looked at first */
        }
    }
}

/* Which elements a factor is the ratio of: from half the root of the mean square on, of which 3 is one and a half. */
static void factors_are_those_of_larger_elements(void **state)
{
    enum { WIDTH = 8, LARGE = 3, MOST = 8 };
    static const uint32_t row[] = {0};
    (void)state;
    for (int below = 0; below < 2; below++) {
        double clean[WIDTH], values[WIDTH], factor = NAN;
        struct finding told[MOST];
        const struct observed o = {FINDING_DOWN, clean, 1, 1, WIDTH, 1, row, values, 0.9, 0.0};
        for (int i = 0; i < WIDTH; i++) {
            clean[i] = i < LARGE ? 3.0 : below ? 0.98 : 1.0;
            values[i] = i < LARGE ? 4.5 : 2.0;
        }
        for (uint32_t count = effects_infer(&o, told, MOST), t = 0; t < count; t++)
            factor = told[t].effect == FINDING_FACTOR ? told[t].amount : factor;
        assert_true(below ? fabs(factor - 1.5) < 1e-12 : isnan(factor));
    }
}

/* Where a right value is infinite, no element is told to be another's: constants alone are. */
static void infinite_rows_are_told_constants(void **state)
{
    enum { WIDTH = 16, ROWS = 2, MOST = 8 };
    static const uint32_t rows[ROWS] = {0, 1};
    static const struct finding moved[] = {{.effect = FINDING_ELEMENT, .offset = 1},
                                           {.effect = FINDING_TOKEN, .offset = 1}};
    (void)state;
    for (int infinite = 0; infinite < 2; infinite++)
        for (size_t n = 0; n < sizeof moved / sizeof *moved; n++) {
            double clean[ROWS * WIDTH], values[ROWS * WIDTH];
            struct finding told[MOST];
            const struct observed o = {FINDING_DOWN, clean, ROWS, 1, WIDTH, ROWS, rows, values, 0.0, 0.0};
            bool found = false;
            for (uint32_t i = 0; i < ROWS * WIDTH; i++)
                clean[i] = infinite && i == 5 ? INFINITY : 1.0 + i * i;
            for (uint32_t i = 0; i < ROWS * WIDTH; i++)
                values[i] = n ? clean[(i + WIDTH) % (ROWS * WIDTH)] : clean[i / WIDTH * WIDTH + (i + 1) % WIDTH];
            const uint32_t count = effects_infer(&o, told, MOST);
            for (uint32_t t = 0; t < count; t++) {
                found |= told[t].effect == moved[n].effect;
                assert_true(!infinite || told[t].effect == FINDING_CONSTANT);
            }
            assert_int_equal(found, !infinite);
        }
}

/* Rows of integers, of which sets of elements are others; in each stage, and by how much they may be off. */
static void told_effects_are_those_kept(void **state)
{
    enum { ROWS = 3, SHORT = 12, MOST = 40, KINDS = 24 };
    static const enum finding_stage stages[] = {FINDING_INPUT, FINDING_ACT, FINDING_DOWN, FINDING_ROUTING_WEIGHT};
    static const uint32_t rows[ROWS] = {1, 2, 5};
    double clean[TOKENS * SLOTS * SHORT], values[ROWS * SHORT];
    (void)state;
    for (uint32_t i = 0; i < TOKENS * SLOTS * SHORT; i++)
        clean[i] = i % 7 == 3 ? 0.0 : (double)((i * 37) % 41) - 17.25;
    for (size_t s = 0; s < sizeof stages / sizeof *stages; s++)
        for (int kind = 0; kind < KINDS; kind++)
            for (uint32_t wrong = 1; wrong <= SHORT; wrong += wrong < 4 ? 1 : 4) {
                struct finding told[MOST];
                struct observed o = {stages[s], clean, TOKENS * SLOTS, SLOTS, SHORT, ROWS, rows, values, 0.01, 0.002};
                for (uint32_t i = 0; i < ROWS * SHORT; i++) {
                    const uint32_t at = i % SHORT, row = rows[i / SHORT], n = (at + 5) % SHORT < wrong ? 1 : 0;
                    const double *own = clean + row * SHORT, v = own[at];
                    const double made[KINDS] = {0.0,
                                                NAN,
                                                3.0,
                                                fabs(v),
                                                2.0 * v,
                                                -v,
                                                v + 1.5,
                                                fmin(fmax(v, -6.0), 6.0),
                                                fmin(v, 4.5),
                                                fmax(v, -4.5),
                                                fabs(v) < 5.0 ? 0.0 : v,
                                                own[(at + 5) % SHORT],
                                                own[at ^ 2],
                                                own[at & ~1u],
                                                own[SHORT - 1 - at],
                                                clean[(row + SLOTS) % (TOKENS * SLOTS) * SHORT + at],
                                                v + clean[(row + SLOTS) % (TOKENS * SLOTS) * SHORT + at],
                                                clean[(row / SLOTS * SLOTS + (row + 1) % SLOTS) * SHORT + at],
                                                v * (at % 2 ? 1.5 : 1.0),
                                                INFINITY,
                                                v + (at % 3 ? 0.5 : 0.25),
                                                v * 1.0049 + 0.02,
                                                fmin(v, 4.5 + 0.004 * (at % 3)),
                                                fmax(v, -4.5 - 0.004 * (at % 3))};
                    values[i] = n ? made[kind] : v;
                }
                keep_told(told, effects_infer(&o, told, MOST));
                keep_told(told, effects_infer(&o, told, 2));
            }
    /* Coarse values: what a factor is by the larger ones, and by those that it fits. */
    for (int noise = 0; noise < 12; noise++)
        for (uint32_t wrong = 1; wrong <= SHORT; wrong += wrong < 4 ? 1 : 4) {
            static const double factors[] = {2.0, -1.0, 0.5, 1.25, -1.0 - 1.5e-6, -1.0 + 1.5e-6};
            const double tolerance = noise < 6 ? 1.25 : 1e-3, factor = factors[noise % 6];
            struct finding told[MOST];
            struct observed o = {FINDING_ACT, clean, TOKENS * SLOTS, SLOTS, SHORT, ROWS, rows, values, tolerance, 0.0};
            for (uint32_t i = 0; i < ROWS * SHORT; i++) {
                const double v = clean[rows[i / SHORT] * SHORT + i % SHORT], off = (double)((i * 29 + 3) % 19) - 9.0;
                values[i] = (i % SHORT + 5) % SHORT < wrong ? factor * v + (noise < 4 ? 0.1 * off : 0.0) : v;
            }
            keep_told(told, effects_infer(&o, told, MOST));
        }
    /* Elements that have each other's values across a bit above half the row. */
    for (uint32_t i = 0; i < ROWS * SHORT; i++) {
        const uint32_t at = i % SHORT;
        values[i] = clean[rows[i / SHORT] * SHORT + (at < 4 || at >= 8 ? at ^ 8 : at)];
    }
    struct finding told[MOST];
    const struct observed o = {FINDING_DOWN, clean, TOKENS * SLOTS, SLOTS, SHORT, ROWS, rows, values, 0.01, 0.0};
    const uint32_t count = effects_infer(&o, told, MOST);
    assert_true(count > 0 && told[0].effect == FINDING_XOR && told[0].offset == 8);
    keep_told(told, count);
    expect_kept_explanations("test_places");
}

/* The whole error is the sum of its rows, and noise may be half of what a candidate that explains 0.99 of it leaves. */
static void noise_is_no_error(void **state)
{
    double squares[] = {0.25, 0.5};
    struct diagnosis w = {.rows = 2, .squares = squares};
    (void)state;
    assert_true(diagnosis_squares(&w) == 0.75);
    assert_true(diagnosis_is_enough(&w, 0.999));
    assert_false(diagnosis_is_enough(&w, 0.9989));
    w.noise = 0.75 * 0.004 / 2 * 1.001;
    assert_true(diagnosis_is_enough(&w, 0.996));
    w.noise = 0.75 * 0.004 / 2 * 0.999;
    assert_false(diagnosis_is_enough(&w, 0.996));
    w.noise = 1.0;
    assert_true(diagnosis_is_enough(&w, 0.99));
    assert_false(diagnosis_is_enough(&w, 0.9899));
}

/* A candidate that is found in two ways is one, which explains the more and ranks before; one that explains nothing is
 * none, and there are no more than there is room for. */
static void candidates_are_kept(void **state)
{
    static struct diagnosis w;
    const char *const more[] = {"a", "b", "c", "d"};
    (void)state;
    diagnosis_add(&w, RANK_WHOLE, "kind", "a", 0.5);
    assert_true(diagnosis_best(&w) == 0.5);
    diagnosis_add(&w, RANK_PARTLY, "kind", "b", 0.25);
    diagnosis_add(&w, RANK_WHOLE, "kind", "none", 0.0);
    diagnosis_add(&w, RANK_WHOLE, "kind", "none", (double)NAN);
    assert_int_equal(w.count, 2);
    assert_true(diagnosis_best(&w) == 0.5);
    diagnosis_add(&w, RANK_PARTLY, "other", "a", 0.75);
    diagnosis_add(&w, RANK_WHOLE, "other", "b", 0.125);
    diagnosis_add(&w, RANK_WHOLE, "other", "c", 0.625);
    assert_int_equal(w.count, 3);
    static const double explains[] = {0.75, 0.25, 0.625};
    for (uint32_t i = 0; i < w.count; i++) {
        assert_string_equal(w.candidates[i].name, more[i]);
        assert_string_equal(w.candidates[i].kind, i < 2 ? "kind" : "other");
        assert_true(w.candidates[i].explains == explains[i] && w.candidates[i].rank == RANK_WHOLE);
    }
    assert_true(diagnosis_best(&w) == 0.75);
    for (uint32_t i = 3; i <= MOST_CANDIDATES; i++) {
        char name[8];
        snprintf(name, sizeof name, "%u", i);
        diagnosis_add(&w, RANK_WHOLE, "kind", name, i == MOST_CANDIDATES ? 1.0 : 0.875);
    }
    assert_int_equal(w.count, MOST_CANDIDATES);
    assert_true(diagnosis_best(&w) == 0.875);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_simplest_axis_is_found),
        cmocka_unit_test(tiles_and_periods),
        cmocka_unit_test(one_in_200_may_differ),
        cmocka_unit_test(one_column_in_200_may_contradict),
        cmocka_unit_test(effects_are_told),
        cmocka_unit_test(moves_are_told_beside_another_error),
        cmocka_unit_test(factors_are_those_of_larger_elements),
        cmocka_unit_test(infinite_rows_are_told_constants),
        cmocka_unit_test(told_effects_are_those_kept),
        cmocka_unit_test(noise_is_no_error),
        cmocka_unit_test(candidates_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
