/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is short, in the program that has memory.c within. */
#ifndef GB_TESTS_FAULTS_MEMORY_H
#define GB_TESTS_FAULTS_MEMORY_H

#include <stdint.h>

/* From now on the first allocation fails that this place of those that will ask asks for, counted from 1; 0: none.
 * Returns how many have asked since the last call. */
uint32_t memory_fail(uint32_t place);

#endif
