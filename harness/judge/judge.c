/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/judge/drift.h"
#include "harness/judge/judge.h"
#include "harness/judge/check_activations.h"
#include "harness/judge/check_intermediate.h"
#include "harness/judge/distance.h"
#include "harness/judge/check_down.h"
#include "harness/judge/check_exact.h"
#include "harness/judge/checks.h"
#include "harness/judge/metrics.h"
#include "harness/run/progress.h"
#include "harness/judge/aggregate_tests.h"
#include "quant/quant.h"

enum { FP32_BITS = 24 };

/* What the checks add up over the layers of one case. */
struct tally {
    struct check_result bits, bound;
    struct aggregate_tests aggregate;
    struct exact_result exact;
    struct codes_result codes;
    struct down_result down;
    const struct policy *policy;
    struct closeness closeness; /* to the policy's thresholds */
    uint64_t elements;          /* of the bound check */
    bool ordered;               /* bits are binding, and statistics are not */
    bool given;                 /* the subject is down alone, on the reference's intermediate */
    const char *without_sums;   /* why sums of errors are not judged; NULL: they are */
    bool bound_instead;         /* the bound is binding in their place, of some tokens at least */
};

/* The bits check of one buffer of one layer. */
static void check_bits(const char *stage, uint32_t layer, uint32_t tokens, size_t per_token, enum gb_format format,
                       const void *subject, const void *reference, bool binding, struct layer_result *of_layer,
                       struct check_result *check, struct case_result *j)
{
    struct difference d;
    difference_of(format, subject, reference, tokens * per_token, &d);
    layer_add_bits(of_layer, stage, format, per_token, &d);
    check_add_bits(check, &d);
    if (binding && d.mismatching)
        case_worsen(
            j, VERDICT_FAIL,
            "%s of layer %u: %llu of %llu elements differ from the reference; first at token %llu, element %llu: "
            "0x%0*x, reference 0x%0*x",
            stage, layer, (unsigned long long)d.mismatching, (unsigned long long)d.compared,
            (unsigned long long)(d.first / per_token), (unsigned long long)(d.first % per_token),
            format == GB_FP32 ? 8 : 4, d.first_subject, format == GB_FP32 ? 8 : 4, d.first_reference);
}

static bool bound_binds(const struct tally *tally)
{
    return tally->policy->bound || (tally->bound_instead && (tally->policy->rms || tally->policy->scale));
}

static bool sums_bind(const struct tally *tally, bool scale)
{
    return !tally->ordered && !tally->without_sums && (scale ? tally->policy->scale : tally->policy->rms);
}

/* Whether zeros would pass. Of a subject with an order bits are what verifies, however wide the bound is. */
static bool zeros_pass(const struct tally *tally, const struct bound_result *r, const double *truth)
{
    bool all_zero = true;
    for (uint64_t i = 0; i < r->elements; i++)
        all_zero &= truth[i] == 0.0;
    return r->zero_exceeding == 0 && (all_zero || !tally->ordered);
}

/* The bound check of one buffer of one layer. */
static void check_bound(const char *stage, uint32_t layer, uint32_t tokens, size_t per_token, const double *subject,
                        struct enclosure expected, struct tally *tally, struct layer_result *of_layer,
                        struct case_result *j)
{
    struct bound_result r;
    bound_compare(subject, &expected, tokens, per_token, tally->elements, &r);
    layer_add_bound(of_layer, stage, per_token, &r);
    check_add_bound(&tally->bound, &r);
    if (!bound_binds(tally))
        return;
    if (zeros_pass(tally, &r, expected.truth))
        case_worsen(j, VERDICT_VACUOUS, "%s of layer %u: zeros would lie inside the bound, so nothing was verified",
                    stage, layer);
    if (r.exceeding)
        case_worsen(
            j, VERDICT_FAIL,
            "%s of layer %u: %llu of %llu elements lie outside the derived bound around truth; worst at token %llu, "
            "element %llu: %.9g, truth %.9g, %.3g times the bound",
            stage, layer, (unsigned long long)r.exceeding, (unsigned long long)r.elements,
            (unsigned long long)(r.at / per_token), (unsigned long long)(r.at % per_token), subject[r.at],
            expected.truth[r.at], r.limit_ratio);
}

