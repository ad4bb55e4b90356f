/* SPDX-License-Identifier: Apache-2.0 */
/* Truth is part of no hash: whether a fixture's is that of its inputs, and drift can be measured by it. */
#ifndef GB_HARNESS_JUDGE_TRUTH_CHECK_H
#define GB_HARNESS_JUDGE_TRUTH_CHECK_H

#include "harness/judge/baseline.h"

/*
 * The stack's truth/quantised is computed again, layer by layer, each from the stored stream before it; truth/original,
 * whose weights are gone, must have a distance from truth/quantised; the reference's stream must be finite. The truth
 * of single layers is held against derived bounds by the judge. path: of the fixture. GB_EFORMAT: one line with file,
 * dataset and mend. GB_ENOMEM.
 */
enum gb_status truth_check(const struct baseline *baseline, const char *path, struct gb_error *error);

#endif
