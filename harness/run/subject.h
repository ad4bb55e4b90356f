/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the processes that run a subject's code: its library, loaded, and the memory of its buffers. */
#ifndef GB_HARNESS_RUN_SUBJECT_H
#define GB_HARNESS_RUN_SUBJECT_H

#include "gaugeblock.h"
#include "harness/run/operators.h"

/* Loads (or, for BUILTIN_LIBRARY, finds) a library. The library stays loaded. loaded: called between its constructors
 * and its table's function; NULL. */
enum gb_status subject_open(const char *path, void (*loaded)(void), const struct gb_kernel_table **table,
                            struct gb_error *error);
/* By name; NULL if there is none. */
const struct gb_kernel *subject_find(const struct gb_kernel_table *table, const char *name);
/* The device functions of our CUDA library, loaded, and the device's description. */
enum gb_status subject_device(const struct gb_device **device, char *text, size_t bytes, struct gb_error *error);
/* What times the kernel: the host's clock, or that of our CUDA library for device pointers. */
enum gb_status subject_timer(const struct gb_kernel *kernel, const struct gb_timer **timer, struct gb_error *error);
/* Poisons what device memory a kernel with device pointers allocates for itself, as our CUDA library can. */
enum gb_status subject_poison(const struct gb_kernel *kernel, uint8_t byte, struct gb_error *error);
/* The memory a kernel's buffers must lie in; loads our CUDA library for device pointers. */
enum gb_status subject_memory(const struct gb_kernel *kernel, const struct gb_device **memory, struct gb_error *error);
#endif
