/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a library that misbehaves as its file's name says. */
#ifndef GB_TESTS_FAULTS_HOSTILE_H
#define GB_TESTS_FAULTS_HOSTILE_H

#include "gaugeblock.h"

/* Of the file's name, hostile-WHEN-WHAT.so. */
extern char when[32], what[64];

/* Bytes of the workspace of kernels that misuse it. */
enum { HOSTILE_WORKSPACE = 4096 };
/* One run of the reference's kernel, before or after which a kernel that remembers, or touches what is not its own,
 * does so. */
enum gb_status hostile_run(const struct gb_kernel *reference, struct gb_arguments *arguments, struct gb_error *error);
/* What a library does to files that the judge uses. */
void hostile_files(void);

#endif
