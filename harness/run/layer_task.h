/* SPDX-License-Identifier: Apache-2.0 */
/* Layers by all processes of MPI, one rank each: every process has some of the tokens, and its neighbouring experts'
 * weights alone. */
#ifndef GB_HARNESS_RUN_LAYER_TASK_H
#define GB_HARNESS_RUN_LAYER_TASK_H

#include "fixtures/fixtures.h"
#include "harness/run/processes.h"

/* In process 0: the fixture's layers by the contract of a kernel of ours on so many tokens. outputs: as the kernel's,
 * without stages. *lost: as of processes_task. */
enum gb_status layer_task(const struct gb_fixture *fixture, const struct gb_kernel *kernel, uint32_t tokens,
                          unsigned timeout_s, struct gb_outputs **outputs, bool *lost, struct gb_error *error);
/* What every process does with its part. */
processes_part layer_task_run;

#endif
