/* SPDX-License-Identifier: Apache-2.0 */
/* From one subject on one fixture to cases of the record. */
#ifndef GB_HARNESS_PROGRAM_RUN_CASE_H
#define GB_HARNESS_PROGRAM_RUN_CASE_H

#include <jansson.h>

#include "harness/judge/baseline.h"
#include "harness/judge/declared_precision.h"
#include "harness/judge/policy.h"
#include "harness/judge/reroute.h"
#include "harness/run/match_kernels.h"

struct case_request {
    const char *path; /* of the fixture */
    struct gb_fixture *fixture;
    struct baselines *baselines; /* of the fixture */
    struct rerouted *own;        /* the last routing of a subject's own, kept for others that route alike */
    const struct gate *gate;
    const char *gate_name; /* as --gate has it; NULL: the default one */
    uint32_t batches[32];
    uint32_t batch_count;
    unsigned timeout_s;
    const char *minimal; /* where the smallest part that fails is written; NULL: not asked for */
};

/* Runs a selected kernel in a worker and judges every batch; where it cannot run, one case says why. */
enum gb_status case_kernel(json_t *record, struct case_request *request, const struct selected *selected,
                           struct gb_error *error);
/* Of the cases from number `first` on that were judged: the largest batch; 0 if none was. */
uint32_t case_most_tokens(const json_t *record, size_t first);
/* Of those, the ones that pass are VACUOUS: the fixture lacks what --require-coverage `demand` asks for. */
void case_not_exercised(json_t *record, size_t first, const char *missing, const char *demand);
/* Of those that were judged and found the fixture's truth wrong, prints the first one's reason. */
void case_report_bad_truth(const json_t *record, size_t first);
/* A case that says why the fixture at `path` was refused, or --batch for it (batches; NULL: the fixture itself was);
 * code: EXIT_USAGE or EXIT_CRASH. */
void case_refused(json_t *record, const char *path, const char *batches, unsigned timeout_s, int code,
                  const char *reason);
/* Judges a file of outputs by what is claimed for it. */
enum gb_status case_outputs(json_t *record, const struct case_request *request, const char *outputs_path,
                            const struct claim *claim, struct gb_error *error);

#endif
