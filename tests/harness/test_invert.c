/* SPDX-License-Identifier: Apache-2.0 */
/* invert: errors of few groups of the intermediate are found again from the outputs that they make wrong. */
#include "harness/explain/invert.h"
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/problem.h"

#include <math.h>

enum { TOKENS = 3, HIDDEN = 256, INNER = 64, EXPERTS = 6, TOP_K = 3, UNKNOWNS = TOP_K * INNER, TOKEN = 1 };

struct scene {
    struct problem problem;
    struct diagnosis diagnosis;
    struct stages stages;
    bool column[HIDDEN];
    double errors[TOKENS * HIDDEN], weights[TOKENS * TOP_K], wrong[UNKNOWNS];
};

/* The outputs' errors that s->wrong makes, in the columns 40 .. HIDDEN - 1 alone. */
static void scene_new(struct scene *s)
{
    const struct gb_weights *down = &s->problem.arguments.down;
    double row[INNER];
    for (uint32_t p = 0; p < TOKENS * TOP_K; p++)
        s->weights[p] = (double)s->problem.routing_weights[p];
    for (uint32_t j = 0; j < HIDDEN; j++) {
        s->column[j] = j >= 40;
        s->errors[TOKEN * HIDDEN + j] = 0.0;
        for (uint32_t k = 0; k < TOP_K; k++) {
            size_t p = TOKEN * TOP_K + k;
            if (s->problem.ids[p] < 0)
                continue;
            gb_weights_row(down, (uint32_t)s->problem.ids[p], j, row);
            for (uint32_t i = 0; i < INNER; i++)
                s->errors[TOKEN * HIDDEN + j] += s->weights[p] * row[i] * s->wrong[k * INNER + i];
        }
    }
    s->diagnosis.trace.arguments = s->problem.arguments;
    s->diagnosis.width = HIDDEN;
    s->diagnosis.errors = s->errors;
    s->diagnosis.location = (struct error_location){.column = s->column, .wrong_columns = HIDDEN - 40};
    s->stages = (struct stages){.diagnosis = &s->diagnosis,
                                .tokens = TOKENS,
                                .top_k = TOP_K,
                                .pairs = TOKENS * TOP_K,
                                .hidden = HIDDEN,
                                .intermediate = INNER,
                                .experts = EXPERTS,
                                .ids = s->problem.ids,
                                .weights = s->weights};
}

static void expect_found(struct scene *s, enum grouping grouping)
{
    double delta[UNKNOWNS], work = 5.0;
    struct gb_error error = {""};
    scene_new(s);
    if (invert(&s->stages, TOKEN, grouping, INFINITY, delta, &work, &error) != GB_OK)
        fail_msg("grouping %d: %s", grouping, error.message);
    for (uint32_t u = 0; u < UNKNOWNS; u++)
        if (!(fabs(delta[u] - s->wrong[u]) < 1e-5) || (s->wrong[u] == 0.0 && delta[u] != 0.0))
            fail_msg("grouping %d, slot %u, element %u: %g, not %g", grouping, u / INNER, u % INNER, delta[u],
                     s->wrong[u]);
    /* A product of the matrix for each group that was taken at least, and no more than one for each group there is. */
    double matrix = (double)UNKNOWNS * (HIDDEN - 40);
    assert_true(work >= 5.0 + matrix && work < 5.0 + 400.0 * matrix);
    assert_int_equal(invert(&s->stages, TOKEN, grouping, matrix - 1.0, delta, &work, &error), GB_EUNSUPPORTED);
}

static double some(uint32_t i)
{
    return (i % 2 ? -1.0 : 1.0) * (1.0 + i % 7);
}

/* Two groups of each kind, in a token of three slots and in one with an empty slot. */
static void groups_are_found(void **state)
{
    static struct scene s;
    const struct gb_shape shape = {TOKENS, HIDDEN, INNER, EXPERTS, TOP_K};
    (void)state;
    for (int empty = 0; empty < 2; empty++)
        for (int g = 0; g < GROUPINGS; g++) {
            problem_new(&s.problem, shape, GB_NVFP4, DATA_GAUSSIAN, 3);
            if (empty)
                s.problem.ids[TOKEN * TOP_K] = -1;
            for (uint32_t u = 0; u < UNKNOWNS; u++) {
                uint32_t k = u / INNER, i = u % INNER;
                bool in = g == GROUP_BLOCKS     ? (k == 1 && i / 16 == 0) || (k == 2 && i / 16 == 3)
                          : g == GROUP_COLUMNS  ? i / 16 == 2
                          : g == GROUP_RESIDUES ? i % 32 == 5 || i % 32 == 31
                                                : (k == 1 && i % 32 == 7) || (k == 2 && i % 32 == 0);
                s.wrong[u] = in && s.problem.ids[TOKEN * TOP_K + k] >= 0 ? some(u) : 0.0;
            }
            expect_found(&s, (enum grouping)g);
            problem_free(&s.problem);
        }
}

/* Where every element is wrong, no few groups explain it. */
static void more_than_few_are_not(void **state)
{
    static struct scene s;
    double delta[UNKNOWNS], work = 0.0;
    struct gb_error error;
    (void)state;
    problem_new(&s.problem, (struct gb_shape){TOKENS, HIDDEN, INNER, EXPERTS, TOP_K}, GB_NVFP4, DATA_GAUSSIAN, 3);
    scene_new(&s);
    for (uint32_t j = 0; j < HIDDEN; j++)
        s.errors[TOKEN * HIDDEN + j] = some(j * j / 3);
    assert_int_equal(invert(&s.stages, TOKEN, GROUP_BLOCKS, INFINITY, delta, &work, &error), GB_EUNSUPPORTED);
    problem_free(&s.problem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_found),
        cmocka_unit_test(more_than_few_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
