/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/evaluate_case.h"

#include <stdio.h>
#include <string.h>

#include "harness/program/command.h"
#include "harness/explain/explain.h"
#include "harness/judge/judge.h"
#include "harness/run/progress.h"
#include "harness/report/record.h"
#include "harness/judge/reroute.h"
#include "harness/run/session.h"

const char *judged_contract(const struct gb_kernel *kernel)
{
    const struct gb_contract *contract = gb_contract_find(kernel->weights, kernel->activations, kernel->order);
    return contract ? contract->name : "";
}

/* What a kernel is held against. */
static enum gb_status baseline_of(struct baselines *all, const struct gb_kernel *kernel, struct baseline **b,
                                  struct gb_error *error)
{
    return baselines_get(all, kernel_contract(all->fixture, kernel), b, error);
}

/* A judgement of the fixture itself names its file. */
static void name_fixture(const struct case_request *r, struct judgement *j)
{
    char reason[sizeof j->reason];
    if (j->verdict != VERDICT_BAD_INPUT)
        return;
    strcpy(reason, j->reason);
    snprintf(j->reason, sizeof j->reason, "%s: %.500s", path_end(r->path), reason);
}

/* Of two judgements the graver stays, the first of equal ones. */
static void keep_graver(struct judgement *j, struct judgement *again)
{
    struct judgement *less = verdict_graver(again->verdict, j->verdict) != j->verdict ? j : again;
    json_decref(less->lanes);
    json_decref(less->metrics);
    if (less == j)
        *j = *again;
}

static json_t *last_case(json_t *record)
{
    json_t *cases = json_object_get(record, "cases");
    return json_array_get(cases, json_array_size(cases) - 1);
}

static void add_case(json_t *record, const struct case_request *r, const struct judged *s, struct judgement *j)
{
    name_fixture(r, j);
    record_case(record, record_fixture(r->path, r->fixture), record_subject(s->kernel.name, s->library, &s->kernel),
                judged_contract(&s->kernel), s->outputs->shape.tokens, j->verdict, j->reason, s->repro, j->lanes,
                j->metrics);
}

/* Whether bits differ that are to be the same, although every element is within its error bound. */
static bool bits_alone(const json_t *lanes)
{
    return !strcmp(record_text(lanes, "bits", "result", NULL), "FAIL") &&
           json_is_true(json_object_get(json_object_get(lanes, "bits"), "binding")) &&
           !strcmp(record_text(lanes, "bound", "result", NULL), "PASS");
}

/* What to do about a failure that has no name, or whose smallest part was not looked for; NULL: nothing more. */
static const char *next_step(const struct case_request *r, const struct judged *s, const json_t *one)
{
    bool named = record_text(one, "explanation", "name", NULL)[0] != '\0';
    if (!named && bits_alone(json_object_get(one, "lanes")))
        return "every element is within its error bound: if the order of the sums is another one than is claimed, "
               "claim none";
    if (s->library[0] && !(s->kernel.flags & GB_ROUTES))
        return r->minimal ? NULL
               : named    ? "add --minimise small.h5: it writes the smallest part that fails"
                       : "add --minimise small.h5: it writes the smallest part that fails, which may show a known bug";
    if (named)
        return NULL;
    if (s->library[0])
        return "run the experts as a kernel without a router: --minimise then writes the smallest part that fails";
    return s->outputs->layer[0].intermediate
               ? "run the kernel itself with --subject: --minimise then writes the smallest part that fails"
               : "write the intermediate beside the output (docs/kernels.md): gate_up and down are then checked apart";
}

/* Adds to a failed case what its result looks like, where it is the result that fails. */
static enum gb_status explain_case(json_t *record, const struct case_request *r, const struct baseline *b,
                                   const struct judged *s, bool wrong, struct gb_error *error)
{
    json_t *one = last_case(record), *explanation;
    char text[768];
    if (strcmp(record_text(one, "verdict", NULL), verdict_name(VERDICT_FAIL)))
        return GB_OK;
    if (!wrong) {
        json_object_set_new(one, "reason",
                            json_sprintf("%s; its outputs pass every check", record_text(one, "reason", NULL)));
        return GB_OK;
    }
    if (s->kernel.operation == GB_ROUTE)
        return GB_OK;
    progress("searching what the error looks like", 0.7);
    enum gb_status status = explain(b, s->kernel.operation, s->outputs, &explanation, text, sizeof text, error);
    if (status == GB_ENOMEM) { /* the verdict stands without */
        json_object_set_new(
            one, "reason", json_sprintf("%s; not explained: %.200s", record_text(one, "reason", NULL), error->message));
        return GB_OK;
    }
    if (status == GB_OK && explanation) {
        json_object_set_new(one, "explanation", explanation);
        json_object_set_new(one, "diagnosis", record_string(text));
        json_object_set_new(one, "reason", json_sprintf("%s; %s", record_text(one, "reason", NULL), text));
    }
    const char *next = next_step(r, s, one);
    if (status == GB_OK && next)
        json_object_set_new(one, "next", json_string(next));
    return status;
}

