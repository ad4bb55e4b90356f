/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/check_intermediate.h"

#include <math.h>
#include <stdlib.h>

#include "harness/judge/checks.h"
#include "harness/judge/admissible.h"
#include "harness/judge/aggregate_tests.h"

/* What one layer's codes add up to. */
struct tally {
    uint64_t flips, inadmissible, counted, countable, first; /* first: place of the first inadmissible code */
    double expected;
};

static struct unrounded value_at(const struct layer_bounds *b, size_t i, double deviations)
{
    double worst = b->of.unrounded_worst[i], bias = fabs(b->of.intermediate_bias[i]);
    double typical = b->of.unrounded_typical[i], underflow = b->of.intermediate_underflow[i];
    return (struct unrounded){.truth = b->of.intermediate_truth[i],
                              .limit = fmin(worst, deviations * b->of.unrounded_sigma[i] + bias + underflow),
                              .worst = worst,
                              .variance = typical * typical,
                              .bias = bias,
                              .underflow = underflow};
}

/* repeats: [tokens]; such tokens err as an earlier one does, and are left out of what is counted. */
static struct tally examine(const struct codes_result *check, const struct baseline *b, uint32_t layer, uint32_t tokens,
                            const gb_bf16 *subject, const bool *repeats)
{
    const gb_bf16 *reference = b->reference->layer[layer].intermediate;
    size_t per_token = (size_t)b->fixture->shape.top_k * b->fixture->shape.intermediate;
    double deviations = sqrt(2.0 * log(2.0 * (double)check->elements / FALSE_ALARM_PROBABILITY));
    uint64_t flips = 0, inadmissible = 0, counted = 0, countable = 0, first = UINT64_MAX;
    double expected = 0.0;
#pragma omp parallel for schedule(static) reduction(+ : flips, inadmissible, counted, countable, expected)                  \
    reduction(min : first)
    for (uint32_t t = 0; t < tokens; t++)
        for (size_t i = t * per_token; i < (t + 1) * per_token; i++) {
            struct unrounded v = value_at(&b->bounds[layer], i, deviations);
            enum admissibility found = admissibility_of(&rounding_bf16, subject[i].bits, reference[i].bits, &v);
            flips += found == CODE_ADMISSIBLE;
            inadmissible += found == CODE_INADMISSIBLE;
            first = found == CODE_INADMISSIBLE && i < first ? i : first;
            if (repeats[t])
                continue;
            countable++;
            counted += found == CODE_ADMISSIBLE;
            expected += flip_probability(&rounding_bf16, reference[i].bits, &v);
        }
    return (struct tally){flips, inadmissible, counted, countable, first, expected};
}

static void report_inadmissible(const struct codes_result *check, const struct baseline *b, uint32_t layer,
                                const struct tally *t, uint64_t codes, const gb_bf16 *subject, struct case_result *j)
{
    double deviations = sqrt(2.0 * log(2.0 * (double)check->elements / FALSE_ALARM_PROBABILITY));
    struct unrounded v = value_at(&b->bounds[layer], t->first, deviations);
    uint32_t columns = b->fixture->shape.intermediate, top_k = b->fixture->shape.top_k;
    case_worsen(j, VERDICT_FAIL,
                "intermediate of layer %u: %llu of %llu bf16 values are inadmissible, no value within the error bound "
                "rounds to them; first at token %llu, slot %llu, column %llu: 0x%04x, reference 0x%04x, and only "
                "%.9g..%.9g is possible before rounding",
                layer, (unsigned long long)t->inadmissible, (unsigned long long)codes,
                (unsigned long long)(t->first / columns / top_k), (unsigned long long)(t->first / columns % top_k),
                (unsigned long long)(t->first % columns), subject[t->first].bits,
                b->reference->layer[layer].intermediate[t->first].bits, v.truth - v.limit, v.truth + v.limit);
}

enum gb_status check_intermediate(struct codes_result *check, const struct baseline *b, uint32_t layer, uint32_t tokens,
                                  const gb_bf16 *subject, struct case_result *j, struct gb_error *error)
{
    const struct gb_shape *shape = &b->fixture->shape;
    uint64_t codes = (uint64_t)tokens * shape->top_k * shape->intermediate;
    bool *repeats = calloc(tokens, sizeof *repeats); /* [tokens] */
    if (!repeats)
        return gb_fail(error, GB_ENOMEM, "no memory to judge %u tokens", tokens);
    aggregate_repeats(&b->fixture->layer[layer], tokens, shape->hidden, repeats);
    struct tally t = examine(check, b, layer, tokens, subject, repeats);
    free(repeats);
    uint64_t allowed = differences_allowed(t.expected, t.countable, FALSE_ALARM_PROBABILITY / b->fixture->layers);
    check->codes += codes;
    check->flips += t.flips;
    check->inadmissible += t.inadmissible;
    check->counted += t.counted;
    check->allowed += allowed;
    check->beyond += t.counted > allowed;
    check->expected += t.expected;
    if (t.inadmissible && check->binding)
        report_inadmissible(check, b, layer, &t, codes, subject, j);
    if (t.counted > allowed && check->differences_binding)
        case_worsen(
            j, VERDICT_FAIL,
            "intermediate of layer %u: %llu bf16 values differ from the reference, each admissible, but rounding "
            "explains at most %.3g of them on average, and more than %llu only with probability %g",
            layer, (unsigned long long)t.counted, t.expected, (unsigned long long)allowed,
            FALSE_ALARM_PROBABILITY / b->fixture->layers);
    return GB_OK;
}
