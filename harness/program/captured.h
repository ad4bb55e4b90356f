/* SPDX-License-Identifier: Apache-2.0 */
/* Whether an imported layer is the model's: experts and output, against those of the model's own block. */
#ifndef GB_HARNESS_PROGRAM_CAPTURED_H
#define GB_HARNESS_PROGRAM_CAPTURED_H

#include "fixtures/fixtures.h"

struct captured {
    uint32_t layers; /* whose output the capture has */
    double distance; /* the largest relative L2 distance of a layer's truth/original from it */
};

/*
 * For every layer whose output or experts the capture has (docs/fixtures.md#capture): truth's router must choose the
 * same experts for every token, and truth/original lie within captured_limit. GB_EFORMAT names the layer.
 */
enum gb_status captured_check(const struct gb_fixture *fixture, const struct gb_capture *capture,
                              struct captured *result, struct gb_error *error);

#endif
