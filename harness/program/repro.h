/* SPDX-License-Identifier: Apache-2.0 */
/* The command line that reproduces a case: a word of it is quoted where a shell would take it apart. */
#ifndef GB_HARNESS_PROGRAM_REPRO_H
#define GB_HARNESS_PROGRAM_REPRO_H

#include <stdbool.h>

#include "harness/program/run_case.h"

enum { REPRO_BYTES = 32768 }; /* of a line: five paths of PATH_MAX, quoted */

/* text: [REPRO_BYTES]. A kernel on the fixture at `path`; anywhere: the line is to work in every folder, not in this
 * one alone. */
void repro_kernel(char *text, const struct case_request *r, const char *path, const struct selected *s, uint32_t batch,
                  bool anywhere);
/* A file of outputs, with all that is claimed for it. */
void repro_outputs(char *text, const struct case_request *r, const char *outputs,
                   const struct declared_precision *declared);
/* A fixture that is refused; batches: of --batch, or NULL. */
void repro_refused(char *text, const char *path, const char *batches, unsigned timeout_s);

#endif
