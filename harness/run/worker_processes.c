/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/run/worker_processes.h"

#include <stdio.h>
#include <string.h>

#include "harness/run/clock.h"
#include "harness/run/exchange_task.h"
#include "harness/run/layer_task.h"
#include "harness/run/library.h"
#include "harness/run/task_pieces.h"
#include "quant/quant.h"

/* Whether a kernel is one that several processes run. */
static bool is_spread(const struct worker_request *request, const struct gb_fixture *f)
{
    const struct gb_kernel *k = request->kernel;
    return !strcmp(request->library, BUILTIN_LIBRARY) &&
           (gb_fixture_exchanges(f) ||
            (operator_is_whole(k) && !(k->flags & GB_ROUTES) && !f->apply_router_weight_on_input));
}

static enum gb_status run(const struct worker_request *request, const struct gb_fixture *f, uint32_t b,
                          struct gb_outputs **outputs, bool *lost, struct gb_error *error)
{
    return gb_fixture_exchanges(f)
               ? exchange_task(f, request->timeout_s, outputs, lost, error)
               : layer_task(f, request->kernel, request->batches[b], request->timeout_s, outputs, lost, error);
}

void worker_run_processes(const struct worker_request *request, const struct gb_fixture *f,
                          struct worker_result *result)
{
    struct gb_error error;
    memset(result, 0, sizeof *result);
    if (!is_spread(request, f)) {
        result->verdict = VERDICT_NOT_RUN;
        snprintf(
            result->reason, sizeof result->reason,
            "%s runs without mpirun; by several processes of MPI run the reference's dispatch and combine, and its "
            "layers under the fixture's routing",
            request->kernel->name);
        return;
    }
    for (uint32_t b = 0; result->verdict == VERDICT_PASS && b < request->batch_count; b++) {
        bool lost = false;
        double began = clock_seconds();
        enum gb_status status = run(request, f, b, &result->outputs[b], &lost, &error);
        result->seconds[b] = clock_seconds() - began;
        if (status == GB_OK)
            continue;
        result->verdict = lost                                               ? VERDICT_CRASH
                          : status == GB_ENOMEM || status == GB_EUNSUPPORTED ? VERDICT_NOT_RUN
                                                                             : VERDICT_FAIL;
        snprintf(result->reason, sizeof result->reason, "%s", error.message);
    }
}

enum gb_status worker_part(const struct gb_processes *all, const struct gb_parcel *part, struct gb_parcel *result,
                           struct gb_error *error)
{
    enum task_kind kind;
    memcpy(&kind, part->bytes, sizeof kind);
    return kind == TASK_LAYER ? layer_task_run(all, part, result, error) : exchange_task_run(all, part, result, error);
}
