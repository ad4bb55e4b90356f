/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch and combine by all processes of MPI, as the harness runs the reference: each has its ranks' arrays alone. */
#ifndef GB_HARNESS_RUN_EXCHANGE_TASK_H
#define GB_HARNESS_RUN_EXCHANGE_TASK_H

#include "harness/run/processes.h"
#include "harness/run/worker.h"

/* In process 0, what worker_run does where there are several. Other kernels than the reference's are NOT_RUN. */
void exchange_task_worker(const struct worker_request *request, const struct gb_fixture *fixture,
                          struct worker_result *result);

/* What every process does with its part. result: bytes allocated by malloc. */
enum gb_status exchange_task_run(const struct gb_processes *all, const struct gb_parcel *part, struct gb_parcel *result,
                                 struct gb_error *error);

#endif
