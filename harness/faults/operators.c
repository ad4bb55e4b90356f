/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/faults/operators.h"

#define DECLARE(NAME) extern const struct operator_faults operator_faults_##NAME;
GB_OPERATORS(DECLARE)
#define ROW(NAME) &operator_faults_##NAME,
static const struct operator_faults *const rows[] = {GB_OPERATORS(ROW)};

const struct operator_faults *operator_faults_at(size_t index)
{
    return index < sizeof rows / sizeof *rows ? rows[index] : NULL;
}

const struct operator_faults *operator_faults_find(enum gb_operator operation)
{
    size_t i = 0;
    while (rows[i]->operation != operation)
        i++;
    return rows[i];
}
