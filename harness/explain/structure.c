/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which sequence stages and effects are tried: what each stage's elements would have to be for the errors seen, or,
 * where errors do not tell that, what each effect everywhere would make of single tokens; the pairs that have it follow
 * by least squares. What is found is planted in all tokens of the diagnosis by the contract's operators, and what that
 * explains is what counts.
 */
#include "harness/explain/search.h"
#include "harness/run/progress.h"

static const enum finding_stage stages[] = {FINDING_ROUTING_WEIGHT, FINDING_DOWN, FINDING_ACT,
                                            FINDING_REQUANT,        FINDING_UP,   FINDING_GATE,
                                            FINDING_GATE_UP,        FINDING_INPUT};
enum { STAGES = sizeof stages / sizeof *stages };

/* Whether the diagnosis's operation has such an array. */
static bool has_stage(const struct search *q, enum finding_stage stage)
{
    return !(q->w->inner && stage > FINDING_ACT) && !(q->w->given && stage < FINDING_ACT) &&
           !(stage == FINDING_REQUANT && !q->w->trace.arguments.activation_rules);
}

/* Effects without an amount. */
static void each_stage(struct search *q)
{
    struct finding_axis all = {.kind = AXIS_ALL};
    for (size_t i = 0; i < STAGES && !search_done(q); i++) {
        progress("searching what the error looks like", 0.7 + 0.02 * (double)i);
        if (has_stage(q, stages[i]))
            search_each_effect(q, stages[i], all, search_settle);
    }
}

static void each_amount(struct search *q)
{
    struct finding_axis all = {.kind = AXIS_ALL};
    struct finding added = {.stage = FINDING_ACT, .effect = FINDING_ADD, .amount = 1.0};
    for (size_t i = 0; i < STAGES && !search_done(q); i++)
        if (has_stage(q, stages[i]) && stages[i] != FINDING_ROUTING_WEIGHT && stages[i] != FINDING_REQUANT)
            search_each_amount(q, stages[i], all);
    if (has_stage(q, FINDING_ACT) && !search_done(q))
        search_settle(q, &added);
}

/* What projections read: of all their rows, or of some. */
static void each_operand(struct search *q, void (*try)(struct search *, const struct finding *))
{
    static const enum finding_stage read[] = {FINDING_DOWN, FINDING_GATE_UP, FINDING_UP, FINDING_GATE};
    for (size_t i = 0; i < sizeof read / sizeof *read && !search_done(q); i++)
        if (has_stage(q, read[i]))
            search_each_operand(q, read[i], try);
}

/* Some elements of the intermediate, or of what makes it. Factors of up are those of the intermediate. */
static void each_element(struct search *q)
{
    static const double factors[] = {-1.0, 0.5, 2.0, 0.25, 4.0, 0.75, 1.25, 1.5};
    struct finding f = {.stage = FINDING_ACT, .effect = FINDING_ADD, .amount = 1.0};
    for (size_t i = 0; i < STAGES && !search_done(q); i++)
        if (has_stage(q, stages[i]) && stages[i] >= FINDING_GATE && stages[i] <= FINDING_REQUANT)
            search_each_effect(q, stages[i], (struct finding_axis){.kind = AXIS_ALL}, search_try_elements);
    search_try_elements(q, &f);
    f.effect = FINDING_FACTOR;
    f.stage = FINDING_GATE;
    for (size_t i = 0; i < sizeof factors / sizeof *factors && !search_done(q); i++) {
        f.amount = factors[i];
        search_try_elements(q, &f);
    }
}

/* What is left is rounding: another order than the contract's, say. */
static bool is_settled(const struct search *q)
{
    return search_done(q) || 1.0 - q->best.explains < 1e-6;
}

static void settle_operands(struct search *q)
{
    each_operand(q, search_settle);
}

static void place_operands(struct search *q)
{
    each_operand(q, search_try_elements);
}

/* A phase that takes long has products of its own, a share of the search's, and leaves the others theirs. */
static void spend(struct search *q, double share, void (*phase)(struct search *))
{
    double begun = q->work, most = q->most;
    q->most = begun + share * most;
    phase(q);
    q->most = most + (q->work - begun);
}

enum gb_status structure_search(struct diagnosis *w, double products, struct structure *best, struct gb_error *error)
{
    struct search q = {.most = products, .status = GB_OK, .error = error};
    q.status = search_new(w, &q);
    if (q.status == GB_OK && !search_done(&q))
        search_try_outputs(&q);
    bool many = w->wrong >= FEW_ELEMENTS && q.tokens;
    if (q.status == GB_OK && many && !search_done(&q) && !w->inner) {
        search_try_single_slots(&q);
        search_try_added(&q);
    }
    if (q.status == GB_OK && many && !search_done(&q) && !w->inner)
        search_try_weights(&q);
    if (q.status == GB_OK && many && !search_done(&q))
        each_stage(&q);
    if (q.status == GB_OK && many && !is_settled(&q) && !w->inner)
        spend(&q, 0.1, search_try_experts);
    if (q.status == GB_OK && many && !search_done(&q))
        spend(&q, 0.5, settle_operands);
    if (q.status == GB_OK && many && !is_settled(&q))
        each_amount(&q);
    if (q.status == GB_OK && many && !is_settled(&q) && !w->inner && !w->given)
        spend(&q, 0.25, each_element);
    if (q.status == GB_OK && many && !is_settled(&q) && !w->inner)
        spend(&q, 0.25, place_operands);
    if (q.status == GB_OK && many && !is_settled(&q) && !w->inner)
        search_try_inverted(&q);
    if (q.status == GB_OK && many && !is_settled(&q) && !w->given)
        search_each_range(&q);
    *best = q.best;
    w->searched.products += q.work;
    search_free(&q);
    return q.status;
}

enum gb_status structure_plant(const struct diagnosis *w, const struct finding *finding, float *results,
                               struct gb_error *error)
{
    struct stages s;
    enum gb_status status = stages_new(w, &s, error);
    if (status == GB_OK)
        status = stages_plant(&s, finding, results, error);
    stages_free(&s);
    return status;
}
