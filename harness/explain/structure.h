/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: the place, the effect and the stage that an error has, from its structure alone. */
#ifndef GB_HARNESS_EXPLAIN_STRUCTURE_H
#define GB_HARNESS_EXPLAIN_STRUCTURE_H

#include "harness/explain/stages.h"

struct structure {
    struct finding finding;
    double explains; /* the share of the squared error */
};

/* Looks for one finding that explains the errors, with about so many products at most. explains 0: there is
 * none. w->faulty is overwritten. GB_ENOMEM. */
enum gb_status structure_search(struct diagnosis *diagnosis, double products, struct structure *best,
                                struct gb_error *error);
/* The results under a finding: results, [rows, width]. GB_ENOMEM. */
enum gb_status structure_plant(const struct diagnosis *diagnosis, const struct finding *finding, float *results,
                               struct gb_error *error);

#endif
