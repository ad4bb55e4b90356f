/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch and combine by all processes of MPI, as the harness runs the reference: each has its ranks' arrays alone. */
#ifndef GB_HARNESS_RUN_EXCHANGE_TASK_H
#define GB_HARNESS_RUN_EXCHANGE_TASK_H

#include "fixtures/fixtures.h"
#include "harness/run/processes.h"

/* In process 0: a fixture of dispatch or combine. *lost: as of processes_task. */
enum gb_status exchange_task(const struct gb_fixture *fixture, unsigned timeout_s, struct gb_outputs **outputs,
                             bool *lost, struct gb_error *error);
/* What every process does with its part. */
processes_part exchange_task_run;

#endif
