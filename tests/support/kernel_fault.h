/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faulty kernels by a seed, as mistakes in what a kernel reads and where it writes: bytes of the weights and their
 * scales, rows of an expert's tokens, tiles, routing weights. They know nothing of the words that findings are made of.
 */
#ifndef GB_TESTS_SUPPORT_KERNEL_FAULT_H
#define GB_TESTS_SUPPORT_KERNEL_FAULT_H

#include "tests/support/structured_fault.h"

/* Which families are drawn: those that the search was written with in view, and those that came after it. */
enum kernel_faults { KERNEL_FAULTS_KNOWN, KERNEL_FAULTS_HELD_OUT };

/* What a faulty kernel computes, not always something else. output: [tokens, hidden]. Returns what the mistake is. */
const char *kernel_fault_run(const struct layer_stages *clean, enum kernel_faults which, uint64_t seed, float *output);
size_t kernel_fault_families(enum kernel_faults which);

#endif
