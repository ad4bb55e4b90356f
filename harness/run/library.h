/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libraries of kernels say of themselves. A library is loaded by processes of its own alone: one that reads its
 * table (`gaugeblock guard table`), and one for every kernel that is run (worker.h). What the first leaves is checked
 * as any other input is.
 */
#ifndef GB_HARNESS_RUN_LIBRARY_H
#define GB_HARNESS_RUN_LIBRARY_H

#include <stdbool.h>

#include "gaugeblock.h"
#include "harness/run/operators.h"
#include "harness/run/verdict.h"

/* The reference is the library named BUILTIN_LIBRARY; our CUDA kernels live in CUDA_LIBRARY beside the
 * program, or where it installs libraries. */
#define BUILTIN_LIBRARY "builtin"
#define CUDA_LIBRARY "libgaugeblock-cuda.so"

struct subject_library {
    char path[4096];           /* as the worker gets it */
    struct gb_kernel *kernels; /* [count], without functions */
    uint32_t count;
    enum verdict verdict; /* VERDICT_PASS; otherwise why there are no kernels, and */
    char reason[640];
};

/*
 * Reads a library's table, within timeout_s seconds. A library that crashes, ends the process or takes longer has the
 * verdict CRASH, one whose table is refused BAD_INPUT. GB_EIO, GB_EINVAL: there is no such library.
 */
enum gb_status library_read(const char *path, unsigned timeout_s, struct subject_library *library,
                            struct gb_error *error);
void library_free(struct subject_library *library);
/* The path of our CUDA library: beside libgaugeblock. GB_EUNSUPPORTED if this build has none. */
enum gb_status library_cuda_path(char *path, size_t bytes, struct gb_error *error);

/* The CUDA device that kernels run on, as our CUDA library describes it: asked once a run. GB_EUNSUPPORTED and why:
 * there is none. */
enum gb_status library_device(char *text, size_t bytes, struct gb_error *error);

/* The rules that every table keeps, whoever read it; path: for the message. */
enum gb_status library_check_kernel(const char *path, uint32_t i, const struct gb_kernel *kernel,
                                    struct gb_error *error);

/* Of the weights it multiplies by; "none" for a kernel that has no weights. */
const char *kernel_weights_name(const struct gb_kernel *kernel);

/* Child: `gaugeblock guard table LIBRARY`, or `gaugeblock guard table` for the device. It shares one memory file,
 * WIRE_BYTES long. */
int table_main(int argc, char **argv);

#endif
