/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/false_alarm.h"

#include "harness/judge/judge.h"
#include "harness/judge/checks.h"
#include "quant/quant.h"
#include "tests/support/check.h"
#include "tests/support/provenance.h"

const double alarm_levels[ALARM_LEVELS] = {0.5, 0.1, 0.01};

static void ok(enum gb_status status, const struct gb_error *error)
{
    if (status != GB_OK) {
        fprintf(stderr, "%s\n", error->message);
        abort();
    }
}

void alarm_subject_new(struct alarm_subject *s, const struct problem *problem, struct baseline *baseline,
                       const struct gb_kernel *claim)
{
    const struct gb_shape *shape = &baseline->fixture->shape;
    struct gb_error error = {""};
    *s = (struct alarm_subject){.problem = problem, .baseline = baseline};
    ok(gb_outputs_new(shape, 1, claim->output, true, false, &s->outputs, &error), &error);
    s->output = malloc(sizeof(double) * shape->tokens * shape->hidden);
    s->intermediate = malloc(sizeof(double) * shape->tokens * shape->top_k * shape->intermediate);
    if (!s->output || !s->intermediate)
        abort();
}

void alarm_subject_free(struct alarm_subject *s)
{
    gb_outputs_free(s->outputs);
    free(s->output);
    free(s->intermediate);
}

/* The variant's results in the kernel's formats. */
static void run(struct alarm_subject *s, const struct gb_kernel *claim, const struct valid_kernel *valid, uint32_t bits)
{
    const struct gb_shape *shape = &s->baseline->fixture->shape;
    struct gb_rounding_points points = {GB_BF16, claim->output, bits, claim->roundings, NULL};
    valid_layer(s->problem, valid, &points, s->output, s->intermediate);
    for (size_t i = 0; i < (size_t)shape->tokens * shape->hidden; i++)
        if (claim->output == GB_FP32)
            ((float *)s->outputs->layer[0].output)[i] = (float)s->output[i];
        else
            ((gb_bf16 *)s->outputs->layer[0].output)[i] = gb_bf16_encode((float)s->output[i]);
    for (size_t i = 0; i < (size_t)shape->tokens * shape->top_k * shape->intermediate; i++)
        s->outputs->layer[0].intermediate[i] = gb_bf16_encode((float)s->intermediate[i]);
}

/* The statistics at one level, for both checks. */
static struct aggregate_tests loosen(struct alarm_subject *s, double level, bool inner)
{
    struct aggregate_tests aggregate;
    struct gb_error error;
    uint32_t tokens = s->baseline->fixture->shape.tokens;
    aggregate_start(&aggregate, s->baseline, tokens, true, inner, level);
    ok(aggregate_output(&aggregate, s->baseline, 0, s->output, &error), &error);
    if (inner)
        aggregate_intermediate(&aggregate, s->baseline, 0, tokens, s->intermediate);
    return aggregate;
}

static void count_sums(struct alarm_subject *s, bool inner, struct alarms *a)
{
    struct aggregate_tests own = loosen(s, FALSE_ALARM_PROBABILITY, inner);
    a->sums++;
    a->ambiguous_codes += own.ambiguous_codes;
    a->tokens_left_out += own.tokens_left_out;
    for (enum family f = 0; f < FAMILIES; f++)
        a->largest[f] = fmax(a->largest[f], own.family[f].limit_ratio);
    for (int level = 0; level < ALARM_LEVELS; level++) {
        struct aggregate_tests loose = loosen(s, alarm_levels[level], inner);
        bool seen[2] = {false, false};
        for (enum family f = 0; f < FAMILIES; f++)
            seen[family_is_scale(f)] |= loose.family[f].exceeding > 0;
        a->rms[level] += seen[0];
        a->scale[level] += seen[1];
    }
}