/* A subject that may differ between runs is judged on both. */
static enum gb_status judge_plainly(json_t *record, const struct case_request *r, const struct judged *s,
                                    struct gb_error *error)
{
    struct baseline *b;
    struct judgement j, again;
    double began = record_clock();
    progress_enter(0.0, 0.7);
    enum gb_status status = baseline_of(r->baselines, &s->kernel, &b, error);
    if (status == GB_OK)
        status = judge(b, &s->kernel, s->outputs, s->checks, r->gate, &j, error);
    progress_leave();
    if (status == GB_OK && s->second) {
        status = judge(b, &s->kernel, s->second, NULL, r->gate, &again, error);
        if (status == GB_OK)
            keep_graver(&j, &again);
    }
    if (status != GB_OK)
        return status;
    add_case(record, r, s, &j);
    status = explain_case(record, r, b, s, j.wrong, error);
    record_seconds(record, s->seconds + record_clock() - began);
    return status;
}

/* Makes r->own the routing of these outputs. */
static enum gb_status take_routing(const struct case_request *r, const struct judged *s,
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
static enum gb_status judge_under_own(const struct case_request *r, const struct judged *s,
                                      const struct gb_outputs *outputs, const struct worker_checks *checks,
                                      struct baseline **held, struct judgement *j, struct gb_error *error)
{
    struct gb_outputs without_stack = *outputs;
    struct baseline *given;
    enum gb_status status = baseline_of(r->baselines, &s->kernel, &given, error);
    if (status != GB_OK)
        return status;
    *held = given;
    *j = (struct judgement){.verdict = VERDICT_NOT_RUN,
                            .reason = "its routing was not written in full, or has ids that are no experts, an expert "
                                      "twice, or weights that are no numbers: no output is right for it"};
    if ((s->routing && s->routing->unwritten) || !can_be_rerouted(r->fixture, outputs))
        return GB_OK;
    if (!routing_difference(r->fixture, outputs, &(struct routing_difference){0}))
        return judge(given, &s->kernel, outputs, checks, r->gate, j, error);
    status = take_routing(r, s, outputs, error);
    if (status == GB_OK)
        status = baseline_of(&r->own->baselines, &s->kernel, held, error);
    without_stack.stack = NULL; /* the stream has a routing of its own in every layer */
    if (status == GB_OK)
        status = judge(*held, &s->kernel, &without_stack, checks, r->gate, j, error);
    if (status == GB_OK && outputs->stack)
        status = judge_drift(given, &s->kernel, outputs, j, error);
    return status;
}

/* How the subject's routing differs from the fixture's, if it does. */
static void note_routing(json_t *one, const struct gb_fixture *f, const struct gb_outputs *outputs)
{
    struct routing_difference d;
    uint32_t tokens = routing_difference(f, outputs, &d);
    if (!tokens)
        return;
    json_object_set_new(one, "rerouted_tokens", json_integer(tokens));
    json_object_set_new(one, "rerouted",
                        json_pack("{s:i, s:i, s:i, s:I}", "expert_sets", (int)d.sets, "weights_only", (int)d.weights,
                                  "slot_order_only", (int)d.order, "max_ulp", (json_int_t)d.max_ulp));
}

static enum gb_status judge_rerouted(json_t *record, const struct case_request *r, const struct judged *s,
                                     struct gb_error *error)
{
    struct baseline *held;
    struct judgement j, again;
    double began = record_clock();
    enum gb_status status = GB_OK;
    if (s->second)
        status = judge_under_own(r, s, s->second, NULL, &held, &again, error);
    if (status == GB_OK)
        status = judge_under_own(r, s, s->outputs, s->checks, &held, &j, error);
    if (status != GB_OK)
        return status;
    if (s->second)
        keep_graver(&j, &again);
    add_case(record, r, s, &j);
    if (j.lanes)
        note_routing(last_case(record), r->fixture, s->outputs);
    status = explain_case(record, r, held, s, j.wrong, error);
    record_seconds(record, s->seconds + record_clock() - began);
    return status;
}

/* The router in a layer that routes. */
static struct judged router_of(const struct judged *s)
{
    struct judged router = *s;
    router.kernel.operation = GB_ROUTE;
    router.kernel.weights = router.kernel.activations = GB_BF16;
    router.kernel.output = GB_FP32;
    router.kernel.roundings = (struct gb_stage_roundings){0}; /* they are the layer's */
    router.checks = s->routing;
    router.seconds = s->kernel.operation == GB_ROUTE ? s->seconds : 0.0; /* the layer's run is the layer's time */
    return router;
}

enum gb_status judged_cases(json_t *record, const struct case_request *r, const struct judged *s,
                            struct gb_error *error)
{
    struct judged router = router_of(s);
    if (s->kernel.operation == GB_ROUTE)
        router.checks = s->checks;
    else if (!s->outputs->layer[0].ids)
        return judge_plainly(record, r, s, error);
    enum gb_status status = judge_plainly(record, r, &router, error);
    return status == GB_OK && s->kernel.operation == GB_LAYER ? judge_rerouted(record, r, s, error) : status;
}
