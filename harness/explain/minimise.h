/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest part of a problem that a kernel still fails on, as a fixture of its own. */
#ifndef GB_HARNESS_EXPLAIN_MINIMISE_H
#define GB_HARNESS_EXPLAIN_MINIMISE_H

#include "harness/judge/case_request.h"
#include "harness/judge/case_result.h"

/* GB_EINVAL, GB_EIO: `path` is no regular file, or lies in no writable folder. */
enum gb_status minimise_check(const char *path, struct gb_error *error);

/*
 * outputs: what the kernel wrote and failed with. kind: of the explanation of that, which the parts tried must have
 * too, unless not even a whole layer has; "": none was found. Tries tokens, slots, neurons and columns, each in a
 * worker, and writes the smallest part found to `path`. *smallest: allocated, without the line that
 * reproduces it; NULL where no part of one layer fails by itself.
 */
enum gb_status minimise(const struct case_request *request, const struct selected *selected,
                        const struct gb_outputs *outputs, const char *kind, const char *path,
                        struct minimal_part **smallest, struct gb_error *error);

#endif