/* Whether zeros would pass every check that binds, of a policy without the bound. before: how many sums, rms and scale,
 * zeros had exceeded before this buffer. */
static void check_zeros(const char *stage, uint32_t layer, const double *truth, size_t count, const uint64_t before[2],
                        const struct tally *tally, struct case_result *j)
{
    bool all_zero = true, seen = false;
    for (int scale = 0; scale < 2; scale++)
        seen |= sums_bind(tally, scale) && aggregate_zero_exceeding(&tally->aggregate, scale) > before[scale];
    if (bound_binds(tally) || !(tally->policy->exact || tally->policy->rms || tally->policy->scale))
        return;
    for (size_t i = 0; i < count; i++)
        all_zero &= (float)truth[i] == 0.0f;
    if (!seen && (all_zero || !(tally->ordered || tally->exact.binding)))
        case_worsen(j, VERDICT_VACUOUS,
                    "%s of layer %u: zeros would pass the checks of the policy %s, so nothing was verified", stage,
                    layer, tally->policy->name);
}

/* Truth is in no hash, so it may be of other inputs: then the reference itself, with bf16 activations, lies outside the
 * bound. */
static enum gb_status check_truth(const struct baseline *b, uint32_t layer, uint32_t tokens, struct case_result *j,
                                  struct gb_error *error)
{
    struct widened ours;
    struct bound_result r;
    uint32_t hidden = b->fixture->shape.hidden;
    const struct layer_bounds *lb = &b->bounds[layer];
    enum gb_status status = widen(GB_FP32, b->reference->layer[layer].output, (size_t)tokens * hidden, &ours, error);
    if (lb->truth_differs)
        case_worsen(j, VERDICT_BAD_INPUT,
                    "/layers/%u/truth/quantised: is not that of its inputs: %llu elements differ, first token %zu, "
                    "element %zu: %.17g, computed again %.17g; make the fixture again",
                    layer, (unsigned long long)lb->truth_differs, lb->truth_first / hidden, lb->truth_first % hidden,
                    b->fixture->layer[layer].truth_quantised[lb->truth_first], lb->truth_own);
    if (status == GB_OK) {
        struct enclosure expected = enclosure_output(&lb->of, FP32_BITS);
        expected.truth = b->fixture->layer[layer].truth_quantised;
        bound_compare(ours.value, &expected, tokens, hidden, (uint64_t)tokens * hidden, &r);
        if (r.exceeding)
            case_worsen(
                j, VERDICT_BAD_INPUT,
                "/layers/%u/truth/quantised: is not that of its inputs, or not finite: the reference lies outside the "
                "bound around it in %llu elements, most at token %llu, element %llu; make the fixture again",
                layer, (unsigned long long)r.exceeding, (unsigned long long)(r.at / hidden),
                (unsigned long long)(r.at % hidden));
    }
    widened_free(&ours);
    return status;
}

/* The last stage by itself. gb_bf16 codes: what it read, or NULL where that is not known. */
static enum gb_status evaluate_down(struct baseline *b, uint32_t layer, const struct gb_outputs *outputs,
                                    const gb_bf16 *codes, const double *values, struct tally *tally,
                                    struct layer_result *of_layer, struct case_result *j, struct gb_error *error)
{
    const struct gb_layer_outputs *out = &outputs->layer[layer];
    uint32_t tokens = outputs->shape.tokens;
    size_t bytes = sizeof(gb_bf16) * tokens * b->fixture->shape.top_k * b->fixture->shape.intermediate;
    if (!codes)
        return GB_OK;
    if (!tally->ordered)
        return check_down(&tally->down, b, layer, tokens, codes, values, j, error);
    if (!memcmp(codes, b->reference->layer[layer].intermediate, bytes))
        return GB_OK; /* the output's bits have said it */
    return down_compare(b, layer, tokens, codes, out->format, out->output, of_layer, j, error);
}

