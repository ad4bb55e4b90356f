/* SPDX-License-Identifier: Apache-2.0 */
/* An HDF5 of which one call fails, in a program that is linked against the shared library. */
#ifndef GB_TESTS_SUPPORT_FAILING_HDF5_H
#define GB_TESTS_SUPPORT_FAILING_HDF5_H

#include <stdbool.h>
#include <stdint.h>

/* From now on this call of those that will be made fails, counted from 1; 0: none. Returns how many have been made
 * since the last hdf5_fail. */
uint32_t hdf5_fail(uint32_t call);
/* How many files, groups, datasets and attributes are open, and of the spaces, types and lists of properties that were
 * made since the last such call. */
uint32_t hdf5_left_open(void);
/* Another value of a whole number of the file's root. */
bool hdf5_put_count(const char *path, const char *name, uint64_t value);

#endif
