/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the worker: inputs that differ from others in one array alone. What a kernel keeps of a run on these, and
 * finds again by the arrays that are the same, is wrong in a later one. */
#ifndef GB_HARNESS_RUN_ALTERED_H
#define GB_HARNESS_RUN_ALTERED_H

#include <stdbool.h>

#include "harness/run/operators.h"

/* Bytes of an array whose parts are to change places: the first `kept` stay, the last `moved` come next. Elements of up
 * to 4 bytes stay whole. The parts of a long array are whole pages, which guarded_show can map. moved is 0 where it is
 * too short. */
struct altered_split {
    size_t kept, moved;
};
struct altered_split altered_split(size_t bytes);

/*
 * Makes altered, a copy of inputs (struct operator_inputs or struct gb_fixture, as the operator's rows have them),
 * point to a copy of this array with its tokens, but for the first, in another order, or each token's elements where
 * that changes nothing. *copy: that copy, for free(); NULL: no order differs, or the array cannot change without
 * others.
 */
enum gb_status altered_array(const struct operator_array *array, const struct gb_kernel *kernel,
                             const struct gb_fixture *fixture, uint32_t tokens, const void *inputs, void *altered,
                             void **copy, struct gb_error *error);

#endif
