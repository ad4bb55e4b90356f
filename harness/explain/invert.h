/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: the errors of what down multiplies, from the errors of one token's outputs. */
#ifndef GB_HARNESS_EXPLAIN_INVERT_H
#define GB_HARNESS_EXPLAIN_INVERT_H

#include "harness/explain/stages.h"

/* Which elements are taken to be wrong together. */
enum grouping {
    GROUP_BLOCKS,        /* runs of 16 of one slot */
    GROUP_COLUMNS,       /* runs of 16 of all slots */
    GROUP_RESIDUES,      /* those of one remainder mod 32, of all slots */
    GROUP_SLOT_RESIDUES, /* those of one slot */
    GROUPINGS
};

/*
 * The fewest groups of elements whose errors make the token's outputs wrong as they are, chosen one after another, by
 * least squares. delta: [top_k, intermediate]. GB_EUNSUPPORTED: no few groups do, as compared with the outputs, or it
 * takes more than `most` products. *work: grows by what it takes. GB_ENOMEM.
 */
enum gb_status invert(const struct stages *stages, uint32_t token, enum grouping grouping, double most, double *delta,
                      double *work, struct gb_error *error);

#endif
