/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: sets of indices in few words. */
#ifndef GB_HARNESS_EXPLAIN_PLACES_H
#define GB_HARNESS_EXPLAIN_PLACES_H

#include "harness/explain/stages.h"

/* How many things an axis leaves to choose: 0 for all indices. */
uint32_t axis_cost(const struct finding_axis *axis);
/* The simplest axis that has every index in `is` and none that `would` be in it and is not. false: there is none.
 * is, would: [size]. */
bool axis_describe(const bool *is, const bool *would, uint32_t size, struct finding_axis *axis);
/* Tokens, slots and experts of pairs, likewise. is, would: [pairs]. */
bool pairs_describe(const struct stages *stages, const bool *is, const bool *would, struct finding *finding);
/* The same of tokens. is, would: [tokens]. */
bool tokens_describe(const struct stages *stages, const bool *is, const bool *would, struct finding *finding);
uint32_t finding_cost(const struct finding *finding);

#endif
