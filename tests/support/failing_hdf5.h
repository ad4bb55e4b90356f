/* SPDX-License-Identifier: Apache-2.0 */
/* An HDF5 of which one call fails, in a program that is linked against the shared library. */
#ifndef GB_TESTS_SUPPORT_FAILING_HDF5_H
#define GB_TESTS_SUPPORT_FAILING_HDF5_H

#include <stdint.h>

/* From now on the first call fails of those that come from this place, counted from 1, of those that called, each
 * through the same functions, since the last hdf5_fail(0). Returns how many these are. */
uint32_t hdf5_fail(uint32_t place);

#endif
