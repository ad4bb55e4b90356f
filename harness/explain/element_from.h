/* SPDX-License-Identifier: Apache-2.0 */
/* Private to explain: effects that move elements within a row. */
#ifndef GB_HARNESS_EXPLAIN_ELEMENT_FROM_H
#define GB_HARNESS_EXPLAIN_ELEMENT_FROM_H

#include <stddef.h>

#include "harness/judge/finding.h"

/* Which element of a row of `width` such an effect takes for element i; i of the others. */
size_t element_from(const struct finding *finding, size_t width, size_t i);

#endif
