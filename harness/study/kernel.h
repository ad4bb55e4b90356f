/* SPDX-License-Identifier: Apache-2.0 */
/* Private: a path's layer by a kernel in a process of its own, in place of the reference. */
#ifndef GB_HARNESS_STUDY_KERNEL_H
#define GB_HARNESS_STUDY_KERNEL_H

#include "harness/study/study.h"

/* As study_path_run, of a path that has a kernel. GB_EUNSUPPORTED: it did not run, and why. */
enum gb_status study_kernel_run(const struct study_path *path, const struct gb_fixture *fixture, uint32_t layer,
                                const struct study_batch *batch, const float global[2], float *output,
                                gb_bf16 *intermediate, struct gb_error *error);

#endif
