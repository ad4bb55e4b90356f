/* SPDX-License-Identifier: Apache-2.0 */
/* Where kernels come from: the reference, our CUDA library, and libraries named by --subject. */
#ifndef GB_HARNESS_RUN_SUBJECT_H
#define GB_HARNESS_RUN_SUBJECT_H

#include "gaugeblock.h"
#include "harness/run/operators.h"

/* The reference is the library named BUILTIN_LIBRARY; our CUDA kernels live in CUDA_LIBRARY beside libgaugeblock. */
#define BUILTIN_LIBRARY "builtin"
#define CUDA_LIBRARY "libgaugeblock-cuda.so"

struct subject_library {
    char path[4096]; /* as the worker gets it */
    const struct gb_kernel_table *table;
};

/* Loads (or, for BUILTIN_LIBRARY, finds) a library and checks its ABI version. The library stays loaded. */
enum gb_status subject_library_open(const char *path, struct subject_library *library, struct gb_error *error);
/* The path of our CUDA library: beside libgaugeblock. GB_EUNSUPPORTED if this build has none. */
enum gb_status subject_cuda_path(char *path, size_t bytes, struct gb_error *error);
/* Kernel number i. */
const struct gb_kernel *subject_kernel(const struct subject_library *library, uint32_t i);
/* By name; NULL if there is none. */
const struct gb_kernel *subject_find(const struct subject_library *library, const char *name);

/* Of the weights it multiplies by; "none" for a kernel that has no weights. */
const char *kernel_weights_name(const struct gb_kernel *kernel);
/* Memory of the host through the same functions as memory of a device. */
const struct gb_device *host_memory(void);
/* The memory a kernel's buffers must lie in; loads our CUDA library for device pointers. */
enum gb_status subject_memory(const struct gb_kernel *kernel, const struct gb_device **memory, struct gb_error *error);

#endif
