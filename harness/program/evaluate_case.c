/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/program/evaluate_case.h"

#include <stdio.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/explain/operators.h"
#include "harness/judge/judge.h"
#include "harness/run/clock.h"
#include "harness/run/progress.h"
#include "harness/judge/reroute.h"

const char *contract_name(const struct gb_kernel *kernel)
{
    const struct gb_contract *contract = gb_contract_find(kernel->weights, kernel->activations, kernel->order);
    return contract ? contract->name : "";
}

/* What a kernel is held against. */
static enum gb_status baseline_of(struct baselines *all, const struct run_case *s, struct baseline **b,
                                  struct gb_error *error)
{
    return operator_check_find(s->kernel.operation)->baseline(all, &s->kernel, s->outputs->shape.tokens, b, error);
}

/* A result about the fixture itself names its file. */
static void name_fixture(const struct case_request *r, struct case_result *j)
{
    char reason[sizeof j->reason];
    if (j->verdict != VERDICT_BAD_INPUT)
        return;
    strcpy(reason, j->reason);
    snprintf(j->reason, sizeof j->reason, "%s: %.500s", path_end(r->path), reason);
}

/* Of the first run's result and that of the moved one the graver stays, the first of equal ones. outputs: of the one
 * that stays. */
static void keep_graver(struct case_result *j, struct case_result *again, const struct run_case *s,
                        const struct gb_outputs **outputs)
{
    char reason[sizeof j->reason];
    bool moved = verdict_graver(again->verdict, j->verdict) != j->verdict;
    case_result_free(moved ? j : again);
    *outputs = moved ? s->second : s->outputs;
    if (!moved)
        return;
    *j = *again;
    strcpy(reason, j->reason);
    snprintf(j->reason, sizeof j->reason, "run again%s: %.690s", operator_find(s->kernel.operation)->again, reason);
}

/* Takes the result over. NULL: no memory. */
static struct case_entry *add_case(struct case_list *cases, const struct case_request *r, const struct run_case *s,
                                   struct case_result *j, struct gb_error *error)
{
    name_fixture(r, j);
    struct case_entry *e =
        case_list_add(cases, s->kernel.name, s->library, &s->kernel, s->outputs->shape.tokens, s->repro);
    if (!e) {
        case_result_free(j);
        gb_fail(error, GB_ENOMEM, "no memory for the results of %s", s->kernel.name);
        return NULL;
    }
    e->contract = contract_name(&s->kernel);
    e->result = *j;
    snprintf(e->reason, sizeof e->reason, "%s", j->reason);
    snprintf(e->note, sizeof e->note, "%s", s->note ? s->note : "");
    if (s->timing && j->verdict == VERDICT_PASS) /* a wrong output has no time */
        e->timing = *s->timing;
    return e;
}

static void append(struct case_entry *one, const char *text)
{
    size_t used = strlen(one->reason);
    snprintf(one->reason + used, sizeof one->reason - used, "; %s", text);
}

/* Adds to a failed case what its result looks like, where it is the result that fails. */
static enum gb_status explain_case(struct case_entry *one, const struct case_request *r, const struct baseline *b,
                                   const struct run_case *s, struct gb_error *error)
{
    const struct operator_explainer *row = operator_explainer_find(s->kernel.operation);
    if (one->result.verdict != VERDICT_FAIL)
        return GB_OK;
    if (!one->result.wrong) {
        append(one, "its outputs pass every check");
        return GB_OK;
    }
    if (!row || r->undiagnosed || (s->checks && s->checks->unwritten)) /* poison looks like nothing known */
        return GB_OK;
    progress("searching what the error looks like", 0.7);
    enum gb_status status = row->explain(b, s->kernel.operation, s->outputs, &one->explanation, error);
    if (status == GB_ENOMEM) { /* the verdict stands without */
        char text[300];
        snprintf(text, sizeof text, "not explained: %.200s", error->message);
        append(one, text);
        return GB_OK;
    }
    if (status == GB_OK && one->explanation)
        append(one, one->explanation->text);
    if (status == GB_OK)
        one->next = row->next(one, s->outputs, r->minimal != NULL);
    return status;
}

