/* SPDX-License-Identifier: Apache-2.0 */
/* One subject's outputs to cases: one, or two where routing of its own comes with them. */
#ifndef GB_HARNESS_PROGRAM_EVALUATE_CASE_H
#define GB_HARNESS_PROGRAM_EVALUATE_CASE_H

#include "harness/program/run_case.h"
#include "harness/run/worker.h"

struct run_case {
    struct gb_kernel kernel; /* what the subject is and claims to be */
    const char *library;     /* its path; "" for a file of outputs */
    const char *repro;
    const char *note;                             /* what else is to be known of its run; NULL */
    const struct gb_outputs *outputs, *second;    /* second: of another run, where the two may differ; otherwise NULL */
    const struct gb_outputs *largest;             /* of the same run and the most tokens; NULL: outputs */
    const struct worker_checks *checks, *routing; /* what watching it showed; NULL for a file */
    const struct timing *timing;                  /* NULL: none */
    double seconds;                               /* that it took to run it, or to read its file */
};

/* The contract's name; "" if no order is claimed. */
const char *contract_name(const struct gb_kernel *kernel);
/* Where both ids and an output are there, the router is one case, and the layer under the subject's own routing
 * another. A failed output is explained. */
enum gb_status evaluate_cases(struct case_list *cases, const struct case_request *request,
                              const struct run_case *subject, struct gb_error *error);

#endif