void alarms_run(struct alarm_subject *s, const struct gb_kernel *claim, const struct valid_kernel *valid, uint32_t bits,
                bool inner, const char *name, struct alarms *a)
{
    struct gb_kernel kernel = *claim;
    struct case_result j;
    struct gb_error error = {""};
    struct policy gate;
    gb_bf16 *kept = s->outputs->layer[0].intermediate;
    run(s, claim, valid, bits);
    kernel.name = "legal";
    kernel.operation = GB_LAYER;
    kernel.weights = s->baseline->fixture->weights;
    kernel.activations = s->baseline->contract->activations;
    policy_preset(0, &gate);
    s->outputs->layer[0].intermediate = inner ? kept : NULL;
    ok(judge(s->baseline, &kernel, s->outputs, NULL, &gate, &j, &error), &error);
    s->outputs->layer[0].intermediate = kept;
    a->runs++;
    a->vacuous += j.verdict == VERDICT_VACUOUS;
    a->alarms += j.verdict == VERDICT_FAIL || j.verdict == VERDICT_BAD_INPUT;
    if (j.verdict != VERDICT_PASS && j.verdict != VERDICT_VACUOUS && !a->first[0])
        snprintf(a->first, sizeof a->first,
                 "%s, order %d, fma %d, scales first %d, reciprocal %d, fold %d, truncate %d, early %d: %s", name,
                 (int)valid->order, valid->fma, valid->scales_first, valid->reciprocal, valid->fold, valid->truncate,
                 valid->early, j.reason);
    if (!j.without_sums)
        count_sums(s, inner, a);
    case_result_free(&j);
}

void alarms_add(struct alarms *sum, const struct alarms *a)
{
    sum->runs += a->runs;
    sum->alarms += a->alarms;
    sum->vacuous += a->vacuous;
    sum->sums += a->sums;
    sum->ambiguous_codes += a->ambiguous_codes;
    sum->tokens_left_out += a->tokens_left_out;
    for (int level = 0; level < ALARM_LEVELS; level++) {
        sum->rms[level] += a->rms[level];
        sum->scale[level] += a->scale[level];
    }
    for (int f = 0; f < FAMILIES; f++)
        sum->largest[f] = fmax(sum->largest[f], a->largest[f]);
    if (!sum->first[0])
        memcpy(sum->first, a->first, sizeof sum->first);
}

bool alarms_bad(const struct alarms *a, const double seen[FAMILIES], bool whole)
{
    bool bad = a->alarms || a->vacuous;
    for (enum family f = 0; seen && f < FAMILIES; f++)
        if (!(a->largest[f] >= seen[f] / 1.1 && (whole || a->largest[f] <= seen[f] * 1.1))) {
            fprintf(stderr, "%s: at most %.4f of the limit, not %.4f\n", family_name(f), a->largest[f], seen[f]);
            bad = true;
        }
    for (int level = 0; level < ALARM_LEVELS; level++)
        bad |= (double)a->rms[level] > alarm_levels[level] * (double)a->sums ||
               (double)a->scale[level] > alarm_levels[level] * (double)a->sums;
    return bad;
}

void alarms_print(FILE *stream, const struct alarms *a, const char *command, uint32_t fixtures)
{
    fprintf(stream, "{");
    print_provenance(stream, "gaugeblock-false-alarms/1", command);
    fprintf(stream,
            ",\n \"fixtures\": %u, \"runs\": %llu, \"alarms\": %llu, \"vacuous\": %llu,\n \"with_sums\": %llu, ",
            fixtures, (unsigned long long)a->runs, (unsigned long long)a->alarms, (unsigned long long)a->vacuous,
            (unsigned long long)a->sums);
    fprintf(stream, "\"ambiguous_codes\": %llu, \"tokens_left_out\": %llu,\n \"largest_limit_ratio\": {",
            (unsigned long long)a->ambiguous_codes, (unsigned long long)a->tokens_left_out);
    for (enum family f = 0; f < FAMILIES; f++)
        fprintf(stream, "%s\"%s\": %.4f", f ? ", " : "", family_name(f), a->largest[f]);
    fprintf(stream, "},\n \"loosened\": [");
    for (int level = 0; level < ALARM_LEVELS; level++)
        fprintf(stream, "%s{\"probability\": %g, \"rms\": %.6f, \"scale\": %.6f}", level ? ", " : "",
                alarm_levels[level], a->sums ? (double)a->rms[level] / (double)a->sums : 0.0,
                a->sums ? (double)a->scale[level] / (double)a->sums : 0.0);
    fprintf(stream, "]}\n");
}
