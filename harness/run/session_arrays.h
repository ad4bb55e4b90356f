/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the worker: checked runs of a kernel whose operator has no layers. */
#ifndef GB_HARNESS_RUN_SESSION_ARRAYS_H
#define GB_HARNESS_RUN_SESSION_ARRAYS_H

#include "harness/run/operators.h"
#include "harness/run/worker.h"

/* One run on the first `tokens` of the fixture, what is written and the workspace poisoned with `poison`. outputs:
 * where it goes. Adds what it saw to checks. */
enum gb_status session_run_arrays(const struct gb_kernel *kernel, const struct gb_device *memory,
                                  const struct gb_fixture *fixture, uint32_t tokens, uint8_t poison,
                                  struct gb_outputs *outputs, struct worker_checks *checks, struct gb_error *error);

#endif
