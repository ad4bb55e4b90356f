/* SPDX-License-Identifier: Apache-2.0 */
/* How places are put into few words: the simplest axis that holds, against all axes; and how many elements may differ.
 */
#include "harness/explain/effects.h"
#include "harness/explain/places.h"
#include "tests/support/check.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_simplest_axis_is_found),
        cmocka_unit_test(tiles_and_periods),
        cmocka_unit_test(one_in_200_may_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
