/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: the place, the effect and the stage that an error has, from its structure alone. */
#ifndef GB_HARNESS_EXPLAIN_STRUCTURE_H
#define GB_HARNESS_EXPLAIN_STRUCTURE_H

#include "harness/explain/stages.h"

struct structure {
    struct finding finding;
    double explains; /* the share of the squared error */
};

/* Looks for one finding that explains the window's errors, with about so many products at most. explains 0: there is
 * none. w->faulty is overwritten. GB_ENOMEM. */
enum gb_status structure_search(struct window *window, double products, struct structure *best, struct gb_error *error);
/* The window's results under a finding: results, [rows, width]. GB_ENOMEM. */
enum gb_status structure_plant(const struct window *window, const struct finding *finding, float *results,
                               struct gb_error *error);

#endif
