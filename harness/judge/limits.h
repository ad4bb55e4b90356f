/* SPDX-License-Identifier: Apache-2.0 */
/* The limits that the check `bound` holds outputs to, as a file for those who compare by themselves. */
#ifndef GB_HARNESS_JUDGE_LIMITS_H
#define GB_HARNESS_JUDGE_LIMITS_H

#include "harness/judge/baseline.h"

/* Writes /layers/N/truth and /layers/N/limit, float64 [tokens, hidden], of the first `tokens` tokens (docs/gates.md).
 * baseline: with the bounds of the case. GB_EIO, GB_ENOMEM. */
enum gb_status limits_write(const char *path, const struct baseline *baseline, uint32_t tokens, struct gb_error *error);

#endif
