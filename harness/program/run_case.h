/* SPDX-License-Identifier: Apache-2.0 */
/* From one subject on one fixture to cases of the record. */
#ifndef GB_HARNESS_PROGRAM_RUN_CASE_H
#define GB_HARNESS_PROGRAM_RUN_CASE_H

#include "harness/judge/case_request.h"
#include "harness/judge/case_result.h"

/* Runs a selected kernel in a worker and judges every batch; where it cannot run, one case says why. */
enum gb_status case_kernel(struct case_list *cases, struct case_request *request, const struct selected *selected,
                           struct gb_error *error);
/* Of the cases that were judged the largest batch; 0 if none was. */
uint32_t case_most_tokens(const struct case_list *cases);
/* Those that pass are VACUOUS: the fixture lacks what --require-coverage `demand` asks for. */
enum gb_status case_not_exercised(struct case_list *cases, const char *missing, const char *demand,
                                  struct gb_error *error);
/* Of those that were judged and found the fixture's truth wrong, prints the first one's reason. */
void case_report_bad_truth(const struct case_list *cases);
/* A case that says why the fixture at `path` was refused, or --batch for it (batches; NULL: the fixture itself was);
 * code: EXIT_USAGE or EXIT_CRASH. */
enum gb_status case_refused(struct case_list *cases, const char *path, const char *batches, unsigned timeout_s,
                            int code, const char *reason, struct gb_error *error);
/* Judges a file of outputs by what is claimed for it. */
enum gb_status case_outputs(struct case_list *cases, const struct case_request *request, const char *outputs_path,
                            const struct declared_precision *declared, struct gb_error *error);

#endif
