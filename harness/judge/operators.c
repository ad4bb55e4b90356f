/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/judge/operators.h"

#include <stdio.h>

#include "harness/judge/check_quantise.h"
#include "harness/faults/quantise_as.h"

/* "codes: 3 of 64 differ from the reference; first at row 1, column 17, block 1: 0x5, reference 0x4" */
static void worsen(struct case_result *j, const char *name, const struct array_check *a, uint64_t wrong, uint32_t block,
                   uint32_t digits)
{
    case_worsen(j, VERDICT_FAIL,
                "%s: %llu of %llu differ from the reference; first at row %u, column %u, block %u: 0x%0*x, reference "
                "0x%0*x",
                name, (unsigned long long)wrong, (unsigned long long)a->compared, a->row, a->column, a->column / block,
                (int)digits, a->got, (int)digits, a->reference);
}

static enum gb_status evaluate_quantise(const struct gb_fixture *f, const struct gb_outputs *reference,
                                        const struct gb_kernel *kernel, const struct gb_outputs *outputs,
                                        struct case_result *j, struct gb_error *error)
{
    struct quantise_check *k = &j->quantise;
    enum gb_status status = check_quantise(f, reference, outputs, kernel->flags & GB_OPEN_SILU, k, error);
    if (status != GB_OK)
        return status;
    uint64_t codes = array_wrong(k, &k->codes), scales = array_wrong(k, &k->scales);
    /* What is wrong first in a row is said: a scale before its block's codes. */
    bool scale_first = scales && (!codes || k->scales.row < k->codes.row ||
                                  (k->scales.row == k->codes.row && k->scales.column <= k->codes.column));
    if (scale_first)
        worsen(j, "scales", &k->scales, scales, k->block, k->scale_digits);
    if (codes)
        worsen(j, "codes", &k->codes, codes, k->block, k->code_digits);
    if (k->only_zeros)
        case_worsen(j, VERDICT_VACUOUS, "every code of the reference is zero, so nothing was verified");
    j->judged = j->quantiser = true;
    return GB_OK;
}

static const struct operator_check rows[] = {
    {GB_QUANTISE, quantise_reference, evaluate_quantise},
    {GB_SILU_MUL_QUANTISE, quantise_reference, evaluate_quantise},
};

const struct operator_check *operator_check_find(enum gb_operator operation)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].operation == operation)
            return &rows[i];
    return NULL;
}
