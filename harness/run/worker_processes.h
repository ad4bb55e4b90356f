/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the reference by all processes of MPI, as process 0 gives them to itself and the others. */
#ifndef GB_HARNESS_RUN_WORKER_PROCESSES_H
#define GB_HARNESS_RUN_WORKER_PROCESSES_H

#include "harness/run/processes.h"
#include "harness/run/worker.h"

/* In process 0, what worker_run does where there are several. Other kernels are NOT_RUN. */
void worker_run_processes(const struct worker_request *request, const struct gb_fixture *fixture,
                          struct worker_result *result);

/* Of processes_lead: the part of any task. */
processes_part worker_part;

#endif