/* A subject whose moved run differs from its first one is judged on both. */
static enum gb_status evaluate_plainly(struct case_list *cases, const struct case_request *r, const struct run_case *s,
                                       struct gb_error *error)
{
    struct baseline *b;
    struct run_case kept = *s;
    struct case_result j = {0}, again = {0};
    double began = clock_seconds();
    progress_enter(0.0, 0.7);
    enum gb_status status = baseline_of(r->baselines, s, &b, error);
    if (status == GB_OK)
        status = judge(b, &s->kernel, s->outputs, s->checks, r->policy, &j, error);
    progress_leave();
    if (status == GB_OK && s->second) {
        status = judge(b, &s->kernel, s->second, NULL, r->policy, &again, error);
        if (status == GB_OK)
            keep_graver(&j, &again, s, &kept.outputs);
    }
    if (status != GB_OK) {
        case_result_free(&j);
        return status;
    }
    struct case_entry *one = add_case(cases, r, s, &j, error);
    if (!one)
        return GB_ENOMEM;
    status = explain_case(one, r, b, &kept, error);
    one->seconds = s->seconds + clock_seconds() - began;
    return status;
}

/* Makes r->own the routing of these outputs. */
static enum gb_status take_routing(const struct case_request *r, const struct run_case *s,
                                   const struct gb_outputs *outputs, struct gb_error *error)
{
    enum gb_status status = GB_OK;
    if (!rerouted_covers(r->own, outputs)) {
        rerouted_free(r->own);
        if (s->largest && can_be_rerouted(r->fixture, s->largest))
            status = reroute(r->fixture, s->largest, r->own, error);
    }
    if (status == GB_OK && !rerouted_covers(r->own, outputs)) {
        rerouted_free(r->own);
        status = reroute(r->fixture, outputs, r->own, error);
    }
    return status;
}

/* One run's output under that run's own routing. held: what it was judged against, for how long r->own is kept. */
static enum gb_status evaluate_under_own(const struct case_request *r, const struct run_case *s,
                                         const struct gb_outputs *outputs, const struct worker_checks *checks,
                                         struct baseline **held, struct case_result *j, struct gb_error *error)
{
    struct gb_outputs without_stack = *outputs;
    struct baseline *given;
    enum gb_status status = baseline_of(r->baselines, s, &given, error);
    if (status != GB_OK)
        return status;
    *held = given;
    *j =
        (struct case_result){.verdict = VERDICT_NOT_RUN,
                             .reason = "its routing was not written in full, or has ids that are no experts, an expert "
                                       "twice, or weights that are no numbers: no output is right for it"};
    if ((s->routing && s->routing->unwritten) || !can_be_rerouted(r->fixture, outputs))
        return GB_OK;
    if (!routing_difference(r->fixture, outputs, &(struct routing_difference){0}))
        return judge(given, &s->kernel, outputs, checks, r->policy, j, error);
    status = take_routing(r, s, outputs, error);
    if (status == GB_OK)
        status = baseline_of(&r->own->baselines, s, held, error);
    without_stack.stack = NULL; /* the stream has a routing of its own in every layer */
    if (status == GB_OK)
        status = judge(*held, &s->kernel, &without_stack, checks, r->policy, j, error);
    if (status == GB_OK && outputs->stack)
        status = evaluate_drift(given, &s->kernel, outputs, j, error);
    return status;
}

static enum gb_status evaluate_rerouted(struct case_list *cases, const struct case_request *r, const struct run_case *s,
                                        struct gb_error *error)
{
    struct baseline *held = NULL;
    struct run_case kept = *s;
    struct case_result j = {0}, again = {0};
    double began = clock_seconds();
    enum gb_status status = GB_OK;
    if (s->second)
        status = evaluate_under_own(r, s, s->second, NULL, &held, &again, error);
    if (status == GB_OK)
        status = evaluate_under_own(r, s, s->outputs, s->checks, &held, &j, error);
    if (status != GB_OK) {
        case_result_free(&j);
        case_result_free(&again);
        return status;
    }
    if (s->second)
        keep_graver(&j, &again, s, &kept.outputs);
    struct case_entry *one = add_case(cases, r, s, &j, error);
    if (!one)
        return GB_ENOMEM;
    if (j.judged)
        one->rerouted_tokens = routing_difference(r->fixture, s->outputs, &one->rerouted);
    status = explain_case(one, r, held, &kept, error);
    one->seconds = s->seconds + clock_seconds() - began;
    return status;
}

enum gb_status evaluate_cases(struct case_list *cases, const struct case_request *r, const struct run_case *s,
                              struct gb_error *error)
{
    bool whole = operator_uses(&s->kernel) & WRITES_RESULT;
    struct run_case router = *s;
    if (!s->outputs->layers || !s->outputs->layer[0].ids)
        return evaluate_plainly(cases, r, s, error);
    router.kernel = operator_router(&s->kernel);
    if (whole) { /* the layer's run is the layer's time */
        router.checks = s->routing;
        router.timing = NULL;
        router.seconds = 0.0;
    }
    enum gb_status status = evaluate_plainly(cases, r, &router, error);
    return status == GB_OK && whole ? evaluate_rerouted(cases, r, s, error) : status;
}
