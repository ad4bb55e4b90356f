/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between gate_up and down, as data: docs/numerics.md has the text under the same names. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "quant/quant.h"

static const struct gb_activation_row rows[] = {
    {GB_SILU, "silu", GB_GATE_SILU, 1.0, INFINITY, 0.0, false},
    {GB_SWIGLU_OAI, "swiglu-oai", GB_GATE_SIGMOID, 1.702, 7.0, 1.0, true},
};

const struct gb_activation_row *gb_activation_rows(size_t *count)
{
    *count = sizeof rows / sizeof *rows;
    return rows;
}

const struct gb_activation_row *gb_activation_find(enum gb_activation activation)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].activation == activation)
            return &rows[i];
    return NULL;
}

const char *gb_activation_name(enum gb_activation activation)
{
    const struct gb_activation_row *row = gb_activation_find(activation);
    return row ? row->name : NULL;
}

enum gb_status gb_activation_parse(const char *name, enum gb_activation *activation, struct gb_error *error)
{
    char known[64] = "";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t used = strlen(known);
        if (!strcmp(rows[i].name, name)) {
            *activation = rows[i].activation;
            return GB_OK;
        }
        snprintf(known + used, sizeof known - used, "%s%s", used ? " or " : "", rows[i].name);
    }
    return gb_fail(error, GB_EINVAL, "'%s' is unknown; write %s", name, known);
}
