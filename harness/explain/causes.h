/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: the structures that together make up an error, one or two. */
#ifndef GB_HARNESS_EXPLAIN_CAUSES_H
#define GB_HARNESS_EXPLAIN_CAUSES_H

#include "harness/explain/finding_text.h"
#include "harness/explain/structure.h"

enum { MOST_CAUSES = 2 };

struct causes {
    struct finding of[MOST_CAUSES]; /* the one that explains most first */
    uint32_t count;                 /* 0: the error has no such structure */
    double explains;                /* the share of the squared error, of all together */
};

/* Looks for one structure that explains the errors, and where it explains a part of them for one in what it
 * leaves. w->faulty is overwritten. GB_ENOMEM. */
enum gb_status causes_find(struct diagnosis *diagnosis, struct causes *causes, struct gb_error *error);
/* Enters them as one candidate; nothing if there are none. */
void causes_add(struct diagnosis *diagnosis, const struct causes *causes);
/* What the numbers of a finding refer to. */
struct finding_frame causes_frame(const struct diagnosis *diagnosis, const struct finding *finding);

#endif