static enum gb_status evaluate_output(struct baseline *b, uint32_t layer, const struct gb_outputs *outputs,
                                      struct tally *tally, struct layer_result *of_layer, struct case_result *j,
                                      struct gb_error *error)
{
    const struct gb_layer_outputs *out = &outputs->layer[layer];
    uint32_t tokens = outputs->shape.tokens, hidden = b->fixture->shape.hidden;
    size_t count = (size_t)tokens * hidden;
    const float *reference = b->reference->layer[layer].output;
    struct widened subject = {0};
    gb_bf16 *stored = malloc(sizeof *stored * count); /* [tokens, hidden] */
    enum gb_status status = stored ? widen(out->format, out->output, count, &subject, error)
                                   : gb_fail(error, GB_ENOMEM, "no memory to judge %zu values", count);
    if (status == GB_OK) {
        for (size_t i = 0; i < count; i++)
            stored[i] = gb_bf16_encode(reference[i]);
        check_bits("output", layer, tokens, hidden, out->format, out->output,
                   out->format == GB_FP32 ? (const void *)reference : stored, tally->ordered, of_layer, &tally->bits,
                   j);
        exact_output(&tally->exact, layer, tokens, b, subject.value, out->format, j);
        check_bound("output", layer, tokens, hidden, subject.value,
                    enclosure_output(&b->bounds[layer].of, b->points.accumulator_bits), tally, of_layer, j);
        policy_compare(&tally->closeness, subject.value, b->fixture->layer[layer].truth_quantised, tokens, hidden);
        uint64_t before[2] = {aggregate_zero_exceeding(&tally->aggregate, false),
                              aggregate_zero_exceeding(&tally->aggregate, true)};
        if (!tally->without_sums)
            status = aggregate_output(&tally->aggregate, b, layer, subject.value, error);
        check_zeros("output", layer, b->bounds[layer].of.output_truth, count, before, tally, j);
    }
    if (status == GB_OK)
        status =
            evaluate_down(b, layer, outputs, tally->given ? b->reference->layer[layer].intermediate : out->intermediate,
                          subject.value, tally, of_layer, j, error);
    if (status == GB_OK)
        status = check_truth(b->plain ? b->plain : b, layer, tokens, j, error);
    widened_free(&subject);
    free(stored);
    return status;
}

static enum gb_status evaluate_intermediate(struct baseline *b, uint32_t layer, const struct gb_outputs *outputs,
                                            struct tally *tally, struct layer_result *of_layer, struct case_result *j,
                                            struct gb_error *error)
{
    const struct gb_shape *shape = &b->fixture->shape;
    const struct layer_bounds *lb = &b->bounds[layer];
    uint32_t tokens = outputs->shape.tokens;
    size_t per_token = (size_t)shape->top_k * shape->intermediate;
    struct widened subject = {0};
    enum gb_status status = widen(GB_BF16, outputs->layer[layer].intermediate, tokens * per_token, &subject, error);
    if (status == GB_OK) {
        check_bits("intermediate", layer, tokens, per_token, GB_BF16, outputs->layer[layer].intermediate,
                   b->reference->layer[layer].intermediate, tally->ordered, of_layer, &tally->bits, j);
        exact_intermediate(&tally->exact, layer, tokens, b, subject.value, j);
        status = check_intermediate(&tally->codes, b, layer, tokens, outputs->layer[layer].intermediate, j, error);
    }
    if (status == GB_OK) {
        check_bound("intermediate", layer, tokens, per_token, subject.value,
                    enclosure_intermediate(&lb->of, b->points.accumulator_bits), tally, of_layer, j);
        uint64_t before[2] = {aggregate_zero_exceeding(&tally->aggregate, false),
                              aggregate_zero_exceeding(&tally->aggregate, true)};
        if (!tally->without_sums)
            aggregate_intermediate(&tally->aggregate, b, layer, tokens, subject.value);
        check_zeros("intermediate", layer, lb->of.intermediate_truth, tokens * per_token, before, tally, j);
    }
    widened_free(&subject);
    return status;
}

