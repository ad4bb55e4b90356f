/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In which sequence stages and effects are tried: what each stage's elements would have to be for the errors seen, or,
 * where errors do not tell that, what each effect everywhere would make of single tokens; the pairs that have it follow
 * by least squares. What is found is planted in all tokens of the diagnosis by the contract's operators, and what that
 * explains is what counts.
 */
#include "harness/explain/search.h"
#include "harness/run/progress.h"

static void each_stage(struct search *q)
{
    static const enum finding_stage stages[] = {FINDING_ROUTING_WEIGHT, FINDING_DOWN, FINDING_ACT,
                                                FINDING_REQUANT,        FINDING_UP,   FINDING_GATE,
                                                FINDING_GATE_UP,        FINDING_INPUT};
    bool down = q->w->given, gate_up = q->w->inner;
    struct finding_axis all = {.kind = AXIS_ALL};
    for (size_t i = 0; i < sizeof stages / sizeof *stages && !search_done(q); i++) {
        enum finding_stage stage = stages[i];
        progress("searching what the error looks like", 0.7 + 0.02 * (double)i);
        if ((gate_up && stage > FINDING_ACT) || (down && stage < FINDING_ACT) ||
            (stage == FINDING_REQUANT && !q->w->trace.arguments.activation_rules))
            continue;
        search_each_effect(q, stage, all, search_settle);
        if (stage != FINDING_ROUTING_WEIGHT && stage != FINDING_REQUANT && !search_done(q))
            search_each_amount(q, stage, all);
        if (stage == FINDING_ACT && !search_done(q)) {
            struct finding added = {.stage = stage, .effect = FINDING_ADD, .amount = 1.0};
            search_settle(q, &added);
        }
    }
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
    if (q.status == GB_OK && many && !search_done(&q))
        each_stage(&q);
    if (q.status == GB_OK && many && !search_done(&q) && !w->inner)
        search_try_inverted(&q);
    if (q.status == GB_OK && many && !search_done(&q) && !w->given)
        search_each_range(&q);
    *best = q.best;
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
