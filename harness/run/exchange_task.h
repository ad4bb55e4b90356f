/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch and combine by all processes of MPI, as the harness runs the reference: each has its ranks' arrays alone. */
#ifndef GB_HARNESS_RUN_EXCHANGE_TASK_H
#define GB_HARNESS_RUN_EXCHANGE_TASK_H

#include "harness/run/processes.h"
#include "harness/run/worker.h"

/* In process 0, what worker_run does where there are several. Other kernels than the reference's are NOT_RUN. */
void exchange_task_worker(const struct worker_request *request, const struct gb_fixture *fixture,
                          struct worker_result *result);

/* Of processes_lead. */
processes_part exchange_task_run;

#endif