/* The policy's thresholds, where it has any. */
static void check_thresholds(const struct tally *tally, struct case_result *j)
{
    struct threshold_check checks[MOST_THRESHOLDS];
    const char *missed = policy_missed(&tally->closeness), *name = tally->policy->name;
    const char *wrong = policy_vacuous(&tally->closeness);
    if (!policy_checks(&tally->closeness, checks))
        return;
    if (missed)
        case_worsen(j, VERDICT_FAIL, "the threshold %s of the policy %s is missed", missed, name);
    if (wrong)
        case_worsen(j, VERDICT_VACUOUS, "%s would meet the thresholds of the policy %s, so nothing was verified", wrong,
                    name);
}

/* Whether sums of errors are judged. Those of quantised activations are down's alone, as those of the check down. */
static void choose_sums(struct tally *tally, const struct baseline *b, const struct gb_rounding_points *points,
                        uint32_t tokens)
{
    uint64_t out = 0, all = 0;
    for (uint32_t l = 0; b->plain && l < b->fixture->layers; l++) {
        const struct gb_covariance *m = &b->bounds[l].covariance;
        for (uint32_t t = 0; t < tokens && t < m->tokens; t++, all++)
            out += m->open[t] == GB_LEFT_OUT;
    }
    if (!tally->without_sums && b->plain)
        tally->without_sums =
            out == all ? "too many codes of the intermediate are ambiguous" : down_without_sums(points, false);
    tally->bound_instead = tally->without_sums || out;
}

/* How many elements the bound is checked on in this case: its false-alarm probability is spread over them. */
static uint64_t elements_of(const struct gb_fixture *f, const struct gb_outputs *outputs, bool output, bool inner)
{
    uint64_t per_token =
        (output ? f->shape.hidden : 0) + (inner ? (uint64_t)f->shape.top_k * f->shape.intermediate : 0);
    return per_token * outputs->shape.tokens * f->layers;
}

/* One layer: checks, figures and hashes. */
static enum gb_status evaluate_layer(struct baseline *b, uint32_t layer, const struct gb_outputs *outputs, bool output,
                                     struct tally *tally, struct case_result *j, struct gb_error *error)
{
    struct layer_result *of_layer = &j->layer[layer];
    enum gb_status status = GB_OK;
    if (outputs->layer[layer].intermediate)
        status = evaluate_intermediate(b, layer, outputs, tally, of_layer, j, error);
    if (status == GB_OK)
        status = check_activations(b, layer, outputs, tally->ordered, of_layer, &tally->bits, j, error);
    if (status == GB_OK)
        exact_activations(&tally->exact, layer, b, outputs, j);
    if (status == GB_OK && output)
        status = evaluate_output(b, layer, outputs, tally, of_layer, j, error);
    if (status == GB_OK && output)
        status = distances_add(&j->overall, b->fixture, layer, outputs, b->reference, of_layer, error);
    layer_add_hashes(of_layer, &outputs->layer[layer], &outputs->shape, outputs->activation_rules, output);
    return status;
}

enum gb_status evaluate_drift(const struct baseline *b, const struct gb_kernel *kernel,
                              const struct gb_outputs *outputs, struct case_result *j, struct gb_error *error)
{
    drift_evaluate(b, outputs, kernel->order && kernel->output == GB_FP32, j);
    return drift_measure(b, outputs, &j->drift, error);
}

