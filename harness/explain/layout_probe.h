/* SPDX-License-Identifier: Apache-2.0 */
/* Whether codes taken over from a checkpoint were read as they were meant, by what the model computed from them. */
#ifndef GB_HARNESS_EXPLAIN_LAYOUT_PROBE_H
#define GB_HARNESS_EXPLAIN_LAYOUT_PROBE_H

#include "fixtures/fixtures.h"

/*
 * For every layer whose MoE output the capture implies (it has the residual stream around the layer and before the next
 * one): the reading of the codes that was taken must fit that output better than the other readings, nibbles swapped
 * and gate for up. GB_EFORMAT names the reading that fits best. *cosine: the smallest one of the reading taken, between
 * truth and capture; NaN if the capture implies no output.
 */
enum gb_status reading_check(const struct gb_fixture *fixture, const struct gb_capture *capture, double *cosine,
                             struct gb_error *error);

#endif
