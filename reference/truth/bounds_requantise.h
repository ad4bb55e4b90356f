/* SPDX-License-Identifier: Apache-2.0 */
/* Private: what may become of an interval of values when they are quantised. docs/numerics.md#bounds. */
#ifndef GB_REFERENCE_TRUTH_BOUNDS_REQUANTISE_H
#define GB_REFERENCE_TRUTH_BOUNDS_REQUANTISE_H

#include "reference/reference.h"

/*
 * A row of unrounded values, each known to lie within value +- limit: value becomes the number of its code (with both
 * scales), limit the largest distance from it of a number that another value of the interval may get, a flip of the
 * block's scale included; 2^500 where that is open. value, limit: [count], count a multiple of the block.
 */
void gb_requantise_intervals(const struct gb_requantisation *requantisation, uint32_t count, double *value,
                             double *limit);

#endif
