/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/operators.h"

#include "harness/explain/explain.h"

/* Whether bits differ that are to be the same, although every element is within its error bound. */
static bool bits_alone(const struct case_result *j)
{
    return j->judged && j->bits_binding && j->bits.mismatching && !j->bound.exceeding;
}

/* Of a failure that has no name, or whose smallest part was not looked for. */
static const char *after_layers(const struct case_entry *one, const struct gb_outputs *outputs, bool minimising)
{
    bool named = one->explanation && one->explanation->best.name[0];
    if (!named && bits_alone(&one->result))
        return one->result.bits.mismatching > one->result.bits.compared / 10
                   ? "every element is within its error bound: if the kernel sums in another order than it claims, let "
                     "it claim none"
                   : "every element is within its error bound, and few differ: look for an edge tile, a race or one more "
                     "rounding";
    if (one->library[0] && !(one->kernel.flags & GB_ROUTES))
        return minimising ? NULL
               : named    ? "add --minimise least.h5: it writes the smallest part that fails"
                       : "add --minimise least.h5: it writes the smallest part that fails, which may show a known bug";
    if (named)
        return NULL;
    if (one->library[0])
        return "run the experts as a kernel without a router: --minimise then writes the smallest part that fails";
    return outputs->layer[0].intermediate
               ? "run the kernel itself with --subject: --minimise then writes the smallest part that fails"
               : "write the intermediate beside the output (docs/kernels.md): gate_up and down are then checked apart";
}

static enum gb_status explain_codes(const struct baseline *b, enum gb_operator operation,
                                    const struct gb_outputs *outputs, struct explanation **explanation,
                                    struct gb_error *error)
{
    (void)operation;
    return explain_quantise(b->fixture, outputs, explanation, error);
}

static const char *after_codes(const struct case_entry *one, const struct gb_outputs *outputs, bool minimising)
{
    const struct quantise_check *k = &one->result.quantise;
    uint64_t mismatching = k->codes.mismatching + k->scales.mismatching;
    (void)outputs;
    (void)minimising;
    if (!k->open_silu && mismatching && mismatching == k->codes.admissible + k->scales.admissible)
        return "every difference is one that another FP32 evaluation of silu leaves open: if the kernel's is none of "
               "the forms, declare it (GB_OPEN_SILU; --open-silu)";
    return NULL;
}

/* Bits alone differ: sums are right, and in another order. */
static const char *after_combine(const struct case_entry *one, const struct gb_outputs *outputs, bool minimising)
{
    (void)outputs;
    (void)minimising;
    return !one->explanation && bits_alone(&one->result)
               ? "every element is within its error bound: if the kernel sums in another order than it claims, let it "
                 "claim none"
               : NULL;
}

static const struct operator_explainer rows[] = {
    {GB_LAYER, explain, after_layers},
    {GB_GATE_UP, explain, after_layers},
    {GB_DOWN, explain, after_layers},
    {GB_QUANTISE, explain_codes, after_codes},
    {GB_SILU_MUL_QUANTISE, explain_codes, after_codes},
    {GB_COMBINE, explain_combine, after_combine},
};

const struct operator_explainer *operator_explainer_find(enum gb_operator operation)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].operation == operation)
            return &rows[i];
    return NULL;
}