static enum gb_status evaluate_layers(struct baseline *b, const struct gb_kernel *kernel,
                                      const struct gb_outputs *outputs, const struct policy *policy,
                                      struct case_result *j, struct gb_error *error)
{
    const struct gb_fixture *f = b->fixture;
    const uint32_t uses = operator_uses(kernel);
    bool output = uses & WRITES_OUTPUT, inner = outputs->layer[0].intermediate != NULL;
    struct tally tally = {.policy = policy,
                          .elements = elements_of(f, outputs, output, inner),
                          .ordered = kernel->order != NULL,
                          .given = uses & READS_INTERMEDIATE,
                          .without_sums = f->nonfinite ? "some values are not finite" : NULL};
    struct gb_rounding_points points = {GB_BF16, kernel->output, kernel->accumulator_bits, kernel->roundings, NULL};
    distances_start(&j->overall);
    progress_enter(0.0, 0.5);
    enum gb_status status = case_result_layers(j, f, error);
    if (status == GB_OK)
        status = baseline_bounds(b, &points, inner, error);
    progress_leave();
    progress_enter(0.5, 1.0);
    if (status == GB_OK && b->plain && output)
        status = baseline_bounds(b->plain, b->plain->bounds ? &b->plain->points : &points, b->plain->stages, error);
    if (status == GB_OK)
        exact_start(&tally.exact, b, policy, j);
    policy_start(policy, &tally.closeness);
    if (status == GB_OK)
        choose_sums(&tally, b, &points, outputs->shape.tokens);
    tally.codes = (struct codes_result){.binding = bound_binds(&tally),
                                        .differences_binding = sums_bind(&tally, false),
                                        .elements = elements_of(f, outputs, false, true)};
    tally.down = (struct down_result){.bound_binding = bound_binds(&tally),
                                      .rms_binding = !tally.ordered && !f->nonfinite && policy->rms,
                                      .scale_binding = !tally.ordered && !f->nonfinite && policy->scale,
                                      .why = down_without_sums(&points, f->nonfinite),
                                      .elements = elements_of(f, outputs, true, false)};
    if (status == GB_OK)
        aggregate_start(&tally.aggregate, b, outputs->shape.tokens, output && !tally.without_sums,
                        inner && !tally.without_sums, FALSE_ALARM_PROBABILITY);
    for (uint32_t l = 0; status == GB_OK && l < f->layers; l++) {
        progress_item("checking the outputs", l, f->layers);
        status = evaluate_layer(b, l, outputs, output, &tally, j, error);
    }
    progress_leave();
    if (check_vacuous(&tally.bound))
        case_worsen(j, VERDICT_VACUOUS, "nothing was compared");
    case_of_sums(j, &tally.aggregate, "", sums_bind(&tally, false), sums_bind(&tally, true));
    if (status == GB_OK && outputs->stack)
        status = evaluate_drift(b, kernel, outputs, j, error);
    if (output)
        check_thresholds(&tally, j);
    j->judged = true;
    j->output = output;
    j->bits_binding = tally.ordered;
    j->bound_binding = bound_binds(&tally);
    j->rms_binding = sums_bind(&tally, false);
    j->scale_binding = sums_bind(&tally, true);
    j->bits = tally.bits;
    j->bound = tally.bound;
    j->exact = tally.exact;
    j->aggregate = tally.aggregate;
    j->without_sums = tally.without_sums;
    j->codes = tally.codes;
    j->down = tally.down;
    j->closeness = tally.closeness;
    return status;
}

const struct operator_check operator_check_layer = {GB_LAYER, baselines_of_kernel, evaluate_layers, NULL};
const struct operator_check operator_check_gate_up = {GB_GATE_UP, baselines_of_kernel, evaluate_layers, NULL};
const struct operator_check operator_check_down = {GB_DOWN, baselines_of_kernel, evaluate_layers, NULL};
