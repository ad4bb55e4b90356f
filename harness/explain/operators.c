/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/explain/operators.h"

static const char *after_quantise(const struct case_result *r)
{
    const struct quantise_check *k = &r->quantise;
    uint64_t mismatching = k->codes.mismatching + k->scales.mismatching;
    if (!k->open_silu && mismatching && mismatching == k->codes.admissible + k->scales.admissible)
        return "every difference is one that another FP32 evaluation of silu leaves open: if the kernel's is none of "
               "the forms, declare it (GB_OPEN_SILU; --open-silu)";
    return NULL;
}

static const struct operator_explainer rows[] = {
    {GB_QUANTISE, explain_quantise, after_quantise},
    {GB_SILU_MUL_QUANTISE, explain_quantise, after_quantise},
};

const struct operator_explainer *operator_explainer_find(enum gb_operator operation)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].operation == operation)
            return &rows[i];
    return NULL;
}
